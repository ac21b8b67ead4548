"""A node that follows the control state of the first node."""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from narrowcast.broker import wire
from narrowcast.broker.clients.request_client import RequestClient
from narrowcast.broker.control.subscriber_placement import RecentEvents
from narrowcast.broker.control.subscription_index import SubscriptionIndex
from narrowcast.broker.data.routing_state import PlanEpoch, do_nothing, no_routes
from narrowcast.errors import NarrowcastError, ParameterError, TransportError
from narrowcast.files import first_line
from narrowcast.model.schema import Schema
from narrowcast.routing.plan_routes import read_routes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from narrowcast.broker.limits import BrokerLimits
    from narrowcast.broker.transport import Inbox, Transport

log = logging.getLogger(__name__)

#: Seconds between two attempts to load the control state.
_PAUSE = 0.5


class Follower:
    """Control state of a node that replicates subscriptions and plans from the first node.

    It requests the whole state once and then applies every change; when it has missed a change, it requests
    the state again. Plans are read from the same folder as on the first node, which has to exist here too.

    Parameters
    ----------
    transport
        Moves the messages.
    prefix
        First word of all subjects.
    stored
        Whether events are stored (at-least-once delivery); must be as on the first node.
    limits
        Limits on filters; must be as on the first node.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        prefix: str = "nc",
        stored: bool = False,
        limits: BrokerLimits | None = None,
    ) -> None:
        self._transport, self.subjects, self._stored = transport, wire.Subjects(prefix), stored
        self._limits = limits
        #: Recent events and their channels, filled by the node; unused, since only the first node places
        #: subscribers.
        self.recent_events = RecentEvents()
        #: Waits until all events routed before the call are sent; set by the node.
        self.wait_for_deliveries: Callable[[], Awaitable[None]] = do_nothing
        self._name = secrets.token_hex(8)
        self._requests = RequestClient(transport, self.subjects.inbox(f"node-{self._name}"))
        self.interests = SubscriptionIndex()
        #: The plan in use.
        self.epoch = PlanEpoch(0, no_routes())
        self._next: PlanEpoch | None = None
        self._number = -1
        self._tasks: list[asyncio.Task[None]] = []
        self._lock = asyncio.Lock()

    async def start(self) -> list[asyncio.Task[None]]:
        """Load the control state and start to follow it; return the running tasks."""
        await self._requests.start()
        changes = await self._transport.subscribe(self.subjects.changes)
        beats = await self._transport.subscribe(self.subjects.beats)
        await self._load()
        self._tasks = [asyncio.create_task(self._follow(changes)), asyncio.create_task(self._watch(beats))]
        return self._tasks

    async def _watch(self, beats: Inbox) -> None:
        """Load the state again when a heartbeat shows a restart of the first node or a missed change."""
        async for message in beats:
            try:
                beat = wire.decode_beat(message.payload)
            except (msgspec.MsgspecError, UnicodeError):
                continue  # not from a node
            if beat.number > self._number:
                await asyncio.sleep(_PAUSE)  # the change may still arrive
            async with self._lock:
                if beat.number > self._number:
                    await self._reload()

    async def _reload(self) -> None:
        """Log that changes were missed, and request the state."""
        log.warning("changes of the control state were missed; loading it again")
        await self._load_until_done()

    async def _load_until_done(self) -> None:
        """Request the state, and retry until that succeeds."""
        while True:
            try:
                await self._load()
                return
            except NarrowcastError as error:
                log.warning("%s", error)
                await asyncio.sleep(_PAUSE)

    async def stop(self) -> None:
        """Stop all tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._requests.aclose()

    async def _load(self) -> None:
        """Request the whole control state and apply it."""
        state = await self._request_page(-1)
        if state.stored != self._stored:
            modes = ("at-most-once", "at-least-once")
            raise TransportError(
                f"delivery={modes[self._stored]!r}: must be {modes[state.stored]!r} as on the first node",
                parameter="delivery",
                value=modes[self._stored],
                limit=f"{modes[state.stored]!r} as on the first node",
            )
        interests = SubscriptionIndex(Schema.of(state.schema), limits=self._limits)
        rows = list(state.rows)
        more = state.more
        while more:
            page = await self._request_page(rows[-1].subscription_id)
            rows, more = rows + page.rows, page.more
        interests.load(
            [row.subscriber for row in rows],
            [row.filter for row in rows],
            [row.subscription_id for row in rows],
        )
        self.epoch, self._next = self._read(state.plan, interests.schema), None
        if state.prepared is not None:
            self._next = self._read(state.prepared, interests.schema)
        self.interests, self._number = interests, state.number
        self._place(state.placed)
        for number, name in state.joined:
            self._join(number, name)
        await self.wait_for_deliveries()  # a later acknowledgement says that this plan is used

    async def _request_page(self, after: int) -> wire.NodeState:
        """Request one page of the control state: subscriptions with ids above `after`."""
        order = wire.encode(wire.NodeJoin(self._name, after))
        try:
            answer = wire.decode_answer(await self._requests.ask(self.subjects.orders, order))
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise TransportError(f"invalid answer of the first node: {first_line(error)}") from error
        if not isinstance(answer, wire.NodeState):
            raise TransportError(f"the first node does not send the control state: {answer}")
        return answer

    def _read(self, plan: wire.PlanReference | None, schema: Schema) -> PlanEpoch:
        """Read a plan from its folder, and check that it is the plan of the first node.

        Events routed by a different plan would go to channels without listeners. So without the right plan
        this node sends every event directly, which is correct whatever the first node does.
        """
        if plan is None:
            return PlanEpoch(0, no_routes())
        try:
            routes = read_routes(plan.folder, schema, plan.flow)
            if routes.name == plan.name:
                return PlanEpoch(plan.epoch, routes, plan.folder, plan.flow)
            why = f"folder {plan.folder} has plan {routes.name} here, and {plan.name} on the first node"
        except NarrowcastError as error:
            why = str(error)
        log.error("this node sends all events directly until the next rollout: %s", why)
        return PlanEpoch(plan.epoch, no_routes())

    def _place(self, placed: list[tuple[int, str, list[int]]]) -> None:
        """Record channels of subscribers that were placed in a plan that lacks them."""
        for number, name, channels in placed:
            for each in (self.epoch, self._next):
                if each is not None and each.number == number:
                    each.place(name, channels)

    def _join(self, number: int, name: str) -> None:
        """Record that a subscriber listens to all its channels of a plan."""
        for each in (self.epoch, self._next):
            if each is not None and each.number == number:
                each.join(name, each.channels(name))

    async def _follow(self, changes: Inbox) -> None:
        """Apply changes as they arrive, and acknowledge each."""
        async for message in changes:
            try:
                change = wire.decode_change(message.payload)
            except (msgspec.MsgspecError, UnicodeError):
                continue  # not from a node
            async with self._lock:
                if change.number > self._number + 1:
                    await self._reload()
                if change.number > self._number:
                    await self._apply_or_load(change)
            with suppress(TransportError, ParameterError):  # the first node stops waiting after a timeout
                await self._transport.publish(message.reply, self._name.encode())

    async def _apply_or_load(self, change: wire.ControlChange) -> None:
        """Apply a change; when that fails, request the whole state instead."""
        try:
            await self._apply(change)
        except Exception:  # one change must not end the node
            log.exception("control change %d could not be applied; loading the state again", change.number)
            await self._load_until_done()

    async def _apply(self, change: wire.ControlChange) -> None:
        """Apply a change."""
        self._number = change.number
        rows = change.added
        if rows:
            if unknown := self._unknown_attributes(rows):
                log.info("filters name new attributes: %s; loading the control state again", unknown)
                await self._load_until_done()
                return
            self.interests.load(
                [row.subscriber for row in rows],
                [row.filter for row in rows],
                [row.subscription_id for row in rows],
            )
        self.interests.drop(change.removed)
        for name in change.left:
            for each in filter(None, (self.epoch, self._next)):
                each.leave(name)
        if change.prepared is not None:
            self._next = self._read(change.prepared, self.interests.schema)
        self._place(change.placed)
        if change.placed:
            await self.wait_for_deliveries()
        for number, name in change.joined:
            self._join(number, name)
        if change.used is not None:
            if self._next is not None and self._next.number == change.used:
                self.epoch = self._next
            self._next = None
            await self.wait_for_deliveries()

    def _unknown_attributes(self, rows: list[wire.SubscriptionRow]) -> str:
        """Return attributes that filters name and the schema lacks: the first node has just learned them."""
        from narrowcast.filters.type_inference import infer_schema

        named = infer_schema([row.filter for row in rows]).names
        return ", ".join(name for name in named if name not in self.interests.schema)
