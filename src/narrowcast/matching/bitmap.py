"""Bitmap indexes: for each bucket of an attribute, flags of the boxes that overlap it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.kernels import blocks as blocks_kernel
from narrowcast.kernels import flat as flat_kernel
from narrowcast.kernels.bits import gather
from narrowcast.kernels.blocks import BlockArrays
from narrowcast.matching.buckets import N_BUCKETS, Buckets
from narrowcast.matching.groups import BoxGroups
from narrowcast.matching.growing_rows import GrowingRows
from narrowcast.matching.index import CandidateBoxes
from narrowcast.matching.indexed_matcher import IndexedMatcher

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from narrowcast.matching.index import BoxIndex, Codes
    from narrowcast.matching.ranks import CodedBoxes, Ranks
    from narrowcast.model.schema import Schema

    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]

#: Words of flags per row of a chunk in the flat layout: all rows of a chunk together should fit a cache.
_WIDTH = 128
#: Memory limit in bytes of the flat layout, which has flags for every box in every column.
_MOST_BYTES = 1 << 33
#: Bytes of result flags that the flat layout holds at once.
_FLAGS = 1 << 25
#: (Event, box) pairs that the blocks layout gathers at once, and the number of events in the first tile.
_PAIRS = 1 << 21
_FIRST_TILE = 256
_TILE = 4096


@dataclass(frozen=True, slots=True, eq=False)
class FlatIndex:
    """Flags for all boxes in their own order: best for few boxes, or broad ones.

    Results come out sorted, so results of tens of thousands of boxes per event cost little more than writing
    them.
    """

    n_boxes: int
    buckets: Buckets
    words: NDArray[np.uint64]
    ends: Codes
    width: int
    #: Result arrays for reuse: allocating new ones costs as much as filling them.
    _spare: list[NDArray[np.uint64]] = field(default_factory=list, init=False, repr=False)

    @classmethod
    def build(cls, boxes: CodedBoxes, sample: Codes | None = None) -> FlatIndex:
        """Build the index from coded boxes; a sample of events shows which values are frequent."""
        n, k = len(boxes), boxes.n_columns
        width = min(_WIDTH, max(1, -(-n // 64)))
        n_chunks = -(-n // (width * 64))
        size = n_chunks * k * N_BUCKETS * 2 * width * 8
        if size > _MOST_BYTES:
            raise ParameterError(
                f"layout='flat': {n} boxes in {k} attributes take {size / 2**30:.1f} GB: must be at most "
                f"{_MOST_BYTES / 2**30:.0f} GB; use layout='blocks' or AutoMatcher",
                parameter="layout",
                value="flat",
            )
        buckets = Buckets.of(boxes, sample)
        words = np.full(n_chunks * k * N_BUCKETS * 2 * width, ~np.uint64(0))
        flat_kernel.fill(words, k, N_BUCKETS, width, boxes.indptr, boxes.column, *buckets.bounds(boxes))
        lo, hi = boxes.dense()
        ends = np.stack([lo, hi], axis=2).reshape(n, 2 * k)
        return cls(n, buckets, words, ends, width)

    def flags(self, codes: Codes) -> Iterator[NDArray[np.uint64]]:
        """Yield flags of the boxes that contain each event, for ranges of events; the array is reused."""
        n_words = -(-self.n_boxes // (self.width * 64)) * self.width
        tile = max(1, min(len(codes), 1024, _FLAGS // max(1, n_words * 8)))
        try:
            rows = self._spare.pop()  # thread-safe
        except IndexError:
            rows = np.empty((0, n_words), np.uint64)
        if len(rows) < tile:
            rows = np.empty((tile, n_words), np.uint64)
        for start in range(0, len(codes), tile):
            some = codes[start : start + tile]
            flat_kernel.meet(
                self.words, self.n_boxes, N_BUCKETS, self.width, self.ends, some, self.buckets(some), rows
            )
            yield rows[: len(some)]
        self._spare.append(rows)

    def find(self, codes: Codes) -> CandidateBoxes:
        """Return the boxes that contain each event."""
        found = GrowingRows(len(codes), 0)
        for rows in self.flags(codes):
            counts = np.empty(len(rows), np.int64)
            flat_kernel.count_rows(rows, len(rows), counts)
            flat_kernel.list_rows(rows, len(rows), found.append(counts), 0)
        return found.found()

    def bitmaps(self, codes: Codes) -> NDArray[np.uint64]:
        """Return the flags of the boxes that contain each event, one row per event."""
        rows = [some[:, : -(-self.n_boxes // 64)].copy() for some in self.flags(codes)]
        return np.concatenate([np.empty((0, -(-self.n_boxes // 64)), np.uint64), *rows])

    def count(self, codes: Codes) -> Ints:
        """Return, for each event, how many boxes contain it."""
        counts = np.zeros(len(codes), np.int64)
        done = 0
        for rows in self.flags(codes):
            flat_kernel.count_rows(rows, len(rows), counts[done:])
            done += len(rows)
        return counts

    def stats(self) -> dict[str, Any]:
        """Return the layout, `flat`, and the number of chunks (ranges of boxes with adjacent flags)."""
        return {"layout": "flat", "chunks": -(-self.n_boxes // (self.width * 64))}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the index by name, to save it."""
        shape = np.array([self.n_boxes, self.width])
        return {"shape": shape, "words": self.words, "ends": self.ends, **self.buckets.arrays()}

    @classmethod
    def restore(cls, arrays: dict[str, NDArray[Any]]) -> FlatIndex:
        """Rebuild the index from the arrays of a saved one."""
        n, width = map(int, arrays["shape"])
        return cls(n, Buckets.restore(arrays), arrays["words"], arrays["ends"], width)


@dataclass(frozen=True, slots=True, eq=False)
class BlockIndex:
    """Flags for groups of boxes that bound the same attributes: best for many narrow boxes.

    A group is visited only for the attributes that its boxes bound, only for events of its category, and only
    in the part of its rows where its leading attribute has any flag.
    """

    buckets: Buckets
    blocks: BlockArrays
    bitmaps: ClassVar[None] = None

    @classmethod
    def build(cls, boxes: CodedBoxes, sample: Codes | None = None) -> BlockIndex:
        """Build the index from coded boxes; a sample of events shows which values are frequent."""
        buckets = Buckets.of(boxes, sample)
        groups = BoxGroups.of(boxes, sample)
        size, width = np.diff(groups.first), np.diff(groups.column_at)
        plain = groups.plain
        rows = np.where(plain, 0, width * N_BUCKETS * -(-size // 64))
        parts = (int((~plain).sum()), N_BUCKETS)
        codes = size * width * 2
        blocks = BlockArrays(
            *groups,
            row_at=np.where(plain, -1, np.cumsum(rows) - rows),
            part_at=(np.cumsum(~plain) - 1).astype(np.int32),
            end_at=np.cumsum(codes) - codes,
            words=np.zeros(int(rows.sum()), np.uint64),
            ends=np.zeros(int(codes.sum()), boxes.lo.dtype),
            begin=np.zeros(parts, np.int32),
            end=np.zeros(parts, np.int32),
        )
        first, end = buckets.bounds(boxes)[:2]
        bounds = boxes.indptr, boxes.column, boxes.lo, boxes.hi
        blocks_kernel.fill(blocks, N_BUCKETS, *bounds, first, end, boxes.last)
        return cls(buckets, blocks)

    def _pairs(self, codes: Codes, counts: Ints, want: bool) -> tuple[Numbers, Numbers, int]:
        if len(self.blocks.section) > 2 and len(codes) > 1:
            order = np.argsort(codes[:, self.blocks.section_column], kind="stable")
        else:
            order = np.arange(len(codes))
        return blocks_kernel.find(self.blocks, N_BUCKETS, codes, self.buckets(codes), order, counts, want)

    def find(self, codes: Codes) -> CandidateBoxes:
        """Return the boxes that contain each event."""
        parts = []
        start, tile = 0, _FIRST_TILE
        while start < len(codes):
            some = codes[start : start + tile]
            event, box, n_pairs = self._pairs(some, np.zeros(len(some), np.int64), True)
            parts.append(gather(event, box, n_pairs, len(some), len(self.blocks.number)))
            start += len(some)
            tile = max(1, min(_TILE, _PAIRS * len(some) // max(1, n_pairs)))
        return joined(parts)

    def count(self, codes: Codes) -> Ints:
        """Return, for each event, how many boxes contain it."""
        counts = np.zeros(len(codes), np.int64)
        for start in range(0, len(codes), _TILE):
            self._pairs(codes[start : start + _TILE], counts[start : start + _TILE], False)
        return counts

    def stats(self) -> dict[str, Any]:
        """Return the layout, `blocks`, and how many groups and sections of groups it has."""
        sections, groups = len(self.blocks.section) - 1, len(self.blocks.first) - 1
        return {"layout": "blocks", "groups": groups, "sections": sections}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the index by name, to save it."""
        return {**self.buckets.arrays(), **{name: np.asarray(a) for name, a in self.blocks._asdict().items()}}

    @classmethod
    def restore(cls, arrays: dict[str, NDArray[Any]]) -> BlockIndex:
        """Rebuild the index from the arrays of a saved one."""
        own = {name: arrays[name] for name in BlockArrays._fields if name != "section_column"}
        return cls(
            Buckets.restore(arrays), BlockArrays(**own, section_column=arrays["section_column"].item())
        )


def joined(parts: list[tuple[Ints, NDArray[np.int32]]]) -> CandidateBoxes:
    """Concatenate the results of consecutive ranges of events."""
    if len(parts) == 1:
        return CandidateBoxes(*parts[0])
    counts = [np.diff(indptr) for indptr, _ in parts]
    indptr = np.cumsum(np.concatenate([np.zeros(1, np.int64), *counts]))
    return CandidateBoxes(indptr, np.concatenate([np.empty(0, np.int32), *(box for _, box in parts)]))


class Bitmap(IndexedMatcher):
    """Intersects for each event rows of flags: per attribute, the boxes that overlap the event's bucket.

    Parameters
    ----------
    layout
        `flat`: one row for all boxes; best for few boxes or broad ones. `blocks`: rows for groups of boxes
        that bound the same attributes; best for many boxes that each contain few events (default).
    threads
        Number of threads that share a batch (default: 1).

    Examples
    --------
    >>> import pyarrow as pa, narrowcast as nc
    >>> events = nc.EventBatch.from_arrow(pa.table({"price": [80.0, 75.0, None]}))
    >>> subscriptions = nc.compile_filters(events.schema, ["price > 75", "price <= 75"]).subscriptions
    >>> [row.tolist() for row in Bitmap(layout="flat").fit(subscriptions).match(events)]
    [[0], [1], []]
    """

    _indexes = (FlatIndex, BlockIndex)

    def __init__(self, *, layout: Literal["flat", "blocks"] = "blocks", threads: int = 1) -> None:
        super().__init__(threads=threads)
        if layout not in ("flat", "blocks"):
            raise ParameterError(parameter="layout", value=layout, limit="one of flat, blocks")
        self.layout = layout

    def _index(self, boxes: CodedBoxes, ranks: Ranks, schema: Schema, sample: Codes | None) -> BoxIndex:
        if self.layout == "flat":
            return FlatIndex.build(boxes, sample)
        return BlockIndex.build(boxes, sample)
