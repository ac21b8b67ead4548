"""Quality of clusters: evenness, accuracy against ideal ones, and unwanted deliveries to members."""

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

#: Most pairs of events and members in a block.
_BLOCK = 1 << 22


def balance(label: ArrayLike, n_clusters: int | None = None) -> float:
    """Return the size of the largest cluster relative to the mean size.

    Parameters
    ----------
    label
        Cluster number of each member.
    n_clusters
        Number of clusters, empty ones included (default: those with members).

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
        raise ParameterError(parameter="label", value=len(size) - 1, limit=f"from 0 to {n_clusters - 1}")
    return float(size.max() * n_clusters / len(number)) if len(number) else 1.0


def entropy(label: ArrayLike, ideal: ArrayLike) -> float:
    """Return how mixed clusters are: 0 if each has members of one ideal cluster, 1 if of all in equal shares.

    It is the mean over members of the entropy of the ideal labels in their cluster, to the base of the number
    of ideal clusters.

    Parameters
    ----------
    label, ideal
        For each member the number of its cluster and of its ideal cluster.

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
    """Return the share of members in the right cluster, for the best one-to-one match of clusters.

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
    """Return cluster numbers as an array; refuse other values than integers of at least 0."""
    number = np.asarray(label)
    if number.ndim != 1 or (number.size and not np.issubdtype(number.dtype, np.integer)):
        raise ParameterError(
            f"label has shape {number.shape} and type {number.dtype}: must be a list of integers",
            parameter="label",
            value=str(number.dtype),
            limit="a list of integers",
        )
    wrong = np.flatnonzero(number < 0)
    if len(wrong):
        raise ParameterError(
            f"label of member {wrong[0]} is {number[wrong[0]]}: must be a cluster number of at least 0",
            parameter="label",
            value=int(number[wrong[0]]),
            limit="at least 0",
        )
    return number.astype(np.int64)


def _table(label: ArrayLike, ideal: ArrayLike) -> Ints:
    """Return a table of members by cluster (rows) and ideal cluster (columns), without empty clusters."""
    one, other = _labels(label), _labels(ideal)
    if len(one) != len(other):
        raise ParameterError(
            f"ideal has {len(other)} labels: must be {len(one)}, one for each member",
            parameter="ideal",
            value=len(other),
            limit=f"{len(one)} labels",
        )
    (rows, row), (columns, column) = (np.unique(each, return_inverse=True) for each in (one, other))
    found = np.bincount(row * len(columns) + column, minlength=len(rows) * len(columns))
    return found.reshape(len(rows), len(columns))


@dataclass(frozen=True, slots=True)
class Reception:
    """Deliveries of events to members of clusters.

    Parameters
    ----------
    matches
        Number of pairs of event and member such that the member wants the event.
    receptions
        Number of messages to members; a member of two clusters that an event is sent to gets it twice.
    reached
        Number of pairs of event and member such that the member got the event, at least once.
    """

    matches: int
    receptions: int
    reached: int

    @property
    def false_positives(self) -> int:
        """Number of pairs of event and member such that the member got an event it does not want."""
        return self.reached - self.matches

    @property
    def rate(self) -> float:
        """False positives as a share of the pairs reached; 0 if none is."""
        return self.false_positives / self.reached if self.reached else 0.0

    def notification_cost(self, control: float = 0.0) -> float:
        """Return the number of messages per wanted one, with `control` messages added."""
        if self.matches:
            return (self.receptions + control) / self.matches
        return math.inf if self.receptions + control else 0.0


def received(matches: Any, clusters: Any, *, peers: ArrayLike | None = None) -> Reception:
    """Count deliveries when each event is sent to every cluster with a member that wants it.

    Parameters
    ----------
    matches
        Subscriptions that each event matches: `Matches`, or a matrix of events x subscriptions. The events
        should not be those from which the clusters were made, which would bias the result.
    clusters
        Cluster number of each subscription; or, if a subscription may be in several, a relation of
        subscriptions x clusters. Each subscription must be in at least one.
    peers
        The peer that owns each subscription. Members are then peers, which are in the clusters of all their
        subscriptions and want all their matches (default: members are subscriptions).

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
            raise ParameterError(
                f"peers has {len(owner)} numbers: must be {joined.shape[0]}, one for each subscription",
                parameter="peers",
                value=len(owner),
                limit=f"{joined.shape[0]} numbers",
            )
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
    """Return the number of pairs of an event and a member of a cluster that it is sent to."""
    by_cluster = members.T.tocsr()
    size = max(1, _BLOCK // max(members.shape[0], 1))
    return sum(int((hit[start : start + size] @ by_cluster).nnz) for start in range(0, hit.shape[0], size))


def _joined(clusters: Any) -> Relation:
    """Return a relation of subscriptions x clusters; refuse subscriptions without a cluster."""
    if not issparse(clusters) and np.ndim(clusters) == 1:
        label = _labels(clusters)
        return relation_of(np.arange(len(label)), label, (len(label), int(label.max(initial=-1)) + 1))
    joined = relation(clusters)
    nowhere = np.flatnonzero(np.diff(joined.indptr) == 0)
    if len(nowhere):
        raise ParameterError(
            f"clusters: subscription {nowhere[0]} is in no cluster: must be in at least one",
            parameter="clusters",
            value=int(nowhere[0]),
            limit="at least one cluster for each subscription",
        )
    return joined


def _wanted(matches: Any, n_subscriptions: int) -> Relation:
    """Return a relation of events x subscriptions; refuse matches of subscriptions outside the clusters."""
    if isinstance(matches, Matches):
        if matches.index.max(initial=-1) >= n_subscriptions:
            raise ParameterError(
                f"matches has subscription {matches.index.max()}: must be below {n_subscriptions}",
                parameter="matches",
                value=int(matches.index.max()),
                limit=f"below {n_subscriptions}",
            )
        shape = (matches.n_events, n_subscriptions)
        return relation(
            csr_array((np.ones(matches.n_pairs, bool), matches.index, matches.indptr), shape=shape)
        )
    wanted = relation(matches)
    if wanted.shape[1] != n_subscriptions:
        raise ParameterError(
            f"matches has {wanted.shape[1]} subscriptions: must be the {n_subscriptions} in clusters",
            parameter="matches",
            value=wanted.shape[1],
            limit=f"{n_subscriptions} subscriptions",
        )
    return wanted
