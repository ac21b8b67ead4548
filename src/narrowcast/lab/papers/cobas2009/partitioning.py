"""Partitioning schemes: visits per event, copies per filter, and balance of work (not in the paper)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from narrowcast.errors import ParameterError
from narrowcast.lab.kernels.treebuild import hilbert_keys
from narrowcast.lab.papers.base import Experiment, Outcome, ResultRow
from narrowcast.lab.papers.cobas2009.setting import COPIES, REPLICATION, WORK
from narrowcast.lab.sweep import Sweep
from narrowcast.matching import AutoMatcher
from narrowcast.matching.partition import PartitionCost
from narrowcast.model.events import EventBatch
from narrowcast.model.subscriptions import SubscriptionSet
from narrowcast.planning.ranges.partitioning import scheme as scheme_of
from narrowcast.workloads.intervals import Intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.lab.papers.base import Study
    from narrowcast.lab.sweep import Record
    from narrowcast.matching.partition import Parts
    from narrowcast.model.matches import Matches

SHARE = "work_share"
LOST = "lost_matches"
FOUND = (COPIES, REPLICATION, WORK, SHARE, LOST)
#: Schemes by the name of their series: their constructor, and their name in pictures.
SERIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "kd/1": ("kd", {"copies": 1}, "k-d"),
    "kd/2": ("kd", {"copies": 2}, "k-d x 2 rows"),
    "kd/4": ("kd", {"copies": 4}, "k-d x 4 rows"),
    "kd/8": ("kd", {"copies": 8}, "k-d x 8 rows"),
    "selective/2": ("selective", {"copies": 2}, "selective x 2"),
    "selective/4": ("selective", {"copies": 4}, "selective x 4"),
    "selective/8": ("selective", {"copies": 8}, "selective x 8"),
    "cobas/all": ("cobas", {"way": "all", "kappa": 0.0}, "COBAS, all handed down"),
    "cobas/central": ("cobas", {"kappa": 0.0}, "COBAS, any number"),
    "cobas/10": ("cobas", {}, "COBAS, kappa 10"),
    "cobas/2": ("cobas", {"kappa": 2.0}, "COBAS, kappa 2"),
    "cobas/no-merging": ("cobas", {"search": "none"}, "COBAS without merging"),
    "cobas/no-merging/random": ("cobas", {"search": "none", "routing": "random"}, "the same, random trees"),
    "hash": ("hash", {}, "hashed subscriptions"),
}
#: The largest number of rows of a scheme; the numbers of other schemes divide it.
ROWS = 8
#: Series that are not schemes: their cost is known in advance, or depends on all filters.
OTHERS = {"broadcast": "broadcast index", "hilbert": "Hilbert packing"}
#: Limits on replication and on balance with 64 parts, by series.
ASKED = {"kd/1": (20.0, 1.5), "kd/4": (6.5, 1.25), "selective/4": (6.5, 1.25)}
#: Panels of the picture, in order.
PANELS = {
    COPIES: "parts that an event visits",
    REPLICATION: "parts that hold a filter",
    WORK: "most work of a part over the mean",
    SHARE: "work, as a share of a scan",
}
#: Number of events to check for lost matches.
TRIED = 200


class _Load(NamedTuple):
    """Filters with their ends, events to make parts from, events to measure, and matches of some of these."""

    filters: SubscriptionSet
    ends: tuple[NDArray[np.float64], NDArray[np.float64]]
    known: EventBatch
    unseen: EventBatch
    values: NDArray[np.float64]
    matches: Matches


def _made(*, seed: int, subscriptions: int, events: int, attributes: int, **_: Any) -> _Load:
    """Return filters and events of a seed."""
    workload = Intervals(n_subscriptions=subscriptions, n_events=2 * events, attributes=attributes, seed=seed)
    schema, ends, values = workload.schema(), workload.ends(), workload.values()
    filters = SubscriptionSet.from_boxes(schema, pa.array(["s"] * subscriptions), *ends)
    columns = {name: values[:, i] for i, name in enumerate(schema.names)}
    batch = EventBatch.from_arrow(pa.table(columns), schema)
    known, unseen = batch.slice(0, events), batch.slice(events, 2 * events)
    matches = AutoMatcher().fit(filters).match(unseen.slice(0, TRIED))
    return _Load(filters, ends, known, unseen, values[events:], matches)


def _trial(load: _Load, *, series: str, parts: int, seed: int, **_: Any) -> Record:
    """Return the cost of a scheme, measured on events it was not made from."""
    lost: dict[str, Any] = {}
    if series == "broadcast":
        found = PartitionCost(1.0, float(parts), 1.0, 1.0)
    elif series == "hilbert":
        found = _packed(load, parts)
    else:
        name, params = SERIES[series][:2]
        made = scheme_of(name, parts=parts, seed=seed, **params).fit(load.filters, load.known)
        position, part = made.parts_of_subscriptions(load.filters)
        found = _measured(made, part, load)
        lost = {LOST: float(lost_matches(made, load, position, part))}
    values = (found.copies, found.replication, found.work_max_over_mean, found.work)
    return dict(zip(PANELS, values, strict=True)) | lost


def _measured(made: Parts, part: NDArray[np.int32], load: _Load) -> PartitionCost:
    """Return the cost of parts, given the parts of each filter."""
    position, seen = made.parts_of_events(load.unseen)
    return _counted(
        np.bincount(part, minlength=made.parts), np.bincount(seen, minlength=made.parts), load, len(position)
    )


def _counted(held: NDArray[np.int64], seen: NDArray[np.int64], load: _Load, visits: int) -> PartitionCost:
    """Return the cost of parts with given numbers of filters and of visiting events."""
    work, n, m = held * seen, len(load.filters), len(load.unseen)
    imbalance = float(work.max() * len(work) / work.sum()) if work.any() else 1.0
    return PartitionCost(visits / max(1, m), held.sum() / max(1, n), imbalance, work.sum() / max(1, n * m))


def lost_matches(made: Parts, load: _Load, position: NDArray[np.int64], part: NDArray[np.int32]) -> int:
    """Return the number of matches whose event and filter do not have exactly one part in common."""
    matches, events = load.matches, load.unseen.slice(0, TRIED)
    held = position * made.parts + part
    event, visited = made.parts_of_events(events)
    first = np.searchsorted(event, np.arange(len(events) + 1))
    wrong = 0
    for e in range(len(events)):
        mine = visited[first[e] : first[e + 1]].astype(np.int64)
        keys = np.add.outer(matches[e].astype(np.int64) * made.parts, mine)
        place = np.minimum(np.searchsorted(held, keys), max(0, len(held) - 1))
        wrong += int(np.count_nonzero((held[place] == keys).sum(axis=1) != 1)) if len(keys) else 0
    return wrong


def _packed(load: _Load, parts: int) -> PartitionCost:
    """Return the cost if consecutive filters on a Hilbert curve share a part."""
    lo, hi = (np.nan_to_num(ends, neginf=0.0, posinf=1.0) for ends in load.ends)
    bits = max(1, 63 // lo.shape[1])
    cells = np.minimum((lo + hi) / 2 * (1 << bits), (1 << bits) - 1).astype(np.uint64)
    order = np.argsort(hilbert_keys(cells, bits), kind="stable")
    held, seen = [], []
    for rows in np.array_split(order, parts):
        low, high = (
            (load.ends[0][rows].min(axis=0), load.ends[1][rows].max(axis=0)) if len(rows) else (1.0, 0.0)
        )
        held.append(len(rows))
        seen.append(int(((low < load.values) & (load.values <= high)).all(axis=1).sum()))
    return _counted(np.array(held), np.array(seen), load, sum(seen))


def _partitioning(study: Study) -> Outcome:
    """Run all schemes."""
    params = dict(study.params)
    if params["parts"] % ROWS:
        raise ParameterError(
            parameter="parts",
            value=params["parts"],
            limit=f"a multiple of {ROWS}, the number of rows of some schemes",
        )
    names = [*OTHERS, *SERIES]
    found: dict[tuple[str, str], list[float]] = {}
    sweep = Sweep(_trial, {"series": names}, study.seeds, params, setup=_made, by=[])
    for row in study.run(sweep).rows:
        values: dict[str, Any] = dict(row)
        for metric in FOUND if LOST in values else PANELS:
            found.setdefault((str(row["series"]), metric), []).append(values[metric])
    rows = [
        ResultRow.of(series, None, metric, found[series, metric])
        for metric in FOUND
        for series in names
        if (series, metric) in found
    ]
    mean = {(row.series, row.metric): row.measured for row in rows}
    called = OTHERS | {series: name for series, (_, _, name) in SERIES.items()}
    marks = [
        {"panel": PANELS[metric], "place": list(PANELS).index(metric), "scheme": called[series],
         "order": mean[series, COPIES], "value": mean[series, metric]}
        for metric in PANELS
        for series in names
    ]  # fmt: skip
    many = f"{len(study.seeds)} {'seed' if len(study.seeds) == 1 else 'seeds'}"
    caption = (
        f"{params['parts']} parts, {params['subscriptions']:,} filters, {params['attributes']} attributes, "
        f"{params['events']:,} events not seen before, {many}"
    )
    chart = {"cobas2009-partitioning": (marks, caption)}
    return Outcome(rows, chart, _notes(mean, params))


def _notes(mean: dict[tuple[str, str], float], params: dict[str, Any]) -> list[str]:
    """Return notes on the results."""
    lost = sum(value for (_, metric), value in mean.items() if metric == LOST)
    what = (
        "The paper has no such table: these are ways to spread filters over parts of an engine. Of the "
        f"matches of {TRIED} events, {lost:g} have not exactly one part in common with their filter."
    )
    notes = [what]
    for series, (replication, balance) in ASKED.items():
        seen, even = mean[series, REPLICATION], mean[series, WORK]
        if params["parts"] == 64:
            met = "met" if seen <= replication and even <= balance else "not met"
            notes.append(
                f"{series}: {seen:.1f} parts hold a filter, {replication:g} at most are asked for, and the "
                f"heaviest has {even:.2f} times the mean work, {balance:g} at most: {met}."
            )
    ratio = mean["selective/4", REPLICATION] / mean["kd/4", REPLICATION]
    notes.append(
        f"With four copies of an event, rows by what filters are most selective on hold {ratio:.2f} times as "
        f"much as rows by hash, and have {mean['selective/4', SHARE] / mean['kd/4', SHARE]:.2f} times their "
        "work."
    )
    notes.append(
        "COBAS with room for any number is central: its heaviest part has "
        f"{mean['cobas/central', WORK]:.0f} times the mean work."
    )
    return notes


PARTITIONING = Experiment(
    "partitioning schemes: copies per event, replication of filters and balance of work",
    _partitioning,
    {"parts": 64, "attributes": 10, "subscriptions": 1_000_000, "events": 100_000},
    {"subscriptions": 20_000, "events": 20_000},
)
