"""Automatic matcher (the default): puts each subscription into the index where it costs least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.matching.bitmap import BlockIndex, FlatIndex
from narrowcast.matching.buckets import N_BUCKETS, Buckets
from narrowcast.matching.combined import CombinedIndex
from narrowcast.matching.grid import GridIndex
from narrowcast.matching.groups import ALONE, MOST_COLUMNS, BoxKinds
from narrowcast.matching.indexed_matcher import IndexedMatcher
from narrowcast.matching.scan import Scan

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from narrowcast.matching.index import BoxIndex, Codes
    from narrowcast.matching.ranks import CodedBoxes, Ranks
    from narrowcast.model.schema import Schema

    Doubles = NDArray[np.float64]

# Nanoseconds of one core, measured on the workloads of benchmarks/matching.py; only their ratios matter.
#: Intersecting a word of a row: of many words, of the few words of a group.
_WORD, _FEW_WORDS = 0.6, 1.5
#: Comparing a box that was found by its flag: in the flat layout, in blocks.
_FLAT_COMPARED, _BLOCK_COMPARED = 10.0, 12.0
#: Comparing a box in one column, together with 31 others.
_GRID_COMPARED = 4.0 / 32
#: Returning a box: listed in order, or gathered and sorted.
_LISTED, _GATHERED = 2.5, 20.0
#: Merging a box with those of another part.
_MERGED = 3.0
#: Visiting a group.
_GROUP = 20.0
#: Width of the range that a grid cell compares a box in, relative to the box; and the number of grid axes.
_SPREAD, _AXES = 2.7, 3
#: Columns of a group with boxes of rare kinds; and cost of such a box if almost no other fits its group.
_MIXED, _LONE = 10, 120.0
#: More columns than this take too much memory in the flat layout: 16 bytes a box for each.
_MOST_FLAT = 32
#: Smallest share of the boxes of a part: fewer do not justify a merge.
_LEAST_SHARE = 0.02
#: Below this number of (subscription, event) pairs, comparing all is faster than loading compiled loops.
_FEW_PAIRS = 20_000_000

CombinedIndex.kinds.update(flat=FlatIndex, blocks=BlockIndex, grid=GridIndex)


@dataclass(frozen=True, slots=True)
class IndexCostEstimate:
    """Estimated nanoseconds that each box costs per event, in each kind of index (bitmap, groups, grid)."""

    flat: Doubles
    blocks: Doubles
    grid: Doubles
    found: Doubles

    @classmethod
    def of(cls, boxes: CodedBoxes, sample: Codes | None = None) -> IndexCostEstimate:
        """Estimate costs from the buckets that boxes overlap; a sample of events shows how likely each is.

        Without a sample all buckets of an attribute are equally likely, since they share box ends evenly.
        Events are assumed to have categories as often as boxes require them.
        """
        kinds = BoxKinds.of(boxes, sample)
        met, sure = _shares(boxes, sample)
        asked = np.bincount(kinds.section)[kinds.section] / max(1, len(boxes))
        category = np.where(kinds.section > 0, asked, 1.0)
        met, sure = np.where(kinds.used, met, 1.0), np.where(kinds.used, sure, 1.0)
        possible, certain = category * _product(boxes, met), category * _product(boxes, sure)
        found = (possible + certain) / 2
        width = np.diff(boxes.indptr) - (kinds.section > 0)
        size = np.empty(len(boxes))
        size[kinds.order] = kinds.sizes[kinds.of_sorted]
        group = category * _GROUP / size
        # a group is visited only in the buckets of its leading attribute that it overlaps
        lead = category * np.minimum(1, _least(boxes, met) + 1 / N_BUCKETS)
        alone = group + lead * width * _FEW_WORDS / 64
        mixed = category * min(_MIXED, boxes.n_columns) * _WORD / 64
        if boxes.n_columns > MOST_COLUMNS:  # boxes of rare kinds then almost never share a group
            mixed = category * _LONE
        near = category * _narrowest(boxes, np.minimum(1, _SPREAD * met))
        gathered = found * _GATHERED
        flat = 2 * boxes.n_columns * _WORD / 64 + (possible - certain) * _FLAT_COMPARED + found * _LISTED
        return cls(
            flat=flat if boxes.n_columns <= _MOST_FLAT else np.full(len(boxes), np.inf),
            blocks=np.where(size >= ALONE, alone, mixed) + possible * _BLOCK_COMPARED + gathered,
            grid=group + near * width * _GRID_COMPARED + gathered,
            found=found,
        )

    def best(self) -> NDArray[np.intp]:
        """Return the number of the cheapest kind of index for each box, without kinds for too few boxes."""
        costs = np.stack([self.flat, self.blocks, self.grid])
        n = costs.shape[1]
        least, best = np.inf, np.zeros(n, np.intp)
        for kinds in ([0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]):
            choice = np.array(kinds)[costs[kinds].argmin(axis=0)]
            shares = np.bincount(choice, minlength=3)[kinds]
            if len(kinds) > 1 and shares.min() < _LEAST_SHARE * n:
                continue
            cost = costs[kinds].min(axis=0).sum() + (len(kinds) - 1) * _MERGED * self.found.sum()
            if cost < least:
                least, best = cost, choice
        return best


class AutoMatcher(IndexedMatcher):
    """Estimates what each subscription costs in each kind of index, and puts it where it costs least.

    Broad subscriptions go to bitmaps in subscription order, which make large results cheap; selective ones to
    groups by category and bounded attributes, with a grid where a group is large and bitmaps where it is
    small. If several kinds are worthwhile, each gets a part of the subscriptions.

    Parameters
    ----------
    threads
        Number of threads that share a batch of events (default: 1).

    Examples
    --------
    >>> import pyarrow as pa, narrowcast as nc
    >>> events = nc.EventBatch.from_arrow(pa.table({"price": [80.0, 75.0], "name": ["SAP", "IBM"]}))
    >>> filters = ["price > 75", "name = 'IBM' AND price > 70", "name LIKE '%A%'"]
    >>> matcher = AutoMatcher().fit(nc.compile_filters(events.schema, filters).subscriptions)
    >>> [row.tolist() for row in matcher.match(events)]
    [[0, 2], [1]]
    >>> matcher.match_one({"price": 99.0, "name": "IBM"}).tolist()
    [0, 1]
    >>> matcher.count(events).tolist()
    [2, 1]
    """

    _indexes = (CombinedIndex,)

    def _index(self, boxes: CodedBoxes, ranks: Ranks, schema: Schema, sample: Codes | None) -> BoxIndex:
        best = IndexCostEstimate.of(boxes, sample).best()
        parts: list[BoxIndex] = []
        members: list[NDArray[np.int32] | None] = []
        builds: tuple[Callable[..., BoxIndex], ...] = (FlatIndex.build, BlockIndex.build, GridIndex.build)
        for kind, build in enumerate(builds):
            mine = np.flatnonzero(best == kind)
            if len(mine) == len(boxes):
                return CombinedIndex((build(boxes, sample=sample),), (None,))
            if len(mine):
                parts.append(build(boxes.take(mine), sample=sample))
                members.append(mine.astype(np.int32))
        return CombinedIndex(tuple(parts), tuple(members))


def matcher_for(n_subscriptions: int, n_events: int, *, threads: int = 1) -> AutoMatcher | Scan:
    """Return the fastest matcher for a job of known size: `Scan` if building an index would not pay off."""
    return Scan() if n_subscriptions * n_events <= _FEW_PAIRS else AutoMatcher(threads=threads)


def _shares(boxes: CodedBoxes, sample: Codes | None) -> tuple[Doubles, Doubles]:
    """Return, for each bound of a box, the shares of events in buckets that it overlaps, and covers."""
    buckets = Buckets.of(boxes, sample)
    first, end, sure_first, sure_end = buckets.bounds(boxes)
    below = np.zeros((max(1, boxes.n_columns), N_BUCKETS + 1))
    seen = None if sample is None or len(sample) == 0 else buckets(sample)
    for c in range(boxes.n_columns):
        n = int(buckets.table[buckets.table_at[c + 1] - 1]) + 1
        share = np.full(n, 1 / n) if seen is None else np.bincount(seen[:, c], minlength=n) / len(seen)
        below[c, 1 : n + 1] = np.cumsum(share)
        below[c, n + 1 :] = 1
    met = below[boxes.column, end] - below[boxes.column, first]
    sure = np.maximum(0, below[boxes.column, sure_end] - below[boxes.column, sure_first])
    return met, sure


def _narrowest(boxes: CodedBoxes, factor: Doubles) -> Doubles:
    """Return for each box the product of the smallest factors of its bounds: one for each axis of a grid."""
    box = boxes.box
    order = np.lexsort((factor, box))
    place = np.arange(len(box)) - boxes.indptr[box]
    kept = np.ones(len(factor))
    kept[order] = np.where(place < _AXES, factor[order], 1.0)
    return _product(boxes, kept)


def _product(boxes: CodedBoxes, factor: Doubles) -> Doubles:
    """Return for each box the product of the factors of its bounds."""
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.maximum(factor, 1e-12)))])
    product: Doubles = np.exp(logs[boxes.indptr[1:]] - logs[boxes.indptr[:-1]])
    return product


def _least(boxes: CodedBoxes, value: Doubles) -> Doubles:
    """Return for each box the smallest value of its bounds, 1 for a box without bounds."""
    least = np.ones(len(boxes))
    some = np.flatnonzero(np.diff(boxes.indptr))
    if len(some):
        least[some] = np.minimum.reduceat(value, boxes.indptr[some])
    return least
