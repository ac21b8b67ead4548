"""Subscribers: each event that one of their filters lets through, once."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from contextlib import suppress
from itertools import chain, repeat
from typing import TYPE_CHECKING, Self

import msgspec

from narrowcast.broker import wire
from narrowcast.broker.background_tasks import ended
from narrowcast.broker.clients.deduplication import Deduplicator
from narrowcast.broker.clients.event import Event
from narrowcast.broker.clients.frames import frame_of, picked
from narrowcast.broker.clients.request_client import PATIENCE, RequestClient
from narrowcast.broker.clients.stored_reader import WINDOW, StoredReader, check_window
from narrowcast.broker.clients.subscriber_filter import SubscriberFilter
from narrowcast.broker.clients.subscriber_reports import SubscriberReporter
from narrowcast.errors import InputError, NarrowcastError, ParameterError, TransportError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from narrowcast.broker.data.node_counts import SubscriberCounts
    from narrowcast.broker.transport import Inbox, Message, Transport

log = logging.getLogger(__name__)

#: Events that wait for their reader.
LIMIT = 1 << 18
#: Seconds after which a node that does not answer has died, where it does no harm to ask the next one.
_SOON = 2.0


class Subscriber:
    """Receives the events that match its filters, each once, in the order of their publisher.

    The order of a publisher's events holds within a channel of the plan, and for those that are sent
    directly. What comes over a channel that others share is filtered here.

    Parameters
    ----------
    transport
        What moves bytes.
    name
        Who subscribes. Subscriptions stay with the name when a subscriber goes.
    prefix
        As nodes have it.
    limit
        How many events may wait to be read; what comes then is dropped, and counted in `got`. Where
        events are stored none is dropped: it comes when there is room.
    window
        Where events are stored: how many may be handed out before those are acknowledged, which they are when
        more are asked for. After a kill no more than so many come again.
    patience
        Seconds to wait for a node.

    Examples
    --------
    >>> from narrowcast.broker import Desk, Interests, MemoryTransport, Node, Publisher
    >>> async def demo():
    ...     transport = MemoryTransport()
    ...     node = Node(transport, Desk(transport, Interests()))
    ...     await node.start()
    ...     async with Subscriber(transport, "ann") as ann:
    ...         await ann.subscribe("price > 75")
    ...         async with Publisher(transport) as publisher:
    ...             for price in (80, 70, 90):
    ...                 await publisher.publish({"price": price})
    ...         found = [(await anext(ann)).data for _ in range(2)]
    ...     await node.stop()
    ...     return found
    >>> asyncio.run(demo())
    [{'price': 80}, {'price': 90}]
    """

    def __init__(
        self,
        transport: Transport,
        name: str,
        *,
        prefix: str = "nc",
        limit: int = LIMIT,
        window: int = WINDOW,
        patience: float = PATIENCE,
    ) -> None:
        check_window(window)
        if not name:
            raise ParameterError("name is empty; give the subscriber one")
        if limit < 1:
            raise ParameterError(f"limit is {limit}; let at least 1 event wait")
        self.name, self._transport, self._subjects = name, transport, wire.Subjects(prefix)
        self._asking = RequestClient(transport, self._subjects.inbox(name))
        self._patience, self._limit, self._window = patience, limit, window
        self._life = secrets.token_hex(8)
        #: What is stored is read, where anything is.
        self._reading: StoredReader | None = None
        self._keeping: asyncio.Task[None] | None = None
        #: Whether another of its name reads what is stored from now on.
        self.replaced = False
        self._standing: wire.SubscriberState | None = None
        self._channels: dict[tuple[int, int], Inbox] = {}
        self._fixed: list[Inbox] = []
        self._obeying: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        #: Frames that are to be looked through for what is wanted, and whether somebody will.
        self._loose: list[tuple[str, wire.Frame, int]] = []
        self._soon = False
        self._changing = asyncio.Lock()
        self._sieve: SubscriberFilter | None = None
        self._seen = Deduplicator()
        self._events: deque[Event] = deque()
        self._arrived = asyncio.Event()
        self._closed = False
        self._account = SubscriberReporter(transport, self._subjects.ask(name), name)
        self._telling: asyncio.Task[None] | None = None

    # ---- what it wants

    async def start(self) -> Self:
        """Begin to listen to what is for this subscriber."""
        await self._asking.start()
        of = self._subjects
        for subject in (of.to(self.name), of.everybody):
            self._fixed.append(await self._transport.subscribe(subject, self._hear))
        control = await self._transport.subscribe(of.control(self.name))
        self._fixed.append(control)
        self._obeying = asyncio.create_task(self._obey(control))
        beats = await self._transport.subscribe(of.beats)
        self._fixed.append(beats)
        self._watching = asyncio.create_task(self._watch(beats))
        standing = await self._ask(wire.Hello(self.name, self._life))
        if standing.after is not None:
            self._seen = Deduplicator(patient=True)
            await self._read_from(standing)
        await self._take_up(standing)
        self._telling = asyncio.create_task(self._account.run())
        return self

    async def _read_from(self, standing: wire.SubscriberState) -> None:
        """Read what is stored from where this was, and no longer what was in a store that is gone."""
        assert standing.after is not None
        for publisher, numbers in standing.had.events.items():
            self._seen.fresh(publisher, numbers)
        if self._reading is not None:
            self._reading.end()
            await ended(self._keeping)
            self._flush()  # what came of the old one
        self._reading = StoredReader(
            self._transport,
            self._subjects,
            self._asking,
            self.name,
            self,
            after=standing.after,
            store=standing.store,
            key=standing.key,
            had=standing.had,
            waiting=len(self._events),
            window=self._window,
        )
        self._keeping = asyncio.create_task(self._reading.run())

    async def subscribe(self, *filters: str) -> list[int]:
        """Subscribe to what filters let through, and return the ids of these subscriptions.

        Every event that is published after this returns is matched with them.

        Raises
        ------
        InputError
            When one cannot be used: then none is.
        """
        if not filters:
            raise ParameterError("there is no filter; give at least one")
        answer = await self._ask(wire.AddFilters(self.name, list(filters)))
        await self._take_up(answer)
        return answer.added

    async def unsubscribe(self, *subscription_ids: int) -> None:
        """Give up subscriptions by id."""
        await self._take_up(await self._ask(wire.RemoveSubscriptions(self.name, list(subscription_ids))))

    @property
    def stored(self) -> bool:
        """Whether what is for it is stored until it has read it."""
        return self._reading is not None

    @property
    def got(self) -> SubscriberCounts:
        """What came: events that were none of its own, that had come before, and that found no room."""
        return self._account.got

    @property
    def filters(self) -> dict[int, str]:
        """Its filters by subscription id, as far as it has heard."""
        return {} if self._standing is None else dict(self._standing.filters)

    async def _ask(self, request: wire.Request, patience: float | None = None) -> wire.SubscriberState:
        """Ask a node, and return what holds then."""
        answer = await self._answer(request, patience)
        if not isinstance(answer, wire.SubscriberState):
            raise self._odd()
        return answer

    async def _answer(self, request: wire.Request, patience: float | None = None) -> wire.Answer:
        """Ask a node, and return its answer."""
        subject, seconds = self._subjects.ask(self.name), self._patience if patience is None else patience
        said = await self._asking.ask(subject, wire.encode(request), patience=seconds)
        answer: wire.Answer = wire.decode_answer(said)
        if isinstance(answer, wire.Refusal):
            raise InputError(answer.reason)
        return answer

    def _odd(self) -> TransportError:
        """Return what is wrong with an answer of another kind."""
        where = self._subjects.ask(self.name)
        return TransportError(f"a node answers {where} with something else; is it of another version?")

    # ---- what it listens to

    async def _obey(self, control: Inbox) -> None:
        """Do what nodes say about channels."""
        async for message in control:
            try:
                order = wire.decode_answer(message.payload)
            except (msgspec.MsgspecError, UnicodeError):
                continue  # somebody else's; nodes write what can be read
            try:
                if isinstance(order, wire.SubscriberState):
                    await self._take_up(order)
                elif isinstance(order, wire.PreparePlan):
                    await self._join(order.epoch, order.channels)
                elif isinstance(order, wire.ReaderReplaced) and order.life != self._life:
                    self._give_way()
            except TransportError as error:  # nodes send directly to who does not say that it listens
                log.warning("%s does not listen to its channels: %s", self.name, error)

    def _give_way(self) -> None:
        """Let another of this name read: hand out nothing more, and write nothing down."""
        self.replaced = True
        if self._reading is not None:
            self._reading.end()
        self._events.clear()
        self._arrived.set()

    async def _watch(self, beats: Inbox) -> None:
        """Say hello again when the first node is another: it does not know who listens to what.

        Where it keeps no subscriptions, or is one that was restored, it is told of them again.
        """
        async for message in beats:
            try:
                beat = wire.decode_beat(message.payload)
            except (msgspec.MsgspecError, UnicodeError):
                continue  # somebody else's
            had = self._standing
            if had is None or had.since == beat.since:
                continue
            try:
                now, restored = await self._greet()
                left = [had.filters[n] for n in had.filters if n not in now.filters]
                lost = left if restored or not now.kept else []
                if lost:
                    now = await self._ask(wire.AddFilters(self.name, lost))
                log.info("the broker is another: %s subscribes anew to %d filters", self.name, len(lost))
                await self._take_up(now)
                await self._join(now.epoch, now.channels)
            except NarrowcastError as error:  # again at the next beat
                log.warning("%s cannot say hello to the broker: %s", self.name, error)

    async def _greet(self) -> tuple[wire.SubscriberState, bool]:
        """Say hello to another first node; return what holds, and whether what it has stored is another."""
        hello = wire.Hello(self.name, self._life)
        if self._reading is None:
            return await self._ask(hello, _SOON), False
        async with self._reading.paused():  # a place of a store that is gone is not written into the next
            now = await self._ask(hello, _SOON)
            if now.after is None or now.store == self._reading.store:
                return now, False
            log.warning("the broker was restored: %s goes on from where it was then", self.name)
            await self._read_from(now)
        return now, True

    async def _take_up(self, standing: wire.SubscriberState) -> None:
        """Take up what holds now: filters, and channels of the plan in use."""
        async with self._changing:
            now = self._standing
            if now is not None and standing.change < now.change:
                return  # it was overtaken
            self._standing = standing
            if now is None or (now.schema, now.filters) != (standing.schema, standing.filters):
                self._sieve = None
            kept = {(standing.epoch, channel) for channel in standing.channels}
            gone = [key for key in self._channels if key not in kept and key[0] != standing.prepared]
        if kept - set(self._channels):
            await self._join(standing.epoch, standing.channels)
        for key in gone:
            inbox = self._channels.pop(key, None)
            if inbox is not None:
                await inbox.aclose()  # what has come is still read
                if self._reading is not None:
                    self._reading.cursor.leave(self._subjects.channel(*key))

    async def _join(self, epoch: int, channels: Sequence[int]) -> None:
        """Listen to channels, and say so."""
        for channel in channels:
            if (epoch, channel) not in self._channels:
                subject = self._subjects.channel(epoch, channel)
                if self._reading is not None:
                    self._reading.cursor.join(subject)
                self._channels[epoch, channel] = await self._transport.subscribe(subject, self._hear)
        said = wire.encode(wire.ChannelsJoined(self.name, epoch, list(channels)))
        await self._asking.send(self._subjects.ask(self.name), said)
        if self._reading is not None:  # what is asked of the node now it is asked after that
            self._reading.widen()

    # ---- what it gets

    def _hear(self, message: Message) -> None:
        """Take in a frame as it comes."""
        if self._reading is not None:
            self._reading.hear(message)
        elif not message.number:  # else it is stored, and comes again when it is known how far this is
            self.accept(message)

    def room(self) -> bool:
        """Return whether more events may come."""
        return len(self._events) < self._limit

    async def replay(self, after: int, token: str) -> int:
        """Ask for what was stored behind a place; return how many messages come."""
        store = "" if self._reading is None else self._reading.store
        answer = await self._answer(wire.ReplayRequest(self.name, after, token, store), _SOON)
        if not isinstance(answer, wire.ReplayStarted):
            raise self._odd()
        return answer.messages

    def remember(self, message: Message) -> None:
        """Note that events of a frame were here in an earlier life: they may be stored twice."""
        frame = frame_of(message)
        if frame is not None:
            start, numbers = 0, frame.ids()
            for publisher, many in frame.runs:
                self._seen.fresh(publisher, numbers[start : start + many])
                start += many

    def accept(self, message: Message) -> None:
        """Take up a frame: all of it, or what the filters let through."""
        frame = frame_of(message)
        if frame is None:
            if self._reading is not None:
                self._reading.added(message.number, message.subject, 0)
            return
        self.got.arriving.add(max(0.0, time.time() - frame.since), len(frame.payloads))
        standing = self._standing
        if standing is not None and frame.exact == standing.version:
            if self._loose:
                self._flush()  # in order
            self._put(frame, message.subject, message.number)
            return
        self._loose.append((message.subject, frame, message.number))
        if not self._soon:  # with all that has come until then
            self._soon = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Keep what the filters let through."""
        self._soon = False
        if not self._loose:
            return
        loose, self._loose = self._loose, []
        if self._standing is None:
            return
        if self._sieve is None:  # made when it is needed, which with no plan is never
            self._sieve = SubscriberFilter(self._standing.schema, self._standing.filters.values())
        flags = self._sieve.wanted(list(chain.from_iterable(frame.payloads for _, frame, _ in loose)))
        self.got.filtered += flags.count(False)
        start = 0
        for subject, frame, number in loose:
            self._put(frame, subject, number, flags[start : start + len(frame.payloads)])
            start += len(frame.payloads)

    def _put(self, frame: wire.Frame, subject: str, number: int, wanted: list[bool] | None = None) -> None:
        """Hand over events that were not there before; of some frames only those wanted."""
        every, start, before = frame.ids(), 0, len(self._events)
        for publisher, many in frame.runs:
            own, payloads = every, frame.payloads
            if many < len(every):
                own, payloads = own[start : start + many], payloads[start : start + many]
            if wanted is not None:
                own, payloads = picked(wanted[start : start + many], own, payloads)
            start += many
            fresh = self._seen.fresh(publisher, own)
            if fresh is not None:
                self.got.repeated += fresh.count(False)
                own, payloads = picked(fresh, own, payloads)
            room = self._limit - len(self._events)
            if len(own) > room and self._reading is None:
                self.got.dropped += len(own) - room
                own = own[:room]
            self._events.extend(map(Event, repeat(publisher), own, payloads, repeat(subject)))
        if self._reading is not None:
            self._reading.added(number, subject, len(self._events) - before)
        if self._events:
            self._arrived.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """Wait for the next event."""
        found = await self.take(1)
        if not found:
            raise StopAsyncIteration
        return found[0]

    async def take(self, most: int) -> list[Event]:
        """Wait for an event, and return all that are there, so many at most; none when it has ended.

        Where events are stored, those that were returned before are acknowledged.

        Raises
        ------
        TransportError
            When it was not started; or when another of its name reads what is stored, from now on.
        """
        if self._reading is not None and not self._closed:
            self._reading.processed()
            await self._reading.stored()
            most = min(most, self._reading.left())
        while self.replaced or not self._events:
            if self._closed:
                return []
            self._asking.check()
            if self.replaced:
                raise TransportError(
                    f"another {self.name!r} reads what is stored from now on; give each a name of its own"
                )
            self._arrived.clear()
            with suppress(TimeoutError):  # and sees then whether it may still come
                async with asyncio.timeout(_SOON):
                    await self._arrived.wait()
        if len(self._events) <= most:
            found = list(self._events)
            self._events.clear()
        else:
            found = [self._events.popleft() for _ in range(most)]
        if self._reading is not None:
            self._reading.taken(found)
        return found

    async def aclose(self, *, processed: bool = True) -> None:
        """Stop listening; its subscriptions stay, and what has come can still be read.

        Where events are stored, what was handed out is acknowledged if it was `processed`, and what was not
        comes when a subscriber of this name starts again.
        """
        if self._closed:
            return
        await ended(self._keeping, self._telling)
        if self._reading is not None:
            if processed:
                self._reading.processed()
            with suppress(TransportError):
                await self._reading.write(last=processed)
        if self._standing is not None and not self.replaced:
            with suppress(TransportError):
                await self._account.report()
                bye = wire.encode(wire.Bye(self.name))
                await self._asking.send(self._subjects.ask(self.name), bye)
        for inbox in [*self._fixed, *self._channels.values()]:
            await inbox.aclose()
        await ended(self._watching)
        if self._obeying is not None:
            await self._obeying
        self._channels.clear()
        self._flush()
        await self._asking.aclose()
        self._closed = True
        if self._reading is not None:
            self._events.clear()
        self._arrived.set()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose(processed=error is None)
