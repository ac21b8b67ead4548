"""Queries of matchers: counts, subscribers and bitmaps, derived from `match`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.errors import InputError
from narrowcast.kernels import rows
from narrowcast.model.events import EventBatch
from narrowcast.model.matches import Matches
from narrowcast.model.subscriptions import SubscriptionSet

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.schema import Schema


class MatchQueries(ABC):
    """Counts, subscribers and bitmaps of matching subscriptions, for any class with a method `match`."""

    @abstractmethod
    def match(self, events: EventBatch) -> Matches:
        """Return for each event the positions of the matching subscriptions in `subscriptions_`."""

    @property
    @abstractmethod
    def subscriptions_(self) -> SubscriptionSet:
        """The current subscriptions, in the order of positions in results."""

    def match_one(self, event: Mapping[str, Any] | EventBatch) -> NDArray[np.int32]:
        """Return the positions of the subscriptions that one event matches.

        Parameters
        ----------
        event
            A mapping from attributes to values, as in `EventBatch.from_rows`, or a batch of one.
        """
        return self.match(one_event(event, self.subscriptions_.schema)).index

    def count(self, events: EventBatch) -> NDArray[np.int64]:
        """Return the number of matching subscriptions of each event."""
        return self.match(events).counts()

    def subscribers(self, events: EventBatch) -> Matches:
        """Return for each event the positions in `subscriptions_.subscribers` of the matching subscribers."""
        return subscribers_of(self.match(events), self.subscriptions_)

    def bitmaps(self, events: EventBatch) -> NDArray[np.uint64]:
        """Return a row of flags for each event: bit `i % 64` of word `i // 64` is for position i.

        For a million subscriptions that is 125,000 bytes per event, however many match: less than positions
        take if more than 3 % match. On a little-endian machine `np.unpackbits(rows.view(np.uint8), axis=1,
        bitorder="little")` unpacks the flags to one byte each.
        """
        return flags_of(self.match(events), len(self.subscriptions_))


def require_fitting(events: EventBatch, schema: Schema) -> None:
    """Refuse anything but a batch of events whose schema is that of the subscriptions."""
    if not isinstance(events, EventBatch):
        raise InputError(
            f"events={type(events).__name__}: must be an EventBatch; make one with EventBatch.from_arrow or "
            "EventBatch.from_rows, with the subscriptions' schema",
            parameter="events",
            value=events,
        )
    if events.schema is not schema and events.schema != schema:
        raise InputError(
            f"events have attributes {events.schema.to_dict()}: must be those of the subscriptions, "
            f"{schema.to_dict()}; read the events with the subscriptions' schema",
            parameter="events",
        )


def require_subscriptions(subscriptions: SubscriptionSet) -> None:
    """Refuse anything but a set of subscriptions."""
    if not isinstance(subscriptions, SubscriptionSet):
        raise InputError(
            f"subscriptions={type(subscriptions).__name__}: must be a SubscriptionSet, such as "
            "compile_filters(schema, filters).subscriptions",
            parameter="subscriptions",
            value=subscriptions,
        )


def one_event(event: Mapping[str, Any] | EventBatch, schema: Schema) -> EventBatch:
    """Return one event as a batch; refuse a batch of another size."""
    if isinstance(event, Mapping):
        return EventBatch.from_rows([event], schema)
    require_fitting(event, schema)
    if len(event) != 1:
        raise InputError(
            f"event has {len(event)} rows: must be 1; use match for batches",
            parameter="event",
            value=len(event),
        )
    return event


def subscribers_of(matches: Matches, subscriptions: SubscriptionSet) -> Matches:
    """Return for each event the distinct subscribers that own its matching subscriptions."""
    found = rows.distinct(
        matches.indptr, matches.index, subscriptions.subscriber, subscriptions.n_subscribers
    )
    return Matches.trusted(*found)


def flags_of(matches: Matches, n: int) -> NDArray[np.uint64]:
    """Return a row of n flags for each event: those of its matching subscriptions are set."""
    out = np.zeros((matches.n_events, -(-n // 64)), np.uint64)
    rows.flags(matches.indptr, matches.index, out)
    return out
