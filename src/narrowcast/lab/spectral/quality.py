"""How good clusters are: how even, how near to ideal ones, and what members get of events in vain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array, issparse

from narrowcast.errors import ParameterError
from narrowcast.model.matches import Matches
from narrowcast.model.relation import relation, relation_of, rows_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from narrowcast.model.relation import Relation

    Ints = NDArray[np.int64]

__all__ = ["Reception", "accuracy", "balance", "entropy", "received"]

#: The most pairs of events and members in a block.
_BLOCK = 1 << 22


def balance(label: ArrayLike, n_clusters: int | None = None) -> float:
    """Return how many times the mean the largest cluster has members.

    Parameters
    ----------
    label
        For each member the number of its cluster.
    n_clusters
        How many clusters there are, empty ones among them; where left out, those with members.

    Examples
    --------
    >>> balance([0, 0, 0, 2]), balance([0, 0, 0, 2], 3)
    (1.5, 2.25)
    """
    number = _labels(label)
    size = np.bincount(number)
    if n_clusters is None:
        n_clusters = int(np.count_nonzero(size))
    elif len(size) > n_clusters:
        raise ParameterError(f"label {len(size) - 1} is beyond the {n_clusters} clusters; count from 0")
    return float(size.max() * n_clusters / len(number)) if len(number) else 1.0


def entropy(label: ArrayLike, ideal: ArrayLike) -> float:
    """Return how mixed clusters are: 0 where each has members of one ideal cluster, 1 where of all alike.

    It is the mean over members of the entropy of the ideal labels in their cluster, by the logarithm of the
    number of ideal clusters.

    Parameters
    ----------
    label, ideal
        For each member the number of its cluster, and of that where it should be.

    Examples
    --------
    >>> entropy([0, 0, 1, 1], [1, 1, 0, 0]), entropy([0, 0, 1, 1], [0, 1, 0, 1])
    (0.0, 1.0)
    """
    both = _table(label, ideal)
    if both.shape[1] < 2:
        return 0.0
    size = both.sum(axis=1, keepdims=True)
    share = both / size
    bits = -share * np.log(np.where(both, share, 1.0))
    return float((bits * size).sum() / size.sum() / math.log(both.shape[1]))


def accuracy(label: ArrayLike, ideal: ArrayLike) -> float:
    """Return the share of members in the right cluster, clusters being matched one to one as well as can be.

    Parameters
    ----------
    label, ideal
        As for `entropy`.

    Examples
    --------
    >>> accuracy([0, 0, 0, 1], [7, 7, 3, 3])
    0.75
    """
    both = _table(label, ideal)
    return float(both[linear_sum_assignment(both, maximize=True)].sum() / both.sum()) if both.size else 1.0


def _labels(label: ArrayLike) -> Ints:
    """Return the numbers of clusters, all at least 0."""
    number = np.asarray(label)
    if number.ndim != 1 or (number.size and not np.issubdtype(number.dtype, np.integer)):
        raise ParameterError(f"labels have shape {number.shape} and type {number.dtype}; give whole numbers")
    wrong = np.flatnonzero(number < 0)
    if len(wrong):
        raise ParameterError(f"member {wrong[0]} has label {number[wrong[0]]}; put it into a cluster, from 0")
    return number.astype(np.int64)


def _table(label: ArrayLike, ideal: ArrayLike) -> Ints:
    """Return how many members each cluster (rows) has of each ideal one; without clusters that are empty."""
    one, other = _labels(label), _labels(ideal)
    if len(one) != len(other):
        raise ParameterError(f"{len(one)} labels and {len(other)} ideal ones; give both for each member")
    (rows, row), (columns, column) = (np.unique(each, return_inverse=True) for each in (one, other))
    found = np.bincount(row * len(columns) + column, minlength=len(rows) * len(columns))
    return found.reshape(len(rows), len(columns))


@dataclass(frozen=True, slots=True)
class Reception:
    """What members of clusters got of some events.

    Parameters
    ----------
    matches
        How many pairs of event and member there are such that the member wants the event.
    receptions
        How many messages members got; somebody in two clusters that an event is sent to gets it twice.
    reached
        How many pairs there are such that the member got the event, once or more often.
    """

    matches: int
    receptions: int
    reached: int

    @property
    def false_positives(self) -> int:
        """Pairs of event and member such that the member got what it does not want."""
        return self.reached - self.matches

    @property
    def rate(self) -> float:
        """The share of false positives in what was reached; 0 where nothing was."""
        return self.false_positives / self.reached if self.reached else 0.0

    def notification_cost(self, control: float = 0.0) -> float:
        """Return how many messages there were for one that was wanted, those of control among them."""
        if self.matches:
            return (self.receptions + control) / self.matches
        return math.inf if self.receptions + control else 0.0


def received(matches: Any, clusters: Any, *, peers: ArrayLike | None = None) -> Reception:
    """Return what members get when each event is sent to every cluster in which somebody wants it.

    Parameters
    ----------
    matches
        Which subscriptions each event matches: `Matches`, or a matrix of events x subscriptions. Of events
        that clusters were made from it says little: give others.
    clusters
        For each subscription the number of its cluster; or, where one may be in several, a relation of
        subscriptions x clusters. Each is in one at least.
    peers
        For each subscription whose it is. Then members are peers, who are in the clusters of all of their
        subscriptions, and want what any of these matches. Where left out, members are subscriptions.

    Examples
    --------
    >>> matches = [[1, 0, 0, 0], [1, 1, 0, 1]]
    >>> received(matches, [0, 0, 1, 1])
    Reception(matches=4, receptions=6, reached=6)
    >>> found = received(matches, [0, 0, 1, 1], peers=[0, 1, 1, 1])
    >>> found, found.false_positives
    (Reception(matches=3, receptions=5, reached=4), 1)
    """
    joined = _joined(clusters)
    wanted = _wanted(matches, joined.shape[0])
    hit = relation(wanted @ joined)
    members, n_matches = joined, wanted.nnz
    if peers is not None:
        owner = _labels(peers)
        if len(owner) != joined.shape[0]:
            raise ParameterError(f"{len(owner)} peers for {joined.shape[0]} subscriptions; give one for each")
        n_peers = int(owner.max(initial=-1)) + 1
        members = relation_of(owner[rows_of(joined)], joined.indices, (n_peers, joined.shape[1]))
        own = relation_of(rows_of(wanted), owner[wanted.indices], (wanted.shape[0], n_peers))
        n_matches = own.nnz
    sent = np.bincount(hit.indices, minlength=hit.shape[1]).astype(np.int64)
    several = np.diff(members.indptr) > 1
    copies = np.bincount(rows_of(members), sent[members.indices], members.shape[0])
    return Reception(
        n_matches,
        int(copies.sum()),
        int(copies[~several].sum()) + _pairs(hit, members[np.flatnonzero(several)]),
    )


def _pairs(hit: Relation, members: Relation) -> int:
    """Return how many pairs of event and member there are such that a cluster of the member is sent to."""
    held = members.T.tocsr()
    size = max(1, _BLOCK // max(members.shape[0], 1))
    return sum(int((hit[start : start + size] @ held).nnz) for start in range(0, hit.shape[0], size))


def _joined(clusters: Any) -> Relation:
    """Return subscriptions x clusters, each subscription in one at least."""
    if not issparse(clusters) and np.ndim(clusters) == 1:
        label = _labels(clusters)
        return relation_of(np.arange(len(label)), label, (len(label), int(label.max(initial=-1)) + 1))
    joined = relation(clusters)
    nowhere = np.flatnonzero(np.diff(joined.indptr) == 0)
    if len(nowhere):
        raise ParameterError(f"subscription {nowhere[0]} is in no cluster; put each into one at least")
    return joined


def _wanted(matches: Any, n_subscriptions: int) -> Relation:
    """Return events x subscriptions."""
    if isinstance(matches, Matches):
        if matches.index.max(initial=-1) >= n_subscriptions:
            raise ParameterError(
                f"subscription {matches.index.max()} is matched, and {n_subscriptions} are in clusters; "
                "put each into one at least"
            )
        shape = (matches.n_events, n_subscriptions)
        return relation(
            csr_array((np.ones(matches.n_pairs, bool), matches.index, matches.indptr), shape=shape)
        )
    wanted = relation(matches)
    if wanted.shape[1] != n_subscriptions:
        raise ParameterError(
            f"matches are of {wanted.shape[1]} subscriptions, and {n_subscriptions} are in clusters; "
            "give both for the same"
        )
    return wanted
