"""Boxes in groups of a kind, a small grid over each group, 32 boxes compared at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from narrowcast.kernels.jit import kernel, lowest, population

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Codes = NDArray[np.unsignedinteger[Any]]
    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]
    Signatures = NDArray[np.uint64]

#: Boxes compared at a time.
LANES = 32
#: What is known of a group: the columns of `groups`.
COLUMN_AT, N_COLUMNS, FIRST_CHUNK, BOUND_AT, START_AT = range(5)
AXES = 3
CUT_AT, CELLS, AXIS, N_FIELDS = (5 + AXES * i for i in range(4))

#: Values and boxes looked at to place the cuts of a group.
_VALUES = 1024
_WIDTHS = 256

_ONE = np.uint64(1)


@intrinsic  # type: ignore[untyped-decorator]
def _below(_typing: Any, values: Any, at: Any, code: Any) -> Any:
    """Return a flag for each of the 32 values from `at` on: whether it is below a code."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        lane = ir.IntType(signature.args[0].dtype.bitwidth)
        lanes, index = ir.VectorType(lane, LANES), ir.IntType(32)
        pointer = builder.bitcast(builder.gep(array.data, [args[1]]), lanes.as_pointer())
        loaded = builder.load(pointer, align=lane.width // 8)
        one = builder.insert_element(ir.Constant(lanes, ir.Undefined), args[2], ir.Constant(index, 0))
        everywhere = ir.Constant(ir.VectorType(index, LANES), [0] * LANES)
        every = builder.shuffle_vector(one, ir.Constant(lanes, ir.Undefined), everywhere)
        flags = builder.bitcast(builder.icmp_unsigned("<", loaded, every), ir.IntType(LANES))
        return builder.zext(flags, ir.IntType(64))

    return types.uint64(values, types.int64, values.dtype), generate


@kernel
def label(
    indptr: Ints,
    column: Numbers,
    lo: Codes,
    hi: Codes,
    last: Ints,
    bit: Signatures,
    category: int,
    slot_of: Numbers,
    shared: NDArray[np.bool_],
) -> tuple[Numbers, Signatures]:
    """Return the slot of each box, -1 when nothing is in it, and a flag for each column it must be compared in."""
    n = len(indptr) - 1
    slot = np.zeros(n, np.int32)
    signature = np.zeros(n, np.uint64)
    for box in range(n):
        for b in range(indptr[box], indptr[box + 1]):
            c = column[b]
            if lo[b] >= hi[b]:
                slot[box] = -1
                break
            if lo[b] == 0 and hi[b] >= last[c]:
                continue
            if c == category and np.int64(hi[b]) == np.int64(lo[b]) + 1:
                slot[box] = slot_of[hi[b]]
                if not shared[slot[box]]:
                    continue
            signature[box] |= bit[c]
    return slot, signature


@kernel
def group(order: Ints, slot: Numbers, signature: Signatures, least: int) -> tuple[Ints, Numbers]:
    """Return the group of each box in order of slot and signature, and the slot of each group.

    A signature with fewer than `least` boxes shares a group with the next of them in its slot, up to that size.
    """
    n = len(order)
    number = np.empty(n, np.int64)
    slot_of = np.empty(n, np.int32)
    n_groups = 0
    open_group, room = -1, 0
    i = 0
    while i < n:
        s, mark = slot[order[i]], signature[order[i]]
        end = i + 1
        while end < n and slot[order[end]] == s and signature[order[end]] == mark:
            end += 1
        size = end - i
        if size < least and room > 0 and slot_of[open_group] == s:
            g = open_group
            room -= size
        else:
            g = n_groups
            slot_of[g] = s
            n_groups += 1
            if size < least:
                open_group, room = g, least - size
        number[i:end] = g
        i = end
    return number, slot_of[:n_groups].copy()


@kernel
def columns_of(
    order: Ints, first: Ints, indptr: Ints, column: Numbers, lo: Codes, hi: Codes, last: Ints, alone: Numbers
) -> tuple[Ints, Numbers]:
    """Return the columns that any box of each group bounds, but for the one that its slot sees to.

    The last column is one in which every event has the same code; it stands in where there is no other.
    """
    n_groups = len(first) - 1
    column_at = np.zeros(n_groups + 1, np.int64)
    columns = np.empty(64, np.int32)
    seen = np.full(len(last), -1, np.int64)
    n_out = 0
    for g in range(n_groups):
        for i in range(first[g], first[g + 1]):
            for b in range(indptr[order[i]], indptr[order[i] + 1]):
                c = column[b]
                if seen[c] == g or c == alone[g] or (lo[b] == 0 and hi[b] >= last[c]):
                    continue
                seen[c] = g
                if n_out + 1 >= len(columns):
                    longer = np.empty(2 * n_out, np.int32)
                    longer[:n_out] = columns[:n_out]
                    columns = longer
                columns[n_out] = c
                n_out += 1
        if n_out == column_at[g]:
            columns[n_out] = len(last) - 1
            n_out += 1
        column_at[g + 1] = n_out
    return column_at, columns[:n_out].copy()


@kernel
def _spread(
    boxes: Ints, columns: Numbers, indptr: Ints, column: Numbers, lo: Codes, hi: Codes, last: Ints, place: Numbers
) -> tuple[Codes, Codes]:
    """Return the ends of a group's boxes, a row for each of its columns."""
    low = np.zeros((len(columns), len(boxes)), lo.dtype)
    high = np.zeros((len(columns), len(boxes)), lo.dtype)
    for j in range(len(columns)):
        place[columns[j]] = j
        high[j, :] = last[columns[j]]
    for i in range(len(boxes)):
        for b in range(indptr[boxes[i]], indptr[boxes[i] + 1]):
            j = place[column[b]]
            if j >= 0:
                low[j, i] = lo[b]
                high[j, i] = hi[b]
    for c in columns:
        place[c] = -1
    return low, high


@kernel
def _values(low: Codes, high: Codes, last: int, events: Codes) -> Codes:
    """Return some ends of boxes along a column and, where there are any, as many codes of events; sorted."""
    step = max(1, len(low) * 2 // _VALUES)
    out = np.empty(2 * (len(low) * 2 // step + 2), low.dtype)
    n = 0
    for i in range(0, len(low), step):
        if low[i] > 0:
            out[n] = low[i]
            n += 1
        if high[i] < last:
            out[n] = high[i]
            n += 1
    if len(events):
        for i in range(n):
            out[n + i] = min(events[i * len(events) // n], last - 1)
        n *= 2
    return np.sort(out[:n])


@kernel
def _shape(n_boxes: int, width: Any, most: int, budget: float) -> Ints:
    """Return how many cells along each axis cost least; boxes are on average `width` wide in them.

    A box is in 1 + k * width of k cells along an axis; padding fills half a chunk in each cell.
    """
    best = np.ones(AXES, np.int64)
    least = float((n_boxes + LANES - 1) // LANES)
    w0, w1, w2 = width
    i = 1
    while i <= most and i * (LANES / 2) <= budget * n_boxes:
        a = n_boxes * (1.0 + i * w0 if i > 1 else 1.0)
        j = 1
        while j <= most and j <= i and a + i * j * (LANES / 2) <= budget * n_boxes:
            b = a * (1.0 + j * w1 if j > 1 else 1.0)
            k = 1
            while k <= most and k <= j:
                c = b * (1.0 + k * w2 if k > 1 else 1.0)
                if c + i * j * k * (LANES / 2) > budget * n_boxes:
                    break
                cost = c / (i * j * k * LANES) + 0.5
                if cost + 0.25 < least:
                    least = cost
                    best[0], best[1], best[2] = i, j, k
                k += 1 + k // 8
            j += 1 + j // 8
        i += 1 + i // 8
    return best


@kernel
def plan(
    order: Ints,
    first: Ints,
    column_at: Ints,
    columns: Numbers,
    indptr: Ints,
    column: Numbers,
    lo: Codes,
    hi: Codes,
    last: Ints,
    sample: Codes,
    sample_at: Ints,
    cells: int,
    budget: float,
) -> tuple[Ints, Codes]:
    """Return what is known of each group, and the cuts of their grids.

    Boxes of a group are sorted in place along a column outside its grid, which comes first among its columns:
    then most chunks of a cell are done with after one comparison.
    """
    n_groups = len(first) - 1
    groups = np.zeros((n_groups, N_FIELDS), np.int64)
    cuts = np.empty(64, lo.dtype)
    n_cuts, n_starts = 0, 0
    place = np.full(len(last), -1, np.int32)
    for g in range(n_groups):
        at, end = column_at[g], column_at[g + 1]
        boxes = order[first[g] : first[g + 1]]
        n = len(boxes)
        fields = groups[g]
        fields[COLUMN_AT], fields[N_COLUMNS] = at, end - at
        fields[CELLS : CELLS + AXES] = 1
        fields[START_AT] = n_starts
        own = columns[at:end]
        low, high = _spread(boxes, own, indptr, column, lo, hi, last, place)
        events = sample[sample_at[g, 0] : sample_at[g, 1]]
        width = np.ones(len(own))
        step = max(1, n // _WIDTHS)
        for j in range(len(own)):
            values = _values(low[j], high[j], last[own[j]], events[:, own[j]])
            if len(values):
                total, looked = 0.0, 0
                for i in range(0, n, step):
                    total += np.searchsorted(values, high[j, i]) - np.searchsorted(values, low[j, i])
                    looked += 1
                width[j] = total / looked / len(values)
        rank = np.argsort(width)
        n_axes = min(AXES, len(own))
        narrow = np.full(AXES, 1e9)
        narrow[:n_axes] = width[rank[:n_axes]]
        shape = _shape(n, (narrow[0], narrow[1], narrow[2]), cells if n_axes > 1 else cells * cells, budget)
        need = n_cuts + shape.sum() + AXES * LANES
        if need > len(cuts):
            longer = np.empty(2 * need, lo.dtype)
            longer[:n_cuts] = cuts[:n_cuts]
            cuts = longer
        n_cells = 1
        for axis in range(n_axes):
            k, j = shape[axis], rank[axis]
            values = _values(low[j], high[j], last[own[j]], events[:, own[j]])
            begin = n_cuts
            for i in range(1, k):
                cut = values[i * len(values) // k]
                if n_cuts == begin or cut > cuts[n_cuts - 1]:
                    cuts[n_cuts] = cut
                    n_cuts += 1
            fields[CUT_AT + axis], fields[CELLS + axis], fields[AXIS + axis] = begin, n_cuts - begin + 1, own[j]
            n_cells *= n_cuts - begin + 1
            while (n_cuts - begin) % LANES:
                cuts[n_cuts] = np.iinfo(lo.dtype).max
                n_cuts += 1
        n_starts += n_cells + 1
        lead = rank[min(AXES, len(own) - 1)]
        middle = low[lead].astype(np.int64) + high[lead]
        boxes[:] = boxes[np.argsort(middle)]
        own[:] = own[np.concatenate((rank[n_axes:], rank[:n_axes][::-1]))]
    return groups, cuts[:n_cuts].copy()


@kernel
def _cell(cuts: Codes, at: int, n_cells: int, code: Any) -> int:
    """Return how many of the cuts from `at` on lie below a code; they are padded to whole chunks."""
    cell = 0
    for i in range(at, at + n_cells - 1, LANES):
        cell += population(_below(cuts, i, code))
    return cell


@kernel
def lay(
    groups: Ints,
    order: Ints,
    first: Ints,
    columns: Numbers,
    cuts: Codes,
    indptr: Ints,
    column: Numbers,
    lo: Codes,
    hi: Codes,
    last: Ints,
    starts: Numbers,
    bounds: Codes,
    write: bool,
) -> None:
    """Count the chunks of each cell into `starts`; when writing, fill them with boxes instead."""
    place = np.full(len(last), -1, np.int32)
    for g in range(len(groups)):
        fields = groups[g]
        n_columns = fields[N_COLUMNS]
        boxes = order[first[g] : first[g + 1]]
        n = len(boxes)
        cells = fields[CELLS : CELLS + AXES]
        n_cells = cells[0] * cells[1] * cells[2]
        start = starts[fields[START_AT] : fields[START_AT] + n_cells + 1]
        own = columns[fields[COLUMN_AT] : fields[COLUMN_AT] + n_columns]
        low, high = _spread(boxes, own, indptr, column, lo, hi, last, place)
        filled = np.zeros(n_cells, np.int64)
        begin, end = np.zeros(AXES, np.int64), np.ones(AXES, np.int64)
        for i in range(n):
            for axis in range(min(AXES, n_columns)):
                j, cut_at = n_columns - 1 - axis, fields[CUT_AT + axis]
                begin[axis] = _cell(cuts, cut_at, cells[axis], low.dtype.type(low[j, i] + 1))
                end[axis] = _cell(cuts, cut_at, cells[axis], high[j, i]) + 1
            for a in range(begin[0], end[0]):
                for b in range(begin[1], end[1]):
                    for c in range(begin[2], end[2]):
                        cell = (a * cells[1] + b) * cells[2] + c
                        at = filled[cell]
                        filled[cell] += 1
                        if not write:
                            continue
                        chunk, lane = start[cell] + at // LANES, at % LANES
                        place_at = fields[BOUND_AT] + chunk * (n_columns + 1) * 2 * LANES + lane
                        for j in range(n_columns):
                            bounds[place_at + j * 2 * LANES] = low[j, i]
                            bounds[place_at + j * 2 * LANES + LANES] = high[j, i]
                        bounds[place_at + n_columns * 2 * LANES] = boxes[i] & 0xFFFF
                        bounds[place_at + n_columns * 2 * LANES + LANES] = boxes[i] >> 16
        if not write:
            for cell in range(n_cells):
                start[cell + 1] = start[cell] + (filled[cell] + LANES - 1) // LANES


@kernel
def scan(
    groups: Ints,
    columns: Numbers,
    cuts: Codes,
    starts: Numbers,
    bounds: Codes,
    runs: Ints,
    event: Numbers,
    codes: Codes,
    counts: Ints,
    pair_event: Numbers,
    pair_box: Numbers,
    keep: bool,
) -> int:
    """Meet events with groups; return how many pairs were written, or -1 when they did not fit.

    Each row of `runs` is a range of groups and a range of events: the columns of `codes`, whose numbers are in
    `event`. Pairs are written when `keep`, else counted by event.
    """
    n_pairs = 0
    room = len(pair_box) - LANES
    from_ = np.empty(codes.shape[1], np.int32)
    to = np.empty(codes.shape[1], np.int32)
    for r in range(len(runs)):
        for g in range(runs[r, 0], runs[r, 1]):
            fields = groups[g]
            n_columns = fields[N_COLUMNS]
            own = columns[fields[COLUMN_AT] : fields[COLUMN_AT] + n_columns]
            bound_at = fields[BOUND_AT]
            stride = (n_columns + 1) * 2 * LANES
            start_at = fields[START_AT]
            cut_a, cut_b, cut_c = fields[CUT_AT], fields[CUT_AT + 1], fields[CUT_AT + 2]
            cells_a, cells_b, cells_c = fields[CELLS], fields[CELLS + 1], fields[CELLS + 2]
            axis_a, axis_b, axis_c = fields[AXIS], fields[AXIS + 1], fields[AXIS + 2]
            begin, end = runs[r, 2], runs[r, 3]
            for e in range(begin, end):
                cell = _cell(cuts, cut_a, cells_a, codes[axis_a, e])
                cell = cell * cells_b + _cell(cuts, cut_b, cells_b, codes[axis_b, e])
                cell = cell * cells_c + _cell(cuts, cut_c, cells_c, codes[axis_c, e])
                from_[e] = starts[start_at + cell]
                to[e] = starts[start_at + cell + 1]
            for e in range(begin, end):
                for chunk in range(from_[e], to[e]):
                    at = bound_at + chunk * stride
                    code = codes[own[0], e]
                    mask = _below(bounds, at, code) & ~_below(bounds, at + LANES, code)
                    if n_columns > 1:
                        code = codes[own[1], e]
                        mask &= _below(bounds, at + 2 * LANES, code) & ~_below(bounds, at + 3 * LANES, code)
                    if n_columns > 2:
                        code = codes[own[2], e]
                        mask &= _below(bounds, at + 4 * LANES, code) & ~_below(bounds, at + 5 * LANES, code)
                    for j in range(3, n_columns):
                        if mask == 0:
                            break
                        here = at + j * 2 * LANES
                        code = codes[own[j], e]
                        mask &= _below(bounds, here, code) & ~_below(bounds, here + LANES, code)
                    if mask == 0:
                        continue
                    here = at + n_columns * 2 * LANES
                    if not keep:
                        counts[event[e]] += population(mask)
                        continue
                    if n_pairs > room:
                        return -1
                    while mask:
                        pair_event[n_pairs] = event[e]
                        lane = here + lowest(mask)
                        pair_box[n_pairs] = np.int64(bounds[lane]) | (np.int64(bounds[lane + LANES]) << 16)
                        n_pairs += 1
                        mask &= mask - _ONE
    return n_pairs
