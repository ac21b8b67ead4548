"""Groups of rows, each connected by events that its members share (tariq2012, section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import csr_array

from narrowcast.lab.spectral.parts import ConnectedParts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.relation import Relation

    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]

__all__ = ["RowGroups", "admitting_groups", "connected_groups", "even_groups", "main", "random_groups"]


@dataclass(frozen=True, slots=True, eq=False)
class RowGroups:
    """Rows in groups.

    Parameters
    ----------
    group
        The group number of each row.
    reach
        Groups x events: whether any member of the group's main part matched the event. The main part is the
        largest connected one.
    loose
        For each row whether it is outside the main part of its group and shares no event with any main part.
    """

    group: Ints
    reach: Bools
    loose: Bools

    def members(self, number: int) -> Ints:
        """Return the rows of a group."""
        return np.flatnonzero(self.group == number)


def even_groups(n_rows: int, n_groups: int, rng: np.random.Generator) -> Ints:
    """Return a random group for each row; sizes of groups differ by at most 1."""
    return rng.permutation(np.arange(n_rows) % max(n_groups, 1))


def main(rows: Relation) -> Bools:
    """Return which rows of a group are in its largest connected part; of equal ones, that of the first row.

    Examples
    --------
    >>> from narrowcast.model.relation import relation
    >>> main(relation([[1, 0, 0], [0, 1, 0], [0, 1, 1], [0, 0, 0]])).tolist()
    [False, True, True, False]
    """
    return np.asarray(ConnectedParts.of(rows).row == 0)


def admitting_groups(rows: Relation, first: Ints, reach: Bools) -> Ints:
    """Return the group that admits each row: the first one that shares an event, in cyclic order.

    Parameters
    ----------
    rows
        Histories.
    first
        The first group that is tried for each row.
    reach
        Groups x events: what the main part of each group matched.

    Returns
    -------
    The number of the group, -1 if no group shares an event.
    """
    n_groups = len(reach)
    shares = (rows.astype(np.int32) @ csr_array(reach.T.astype(np.int32))).toarray() > 0
    turn = (first[:, None] + np.arange(n_groups)) % n_groups
    asked = np.take_along_axis(shares, turn, axis=1)
    found = turn[np.arange(len(turn)), asked.argmax(axis=1)]
    return np.where(asked.any(axis=1), found, -1)


def random_groups(rows: Relation, n_groups: int, rng: np.random.Generator) -> RowGroups:
    """Return random groups, changed such that each is connected.

    Rows are first assigned to groups of even size at random. A row outside the largest connected part of its
    group moves to the next group, in cyclic order, whose main part it shares an event with. A row that shares
    none with any stays, and is loose.

    Parameters
    ----------
    rows
        Histories.
    n_groups
        Number of groups; fewer if there are fewer rows.
    rng
        Generator of random choices.

    Examples
    --------
    >>> from narrowcast.model.relation import relation
    >>> found = random_groups(relation([[1, 1, 0]] * 5 + [[0, 0, 1]]), 2, np.random.default_rng(0))
    >>> np.bincount(found.group).tolist(), found.loose.tolist()
    ([3, 3], [False, False, False, False, False, True])
    """
    n_groups = max(min(n_groups, rows.shape[0]), 1)
    return connected_groups(rows, even_groups(rows.shape[0], n_groups, rng), n_groups)


def connected_groups(rows: Relation, first: Ints, n_groups: int) -> RowGroups:
    """Return connected groups, given the initial group of each row: see `random_groups`."""
    group = first.copy()
    reach = np.zeros((n_groups, rows.shape[1]), np.bool_)
    outside = np.zeros(rows.shape[0], np.bool_)
    for number in range(n_groups):
        members = np.flatnonzero(group == number)
        inside = main(rows[members])
        outside[members[~inside]] = True
        reach[number, rows[members[inside]].indices] = True
    asking = np.flatnonzero(outside)
    to = admitting_groups(rows[asking], (group[asking] + 1) % n_groups, reach)
    group[asking[to >= 0]] = to[to >= 0]
    loose = np.zeros(rows.shape[0], np.bool_)
    loose[asking[to < 0]] = True
    for number in range(n_groups):
        joined = asking[to == number]
        reach[number, rows[joined].indices] = True
    return RowGroups(group, reach, loose)
