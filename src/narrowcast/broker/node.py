"""A node: takes events, finds who wants them, and sends them by the plan."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from narrowcast.broker import wire
from narrowcast.broker.counts import Counts
from narrowcast.broker.decode import LARGEST, Decoder
from narrowcast.broker.standing import Epoch, Snapshot, no_routes
from narrowcast.errors import InputError, NarrowcastError, ParameterError, PlanError
from narrowcast.files import first_line
from narrowcast.routing import Method
from narrowcast.routing.routes import read_routes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from numpy.typing import NDArray

    from narrowcast.broker.interests import Interests
    from narrowcast.broker.standing import Routed
    from narrowcast.broker.transport import Inbox, Message, Transport
    from narrowcast.routing import Deliveries
    from narrowcast.routing.routes import Routes

log = logging.getLogger(__name__)

#: Bytes of the payloads in a frame, at most: half of what a server takes unless told.
FRAME = 1 << 19
#: How a batch of a publisher's begins: as an array of MessagePack, which no JSON does.
_BATCH = (b"\x93", b"\x94", b"\xdc")
#: Seconds that subscribers have to listen to the channels of a new plan.
OVERLAP = 5.0


class Node:
    """Delivers every event to those who want it.

    Parameters
    ----------
    transport
        What moves bytes.
    interests
        Who subscribes to what.
    prefix
        How its subjects begin.
    partitions
        Into how many parts publishers are divided.
    mine
        Which of them this node takes; all where left out.
    batch
        Messages from publishers that are looked at in one go, at most.
    largest
        Bytes of the largest event that is taken.
    """

    def __init__(
        self,
        transport: Transport,
        interests: Interests,
        *,
        prefix: str = "nc",
        partitions: int = 16,
        mine: list[int] | None = None,
        batch: int = 256,
        largest: int = LARGEST,
    ) -> None:
        if partitions < 1 or batch < 1:
            raise ParameterError(f"partitions is {partitions} and batch {batch}; give at least 1 of each")
        own = list(range(partitions)) if mine is None else mine
        if odd := [part for part in own if not 0 <= part < partitions]:
            raise ParameterError(f"partition {odd[0]} is not there; they are 0 to {partitions - 1}")
        self._transport, self.interests = transport, interests
        self.subjects, self.partitions, self._mine = wire.Subjects(prefix), partitions, own
        self._batch, self._largest = batch, largest
        self.epoch = Epoch(0, no_routes())
        self._next: Epoch | None = None
        self.counts = Counts()
        self._present: set[str] = set()
        #: Messages of publishers that wait.
        self.waiting = 0
        self._plain = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._known: tuple[tuple[int, int, int], Snapshot, Decoder] | None = None
        self._arrived = asyncio.Event()

    async def start(self) -> None:
        """Begin to take events and questions; once this returns none is missed."""
        whole = len(set(self._mine)) == self.partitions
        patterns = [self.subjects.partition(part) for part in ([None] if whole else self._mine)]
        if 0 in self._mine:  # what comes without a publisher's name has to be one node's
            patterns.append(self.subjects.plain)
        asked = await self._transport.subscribe(self.subjects.ask)
        orders = await self._transport.subscribe(self.subjects.orders)
        self._tasks = [
            asyncio.create_task(self._answer(asked, self._asked)),
            asyncio.create_task(self._answer(orders, self._ordered)),
        ]
        for pattern in patterns:
            inbox = await self._transport.subscribe(pattern)
            self._tasks.append(asyncio.create_task(self._take(inbox)))

    async def stop(self) -> None:
        """End its work."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def wait(self) -> None:
        """Wait until its work has ended, and raise what ended it."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    # ---- events

    async def _take(self, inbox: Inbox) -> None:
        """Send on what comes from publishers."""
        while messages := await inbox.take(self._batch):
            entries: list[wire.Entry] = []
            sent: list[tuple[float, int]] = []
            for message in messages:
                when, some = self._entries(message)
                entries += some
                if when:
                    sent.append((when, len(some)))
            self.waiting = len(inbox)
            await self.deliver(entries)
            now = time.time()
            for when, many in sent:
                self.counts.taking.add(max(0.0, now - when), many)
            for reply in [message.reply for message in messages if message.reply]:
                await self._transport.publish(reply, b"")

    def _entries(self, message: Message) -> tuple[float, list[wire.Entry]]:
        """Return when a message was sent, and its events: a publisher's many, or one as it is."""
        payload = message.payload
        if payload[:1] in _BATCH:
            try:
                batch = wire.decode_batch(payload)
            except (msgspec.MsgspecError, UnicodeError) as error:
                self._set_aside(1, f"message is no batch of events: {first_line(error)}")
                return 0.0, []
            numbers = range(batch.first, batch.first + len(batch.payloads))
            return batch.sent, [(batch.publisher, n, p) for n, p in zip(numbers, batch.payloads, strict=True)]
        self._plain += 1
        return 0.0, [("", self._plain, payload)]

    def _set_aside(self, many: int, reason: str) -> None:
        """Count events that cannot be used."""
        self.counts.bad += many
        self.counts.reasons[reason[:200]] += many

    async def deliver(self, entries: list[wire.Entry]) -> None:
        """Match events and send them, in their order."""
        if not entries:
            return
        begun = time.perf_counter()
        snapshot, decoder = self._snapshot()
        decoded = decoder.decode([payload for _, _, payload in entries])
        for bad in decoded.bad:
            self._set_aside(1, bad.reason)
        for events, position in decoded.good:
            sent = snapshot.route(events)
            self._count(snapshot, sent)
            self.counts.matching.add(time.perf_counter() - begun)
            some = entries if len(events) == len(entries) else [entries[i] for i in position.tolist()]
            for subject, frame in self._frames(snapshot, sent.deliveries, some):
                self.counts.frames += 1
                self.counts.entries += len(frame.entries)
                await self._transport.publish(subject, wire.encode(frame))
            begun = time.perf_counter()

    def _count(self, snapshot: Snapshot, sent: Routed) -> None:
        """Count what a batch of events comes to."""
        counts, ways = self.counts, sent.deliveries
        counts.events += ways.n_events
        counts.pairs += sent.pairs
        counts.matched += int((ways.method > 0).sum())
        for method, many in zip(*np.unique(ways.method, return_counts=True), strict=True):
            counts.methods[Method(int(method)).label] += int(many)
        everybody = ways.method == Method.BROADCAST
        shared = int(snapshot.members[ways.channels.index].sum()) + int(everybody.sum()) * len(snapshot.names)
        counts.direct += ways.unicast.n_pairs
        counts.shared += shared
        counts.wasted += shared - (sent.pairs - ways.unicast.n_pairs)
        used = np.bincount(ways.channels.index, minlength=1)
        for channel in np.flatnonzero(used).tolist():
            counts.channels[channel] += int(used[channel])

    def _frames(
        self, snapshot: Snapshot, sent: Deliveries, entries: list[wire.Entry]
    ) -> Iterator[tuple[str, wire.Frame]]:
        """Yield what goes to each channel and subscriber, all of a batch together."""
        of = self.subjects
        size = np.fromiter((len(payload) for _, _, payload in entries), np.int64, len(entries))
        for channel, some in _grouped(sent.channels.index, sent.channels.rows(), entries, size):
            yield of.channel(snapshot.epoch, channel), wire.Frame(-1, some)
        for person, some in _grouped(sent.unicast.index, sent.unicast.rows(), entries, size):
            yield of.to(snapshot.names[person]), wire.Frame(snapshot.versions[person], some)
        everybody = np.flatnonzero(sent.method == Method.BROADCAST)
        nowhere = np.zeros(len(everybody), np.int32)
        for _, some in _grouped(nowhere, everybody, entries, size):
            yield of.everybody, wire.Frame(-1, some)

    def _snapshot(self) -> tuple[Snapshot, Decoder]:
        """Return what holds now; made anew when something has changed."""
        key = (self.interests.change, self.epoch.number, self.epoch.change)
        if self._known is None or self._known[0] != key:
            made = Snapshot.of(self.interests, self.epoch)
            self._known = key, made, Decoder(self.interests.schema, largest=self._largest)
        return self._known[1], self._known[2]

    # ---- subscribers

    async def _answer(self, asked: Inbox, do: Callable[[bytes], Awaitable[wire.Answer]]) -> None:
        """Answer questions, one after another."""
        async for message in asked:
            try:
                answer = await do(message.payload)
            except (msgspec.MsgspecError, UnicodeError) as error:
                answer = wire.Refused(f"request cannot be read: {first_line(error)}")
            except NarrowcastError as error:
                answer = wire.Refused(str(error))
            if message.reply:
                await self._transport.publish(message.reply, wire.encode(answer))

    async def _asked(self, payload: bytes) -> wire.Answer:
        """Answer a subscriber."""
        return self.ask(wire.decode_request(payload))

    async def _ordered(self, payload: bytes) -> wire.Answer:
        """Do what those want who run the broker."""
        order = wire.decode_order(payload)
        return await self.rollout_from(order.plan, order.flow, overlap=order.overlap)

    def ask(self, request: wire.Request) -> wire.Answer:
        """Do what somebody asks for; an error says why it is not done."""
        who = request.subscriber
        if isinstance(request, wire.Listening):
            for epoch in (self.epoch, self._next):
                if epoch is not None and epoch.number == request.epoch:
                    epoch.join(who, request.channels)
                    self._arrived.set()
            return self.standing(who)
        if isinstance(request, wire.Hello | wire.Bye):
            # It listens to nothing, yet or any more, whatever it did before.
            (self._present.add if isinstance(request, wire.Hello) else self._present.discard)(who)
            for epoch in (self.epoch, self._next):
                if epoch is not None:
                    epoch.leave(who)
            return self.standing(who)
        if isinstance(request, wire.Remove):
            self.interests.remove(who, request.subscription_ids)
            return self.standing(who)
        added = self.interests.add(who, request.filters)
        return msgspec.structs.replace(self.standing(who), added=added)

    async def change(self, request: wire.Add | wire.Remove) -> wire.Standing:
        """Change the subscriptions of somebody who may be elsewhere, and tell them."""
        answer = self.ask(request)
        assert isinstance(answer, wire.Standing)
        await self._transport.publish(self.subjects.control(request.subscriber), wire.encode(answer))
        return answer

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
            "method": Method(int(ways.method[0])).label,
            "subscriptions": [
                {"subscription_id": n, "subscriber": who, "filter": self.interests.of(who).get(n)}
                for n, who in sorted(filters.items())
            ],
            "channels": [
                {"channel": c, "listeners": int(snapshot.members[c])} for c in ways.channels[0].tolist()
            ],
            "directly": sorted(snapshot.names[i] for i in ways.unicast[0].tolist()),
        }

    def standing(self, subscriber: str) -> wire.Standing:
        """Return what holds for a subscriber."""
        return wire.Standing(
            version=self.interests.version(subscriber),
            filters=self.interests.of(subscriber),
            schema=self.interests.schema.to_dict(),
            epoch=self.epoch.number,
            channels=self.epoch.channels(subscriber),
        )

    # ---- plans

    def use(self, routes: Routes) -> None:
        """Take up a plan at once, before anybody is there."""
        self.epoch = Epoch(self.epoch.number + 1, routes)

    async def rollout_from(
        self, folder: str, flow: str | None = None, *, overlap: float = OVERLAP
    ) -> wire.RolledOut:
        """Take up a plan from its folder: see `rollout`.

        Raises
        ------
        PlanError
            When there is no plan that can be used: then the old one stays.
        """
        routes = read_routes(folder, self.interests.schema, flow)
        known, planned = self.interests.subscribers, routes.plan.subscribers.cast(pa.string()).to_pylist()
        if known and planned and not known & set(planned):
            raise PlanError(
                f"{folder} is a plan for others: none of its {len(planned):,} subscribers subscribes here; "
                "make one from the subscriptions of this broker"
            )
        listening = await self.rollout(routes, overlap=overlap)
        return wire.RolledOut(self.epoch.number, routes.name, listening)

    async def rollout(self, routes: Routes, *, overlap: float = OVERLAP) -> int:
        """Take up a plan while events come, and return how many listen to its channels.

        All who are there are asked to listen to their channels of it, beside those that they have. When they
        do, or when time is up, events go by the new plan; whoever does not listen by then is sent to
        directly until it does. Then the old channels are given up. Nobody misses an event.

        Parameters
        ----------
        routes
            The plan.
        overlap
            Seconds to wait for subscribers.
        """
        if self._next is not None:
            raise NarrowcastError("another plan is being taken up; wait until it is in use")
        then = self._next = Epoch(self.epoch.number + 1, routes)
        try:
            waited = {name for name in self._present if then.channels(name)}
            for name in sorted(waited):
                order = wire.Prepare(then.number, then.channels(name))
                await self._transport.publish(self.subjects.control(name), wire.encode(order))
            try:
                async with asyncio.timeout(overlap):
                    while not waited <= then.joined:
                        self._arrived.clear()
                        await self._arrived.wait()
            except TimeoutError:
                log.warning("%d subscribers do not listen to the new plan yet", len(waited - then.joined))
            self.epoch = then
            self.counts.channels.clear()
        finally:
            self._next = None
        for name in sorted(self._present):
            await self._transport.publish(self.subjects.control(name), wire.encode(self.standing(name)))
        return len(then.joined)


def _grouped(
    place: NDArray[np.int32], event: NDArray[np.int64], entries: list[wire.Entry], size: NDArray[np.int64]
) -> Iterator[tuple[int, list[wire.Entry]]]:
    """Yield each place with its events, in their order; again and again where they are many bytes."""
    if not len(place):
        return
    order = np.argsort(place, kind="stable")
    events = event[order].tolist()
    where, first = np.unique(place[order], return_index=True)
    large = np.add.reduceat(size[event[order]], first) > FRAME
    ends = np.append(first[1:], len(order))
    columns = (where.tolist(), first.tolist(), ends.tolist(), large.tolist())
    for at, start, end, cut in zip(*columns, strict=True):
        some = [entries[i] for i in events[start:end]]
        for part in _cut(some) if cut else (some,):
            yield at, part


def _cut(entries: list[wire.Entry]) -> Iterator[list[wire.Entry]]:
    """Yield entries such that no frame is too large; one that is larger by itself goes alone."""
    size, start = 0, 0
    for i, entry in enumerate(entries):
        size += len(entry[2])
        if size > FRAME and i > start:
            yield entries[start:i]
            size, start = len(entry[2]), i
    yield entries[start:]
