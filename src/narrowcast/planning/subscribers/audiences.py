"""Clusters of subscribers that receive everything any member wants, and moves that lower their cost.

Each subscriber is in one cluster. A want is a pair of a subscriber and a flow it wants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np
import pyarrow as pa

from narrowcast.errors import ParameterError
from narrowcast.kernels import moves, waste

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.interest import Interest
    from narrowcast.model.relation import Relation

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]
    Numbers: TypeAlias = NDArray[np.int32]
    Rows: TypeAlias = tuple[Ints, Numbers]

#: The most bytes of the arrays that count members by flow and cluster.
_MOST = 4 << 30


@dataclass(frozen=True, slots=True, eq=False)
class MemberCounts:
    """How many members each cluster has, and how many want each flow; counts of disjoint sets can be added.

    Parameters
    ----------
    count
        Flows x clusters: number of members that want a flow.
    size
        Number of members of each cluster.
    """

    count: Numbers
    size: Ints

    def __add__(self, other: MemberCounts) -> MemberCounts:
        return MemberCounts(self.count + other.count, self.size + other.size)

    @classmethod
    def of(cls, rows: Rows, cluster: Ints, shape: tuple[int, int]) -> Self:
        """Count the members of each cluster, and those that want each flow.

        Parameters
        ----------
        rows
            The flows that each subscriber wants.
        cluster
            The cluster of each subscriber, -1 for none.
        shape
            Numbers of flows and clusters.
        """
        count, size = np.zeros(shape, np.int32), np.zeros(shape[1], np.int64)
        moves.count_in(*rows, cluster, count, size)
        return cls(count, size)

    def to_table(self) -> pa.Table:
        """Return counts above 0 as a table (`flow`, `cluster`, `n`); rows with flow -1 have cluster sizes."""
        counts = np.vstack([self.count, self.size])
        flow, cluster = np.nonzero(counts)
        n = counts[flow, cluster]
        flow[flow == len(self.count)] = -1
        return pa.table({"flow": flow.astype(np.int32), "cluster": cluster.astype(np.int32), "n": n})

    @classmethod
    def from_table(cls, table: pa.Table, shape: tuple[int, int]) -> Self:
        """Return the counts in a table made by `to_table`; its rows may be in any order."""
        flow, cluster, n = (table[name].to_numpy() for name in ("flow", "cluster", "n"))
        wanted = flow >= 0
        count, size = np.zeros(shape, np.int32), np.zeros(shape[1], np.int64)
        count[flow[wanted], cluster[wanted]] = n[wanted]
        size[cluster[~wanted]] = n[~wanted]
        return cls(count, size)

    def cost(self, weight: Doubles) -> float:
        """Return the messages per second that all clusters receive, given the rate of each flow."""
        return float(self.size @ (weight @ (self.count > 0)))


class SubscriberClusters:
    """An assignment of subscribers to clusters, with the flows that each cluster receives.

    Parameters
    ----------
    rows
        The flows that subscriber i wants: `index[indptr[i]:indptr[i + 1]]`.
    weight
        Rate of each flow.
    n_clusters
        Number of clusters.
    balance
        The most members of a cluster as a multiple of the mean; None means no limit.
    """

    def __init__(self, rows: Rows, weight: Doubles, n_clusters: int, balance: float | None = None) -> None:
        self.indptr, self.index = rows
        shape = (len(weight), n_clusters)
        if 12 * math.prod(shape) > _MOST:
            most = _MOST // (12 * len(weight))
            raise ParameterError(
                f"channels={n_clusters}: clusters by {len(weight)} flows take more than {_MOST >> 30} GB; "
                f"use at most {most} channels, or fewer events",
                parameter="channels",
                value=n_clusters,
                limit=f"at most {most}",
            )
        self.weight, self.balance = weight, balance
        self.cluster = np.full(len(self.indptr) - 1, -1)
        self.size, self.union = np.zeros(n_clusters, np.int64), np.zeros(n_clusters)
        self.count, self.step = np.zeros(shape, np.int32), np.zeros(shape)
        self.set_capacity(len(self.cluster))
        self.count_in()

    @classmethod
    def of(cls, interest: Interest, n_clusters: int, balance: float | None = None) -> Self:
        """Return clusters without members for the subscribers of an interest."""
        return cls(wanted_rows(interest.wants), np.array(interest.rate), n_clusters, balance)

    def set_capacity(self, n: int) -> None:
        """Limit the members of each cluster to what the balance permits for n subscribers in total."""
        self.most = np.full(len(self.size), most_of(n, len(self.size), self.balance))

    @property
    def _wants(self) -> tuple[Ints, Numbers, Doubles, Doubles]:
        return self.indptr, self.index, self.weight, self.part

    @property
    def _state(self) -> tuple[Numbers, Doubles, Ints, Doubles]:
        return self.count, self.step, self.size, self.union

    def count_in(self, q: float = 1.0) -> None:
        """Recount the members that want each flow, as if each of their wants existed with probability q."""
        self.part = _parts(q, len(self.cluster))
        moves.count_in(self.indptr, self.index, self.cluster, self.count, self.size)
        moves.sum_up(self.weight, self.part, *self._state)

    def with_counts(self, tally: MemberCounts, quota: Ints, q: float = 1.0) -> Self:
        """Add other subscribers' counts to the state, and limit each cluster to `quota` more members.

        `tally` includes the subscribers of this state; return self.
        """
        self.count[:], self.size[:] = tally.count, tally.size
        self.most = self.size + quota
        self.part = _parts(q, int(tally.count.max(initial=0)) + len(self.cluster))
        moves.sum_up(self.weight, self.part, *self._state)
        return self

    def tally(self) -> MemberCounts:
        """Return how many of this state's subscribers are in each cluster, and how many want each flow."""
        return MemberCounts.of((self.indptr, self.index), self.cluster, self.count.shape)

    @property
    def cost(self) -> float:
        """Messages per second that all clusters receive: the sum over clusters of rate x members."""
        return float(self.size @ self.union)

    def begin(self, some: Ints) -> None:
        """Put the subscribers in `some` into clusters: merge two clusters at a time, those that add least.

        Subscribers with equal interests stay together, so that clusters remain free where there are fewer
        different interests than clusters.
        """
        some = some[np.diff(self.indptr)[some] > 0]
        n_clusters = len(self.size)
        if not len(some) or not n_clusters:
            return
        start = np.append(0, np.cumsum(np.diff(self.indptr)[some]))
        who = np.concatenate([self.index[self.indptr[x] : self.indptr[x + 1]] for x in some.tolist()])
        sets = np.zeros((len(some), (len(self.weight) + 63) // 64), np.uint64)
        waste.flags(start, who, sets)
        into, size = np.arange(len(some)), np.diff(start)
        ones = np.ones(len(some))
        left = min(n_clusters, len(np.unique(sets, axis=0)))
        waste.merge(waste.TOTAL, sets, ones, size, size.astype(np.float64), left, into)
        while not np.array_equal(further := into[into], into):
            into = further
        number = np.unique(into, return_inverse=True)[1]
        for c in range(n_clusters):
            self.cluster[some[number == c][: self.most[c]]] = c
        self.count_in()

    def fill(self, order: Ints) -> None:
        """Put each subscriber without a cluster, in the given order, into the one where it costs least."""
        if len(order) and len(self.size):
            moves.place(order, *self._wants, self.most, self.cluster, *self._state)

    def gains(self, some: Ints) -> Doubles:
        """For each given subscriber, return what is saved if it alone moves to its cheapest cluster."""
        found = np.zeros(len(some))
        moves.gains(some, *self._wants, self.most, self.cluster, *self._state, found)
        return found

    def settle(self, order: Ints, passes: int, *, few: int = 0) -> list[int]:
        """Move subscribers to cheaper clusters until a pass moves at most `few`; return moves per pass."""
        moved = np.zeros(passes, np.int64)
        taken = moves.settle(order, *self._wants, self.most, few, self.cluster, *self._state, moved)
        found: list[int] = moved[:taken].tolist()
        return found


def wanted_rows(wants: Relation) -> Rows:
    """Return the flows of each subscriber in compressed rows, as the kernels require."""
    return wants.indptr.astype(np.int64), wants.indices.astype(np.int32)


def most_of(n: int, n_clusters: int, balance: float | None) -> int:
    """Return the most members of a cluster: `balance` times the mean, but enough for all subscribers.

    Examples
    --------
    >>> most_of(100, 10, 2.0), most_of(3, 2, 1.0), most_of(7, 2, None)
    (20, 2, 7)
    """
    mean = n / max(n_clusters, 1)
    return n if balance is None else min(n, max(math.floor(min(balance, n) * mean), math.ceil(mean)))


def _parts(q: float, most: int) -> Doubles:
    """Return, for m = 0 to `most`, the chance that one of m members wants a flow, each with probability q."""
    return np.asarray(1 - (1 - q) ** np.arange(most + 2, dtype=np.float64), np.float64)
