"""Lookups on a ring of machines, each with links to some others ahead and a cache of recent targets.

Machines are places 0 to n - 1; a path only goes forward on the ring, and never past its target.
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
    """Return the hops of a greedy lookup, by the longest link each, over a distance of `left`."""
    n, hops = len(away), 0
    while left > 0:
        step = 1  # the next machine is always known
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
        For each machine the distances to the machines it has links to, ascending.
    source, target
        First and last place of each lookup.
    """
    found = np.empty(len(source), np.int64)
    for i in range(len(source)):
        found[i] = _way(away, source[i], (target[i] - source[i]) % len(away))
    return found


@kernel
def recalled(away: Numbers, source: Ints, target: Ints, recent: Ints, asker: Ints) -> Ints:
    """Return the hops of consecutive lookups by machines that cache the targets of their last lookups.

    Parameters
    ----------
    away, source, target
        As for `ways`.
    recent
        For each asking machine the targets of its last lookups, the latest first; -1 for unused places.
        Updated in place.
    asker
        The row in `recent` of each lookup's source.
    """
    n, room = len(away), recent.shape[1]
    found = np.empty(len(source), np.int64)
    for i in range(len(source)):
        p, t, mine = source[i], target[i], recent[asker[i]]
        left = (t - p) % n
        if left == 0:
            found[i] = 0
            continue
        # The first hop may go to a cached machine, if that is further ahead than any link.
        step = 1
        for j in range(away.shape[1] - 1, -1, -1):
            if away[p, j] <= left:
                step = max(step, away[p, j])
                break
        where = room - 1  # the oldest entry is dropped, unless the target is cached already
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
