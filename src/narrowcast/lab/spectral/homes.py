"""Clusters for those whom no coordinates lead to one: the smallest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

__all__ = ["filled", "homes"]


def homes(size: Ints, lost: Ints) -> tuple[Ints, Ints]:
    """Return a cluster for each part, the smallest then, and how many members clusters have afterwards.

    Parameters
    ----------
    size
        How many members clusters have.
    lost
        How many of each part come: they stay together.

    Examples
    --------
    >>> home, size = homes(np.array([4, 1, 2]), np.array([3, 0, 1]))
    >>> home.tolist(), size.tolist()
    ([1, 2, 2], [4, 4, 3])
    """
    size, home = size.copy(), np.zeros(len(lost), np.int64)
    for part, count in enumerate(lost.tolist()):
        home[part] = size.argmin()
        size[home[part]] += count
    return home, size


def filled(size: Ints, count: int) -> Ints:
    """Return clusters for so many more members, each the smallest one then, of equals the first.

    Parameters
    ----------
    size
        How many members clusters have.
    count
        How many come.

    Examples
    --------
    >>> filled(np.array([4, 1, 2]), 4).tolist()
    [1, 1, 2, 1]
    """
    if count == 0:
        return np.zeros(0, np.int64)
    order = np.argsort(size, kind="stable")
    here = size[order]
    # With the first j clusters at the size of the last of them, so many have come.
    need = here * np.arange(len(here)) - np.append(0, np.cumsum(here)[:-1])
    j = int(np.searchsorted(need, count, side="left"))
    level = here[:j].max()
    level += (count - int((level - here[:j]).sum())) // j
    turns = [np.repeat(order[:j], level - here[:j])]
    left = count - len(turns[0])
    turns.append(np.sort(order[:j])[:left])
    which = np.concatenate(turns)
    # In the order in which they come: by the size that the cluster has then.
    nth = np.concatenate([np.arange(a, level) for a in here[:j]] + [np.full(left, level)])
    return np.asarray(which[np.lexsort((which, nth))], np.int64)
