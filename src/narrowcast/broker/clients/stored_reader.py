"""How a subscriber reads what is stored for it: live, replayed where it missed something, acknowledged."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import defaultdict, deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from narrowcast.broker.clients.cursor import Cursor
from narrowcast.broker.storage.positions import BEFORE, written
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

#: Events that may be handed out before those are acknowledged, and the fewest: a frame has as many.
WINDOW, LEAST = 1024, 256
#: Turns of the event loop until all is heard that has come.
_TURNS = 8
#: Seconds that all has to be heard before a replay begins that came over a connection that was lost.
_DRAIN = 0.05
#: Seconds from one acknowledgement to the next, and from one look at the connection to the next; those
#: without a message after which a replay is asked for anew, and those for the server to answer.
_STORE, _LOOK, _STALLED, _PATIENCE = 0.5, 0.2, 5.0, 2.0


class FrameReceiver(Protocol):
    """Who reads."""

    def accept(self, message: Message) -> None:
        """Take up a message."""
        ...

    def remember(self, message: Message) -> None:
        """Note that the events of a message were there in an earlier life."""
        ...

    def room(self) -> bool:
        """Return whether more may come."""
        ...

    async def replay(self, after: int, token: str) -> int:
        """Ask a node for all that is stored behind a place, and return how many messages there are."""
        ...


class _End(NamedTuple):
    """How many events there are up to the end of a message, its place, and its subject."""

    many: int
    number: int
    subject: str


class StoredReader:
    """Brings each stored message to a reader once, in order, and writes down how far it is.

    Parameters
    ----------
    transport, subjects, asking
        What moves bytes, what subjects there are, and what waits for answers.
    name
        Who reads.
    reader
        What takes messages up.
    after, store
        The place up to which all was read, in an earlier life, and the store that it is one of.
    key
        By which it is written down how far this is.
    had
        What was read behind that place in an earlier life.
    waiting
        Events of another store that wait to be handed out first.
    window
        Events that may be handed out before those are acknowledged: so many may come again after a kill.
    """

    def __init__(
        self,
        transport: Transport,
        subjects: Subjects,
        asking: RequestClient,
        name: str,
        reader: FrameReceiver,
        *,
        after: int,
        store: str,
        key: str,
        had: ReadEvents | None = None,
        waiting: int = 0,
        window: int = WINDOW,
    ) -> None:
        check_window(window)
        self._transport, self._subjects, self._asking = transport, subjects, asking
        self._where = subjects.position(name, key)
        self._name, self._reader, self._window = name, reader, window
        self._had = ReadEvents() if had is None else had
        self.cursor = Cursor(after, last=self._had.subjects)
        #: Which store it reads.
        self.store = store
        self._before, self._first = after, True
        self._connections = transport.connections
        self._wake = asyncio.Event()
        # A replay: what it is called, how many messages of it came, and where the last is acknowledged.
        self._token, self._expected, self._ack = "", 0, ""
        # Where each message ends, in events that were added; how many of those were handed out; how many of
        # all are processed, with the highest place of a message and the last one of each subject; and what is
        # written down, and of how many.
        self._ends: deque[_End] = deque([_End(waiting, after, "")] if waiting else ())
        self._added, self._taken = waiting, 0
        self._done, self._lasts = (0, max([after, *self._had.subjects.values()])), dict(self._had.subjects)
        self._written, self._stored = written(after, store, self._had), 0
        self._storing = asyncio.Lock()
        self._ended = False
        #: What was handed out last, some of it perhaps of frames that are not processed whole.
        self._handed: deque[Event] = deque(maxlen=window)

    # ---- messages

    def hear(self, message: Message) -> None:
        """Take in a message as it comes."""
        if not message.number:
            return  # nobody stored it
        self._look()
        if message.number > self.cursor.after and not self._reader.room():
            self.cursor.forget(message)
            return
        for each in self.cursor.live(message):
            self._reader.accept(each)
        if self.cursor.behind:
            self._wake.set()

    def _look(self) -> None:
        """Note that messages may have been missed, when the connection is another."""
        if self._connections != self._transport.connections:
            self._connections = self._transport.connections
            self.cursor.lost()
            self._wake.set()

    def widen(self) -> None:
        """Note that a node knows of more subjects: a replay that began before brings nothing of them."""
        if self.cursor.replaying:
            self.cursor.lost()
            self._wake.set()

    async def run(self) -> None:
        """Have replayed what was missed, and write down how far this is, for as long as it runs."""
        stored = time.monotonic()
        while True:
            self._look()
            try:
                if self.cursor.behind and self._reader.room() and self._transport.connected:
                    await self._replay()
                if time.monotonic() - stored >= _STORE:
                    stored = time.monotonic()
                    await self.write()
            except NarrowcastError as error:
                log.warning("%s cannot read what is stored yet: %s", self._name, error)
                await asyncio.sleep(_LOOK)
            self._wake.clear()
            if not self.cursor.behind or not self._reader.room() or not self._transport.connected:
                await self._waited(_LOOK)

    async def _waited(self, seconds: float) -> bool:
        """Wait until something has happened; return whether it has in time."""
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return False
        return True

    async def _replay(self) -> None:
        """Have replayed what is behind the last message that was there."""
        await asyncio.sleep(_DRAIN)
        await _turns()
        token = self._token = secrets.token_hex(8)
        self._expected, self._ack = 0, ""
        after = self.cursor.begin()
        if self._first:  # what came shortly before too: it may have been stored twice
            after = max(0, after - BEFORE)
        inbox = await self._transport.subscribe(
            f"{self._subjects.replay(self._name)}.{token}", partial(self._replayed, token)
        )
        try:
            many = await self._reader.replay(after, token)
            self._look()
            if not many:
                self._caught_up()
            while self.cursor.replaying:
                self._look()
                if self._ack and self._reader.room():
                    ack, self._ack = self._ack, ""
                    await self._transport.publish(ack, b"+ACK")
                    continue  # more may have come meanwhile
                self._wake.clear()
                if not await self._waited(_STALLED) and self._reader.room():
                    raise TransportError(f"nothing is replayed for {_STALLED:g} s; asking again")
        finally:
            await inbox.aclose()
        self._first = self._first and self.cursor.behind

    def _replayed(self, token: str, message: Message) -> None:
        """Take in a message that is replayed."""
        self._look()
        if token != self._token or not self.cursor.replaying:
            return  # of one that is over
        place = delivery_of(message.reply)
        if place.consumer != self._expected + 1:  # some are missing
            self.cursor.lost()
            self._wake.set()
            return
        self._expected, self._ack = place.consumer, message.reply
        kept, out = self._subjects.stored(""), f"{self._subjects.prefix}.out."
        again = Message(out + message.subject.removeprefix(kept), message.payload, "", place.stream)
        if place.stream > self._before:
            self._first = False  # once is enough: another time later ones would be forgotten for these
        if place.stream <= max(self._before, self._had.subjects.get(again.subject, 0)):
            self._reader.remember(again)
        for each in self.cursor.replayed(again, pending=place.pending):
            self._reader.accept(each)
        self._wake.set()

    def _caught_up(self) -> None:
        """Go on with what came live."""
        for each in self.cursor.caught_up():
            self._reader.accept(each)

    # ---- how far it is

    def added(self, number: int, subject: str, many: int) -> None:
        """Note that a message brought so many events."""
        self._added += many
        self._ends.append(_End(self._added, number, subject))

    def left(self) -> int:
        """Return how many events may be handed out now."""
        return self._window - (self._taken - self._stored)

    def taken(self, events: list[Event]) -> None:
        """Note that events are handed out."""
        self._taken += len(events)
        self._handed.extend(events)
        if self.cursor.behind:
            self._wake.set()  # there is room for more

    def processed(self) -> None:
        """Note that all that was handed out is processed: who asks for more is done with what was before."""
        while self._ends and self._ends[0].many <= self._taken:
            many, number, subject = self._ends.popleft()
            self._done = many, max(number, self._done[1])
            self._lasts[subject] = number

    def paused(self) -> asyncio.Lock:
        """Return what keeps this from writing anything down, for the length of a block."""
        return self._storing

    def end(self) -> None:
        """Write nothing down any more, and let nobody wait for that."""
        self._ended = True

    async def write(self, *, last: bool = False) -> None:
        """Write down how far this is, if that is new; the `last` time to the event.

        That is a place up to which all is processed, and behind it what is processed of each subject: one may
        be far behind others, where something of it was missed.

        Raises
        ------
        TransportError
            When it is not stored.
        """
        async with self._storing:
            if self._ended:
                return
            done, after = self._done, self.cursor.after
            await _turns()
            # Messages of different subjects overtake one another: none before it may be unprocessed.
            unprocessed = (end.number - 1 for end in self._ends if end.number <= done[1])
            place = min([done[1], after, self.cursor.after, *unprocessed])
            said = written(place, self.store, self._had_behind(place, last=last))
            if said != self._written:
                await self._put(said)
            self._written, self._stored = said, done[0]

    async def _put(self, said: bytes) -> None:
        """Have it stored how far this is."""
        try:
            async with asyncio.timeout(_PATIENCE):
                why = error_of(await (await self._asking.send(self._where, said)))
        except TimeoutError:
            why = f"it does not answer within {_PATIENCE:g} s"
        if why is not None:
            raise TransportError(f"the NATS server does not store how far {self._name} is: {why}")

    def _had_behind(self, place: int, *, last: bool) -> ReadEvents:
        """Return what is processed behind a place; the `last` time with what was had of a frame."""
        events: dict[str, list[int]] = defaultdict(list)
        if place <= self._before:
            for publisher, numbers in self._had.events.items():
                events[publisher] += numbers
        many = self._taken - self._done[0] if last else 0
        for event in list(self._handed)[len(self._handed) - many :] if many else ():
            events[event.publisher].append(event.number)
        self._lasts = {
            subject: number
            for subject, number in self._lasts.items()
            if number > place or subject in self.cursor
        }
        behind = {subject: number for subject, number in self._lasts.items() if number > place}
        return ReadEvents(dict(events), behind)

    async def stored(self) -> None:
        """Wait until something may be handed out."""
        while self.left() <= 0 and not self._ended:
            try:
                await self.write()
            except TransportError as error:
                log.warning("%s waits: %s", self._name, error)
                await asyncio.sleep(_LOOK)


async def _turns() -> None:
    """Let all have their turn who have something to hear: each subject has a queue of its own."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def check_window(window: int) -> None:
    """Refuse a window in which no frame fits."""
    if window < LEAST:
        raise ParameterError(f"window is {window}; give at least {LEAST} events, as many as come together")
