"""Interest: which subscriber wants which flow, and the rate of each flow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from narrowcast.errors import ParameterError, TableError
from narrowcast.model.labels import Labels, encode, labels_in, names_of, numbers_in
from narrowcast.model.relation import Positions, Relation, relation, relation_of, rows_of, same

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from narrowcast.model.matches import Matches
    from narrowcast.model.subscriptions import SubscriptionSet


@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Interest:
    """A sparse matrix of subscribers x flows (`wants`) and a rate per flow.

    Parameters
    ----------
    wants
        Subscribers x flows, any matrix that scipy reads; stored as canonical sparse booleans.
    rate
        Events per second of each flow, finite and at least 0 (default: 1).
    subscribers, flows
        Labels of rows and columns, integers or strings (default: 0, 1, 2, ...).

    Examples
    --------
    >>> interests = pa.table({"subscriber": ["ann", "bob", "bob"], "flow": [7, 7, 9]})
    >>> interest = Interest.from_tables(interests, pa.table({"flow": [9], "rate": [0.5]}))
    >>> interest
    Interest(2 subscribers, 2 flows, 3 wants)
    >>> interest.flows.to_pylist(), interest.rate.tolist(), interest.audience().tolist()
    ([7, 9], [1.0, 0.5], [2, 1])
    """

    wants: Relation
    rate: NDArray[np.float64]
    subscribers: Labels
    flows: Labels

    def __init__(
        self, wants: Any, rate: ArrayLike | None = None, subscribers: Any = None, flows: Any = None
    ) -> None:
        wants = relation(wants)
        n_subscribers, n_flows = wants.shape
        flows = names_of(flows, "flow", n_flows)
        rate = np.ones(n_flows) if rate is None else np.array(rate, np.float64)
        if rate.shape != (n_flows,):
            raise ParameterError(
                parameter="rate", value=rate.shape, limit=f"of shape ({n_flows},), one rate per flow"
            )
        if wrong := _wrong_rate(rate, flows):
            raise ParameterError(wrong, parameter="rate")
        rate.flags.writeable = False
        object.__setattr__(self, "wants", wants)
        object.__setattr__(self, "rate", rate)
        object.__setattr__(self, "subscribers", names_of(subscribers, "subscriber", n_subscribers))
        object.__setattr__(self, "flows", flows)

    @classmethod
    def from_tables(cls, interests: pa.Table, rates: pa.Table | None = None) -> Self:
        """Build from the tables `interests` (subscriber, flow) and `rates` (flow, rate).

        Repeated interests count once. A flow without a rate has rate 1; a flow with a rate that no subscriber
        wants is retained, with an audience of 0.
        """
        rates = pa.table({"flow": [], "rate": []}) if rates is None else rates
        subscribers, [row] = encode("subscriber", labels_in(interests, "subscriber", "interests"))
        rated = labels_in(rates, "flow", "rates")
        flows, [column, place] = encode("flow", labels_in(interests, "flow", "interests"), rated)
        given = numbers_in(rates, "rate", "rates")
        if wrong := _wrong_rate(given, rated):
            raise TableError(wrong, parameter="rate")
        repeated = np.flatnonzero(np.bincount(place, minlength=len(flows)) > 1)
        if len(repeated):
            raise TableError(
                f"flow {flows[repeated[0]].as_py()!r} has more than one row in rates: must have one "
                "(of rates over time, keep the current ones)"
            )
        rate = np.ones(len(flows))
        rate[place] = given
        wants = relation_of(row, column, (len(subscribers), len(flows)))
        return cls(wants, rate, subscribers, flows)

    @classmethod
    def of_events(
        cls,
        matches: Matches,
        event_id: NDArray[np.int64],
        subscriptions: SubscriptionSet,
        *,
        last: int | None = None,
    ) -> Self:
        """Build with recent events as flows, each of rate 1, from the matches of the events.

        An event without a match is not a flow; `last` keeps only that number of the most recent flows.
        """
        recent = np.flatnonzero(matches.counts())
        recent = recent if last is None else recent[-last:]
        flow = np.full(matches.n_events, -1)
        flow[recent] = np.arange(len(recent))
        column = flow[matches.rows()]
        row = subscriptions.subscriber[matches.index]
        shape = (subscriptions.n_subscribers, len(recent))
        wants = relation_of(row[column >= 0], column[column >= 0], shape)
        return cls(wants, subscribers=subscriptions.subscribers, flows=event_id[recent])

    def to_tables(self) -> tuple[pa.Table, pa.Table]:
        """Return the tables `interests` and `rates`; a subscriber without wants has no row."""
        interests = {
            "subscriber": self.subscribers.take(rows_of(self.wants)),
            "flow": self.flows.take(self.wants.indices),
        }
        return pa.table(interests), pa.table({"flow": self.flows, "rate": self.rate})

    @property
    def n_subscribers(self) -> int:
        """Number of subscribers."""
        return int(self.wants.shape[0])

    @property
    def n_flows(self) -> int:
        """Number of flows, including flows that no subscriber wants."""
        return int(self.wants.shape[1])

    @property
    def n_wants(self) -> int:
        """Number of wanted (subscriber, flow) pairs."""
        return int(self.wants.nnz)

    def audience(self) -> Positions:
        """Return the number of subscribers who want each flow."""
        return np.bincount(self.wants.indices, minlength=self.n_flows)

    def wanting(self) -> Interest:
        """Drop subscribers that want no flow; return the same object if there are none.

        Examples
        --------
        >>> Interest([[0, 0], [0, 1]], subscribers=["ann", "bob"]).wanting().subscribers.to_pylist()
        ['bob']
        """
        some = np.flatnonzero(np.diff(self.wants.indptr))
        if len(some) == self.n_subscribers:
            return self
        return Interest(self.wants[some], self.rate, self.subscribers.take(some), self.flows)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Interest):
            return NotImplemented
        return (
            same(self.wants, other.wants)
            and np.array_equal(self.rate, other.rate)
            and self.subscribers.equals(other.subscribers)
            and self.flows.equals(other.flows)
        )

    __hash__ = None  # type: ignore[assignment]  # arrays have no hash; Python would set this silently

    def __repr__(self) -> str:
        return f"Interest({self.n_subscribers} subscribers, {self.n_flows} flows, {self.n_wants} wants)"


def _wrong_rate(rate: NDArray[np.float64], flows: Labels) -> str:
    """Return a message about the first invalid rate, or an empty string."""
    wrong = np.flatnonzero(~((rate >= 0) & np.isfinite(rate)))
    if len(wrong) == 0:
        return ""
    flow, value = flows[wrong[0]].as_py(), rate[wrong[0]]
    return f"flow {flow!r} has rate={value}: must be finite and at least 0 (events per second)"
