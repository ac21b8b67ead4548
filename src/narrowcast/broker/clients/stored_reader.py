"""Reader of stored messages: merges live messages with replays, and stores its position."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import defaultdict, deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from narrowcast.broker.clients.cursor import Cursor
from narrowcast.broker.storage.positions import REPLAY_MARGIN, encode_position
from narrowcast.broker.storage.streams import error_of
from narrowcast.broker.transport import Message
from narrowcast.broker.wire import ReadEvents
from narrowcast.errors import NarrowcastError, ParameterError, TransportError
from narrowcast.jetstream.api import delivery_of

if TYPE_CHECKING:
    from narrowcast.broker.clients.event import Event
    from narrowcast.broker.clients.request_client import RequestClient
    from narrowcast.broker.transport import Transport
    from narrowcast.broker.wire import Subjects

log = logging.getLogger(__name__)

#: Events that may be delivered before they are acknowledged: the default, and the minimum (one frame).
WINDOW, MIN_WINDOW = 1024, 256
#: Turns of the event loop after which all messages that have arrived are handled.
_YIELDS = 8
#: Seconds before a replay begins, in which messages of a lost connection may still arrive.
_DRAIN = 0.05
#: Seconds between two stored positions, between two checks of the connection, without a replayed message
#: until the replay is requested again, and for the server to store a position.
_STORE, _CHECK, _STALLED, _PATIENCE = 0.5, 0.2, 5.0, 2.0


class FrameReceiver(Protocol):
    """Receiver of the messages that a `StoredReader` reads."""

    def accept(self, message: Message) -> None:
        """Process a message."""
        ...

    def mark_seen(self, message: Message) -> None:
        """Remember the events of a message that was read before the last restart."""
        ...

    def has_room(self) -> bool:
        """Return whether the receiver can take more events."""
        ...

    async def request_replay(self, after: int, token: str) -> int:
        """Ask a node to replay what is stored after a position; return the number of messages."""
        ...


class _FrameEnd(NamedTuple):
    """Number of events up to the end of a message, with the position and subject of the message."""

    n_events: int
    number: int
    subject: str


class StoredReader:
    """Reads each stored message of a subscriber once and in order, and stores the subscriber's position.

    Parameters
    ----------
    transport, subjects, requests
        Connection to the broker, its subjects, and the client for requests.
    name
        Name of the subscriber.
    receiver
        Receiver of the messages.
    after, store
        Position up to which everything was read before the start, and the id of the store it belongs to.
    key
        Key in the subject of the position, known only to this subscriber and to nodes.
    already_read
        Messages and events after `after` that were read before the start.
    n_waiting
        Events of an earlier store that are still to be delivered first.
    window
        Events that may be delivered before they are acknowledged, at least 256 (default: 1,024). After a
        crash at most this number is delivered again.
    """

    def __init__(
        self,
        transport: Transport,
        subjects: Subjects,
        requests: RequestClient,
        name: str,
        receiver: FrameReceiver,
        *,
        after: int,
        store: str,
        key: str,
        already_read: ReadEvents | None = None,
        n_waiting: int = 0,
        window: int = WINDOW,
    ) -> None:
        check_window(window)
        self._transport, self._subjects, self._requests = transport, subjects, requests
        self._position_subject = subjects.position(name, key)
        self._name, self._receiver, self._window = name, receiver, window
        self._already_read = ReadEvents() if already_read is None else already_read
        self.cursor = Cursor(after, last=self._already_read.subjects)
        #: Id of the store that is read.
        self.store = store
        self._start, self._first_replay = after, True
        self._connections = transport.connections
        self._wake = asyncio.Event()
        # The replay in progress: its token, the number of its messages so far, and the subject at which the
        # last of them is acknowledged.
        self._token, self._n_replayed, self._ack = "", 0, ""
        # The end of each message that is not processed, counted in events; and how many events were added and
        # delivered.
        self._ends: deque[_FrameEnd] = deque([_FrameEnd(n_waiting, after, "")] if n_waiting else ())
        self._n_added, self._n_delivered = n_waiting, 0
        # How many events are processed, with the highest position of a message and the last one by subject.
        read = self._already_read.subjects
        self._processed, self._last_by_subject = (0, max([after, *read.values()])), dict(read)
        # The position as it is stored, and the number of events that it acknowledges.
        self._stored_position, self._n_acknowledged = encode_position(after, store, self._already_read), 0
        self._position_lock = asyncio.Lock()
        self._ended = False
        #: The events delivered last, some of them perhaps of messages that are processed in part.
        self._recent_events: deque[Event] = deque(maxlen=window)

    # ---- messages

    def receive(self, message: Message) -> None:
        """Handle a live message."""
        if not message.number:
            return  # it is not stored
        self.check_connection()
        if message.number > self.cursor.position and not self._receiver.has_room():
            self.cursor.skip(message)
            return
        for each in self.cursor.on_live(message):
            self._receiver.accept(each)
        if self.cursor.behind:
            self._wake.set()

    def check_connection(self) -> None:
        """Request a replay when the connection is a new one: messages may have been missed."""
        if self._connections != self._transport.connections:
            self._connections = self._transport.connections
            self.cursor.mark_behind()
            self._wake.set()

    def restart_replay(self) -> None:
        """Request a new replay if one is in progress; needed when a node learns of more subjects."""
        if self.cursor.replaying:
            self.cursor.mark_behind()
            self._wake.set()

    async def run(self) -> None:
        """Replay missed messages and store the position, until cancelled."""
        stored = time.monotonic()
        while True:
            self.check_connection()
            try:
                if self.cursor.behind and self._receiver.has_room() and self._transport.connected:
                    await self.replay()
                if time.monotonic() - stored >= _STORE:
                    stored = time.monotonic()
                    await self.write_position()
            except NarrowcastError as error:
                log.warning("subscriber %r cannot read stored events, retrying: %s", self._name, error)
                await asyncio.sleep(_CHECK)
            self._wake.clear()
            if not self.cursor.behind or not self._receiver.has_room() or not self._transport.connected:
                await self._wait(_CHECK)

    async def _wait(self, seconds: float) -> bool:
        """Wait until something has happened; return whether it has in time."""
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return False
        return True

    async def replay(self) -> None:
        """Request a replay of what is stored after the cursor, and wait until it ends or breaks off.

        Raises
        ------
        TransportError
            When no message of it arrives for 5 s.
        """
        await asyncio.sleep(_DRAIN)
        await _run_callbacks()
        token = self._token = secrets.token_hex(8)
        self._n_replayed, self._ack = 0, ""
        after = self.cursor.start_replay()
        if self._first_replay:  # messages shortly before the position too: events may be stored twice
            after = max(0, after - REPLAY_MARGIN)
        inbox = await self._transport.subscribe(
            f"{self._subjects.replay(self._name)}.{token}", partial(self.receive_replayed, token)
        )
        try:
            n_messages = await self._receiver.request_replay(after, token)
            self.check_connection()
            if not n_messages:
                self._finish_replay()
            while self.cursor.replaying:
                self.check_connection()
                if self._ack and self._receiver.has_room():
                    ack, self._ack = self._ack, ""
                    await self._transport.publish(ack, b"+ACK")
                    continue  # more may have arrived meanwhile
                self._wake.clear()
                if not await self._wait(_STALLED) and self._receiver.has_room():
                    raise TransportError(
                        f"no replayed message within {_STALLED:g} s; requesting a new replay"
                    )
        finally:
            await inbox.aclose()
        self._first_replay = self._first_replay and self.cursor.behind

    def receive_replayed(self, token: str, message: Message) -> None:
        """Handle a message of the replay with this token; messages of earlier replays are ignored."""
        self.check_connection()
        if token != self._token or not self.cursor.replaying:
            return
        place = delivery_of(message.reply)
        if place.consumer != self._n_replayed + 1:  # messages of the replay are lost
            self.cursor.mark_behind()
            self._wake.set()
            return
        self._n_replayed, self._ack = place.consumer, message.reply
        kept, out = self._subjects.stored(""), f"{self._subjects.prefix}.out."
        original = Message(out + message.subject.removeprefix(kept), message.payload, "", place.stream)
        if place.stream > self._start:
            # Once is enough: a second time, later events would drop out of the memory of repeated ones.
            self._first_replay = False
        if place.stream <= max(self._start, self._already_read.subjects.get(original.subject, 0)):
            self._receiver.mark_seen(original)
        for each in self.cursor.on_replayed(original, pending=place.pending):
            self._receiver.accept(each)
        self._wake.set()

    def _finish_replay(self) -> None:
        for each in self.cursor.finish_replay():
            self._receiver.accept(each)

    # ---- position

    def add_frame(self, number: int, subject: str, n_events: int) -> None:
        """Record that the message with this stream number added events to the queue of the subscriber."""
        self._n_added += n_events
        self._ends.append(_FrameEnd(self._n_added, number, subject))

    def n_allowed(self) -> int:
        """Return the number of events that may be delivered before more are acknowledged."""
        return self._window - (self._n_delivered - self._n_acknowledged)

    def mark_delivered(self, events: list[Event]) -> None:
        """Record that events are delivered to the application."""
        self._n_delivered += len(events)
        self._recent_events.extend(events)
        if self.cursor.behind:
            self._wake.set()  # there is room for more

    def mark_processed(self) -> None:
        """Record that all delivered events are processed; the next stored position acknowledges them."""
        while self._ends and self._ends[0].n_events <= self._n_delivered:
            n_events, number, subject = self._ends.popleft()
            self._processed = n_events, max(number, self._processed[1])
            self._last_by_subject[subject] = number

    def position_lock(self) -> asyncio.Lock:
        """Return the lock that is held while a position is stored."""
        return self._position_lock

    def stop_writing(self) -> None:
        """Store no more positions, and end all waits for acknowledgement."""
        self._ended = True

    async def write_position(self, *, last: bool = False) -> None:
        """Store the position if it has changed.

        It consists of the position up to which everything is processed, and of the messages after it that
        are processed, by subject: one subject may lag behind others where messages of it were missed.

        Parameters
        ----------
        last
            Whether this is the last time; then events of a frame that is processed in part are included.

        Raises
        ------
        TransportError
            When the server does not store it.
        """
        async with self._position_lock:
            if self._ended:
                return
            done, after = self._processed, self.cursor.position
            await _run_callbacks()
            # Messages of different subjects overtake one another: no earlier one may be unprocessed.
            unprocessed = (end.number - 1 for end in self._ends if end.number <= done[1])
            place = min([done[1], after, self.cursor.position, *unprocessed])
            payload = encode_position(place, self.store, self._read_beyond(place, last=last))
            if payload != self._stored_position:
                await self._store_position(payload)
            self._stored_position, self._n_acknowledged = payload, done[0]

    async def _store_position(self, payload: bytes) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                why = error_of(await (await self._requests.send(self._position_subject, payload)))
        except TimeoutError:
            why = f"no answer within {_PATIENCE:g} s"
        if why is not None:
            raise TransportError(
                f"subscriber {self._name!r}: the NATS server does not store its position: {why}"
            )

    def _read_beyond(self, place: int, *, last: bool) -> ReadEvents:
        """Return what is processed after a position; the `last` time with single events of a frame."""
        events: dict[str, list[int]] = defaultdict(list)
        if place <= self._start:
            for publisher, numbers in self._already_read.events.items():
                events[publisher] += numbers
        n_partial = self._n_delivered - self._processed[0] if last else 0
        recent = list(self._recent_events)
        for event in recent[len(recent) - n_partial :] if n_partial else ():
            events[event.publisher].append(event.number)
        self._last_by_subject = {
            subject: number
            for subject, number in self._last_by_subject.items()
            if number > place or subject in self.cursor
        }
        behind = {subject: number for subject, number in self._last_by_subject.items() if number > place}
        return ReadEvents(dict(events), behind)

    async def wait_for_acknowledgement(self) -> None:
        """Store the position until more events may be delivered."""
        while self.n_allowed() <= 0 and not self._ended:
            try:
                await self.write_position()
            except TransportError as error:
                log.warning("subscriber %r waits for acknowledgement: %s", self._name, error)
                await asyncio.sleep(_CHECK)


async def _run_callbacks() -> None:
    """Let the event loop handle the messages that have arrived: each subject has its own queue."""
    for _ in range(_YIELDS):
        await asyncio.sleep(0)


def check_window(window: int) -> None:
    """Refuse a window that is smaller than one frame.

    Raises
    ------
    ParameterError
        When it is below 256 events.
    """
    if window < MIN_WINDOW:
        raise ParameterError(
            parameter="window", value=window, limit=f"at least {MIN_WINDOW} events (one frame)"
        )
