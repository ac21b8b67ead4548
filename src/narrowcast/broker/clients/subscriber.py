"""Subscriber, which receives each event that matches one of its filters once."""

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
from narrowcast.broker.background_tasks import cancel_tasks
from narrowcast.broker.clients.deduplication import Deduplicator
from narrowcast.broker.clients.event import Event
from narrowcast.broker.clients.frames import parse_frame, select
from narrowcast.broker.clients.request_client import PATIENCE, RequestClient
from narrowcast.broker.clients.stored_reader import WINDOW, StoredReader, check_window
from narrowcast.broker.clients.subscriber_filter import SubscriberFilter
from narrowcast.broker.clients.subscriber_reports import SubscriberReporter
from narrowcast.deprecation import renamed_members
from narrowcast.errors import InputError, NarrowcastError, ParameterError, TransportError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from narrowcast.broker.data.node_counts import SubscriberCounts
    from narrowcast.broker.transport import Inbox, Message, Transport

log = logging.getLogger(__name__)

#: Default number of received events that may wait to be read.
LIMIT = 1 << 18
#: Timeout in seconds of requests that can safely be repeated, since the next attempt may reach another node.
_FAILOVER = 2.0


@renamed_members(got="counts")
class Subscriber:
    """Receives the events that match its filters, each once, in the order of their publisher.

    The order of a publisher's events holds within a channel of the plan, and among events that are sent
    directly. Events from a channel that is shared with other subscribers are filtered here.

    Parameters
    ----------
    transport
        Connection to the broker.
    name
        Name of the subscriber. Its subscriptions remain when the subscriber disconnects.
    prefix
        Prefix of the broker's subjects; the same as on the nodes (default: nc).
    limit
        Received events that may wait to be read, at least 1 (default: 262,144). Further events are dropped
        and counted in `counts`; where the broker stores events, they are delivered later instead.
    window
        Where the broker stores events: events that may be delivered before they are acknowledged, at least
        256 (default: 1,024). Taking more events acknowledges those taken before. After a crash at most this
        number is delivered again.
    patience
        Seconds to wait for a node (default: 10).

    Examples
    --------
    >>> from narrowcast.broker import ControlPlane, MemoryTransport, Node, Publisher, SubscriptionIndex
    >>> async def demo():
    ...     transport = MemoryTransport()
    ...     node = Node(transport, ControlPlane(transport, SubscriptionIndex()))
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
            raise ParameterError(parameter="name", value=name, limit="a non-empty string")
        if limit < 1:
            raise ParameterError(parameter="limit", value=limit, limit="at least 1 event")
        self.name, self._transport, self._subjects = name, transport, wire.Subjects(prefix)
        self._requests = RequestClient(transport, self._subjects.inbox(name))
        self._patience, self._limit, self._window = patience, limit, window
        self._session_id = secrets.token_hex(8)
        #: The reader of stored events, where the broker stores events.
        self._stored_reader: StoredReader | None = None
        self._reader_task: asyncio.Task[None] | None = None
        #: Whether a later subscriber of the same name reads the stored events instead of this one.
        self.replaced = False
        self._state: wire.SubscriberState | None = None
        self._channels: dict[tuple[int, int], Inbox] = {}
        self._inboxes: list[Inbox] = []
        self._control_task: asyncio.Task[None] | None = None
        self._heartbeat_task: asyncio.Task[None] | None = None
        #: Frames that are still to be filtered, and whether `_flush` is scheduled to do so.
        self._unfiltered: list[tuple[str, wire.Frame, int]] = []
        self._flush_scheduled = False
        self._state_lock = asyncio.Lock()
        self._filter: SubscriberFilter | None = None
        self._deduplicator = Deduplicator()
        self._events: deque[Event] = deque()
        self._arrived = asyncio.Event()
        self._closed = False
        self._reporter = SubscriberReporter(transport, self._subjects.ask(name), name)
        self._report_task: asyncio.Task[None] | None = None

    # ---- subscriptions

    async def start(self) -> Self:
        """Connect to a node and begin to receive events.

        Raises
        ------
        TransportError
            When no node answers in time.
        """
        await self._requests.start()
        of = self._subjects
        for subject in (of.to(self.name), of.broadcast):
            self._inboxes.append(await self._transport.subscribe(subject, self._receive))
        control = await self._transport.subscribe(of.control(self.name))
        self._inboxes.append(control)
        self._control_task = asyncio.create_task(self._follow_control(control))
        beats = await self._transport.subscribe(of.beats)
        self._inboxes.append(beats)
        self._heartbeat_task = asyncio.create_task(self._watch_heartbeats(beats))
        state = await self._ask(wire.Hello(self.name, self._session_id))
        if state.after is not None:
            self._deduplicator = Deduplicator(active_time=True)
            await self._start_reading(state)
        await self._apply_state(state)
        self._report_task = asyncio.create_task(self._reporter.run())
        return self

    async def _start_reading(self, state: wire.SubscriberState) -> None:
        """Start to read stored events at the known position; end the reader of an earlier store, if any."""
        assert state.after is not None
        for publisher, numbers in state.had.events.items():
            self._deduplicator.register(publisher, numbers)
        if self._stored_reader is not None:
            self._stored_reader.stop_writing()
            await cancel_tasks(self._reader_task)
            self._flush()  # frames from the earlier store
        self._stored_reader = StoredReader(
            self._transport,
            self._subjects,
            self._requests,
            self.name,
            self,
            after=state.after,
            store=state.store,
            key=state.key,
            already_read=state.had,
            n_waiting=len(self._events),
            window=self._window,
        )
        self._reader_task = asyncio.create_task(self._stored_reader.run())

    async def subscribe(self, *filters: str) -> list[int]:
        """Subscribe to events by filters; return the ids of the subscriptions.

        Every event that is published after this returns is matched with them.

        Raises
        ------
        InputError
            When a filter is invalid; then none of them is added.
        """
        if not filters:
            raise ParameterError(parameter="filters", value=filters, limit="at least one filter")
        answer = await self._ask(wire.AddFilters(self.name, list(filters)))
        await self._apply_state(answer)
        return answer.added

    async def unsubscribe(self, *subscription_ids: int) -> None:
        """Remove subscriptions by id."""
        await self._apply_state(await self._ask(wire.RemoveSubscriptions(self.name, list(subscription_ids))))

    @property
    def stored(self) -> bool:
        """Whether the broker stores this subscriber's events until they are read (at least once)."""
        return self._stored_reader is not None

    @property
    def counts(self) -> SubscriberCounts:
        """Counts of received events that matched no filter, were repeated, or were dropped."""
        return self._reporter.counts

    @property
    def filters(self) -> dict[int, str]:
        """Filters by subscription id, as reported by the nodes last."""
        return {} if self._state is None else dict(self._state.filters)

    async def _ask(self, request: wire.Request, patience: float | None = None) -> wire.SubscriberState:
        """Send a request to a node; return the subscriber's state after it."""
        answer = await self._answer(request, patience)
        if not isinstance(answer, wire.SubscriberState):
            raise self._unexpected_answer()
        return answer

    async def _answer(self, request: wire.Request, patience: float | None = None) -> wire.Answer:
        """Send a request to a node; return the answer, or raise an error when the node refuses."""
        subject, seconds = self._subjects.ask(self.name), self._patience if patience is None else patience
        payload = await self._requests.ask(subject, wire.encode(request), patience=seconds)
        answer: wire.Answer = wire.decode_answer(payload)
        if isinstance(answer, wire.Refusal):
            raise InputError(answer.reason)
        return answer

    def _unexpected_answer(self) -> TransportError:
        """Return the error for an answer of an unexpected type."""
        where = self._subjects.ask(self.name)
        return TransportError(
            f"subject {where}: unexpected type of answer from a node; run one version on all machines"
        )

    # ---- channels

    async def _follow_control(self, control: Inbox) -> None:
        """Follow the messages of nodes about channels and subscriptions."""
        async for message in control:
            try:
                order = wire.decode_answer(message.payload)
            except (msgspec.MsgspecError, UnicodeError):
                continue  # not from a node: nodes send valid messages
            try:
                if isinstance(order, wire.SubscriberState):
                    await self._apply_state(order)
                elif isinstance(order, wire.PreparePlan):
                    await self._join_channels(order.epoch, order.channels)
                elif isinstance(order, wire.ReaderReplaced) and order.life != self._session_id:
                    self._stop_reading()
            except TransportError as error:  # nodes send directly to a subscriber that has not joined
                log.warning("subscriber %r cannot join its channels: %s", self.name, error)

    def _stop_reading(self) -> None:
        """Stop, since a later subscriber of this name reads instead: deliver no events, store no position."""
        self.replaced = True
        if self._stored_reader is not None:
            self._stored_reader.stop_writing()
        self._events.clear()
        self._arrived.set()

    async def _watch_heartbeats(self, beats: Inbox) -> None:
        """Register again when the coordinating node has restarted, since it does not know who has joined.

        Where that node has lost the subscriptions, or was restored from a backup, they are added again.
        """
        async for message in beats:
            try:
                beat = wire.decode_beat(message.payload)
            except (msgspec.MsgspecError, UnicodeError):
                continue  # not from a node
            before = self._state
            if before is None or before.since == beat.since:
                continue
            try:
                now, restored = await self._say_hello()
                left = [before.filters[n] for n in before.filters if n not in now.filters]
                lost = left if restored or not now.kept else []
                if lost:
                    now = await self._ask(wire.AddFilters(self.name, lost))
                log.info("subscriber %r: the broker restarted, adding %d filters again", self.name, len(lost))
                await self._apply_state(now)
                await self._join_channels(now.epoch, now.channels)
            except NarrowcastError as error:  # again at the next beat
                log.warning("subscriber %r cannot register with the broker: %s", self.name, error)

    async def _say_hello(self) -> tuple[wire.SubscriberState, bool]:
        """Register with a restarted node; return the state, and whether its store is a different one."""
        hello = wire.Hello(self.name, self._session_id)
        if self._stored_reader is None:
            return await self._ask(hello, _FAILOVER), False
        async with self._stored_reader.position_lock():  # no position of the old store goes into the new one
            now = await self._ask(hello, _FAILOVER)
            if now.after is None or now.store == self._stored_reader.store:
                return now, False
            log.warning("subscriber %r: the broker was restored, reading from its stored position", self.name)
            await self._start_reading(now)
        return now, True

    async def _apply_state(self, state: wire.SubscriberState) -> None:
        """Apply a new state: filters, and channels of the plan in use."""
        async with self._state_lock:
            now = self._state
            if now is not None and state.change < now.change:
                return  # it was overtaken
            self._state = state
            if now is None or (now.schema, now.filters) != (state.schema, state.filters):
                self._filter = None
            kept = {(state.epoch, channel) for channel in state.channels}
            gone = [key for key in self._channels if key not in kept and key[0] != state.prepared]
        if kept - set(self._channels):
            await self._join_channels(state.epoch, state.channels)
        for key in gone:
            inbox = self._channels.pop(key, None)
            if inbox is not None:
                await inbox.aclose()  # messages that have arrived are still read
                if self._stored_reader is not None:
                    self._stored_reader.cursor.leave(self._subjects.channel(*key))

    async def _join_channels(self, epoch: int, channels: Sequence[int]) -> None:
        """Subscribe to channels, and report it to the nodes."""
        for channel in channels:
            if (epoch, channel) not in self._channels:
                subject = self._subjects.channel(epoch, channel)
                if self._stored_reader is not None:
                    self._stored_reader.cursor.join(subject)
                self._channels[epoch, channel] = await self._transport.subscribe(subject, self._receive)
        payload = wire.encode(wire.ChannelsJoined(self.name, epoch, list(channels)))
        await self._requests.send(self._subjects.ask(self.name), payload)
        if self._stored_reader is not None:  # the node handles a new request after this report
            self._stored_reader.restart_replay()

    # ---- events

    def _receive(self, message: Message) -> None:
        """Handle a live frame."""
        if self._stored_reader is not None:
            self._stored_reader.receive(message)
        elif not message.number:  # a stored frame is read again once the position is known
            self.accept(message)

    def has_room(self) -> bool:
        """Return whether the queue of received events is below its limit."""
        return len(self._events) < self._limit

    async def request_replay(self, after: int, token: str) -> int:
        """Ask a node to replay what is stored after a position; return the number of messages."""
        store = "" if self._stored_reader is None else self._stored_reader.store
        answer = await self._answer(wire.ReplayRequest(self.name, after, token, store), _FAILOVER)
        if not isinstance(answer, wire.ReplayStarted):
            raise self._unexpected_answer()
        return answer.messages

    def mark_seen(self, message: Message) -> None:
        """Remember events of a frame that was read before a restart: they may be stored twice."""
        frame = parse_frame(message)
        if frame is not None:
            start, numbers = 0, frame.ids()
            for publisher, many in frame.runs:
                self._deduplicator.register(publisher, numbers[start : start + many])
                start += many

    def accept(self, message: Message) -> None:
        """Queue the events of a frame: all of them, or those that match the filters."""
        frame = parse_frame(message)
        if frame is None:
            if self._stored_reader is not None:
                self._stored_reader.add_frame(message.number, message.subject, 0)
            return
        self.counts.arriving.add(max(0.0, time.time() - frame.since), len(frame.payloads))
        state = self._state
        if state is not None and frame.exact == state.version:
            if self._unfiltered:
                self._flush()  # earlier frames first
            self._queue_events(frame, message.subject, message.number)
            return
        self._unfiltered.append((message.subject, frame, message.number))
        if not self._flush_scheduled:  # it filters all frames that arrive until it runs
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Filter the waiting frames, and queue the events that match."""
        self._flush_scheduled = False
        if not self._unfiltered:
            return
        loose, self._unfiltered = self._unfiltered, []
        if self._state is None:
            return
        if self._filter is None:  # compiled on first use: without a plan it is never needed
            self._filter = SubscriberFilter(self._state.schema, self._state.filters.values())
        flags = self._filter.matches(list(chain.from_iterable(frame.payloads for _, frame, _ in loose)))
        self.counts.filtered += flags.count(False)
        start = 0
        for subject, frame, number in loose:
            self._queue_events(frame, subject, number, flags[start : start + len(frame.payloads)])
            start += len(frame.payloads)

    def _queue_events(
        self, frame: wire.Frame, subject: str, number: int, wanted: list[bool] | None = None
    ) -> None:
        """Queue the new events of a frame, of those flagged in `wanted` if it is given."""
        every, start, before = frame.ids(), 0, len(self._events)
        for publisher, many in frame.runs:
            own, payloads = every, frame.payloads
            if many < len(every):
                own, payloads = own[start : start + many], payloads[start : start + many]
            if wanted is not None:
                own, payloads = select(wanted[start : start + many], own, payloads)
            start += many
            fresh = self._deduplicator.register(publisher, own)
            if fresh is not None:
                self.counts.repeated += fresh.count(False)
                own, payloads = select(fresh, own, payloads)
            room = self._limit - len(self._events)
            if len(own) > room and self._stored_reader is None:
                self.counts.dropped += len(own) - room
                own = own[:room]
            self._events.extend(map(Event, repeat(publisher), own, payloads, repeat(subject)))
        if self._stored_reader is not None:
            self._stored_reader.add_frame(number, subject, len(self._events) - before)
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
        """Wait for an event; return all events that have arrived, or none once the subscriber is closed.

        Where the broker stores events, this acknowledges those returned before.

        Parameters
        ----------
        most
            Events to return, at most.

        Raises
        ------
        TransportError
            When the subscriber is not started, or a later subscriber of its name reads the stored events.
        """
        if self._stored_reader is not None and not self._closed:
            self._stored_reader.mark_processed()
            await self._stored_reader.wait_for_acknowledgement()
            most = min(most, self._stored_reader.n_allowed())
        while self.replaced or not self._events:
            if self._closed:
                return []
            self._requests.check()
            if self.replaced:
                raise TransportError(
                    f"subscriber {self.name!r}: another subscriber of this name reads its stored events now; "
                    "use one name for each",
                    parameter="name",
                    value=self.name,
                )
            self._arrived.clear()
            with suppress(TimeoutError):  # then check again that events can still arrive
                async with asyncio.timeout(_FAILOVER):
                    await self._arrived.wait()
        if len(self._events) <= most:
            found = list(self._events)
            self._events.clear()
        else:
            found = [self._events.popleft() for _ in range(most)]
        if self._stored_reader is not None:
            self._stored_reader.mark_delivered(found)
        return found

    async def aclose(self, *, processed: bool = True) -> None:
        """Stop receiving; the subscriptions remain, and events that have arrived can still be read.

        Where the broker stores events, unread and unacknowledged ones are delivered when a subscriber of this
        name starts again.

        Parameters
        ----------
        processed
            Whether events taken from the subscriber are processed: then they are acknowledged.
        """
        if self._closed:
            return
        await cancel_tasks(self._reader_task, self._report_task)
        if self._stored_reader is not None:
            if processed:
                self._stored_reader.mark_processed()
            with suppress(TransportError):
                await self._stored_reader.write_position(last=processed)
        if self._state is not None and not self.replaced:
            with suppress(TransportError):
                await self._reporter.report()
                bye = wire.encode(wire.Bye(self.name))
                await self._requests.send(self._subjects.ask(self.name), bye)
        for inbox in [*self._inboxes, *self._channels.values()]:
            await inbox.aclose()
        await cancel_tasks(self._heartbeat_task)
        if self._control_task is not None:
            await self._control_task
        self._channels.clear()
        self._flush()
        await self._requests.aclose()
        self._closed = True
        if self._stored_reader is not None:
            self._events.clear()
        self._arrived.set()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose(processed=error is None)
