"""A broker node: receives events, matches them, and sends them by the plan."""

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
from narrowcast.broker.background_tasks import cancel_tasks
from narrowcast.broker.clients.deduplication import EVENTS
from narrowcast.broker.control.subscription_index import SubscriptionIndex
from narrowcast.broker.data.decode import LARGEST, Decoder
from narrowcast.broker.data.egress import LiveEgress, StoredEgress
from narrowcast.broker.data.incoming_events import IncomingEvents
from narrowcast.broker.data.ingress import LiveIngress, StoredIngress
from narrowcast.broker.data.node_counts import NodeCounts
from narrowcast.broker.data.routing_state import PlanEpoch, RoutingSnapshot, no_routes
from narrowcast.broker.limits import LONGEST_NAME
from narrowcast.deprecation import renamed_parameters
from narrowcast.errors import InputError, ParameterError, TransportError
from narrowcast.files import first_line
from narrowcast.jetstream.api import delivery_of
from narrowcast.model.subjects import name_of
from narrowcast.routing import ChannelRouter, RouteMethod
from narrowcast.validation import check_number, check_whole

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

    #: A message, and its events; None for an invalid message.
    MessageWithEvents = tuple[Message, wire.PublishedBatch | None]

log = logging.getLogger(__name__)

#: Default maximum seconds to wait for further events.
LINGER = 0.03
#: Seconds to wait before the next attempt when the server is unreachable or dead letters cannot be stored.
_PAUSE = 0.2
#: Maximum events of a stored frame: subscribers acknowledge whole frames.
STORED = 256
#: Maximum events processed as one turn; no message has more. After a crash the unfinished turn is delivered
#: again, and perhaps the one before it: subscribers remember twice as many events to drop duplicates.
TURN = EVENTS // 2
#: Maximum seconds between a publisher's time stamp and this node's clock; beyond it the time is ignored.
_CLOCK_SKEW = 7 * 86_400.0
#: Maximum reasons counted separately, so that garbage from clients does not fill the memory.
_REASONS = 1000
_FAILED = "the node failed to send it; its log says why"
#: First bytes of a publisher's batch, an array in MessagePack; no JSON document begins so.
_BATCH = (b"\x93", b"\x94", b"\x95", b"\xdc")


@renamed_parameters(holding="control", mine="own_partitions", quarantine="dead_letters")
class Node:
    """Receives published events and delivers each to the subscribers whose filters match it.

    Parameters
    ----------
    transport
        Moves the messages.
    control
        Subscriptions and plan: a `ControlPlane` on the first node, a `Follower` on all others.
    partitions
        Number of partitions of the publishers (default 16); the same on all nodes and publishers.
    own_partitions
        Partitions that this node processes, numbered from 0 (default: all).
    batch
        Maximum messages from publishers processed together (default 256).
    linger
        Maximum seconds to wait for further events once all are processed: from 0 to 60 (default 0.03). The
        wait never exceeds the time that the last events took. So an event waits little at low load, while at
        high load events share frames, which costs all receivers less.
    largest
        Largest event in bytes that is accepted (default 1,032,192).
    record
        Log to which events and their routes are written.
    router
        Decides the route of each event (default: as the plan says).
    dead_letters
        Store of events that cannot be used, with the reason.
    pace
        Limit on the event rate of each publisher.
    streams
        Event store, for at-least-once delivery. Without it events in flight are lost when a process dies
        (at-most-once delivery).
    """

    def __init__(
        self,
        transport: Transport,
        control: ControlState,
        *,
        partitions: int = 16,
        own_partitions: list[int] | None = None,
        batch: int = 256,
        linger: float = LINGER,
        largest: int = LARGEST,
        record: ActivityLog | None = None,
        router: Router | None = None,
        dead_letters: DeadLetters | None = None,
        pace: PublishRateLimit | None = None,
        streams: EventStreams | None = None,
    ) -> None:
        check_whole("partitions", partitions)
        check_whole("batch", batch)
        check_number("linger", linger, least=0, most=60, limit="from 0 to 60 seconds")
        own = list(range(partitions)) if own_partitions is None else own_partitions
        if unknown := [part for part in own if not 0 <= part < partitions]:
            limit = f"from 0 to {partitions - 1}"
            raise ParameterError(parameter="own_partitions", value=unknown[0], limit=limit)
        self._transport = transport
        self.subjects, self.partitions, self._own_partitions = control.subjects, partitions, own
        self._sending = asyncio.Lock()
        #: Subscriptions and plan.
        self.control = control
        control.wait_for_deliveries = self._wait_for_deliveries
        self._batch, self._linger, self._largest = batch, linger, largest
        self._record = record
        self._router = ChannelRouter() if router is None else router
        #: Store of events that could not be used.
        self.dead_letters = dead_letters
        self.counts = NodeCounts()
        #: Messages of publishers that waited when the last ones were received.
        self.waiting = 0
        # Plain events get this node's name as publisher, and numbers that are not reused after a restart.
        self._name, self._last_plain = f"node-{secrets.token_hex(8)}", time.time_ns()
        self._tasks: list[asyncio.Task[None]] = []
        self._streams, self._pace = streams, pace
        #: Stores frames in the event store; None for at-most-once delivery.
        self.stored_egress = None if streams is None else StoredEgress(transport, self.subjects)
        self._egress = LiveEgress(transport) if self.stored_egress is None else self.stored_egress
        #: Dead letters that are not stored yet.
        self._new_dead_letters: list[tuple[str, int, str, bytes]] = []
        self._known: tuple[tuple[int, ...], RoutingSnapshot, Decoder] | None = None

    async def start(self) -> None:
        """Start to receive events and requests; none is missed once this returns."""
        whole = len(set(self._own_partitions)) == self.partitions
        patterns = [self.subjects.partition(part) for part in ([None] if whole else self._own_partitions)]
        if 0 in self._own_partitions:  # exactly one node has to process plain events
            patterns.append(self.subjects.plain)
        if self._streams is not None:
            await self._streams.start()
        await asyncio.to_thread(_load_kernels)  # may take long once, while the connection needs its pongs
        self._tasks = await self.control.start()
        self._warm_up()
        if self._streams is not None and self.stored_egress is not None:
            await self.stored_egress.start()
            name = await self._claim_partitions(self._streams)
            stored = StoredIngress(
                self._transport, self.subjects, self._streams, name, [] if whole else patterns
            )
            self._tasks.append(asyncio.create_task(self._process(stored)))
            return
        for pattern in patterns:
            inbox = await self._transport.subscribe(pattern)
            arriving = LiveIngress(self._transport, self.subjects, inbox)
            self._tasks.append(asyncio.create_task(self._process(arriving)))

    async def _claim_partitions(self, streams: EventStreams) -> str:
        """Return the name of this node's consumer in the event store.

        Consumers of earlier nodes with some of the same partitions are deleted, so that each partition has
        one.
        """
        own = set(self._own_partitions)
        name = f"parts-{'-'.join(map(str, sorted(own)))}"
        for other in await streams.consumer_names(streams.ingress):
            parts = {int(part) for part in other.removeprefix("parts-").split("-") if part.isdecimal()}
            if other != name and parts & own:
                await streams.delete_consumer(streams.ingress, other)
        return name

    def _warm_up(self) -> None:
        """Match an empty event, so that the first real ones do not wait for kernels to be loaded."""
        snapshot, decoder = self._snapshot()
        for events, _ in decoder.decode([b"{}"]).good:
            snapshot.route(events)

    async def stop(self) -> None:
        """Stop all tasks, and store dead letters that are not stored yet."""
        await cancel_tasks(*self._tasks)
        self._tasks = []
        if self._streams is None:  # otherwise the event store delivers their messages again
            await self._store_dead_letters()
        await self.control.stop()
        if self._streams is not None and self.stored_egress is not None:
            await self.stored_egress.aclose()
            await self._streams.aclose()

    async def _wait_for_deliveries(self) -> None:
        """Wait until all events routed before the call are sent."""
        async with self._sending:
            pass

    async def wait(self) -> None:
        """Wait until a task of the node ends, and raise its exception."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    # ---- events

    async def _process(self, ingress: Ingress) -> None:
        """Process the messages of an ingress until it ends."""
        while messages := await ingress.take(self._batch):
            begun = time.perf_counter()
            self.waiting = len(ingress)
            for turn in self._turns(messages):
                refused = await self._send(turn)
                await self._store_dead_letters()
                await ingress.done([message for message, _ in turn], refused)
            if len(messages) < self._batch:
                await asyncio.sleep(min(self._linger, time.perf_counter() - begun))

    def _turns(self, messages: list[Message]) -> Iterator[list[MessageWithEvents]]:
        """Yield messages with their events, in groups of at most `TURN` events.

        After a crash the event store delivers the last group again.
        """
        turn: list[MessageWithEvents] = []
        n_events = 0
        for message in messages:
            batch = self._events_of(message)
            own = 0 if batch is None else len(batch.payloads)
            if turn and n_events + own > TURN:
                yield turn
                turn, n_events = [], 0
            turn.append((message, batch))
            n_events += own
        yield turn

    async def _send(self, turn: list[MessageWithEvents]) -> dict[int, bytes]:
        """Send one turn of messages.

        Return the answers owed to publishers: refusals of events above the rate limit, and answers requested
        by `PublishedBatch.settle`. They are keyed by message position.
        """
        refused: dict[int, bytes] = {}
        batches: list[wire.PublishedBatch] = []
        for position, (message, batch) in enumerate(turn):
            if batch is not None:
                batches.append(self._within_rate(batch, message, position, refused))
                if batch.settle:
                    refused.setdefault(position, wire.encode(wire.Refusal("", batch.first)))
        since = min((batch.sent for batch in batches if batch.sent), default=time.time())
        arrived = IncomingEvents.of(batches)
        try:
            await self.deliver(arrived, since)
        except TransportError as error:  # the server is unreachable and the send buffer is full
            log.warning("%d events are lost: %s", len(arrived), error)
            self.counts.unsent += len(arrived)
            await asyncio.sleep(_PAUSE)
        except Exception:  # a batch of events must not end the node
            log.exception("%d events could not be sent", len(arrived))
            self._reject([arrived.dead_letter(row, _FAILED) for row in range(len(arrived))])
        now = time.time()
        for batch in batches:
            if batch.sent:
                self.counts.taking.add(max(0.0, now - batch.sent), len(batch.payloads))
        return refused

    def _events_of(self, message: Message) -> wire.PublishedBatch | None:
        """Return the events of a message: a publisher's batch or one plain event; None if it is invalid."""
        payload = message.payload
        if payload[:1] in _BATCH:
            try:
                batch = wire.decode_batch(payload)
                if (size := len(batch.publisher.encode())) > LONGEST_NAME:
                    why = (
                        f"publisher has a name of {size:,} bytes: must be at most {LONGEST_NAME}; shorten it"
                    )
                elif self.subjects.comes_from(message.subject, batch.publisher):
                    return batch if abs(time.time() - batch.sent) < _CLOCK_SKEW else replace(batch, sent=0.0)
                else:
                    why = (
                        f"publisher={batch.publisher!r:.100}: batch arrived on the subject of another "
                        f"publisher, {message.subject:.100}"
                    )
            except (msgspec.MsgspecError, UnicodeError) as error:
                why = f"invalid batch of events: {first_line(error)}"
            self._reject([(self._sender(message), 0, why, payload)])
            return None
        if self._streams is not None:
            if payload.startswith(self._streams.answers):
                why = "event is an answer of the NATS server itself"
                self._reject([(self._sender(message), 0, why, payload)])
                return None
            # The sequence number, which stays the same when the message is delivered again.
            return wire.PublishedBatch(self._sender(message), delivery_of(message.reply).stream, [payload])
        self._last_plain += 1
        return wire.PublishedBatch(self._sender(message), self._last_plain, [payload])

    def _sender(self, message: Message) -> str:
        """Return the publisher of a message, taken from its subject.

        With permissions only this publisher may publish there. An event of another NATS client, without a
        publisher's name, counts as published by this node, or by the plain subject where events are stored.
        """
        if message.subject.startswith(f"{self.subjects.plain}."):
            with suppress(ParameterError, UnicodeError):  # the last word is not an encoded name
                name = name_of(message.subject.rpartition(".")[0], message.subject)
                if name and len(name.encode()) <= LONGEST_NAME:
                    return name
        return self._name if self._streams is None else self.subjects.plain

    def _within_rate(
        self, batch: wire.PublishedBatch, message: Message, position: int, refused: dict[int, bytes]
    ) -> wire.PublishedBatch:
        """Return the part of a batch that the rate limit admits.

        The rest become dead letters, and their refusal is added to `refused`.
        """
        if self._pace is None:
            return batch
        # Messages may have waited in the event store: what counts is when they were stored.
        now = time.monotonic() if self._streams is None else delivery_of(message.reply).seconds
        n = self._pace.admit(batch.publisher, len(batch.payloads), now)
        if n == len(batch.payloads):
            return batch
        why = self._pace.reason(batch.publisher)
        rest = enumerate(batch.payloads[n:], batch.first + n)
        self._reject([(batch.publisher, number, why, payload) for number, payload in rest])
        refused[position] = wire.encode(wire.Refusal(why, batch.first + n, len(batch.payloads) - n))
        return replace(batch, payloads=batch.payloads[:n])

    def _reject(self, letters: list[tuple[str, int, str, bytes]]) -> None:
        """Count events that cannot be used, and buffer them as dead letters."""
        known = self.counts.reasons
        self.counts.bad += len(letters)
        for _, _, reason, _ in letters:
            why = reason[:200] if len(known) < _REASONS or reason[:200] in known else "other reasons"
            if why not in known:  # logged once each, so that garbage does not fill the log
                log.warning("events cannot be used: %s", why)
            known[why] += 1
        if self.dead_letters is not None:
            self._new_dead_letters += letters  # stored once per turn, since each write is slow

    async def _store_dead_letters(self) -> None:
        """Store buffered dead letters; with an event store, retry until that succeeds.

        Until then no message is acknowledged to the event store.
        """
        while self._new_dead_letters and self.dead_letters is not None:
            letters, self._new_dead_letters = self._new_dead_letters, []
            try:
                self.dead_letters.add(letters)
            except TransportError as error:
                if self._streams is None:  # a full disk must not delay events
                    log.error("%d dead letters could not be stored and are lost: %s", len(letters), error)
                    continue
                log.error("no event is processed until dead letters can be stored: %s", error)
                self._new_dead_letters = letters + self._new_dead_letters
                await asyncio.sleep(_PAUSE)

    async def deliver(self, arrived: IncomingEvents, since: float = 0.0) -> None:
        """Match events and send them, in order.

        Parameters
        ----------
        arrived
            The events.
        since
            Time in seconds since 1970 when the oldest was published; 0 when unknown.
        """
        if not len(arrived):
            return
        async with self._sending:
            await self._deliver(arrived, since)

    async def _deliver(self, arrived: IncomingEvents, since: float) -> None:
        """Match events and send them by the current snapshot."""
        begun = time.perf_counter()
        snapshot, decoder = self._snapshot()
        decoded = decoder.decode(arrived.payloads)
        self._reject([arrived.dead_letter(bad.position, bad.reason) for bad in decoded.bad])
        for events, position in decoded.good:
            sent = snapshot.route(events)
            self._count(snapshot, sent)
            if snapshot.epoch == self.control.epoch.number:
                self.control.recent_events.add(events, sent.deliveries.channels)
            if self._record is not None:
                self._record.add(events, sent.deliveries, snapshot.names)
            self.counts.matching.add(time.perf_counter() - begun)
            valid = arrived if len(events) == len(arrived) else arrived.take(position)
            frames = self._frames(snapshot, sent.deliveries, valid, since)
            await self._egress.send(frames, self.counts)
            begun = time.perf_counter()
        if self._record is not None and self._record.full:
            self._record.write(self.control.interests)

    def _count(self, snapshot: RoutingSnapshot, sent: RoutedEvents) -> None:
        """Add a routed batch to the counters."""
        counts, routes = self.counts, sent.deliveries
        counts.events += routes.n_events
        counts.pairs += sent.pairs
        counts.matched += int((routes.method > 0).sum())
        for method, n in zip(*np.unique(routes.method, return_counts=True), strict=True):
            counts.methods[RouteMethod(int(method)).label] += int(n)
        n_broadcast = int((routes.method == RouteMethod.BROADCAST).sum())
        shared = int(snapshot.members[routes.channels.index].sum()) + n_broadcast * len(snapshot.names)
        counts.direct += routes.unicast.n_pairs
        counts.shared += shared
        counts.wasted += shared - (sent.pairs - routes.unicast.n_pairs)
        used = np.bincount(routes.channels.index, minlength=1)
        for channel in np.flatnonzero(used).tolist():
            counts.channels[channel] += int(used[channel])

    def _frames(
        self, snapshot: RoutingSnapshot, sent: Deliveries, arrived: IncomingEvents, since: float
    ) -> Iterator[tuple[str, wire.Frame]]:
        """Yield subject and frame for each channel and direct receiver of a batch."""
        of, most = self.subjects, None if self._streams is None else STORED
        for channel, part in arrived.parts(sent.channels.index, sent.channels.rows(), most):
            yield of.channel(snapshot.epoch, channel), wire.Frame(-1, since, *part)
        for subscriber, part in arrived.parts(sent.unicast.index, sent.unicast.rows(), most):
            yield of.to(snapshot.names[subscriber]), wire.Frame(snapshot.versions[subscriber], since, *part)
        broadcast = np.flatnonzero(sent.method == RouteMethod.BROADCAST)
        for _, part in arrived.parts(np.zeros(len(broadcast), np.int64), broadcast, most):
            yield of.broadcast, wire.Frame(-1, since, *part)

    def _snapshot(self) -> tuple[RoutingSnapshot, Decoder]:
        """Return the current snapshot and decoder, made anew when subscriptions or the plan have changed."""
        interests, epoch = self.control.interests, self.control.epoch
        key = (id(interests), interests.change, epoch.number, epoch.change)
        if self._known is None or self._known[0] != key:
            made = RoutingSnapshot.of(interests, epoch, self._router)
            if self._known is not None and self._known[1].epoch != made.epoch:
                self.counts.channels.clear()  # channel numbers of another plan mean other channels
            self._known = key, made, Decoder(interests.schema, largest=self._largest)
        return self._known[1], self._known[2]

    def explain(self, payload: bytes) -> dict[str, Any]:
        """Return how an event would be delivered now; it is not sent.

        Parameters
        ----------
        payload
            The event as JSON.

        Returns
        -------
        dict
            `epoch`, `method`, matching `subscriptions`, `channels` with listeners, and subscribers reached
            `directly`.

        Raises
        ------
        InputError
            When the payload is not a valid event.
        """
        snapshot, decoder = self._snapshot()
        decoded = decoder.decode([payload])
        if decoded.bad:
            raise InputError(decoded.bad[0].reason)
        [(events, _)] = decoded.good
        found = snapshot.reader.match(events)
        routes = snapshot.route(events).deliveries
        subscriptions = snapshot.subscriptions
        matching = {
            int(subscriptions.subscription_id[i]): snapshot.names[int(subscriptions.subscriber[i])]
            for i in found[0].tolist()
        }
        return {
            "epoch": snapshot.epoch,
            "method": RouteMethod(int(routes.method[0])).label,
            "subscriptions": [
                {"subscription_id": n, "subscriber": name, "filter": self.control.interests.of(name).get(n)}
                for n, name in sorted(matching.items())
            ],
            "channels": [
                {"channel": c, "listeners": int(snapshot.members[c])} for c in routes.channels[0].tolist()
            ],
            "directly": sorted(snapshot.names[i] for i in routes.unicast[0].tolist()),
        }


@cache
def _load_kernels() -> None:
    """Match events with filters of each kind, once per process, to compile or load all kernels."""
    interests = SubscriptionIndex()
    for number in range(3):
        interests.add(f"s{number}", [f"n > {number} AND n < 9", f"s = '{number}'", "s LIKE 'a%' OR b"])
    decoder = Decoder(interests.schema)
    payloads = [b'{"n": 2, "s": "ab", "b": true}', b'{"n": 0, "s": "1"}'] * 2
    for events, _ in decoder.decode(payloads).good:
        RoutingSnapshot.of(interests, PlanEpoch(0, no_routes()), ChannelRouter()).route(events)
