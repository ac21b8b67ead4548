"""A node beside the first: it holds what the first one says."""

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
from narrowcast.broker.data.routing_state import PlanEpoch, no_routes, nothing_on_its_way
from narrowcast.errors import NarrowcastError, ParameterError, TransportError
from narrowcast.files import first_line
from narrowcast.model.schema import Schema
from narrowcast.routing.plan_routes import read_routes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from narrowcast.broker.limits import BrokerLimits
    from narrowcast.broker.transport import Inbox, Transport

log = logging.getLogger(__name__)

#: Seconds from one try to hear what holds to the next.
_PAUSE = 0.5


class Follower:
    """Subscriptions and plans as the first node has them.

    It asks for all that holds, and takes up every change after that; where it has missed one, it asks again.
    Plans are read from the folder that the first node has them from: it has to be there for this one too.

    Parameters
    ----------
    transport
        What moves bytes.
    prefix
        How subjects begin.
    stored
        Whether events are stored: as at the first node.
    limits
        Bounds on filters: as at the first node.
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
        #: What events went over lately: a node says; the first one places whoever comes.
        self.recent = RecentEvents()
        #: Waits until no event is on its way that was routed before: a node says how.
        self.settle: Callable[[], Awaitable[None]] = nothing_on_its_way
        self._name = secrets.token_hex(8)
        self._asking = RequestClient(transport, self.subjects.inbox(f"node-{self._name}"))
        self.interests = SubscriptionIndex()
        #: The plan in use.
        self.epoch = PlanEpoch(0, no_routes())
        self._next: PlanEpoch | None = None
        self._number = -1
        self._tasks: list[asyncio.Task[None]] = []
        self._taking = asyncio.Lock()

    async def start(self) -> list[asyncio.Task[None]]:
        """Take up what holds, and begin to follow; return the task that does."""
        await self._asking.start()
        changes = await self._transport.subscribe(self.subjects.changes)
        beats = await self._transport.subscribe(self.subjects.beats)
        await self._catch_up()
        self._tasks = [asyncio.create_task(self._follow(changes)), asyncio.create_task(self._watch(beats))]
        return self._tasks

    async def _watch(self, beats: Inbox) -> None:
        """Ask for all that holds when the first node is another, or says that something was missed."""
        async for message in beats:
            try:
                beat = wire.decode_beat(message.payload)
            except (msgspec.MsgspecError, UnicodeError):
                continue  # somebody else's
            if beat.number > self._number:
                await asyncio.sleep(_PAUSE)  # the change may be on its way
            async with self._taking:
                if beat.number > self._number:
                    await self._ask_again()

    async def _ask_again(self) -> None:
        """Ask for all that holds, because changes were missed."""
        log.warning("changes were missed; asking for all that holds")
        await self._caught_up()

    async def _caught_up(self) -> None:
        """Ask for all that holds, until it is said."""
        while True:
            try:
                await self._catch_up()
                return
            except NarrowcastError as error:
                log.warning("%s", error)
                await asyncio.sleep(_PAUSE)

    async def stop(self) -> None:
        """End its work."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._asking.aclose()

    async def _catch_up(self) -> None:
        """Take up all that holds."""
        state = await self._ask(-1)
        if state.stored != self._stored:
            ways = ("at-most-once", "at-least-once")
            raise TransportError(
                f"the first node delivers {ways[state.stored]}, and this one {ways[self._stored]}; start it "
                f"with --delivery {ways[state.stored]}"
            )
        interests = SubscriptionIndex(Schema.of(state.schema), limits=self._limits)
        rows = list(state.rows)
        more = state.more
        while more:
            page = await self._ask(rows[-1].subscription_id)
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
        await self.settle()  # the plan may be another: what is answered from now on says that it is used

    async def _ask(self, after: int) -> wire.NodeState:
        """Ask the first node what holds."""
        order = wire.encode(wire.NodeJoin(self._name, after))
        try:
            answer = wire.decode_answer(await self._asking.ask(self.subjects.orders, order))
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise TransportError(f"what the first node says cannot be read: {first_line(error)}") from error
        if not isinstance(answer, wire.NodeState):
            raise TransportError(f"the first node does not say what holds: {answer}")
        return answer

    def _read(self, plan: wire.PlanReference | None, schema: Schema) -> PlanEpoch:
        """Return a plan from its folder, if it is the one that the first node has.

        Another one would send over channels that nobody listens to. Where it is not there, this node sends
        everything directly, which is right whatever the first one does.
        """
        if plan is None:
            return PlanEpoch(0, no_routes())
        try:
            routes = read_routes(plan.folder, schema, plan.flow)
            if routes.name == plan.name:
                return PlanEpoch(plan.epoch, routes, plan.folder, plan.flow)
            why = f"{plan.folder} has plan {routes.name} here, and {plan.name} at the first node"
        except NarrowcastError as error:
            why = str(error)
        log.error("this node sends everything directly until there is another plan: %s", why)
        return PlanEpoch(plan.epoch, no_routes())

    def _place(self, placed: list[tuple[int, str, list[int]]]) -> None:
        """Note channels of those whom a plan does not know."""
        for number, name, channels in placed:
            for each in (self.epoch, self._next):
                if each is not None and each.number == number:
                    each.place(name, channels)

    def _join(self, number: int, name: str) -> None:
        """Note that somebody listens to all channels that a plan has for them."""
        for each in (self.epoch, self._next):
            if each is not None and each.number == number:
                each.join(name, each.channels(name))

    async def _follow(self, changes: Inbox) -> None:
        """Take up changes as they come."""
        async for message in changes:
            try:
                change = wire.decode_change(message.payload)
            except (msgspec.MsgspecError, UnicodeError):
                continue  # somebody else's
            async with self._taking:
                if change.number > self._number + 1:
                    await self._ask_again()
                if change.number > self._number:
                    await self._try(change)
            with suppress(TransportError, ParameterError):  # the first node waits only for a while
                await self._transport.publish(message.reply, self._name.encode())

    async def _try(self, change: wire.ControlChange) -> None:
        """Take up a change, or all that holds where it cannot be."""
        try:
            await self._take_up(change)
        except Exception:  # one change ends no node
            log.exception("change %d could not be taken up; asking for all that holds", change.number)
            await self._caught_up()

    async def _take_up(self, change: wire.ControlChange) -> None:
        """Take up a change."""
        self._number = change.number
        rows = change.added
        if rows:
            if unknown := self._unknown(rows):
                log.info("attributes are new: %s; asking for all that holds", unknown)
                await self._caught_up()
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
            await self.settle()
        for number, name in change.joined:
            self._join(number, name)
        if change.used is not None:
            if self._next is not None and self._next.number == change.used:
                self.epoch = self._next
            self._next = None
            await self.settle()

    def _unknown(self, rows: list[wire.SubscriptionRow]) -> str:
        """Return attributes of filters that the schema lacks, as it may when the first node learns them."""
        from narrowcast.filters.type_inference import infer_schema

        named = infer_schema([row.filter for row in rows]).names
        return ", ".join(name for name in named if name not in self.interests.schema)
