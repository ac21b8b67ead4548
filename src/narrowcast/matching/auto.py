"""The default: each subscription where it costs least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.matching.base import MATCHERS
from narrowcast.matching.bitmap import BlockIndex, FlatIndex
from narrowcast.matching.buckets import N_BUCKETS, Buckets
from narrowcast.matching.combined import CombinedIndex
from narrowcast.matching.indexed import Indexed
from narrowcast.matching.scan import Scan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.matching.index import Codes, Index
    from narrowcast.matching.ranks import CodedBoxes, Ranks
    from narrowcast.model.schema import Schema

    Doubles = NDArray[np.float64]

# Nanoseconds of one core, measured on the workloads of benchmarks/matching.py; only their ratios matter.
#: A word of a row that is intersected.
_WORD = 0.6
#: A box that is compared, found in a row of flags: of the flat layout, of the blocks layout.
_FLAT_COMPARED, _BLOCK_COMPARED = 10.0, 6.0
#: A box that is found: written in order, or gathered and sorted.
_FLAT_FOUND, _BLOCK_FOUND = 2.5, 20.0
#: A box that is merged with those of another part.
_MERGED = 3.0
#: Looking at a group of boxes, taken as this many of them.
_GROUP, _GROUP_BOXES = 20.0, 512
#: A part has at least this share of the boxes: fewer are not worth a merge.
_LEAST_SHARE = 0.02

#: So few pairs of subscription and event are compared sooner than compiled loops are loaded.
_FEW_PAIRS = 20_000_000

CombinedIndex.kinds.update(flat=FlatIndex, blocks=BlockIndex)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What an event costs, box by box, in nanoseconds: with the flat layout and with blocks."""

    flat: Doubles
    blocks: Doubles
    found: Doubles

    @classmethod
    def of(cls, boxes: CodedBoxes, buckets: Buckets, sample: Codes | None) -> Estimate:
        """Estimate from the buckets that boxes meet and cover; a sample tells how likely each bucket is.

        Without a sample the buckets of an attribute are taken to be alike, which share the ends of boxes.
        """
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
        possible, certain = _product(boxes, met), _product(boxes, sure)
        found = (possible + certain) / 2
        width = np.diff(boxes.indptr)
        # along its leading attribute a group is looked at only where it may be met
        lead = _least(boxes, met)
        flat = 2 * boxes.n_columns * _WORD / 64 + (possible - certain) * _FLAT_COMPARED + found * _FLAT_FOUND
        blocks = (
            np.minimum(1, lead + 1 / N_BUCKETS) * width * _WORD / 64
            + _GROUP / _GROUP_BOXES
            + possible * _BLOCK_COMPARED
            + found * _BLOCK_FOUND
        )
        return cls(flat, blocks, found)


@MATCHERS.register("auto")
class Auto(Indexed):
    """Estimates what each subscription costs in each layout, and puts it where it costs least.

    Selective subscriptions go to groups by category and bounded attributes, broad ones to flags in their own
    order, which make large results cheap; where both are many, each gets its part.

    Parameters
    ----------
    threads
        How many threads share a batch.

    Examples
    --------
    >>> import pyarrow as pa, narrowcast as nc
    >>> events = nc.EventBatch.from_arrow(pa.table({"price": [80.0, 75.0], "name": ["SAP", "IBM"]}))
    >>> filters = ["price > 75", "name = 'IBM' AND price > 70", "name LIKE '%A%'"]
    >>> matcher = Auto().fit(nc.compile_filters(events.schema, filters).subscriptions)
    >>> [row.tolist() for row in matcher.match(events)]
    [[0, 2], [1]]
    >>> matcher.match_one({"price": 99.0, "name": "IBM"}).tolist()
    [0, 1]
    >>> matcher.count(events).tolist()
    [2, 1]
    """

    _indexes = (CombinedIndex,)

    def _index(self, boxes: CodedBoxes, ranks: Ranks, schema: Schema, sample: Codes | None) -> Index:
        estimate = Estimate.of(boxes, Buckets.of(boxes, sample), sample)
        split = estimate.flat < estimate.blocks
        n = len(boxes)
        costs = {
            "flat": estimate.flat.sum(),
            "blocks": estimate.blocks.sum(),
            "both": np.minimum(estimate.flat, estimate.blocks).sum() + _MERGED * estimate.found.sum(),
        }
        few = min(split.sum(), n - split.sum()) < _LEAST_SHARE * n
        best = min((name for name in costs if name != "both" or not few), key=lambda name: costs[name])
        if best == "flat":
            return CombinedIndex((FlatIndex.build(boxes, sample),), (None,))
        if best == "blocks":
            return CombinedIndex((BlockIndex.build(boxes, sample),), (None,))
        broad, narrow = np.flatnonzero(split), np.flatnonzero(~split)
        return CombinedIndex(
            (FlatIndex.build(boxes.take(broad), sample), BlockIndex.build(boxes.take(narrow), sample)),
            (broad.astype(np.int32), narrow.astype(np.int32)),
        )


def matcher_for(n_subscriptions: int, n_events: int, *, threads: int = 1) -> Auto | Scan:
    """Return a matcher for a job of known size: one that is done before an index is worth its making."""
    return Scan() if n_subscriptions * n_events <= _FEW_PAIRS else Auto(threads=threads)


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
