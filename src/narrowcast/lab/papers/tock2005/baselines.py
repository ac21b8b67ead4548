"""Baselines: unicast, flooding, and direct sending of flows with a single reader (section 5.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.costs.filtering import Filtering, receivers
from narrowcast.lab.papers.base import Experiment, Outcome, ResultRow
from narrowcast.lab.papers.tock2005.figure_7 import OWN, planned
from narrowcast.lab.papers.tock2005.setting import (
    METRIC,
    PAPER,
    SMALL,
    caption_of,
    interest_of,
    printed,
    size_note,
)
from narrowcast.lab.sweep import Sweep
from narrowcast.model.interest import Interest
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.relation import relation_of, rows_of

if TYPE_CHECKING:
    from narrowcast.lab.papers.base import Study
    from narrowcast.lab.sweep import Record

#: Ways of sending: without planning, and planned, each also as a hybrid.
UNPLANNED = ("unicast", "flooding")
PLANNED = ("hierarchical-gf", OWN)
HYBRID = "hybrid"
#: Metrics of each way.
MEASURES = (METRIC, "goodput_pct", "copies_per_message")


def hybrid_plan(interest: Interest, **chosen: Any) -> ChannelPlan:
    """Return a method's plan for flows with several readers; flows with one reader are sent to it directly.

    Examples
    --------
    >>> interest = Interest([[1, 1, 0], [1, 0, 1]])
    >>> plan = hybrid_plan(interest, method="hierarchical-gf", groups=1, sessions=1, seed=0, sweeps=1)
    >>> plan.unicast.nnz, plan.carries.nnz
    (2, 1)
    """
    wants, shape = interest.wants, interest.wants.shape
    reader, flow = rows_of(wants), wants.indices
    single = interest.audience()[flow] == 1
    rest = Interest(
        relation_of(reader[~single], flow[~single], shape),
        interest.rate,
        interest.subscribers,
        interest.flows,
    )
    plan = planned(rest, **chosen)
    direct = relation_of(reader[single], flow[single], shape)
    found = ChannelPlan(plan.carries, plan.listens, plan.parent, direct, interest.subscribers, interest.flows)
    found.validate(interest)
    return found


def _measured(
    interest: Interest, *, way: str, groups: int, sessions: int, seed: int, sweeps: int, **_: Any
) -> Record:
    """Return the measurements of a way of sending."""
    wanted = float(interest.rate @ interest.audience())
    sent = float(interest.rate @ (interest.audience() > 0))
    if way in UNPLANNED:
        unicast = way == "unicast"
        return {
            METRIC: 0.0 if unicast else 1.0,
            "goodput_pct": 100.0 if unicast else 100 * Filtering.goodput(interest),
            "copies_per_message": Filtering.multiplicity(interest) if unicast else 1.0,
        }
    method = way.removeprefix(f"{HYBRID}/")
    make = planned if way == method else hybrid_plan
    plan = make(interest, method=method, groups=groups, sessions=sessions, seed=seed, sweeps=sweeps)
    cost = Filtering().score(interest, plan)
    # A group's message is delivered once to each member, a direct one only to its reader.
    received = cost.terms["groups"] + cost.terms["direct"] / 2
    copies = float(plan.rate_of_flows(interest) @ (np.asarray(plan.carries.sum(axis=1)) + _direct(plan)))
    return {
        METRIC: Filtering.share(cost, receivers(interest)),
        "goodput_pct": 100 * wanted / received if received else 0.0,
        "copies_per_message": copies / sent if sent else 0.0,
    }


def _direct(plan: ChannelPlan) -> Any:
    """Return the number of direct copies of a message of each flow."""
    return np.bincount(plan.unicast.indices, minlength=plan.n_flows)


def _singles(**given: Any) -> Record:
    """Return the numbers of flows and messages with a single reader."""
    interest = interest_of(**given)
    audience, rate = interest.audience(), interest.rate
    one = audience == 1
    wanted = max(1, int(np.count_nonzero(audience)))
    readers = np.unique(rows_of(interest.wants)[one[interest.wants.indices]])
    return {
        "flows_pct": 100 * np.count_nonzero(one) / wanted,
        "messages_pct": 100 * float(rate @ one) / max(float(rate @ (audience > 0)), 1e-300),
        "unicast_links": len(readers),
    }


def _baselines(study: Study) -> Outcome:
    """Run all ways of sending, and count flows with a single reader."""
    params = dict(study.params)
    grid = {"groups": params.pop("groups"), "sessions": params.pop("sessions")}
    ways = [*UNPLANNED, *(f"{before}{name}" for name in PLANNED for before in ("", f"{HYBRID}/"))]
    sweep = Sweep(_measured, {**grid, "way": ways}, study.seeds, params, setup=interest_of)
    found: dict[tuple[str, str, int | None], list[float]] = {}
    for row in study.run(sweep).rows:
        plain = row["way"] in UNPLANNED
        series: Any = row["way"] if plain else f"{row['way']}/{row['groups']}"
        for name in MEASURES:
            value: Any = row[name]
            n: Any = None if plain else row["sessions"]
            found.setdefault((series, name, n), []).append(value)
    paper = {("unicast", "copies_per_message"): 10.1, ("flooding", "goodput_pct"): 2.0}
    rows = [
        ResultRow.of(
            series, n, name, values, paper=printed(study.params, paper_value) if paper_value else None
        )
        for (series, name, n), values in found.items()
        for paper_value in [paper.get((series, name))]
    ]
    rows.sort(key=lambda row: MEASURES.index(row.metric))
    fixed = {name: value for name, value in params.items() if name != "sweeps"}
    alone = study.run(Sweep(_singles, {}, study.seeds, fixed)).rows
    for name in ("flows_pct", "messages_pct", "unicast_links"):
        some: Any = [row[name] for row in alone]
        rows.append(ResultRow.of("single-reader", None, name, some))
    caption = f"{caption_of(params, len(study.seeds))}, alpha = beta = 1; black: what the paper prints"
    return Outcome(rows, {"tock2005-baselines": (_bars(rows), caption)}, [*_claims(rows), *size_note(params)])


def _bars(rows: list[ResultRow]) -> list[dict[str, Any]]:
    """Return the bars: one row per way of sending, one column per metric."""
    bars: list[dict[str, Any]] = []
    ways = list(dict.fromkeys((row.series, row.x) for row in rows if row.metric in MEASURES))
    for row in rows:
        if row.metric in MEASURES:
            name = row.series.removeprefix(f"{HYBRID}/").split("/")[0]
            name = {"hierarchical-gf": "GF", OWN: "joint, our own"}.get(name, name)
            if row.x is not None:
                name += f", {row.series.split('/')[-1]} groups, {row.x:,.0f} sessions"
            name += "; single readers by unicast" if row.series.startswith(HYBRID) else ""
            bars.append(
                {"way": name, "order": ways.index((row.series, row.x)), "measure": row.metric,
                 "value": row.measured, "text": _short(row.measured), "paper": row.paper,
                 "kind": "hybrid" if row.series.startswith(HYBRID) else "planned" if row.x else "unplanned"}
            )  # fmt: skip
    return bars


def _short(value: float) -> str:
    """Return a number with three digits.

    >>> _short(10.0457), _short(0.16678), _short(1.0)
    ('10.0', '0.167', '1')
    """
    return f"{value:.3g}" if value < 9.995 or value == round(value) else f"{value:.1f}"


def _claims(rows: list[ResultRow]) -> list[str]:
    """Return notes that compare the paper's claims with the results."""
    value = {(row.series, row.metric, row.x): row for row in rows}

    def of(series: str, metric: str) -> float:
        return value[series, metric, None].measured

    first = (
        "The paper: unicast sends each message 10.1 times on average, and flooding has a goodput of 2 %. "
        f"Here {of('unicast', 'copies_per_message'):.2f} times, and {of('flooding', 'goodput_pct'):.2f} %."
    )
    single = (
        f"{of('single-reader', 'flows_pct'):.0f} % of the wanted flows have a single reader, with "
        f"{of('single-reader', 'messages_pct'):.1f} % of the messages. The paper names sending these by "
        "unicast as a hybrid and leaves it out of scope. It takes no more copies, as one reader is one copy "
        f"either way, but {of('single-reader', 'unicast_links'):.0f} unicast links."
    )
    notes = [first, single]
    for (series, metric, n), row in value.items():
        if metric == METRIC and series.startswith(HYBRID):
            plain = series.removeprefix(f"{HYBRID}/")
            before = value[plain, metric, n].measured
            less = 100 * (1 - row.measured / before) if before else 0.0
            notes.append(
                f"{plain} with {n:,.0f} sessions: Cx / Cf is {row.measured:.4f} with single readers by "
                f"unicast and {before:.4f} without, {less:.1f} % less."
            )
    return notes


BASELINES = Experiment(
    "unicast, flooding, and single readers by unicast",
    _baselines,
    {**PAPER, "groups": [50], "sessions": [1000], "sweeps": 10_000},
    {**SMALL, "groups": [10], "sessions": [50], "sweeps": 300},
)
