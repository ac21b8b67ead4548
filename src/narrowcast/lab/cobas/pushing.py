"""Interval division: parts of a node's intervals are pushed down to its subtree (cobas2009, section IV-A)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from narrowcast.lab.cobas.intervals import IntervalColumns, following, preceding
from narrowcast.lab.kernels import cobas as kernels
from narrowcast.lab.kernels.cobas import HEIGHT, KEY, LEFT, RIGHT
from narrowcast.lab.kernels.cobas_lists import neighbours
from narrowcast.validation import check_choice

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.lab.cobas.store import TreeArrays

    Numbers = NDArray[np.int32]

Side = Literal["left", "right"]


def push(store: TreeArrays, node: int, side: Side) -> int:
    """Cut the intervals of a node at its key, and push the part on one side down; return the number of cuts.

    The cut is half open: at key 2, [0, 4] is cut into [0, 2), which goes left, and [2, 4], or into (2, 4],
    which goes right, and [0, 2]. (The paper's [0, 2] and [2, 4] both contain 2: an event would be delivered
    twice.) A part moves to the highest key that it covers in the subtree. A part that would cover none is not
    cut off.
    """
    check_side(side)
    nearest = store.outermost(node, LEFT if side == "left" else RIGHT)
    if nearest is None:
        return 0
    key, at = store.number[node, KEY], store.span(node)
    if side == "left":
        n = int(np.searchsorted(store.lower_end[at], nearest, side="right"))
        cut = store.lower[at][:n].copy()
    else:
        n = int(np.searchsorted(-store.upper_end[at], -nearest, side="right"))
        cut = store.upper[at][:n].copy()
    if n == 0:
        return 0
    store.detach(cut)
    part = store.take(n)
    store.owner[part] = store.owner[cut]
    store.after[part], store.after[cut] = store.after[cut], part
    if side == "left":
        store.first[part], store.last[part] = store.first[cut], preceding(key)
        store.first[cut] = key
    else:
        store.first[part], store.last[part] = following(key), store.last[cut]
        store.last[cut] = key
    store.attach(store.by_first(np.concatenate([cut, part])))
    return n


def undo(store: TreeArrays, node: int, side: Side) -> int:
    """Join segments of one interval that meet on one side of a key; return the number of joins.

    Right after a push this restores the former state. Parts that were cut again further down stay cut there,
    and only the part next to the key is joined; the joined segment moves to the highest key that it covers.
    """
    check_side(side)
    key = store.number[node, KEY]
    path = np.empty(int(store.link[store.root, HEIGHT]), np.int64)
    n = kernels.way(store.frozen(), store.root, key, kernels.TOPDOWN, path)
    ends, segments = (store.lower_end, store.lower) if side == "left" else (store.upper_end, store.upper)
    parts = []
    for above in path[:n].tolist():  # segments that end at the key are on the path to it
        at = store.span(above)
        parts.append(segments[at][ends[at] == key])
    joined = np.concatenate(parts)
    chains = (store.head, store.after, store.owner)
    if side == "left":
        other = neighbours(*chains, store.last, joined, float(preceding(key)))
    else:
        other = neighbours(*chains, store.first, joined, float(following(key)))
    joined, other = joined[other >= 0], other[other >= 0]
    if len(joined) == 0:
        return 0
    store.detach(np.concatenate([joined, other]))
    if side == "left":
        store.first[joined] = store.first[other]
    else:
        store.last[joined] = store.last[other]
    store.drop(other)
    store.attach(store.by_first(joined))
    return len(joined)


def ends(store: TreeArrays, segment: Numbers) -> IntervalColumns:
    """Return segments as intervals, with the original ends or those made by cuts.

    A cut leaves the key with the part that stays and opens the other, so an end that is not a key is open.
    """
    owner = store.owner[segment]
    whole = IntervalColumns(
        store.low[owner], store.high[owner], store.low_closed[owner], store.high_closed[owner]
    )
    first, last = store.first[segment], store.last[segment]
    low_cut, high_cut = first != whole.first, last != whole.last
    low_key, high_key = np.isin(first, store.keys), np.isin(last, store.keys)
    return IntervalColumns(
        np.where(low_cut & ~low_key, preceding(first), np.where(low_cut, first, whole.low)),
        np.where(high_cut & ~high_key, following(last), np.where(high_cut, last, whole.high)),
        np.where(low_cut, low_key, whole.low_closed),
        np.where(high_cut, high_key, whole.high_closed),
    )


def check_side(side: str) -> None:
    """Refuse a side other than `left` and `right`."""
    check_choice("side", side, get_args(Side))
