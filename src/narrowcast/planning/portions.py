"""Clusters of subscribers who are in many places: each portion moves by itself, and counts add up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.planning.audiences import Audiences, Tally, most_of

if TYPE_CHECKING:
    from narrowcast.planning.audiences import Doubles, Ints, Rows

#: Of a portion so many may move in a round: others, elsewhere, see the same clusters and move as well.
_SHARE = 0.5


def place_portion(
    rows: Rows, weight: Doubles, sample: Tally, *, times: float, balance: float | None, key: list[int]
) -> Ints:
    """Return where subscribers of a portion cost least, beside a sample that stands for all.

    Each portion keeps the balance by itself, so that all of them together do.

    Parameters
    ----------
    rows, weight
        What each wants, and the rates of flows: see `Audiences`.
    sample
        The clusters of the sample.
    times
        How many each of the sample stands for.
    balance
        How many times the mean a cluster may have members at most; None for any number.
    key
        What the order is drawn from; each portion has its own.
    """
    n, k = len(rows[0]) - 1, len(sample.size)
    scaled = Tally(sample.count, np.rint(times * sample.size).astype(np.int64))
    found = Audiences(rows, weight, k).beside(scaled, np.full(k, most_of(n, k, balance)))
    found.fill(np.random.default_rng(key).permutation(n))
    return found.cluster


def move_portion(
    rows: Rows, weight: Doubles, cluster: Ints, tally: Tally, quota: Ints, *, key: list[int], q: float = 1.0
) -> tuple[Ints, int]:
    """Return where subscribers of a portion are after some have moved where they cost less, and how many.

    Parameters
    ----------
    rows, weight
        What each wants, and the rates of flows: see `Audiences`.
    cluster
        Where they are.
    tally
        What clusters have in all, this portion included.
    quota
        How many more each cluster may take from here.
    key
        What is drawn from who may move, and in which order; each portion and round has its own.
    q
        With which probability each want counts: see `Direct`.
    """
    found = Audiences(rows, weight, len(tally.size))
    found.cluster[:] = cluster
    found.beside(tally, quota, q)
    order = np.random.default_rng(key).permutation(len(cluster))
    [moved] = found.settle(order[: max(1, round(_SHARE * len(order)))], 1) if len(order) else [0]
    return found.cluster, moved


def quota_of(free: Ints, portion: int, n_portions: int, turn: int) -> Ints:
    """Return how many of the free places in each cluster a portion may take; all portions share them.

    Examples
    --------
    >>> free = np.array([7, 0, 1])
    >>> [quota_of(free, portion, 3, turn=0).tolist() for portion in range(3)]
    [[3, 0, 0], [2, 0, 0], [2, 0, 1]]
    """
    each, rest = np.divmod(np.maximum(free, 0), n_portions)
    place = (portion - turn - np.arange(len(free))) % n_portions
    return np.asarray(each + (place < rest), np.int64)
