"""What every matcher answers besides matches: derived from `match`, faster where an index allows."""

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
    """Counts, subscribers and flags instead of the positions of subscriptions."""

    @abstractmethod
    def match(self, events: EventBatch) -> Matches:
        """Return, for each event, the positions in `subscriptions_` of those that it matches."""

    @property
    @abstractmethod
    def subscriptions_(self) -> SubscriptionSet:
        """The subscriptions as they are now."""

    def match_one(self, event: Mapping[str, Any] | EventBatch) -> NDArray[np.int32]:
        """Return the positions of the subscriptions that one event matches.

        Parameters
        ----------
        event
            A mapping from attributes to values, as in `EventBatch.from_rows`, or a batch of one.
        """
        return self.match(one_event(event, self.subscriptions_.schema)).index

    def count(self, events: EventBatch) -> NDArray[np.int64]:
        """Return how many subscriptions each event matches."""
        return self.match(events).counts()

    def subscribers(self, events: EventBatch) -> Matches:
        """Return, for each event, the positions in `subscriptions_.subscribers` of those who want it."""
        return subscribers_of(self.match(events), self.subscriptions_)

    def bitmaps(self, events: EventBatch) -> NDArray[np.uint64]:
        """Return a row of flags for each event: bit `i % 64` of word `i // 64` is for position i.

        A million subscriptions take 125,000 bytes an event, however many match: less than their positions
        when more than 3 % do. On a little-endian machine `np.unpackbits(rows.view(np.uint8), axis=1,
        bitorder="little")` has a flag in each byte.
        """
        return flags_of(self.match(events), len(self.subscriptions_))


def require_fitting(events: EventBatch, schema: Schema) -> None:
    """Refuse what is no batch of events, or one of another schema than the subscriptions'."""
    if not isinstance(events, EventBatch):
        raise InputError(
            f"events are a {type(events).__name__}, not an EventBatch; make one with EventBatch.from_arrow "
            "or EventBatch.from_rows, with the subscriptions' schema"
        )
    if events.schema is not schema and events.schema != schema:
        raise InputError(
            f"events have attributes {events.schema.to_dict()} and subscriptions "
            f"{schema.to_dict()}; read the events with the subscriptions' schema"
        )


def require_subscriptions(subscriptions: SubscriptionSet) -> None:
    """Refuse what is no set of subscriptions."""
    if not isinstance(subscriptions, SubscriptionSet):
        raise InputError(
            f"subscriptions are a {type(subscriptions).__name__}, not a SubscriptionSet; give "
            "compile_filters(schema, filters).subscriptions"
        )


def one_event(event: Mapping[str, Any] | EventBatch, schema: Schema) -> EventBatch:
    """Return one event as a batch; a batch of any other size is an error."""
    if isinstance(event, Mapping):
        return EventBatch.from_rows([event], schema)
    require_fitting(event, schema)
    if len(event) != 1:
        raise InputError(f"match_one takes one event, not {len(event)}; use match")
    return event


def subscribers_of(matches: Matches, subscriptions: SubscriptionSet) -> Matches:
    """Return the distinct subscribers of the subscriptions that each event matches."""
    found = rows.distinct(
        matches.indptr, matches.index, subscriptions.subscriber, subscriptions.n_subscribers
    )
    return Matches.trusted(*found)


def flags_of(matches: Matches, n: int) -> NDArray[np.uint64]:
    """Return a row of n flags for each event."""
    out = np.zeros((matches.n_events, -(-n // 64)), np.uint64)
    rows.flags(matches.indptr, matches.index, out)
    return out
