"""Signature groups: boxes of one category that bound the same attributes, each group under a small grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from narrowcast.kernels import grid as kernels
from narrowcast.kernels.bits import gather
from narrowcast.matching.index import Found

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.matching.index import Codes
    from narrowcast.matching.ranks import CodedBoxes

    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]

import os
_LEAST = int(os.environ.get('LEAST','32'))
_BUDGET = float(os.environ.get('BUDGET','6'))
_WORTH = 0.7
_PAIRS = 1 << 21
_TILE = 1 << 13
_PROBE = 8


@dataclass(frozen=True, slots=True, eq=False)
class GridIndex:
    n_boxes: int
    category: int
    slot_of: Numbers
    group_at: Ints
    groups: Ints
    columns: Numbers
    cuts: Codes
    starts: Numbers
    bounds: Codes

    @classmethod
    def build(cls, boxes: CodedBoxes, *, cells: int = 32, sample: Codes | None = None) -> Self:
        n, n_columns = len(boxes), boxes.n_columns
        if sample is None:
            sample = np.empty((0, n_columns), boxes.lo.dtype)
        category, slot_of, shared = _slots(boxes, sample)
        last = np.append(boxes.last, 1)
        popular = np.argsort(-np.bincount(boxes.column, minlength=n_columns), kind="stable")
        bit = np.empty(n_columns, np.uint64)
        bit[popular] = np.uint64(1) << (63 - np.arange(n_columns) % 64).astype(np.uint64)
        entries = (boxes.indptr, boxes.column, boxes.lo, boxes.hi, last)
        slot, signature = kernels.label(*entries, bit, category, slot_of, shared)
        order = np.lexsort((signature, slot))
        order = order[np.searchsorted(slot[order], 0) :]
        number, group_slot = kernels.group(order, slot, signature, _LEAST)
        inner = np.argsort(number, kind="stable")
        order, number = order[inner], number[inner]
        first = np.searchsorted(number, np.arange(len(group_slot) + 1))
        apart = np.where((group_slot > 0) & ~shared[group_slot], category, -1).astype(np.int32)
        column_at, columns = kernels.columns_of(order, first, *entries, apart)
        codes, _, sample_slot = _by_slot(sample, category, slot_of)
        sample_at = np.searchsorted(sample_slot, np.stack([group_slot, group_slot + 1], 1))
        sample_at[group_slot == 0] = 0, len(sample)
        groups, cuts = kernels.plan(
            order, first, column_at, columns, *entries, codes.T, sample_at, cells, _BUDGET
        )
        n_cells = groups[:, kernels.CELLS : kernels.CELLS + kernels.AXES].prod(1)
        starts = np.zeros((n_cells + 1).sum(), np.int32)
        none = np.empty(0, boxes.lo.dtype)
        kernels.lay(groups, order, first, columns, cuts, *entries, starts, none, False)
        chunks = starts[groups[:, kernels.START_AT] + n_cells].astype(np.int64)
        size = chunks * (groups[:, kernels.N_COLUMNS] + 1) * (2 * kernels.LANES)
        groups[:, kernels.BOUND_AT] = np.cumsum(size) - size
        bounds = _aligned(size.sum(), boxes.lo.dtype)
        bounds.reshape(-1, 2, kernels.LANES)[:, 0] = np.iinfo(boxes.lo.dtype).max
        bounds.reshape(-1, 2, kernels.LANES)[:, 1] = 0
        kernels.lay(groups, order, first, columns, cuts, *entries, starts, bounds, True)
        group_at = np.searchsorted(group_slot, np.arange(slot_of.max(initial=0) + 2))
        return cls(n, category, slot_of, group_at, groups, columns, cuts, starts, bounds)

    def find(self, codes: Codes) -> Found:
        n_events = len(codes)
        indptr = np.zeros(n_events + 1, np.int64)
        pairs = (np.empty(max(_PAIRS, self.n_boxes) + 64, np.int32), np.empty(max(_PAIRS, self.n_boxes) + 64, np.int32))
        expected = self.count(codes[:: max(1, n_events // _PROBE)]).mean() if n_events > 64 else 0.0
        tile = max(1, min(_TILE, int(_PAIRS / (1.5 * expected + 1))))
        out = np.empty(int(1.1 * expected * n_events) + 1024, np.int32)
        at = 0
        while at < n_events:
            part = codes[at : at + tile]
            n_pairs = self._scan(part, True, pairs)
            if n_pairs < 0:
                tile = max(1, tile // 2)
                continue
            rows, found = gather(*pairs, n_pairs, len(part), self.n_boxes)
            begin = indptr[at]
            indptr[at + 1 : at + 1 + len(part)] = rows[1:] + begin
            if begin + n_pairs > len(out):
                longer = np.empty(max(2 * len(out), begin + n_pairs), np.int32)
                longer[:begin] = out[:begin]
                out = longer
            out[begin : begin + n_pairs] = found
            at += len(part)
        return Found(indptr, out[: indptr[-1]])

    def count(self, codes: Codes) -> Ints:
        counts = np.zeros(len(codes), np.int64)
        none = np.empty(0, np.int32)
        for at in range(0, len(codes), _TILE):
            self._scan(codes[at : at + _TILE], False, (none, none), counts[at : at + _TILE])
        return counts

    def _scan(self, codes, keep, pairs, counts=np.empty(0, np.int64)) -> int:
        columns, event, slot = _by_slot(codes, self.category, self.slot_of)
        begin = np.flatnonzero(np.append(True, slot[1:] != slot[:-1])) if len(slot) else np.empty(0, np.int64)
        end = np.append(begin[1:], len(slot))[: len(begin)]
        s = slot[begin]
        runs = np.stack([self.group_at[s], self.group_at[s + 1], begin, end], 1)
        runs = np.concatenate([[[0, self.group_at[1], 0, len(slot)]], runs[s > 0]])
        return kernels.scan(self.groups, self.columns, self.cuts, self.starts, self.bounds, runs, event, columns, counts, *pairs, keep)


def _slots(boxes: CodedBoxes, sample: Codes):
    point = boxes.hi.astype(np.int64) == boxes.lo.astype(np.int64) + 1
    best, category = _WORTH * len(boxes), -1
    for c in np.unique(boxes.column[point]):
        counts = np.bincount(boxes.hi[point & (boxes.column == c)])
        weight = np.bincount(sample[:, c], minlength=len(counts))[: len(counts)] if len(sample) else counts
        met = (counts * weight).sum() / max(1, len(sample) or counts.sum()) + len(boxes) - counts.sum()
        if met < best:
            best, category = met, int(c)
    if category < 0:
        return -1, np.zeros(1, np.int32), np.zeros(1, bool)
    counts = np.bincount(boxes.hi[point & (boxes.column == category)], minlength=boxes.last[category] + 1)
    rare = (counts > 0) & (counts < _LEAST)
    common = counts >= _LEAST
    slot_of = np.zeros(len(counts), np.int32)
    slot_of[common] = np.arange(1, common.sum() + 1)
    slot_of[rare] = common.sum() + 1 + (np.cumsum(counts[rare]) - counts[rare]) // _LEAST
    shared = np.arange(slot_of.max() + 1) > common.sum()
    return category, slot_of, shared


def _by_slot(codes: Codes, category: int, slot_of: Numbers):
    if category < 0:
        order = np.arange(len(codes), dtype=np.int32)
        slot = np.zeros(len(codes), np.int32)
    else:
        slot = slot_of[codes[:, category]]
        order = np.argsort(slot).astype(np.int32)
        slot = slot[order]
    columns = np.empty((codes.shape[1] + 1, len(codes)), codes.dtype)
    columns[:-1] = codes[order].T
    columns[-1] = 1
    return columns, order, slot


def _aligned(size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    raw = np.empty(size * dtype.itemsize + 64, np.uint8)
    skip = -raw.ctypes.data % 64
    return raw[skip : skip + size * dtype.itemsize].view(dtype)
