"""Figures 3(k) and 3(l): notification cost over time while hotspots move, and with churn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.lab.clusters import VARIANTS, ClusterTraffic
from narrowcast.lab.papers.base import Experiment, Outcome, ResultRow
from narrowcast.lab.papers.tariq2012.setting import (
    BASELINE,
    METHODS,
    NAMES,
    PAPER,
    POLICIES,
    PUBLISHED,
    SAVED,
    SMALL,
    caption_of,
    run_method,
    size_note,
    stream_of,
)
from narrowcast.lab.sweep import Sweep
from narrowcast.validation import check_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narrowcast.lab.papers.base import Study
    from narrowcast.lab.sweep import Record

#: Metrics: all messages per match; how much that is below the R-tree, in per cent, without filters
#: inside clusters, and below the R-tree by the same variant.
COST, SAVES, SAVES_ALIKE = "notification_cost", "saved_pct", "saved_alike_pct"
#: Parts of the cost, whatever the variant.
PARTS = ("heartbeat", "membership", "organisation", "clustering")
#: Metrics of a whole run.
COUNTS = ("computed", "installed", "refreshed", "moves")
#: Series of figure 3(l): with and without computing clusters again.
CHURNED = ("rassoc/followed", "ncut/followed", "ncut-table/followed", "direct/followed", "direct/kept",
           "centroid/kept", "r-tree/kept")  # fmt: skip
#: Series of figure 3(k): all methods with all policies, except that an R-tree never computes clusters again.
MOVED = (
    *(f"{method}/{policy}" for method in METHODS for policy in POLICIES if method != BASELINE),
    f"{BASELINE}/kept",
)
#: The last share of an era that counts as its steady state.
_LATE = 0.25

Values = dict[tuple[str, float | None, str], list[float]]


def _curve(stream: Any, *, seed: int, series: str, **params: Any) -> list[Record]:
    """Return the cost of a series in each window, and in total."""
    method, policy = series.split("/")
    found = run_method(stream, seed=seed, method=method, policy=policy, **params)
    total = sum((window.traffic for window in found), ClusterTraffic())
    rows = [{"at": float(each.stop - params["recent"]), **_costs(each.traffic)} for each in found]
    return [*rows, {"at": None, **_costs(total), **_parts(total)}]


def _total(stream: Any, **given: Any) -> Record:
    """Return the total cost of a series."""
    *_, last = _curve(stream, **given)
    return {name: value for name, value in last.items() if name != "at"}


def _costs(traffic: ClusterTraffic) -> Record:
    """Return the notification cost by both variants."""
    return {variant: traffic.notification_cost(variant) for variant in VARIANTS}


def _parts(traffic: ClusterTraffic) -> Record:
    """Return further numbers of a run; numbers of messages are per match."""
    matches, events = max(traffic.matches, 1), max(traffic.events, 1)
    membership = traffic.join + traffic.leave + traffic.split + traffic.merge
    found: Record = {
        f"{name}_per_match": getattr(traffic, name) / matches for name in PARTS if name != PARTS[1]
    }
    found[f"{PARTS[1]}_per_match"] = membership / matches
    for variant in VARIANTS:
        found[f"updates_per_match/{variant}"] = traffic.delivery(variant).updates / matches
        found[f"false_positives_per_event/{variant}"] = traffic.false_positives(variant) / events
    return found | {name: getattr(traffic, name) for name in COUNTS}


def _add(found: Values, record: Mapping[str, Any], series: str, at: float | None) -> None:
    """Add the numbers of a trial."""
    for name, value in record.items():
        if name in VARIANTS:
            found.setdefault((f"{series}/{name}", at, COST), []).append(value)
        elif name.startswith((*PARTS, *COUNTS, "updates", "false")):
            metric, _, variant = name.partition("/")
            key = f"{series}/{variant}" if variant else series
            found.setdefault((key, at, metric), []).append(value)


def _saved(found: Values) -> Values:
    """Return how much each series is below the R-tree, in per cent, seed by seed."""
    made: Values = {}
    for (series, at, metric), values in found.items():
        method, _, variant = series.rpartition("/")
        if metric != COST or method == f"{BASELINE}/kept":
            continue
        for name, other in ((SAVES, "flooding"), (SAVES_ALIKE, variant)):
            tree = found[f"{BASELINE}/kept/{other}", at, COST]
            made[series, at, name] = [100 * (1 - mine / its) for mine, its in zip(values, tree, strict=True)]
    return made


def _rows(found: Values, *, printed: bool) -> list[ResultRow]:
    """Return the rows, with the paper's numbers for its own two methods."""
    rows = []
    for (series, at, metric), values in found.items():
        method, policy, *variant = series.split("/")
        says = printed and metric == SAVES and method in PUBLISHED and policy == "followed"
        rows.append(ResultRow.of(series, at, metric, values, paper=SAVED[variant[0]] if says else None))
    return rows


def _figure_3k(study: Study) -> Outcome:
    """Run all series while hotspots move."""
    params = dict(study.params)
    check_whole("moves", params["moves"])
    sweep = Sweep(_curve, {"series": MOVED}, study.seeds, params, setup=_moving)
    curves: Values = {}
    whole: Values = {}
    for record in study.run(sweep).rows:
        at: Any = record["at"]
        _add(whole if at is None else curves, record, str(record["series"]), at)
    whole |= _saved(whole)
    notes = size_note(params)
    rows = _rows(whole, printed=not notes)
    marks = [
        {"method": NAMES[method], "policy": policy, "variant": variant, "at": at,
         "cost": float(np.mean(values))}
        for (series, at, _), values in curves.items()
        for method, policy, variant in [series.split("/")]
    ]  # fmt: skip
    caption = f"{caption_of(params, len(study.seeds))}; hotspots move every {params['moves']:,} events"
    value = {(row.series, row.metric): row.measured for row in rows}
    claims = [*_against_the_tree(value), *_following(value), *_over_time(curves, params), _READING]
    beside = _rows(curves, printed=False)
    return Outcome(rows, {"tariq2012-figure-3k": (marks, caption)}, [*claims, *notes], beside)


def _moving(*, seed: int, **params: Any) -> Any:
    """Draw the stream of a seed with hotspots that move."""
    return stream_of(seed=seed, **params)


def _against_the_tree(value: Mapping[tuple[str, str], float]) -> list[str]:
    """Return notes that compare the paper's claims on its two methods with the results."""
    notes = []
    for variant, percent in SAVED.items():
        how = "without filters inside clusters" if variant == "flooding" else "with subscription forwarding"
        mine = {
            method: value[f"{method}/followed/{variant}", SAVES] for method in METHODS if method != BASELINE
        }
        best = max(mine[method] for method in PUBLISHED)
        verdict = "reached" if best >= percent else "not reached"
        notes.append(
            f"The paper: {percent:g} % below OV-RTree {how}. Here RAssoc in groups saves "
            f"{mine['rassoc']:.1f} %, NCut {mine['ncut']:.1f} %: {verdict}. With one table of landmarks and "
            f"all recent events NCut saves {mine['ncut-table']:.1f} %, direct {mine['direct']:.1f} %, and "
            f"clusters of centroids {mine['centroid']:.1f} %."
        )
    alike = {
        method: value[f"{method}/followed/forwarding", SAVES_ALIKE]
        for method in ("rassoc", "ncut", "ncut-table", "direct")
    }
    notes.append(
        "In both, the R-tree sends an event to all of a leaf. What the paper's does it does not say. If it "
        "forwards by subscriptions as well, the others save "
        + ", ".join(f"{share:.1f} % ({method})" for method, share in alike.items())
        + ": once events are filtered on the way, who shares a cluster matters little, moving costs more "
        "than it saves, and the leader of a leaf sends to all others itself, where clusters have relays."
    )
    return notes


def _following(value: Mapping[tuple[str, str], float]) -> list[str]:
    """Return notes on the benefit of computing clusters again."""
    notes = []
    for method in METHODS:
        if method == BASELINE:
            continue
        both = {
            variant: [value[f"{method}/{policy}/{variant}", COST] for policy in POLICIES]
            for variant in VARIANTS
        }
        count, installed, refreshed, moves = (value[f"{method}/followed", name] for name in COUNTS)
        notes.append(
            f"{NAMES[method]}: {both['flooding'][0]:.2f} with computing again and {both['flooding'][1]:.2f} "
            f"without, by forwarding {both['forwarding'][0]:.2f} and {both['forwarding'][1]:.2f}; computed "
            f"{count:.1f} times, installed {installed:.1f} times, refreshed {refreshed:.1f} times, "
            f"{moves:,.0f} moves."
        )
    return notes


def _over_time(curves: Values, params: Mapping[str, Any]) -> list[str]:
    """Return notes on whether the cost recovers after hotspots have moved."""
    length, events = params["moves"], params["events"]
    if events < 2 * length:
        return []
    notes = []
    for method in ("ncut", "ncut-table", "direct"):
        cost = {
            at: float(np.mean(values))
            for (series, at, _), values in curves.items()
            if series == f"{method}/followed/flooding" and at is not None
        }
        tree = {
            at: float(np.mean(values))
            for (series, at, _), values in curves.items()
            if series == f"{BASELINE}/kept/flooding" and at is not None
        }

        def late(some: Mapping[float, float], era: int) -> float:
            ends = (era + 1) * length
            return float(np.mean([some[at] for at in some if ends - _LATE * length < at <= ends]))

        eras = range(1, events // length)
        peak = np.mean([max(cost[at] for at in cost if 0 < at - era * length <= length) for era in eras])
        first = 100 * late(cost, 0) / late(tree, 0)
        others = 100 * float(np.mean([late(cost, era) / late(tree, era) for era in eras]))
        notes.append(
            f"{NAMES[method]}: at the end of the first hotspots' time it costs {first:.0f} % of the R-tree, "
            f"at the end of the others' {others:.0f} %, with a peak of {peak:.1f} messages per match in "
            "between. The paper: a short rise, then almost the same gain as before."
        )
    return notes


_READING = (
    "The paper gives neither the rate of events against heartbeats nor what a join takes. Here an interval "
    "of heartbeats has as many events as the parameter heartbeat says, all members of a group of NICE hear "
    "each other, and a move takes about 24 messages. In the R-tree an entry and the head of its node do so, "
    "and all that an event takes from the root on is counted; how a publisher finds the tops of clusters is "
    "not. Coordinates are taken by their directions, which the paper does not do."
)


def _figure_3l(study: Study) -> Outcome:
    """Run some series with increasing churn."""
    params = dict(study.params)
    shares = params.pop("churn")
    for name in ("step", "period"):
        check_whole(name, params[name])
    grid = {"churn": shares, "series": CHURNED}
    sweep = Sweep(_churned, grid, study.seeds, params, setup=_churning, by=["churn"])
    found: Values = {}
    for record in study.run(sweep).rows:
        at: Any = record["churn"]
        _add(found, record, str(record["series"]), at)
    found |= _saved(found)
    notes = size_note(params)
    rows = _rows(found, printed=False)
    marks = [
        {"method": NAMES[method], "policy": policy, "variant": variant, "churn": row.x, "cost": row.measured,
         "low": row.measured - row.spread, "high": row.measured + row.spread}
        for row in rows
        if row.metric == COST
        for method, policy, variant in [row.series.split("/")]
    ]  # fmt: skip
    caption = f"{caption_of(params, len(study.seeds))}; a step of churn every {params['step']:,} events"
    claims = _graceful({(row.series, row.x, row.metric): row.measured for row in rows}, shares)
    main = (COST, SAVES, "false_positives_per_event")
    beside = [row for row in rows if row.metric not in main]
    shown = [row for row in rows if row.metric in main]
    return Outcome(shown, {"tariq2012-figure-3l": (marks, caption)}, [*claims, *notes], beside)


def _churning(*, seed: int, churn: float, **params: Any) -> Any:
    """Draw the stream of a seed with peers that come and leave."""
    return stream_of(seed=seed, churn=churn, **params)


def _churned(stream: Any, *, churn: float, **given: Any) -> Record:  # noqa: ARG001
    """Return the cost of a series with churn."""
    return _total(stream, **given)


def _graceful(value: Mapping[tuple[str, float | None, str], float], shares: list[float]) -> list[str]:
    """Return notes on how much more each series costs with the most churn, and why."""
    least, most = min(shares), max(shares)
    if least == most:
        return []
    grown, wrong = {}, {}
    for series in CHURNED:
        one, other = (value[f"{series}/flooding", at, COST] for at in (least, most))
        grown[series] = 100 * (other / one - 1)
        false = [value[f"{series}/flooding", at, "false_positives_per_event"] for at in (least, most)]
        wrong[series] = 100 * (false[1] / false[0] - 1) if false[0] else 0.0
    verdict = all(grown[f"{method}/followed"] < grown[f"{BASELINE}/kept"] for method in PUBLISHED)
    fewer = all(wrong[f"{method}/followed"] < wrong[f"{BASELINE}/kept"] for method in PUBLISHED)
    each = (
        f"{series.replace('/', ', ')} {grown[series]:+.1f} % of cost and {wrong[series]:+.1f} % of them"
        for series in CHURNED
    )
    change = f"Cost and false positives by flooding, from {least:g} to {most:g} % of churn a step"
    notes = [f"{change}: {'; '.join(each)}."]
    notes.append(
        "The paper: its own methods are more resilient to churn than OV-RTree, which degrades. By cost "
        f"here: {'reproduced' if verdict else 'not reproduced'}; by false positives: "
        f"{'reproduced' if fewer else 'not reproduced'}. New boxes enter the R-tree from the root."
    )
    static, followed = (value[f"direct/{policy}/flooding", most, COST] for policy in ("kept", "followed"))
    notes.append(
        f"direct costs {followed:.2f} at {most:g} % with clusters that are computed again, and {static:.2f} "
        "with those of the start, where new subscriptions enter the cluster that costs least."
    )
    return notes


FIGURE_3K = Experiment(
    "notification cost over time while hotspots move",
    _figure_3k,
    {**PAPER, "moves": 2000, "slide": 0.0, "drift": 0.5, "mild": 0.0},
    {**SMALL, "moves": 400},
)
FIGURE_3L = Experiment(
    "notification cost with peers that come and leave",
    _figure_3l,
    {**PAPER, "churn": [0.0, 2.0, 4.0, 8.0, 10.0, 12.0, 16.0], "step": 500, "period": 1000},
    {**SMALL, "churn": [0.0, 8.0, 16.0], "step": 100, "period": 400},
)
