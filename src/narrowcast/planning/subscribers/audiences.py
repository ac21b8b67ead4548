"""Clusters of subscribers in which everybody gets what anybody wants, and moves that pay."""

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

#: The most bytes that counts of flows by clusters may take.
_MOST = 4 << 30


@dataclass(frozen=True, slots=True, eq=False)
class MemberCounts:
    """How many members clusters have; those of parts of all subscribers add up.

    Parameters
    ----------
    count
        Flows x clusters: how many members want a flow.
    size
        How many members there are.
    """

    count: Numbers
    size: Ints

    def __add__(self, other: MemberCounts) -> MemberCounts:
        return MemberCounts(self.count + other.count, self.size + other.size)

    @classmethod
    def of(cls, rows: Rows, cluster: Ints, shape: tuple[int, int]) -> Self:
        """Count the members of clusters, given what each wants and its cluster; -1 is in none.

        The shape is the number of flows and of clusters.
        """
        count, size = np.zeros(shape, np.int32), np.zeros(shape[1], np.int64)
        moves.count_in(*rows, cluster, count, size)
        return cls(count, size)

    def to_table(self) -> pa.Table:
        """Return `flow`, `cluster` and `n` of all counts above 0; sizes of clusters have flow -1."""
        counts = np.vstack([self.count, self.size])
        flow, cluster = np.nonzero(counts)
        n = counts[flow, cluster]
        flow[flow == len(self.count)] = -1
        return pa.table({"flow": flow.astype(np.int32), "cluster": cluster.astype(np.int32), "n": n})

    @classmethod
    def from_table(cls, table: pa.Table, shape: tuple[int, int]) -> Self:
        """Return what `to_table` gave, in any order of the rows."""
        flow, cluster, n = (table[name].to_numpy() for name in ("flow", "cluster", "n"))
        wanted = flow >= 0
        count, size = np.zeros(shape, np.int32), np.zeros(shape[1], np.int64)
        count[flow[wanted], cluster[wanted]] = n[wanted]
        size[cluster[~wanted]] = n[~wanted]
        return cls(count, size)

    def cost(self, weight: Doubles) -> float:
        """Return the messages per second that all clusters get, with the rate of each flow."""
        return float(self.size @ (weight @ (self.count > 0)))


class SubscriberClusters:
    """Which cluster each subscriber is in, and what each cluster gets.

    Parameters
    ----------
    rows
        What each subscriber wants: `index[indptr[i]:indptr[i + 1]]` are numbers of flows.
    weight
        The rate of each flow.
    n_clusters
        How many clusters.
    balance
        How many times the mean a cluster may have members at most; None for any number.
    """

    def __init__(self, rows: Rows, weight: Doubles, n_clusters: int, balance: float | None = None) -> None:
        self.indptr, self.index = rows
        shape = (len(weight), n_clusters)
        if 12 * math.prod(shape) > _MOST:
            raise ParameterError(
                f"{n_clusters} clusters by {len(weight)} flows take more than {_MOST >> 30} GB; "
                f"ask for at most {_MOST // (12 * len(weight))} channels, or look at fewer events"
            )
        self.weight, self.balance = weight, balance
        self.cluster = np.full(len(self.indptr) - 1, -1)
        self.size, self.union = np.zeros(n_clusters, np.int64), np.zeros(n_clusters)
        self.count, self.step = np.zeros(shape, np.int32), np.zeros(shape)
        self.room(len(self.cluster))
        self.count_in()

    @classmethod
    def of(cls, interest: Interest, n_clusters: int, balance: float | None = None) -> Self:
        """Return clusters for those of an interest, with nobody in them."""
        return cls(wanted_rows(interest.wants), np.array(interest.rate), n_clusters, balance)

    def room(self, n: int) -> None:
        """Let clusters have as many members as balance permits when there are so many in all."""
        self.most = np.full(len(self.size), most_of(n, len(self.size), self.balance))

    @property
    def _wants(self) -> tuple[Ints, Numbers, Doubles, Doubles]:
        return self.indptr, self.index, self.weight, self.part

    @property
    def _state(self) -> tuple[Numbers, Doubles, Ints, Doubles]:
        return self.count, self.step, self.size, self.union

    def count_in(self, q: float = 1.0) -> None:
        """Count who is where, each want with probability q."""
        self.part = _parts(q, len(self.cluster))
        moves.count_in(self.indptr, self.index, self.cluster, self.count, self.size)
        moves.sum_up(self.weight, self.part, *self._state)

    def beside(self, tally: MemberCounts, quota: Ints, q: float = 1.0) -> Self:
        """Count with what all clusters have, those here among it, and let so many more enter each."""
        self.count[:], self.size[:] = tally.count, tally.size
        self.most = self.size + quota
        self.part = _parts(q, int(tally.count.max(initial=0)) + len(self.cluster))
        moves.sum_up(self.weight, self.part, *self._state)
        return self

    def tally(self) -> MemberCounts:
        """Return the counts of those who are here."""
        return MemberCounts.of((self.indptr, self.index), self.cluster, self.count.shape)

    @property
    def cost(self) -> float:
        """The messages per second that all clusters get: of each what it gets, for each of its members."""
        return float(self.size @ self.union)

    def begin(self, some: Ints) -> None:
        """Merge some subscribers, two clusters at a time, those first that cost least together.

        Who want the same stay together, so that clusters are left over where fewer kinds of wants differ.
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
        """Put those who are in no cluster yet where they cost least."""
        if len(order) and len(self.size):
            moves.place(order, *self._wants, self.most, self.cluster, *self._state)

    def gains(self, some: Ints) -> Doubles:
        """Return what clusters get less when each of some, and nobody else, moves to where it costs least."""
        found = np.zeros(len(some))
        moves.gains(some, *self._wants, self.most, self.cluster, *self._state, found)
        return found

    def settle(self, order: Ints, passes: int, *, few: int = 0) -> list[int]:
        """Move whoever costs less elsewhere until no more than a few do; return the moves of each pass."""
        moved = np.zeros(passes, np.int64)
        taken = moves.settle(order, *self._wants, self.most, few, self.cluster, *self._state, moved)
        found: list[int] = moved[:taken].tolist()
        return found


def wanted_rows(wants: Relation) -> Rows:
    """Return a relation as kernels read it: where each row starts, and the columns of all rows."""
    return wants.indptr.astype(np.int64), wants.indices.astype(np.int32)


def most_of(n: int, n_clusters: int, balance: float | None) -> int:
    """Return how many members a cluster may have at most: so many times the mean, and room for everybody.

    Examples
    --------
    >>> most_of(100, 10, 2.0), most_of(3, 2, 1.0), most_of(7, 2, None)
    (20, 2, 7)
    """
    mean = n / max(n_clusters, 1)
    return n if balance is None else min(n, max(math.floor(min(balance, n) * mean), math.ceil(mean)))


def _parts(q: float, most: int) -> Doubles:
    """Return how much of a flow counts that 0, 1, 2, ... members want, each with probability q."""
    return np.asarray(1 - (1 - q) ** np.arange(most + 2, dtype=np.float64), np.float64)
