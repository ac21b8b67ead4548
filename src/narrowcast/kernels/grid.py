"""Grid index: boxes in groups, a small grid over each group, 32 boxes compared at a time.

A column is an attribute whose values are coded as integers. A category is the value of an attribute for which
many boxes require a single value; events with the same category look in the same slot, a list of groups. The
grid of a group divides up to three columns, its axes, into cells at cuts. A cell stores its boxes in chunks
of 32 boxes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from narrowcast.kernels.jit import kernel, lowest, population

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Codes = NDArray[np.unsignedinteger[Any]]
    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]
    Words = NDArray[np.uint64]

#: Boxes per chunk, which are compared at once.
LANES = 32
#: Codes of a chunk for each column: the lower ends of its boxes, then the upper ends.
SPAN = 2 * LANES
#: Largest number of axes of a grid.
AXES = 3
#: The columns of `GridArrays.group`; from CUT_AT on there is one for each axis.
COLUMN_AT, N_COLUMNS, CHUNK_AT, START_AT = range(4)
CUT_AT, CELLS, AXIS, N_FIELDS = (4 + AXES * i for i in range(4))
#: What `scan` does with each pair: count it, write it, or set its flag.
COUNT, PAIRS, FLAGS = range(3)

#: Largest number of ends and boxes sampled to place the cuts of a group.
_ENDS = 1024
_BOXES = 256
#: More columns than this do not share a group, unless it has less than a chunk of boxes.
_MOST_COLUMNS = 16

_ONE = np.uint64(1)


class GridBounds(NamedTuple):
    """The boxes of `CodedBoxes`, and one additional column, in which every event has the code 1."""

    indptr: Ints
    column: Numbers
    lo: Codes
    hi: Codes
    last: Ints


class GridArrays(NamedTuple):
    """Arrays of the grid index: groups of boxes, the grid of each group, and chunks of boxes.

    The groups of slot s are those from `slot[s]` to `slot[s + 1]`: slot 0 applies to every event, other slots
    to their own events. Group g is compared in `group[g, N_COLUMNS]` columns, from `column[group[g,
    COLUMN_AT]]` on. Along an axis of its grid, the column `group[g, AXIS]`, there are `group[g, CELLS]`
    cells, separated by the codes `cut[group[g, CUT_AT]:]`, which the greatest code pads to whole chunks. From
    `start[group[g, START_AT]]` on there is the first chunk of each cell, and the end of the last. Chunks
    begin at `chunk[group[g, CHUNK_AT]]`: for each column SPAN codes, then the numbers of the boxes, the lower
    16 bits of all and then the upper. No code lies between the two codes that pad a chunk.
    """

    slot: Ints
    group: Ints
    column: Numbers
    cut: Codes
    start: Numbers
    chunk: Codes


def _compare(_typing: Any, values: Any, _at: Any, _code: Any) -> Any:
    """Return a flag for each of 32 consecutive values: whether it is below a code."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        lane, index = ir.IntType(signature.args[0].dtype.bitwidth), ir.IntType(32)
        lanes = ir.VectorType(lane, LANES)
        place = builder.bitcast(builder.gep(array.data, [args[1]]), lanes.as_pointer())
        loaded = builder.load(place, align=lane.width // 8)
        nothing = ir.Constant(lanes, ir.Undefined)
        one = builder.insert_element(nothing, args[2], ir.Constant(index, 0))
        everywhere = ir.Constant(ir.VectorType(index, LANES), [0] * LANES)
        code_in_all = builder.shuffle_vector(one, nothing, everywhere)
        flags = builder.bitcast(builder.icmp_unsigned("<", loaded, code_in_all), ir.IntType(LANES))
        return builder.zext(flags, ir.IntType(64))

    return types.uint64(values, types.int64, values.dtype), generate


_below = cast("Callable[[Any, Any, Any], Any]", intrinsic(_compare))


@kernel
def label(
    bounds: GridBounds, bit: Words, category: int, slot_of: Numbers, shared: NDArray[np.bool_]
) -> tuple[Numbers, Words]:
    """Return the slot of each box (-1: the box is empty), and as bits the columns in which it is compared.

    In a slot that several codes share, the category is compared as well.
    """
    n = len(bounds.indptr) - 1
    slot = np.zeros(n, np.int32)
    signature = np.zeros(n, np.uint64)
    for box in range(n):
        for b in range(bounds.indptr[box], bounds.indptr[box + 1]):
            c, lo, hi = bounds.column[b], np.int64(bounds.lo[b]), np.int64(bounds.hi[b])
            if lo >= hi:
                slot[box] = -1
                break
            if lo == 0 and hi >= bounds.last[c]:
                continue
            if c == category and hi == lo + 1:
                slot[box] = slot_of[hi]
                if not shared[slot[box]]:
                    continue
            signature[box] |= bit[c]
    return slot, signature


@kernel
def assign(order: Ints, slot: Numbers, signature: Words, least: int) -> tuple[Ints, Numbers]:
    """Return the group of each box, and the slot of each group; boxes are sorted by slot and signature.

    A signature with fewer boxes than `least` shares a group with the next such signatures of its slot.
    """
    n = len(order)
    number = np.empty(n, np.int64)
    slot_of = np.empty(n, np.int32)
    n_groups = 0
    shared, size, union = -1, 0, np.uint64(0)
    i = 0
    while i < n:
        own, mark = slot[order[i]], signature[order[i]]
        end = i + 1
        while end < n and slot[order[end]] == own and signature[order[end]] == mark:
            end += 1
        fits = shared >= 0 and slot_of[shared] == own and size < least
        if end - i < least and fits and (size < LANES or population(union | mark) <= _MOST_COLUMNS):
            g = shared
            size += end - i
            union |= mark
        else:
            g = n_groups
            slot_of[g] = own
            n_groups += 1
            if end - i < least:
                shared, size, union = g, end - i, mark
        number[i:end] = g
        i = end
    return number, slot_of[:n_groups].copy()


@kernel
def columns_of(order: Ints, first: Ints, bounds: GridBounds, spared: Numbers) -> tuple[Ints, Numbers]:
    """Return the columns that any box of each group bounds, except the spared one; at least one per group."""
    n_groups = len(first) - 1
    column_at = np.zeros(n_groups + 1, np.int64)
    columns = np.empty(64, np.int32)
    seen = np.full(len(bounds.last), -1, np.int64)
    n = 0
    for g in range(n_groups):
        for i in range(first[g], first[g + 1]):
            for b in range(bounds.indptr[order[i]], bounds.indptr[order[i] + 1]):
                c = bounds.column[b]
                if seen[c] == g or c == spared[g] or (bounds.lo[b] == 0 and bounds.hi[b] >= bounds.last[c]):
                    continue
                seen[c] = g
                columns = _with_room(columns, n, 1)
                columns[n] = c
                n += 1
        if n == column_at[g]:
            columns = _with_room(columns, n, 1)
            columns[n] = len(bounds.last) - 1
            n += 1
        column_at[g + 1] = n
    return column_at, columns[:n].copy()


@kernel
def _with_room(array: NDArray[Any], n: int, more: int) -> NDArray[Any]:
    """Return an array with room for `more` entries after its first n."""
    if n + more <= len(array):
        return array
    longer = np.empty(2 * (n + more), array.dtype)
    longer[:n] = array[:n]
    return longer


@kernel
def _spread(boxes: Ints, columns: Numbers, bounds: GridBounds, place: Numbers) -> tuple[Codes, Codes]:
    """Return lower and upper codes of a group's boxes, a row per column; `place` is -1 before and after."""
    lo = np.zeros((len(columns), len(boxes)), bounds.lo.dtype)
    hi = np.zeros((len(columns), len(boxes)), bounds.lo.dtype)
    for j in range(len(columns)):
        place[columns[j]] = j
        hi[j, :] = bounds.last[columns[j]]
    for i in range(len(boxes)):
        for b in range(bounds.indptr[boxes[i]], bounds.indptr[boxes[i] + 1]):
            j = place[bounds.column[b]]
            if j >= 0:
                lo[j, i] = bounds.lo[b]
                hi[j, i] = bounds.hi[b]
    for c in columns:
        place[c] = -1
    return lo, hi


@kernel
def _ends(lo: Codes, hi: Codes, last: int, events: Codes) -> Codes:
    """Return a sorted sample of box ends along a column and, with events, as many codes of events."""
    step = max(1, 2 * len(lo) // _ENDS)
    ends = np.empty(4 * (len(lo) // step + 1), lo.dtype)
    n = 0
    for i in range(0, len(lo), step):
        if lo[i] > 0:
            ends[n] = lo[i]
            n += 1
        if hi[i] < last:
            ends[n] = hi[i]
            n += 1
    if len(events):
        for i in range(n):
            ends[n + i] = min(events[i * len(events) // n], last - 1)
        n *= 2
    return np.sort(ends[:n])


@kernel
def _shape(n_boxes: int, width: NDArray[np.float64], most: int, copies: float) -> Ints:
    """Return the number of cells along each axis that minimises the chunks per event.

    Boxes take a share of each axis, `width` on average, and so are in 1 + k * width of k cells. A box is
    stored at most `copies` times on average, including padding, which is half a chunk per cell.
    """
    best = np.ones(AXES, np.int64)
    least = float((n_boxes + LANES - 1) // LANES)
    room, half = copies * n_boxes, LANES / 2
    i = 1
    while i <= most and i * half <= room:
        a = n_boxes * (1.0 + i * width[0] if i > 1 else 1.0)
        j = 1
        while j <= i and a + i * j * half <= room:
            b = a * (1.0 + j * width[1] if j > 1 else 1.0)
            k = 1
            while k <= j:
                c = b * (1.0 + k * width[2] if k > 1 else 1.0)
                if c + i * j * k * half > room:
                    break
                chunks = c / (i * j * k * LANES) + 0.5
                # locating the cell has a cost, too
                if chunks + 0.25 < least:
                    least = chunks
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
    bounds: GridBounds,
    sample: Codes,
    sample_at: Ints,
    cells: int,
    copies: float,
) -> tuple[Ints, Codes]:
    """Return `GridArrays.group` and `GridArrays.cut`, before chunks are placed.

    The narrowest columns become axes and are put last: within a cell the other columns separate boxes better.
    If there are others, boxes are sorted along the first, so that chunks differ in it; otherwise they keep
    their order. Group g has the events of the sample from `sample_at[g, 0]` to `sample_at[g, 1]`.
    """
    n_groups = len(first) - 1
    group = np.zeros((n_groups, N_FIELDS), np.int64)
    cuts = np.empty(SPAN, bounds.lo.dtype)
    n_cuts, n_starts = 0, 0
    place = np.full(len(bounds.last), -1, np.int32)
    for g in range(n_groups):
        fields, boxes = group[g], order[first[g] : first[g + 1]]
        own = columns[column_at[g] : column_at[g + 1]]
        events = sample[sample_at[g, 0] : sample_at[g, 1]]
        fields[COLUMN_AT], fields[N_COLUMNS], fields[START_AT] = column_at[g], len(own), n_starts
        fields[CELLS : CELLS + AXES] = 1
        lo, hi = _spread(boxes, own, bounds, place)
        width = np.ones(len(own))
        step = max(1, len(boxes) // _BOXES)
        for j in range(len(own)):
            ends = _ends(lo[j], hi[j], bounds.last[own[j]], events[:, own[j]])
            if len(ends):
                among = np.searchsorted(ends, hi[j, ::step]) - np.searchsorted(ends, lo[j, ::step])
                width[j] = among.mean() / len(ends)
        rank = np.argsort(width)
        n_axes = min(AXES, len(own))
        narrow = np.full(AXES, 1e9)
        narrow[:n_axes] = width[rank[:n_axes]]
        shape = _shape(len(boxes), narrow, cells if n_axes > 1 else cells * cells, copies)
        n_cells = 1
        for axis in range(n_axes):
            j, at = rank[axis], n_cuts
            cuts = _with_room(cuts, n_cuts, shape[axis] + LANES)
            ends = _ends(lo[j], hi[j], bounds.last[own[j]], events[:, own[j]])
            for i in range(1, shape[axis]):
                cut = ends[i * len(ends) // shape[axis]]
                if n_cuts == at or cut > cuts[n_cuts - 1]:
                    cuts[n_cuts] = cut
                    n_cuts += 1
            fields[CUT_AT + axis], fields[CELLS + axis], fields[AXIS + axis] = at, n_cuts - at + 1, own[j]
            n_cells *= n_cuts - at + 1
            while (n_cuts - at) % LANES:
                cuts[n_cuts] = np.iinfo(cuts.dtype).max
                n_cuts += 1
        n_starts += n_cells + 1
        own[:] = own[np.concatenate((rank[n_axes:], rank[:n_axes][::-1]))]
        if len(own) > AXES:
            boxes[:] = boxes[np.argsort(lo[rank[AXES]].astype(np.int64) + hi[rank[AXES]])]
    return group, cuts[:n_cuts].copy()


@kernel
def _cell(cuts: Codes, at: int, n_cells: int, code: Any) -> int:
    """Return the index of a code's cell along an axis: the number of cuts from `at` on below the code."""
    cell = 0
    for i in range(at, at + n_cells - 1, LANES):
        cell += population(_below(cuts, i, code))
    return cell


@kernel
def lay(grid: GridArrays, order: Ints, first: Ints, bounds: GridBounds, write: bool) -> None:
    """Write every box into `grid.chunk`, once for each cell it overlaps; without `write` only count chunks.

    The counts are stored in `grid.start`: the first chunk of each cell.
    """
    place = np.full(len(bounds.last), -1, np.int32)
    begin, end = np.zeros(AXES, np.int64), np.ones(AXES, np.int64)
    for g in range(len(grid.group)):
        fields, boxes = grid.group[g], order[first[g] : first[g + 1]]
        n_columns, cells = fields[N_COLUMNS], fields[CELLS : CELLS + AXES]
        n_cells = cells[0] * cells[1] * cells[2]
        start = grid.start[fields[START_AT] : fields[START_AT] + n_cells + 1]
        own = grid.column[fields[COLUMN_AT] : fields[COLUMN_AT] + n_columns]
        lo, hi = _spread(boxes, own, bounds, place)
        filled = np.zeros(n_cells, np.int64)
        begin[:], end[:] = 0, 1
        for i in range(len(boxes)):
            for axis in range(min(AXES, n_columns)):
                j, at = n_columns - 1 - axis, fields[CUT_AT + axis]
                begin[axis] = _cell(grid.cut, at, cells[axis], lo.dtype.type(lo[j, i] + 1))
                end[axis] = _cell(grid.cut, at, cells[axis], hi[j, i]) + 1
            for a in range(begin[0], end[0]):
                for b in range(begin[1], end[1]):
                    for c in range(begin[2], end[2]):
                        cell = (a * cells[1] + b) * cells[2] + c
                        n = filled[cell]
                        filled[cell] += 1
                        if not write:
                            continue
                        chunk = start[cell] + n // LANES
                        at = fields[CHUNK_AT] + chunk * (n_columns + 1) * SPAN + n % LANES
                        for j in range(n_columns):
                            grid.chunk[at] = lo[j, i]
                            grid.chunk[at + LANES] = hi[j, i]
                            at += SPAN
                        grid.chunk[at] = boxes[i] & 0xFFFF
                        grid.chunk[at + LANES] = boxes[i] >> 16
        if not write:
            for cell in range(n_cells):
                start[cell + 1] = start[cell] + (filled[cell] + LANES - 1) // LANES


@kernel
def scan(
    grid: GridArrays,
    runs: Ints,
    event: Numbers,
    codes: Codes,
    do: int,
    counts: Ints,
    pair_event: Numbers,
    pair_box: Numbers,
    flags: Words,
) -> int:
    """Find the boxes that contain each event; return the number of pairs written, or -1 if they did not fit.

    Each row of `runs` is a slot and a range of events to compare with its groups. The events are columns of
    `codes`; their numbers are in `event`.
    Results are counted by event, or written as pairs, or set in the event's row of flags.
    """
    n_pairs = 0
    cut, chunk = grid.cut, grid.chunk
    room = len(pair_box) - LANES
    begin, end = np.empty(len(event), np.int32), np.empty(len(event), np.int32)
    for r in range(len(runs)):
        for g in range(grid.slot[runs[r, 0]], grid.slot[runs[r, 0] + 1]):
            fields, start = grid.group[g], grid.start[grid.group[g, START_AT] :]
            n_columns, chunk_at = fields[N_COLUMNS], fields[CHUNK_AT]
            own = grid.column[fields[COLUMN_AT] : fields[COLUMN_AT] + n_columns]
            size = (n_columns + 1) * SPAN
            a, b, c = codes[fields[AXIS]], codes[fields[AXIS + 1]], codes[fields[AXIS + 2]]
            cut_a, cut_b, cut_c = fields[CUT_AT], fields[CUT_AT + 1], fields[CUT_AT + 2]
            cells_a, cells_b, cells_c = fields[CELLS], fields[CELLS + 1], fields[CELLS + 2]
            for e in range(runs[r, 1], runs[r, 2]):
                cell = _cell(cut, cut_a, cells_a, a[e])
                cell = cell * cells_b + _cell(cut, cut_b, cells_b, b[e])
                cell = cell * cells_c + _cell(cut, cut_c, cells_c, c[e])
                begin[e], end[e] = start[cell], start[cell + 1]
            for e in range(runs[r, 1], runs[r, 2]):
                for at in range(chunk_at + begin[e] * size, chunk_at + end[e] * size, size):
                    # comparing three columns at once is cheaper than branching after each
                    code = codes[own[0], e]
                    lanes = _below(chunk, at, code) & ~_below(chunk, at + LANES, code)
                    if n_columns > 1:
                        code, to = codes[own[1], e], at + SPAN
                        lanes &= _below(chunk, to, code) & ~_below(chunk, to + LANES, code)
                    if n_columns > 2:
                        code, to = codes[own[2], e], at + 2 * SPAN
                        lanes &= _below(chunk, to, code) & ~_below(chunk, to + LANES, code)
                    for j in range(3, n_columns):
                        if lanes == 0:
                            break
                        code, to = codes[own[j], e], at + j * SPAN
                        lanes &= _below(chunk, to, code) & ~_below(chunk, to + LANES, code)
                    if lanes == 0:
                        continue
                    if do == COUNT:
                        counts[event[e]] += population(lanes)
                        continue
                    if do == PAIRS and n_pairs > room:
                        return -1
                    while lanes:
                        lane = at + size - SPAN + lowest(lanes)
                        lanes &= lanes - _ONE
                        box = np.int64(chunk[lane]) | (np.int64(chunk[lane + LANES]) << 16)
                        if do == PAIRS:
                            pair_event[n_pairs] = event[e]
                            pair_box[n_pairs] = box
                            n_pairs += 1
                        else:
                            flags[event[e], box >> 6] |= _ONE << np.uint64(box & 63)
    return n_pairs
