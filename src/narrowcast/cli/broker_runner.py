"""A live broker while it runs: a node, what it needs, and what goes on beside it."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from narrowcast.cli import broker_options
from narrowcast.cli.log_output import facts

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from narrowcast.broker import ActivityLog, ControlPlane, NatsServer, Node, SubscriptionIndex, Transport
    from narrowcast.broker.data.routing_state import ControlState
    from narrowcast.broker.limits import BrokerLimits
    from narrowcast.broker.security.login import Login
    from narrowcast.broker.security.permissions import PermissionGuard
    from narrowcast.broker.security.tls import Tls
    from narrowcast.broker.storage.dead_letters import DeadLetters
    from narrowcast.broker.storage.streams import EventStreams
    from narrowcast.cli.delivery_options import DeliveryOptions
    from narrowcast.cli.plan_source import PlanSources
    from narrowcast.routing import Router

log = logging.getLogger(__name__)

#: Into how many parts publishers are divided, whatever the number of nodes.
PARTITIONS = 16
#: Seconds from one look at the server to the next, and from one look at whether the index has changed.
_LOOK, _INDEX = 1.0, 30.0
#: Reasons why events could not be used that are shown.
_SHOWN = 5


@dataclass
class BrokerRunner:
    """A broker, as it was asked for.

    Parameters
    ----------
    who
        Who connects to which servers; None to serve in memory.
    server
        Its own server, if it has one.
    guard
        What sees to permissions, if there are users.
    interests
        Subscriptions, of the first node; None for one beside it.
    plans
        Where plans come from.
    kept
        What is promised.
    prefix
        How subjects begin.
    http, https
        Where the HTTP API is, if anywhere, and its certificate, if it has one.
    mine
        The partitions of this node.
    record, letters
        Where events are written down, and those that cannot be used, if anywhere.
    router
        What decides which way an event goes.
    bounds
        What is too large or too much.
    """

    who: Login | None
    server: NatsServer | None
    guard: PermissionGuard | None
    interests: SubscriptionIndex | None
    plans: PlanSources
    kept: DeliveryOptions
    prefix: str
    http: str | None
    https: Tls | None
    mine: list[int]
    record: ActivityLog | None
    router: Router
    letters: DeadLetters | None
    bounds: BrokerLimits
    _beside: list[asyncio.Task[None]] = field(default_factory=list)

    async def run(self) -> None:
        """Serve until it is cancelled."""
        from narrowcast.broker import Follower, MemoryTransport

        async with AsyncExitStack() as stack:
            transport: Transport = MemoryTransport()
            if self.who is not None:
                transport = await stack.enter_async_context(
                    broker_options.connected(self.who, "narrowcast serve", self.prefix, strict=False)
                )
            streams = self.kept.streams(transport, self.prefix)
            desk = None if self.interests is None else self._desk(transport, self.interests, streams)
            node = self._node(
                transport,
                desk or Follower(transport, prefix=self.prefix, stored=self.kept.stores, limits=self.bounds),
                streams,
            )
            await self._begin(node, desk)
            stack.push_async_callback(self._end, node)
            await node.start()
            gc.collect()
            gc.freeze()  # subscriptions stay: no need to look through them again and again
            places = [] if self.who is None else [self.who.where]
            if self.http is not None:
                from narrowcast.web.api import make_api
                from narrowcast.web.server import serving
                from narrowcast.web.tokens import TokenAccess

                guard = self.guard
                tokens = None if guard is None else TokenAccess(lambda: guard.users)
                api = make_api(node, transport, tokens)
                places.append(await stack.enter_async_context(serving(api, self.http, self.https)))
            held = len(node.holding.interests)
            log.info(
                "serving at %s, %s subscriptions; interrupt to stop", " and ".join(places), f"{held:,}",
                extra=facts(places=places, subscriptions=held, partitions=self.mine),
            )  # fmt: skip
            await self._watch(node, transport)

    def _desk(
        self, transport: Transport, interests: SubscriptionIndex, streams: EventStreams | None
    ) -> ControlPlane:
        """Return the desk of the first node."""
        from narrowcast.broker import ControlPlane
        from narrowcast.broker.storage.positions import Positions
        from narrowcast.broker.wire import Subjects

        return ControlPlane(
            transport,
            interests,
            prefix=self.prefix,
            joins=self.plans.joins,
            others=len(self.mine) < PARTITIONS,
            plans=int(time.time()),
            positions=None if streams is None else Positions(streams, Subjects(self.prefix)),
        )

    def _node(self, transport: Transport, holding: ControlState, streams: EventStreams | None) -> Node:
        """Return the node."""
        from narrowcast.broker import Node
        from narrowcast.broker.data.rate_limit import PublishRateLimit

        bounds = self.bounds
        return Node(
            transport,
            holding,
            mine=self.mine,
            partitions=PARTITIONS,
            record=self.record,
            router=self.router,
            quarantine=self.letters,
            largest=bounds.payload,
            pace=None if bounds.rate is None else PublishRateLimit(bounds.rate, bounds.burst),
            streams=streams,
        )

    async def _begin(self, node: Node, desk: ControlPlane | None) -> None:
        """Let the first plan be used, and begin with what goes on beside the node."""
        if desk is not None:
            self.plans.begin(desk)
            self._add(self._write_index(desk.interests))
            if self.plans.given is not None:
                self._add(self.plans.given.watch(desk))
            if self.plans.again is not None:
                self._add(self.plans.again.run(node, desk))
        if self.guard is not None:
            if desk is not None:
                self.guard.channels, desk.permit = desk.channels, self.guard.permit
            await self.guard.permit()
            self._add(self.guard.watch())

    def _add(self, work: Coroutine[None, None, None]) -> None:
        """Let something go on beside the node."""
        self._beside.append(broker_options.beside(work))

    async def _write_index(self, interests: SubscriptionIndex) -> None:
        """Write the index of subscriptions again and again, when much of it has changed."""
        while True:
            await asyncio.sleep(_LOOK)
            await asyncio.to_thread(interests.write_index)
            await asyncio.sleep(_INDEX)

    async def _watch(self, node: Node, transport: Transport) -> None:
        """Wait for the end of the node, and keep its server alive and well until then."""
        from narrowcast.broker.data.refusals import RefusalResponder

        refusing = RefusalResponder(transport, node.subjects)
        working = asyncio.create_task(node.wait())
        while not (await asyncio.wait({working}, timeout=_LOOK))[0]:
            if self.server is not None:
                await asyncio.to_thread(self.server.keep)
                if self.kept.stores:
                    await refusing.say(await asyncio.to_thread(self.server.mend))
        await working

    async def _end(self, node: Node) -> None:
        """End the node and what goes on beside it, and say what it has done."""
        for task in self._beside:
            task.cancel()
        await asyncio.gather(*self._beside, return_exceptions=True)
        await node.stop()
        if self.interests is not None:
            self.interests.write_index(share=0.0)
        if self.record is not None:
            self.record.write(node.holding.interests)
        counts = node.counts
        done = {name: getattr(counts, name) for name in ("events", "pairs", "entries", "frames", "bad")}
        log.info(
            "{events:,} events, {pairs:,} wanted, {entries:,} sent in {frames:,} frames".format(**done),
            extra=facts(**done),
        )
        for reason, many in counts.reasons.most_common(_SHOWN):
            log.info("%s left out: %s", f"{many:,}", reason, extra=facts(many=many, reason=reason))
