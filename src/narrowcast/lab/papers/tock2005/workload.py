"""The statistics of the workload (section 5.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.costs.filtering import Filtering
from narrowcast.lab.papers.base import Experiment, Outcome, ResultRow
from narrowcast.lab.papers.tock2005.setting import PAPER, SMALL, printed, size_note, workload
from narrowcast.lab.sweep import Sweep
from narrowcast.planning.sessions.clusters import FlowPoints

if TYPE_CHECKING:
    from narrowcast.lab.papers.base import Study
    from narrowcast.lab.sweep import Record

#: Rows, and the paper's number of each: of the users, the flows, and the messages.
NUMBERS: dict[tuple[str, str], float | None] = {
    ("users", "symbols_mean"): 68.85,
    ("users", "symbols_max"): 102,
    ("users", "symbols_min"): 15,
    ("symbols", "top_tenth_pct"): 55,
    ("symbols", "wanted"): None,
    ("symbols", "distinct_audiences"): None,
    ("unicast/zipf", "copies_per_message"): 10.1,
    ("unicast/flat", "copies_per_message"): 10.1,
    ("flooding/zipf", "goodput_pct"): 2,
    ("flooding/flat", "goodput_pct"): 2,
}


def _statistics(*, law: str, **given: Any) -> Record:
    """Return the statistics of a seed, with one law of the rates."""
    flows = workload(**given, rates=law)
    interest, first = flows.interest(), int(flows.sizes()[0])
    each = np.diff(interest.wants.indptr)
    rate = interest.rate[:first]  # of the largest market
    return {
        "symbols_mean": float(each.mean()),
        "symbols_max": int(each.max(initial=0)),
        "symbols_min": int(each.min()) if len(each) else 0,
        "top_tenth_pct": 100 * float(rate[: max(1, round(first / 10))].sum() / rate.sum()),
        "wanted": int(np.count_nonzero(interest.audience())),
        "distinct_audiences": len(FlowPoints.of(interest)[0].merge_equal()[0]),
        "copies_per_message": Filtering.multiplicity(interest),
        "goodput_pct": 100 * Filtering.goodput(interest),
    }


def _workload(study: Study) -> Outcome:
    """Draw the workload of each seed, with both laws of the rates."""
    params = study.params
    found = study.run(Sweep(_statistics, {"law": ["zipf", "flat"]}, study.seeds, dict(params))).rows
    rows = []
    for (series, metric), paper in NUMBERS.items():
        law = series.partition("/")[2] or "zipf"
        values: list[Any] = [row[metric] for row in found if row["law"] == law]
        printed_value = None if paper is None else printed(params, paper)
        rows.append(ResultRow.of(series, None, metric, values, paper=printed_value))
    value = {(row.series, row.metric): row for row in rows}
    return Outcome(rows, notes=[*_claims(value), *size_note(params)])


def _claims(value: dict[tuple[str, str], ResultRow]) -> list[str]:
    """Return notes that compare the paper's numbers with the measured ones."""

    def text(series: str, metric: str, digits: int) -> str:
        return f"{value[series, metric].measured:.{digits}f}"

    users = (
        f"A user has {text('users', 'symbols_mean', 2)} symbols on average, "
        f"{text('users', 'symbols_max', 0)} at most and {text('users', 'symbols_min', 1)} at least "
        "(means over the seeds; the paper: 68.85, 102, 15). A tenth of a market's symbols has "
        f"{text('symbols', 'top_tenth_pct', 1)} % of its messages (the paper: 55 %)."
    )
    copies, goodput = (
        [value[f"{way}/{law}", metric].measured for law in ("zipf", "flat")]
        for way, metric in (("unicast", "copies_per_message"), ("flooding", "goodput_pct"))
    )
    rates = (
        "The text leaves open how rates go with the market. When the hottest symbol of market i sends 1 / i "
        f"of what that of the first does (zipf), unicast sends {copies[0]:.2f} copies of a message and "
        f"flooding has {goodput[0]:.2f} % goodput; when the hottest symbols send alike (flat), "
        f"{copies[1]:.2f} and {goodput[1]:.2f} %. The paper prints 10.1 and 2 %, which are one number, "
        "10.1 / 500. zipf is taken because it comes near: a calibration, not a derivation."
    )
    return [users, rates]


def _without_law(params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters without the law of the rates; both laws are run."""
    return {name: value for name, value in params.items() if name != "rates"}


WORKLOAD = Experiment("the statistics of the workload", _workload, _without_law(PAPER), SMALL)
