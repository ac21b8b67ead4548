"""Assignment of rows without usable coordinates to the smallest clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

__all__ = ["assign_parts", "assign_rows"]


def assign_parts(size: Ints, lost: Ints) -> tuple[Ints, Ints]:
    """Assign connected parts, one after the other, to the cluster that is smallest at that time.

    Parameters
    ----------
    size
        Number of members of each cluster.
    lost
        Number of rows to assign of each part; the rows of a part stay together.

    Returns
    -------
    The cluster of each part, and the size of each cluster afterwards.

    Examples
    --------
    >>> home, size = assign_parts(np.array([4, 1, 2]), np.array([3, 0, 1]))
    >>> home.tolist(), size.tolist()
    ([1, 2, 2], [4, 4, 3])
    """
    size, home = size.copy(), np.zeros(len(lost), np.int64)
    for part, count in enumerate(lost.tolist()):
        home[part] = size.argmin()
        size[home[part]] += count
    return home, size


def assign_rows(size: Ints, count: int) -> Ints:
    """Assign single rows, one after the other, to the smallest cluster at that time (the first of equals).

    Parameters
    ----------
    size
        Number of members of each cluster.
    count
        Number of rows to assign.

    Examples
    --------
    >>> assign_rows(np.array([4, 1, 2]), 4).tolist()
    [1, 1, 2, 1]
    """
    if count == 0:
        return np.zeros(0, np.int64)
    order = np.argsort(size, kind="stable")
    here = size[order]
    # need[j]: rows that raise the j smallest clusters to the size of the next one.
    need = here * np.arange(len(here)) - np.append(0, np.cumsum(here)[:-1])
    j = int(np.searchsorted(need, count, side="left"))
    level = here[:j].max()
    level += (count - int((level - here[:j]).sum())) // j
    turns = [np.repeat(order[:j], level - here[:j])]
    left = count - len(turns[0])
    turns.append(np.sort(order[:j])[:left])
    which = np.concatenate(turns)
    # Rows are assigned in the order of the cluster's size at that time.
    nth = np.concatenate([np.arange(a, level) for a in here[:j]] + [np.full(left, level)])
    return np.asarray(which[np.lexsort((which, nth))], np.int64)
