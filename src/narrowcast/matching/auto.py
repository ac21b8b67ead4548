"""The default: each subscription where it costs least."""

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
#: A word of a row that is intersected: of many words, of the few words of a group.
_WORD, _FEW_WORDS = 0.6, 1.5
#: A box that is compared, found by its flag: in the flat layout, in blocks.
_FLAT_COMPARED, _BLOCK_COMPARED = 10.0, 12.0
#: A box that is compared in one column, with 31 others at once.
_GRID_COMPARED = 4.0 / 32
#: A box that is found: listed in order, or gathered and sorted.
_LISTED, _GATHERED = 2.5, 20.0
#: A box that is merged with those of another part.
_MERGED = 3.0
#: Looking at a group.
_GROUP = 20.0
#: How many times as wide as a box the part of a column is that a cell of a grid compares it in; and the axes.
_SPREAD, _AXES = 2.7, 3
#: Columns of a group that boxes of rare kinds are in; and such a box where hardly any others fit its group.
_MIXED, _LONE = 10, 120.0
#: More columns than this take too much memory in the flat layout: 16 bytes a box for each.
_MOST_FLAT = 32
#: A part has at least this share of the boxes: fewer are not worth a merge.
_LEAST_SHARE = 0.02
#: So few pairs of subscription and event are compared sooner than compiled loops are loaded.
_FEW_PAIRS = 20_000_000

CombinedIndex.kinds.update(flat=FlatIndex, blocks=BlockIndex, grid=GridIndex)


@dataclass(frozen=True, slots=True)
class IndexCostEstimate:
    """What an event costs, box by box, in nanoseconds: in each kind of index."""

    flat: Doubles
    blocks: Doubles
    grid: Doubles
    found: Doubles

    @classmethod
    def of(cls, boxes: CodedBoxes, sample: Codes | None = None) -> IndexCostEstimate:
        """Estimate from the buckets that boxes meet and cover; a sample tells how likely each bucket is.

        Without a sample the buckets of an attribute are taken to be alike: they share the ends of boxes.
        Events are taken to have categories as often as boxes ask for them.
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
        # along its leading attribute a group is looked at only where it may be met
        lead = category * np.minimum(1, _least(boxes, met) + 1 / N_BUCKETS)
        alone = group + lead * width * _FEW_WORDS / 64
        mixed = category * min(_MIXED, boxes.n_columns) * _WORD / 64
        if boxes.n_columns > MOST_COLUMNS:  # then boxes of rare kinds hardly ever share a group
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
        """Return the number of the cheapest kind for each box: of as few kinds as are worth it."""
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

    Broad subscriptions go to flags in their own order, which make large results cheap; selective ones to
    groups by category and bounded attributes, with a grid where a group is large and flags where not.
    Where more than one kind is worth it, each gets its part.

    Parameters
    ----------
    threads
        How many threads share a batch.

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
    """Return a matcher for a job of known size: one that is done before an index is worth its making."""
    return Scan() if n_subscriptions * n_events <= _FEW_PAIRS else AutoMatcher(threads=threads)


def _shares(boxes: CodedBoxes, sample: Codes | None) -> tuple[Doubles, Doubles]:
    """Return the share of events in the buckets that each bound meets, and in those that it covers."""
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
    """Return the product of the least factors of each box's bounds, of as many as a grid has axes."""
    box = boxes.box
    order = np.lexsort((factor, box))
    place = np.arange(len(box)) - boxes.indptr[box]
    kept = np.ones(len(factor))
    kept[order] = np.where(place < _AXES, factor[order], 1.0)
    return _product(boxes, kept)


def _product(boxes: CodedBoxes, factor: Doubles) -> Doubles:
    """Return the product of the factors of each box's bounds."""
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.maximum(factor, 1e-12)))])
    product: Doubles = np.exp(logs[boxes.indptr[1:]] - logs[boxes.indptr[:-1]])
    return product


def _least(boxes: CodedBoxes, value: Doubles) -> Doubles:
    """Return the least value of each box's bounds, 1 for a box without any."""
    least = np.ones(len(boxes))
    some = np.flatnonzero(np.diff(boxes.indptr))
    if len(some):
        least[some] = np.minimum.reduceat(value, boxes.indptr[some])
    return least
