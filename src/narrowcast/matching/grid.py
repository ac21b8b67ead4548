"""Grid index: boxes grouped by category and bounded attributes, with a small grid for each group.

A column is a coded attribute. The category is the column for which most boxes require a single code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.kernels import grid as kernels
from narrowcast.kernels.bits import gather
from narrowcast.kernels.flat import count_rows, list_rows
from narrowcast.kernels.grid import LANES, SPAN, GridBounds
from narrowcast.matching.groups import category_of, points
from narrowcast.matching.growing_rows import GrowingRows
from narrowcast.matching.index import CandidateBoxes
from narrowcast.matching.indexed_matcher import IndexedMatcher

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.matching.index import BoxIndex, Codes
    from narrowcast.matching.ranks import CodedBoxes, Ranks
    from narrowcast.model.schema import Schema

    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]
    Words = NDArray[np.uint64]

#: Smallest number of boxes for a group of its own (boxes with the same columns, or the same category).
_LEAST = 128
#: Largest mean number of cells that a box of a group is in, with padding. More hardly speeds up queries.
_COPIES = 4.0
#: Limit of the parameter `cells`: cells along an axis.
_MOST_CELLS = 256

#: Largest number of events per tile, and of their pairs with boxes.
_TILE = 1 << 13
_PAIRS = 1 << 21
_LEAST_PAIRS = 1 << 12
#: With more than _FEW events, _PROBED of them are counted first to estimate the boxes per event.
_FEW = 64
_PROBED = 8
#: From this many boxes per event on, flags are set instead of pairs sorted; and the bytes of flags at once.
_BROAD = 256
_FLAGS = 1 << 22

_FIRST = np.zeros(1, np.int32)
_NO_PAIRS = np.empty(0, np.int32)
_NO_COUNTS = np.empty(0, np.int64)
_NO_FLAGS = np.empty((0, 0), np.uint64)


@dataclass(frozen=True, slots=True, eq=False)
class GridIndex:
    """Compares an event only with the boxes of its category, and of its cell in the grid of each group.

    Boxes that require one code of a column, the category, are compared only with events of that code. Among
    these, boxes that bound the same columns form a group; small groups are merged and compared in the columns
    of all of them. A grid over the narrowest columns of a group has cells whose boxes are stored in chunks of
    32, column by column, so that a chunk is compared at once.

    Parameters
    ----------
    n_boxes
        Number of boxes.
    category
        The column whose code separates boxes, or -1.
    slot_of
        For each code of that column the slot of its boxes, 0 for none. Rare codes share slots.
    grid
        The groups.
    """

    n_boxes: int
    category: int
    slot_of: Numbers
    grid: kernels.GridArrays

    @classmethod
    def build(cls, boxes: CodedBoxes, *, cells: int = 32, sample: Codes | None = None) -> Self:
        """Build the index, with at most `cells` cells along an axis; the sample shows where to be finer."""
        if sample is None:
            sample = np.empty((0, boxes.n_columns), boxes.lo.dtype)
        bounds = _bounds(boxes)
        category = category_of(boxes, sample)
        slot_of, shared = _slots(boxes, category)
        slot, signature = kernels.label(bounds, _bits(boxes), category, slot_of, shared)
        order = np.lexsort((signature, slot))
        order = order[np.searchsorted(slot[order], 0) :]
        number, group_slot = kernels.assign(order, slot, signature, _LEAST)
        inner = np.argsort(number, kind="stable")
        order, first = order[inner], np.searchsorted(number[inner], np.arange(len(group_slot) + 1))
        spared = np.where((group_slot > 0) & ~shared[group_slot], category, -1).astype(np.int32)
        column_at, column = kernels.columns_of(order, first, bounds, spared)
        events, _, event_slot = _by_slot(sample, category, slot_of)
        sample_at = np.searchsorted(event_slot, np.stack([group_slot, group_slot + 1], axis=1))
        sample_at[group_slot == 0] = 0, len(sample)
        group, cut = kernels.plan(
            order, first, column_at, column, bounds, events.T, sample_at, cells, _COPIES
        )
        n_cells = group[:, kernels.CELLS : kernels.CELLS + kernels.AXES].prod(axis=1)
        grid = kernels.GridArrays(
            slot=np.searchsorted(group_slot, np.arange(len(shared) + 1)),
            group=group,
            column=column,
            cut=cut,
            start=np.zeros(int((n_cells + 1).sum()), np.int32),
            chunk=np.empty(0, boxes.lo.dtype),
        )
        kernels.lay(grid, order, first, bounds, False)
        n_chunks = grid.start[group[:, kernels.START_AT] + n_cells].astype(np.int64)
        size = n_chunks * (group[:, kernels.N_COLUMNS] + 1) * SPAN
        group[:, kernels.CHUNK_AT] = np.cumsum(size) - size
        grid = grid._replace(chunk=_padding(int(size.sum()), boxes.lo.dtype))
        kernels.lay(grid, order, first, bounds, True)
        return cls(len(boxes), category, slot_of, grid)

    def find(self, codes: Codes) -> CandidateBoxes:
        """Return the boxes that contain each event."""
        n = len(codes)
        if n == 1:
            return self._find_one(codes)
        expected = 0.0
        if n > _FEW:
            expected = float(self.count(codes[:: n // _PROBED]).mean())
        rows = GrowingRows(n, int(1.1 * expected * n))
        if expected * _BROAD > self.n_boxes:
            self._add_broad(codes, rows)
        else:
            tile = max(1, min(n, _TILE, int(_PAIRS / (1.5 * expected + 1))))
            room = min(_PAIRS, max(_LEAST_PAIRS, tile * self.n_boxes // _BROAD)) + LANES
            pairs = np.empty(room, np.int32), np.empty(room, np.int32)
            for at in range(0, n, tile):
                self._add_pairs(codes[at : at + tile], rows, pairs)
        return rows.found()

    def _find_one(self, codes: Codes) -> CandidateBoxes:
        """Return the boxes that contain one event."""
        room = max(_LEAST_PAIRS, self.n_boxes // _BROAD) + LANES
        pairs = np.empty(room, np.int32), np.empty(room, np.int32)
        n_pairs = self._scan(codes, kernels.PAIRS, pairs=pairs)
        if n_pairs < 0:
            rows = GrowingRows(1, 0)
            self._add_broad(codes, rows)
            return rows.found()
        return CandidateBoxes(np.array([0, n_pairs]), np.sort(pairs[1][:n_pairs]))

    def _add_pairs(self, codes: Codes, rows: GrowingRows, pairs: tuple[Numbers, Numbers]) -> None:
        """Append the boxes of a range of events, found as pairs and sorted; as flags if they are too many."""
        n_pairs = self._scan(codes, kernels.PAIRS, pairs=pairs)
        if n_pairs < 0:
            self._add_broad(codes, rows)
            return
        indptr, box = gather(*pairs, n_pairs, len(codes), self.n_boxes)
        rows.append(np.diff(indptr))[:n_pairs] = box

    def _add_broad(self, codes: Codes, rows: GrowingRows) -> None:
        """Append the boxes of a range of events, found as flags, which need no sorting."""
        n_words = -(-self.n_boxes // 64)
        tile = max(1, min(len(codes), _TILE, _FLAGS // (8 * n_words)))
        flags = np.empty((tile, n_words), np.uint64)
        for at in range(0, len(codes), tile):
            some = codes[at : at + tile]
            flags[:] = 0
            self._scan(some, kernels.FLAGS, flags=flags)
            counts = np.empty(len(some), np.int64)
            count_rows(flags, len(some), counts)
            list_rows(flags, len(some), rows.append(counts), 0)

    def count(self, codes: Codes) -> Ints:
        """Return, for each event, how many boxes contain it."""
        counts = np.zeros(len(codes), np.int64)
        for at in range(0, len(codes), _TILE):
            self._scan(codes[at : at + _TILE], kernels.COUNT, counts=counts[at : at + _TILE])
        return counts

    def bitmaps(self, codes: Codes) -> Words:
        """Return the flags of the boxes that contain each event, one row per event."""
        flags = np.zeros((len(codes), -(-self.n_boxes // 64)), np.uint64)
        for at in range(0, len(codes), _TILE):
            self._scan(codes[at : at + _TILE], kernels.FLAGS, flags=flags[at : at + _TILE])
        return flags

    def _scan(
        self,
        codes: Codes,
        do: int,
        counts: Ints = _NO_COUNTS,
        pairs: tuple[Numbers, Numbers] = (_NO_PAIRS, _NO_PAIRS),
        flags: Words = _NO_FLAGS,
    ) -> int:
        """Compare events with the groups for their category, and the groups for all events."""
        if len(codes) == 1:  # no sorting needed
            columns = np.append(codes[0], codes.dtype.type(1))[:, None]
            own = int(self.slot_of[codes[0, self.category]]) if self.category >= 0 else 0
            runs = np.array([[0, 0, 1], [own, 0, 1]][: 2 if own else 1], np.int64)
            return kernels.scan(self.grid, runs, _FIRST, columns, do, counts, *pairs, flags)
        columns, event, slot = _by_slot(codes, self.category, self.slot_of)
        edge = np.concatenate([[0], np.flatnonzero(slot[1:] != slot[:-1]) + 1, [len(slot)]])
        runs = (
            np.stack([slot[edge[:-1]], edge[:-1], edge[1:]], axis=1)
            if len(slot)
            else np.empty((0, 3), np.int64)
        )
        runs = np.concatenate([[[0, 0, len(slot)]], runs[runs[:, 0] > 0]])
        return kernels.scan(self.grid, runs, event, columns, do, counts, *pairs, flags)

    def stats(self) -> dict[str, Any]:
        """Return the number of groups and other counts of the grids, for diagnosis."""
        cells = self.grid.group[:, kernels.CELLS : kernels.CELLS + kernels.AXES].prod(axis=1)
        chunks = self.grid.start[self.grid.group[:, kernels.START_AT] + cells].sum()
        return {
            "groups": len(self.grid.group),
            "sections": len(self.grid.slot) - 1,
            "cells": int(cells.sum()),
            "copies": round(float(chunks * LANES / max(1, self.n_boxes)), 2),
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the index by name, to save it."""
        return {
            "shape": np.array([self.n_boxes, self.category]),
            "slot_of": self.slot_of,
            **self.grid._asdict(),
        }

    @classmethod
    def restore(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        """Rebuild the index from the arrays of a saved one."""
        n_boxes, category = arrays["shape"].tolist()
        grid = kernels.GridArrays(**{name: arrays[name] for name in kernels.GridArrays._fields})
        return cls(n_boxes, category, arrays["slot_of"], grid)


class Grid(IndexedMatcher):
    """Matcher that compares an event only with boxes near it: of its category, in its cell of a grid.

    Best for many subscriptions that each match few events. Boxes are grouped by the attributes they bound,
    and each group has a grid over its narrowest attributes.

    Parameters
    ----------
    cells
        Largest number of cells along an attribute, 1 to 256 (default: 32).
    threads
        Number of threads that share a batch (default: 1).

    Examples
    --------
    >>> import pyarrow as pa, narrowcast as nc
    >>> events = nc.EventBatch.from_arrow(pa.table({"price": [80.0, 75.0], "name": ["SAP", "IBM"]}))
    >>> filters = ["price > 75", "name = 'IBM' AND price > 70", "name = 'SAP' AND price > 90"]
    >>> matcher = Grid(cells=16).fit(nc.compile_filters(events.schema, filters).subscriptions)
    >>> [row.tolist() for row in matcher.match(events)]
    [[0], [1]]
    """

    _indexes = (GridIndex,)

    def __init__(self, *, cells: int = 32, threads: int = 1) -> None:
        super().__init__(threads=threads)
        if isinstance(cells, bool) or not isinstance(cells, int) or not 1 <= cells <= _MOST_CELLS:
            raise ParameterError(parameter="cells", value=cells, limit=f"an integer from 1 to {_MOST_CELLS}")
        self.cells = cells

    def _index(self, boxes: CodedBoxes, ranks: Ranks, schema: Schema, sample: Codes | None) -> BoxIndex:
        return GridIndex.build(boxes, cells=self.cells, sample=sample)


def _slots(boxes: CodedBoxes, category: int) -> tuple[Numbers, NDArray[np.bool_]]:
    """Return the slot (list of groups) for each code of the category, and which slots several codes share."""
    if category < 0:
        return np.zeros(1, np.int32), np.zeros(1, bool)
    chosen = points(boxes) & (boxes.column == category)
    counts = np.bincount(boxes.hi[chosen], minlength=int(boxes.last[category]) + 1)
    often, rare = counts >= _LEAST, (counts > 0) & (counts < _LEAST)
    n_often = int(often.sum())
    slot_of = np.zeros(len(counts), np.int32)
    slot_of[often] = np.arange(1, n_often + 1)
    slot_of[rare] = n_often + 1 + np.unique(np.cumsum(counts[rare]) // _LEAST, return_inverse=True)[1]
    return slot_of, np.arange(int(slot_of.max()) + 1) > n_often


def _bits(boxes: CodedBoxes) -> Words:
    """Return a bit for each column; the column that most boxes bound has the highest bit.

    Boxes sorted by their bits then share their most common columns with their neighbours. Beyond 64 columns,
    bits are shared: boxes of one apparent signature are still compared in all their columns.
    """
    often = np.argsort(-np.bincount(boxes.column, minlength=boxes.n_columns), kind="stable")
    bits = np.empty(boxes.n_columns, np.uint64)
    bits[often] = np.uint64(1) << (63 - np.arange(boxes.n_columns) % 64).astype(np.uint64)
    return bits


def _by_slot(codes: Codes, category: int, slot_of: Numbers) -> tuple[Codes, Numbers, Numbers]:
    """Return codes by column for events sorted by slot, with a row of ones; their order; and their slots."""
    columns = np.ones((codes.shape[1] + 1, len(codes)), codes.dtype)
    if category < 0:
        columns[:-1] = codes.T
        return columns, np.arange(len(codes), dtype=np.int32), np.zeros(len(codes), np.int32)
    slot = slot_of[codes[:, category]]
    order = np.argsort(slot)
    columns[:-1] = codes[order].T
    return columns, order.astype(np.int32), slot[order]


def _padding(size: int, dtype: np.dtype[Any]) -> Codes:
    """Return chunks of padding, aligned to cache lines, that no code is contained in."""
    raw = np.empty(size * dtype.itemsize + 64, np.uint8)
    skip = -raw.ctypes.data % 64
    chunk = raw[skip : skip + size * dtype.itemsize].view(dtype)
    lanes = chunk.reshape(-1, 2, LANES)
    lanes[:, 0], lanes[:, 1] = np.iinfo(dtype).max, 0
    return chunk


def _bounds(boxes: CodedBoxes) -> GridBounds:
    """Return boxes for kernels as read-only arrays: kernels would be compiled again for writable ones."""
    arrays: list[NDArray[Any]] = [boxes.indptr, boxes.column, boxes.lo, boxes.hi, np.append(boxes.last, 1)]
    views = [array.view() for array in arrays]
    for view in views:
        view.flags.writeable = False
    return GridBounds(*views)
