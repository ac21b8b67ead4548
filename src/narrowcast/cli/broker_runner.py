"""The run of a broker process: its node, its background tasks and its end."""

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

#: Partitions of the publishers, whatever the number of nodes.
PARTITIONS = 16
#: Seconds between checks of the server, and between writes of the index file.
_CHECK, _INDEX = 1.0, 30.0
#: Reasons for dead letters that the last log lines list.
_SHOWN = 5


@dataclass
class BrokerRunner:
    """A broker process: its node, its connections and its background tasks.

    Parameters
    ----------
    access
        NATS servers and credentials; None to serve in memory.
    server
        The NATS server that the process has started, if any.
    guard
        Keeps the permissions of users up to date, if there are users.
    interests
        Subscriptions; None for all nodes but the first.
    plans
        Sources of plans.
    storage
        Delivery guarantee and storage of events.
    prefix
        First word of the broker's subjects.
    http, https
        Address of the HTTP API, and its certificate; None for none.
    partitions
        Partitions of this node.
    record
        Log of events, routes and subscriptions; None for none.
    router
        Decides the route of each event.
    letters
        Dead letters; None to count them only.
    bounds
        Limits on publishers and subscribers.
    """

    access: Login | None
    server: NatsServer | None
    guard: PermissionGuard | None
    interests: SubscriptionIndex | None
    plans: PlanSources
    storage: DeliveryOptions
    prefix: str
    http: str | None
    https: Tls | None
    partitions: list[int]
    record: ActivityLog | None
    router: Router
    letters: DeadLetters | None
    bounds: BrokerLimits
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def run(self) -> None:
        """Serve until cancelled."""
        from narrowcast.broker import Follower, MemoryTransport

        async with AsyncExitStack() as stack:
            transport: Transport = MemoryTransport()
            if self.access is not None:
                transport = await stack.enter_async_context(
                    broker_options.connected(self.access, "narrowcast serve", self.prefix, strict=False)
                )
            streams = self.storage.streams(transport, self.prefix)
            control = (
                None if self.interests is None else self._control_plane(transport, self.interests, streams)
            )
            node = self._node(
                transport,
                control
                or Follower(transport, prefix=self.prefix, stored=self.storage.stores, limits=self.bounds),
                streams,
            )
            await self._begin(node, control)
            stack.push_async_callback(self._end, node)
            await node.start()
            gc.collect()
            gc.freeze()  # subscriptions live long: the collector need not visit them
            places = [] if self.access is None else [self.access.where]
            if self.http is not None:
                from narrowcast.web.api import make_api
                from narrowcast.web.server import serve_api
                from narrowcast.web.tokens import TokenAccess

                guard = self.guard
                tokens = None if guard is None else TokenAccess(lambda: guard.users)
                api = make_api(node, transport, tokens)
                places.append(await stack.enter_async_context(serve_api(api, self.http, self.https)))
            n_subscriptions = len(node.control.interests)
            log.info(
                "serving at %s, %s subscriptions; interrupt to stop",
                " and ".join(places),
                f"{n_subscriptions:,}",
                extra=facts(places=places, subscriptions=n_subscriptions, partitions=self.partitions),
            )
            await self._watch(node, transport)

    def _control_plane(
        self, transport: Transport, interests: SubscriptionIndex, streams: EventStreams | None
    ) -> ControlPlane:
        from narrowcast.broker import ControlPlane
        from narrowcast.broker.storage.positions import Positions
        from narrowcast.broker.wire import Subjects

        return ControlPlane(
            transport,
            interests,
            prefix=self.prefix,
            joins=self.plans.joins,
            has_followers=len(self.partitions) < PARTITIONS,
            last_epoch=int(time.time()),
            positions=None if streams is None else Positions(streams, Subjects(self.prefix)),
        )

    def _node(self, transport: Transport, control: ControlState, streams: EventStreams | None) -> Node:
        from narrowcast.broker import Node
        from narrowcast.broker.data.rate_limit import PublishRateLimit

        bounds = self.bounds
        return Node(
            transport,
            control,
            own_partitions=self.partitions,
            partitions=PARTITIONS,
            record=self.record,
            router=self.router,
            dead_letters=self.letters,
            largest=bounds.payload,
            pace=None if bounds.rate is None else PublishRateLimit(bounds.rate, bounds.burst),
            streams=streams,
        )

    async def _begin(self, node: Node, control: ControlPlane | None) -> None:
        """Use the first plan, and start the background tasks."""
        if control is not None:
            self.plans.begin(control)
            self._add(self._write_index(control.interests))
            if self.plans.given is not None:
                self._add(self.plans.given.watch(control))
            if self.plans.replanning is not None:
                self._add(self.plans.replanning.run(node, control))
        if self.guard is not None:
            if control is not None:
                self.guard.channels, control.permit = control.channels, self.guard.permit
            await self.guard.permit()
            self._add(self.guard.watch())

    def _add(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.append(broker_options.in_background(work))

    async def _write_index(self, interests: SubscriptionIndex) -> None:
        """Write the index file regularly, when much of the index has changed."""
        while True:
            await asyncio.sleep(_CHECK)
            await asyncio.to_thread(interests.write_index)
            await asyncio.sleep(_INDEX)

    async def _watch(self, node: Node, transport: Transport) -> None:
        """Wait for the end of the node, and supervise its NATS server until then."""
        from narrowcast.broker.data.refusals import RefusalResponder

        refusing = RefusalResponder(transport, node.subjects)
        working = asyncio.create_task(node.wait())
        while not (await asyncio.wait({working}, timeout=_CHECK))[0]:
            if self.server is not None:
                await asyncio.to_thread(self.server.ensure_running)
                if self.storage.stores:
                    await refusing.set_reason(await asyncio.to_thread(self.server.restart_if_unhealthy))
        await working

    async def _end(self, node: Node) -> None:
        """Stop the node and its background tasks, and log what it has done."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await node.stop()
        if self.interests is not None:
            self.interests.write_index(share=0.0)
        if self.record is not None:
            self.record.write(node.control.interests)
        counts = node.counts
        done = {name: getattr(counts, name) for name in ("events", "pairs", "entries", "frames", "bad")}
        log.info(
            "{events:,} events, {pairs:,} matches, {entries:,} deliveries in {frames:,} frames".format(
                **done
            ),
            extra=facts(**done),
        )
        for reason, many in counts.reasons.most_common(_SHOWN):
            log.info("%s rejected: %s", f"{many:,}", reason, extra=facts(many=many, reason=reason))
