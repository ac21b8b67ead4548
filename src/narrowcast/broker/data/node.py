"""A node: takes events, finds who wants them, and sends them by the plan."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import replace

from narrowcast.broker import wire
from narrowcast.broker.background_tasks import ended
from narrowcast.broker.clients.deduplication import EVENTS
from narrowcast.broker.control.subscription_index import SubscriptionIndex
from narrowcast.broker.data.decode import LARGEST, Decoder
from narrowcast.broker.data.egress import LiveEgress, StoredEgress
from narrowcast.broker.data.incoming_events import IncomingEvents
from narrowcast.broker.data.ingress import LiveIngress, StoredIngress
from narrowcast.broker.data.node_counts import NodeCounts
from narrowcast.broker.data.routing_state import PlanEpoch, RoutingSnapshot, no_routes
from narrowcast.broker.limits import LONGEST_NAME
from narrowcast.errors import InputError, ParameterError, TransportError
from narrowcast.files import first_line
from narrowcast.jetstream.api import delivery_of
from narrowcast.model.subjects import name_of
from narrowcast.routing import ChannelRouter, RouteMethod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from narrowcast.broker.data.activity_log import ActivityLog
    from narrowcast.broker.data.ingress import Ingress
    from narrowcast.broker.data.rate_limit import PublishRateLimit
    from narrowcast.broker.data.routing_state import ControlState, RoutedEvents
    from narrowcast.broker.storage.dead_letters import DeadLetters
    from narrowcast.broker.storage.streams import EventStreams
    from narrowcast.broker.transport import Message, Transport
    from narrowcast.routing import Deliveries, Router

    #: A message, and its events where it has any.
    Taken = tuple[Message, wire.PublishedBatch | None]

log = logging.getLogger(__name__)

#: Seconds to wait for more events, at most.
LINGER = 0.03
#: Seconds to wait before the next try when the server is gone.
_PAUSE = 0.2
#: Events of a frame that is stored, at most: a subscriber acknowledges frames.
STORED = 256
#: Events that are looked at in one go, at most; no message has more. What a node was not done with when it
#: was killed comes again, and perhaps what was before that: subscribers remember twice as many.
TURN = EVENTS // 2
#: Seconds that the clock of a publisher may be away from this one's, or its events have waited, at most:
#: else it is not said when they were sent.
_AWAY = 7 * 86_400.0
#: Reasons that are told apart: whoever sends garbage does not fill the memory.
_REASONS = 1000
_FAILED = "the node failed to send it; its log says why"
#: How a batch of a publisher's begins: as an array of MessagePack, which no JSON does.
_BATCH = (b"\x93", b"\x94", b"\x95", b"\xdc")


class Node:
    """Delivers every event to those who want it.

    Parameters
    ----------
    transport
        What moves bytes.
    holding
        Who subscribes to what, and which plan is used: a `Desk`, or for other nodes beside it a `Follower`.
    partitions
        Into how many parts publishers are divided.
    mine
        Which of them this node takes; all where left out.
    batch
        Messages from publishers that are looked at in one go, at most.
    linger
        Seconds that it waits for more events when it has taken all there were, at most: as long as the last
        ones took it to send. So with few events none waits for long, and with many they go together, which
        takes everybody less time.
    largest
        Bytes of the largest event that is taken.
    record
        Where events and their routes are written down, if anywhere.
    router
        What decides which way an event goes; what the plan says where left out.
    quarantine
        Where events are kept that cannot be used, if anywhere.
    pace
        How many events a second a publisher may send, if there is a limit.
    streams
        Where events are stored until subscribers have them: at least once. Without, what is on its way when
        a process dies is lost: at most once.
    """

    def __init__(
        self,
        transport: Transport,
        holding: ControlState,
        *,
        partitions: int = 16,
        mine: list[int] | None = None,
        batch: int = 256,
        linger: float = LINGER,
        largest: int = LARGEST,
        record: ActivityLog | None = None,
        router: Router | None = None,
        quarantine: DeadLetters | None = None,
        pace: PublishRateLimit | None = None,
        streams: EventStreams | None = None,
    ) -> None:
        if partitions < 1 or batch < 1:
            raise ParameterError(f"partitions is {partitions} and batch {batch}; give at least 1 of each")
        if not 0 <= linger <= 60:
            raise ParameterError(f"linger is {linger}; give seconds from 0 to 60")
        own = list(range(partitions)) if mine is None else mine
        if odd := [part for part in own if not 0 <= part < partitions]:
            raise ParameterError(f"partition {odd[0]} is not there; they are 0 to {partitions - 1}")
        self._transport = transport
        self.subjects, self.partitions, self._mine = holding.subjects, partitions, own
        self._sending = asyncio.Lock()
        #: What holds.
        self.holding = holding
        holding.settle = self._settled
        self._batch, self._linger, self._largest = batch, linger, largest
        self._record = record
        self._router = ChannelRouter() if router is None else router
        #: Events that could not be used.
        self.quarantine = quarantine
        self.counts = NodeCounts()
        #: Messages of publishers that wait.
        self.waiting = 0
        # Events that come without a publisher's name have this node's, and numbers that no other start has.
        self._name, self._plain = f"node-{secrets.token_hex(8)}", time.time_ns()
        self._tasks: list[asyncio.Task[None]] = []
        self._streams, self._pace = streams, pace
        self.storing = None if streams is None else StoredEgress(transport, self.subjects)
        self._outlet = LiveEgress(transport) if self.storing is None else self.storing
        #: Events that cannot be used and are not kept yet.
        self._unkept: list[tuple[str, int, str, bytes]] = []
        self._known: tuple[tuple[int, ...], RoutingSnapshot, Decoder] | None = None

    async def start(self) -> None:
        """Begin to take events and questions; once this returns none is missed."""
        whole = len(set(self._mine)) == self.partitions
        patterns = [self.subjects.partition(part) for part in ([None] if whole else self._mine)]
        if 0 in self._mine:  # what comes without a publisher's name has to be one node's
            patterns.append(self.subjects.plain)
        if self._streams is not None:
            await self._streams.start()
        await asyncio.to_thread(_load_kernels)  # the first time it may take long, and servers want answers
        self._tasks = await self.holding.start()
        self._warm()
        if self._streams is not None and self.storing is not None:
            await self.storing.start()
            name = await self._own(self._streams)
            stored = StoredIngress(
                self._transport, self.subjects, self._streams, name, [] if whole else patterns
            )
            self._tasks.append(asyncio.create_task(self._take(stored)))
            return
        for pattern in patterns:
            inbox = await self._transport.subscribe(pattern)
            arriving = LiveIngress(self._transport, self.subjects, inbox)
            self._tasks.append(asyncio.create_task(self._take(arriving)))

    async def _own(self, streams: EventStreams) -> str:
        """Return what this node is called in what is stored; nobody else takes its partitions any more."""
        own = set(self._mine)
        name = f"parts-{'-'.join(map(str, sorted(own)))}"
        for other in await streams.consumer_names(streams.ingress):
            parts = {int(part) for part in other.removeprefix("parts-").split("-") if part.isdecimal()}
            if other != name and parts & own:
                await streams.delete_consumer(streams.ingress, other)
        return name

    def _warm(self) -> None:
        """Match an event that is none, so that the first ones do not wait until kernels are loaded."""
        snapshot, decoder = self._snapshot()
        for events, _ in decoder.decode([b"{}"]).good:
            snapshot.route(events)

    async def stop(self) -> None:
        """End its work."""
        await ended(*self._tasks)
        self._tasks = []
        if self._streams is None:  # else they come again
            await self._kept()
        await self.holding.stop()
        if self._streams is not None and self.storing is not None:
            await self.storing.aclose()
            await self._streams.aclose()

    async def _settled(self) -> None:
        """Wait until no event is on its way that was routed before."""
        async with self._sending:
            pass

    async def wait(self) -> None:
        """Wait until its work has ended, and raise what ended it."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    # ---- events

    async def _take(self, ingress: Ingress) -> None:
        """Send on what comes from publishers."""
        while messages := await ingress.take(self._batch):
            begun = time.perf_counter()
            self.waiting = len(ingress)
            for turn in self._turns(messages):
                refused = await self._send(turn)
                await self._kept()
                await ingress.done([message for message, _ in turn], refused)
            if len(messages) < self._batch:
                await asyncio.sleep(min(self._linger, time.perf_counter() - begun))

    def _turns(self, messages: list[Message]) -> Iterator[list[Taken]]:
        """Yield messages with their events, as many together as may come again after a kill."""
        turn: list[Taken] = []
        many = 0
        for message in messages:
            batch = self._events_of(message)
            own = 0 if batch is None else len(batch.payloads)
            if turn and many + own > TURN:
                yield turn
                turn, many = [], 0
            turn.append((message, batch))
            many += own
        yield turn

    async def _send(self, turn: list[Taken]) -> dict[int, bytes]:
        """Send the events of some messages; return what those are told who are to be, by position."""
        refused: dict[int, bytes] = {}
        batches: list[wire.PublishedBatch] = []
        for position, (message, batch) in enumerate(turn):
            if batch is not None:
                batches.append(self._paced(batch, message, position, refused))
                if batch.settle:
                    refused.setdefault(position, wire.encode(wire.Refusal("", batch.first)))
        since = min((batch.sent for batch in batches if batch.sent), default=time.time())
        arrived = IncomingEvents.of(batches)
        try:
            await self.deliver(arrived, since)
        except TransportError as error:  # the server is gone, and more waits for it than may
            log.warning("%d events are lost: %s", len(arrived), error)
            self.counts.unsent += len(arrived)
            await asyncio.sleep(_PAUSE)
        except Exception:  # some events end no node
            log.exception("%d events could not be sent", len(arrived))
            self._set_aside([arrived.letter(row, _FAILED) for row in range(len(arrived))])
        now = time.time()
        for batch in batches:
            if batch.sent:
                self.counts.taking.add(max(0.0, now - batch.sent), len(batch.payloads))
        return refused

    def _events_of(self, message: Message) -> wire.PublishedBatch | None:
        """Return the events of a message: a publisher's many, or one as it is; None where it is neither."""
        payload = message.payload
        if payload[:1] in _BATCH:
            try:
                batch = wire.decode_batch(payload)
                if (size := len(batch.publisher.encode())) > LONGEST_NAME:
                    why = f"publisher has a name of {size:,} bytes; the most is {LONGEST_NAME}: shorten it"
                elif self.subjects.comes_from(message.subject, batch.publisher):
                    return batch if abs(time.time() - batch.sent) < _AWAY else replace(batch, sent=0.0)
                else:
                    why = f"batch of {batch.publisher!r:.100} came at {message.subject:.100}"
            except (msgspec.MsgspecError, UnicodeError) as error:
                why = f"message is no batch of events: {first_line(error)}"
            self._set_aside([(self._sender(message), 0, why, payload)])
            return None
        if self._streams is not None:
            if payload.startswith(self._streams.answers):
                why = "it is an answer of the NATS server's own"
                self._set_aside([(self._sender(message), 0, why, payload)])
                return None
            # The same number when it comes again.
            return wire.PublishedBatch(self._sender(message), delivery_of(message.reply).stream, [payload])
        self._plain += 1
        return wire.PublishedBatch(self._sender(message), self._plain, [payload])

    def _sender(self, message: Message) -> str:
        """Return whose a message is, by where it came in: with users nobody else publishes there."""
        if message.subject.startswith(f"{self.subjects.plain}."):
            with suppress(ParameterError, UnicodeError):  # a word that is no name
                name = name_of(message.subject.rpartition(".")[0], message.subject)
                if name and len(name.encode()) <= LONGEST_NAME:
                    return name
        return self._name if self._streams is None else self.subjects.plain

    def _paced(
        self, batch: wire.PublishedBatch, message: Message, position: int, refused: dict[int, bytes]
    ) -> wire.PublishedBatch:
        """Return as much of a batch as its publisher may send; the rest is set aside, and it is told."""
        if self._pace is None:
            return batch
        # What waited in a stream counts from when it was sent.
        now = time.monotonic() if self._streams is None else delivery_of(message.reply).seconds
        many = self._pace.admit(batch.publisher, len(batch.payloads), now)
        if many == len(batch.payloads):
            return batch
        why = self._pace.reason(batch.publisher)
        rest = enumerate(batch.payloads[many:], batch.first + many)
        self._set_aside([(batch.publisher, number, why, payload) for number, payload in rest])
        refused[position] = wire.encode(wire.Refusal(why, batch.first + many, len(batch.payloads) - many))
        return replace(batch, payloads=batch.payloads[:many])

    def _set_aside(self, letters: list[tuple[str, int, str, bytes]]) -> None:
        """Count events that cannot be used, which are kept with the reason."""
        known = self.counts.reasons
        self.counts.bad += len(letters)
        for _, _, reason, _ in letters:
            why = reason[:200] if len(known) < _REASONS or reason[:200] in known else "other reasons"
            if why not in known:  # once each: garbage does not fill the log
                log.warning("events are left out: %s", why)
            known[why] += 1
        if self.quarantine is not None:
            self._unkept += letters  # all of a turn are written together: each time takes long

    async def _kept(self) -> None:
        """Keep events that cannot be used; where events are stored, those are not done with before."""
        while self._unkept and self.quarantine is not None:
            letters, self._unkept = self._unkept, []
            try:
                self.quarantine.keep(letters)
            except TransportError as error:
                if self._streams is None:  # a disk that is full holds up no event
                    log.error("%d events are left out and not kept: %s", len(letters), error)
                    continue
                log.error("no event is taken until those that cannot be used are kept: %s", error)
                self._unkept = letters + self._unkept
                await asyncio.sleep(_PAUSE)

    async def deliver(self, arrived: IncomingEvents, since: float = 0.0) -> None:
        """Match events and send them, in their order; `since` is when the oldest was published."""
        if not len(arrived):
            return
        async with self._sending:
            await self._deliver(arrived, since)

    async def _deliver(self, arrived: IncomingEvents, since: float) -> None:
        """Match events and send them by what holds now."""
        begun = time.perf_counter()
        snapshot, decoder = self._snapshot()
        decoded = decoder.decode(arrived.payloads)
        self._set_aside([arrived.letter(bad.position, bad.reason) for bad in decoded.bad])
        for events, position in decoded.good:
            sent = snapshot.route(events)
            self._count(snapshot, sent)
            if snapshot.epoch == self.holding.epoch.number:
                self.holding.recent.add(events, sent.deliveries.channels)
            if self._record is not None:
                self._record.add(events, sent.deliveries, snapshot.names)
            self.counts.matching.add(time.perf_counter() - begun)
            some = arrived if len(events) == len(arrived) else arrived.take(position)
            frames = self._frames(snapshot, sent.deliveries, some, since)
            await self._outlet.send(frames, self.counts)
            begun = time.perf_counter()
        if self._record is not None and self._record.full:
            self._record.write(self.holding.interests)

    def _count(self, snapshot: RoutingSnapshot, sent: RoutedEvents) -> None:
        """Count what a batch of events comes to."""
        counts, ways = self.counts, sent.deliveries
        counts.events += ways.n_events
        counts.pairs += sent.pairs
        counts.matched += int((ways.method > 0).sum())
        for method, many in zip(*np.unique(ways.method, return_counts=True), strict=True):
            counts.methods[RouteMethod(int(method)).label] += int(many)
        everybody = ways.method == RouteMethod.BROADCAST
        shared = int(snapshot.members[ways.channels.index].sum()) + int(everybody.sum()) * len(snapshot.names)
        counts.direct += ways.unicast.n_pairs
        counts.shared += shared
        counts.wasted += shared - (sent.pairs - ways.unicast.n_pairs)
        used = np.bincount(ways.channels.index, minlength=1)
        for channel in np.flatnonzero(used).tolist():
            counts.channels[channel] += int(used[channel])

    def _frames(
        self, snapshot: RoutingSnapshot, sent: Deliveries, arrived: IncomingEvents, since: float
    ) -> Iterator[tuple[str, wire.Frame]]:
        """Yield what goes to each channel and subscriber, all of a batch together."""
        of, most = self.subjects, None if self._streams is None else STORED
        for channel, part in arrived.parts(sent.channels.index, sent.channels.rows(), most):
            yield of.channel(snapshot.epoch, channel), wire.Frame(-1, since, *part)
        for person, part in arrived.parts(sent.unicast.index, sent.unicast.rows(), most):
            yield of.to(snapshot.names[person]), wire.Frame(snapshot.versions[person], since, *part)
        everybody = np.flatnonzero(sent.method == RouteMethod.BROADCAST)
        for _, part in arrived.parts(np.zeros(len(everybody), np.int64), everybody, most):
            yield of.everybody, wire.Frame(-1, since, *part)

    def _snapshot(self) -> tuple[RoutingSnapshot, Decoder]:
        """Return what holds now; made anew when something has changed."""
        interests, epoch = self.holding.interests, self.holding.epoch
        key = (id(interests), interests.change, epoch.number, epoch.change)
        if self._known is None or self._known[0] != key:
            made = RoutingSnapshot.of(interests, epoch, self._router)
            if self._known is not None and self._known[1].epoch != made.epoch:
                self.counts.channels.clear()  # another plan has others
            self._known = key, made, Decoder(interests.schema, largest=self._largest)
        return self._known[1], self._known[2]

    def explain(self, payload: bytes) -> dict[str, Any]:
        """Return who would get an event right now, and which way; it is not sent.

        Raises
        ------
        InputError
            When it is no event.
        """
        snapshot, decoder = self._snapshot()
        decoded = decoder.decode([payload])
        if decoded.bad:
            raise InputError(decoded.bad[0].reason)
        [(events, _)] = decoded.good
        found = snapshot.reader.match(events)
        ways = snapshot.route(events).deliveries
        mine = snapshot.subscriptions
        filters = {
            int(mine.subscription_id[i]): snapshot.names[int(mine.subscriber[i])] for i in found[0].tolist()
        }
        return {
            "epoch": snapshot.epoch,
            "method": RouteMethod(int(ways.method[0])).label,
            "subscriptions": [
                {"subscription_id": n, "subscriber": who, "filter": self.holding.interests.of(who).get(n)}
                for n, who in sorted(filters.items())
            ],
            "channels": [
                {"channel": c, "listeners": int(snapshot.members[c])} for c in ways.channels[0].tolist()
            ],
            "directly": sorted(snapshot.names[i] for i in ways.unicast[0].tolist()),
        }


@cache
def _load_kernels() -> None:
    """Match some events with some filters of each kind, once in a process."""
    interests = SubscriptionIndex()
    for number in range(3):
        interests.add(f"s{number}", [f"n > {number} AND n < 9", f"s = '{number}'", "s LIKE 'a%' OR b"])
    decoder = Decoder(interests.schema)
    payloads = [b'{"n": 2, "s": "ab", "b": true}', b'{"n": 0, "s": "1"}'] * 2
    for events, _ in decoder.decode(payloads).good:
        RoutingSnapshot.of(interests, PlanEpoch(0, no_routes()), ChannelRouter()).route(events)
