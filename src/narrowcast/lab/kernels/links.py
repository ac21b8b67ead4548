"""Lookups on a circle of machines, each of which knows a few others further on, and what was seen lately.

Machines are places 0 to n - 1; a way only ever goes on round the circle, and never past its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]


@kernel
def _way(away: Numbers, at: int, left: int) -> int:
    """Return the hops of a lookup that is at a place and has so far to go: greedy, by the longest link."""
    n, hops = len(away), 0
    while left > 0:
        step = 1  # whoever comes next is always known
        for j in range(away.shape[1] - 1, -1, -1):
            if away[at, j] <= left:
                step = away[at, j]
                break
        at = (at + step) % n
        left -= step
        hops += 1
    return hops


@kernel
def ways(away: Numbers, source: Ints, target: Ints) -> Ints:
    """Return the hops of each lookup.

    Parameters
    ----------
    away
        How far on the machines are that each knows, ascending.
    source, target
        Where each lookup begins and ends.
    """
    found = np.empty(len(source), np.int64)
    for i in range(len(source)):
        found[i] = _way(away, source[i], (target[i] - source[i]) % len(away))
    return found


@kernel
def recalled(away: Numbers, source: Ints, target: Ints, recent: Ints, asker: Ints) -> Ints:
    """Return the hops of lookups, one after the other, whose askers recall where the last ones ended.

    Parameters
    ----------
    away, source, target
        As for `ways`.
    recent
        For each asker the places where its last lookups ended, the latest first; -1 where there was none. It
        is brought up to date.
    asker
        The row of each lookup's source in `recent`.
    """
    n, room = len(away), recent.shape[1]
    found = np.empty(len(source), np.int64)
    for i in range(len(source)):
        p, t, mine = source[i], target[i], recent[asker[i]]
        left = (t - p) % n
        if left == 0:
            found[i] = 0
            continue
        # The first hop may go to whoever is recalled, if that is further on than any link.
        step = 1
        for j in range(away.shape[1] - 1, -1, -1):
            if away[p, j] <= left:
                step = max(step, away[p, j])
                break
        where = room - 1  # the oldest goes, unless the end is among those recalled
        for j in range(room):
            if mine[j] < 0:
                where = j
                break
            if mine[j] == t:
                where, step = j, left
                break
            on = (mine[j] - p) % n
            if on <= left:
                step = max(step, on)
        for j in range(where, 0, -1):
            mine[j] = mine[j - 1]
        if room:
            mine[0] = t
        found[i] = 1 + _way(away, (p + step) % n, left - step)
    return found
