"""Placement of new subscribers in a plan that is in use: on channels, or by direct messages."""

from __future__ import annotations

from collections import deque
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from narrowcast.errors import ParameterError
from narrowcast.model.events import EventBatch
from narrowcast.model.matches import Matches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from narrowcast.matching.base import Matcher

    Flags = NDArray[np.bool_]
    _SentBatch = tuple[EventBatch, Matches]

#: Recent events to remember, and the minimum that a subscriber must want before it is placed.
RECENT, LEAST = 4096, 8
#: Time budget in seconds for matching a subscriber's filters, since the node does nothing else meanwhile; and
#: estimated seconds per batch, per batch and filter that is checked event by event, per such filter and
#: event, and per box and event. Without the budget 3,000 LIKE patterns against all events took 4.5 s; with it
#: at most 30 ms. Where not even a few events fit the budget, the subscriber is not placed.
_BUDGET, _BATCH, _CHECKED, _CHECK, _BOX = 0.025, 3e-4, 4e-5, 1e-6, 6e-8
#: Maximum characters of all filters of a subscriber to be placed: parsing them takes up to 20 ms.
LONGEST = 32 << 10
#: Cost of sending a message divided by that of delivering one: with NATS, 1.8 and 5 microseconds.
SEND = 0.35


def should_join(carried: Flags, wanted: Flags, members: int, *, spreads: bool, send: float = SEND) -> bool:
    """Return whether a new subscriber should join a channel instead of receiving its events directly.

    Directly, each event it wants is sent once more and nothing is wasted. Over the channel it also receives
    events that it does not want; and where the channel carries what any member wants, all members also
    receive the events that only the new one wants.

    Parameters
    ----------
    carried, wanted
        For each recent event, whether the channel carried it, and whether the new subscriber wants it.
    members
        Number of subscribers that listen to the channel.
    spreads
        Whether the channel would then carry all events that the new subscriber wants.
    send
        Cost of sending a message, as a multiple of the cost of delivering one (default 0.35).

    Examples
    --------
    >>> some = np.array([True, True, True, False])
    >>> should_join(some, some, 10, spreads=True), should_join(some, ~some, 10, spreads=True)
    (True, False)
    >>> should_join(some, np.array([True, True, True, True]), 10, spreads=True)
    False
    >>> should_join(some, np.array([True, True, True, True]), 10, spreads=False)
    True
    """
    more = np.count_nonzero(carried & ~wanted)
    if spreads:
        more += members * np.count_nonzero(wanted & ~carried)
    return bool(more < send * np.count_nonzero(carried & wanted))


class RecentEvents:
    """The most recent events, and the channels that carried them.

    Parameters
    ----------
    events
        Minimum number of events to remember, if there were as many: at least 1 (default 4,096).
    """

    def __init__(self, events: int = RECENT) -> None:
        if events < 1:
            raise ParameterError(parameter="events", value=events, limit="at least 1")
        self._capacity = events
        self._batches: deque[_SentBatch] = deque()
        self._n_events = 0

    def add(self, events: EventBatch, channels: Matches) -> None:
        """Add a batch, and forget the oldest batches that are no longer needed.

        Parameters
        ----------
        events
            The events.
        channels
            Channels that carried each event.
        """
        self._batches.append((events, channels))
        self._n_events += len(events)
        while self._n_events - len(self._batches[0][0]) >= self._capacity:
            self._n_events -= len(self._batches.popleft()[0])

    def clear(self) -> None:
        """Forget all events: channel numbers of another plan mean other channels."""
        self._batches.clear()
        self._n_events = 0

    def channels(
        self, wants: Matcher, members: NDArray[np.int64], *, spreads: bool, send: float = SEND
    ) -> list[int]:
        """Return the channels that a new subscriber should join, judged by the recent events.

        Returns none while it matched fewer than 8 of them.

        Parameters
        ----------
        wants
            Matcher fitted to its filters.
        members
            Number of listeners of each channel.
        spreads
            Whether a channel carries whatever any listener wants.
        send
            As for `should_join`.
        """
        self._fold()
        schema = wants.subscriptions_.schema
        known = self._newest(wants, [each for each in self._batches if each[0].schema == schema])
        if not known or not len(members):
            return []
        wanted = np.concatenate([wants.match(events).counts() > 0 for events, _ in known])
        if np.count_nonzero(wanted) < LEAST:
            return []
        carried = np.zeros((len(members), len(wanted)), bool)
        start = 0
        for events, channels in known:
            carried[channels.index, start + channels.rows()] = True
            start += len(events)
        some = np.flatnonzero(carried.any(axis=1)).tolist()
        return [
            c for c in some if should_join(carried[c], wanted, int(members[c]), spreads=spreads, send=send)
        ]

    @staticmethod
    def _newest(wants: Matcher, known: list[_SentBatch]) -> list[_SentBatch]:
        """Return the most recent batches, cut so that matching them takes bounded time."""
        subscriptions = wants.subscriptions_
        checked = len(subscriptions.check) - subscriptions.check.null_count
        batch, event = _BATCH + checked * _CHECKED, checked * _CHECK + len(subscriptions.boxes) * _BOX
        left = _BUDGET
        found: list[_SentBatch] = []
        for events, channels in reversed(known):
            left -= batch
            start = max(0, len(events) - int(left / max(event, _BOX)))
            if left <= 0 or start == len(events):
                break
            left -= event * (len(events) - start)
            rest = np.arange(start, len(events))
            found.append(
                (events.slice(start, len(events)), channels.take(rest)) if start else (events, channels)
            )
        return found[::-1]

    def _fold(self) -> None:
        """Join batches with the same columns: matching thousands of single events takes far longer."""
        alike = groupby(self._batches, lambda each: (each[0].schema, [c.type for c in each[0].columns]))
        self._batches = deque(_join(list(some)) for _, some in alike)
        if (more := self._n_events - self._capacity) > 0:
            events, channels = self._batches.popleft()
            kept = np.arange(more, len(events))
            self._batches.appendleft((events.slice(more, len(events)), channels.take(kept)))
            self._n_events = self._capacity


def _join(some: Sequence[_SentBatch]) -> _SentBatch:
    """Return batches with columns of the same types as one batch."""
    if len(some) == 1:
        return some[0]
    columns = zip(*(events.columns for events, _ in some), strict=True)
    ids = np.concatenate([events.event_id for events, _ in some])
    counts = np.concatenate([channels.counts() for _, channels in some])
    index = np.concatenate([channels.index for _, channels in some])
    joined = EventBatch(some[0][0].schema, tuple(pa.concat_arrays(own) for own in columns), ids)
    return joined, Matches.trusted(np.append(0, np.cumsum(counts)), index)
