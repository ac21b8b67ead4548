"""Where somebody new goes in a plan that is in use: over which channels, or directly."""

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
    _Sent = tuple[EventBatch, Matches]

#: Events that are remembered, and of which at least so many have to be wanted before anybody is placed.
RECENT, LEAST = 4096, 8
#: Seconds that somebody's filters may be looked at for, about, since a node does nothing else meanwhile; and
#: those for a batch, for a filter in it that has to be checked event by event, for that and an event, and for
#: a box and an event. 3,000 patterns of LIKE against all events took 4.5 s; now it takes up to 30 ms, however
#: many there are, and where not even a few events can be looked at nobody is placed.
_MOST, _BATCH, _CHECKED, _CHECK, _BOX = 0.025, 3e-4, 4e-5, 1e-6, 6e-8
#: Characters of the filters of somebody who is placed, at most: to read them again takes up to 20 ms.
LONGEST = 32 << 10
#: What it costs to send a message, in what it costs to deliver one: with NATS, 1.8 and 5 microseconds.
SEND = 0.35


def worthwhile(carried: Flags, wanted: Flags, members: int, *, spreads: bool, send: float = SEND) -> bool:
    """Return whether somebody should join a channel instead of being sent to directly.

    Directly, what it wants is sent once more, and nothing is wasted. Over the channel all that it does not
    want comes too; and where the channel carries what anybody there wants, all members get what only the
    new one does.

    Parameters
    ----------
    carried, wanted
        For each of the last events, whether the channel carried it, and whether the new one wants it.
    members
        How many listen to the channel.
    spreads
        Whether the channel would then carry what the new one wants.
    send
        What it costs to send a message, in what it costs to deliver one.

    Examples
    --------
    >>> some = np.array([True, True, True, False])
    >>> worthwhile(some, some, 10, spreads=True), worthwhile(some, ~some, 10, spreads=True)
    (True, False)
    >>> worthwhile(some, np.array([True, True, True, True]), 10, spreads=True)
    False
    >>> worthwhile(some, np.array([True, True, True, True]), 10, spreads=False)
    True
    """
    more = np.count_nonzero(carried & ~wanted)
    if spreads:
        more += members * np.count_nonzero(wanted & ~carried)
    return bool(more < send * np.count_nonzero(carried & wanted))


class RecentEvents:
    """The last events, and the channels that they went over.

    Parameters
    ----------
    events
        How many are remembered, at least.
    """

    def __init__(self, events: int = RECENT) -> None:
        if events < 1:
            raise ParameterError(f"events is {events}; remember at least 1")
        self._most = events
        self._batches: deque[_Sent] = deque()
        self._held = 0

    def add(self, events: EventBatch, channels: Matches) -> None:
        """Remember a batch, and forget the oldest that is not needed."""
        self._batches.append((events, channels))
        self._held += len(events)
        while self._held - len(self._batches[0][0]) >= self._most:
            self._held -= len(self._batches.popleft()[0])

    def clear(self) -> None:
        """Forget all: channels of another plan are others."""
        self._batches.clear()
        self._held = 0

    def channels(
        self, wants: Matcher, members: NDArray[np.int64], *, spreads: bool, send: float = SEND
    ) -> list[int]:
        """Return the channels that somebody should join, by what they would have wanted lately.

        Parameters
        ----------
        wants
            Their filters.
        members
            How many listen to each channel.
        spreads
            Whether a channel carries what anybody there wants.
        send
            As of `worthwhile`.
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
            c for c in some if worthwhile(carried[c], wanted, int(members[c]), spreads=spreads, send=send)
        ]

    @staticmethod
    def _newest(wants: Matcher, known: list[_Sent]) -> list[_Sent]:
        """Return as many of the last events as can be looked at in bounded time."""
        mine = wants.subscriptions_
        checked = len(mine.check) - mine.check.null_count
        batch, event = _BATCH + checked * _CHECKED, checked * _CHECK + len(mine.boxes) * _BOX
        left = _MOST
        found: list[_Sent] = []
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
        """Make one batch of those that are alike: to look at thousands of single events takes far longer."""
        alike = groupby(self._batches, lambda each: (each[0].schema, [c.type for c in each[0].columns]))
        self._batches = deque(_joined(list(some)) for _, some in alike)
        if (more := self._held - self._most) > 0:
            events, channels = self._batches.popleft()
            kept = np.arange(more, len(events))
            self._batches.appendleft((events.slice(more, len(events)), channels.take(kept)))
            self._held = self._most


def _joined(some: Sequence[_Sent]) -> _Sent:
    """Return batches with columns of the same types as one."""
    if len(some) == 1:
        return some[0]
    columns = zip(*(events.columns for events, _ in some), strict=True)
    ids = np.concatenate([events.event_id for events, _ in some])
    counts = np.concatenate([channels.counts() for _, channels in some])
    index = np.concatenate([channels.index for _, channels in some])
    joined = EventBatch(some[0][0].schema, tuple(pa.concat_arrays(own) for own in columns), ids)
    return joined, Matches.trusted(np.append(0, np.cumsum(counts)), index)
