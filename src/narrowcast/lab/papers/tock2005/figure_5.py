"""Figure 5: the cost of filtering a message, measured on this machine with real multicast (section 5.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.costs.calibration import Calibration, fit_curve
from narrowcast.costs.multicast_loopback import AGGREGATION, calibrate
from narrowcast.lab.papers.base import Experiment, Outcome, ResultRow

if TYPE_CHECKING:
    from narrowcast.costs.calibration import CostCurve
    from narrowcast.lab.papers.base import Study

#: Per cent of a processor for 10,000 messages a second, the paper's unit, is the same number.
METRIC = "us_per_message"
#: The h that the paper chooses (messages per packet), and alpha and beta there.
CHOSEN, TYPICAL = 8, 1.0
#: Smallest R2 of a curve that fits.
FITS = 0.9
#: Points along each curve.
_ALONG = 80


def _figure_5(study: Study) -> Outcome:
    """Measure once for each seed; in this process, since Spark's workers would disturb each other."""
    h, seconds = study.params["h"], study.params["seconds"]
    found = []
    for number, seed in enumerate(study.seeds):

        def tell(what: str, done: int, of: int, number: int = number, seed: int = seed) -> None:
            study.tell(f"seed {seed}, {what}", number * of + done, len(study.seeds) * of)

        found.append(calibrate(aggregation=h, seconds=seconds, seed=seed, progress=tell))
    rows, curves = [], {}
    for name in ("alpha", "beta"):
        each = {
            point.h: [getattr(one.points[i], name) for one in found]
            for i, point in enumerate(found[0].points)
        }
        for at, values in each.items():
            rows.append(ResultRow.of(name, at, METRIC, values, paper=TYPICAL if at == CHOSEN else None))
        curves[name] = fit_curve(list(each), [float(np.mean(values)) for values in each.values()])
        rows += _fits(name, [getattr(one, name) for one in found])
    rows.append(ResultRow.of("packets", None, "lost_pct", [_lost(one) for one in found]))
    caption = (
        f"UDP multicast within this machine, two sessions in one group, messages of {found[0].message_bytes} "
    )
    caption += f"bytes, {len(found)} times {seconds:g} s"
    return Outcome(rows, {"tock2005-figure-5": (_points(rows, curves), caption)}, _claims(curves, found))


def _fits(name: str, curves: list[CostCurve]) -> list[ResultRow]:
    """Return the coefficients of the curves of all seeds."""
    return [
        ResultRow.of(f"{name}/message", None, METRIC, [curve.c0 for curve in curves]),
        ResultRow.of(f"{name}/packet", None, "us_per_packet", [curve.c1 for curve in curves]),
        ResultRow.of(f"{name}/fit", None, "r2", [curve.r2 for curve in curves]),
    ]


def _lost(found: Calibration) -> float:
    """Return the share of lost packets, in per cent."""
    return 100 * found.lost / max(1, found.packets + found.lost)


def _points(rows: list[ResultRow], curves: dict[str, CostCurve]) -> list[dict[str, Any]]:
    """Return the points of the figure, with their spread, the fitted curves, and the paper's curve."""
    records: list[dict[str, Any]] = [
        {"kind": "measured", "cost": row.series, "h": row.x, "value": row.measured,
         "low": max(0.0, row.measured - row.spread), "high": row.measured + row.spread}
        for row in rows
        if row.x is not None
    ]  # fmt: skip
    places = [record["h"] for record in records]
    along = np.geomspace(min(places), max(places), _ALONG).tolist()
    records += [
        {"kind": "fit", "cost": name, "h": h, "value": curve.at(h)}
        for name, curve in curves.items()
        for h in along
    ]
    return [*records, {"kind": "paper", "cost": "paper", "h": CHOSEN, "value": TYPICAL}]


def _claims(curves: dict[str, CostCurve], found: list[Calibration]) -> list[str]:
    """Return notes that compare the paper's claims with the results."""
    alpha, beta = curves["alpha"], curves["beta"]
    at = f"alpha({CHOSEN}) = {alpha.at(CHOSEN):.2f} and beta({CHOSEN}) = {beta.at(CHOSEN):.2f}"
    paper = (
        f"The paper takes h = {CHOSEN}, where alpha and beta are both about 1 per cent of a processor for "
        f"10,000 messages a second, which is a microsecond for each. Here {at} microseconds: another machine "
        f"and another receiver, and a ratio of {alpha.at(CHOSEN) / max(beta.at(CHOSEN), 1e-9):.1f}, not 1."
    )
    fits = [sum(getattr(one, name).r2 for one in found) / len(found) for name in ("alpha", "beta")]
    verdict = "Reproduced" if min(alpha.r2, beta.r2) > FITS else "Not reproduced"
    shape = (
        "The paper: c0 + c1 / h fits. Of the means over the seeds, "
        f"alpha(h) = {alpha.c0:.3f} + {alpha.c1:.2f} / h (R2 {alpha.r2:.3f}) and "
        f"beta(h) = {beta.c0:.3f} + {beta.c1:.2f} / h (R2 {beta.r2:.3f}). {verdict}. "
        f"Of single seeds R2 is {fits[0]:.2f} and {fits[1]:.2f} on average."
    )
    lost = sum(one.lost for one in found)
    sent = lost + sum(one.packets for one in found)
    loss = f"Of {sent:,} packets {lost:,} were lost; rates are of those that came."
    return [paper, shape, f"{loss} What else the machine does meanwhile is in the spread."]


FIGURE_5 = Experiment(
    "cost of filtering a message, measured with real multicast on this machine",
    _figure_5,
    {"h": list(AGGREGATION), "seconds": 8.0},
    {"h": [1, 4, 16, 40], "seconds": 1.0},
)
