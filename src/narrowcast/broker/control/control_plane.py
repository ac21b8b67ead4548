"""The control plane on the first node: subscribers, subscriptions, and plan rollouts."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from narrowcast.broker import wire
from narrowcast.broker.background_tasks import cancel_tasks
from narrowcast.broker.control.other_nodes import OtherNodes, fit_message
from narrowcast.broker.control.plan_loader import load_plan
from narrowcast.broker.control.request_server import RequestServer
from narrowcast.broker.control.subscriber_placement import LONGEST, RecentEvents
from narrowcast.broker.data.node_counts import SECONDS, SubscriberCounts
from narrowcast.broker.data.routing_state import PlanEpoch, do_nothing, no_routes
from narrowcast.deprecation import renamed_members, renamed_parameters
from narrowcast.errors import InputError, NarrowcastError, ParameterError, PlanError, TransportError
from narrowcast.filters.limits import LENIENT
from narrowcast.filters.subscriptions import compile_filters
from narrowcast.matching import Scan
from narrowcast.validation import check_number

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from narrowcast.broker.control.subscription_index import SubscriptionIndex
    from narrowcast.broker.storage.positions import Positions
    from narrowcast.broker.transport import Message, Transport
    from narrowcast.routing.plan_routes import PlanRoutes

    SubscriberRequest = (
        wire.Hello
        | wire.Bye
        | wire.AddFilters
        | wire.RemoveSubscriptions
        | wire.ChannelsJoined
        | wire.SubscriberReport
    )

log = logging.getLogger(__name__)

#: Default seconds for subscribers to join the channels of a new plan.
OVERLAP = 5.0
#: Seconds between heartbeats; seconds without a sign of life after which a subscriber counts as gone; and
#: seconds at the start for other nodes to request the control state.
BEAT, SILENT, _GATHER = 2.0, 90.0, 0.5
#: Seconds for a subscriber to leave channels after it was ordered to.
_LEAVE_S = 2.0
#: Maximum subscriptions in one message to another node.
_ROWS = 2000


@renamed_members(standing="state_of")
@renamed_parameters(others="has_followers", plans="last_epoch")
class ControlPlane:
    """Answers requests of subscribers, rolls out plans, and replicates its state to other nodes.

    Parameters
    ----------
    transport
        Moves the messages.
    interests
        The subscriptions.
    prefix
        First word of all subjects.
    joins
        Maximum channel joins per second during a rollout (default: no limit).
    has_followers
        Whether there are other nodes: at the start they have half a second to request the control state.
    last_epoch
        Epochs of plans are numbered from the next one. It must be at least every epoch used before a restart,
        since subscribers may still listen to channels of such a plan.
    positions
        Positions of subscribers in the event store; None for at-most-once delivery.
    """

    def __init__(
        self,
        transport: Transport,
        interests: SubscriptionIndex,
        *,
        prefix: str = "nc",
        joins: float | None = None,
        has_followers: bool = False,
        last_epoch: int = 0,
        positions: Positions | None = None,
    ) -> None:
        self._positions = positions
        self._has_followers = has_followers
        self._joins = joins
        self._transport, self.interests, self.subjects = transport, interests, wire.Subjects(prefix)
        #: Recent events and their channels; filled by the node.
        self.recent_events = RecentEvents()
        #: Waits until all events routed before the call are sent; set by the node.
        self.wait_for_deliveries: Callable[[], Awaitable[None]] = do_nothing
        #: Restricts subscribers to their channels of the current and the next plan, and returns once the NATS
        #: servers enforce that; set where the broker manages permissions.
        self.permit: Callable[[], Awaitable[None]] = do_nothing
        #: Channels that a subscriber may still listen to while it is being placed on others.
        self._leaving: dict[str, list[tuple[int, int]]] = {}
        self._permitting: asyncio.Future[None] | None = None
        #: Called with each plan once it is in use.
        self.on_plan_used: Callable[[PlanEpoch], None] = lambda _: None
        #: Counts that subscribers have reported.
        self.reported = SubscriberCounts()
        #: The plan in use.
        self.epoch = PlanEpoch(0, no_routes())
        self._next: PlanEpoch | None = None
        #: The previous plan, while some node may still route by it: no subscriber leaves its channels yet.
        self._old: PlanEpoch | None = None
        self._last_epoch = last_epoch
        #: Whether a rollout is running, which includes leaving the old channels.
        self.busy = False
        #: Serialises creating and deleting positions, so that every subscriber with filters has one.
        self._positions_lock = asyncio.Lock()
        #: Connected subscribers, and the monotonic time of their last sign of life.
        self._present: dict[str, float] = {}
        #: Set when a subscriber has joined its channels or gone.
        self._joined_or_left = asyncio.Event()
        # From the clock, so that changes after a restart have higher numbers than those before it.
        self._since = self._number = time.time_ns()
        self._others = OtherNodes(transport, self.subjects)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> list[asyncio.Task[None]]:
        """Start to answer requests; none is missed once this returns. Return the running tasks."""
        if self._positions is not None:
            await self._positions.start()
            await self._positions.begin(self.interests.subscribers)
            if not self._has_followers:  # which may still route by a plan from before the restart
                await self._positions.switch(self.epoch.number)
        requests = await self._transport.subscribe(self.subjects.asks)
        orders = await self._transport.subscribe(self.subjects.orders)
        await self._others.start()
        order_server = RequestServer(self._transport, self.subjects, self._answer_order)
        self._tasks = [asyncio.create_task(order_server.run(orders, together=True))]
        await self._send_heartbeat()
        if self._has_followers:  # they request the state now, and receive all changes after that
            await asyncio.sleep(_GATHER)
        request_server = RequestServer(self._transport, self.subjects, self._answer_request)
        self._tasks += [
            asyncio.create_task(request_server.run(requests)),
            asyncio.create_task(self._run_heartbeats()),
        ]
        if self._positions is not None:
            self._tasks.append(asyncio.create_task(self._positions.run_sweeps()))
        return self._tasks

    async def _run_heartbeats(self) -> None:
        """Send heartbeats, and mark subscribers that have been silent too long as gone."""
        while True:
            await asyncio.sleep(BEAT)
            silent = [name for name, last in self._present.items() if time.monotonic() - last > SILENT]
            with suppress(TransportError):  # while the server is unreachable; tried again with the next
                await self._send_heartbeat()
                for name in silent:
                    log.info("subscriber %s counts as gone: no sign of life for %g s", name, SILENT)
                    await self._leave(name)

    async def _send_heartbeat(self) -> None:
        beat = wire.Heartbeat(self._since, self._number)
        await self._transport.publish(self.subjects.beats, wire.encode(beat))

    async def _leave(self, subscriber: str) -> None:
        """Record that a subscriber listens to no channel."""
        self._present.pop(subscriber, None)
        self._joined_or_left.set()
        for each in self._epochs():
            each.leave(subscriber)
        await self._replicate(left=[subscriber])

    async def stop(self) -> None:
        """Stop all tasks."""
        await cancel_tasks(*self._tasks)
        await self._others.aclose()

    async def _answer_request(self, message: Message) -> wire.Answer:
        """Answer a request of a subscriber, sent to the subject that only this subscriber may publish to."""
        request = wire.decode_request(message.payload)
        own = self.subjects.ask(request.subscriber)
        if message.subject != own:
            raise InputError(
                f"subject={message.subject!r}: requests of {request.subscriber!r} must be sent to {own}",
                parameter="subject",
                value=message.subject,
            )
        if not isinstance(request, wire.ReplayRequest):
            return await self.ask(request)
        if self._positions is None:
            raise InputError("replay is not available: this broker stores no events (at-most-once delivery)")
        n = await self._positions.replay(request.subscriber, request.after, request.token, request.store)
        return wire.ReplayStarted(n)

    async def _answer_order(self, message: Message) -> wire.Answer:
        """Answer an operator's rollout request, or another node's request for the control state."""
        order = wire.decode_order(message.payload)
        if isinstance(order, wire.NodeJoin):
            return self._node_state(order)
        return await self.rollout_from(
            order.plan, order.flow, overlap=order.overlap, least=order.least, joins=order.joins
        )

    # ---- subscribers

    async def ask(self, request: SubscriberRequest) -> wire.SubscriberState:
        """Carry out a request of a subscriber; when this returns, the change holds on every node.

        Parameters
        ----------
        request
            The request; it names its subscriber.

        Returns
        -------
        wire.SubscriberState
            The subscriber's state after the request.

        Raises
        ------
        InputError
            When the request is refused; then nothing has changed.
        """
        subscriber = request.subscriber
        if subscriber in self._present:
            self._present[subscriber] = time.monotonic()
        added: list[int] = []
        after: int | None = None
        had = wire.ReadEvents()
        if isinstance(request, wire.SubscriberReport):
            self._count_report(request)
            if subscriber not in self._present:  # it counted as gone, but is connected after all
                self._present[subscriber] = time.monotonic()
                channels = self.epoch.channels(subscriber)
                await self._send_order(subscriber, wire.PreparePlan(self.epoch.number, channels))
        elif isinstance(request, wire.ChannelsJoined):
            epochs = [each for each in self._epochs() if each.number == request.epoch]
            if self._positions is not None:
                for each in epochs:
                    await self._positions.join(subscriber, each.number, each.channels(subscriber))
            if any(each.join(subscriber, request.channels) for each in epochs):
                await self._replicate(joined=[(request.epoch, subscriber)])
                self._joined_or_left.set()
        elif isinstance(request, wire.Hello | wire.Bye):
            # A new instance has joined no channel yet, and a leaving one has left all.
            await self._leave(subscriber)
            if isinstance(request, wire.Hello):
                self._present[subscriber] = time.monotonic()
                if self._positions is not None:
                    async with self._positions_lock:
                        after, had = await self._positions.of(subscriber)
                    await self._send_order(subscriber, wire.ReaderReplaced(request.life))
        elif isinstance(request, wire.RemoveSubscriptions):
            self.interests.remove(subscriber, request.subscription_ids)
            if request.subscription_ids:
                await self._replicate(removed=request.subscription_ids)
                await self._place(subscriber)
            if self._positions is not None:
                async with self._positions_lock:
                    if not self.interests.of(subscriber):
                        await self._positions.forget(subscriber)
        else:
            async with self._positions_lock:
                if self._positions is not None:  # from now on its events are stored for it
                    after, had = await self._positions.of(subscriber)
                    for each in self._epochs():  # it may have removed its last filter, and still listen
                        if subscriber in each.joined:
                            await self._positions.join(subscriber, each.number, each.channels(subscriber))
                added = self.interests.add(subscriber, request.filters)
            rows = [
                wire.SubscriptionRow(n, subscriber, text)
                for n, text in zip(added, request.filters, strict=True)
            ]
            if rows:
                await self._replicate(added=rows)
                await self._place(subscriber)
        return msgspec.structs.replace(self.state_of(subscriber), added=added, after=after, had=had)

    def _count_report(self, report: wire.SubscriberReport) -> None:
        """Add the counts of a subscriber to `reported`."""
        if len(report.classes) != len(SECONDS) + 1:
            raise InputError(
                f"classes: a report must have {len(SECONDS) + 1} latency classes, not {len(report.classes)}",
                parameter="classes",
                value=len(report.classes),
                limit=f"{len(SECONDS) + 1} classes",
            )
        self.reported.arriving.merge(report.classes, report.total)
        self.reported.filtered += report.filtered
        self.reported.repeated += report.repeated
        self.reported.dropped += report.dropped

    async def _place(self, subscriber: str) -> None:
        """Place a subscriber that the plan lacks on channels where that costs less than direct messages."""
        if self.epoch.knows(subscriber) or not self.epoch.routes.plan.n_channels:
            return
        texts = list(self.interests.of(subscriber).values())
        if sum(map(len, texts)) > LONGEST:  # reading them takes long: sent to directly until the next plan
            texts = []
        matcher = Scan().fit(compile_filters(self.interests.schema, texts, limits=LENIENT).subscriptions)
        plan = self.epoch.routes.plan
        members = np.bincount(plan.listens.indices, minlength=plan.n_channels)
        spreads = self.epoch.routes.flows is None
        channels = self.recent_events.channels(matcher, members, spreads=spreads) if texts else []
        before = [(self.epoch.number, channel) for channel in self.epoch.channels(subscriber)]
        if self.epoch.place(subscriber, channels):
            self._leaving[subscriber] = before
            await self._replicate(placed=[(self.epoch.number, subscriber, channels)])
            await self.permit()
            await self.wait_for_deliveries()  # no event is in flight over channels that it may leave now
            del self._leaving[subscriber]
            if set(before) - {(self.epoch.number, channel) for channel in channels}:
                asyncio.get_running_loop().call_later(_LEAVE_S, self._permit_soon)

    def _permit_soon(self) -> None:
        """Withdraw permissions for channels that subscribers were ordered to leave."""
        self._permitting = asyncio.ensure_future(self.permit())

    async def change(self, request: wire.AddFilters | wire.RemoveSubscriptions) -> wire.SubscriberState:
        """Change the subscriptions of a subscriber on its behalf, and send it its new state.

        Parameters
        ----------
        request
            The change.

        Raises
        ------
        InputError
            When the request is refused; then nothing has changed.
        """
        answer = await self.ask(request)
        await self._send_order(request.subscriber, answer)
        return answer

    async def _send_order(
        self, subscriber: str, order: wire.SubscriberState | wire.PreparePlan | wire.ReaderReplaced
    ) -> None:
        try:
            await self._transport.publish(self.subjects.control(subscriber), wire.encode(order))
        except ParameterError as error:  # filters of a table, which no limit bounds
            log.warning("state of subscriber %s not sent, it does not fit a message: %s", subscriber, error)

    def state_of(self, subscriber: str) -> wire.SubscriberState:
        """Return the current state of a subscriber, as it is sent to it."""
        return wire.SubscriberState(
            change=self._number,
            version=self.interests.version(subscriber),
            filters=self.interests.of(subscriber),
            schema=self.interests.schema.to_dict(),
            epoch=self.epoch.number,
            channels=self.epoch.channels(subscriber),
            prepared=next((each.number for each in (self._next, self._old) if each is not None), None),
            kept=self.interests.is_durable,
            since=self._since,
            store="" if self._positions is None else self._positions.store,
            key="" if self._positions is None else self._positions.records.key(subscriber),
        )

    # ---- other nodes

    async def _replicate(self, **changed: Any) -> None:
        """Send a change to all nodes under the next number; return when they have applied it.

        The keyword arguments are fields of `wire.ControlChange`.
        """
        self._number += 1
        try:
            await self._others.send(wire.ControlChange(number=self._number, **changed))
        except ParameterError:  # it does not fit a message: nodes that miss it request the whole state
            self._number += 1
            await self._others.send(wire.ControlChange(number=self._number))

    def _node_state(self, join: wire.NodeJoin) -> wire.NodeState:
        """Return the control state for another node, which receives all changes from now on."""
        self._others.add(join.node)
        page = self.interests.rows(join.after, _ROWS)
        rows = fit_message([wire.SubscriptionRow(number, *row) for number, row in page.items()])
        epochs = self._epochs()
        plans = [each.reference() if each.folder else None for each in epochs]
        return wire.NodeState(
            number=self._number,
            schema=self.interests.schema.to_dict(),
            rows=rows,
            more=len(rows) < len(page) or len(page) == _ROWS,
            plan=plans[0],
            prepared=plans[1] if len(plans) > 1 else None,
            placed=[(each.number, *one) for each in epochs for one in each.placed.items()],
            joined=[(each.number, name) for each in epochs for name in sorted(each.joined)],
            stored=self._positions is not None,
        )

    # ---- plans

    def _epochs(self) -> list[PlanEpoch]:
        """Return the plan in use, and the next one if a rollout is running."""
        return [self.epoch] if self._next is None else [self.epoch, self._next]

    def use(self, routes: PlanRoutes, folder: str = "", flow: str | None = None) -> None:
        """Use a plan at once, before any subscriber has connected.

        Parameters
        ----------
        routes
            The plan.
        folder, flow
            Folder that it was read from, and for a plan of topics the attribute with an event's topic.
        """
        self.epoch = self._new_epoch(routes, folder, flow)

    def _new_epoch(self, routes: PlanRoutes, folder: str, flow: str | None) -> PlanEpoch:
        """Return a plan with the next epoch; none is reused, so channels of different plans never mix."""
        self._last_epoch += 1
        return PlanEpoch(self._last_epoch, routes, folder, flow)

    async def rollout_from(
        self,
        folder: str,
        flow: str | None = None,
        *,
        overlap: float = OVERLAP,
        least: float = 0.0,
        joins: float | None = None,
    ) -> wire.RolloutDone:
        """Roll out a plan from its folder; see `rollout` for the parameters.

        Raises
        ------
        PlanError
            When the folder holds no plan for these subscriptions, or the rollout fails: the old plan stays.
        """
        try:
            routes = await load_plan(folder, flow, self.interests)
        except NarrowcastError as error:
            log.warning("rollout failed, the old plan stays: %s", error)
            raise
        listening = await self.rollout(
            routes, overlap=overlap, folder=folder, flow=flow, least=least, joins=joins
        )
        return wire.RolloutDone(self.epoch.number, routes.name, listening)

    async def rollout(
        self,
        routes: PlanRoutes,
        *,
        overlap: float = OVERLAP,
        folder: str = "",
        flow: str | None = None,
        least: float = 0.0,
        joins: float | None = None,
    ) -> int:
        """Switch to a plan while events flow; return the number of subscribers that joined its channels.

        All connected subscribers are asked to join their channels of the plan, in addition to those they
        have. When all have joined or `overlap` is over, events follow the new plan, and subscribers that have
        not joined receive theirs directly until they do. Then the old channels are left. No subscriber misses
        an event.

        Parameters
        ----------
        routes
            The plan.
        overlap
            Seconds to wait for subscribers to join (default 5).
        folder, flow
            Folder that the plan was read from, which other nodes read too; and for a plan of topics the
            attribute with an event's topic.
        least
            Share of the subscribers asked that must join in time, from 0 to 1 (default 0); else the old plan
            stays.
        joins
            Maximum channel joins per second, above 0 (default: that of the control plane).

        Raises
        ------
        PlanError
            When too few subscribers join, or another rollout is running: the old plan stays.
        ParameterError
            When `least` or `joins` is outside its range.
        """
        if self.busy:
            raise PlanError("another rollout is running; wait until its plan is in use")
        check_number("least", least, least=0, most=1, limit="from 0 to 1")
        if joins is not None and joins <= 0:
            raise ParameterError(parameter="joins", value=joins, limit="above 0")
        if self._others.names and not folder:
            raise PlanError("the other nodes need the plan too; give it in a folder that they can read")
        self.busy, new = True, self._new_epoch(routes, folder, flow)
        self._next, nodes = new, set(self._others.names)
        try:
            await self._replicate(prepared=new.reference())
            await self.permit()
            asked = await self._prepare(new, self._joins if joins is None else joins)
            with suppress(TimeoutError):
                async with asyncio.timeout(overlap):
                    while asked & self._present.keys() - new.joined:
                        self._joined_or_left.clear()
                        await self._joined_or_left.wait()
            late = len(asked & self._present.keys() - new.joined)
            if late > (1 - least) * len(asked):
                raise PlanError(
                    f"{late:,} of {len(asked):,} subscribers did not join the new plan within {overlap:g} s, "
                    f"and a share of {least:g} has to; the old plan stays: allow more time or a smaller share"
                )
            if late:
                log.warning("%d subscribers did not join the new plan in time; they receive directly", late)
            self._old, self.epoch = self.epoch, new
            self.recent_events.clear()
            self.on_plan_used(new)
            log.info(
                "plan %s is in use, %d listen to its channels", routes.name, len(new.joined),
                extra={"facts": {"plan": routes.name, "epoch": new.number, "listening": len(new.joined)}},
            )  # fmt: skip
        except NarrowcastError as error:
            log.warning("rollout failed, the old plan stays: %s", error)
            raise
        finally:
            self._next = None
            try:
                await self._retire_old_plan(nodes)
            finally:
                self.busy, self._old = False, None
        return len(new.joined)

    async def _retire_old_plan(self, nodes: set[str]) -> None:
        """Make all nodes use the current plan, then order subscribers to leave all other channels.

        Where events are stored, this waits for the nodes that were connected at the start of the rollout:
        what one of them still stores for old channels, because it had to wait for the server, reaches only
        subscribers that listen to these.
        """
        number = self._number + 1
        await self._replicate(used=self.epoch.number)
        if self._positions is not None and self._old is not None:
            await self._others.wait_applied(number, nodes, self._replicate)
        await self.wait_for_deliveries()
        self._old = None
        if self._positions is not None:
            with suppress(TransportError):  # positions for old channels do no harm
                await self._positions.switch(self.epoch.number)
        for name in sorted(self._present):
            await self._send_order(name, self.state_of(name))
        await self.permit()

    def channels(self, subscriber: str) -> list[tuple[int, int]]:
        """Return epoch and number of the channels that a subscriber may listen to now."""
        epochs = self._epochs() if self._old is None else [*self._epochs(), self._old]
        now = [(each.number, channel) for each in epochs for channel in each.channels(subscriber)]
        return now + self._leaving.get(subscriber, [])

    async def _prepare(self, new: PlanEpoch, joins: float | None) -> set[str]:
        """Ask connected subscribers to join their channels of a plan; return the names of those asked."""
        asked = {name for name in self._present if new.channels(name)}
        for name in sorted(asked):
            channels = new.channels(name)
            await self._send_order(name, wire.PreparePlan(new.number, channels))
            if joins is not None:
                await asyncio.sleep(len(channels) / joins)
        return asked
