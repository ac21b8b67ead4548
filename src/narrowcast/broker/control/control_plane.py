"""The desk of the first node: who subscribes, who listens, and which plan is used."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from narrowcast.broker import wire
from narrowcast.broker.background_tasks import ended
from narrowcast.broker.control.other_nodes import OtherNodes, fitting
from narrowcast.broker.control.plan_loader import read_offered
from narrowcast.broker.control.request_server import RequestServer
from narrowcast.broker.control.subscriber_placement import LONGEST, RecentEvents
from narrowcast.broker.data.node_counts import SECONDS, SubscriberCounts
from narrowcast.broker.data.routing_state import PlanEpoch, no_routes, nothing_on_its_way
from narrowcast.errors import InputError, NarrowcastError, ParameterError, PlanError, TransportError
from narrowcast.filters.limits import LENIENT
from narrowcast.filters.subscriptions import compile_filters
from narrowcast.matching import Scan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from narrowcast.broker.control.subscription_index import SubscriptionIndex
    from narrowcast.broker.storage.positions import Positions
    from narrowcast.broker.transport import Message, Transport
    from narrowcast.routing.plan_routes import PlanRoutes

    Asked = (
        wire.Hello
        | wire.Bye
        | wire.AddFilters
        | wire.RemoveSubscriptions
        | wire.ChannelsJoined
        | wire.SubscriberReport
    )

log = logging.getLogger(__name__)

#: Seconds that subscribers have to listen to the channels of a new plan.
OVERLAP = 5.0
#: Seconds from one sign of life to the next, those after which a subscriber without one counts as gone, and
#: those in which other nodes ask for all that holds when the first one starts.
BEAT, SILENT, _GATHER = 2.0, 90.0, 0.5
#: Seconds in which somebody who was told to gives up channels.
_GIVEN_UP = 2.0
#: Subscriptions that another node is told of in one message.
_ROWS = 2000


class ControlPlane:
    """Answers subscribers, and takes up plans; other nodes follow what it says.

    Parameters
    ----------
    transport
        What moves bytes.
    interests
        Who subscribes to what.
    prefix
        How subjects begin.
    joins
        How many channels may be joined a second for a new plan, at most; any number where left out.
    others
        Whether there are other nodes, which are waited for in the beginning.
    plans
        The number behind which plans are numbered: one that no plan of an earlier start has, since some may
        still listen to its channels.
    positions
        How far subscribers are in what is stored for them; None where nothing is stored.
    """

    def __init__(
        self,
        transport: Transport,
        interests: SubscriptionIndex,
        *,
        prefix: str = "nc",
        joins: float | None = None,
        others: bool = False,
        plans: int = 0,
        positions: Positions | None = None,
    ) -> None:
        self._positions = positions
        self._waits = others
        self._joins = joins
        self._transport, self.interests, self.subjects = transport, interests, wire.Subjects(prefix)
        #: What events went over lately: a node says.
        self.recent = RecentEvents()
        #: Waits until no event is on its way that was routed before: a node says how.
        self.settle: Callable[[], Awaitable[None]] = nothing_on_its_way
        #: Lets subscribers listen to their channels of the plan in use and of the one to come, and to no
        #: others: returns when servers hold to that. Whoever runs the broker says how.
        self.permit: Callable[[], Awaitable[None]] = nothing_on_its_way
        #: Channels that somebody may still listen to while it is told of others.
        self._leaving: dict[str, list[tuple[int, int]]] = {}
        self._permitting: asyncio.Future[None] | None = None
        #: Hears of a plan when it is in use. Whoever runs the broker says what it does.
        self.used: Callable[[PlanEpoch], None] = lambda _: None
        #: What subscribers say that they got.
        self.got = SubscriberCounts()
        #: The plan in use.
        self.epoch = PlanEpoch(0, no_routes())
        self._next: PlanEpoch | None = None
        #: The plan that was in use, while some node may still go by it: nobody leaves its channels.
        self._old: PlanEpoch | None = None
        self._plans = plans
        #: Whether a plan is being taken up, or what was before is being given up.
        self.busy = False
        #: Held while somebody becomes known or is forgotten: who subscribes meanwhile has a position.
        self._knowing = asyncio.Lock()
        #: Those who are there, and when they were heard last.
        self._present: dict[str, float] = {}
        self._arrived = asyncio.Event()
        # From the clock, so that changes of a node that is started again are later than those before.
        self._since = self._number = time.time_ns()
        self._others = OtherNodes(transport, self.subjects)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> list[asyncio.Task[None]]:
        """Begin to answer; once this returns no question is missed. Return the tasks that do it."""
        if self._positions is not None:
            await self._positions.start()
            await self._positions.begin(self.interests.subscribers)
            if not self._waits:  # else they may still go by the plan of an earlier start
                await self._positions.switch(self.epoch.number)
        asked = await self._transport.subscribe(self.subjects.asks)
        orders = await self._transport.subscribe(self.subjects.orders)
        await self._others.start()
        ordered = RequestServer(self._transport, self.subjects, self._ordered)
        self._tasks = [asyncio.create_task(ordered.run(orders, together=True))]
        await self._beat()
        if self._waits:  # they ask for all that holds, and are told from then on
            await asyncio.sleep(_GATHER)
        self._tasks += [
            asyncio.create_task(RequestServer(self._transport, self.subjects, self._asked).run(asked)),
            asyncio.create_task(self._beats()),
        ]
        if self._positions is not None:
            self._tasks.append(asyncio.create_task(self._positions.sweeps()))
        return self._tasks

    async def _beats(self) -> None:
        """Say again and again that this node is there, and forget those who are silent."""
        while True:
            await asyncio.sleep(BEAT)
            silent = [name for name, heard in self._present.items() if time.monotonic() - heard > SILENT]
            with suppress(TransportError):  # while the server is gone: again later
                await self._beat()
                for name in silent:
                    log.info("%s is silent, and counts as gone", name)
                    await self._left(name)

    async def _beat(self) -> None:
        """Say that this node is there."""
        said = wire.Heartbeat(self._since, self._number)
        await self._transport.publish(self.subjects.beats, wire.encode(said))

    async def _left(self, who: str) -> None:
        """Note that somebody listens to nothing any more."""
        self._present.pop(who, None)
        self._arrived.set()
        for each in self._epochs():
            each.leave(who)
        await self._tell(left=[who])

    async def stop(self) -> None:
        """End its work."""
        await ended(*self._tasks)
        await self._others.aclose()

    async def _asked(self, message: Message) -> wire.Answer:
        """Answer a subscriber, who asks for itself."""
        request = wire.decode_request(message.payload)
        own = self.subjects.ask(request.subscriber)
        if message.subject != own:
            raise InputError(f"{request.subscriber!r} asks at {own}, not at {message.subject}")
        if not isinstance(request, wire.ReplayRequest):
            return await self.ask(request)
        if self._positions is None:
            raise InputError("nothing is stored here: this broker delivers at most once")
        many = await self._positions.replay(request.subscriber, request.after, request.token, request.store)
        return wire.ReplayStarted(many)

    async def _ordered(self, message: Message) -> wire.Answer:
        """Do what those want who run the broker, or tell another node what holds."""
        order = wire.decode_order(message.payload)
        if isinstance(order, wire.NodeJoin):
            return self._state(order)
        return await self.rollout_from(
            order.plan, order.flow, overlap=order.overlap, least=order.least, joins=order.joins
        )

    # ---- subscribers

    async def ask(self, request: Asked) -> wire.SubscriberState:
        """Do what somebody asks for; when this returns it holds on every node.

        Raises
        ------
        InputError
            When it cannot be done: then nothing is.
        """
        who = request.subscriber
        if who in self._present:
            self._present[who] = time.monotonic()
        added: list[int] = []
        after: int | None = None
        had = wire.ReadEvents()
        if isinstance(request, wire.SubscriberReport):
            self._note(request)
            if who not in self._present:  # it was silent for long, and is there after all
                self._present[who] = time.monotonic()
                await self._order(who, wire.PreparePlan(self.epoch.number, self.epoch.channels(who)))
        elif isinstance(request, wire.ChannelsJoined):
            epochs = [each for each in self._epochs() if each.number == request.epoch]
            if self._positions is not None:
                for each in epochs:
                    await self._positions.join(who, each.number, each.channels(who))
            if any(each.join(who, request.channels) for each in epochs):
                await self._tell(joined=[(request.epoch, who)])
                self._arrived.set()
        elif isinstance(request, wire.Hello | wire.Bye):
            # It listens to nothing, yet or any more, whatever it did before.
            await self._left(who)
            if isinstance(request, wire.Hello):
                self._present[who] = time.monotonic()
                if self._positions is not None:
                    async with self._knowing:
                        after, had = await self._positions.of(who)
                    await self._order(who, wire.ReaderReplaced(request.life))
        elif isinstance(request, wire.RemoveSubscriptions):
            self.interests.remove(who, request.subscription_ids)
            if request.subscription_ids:
                await self._tell(removed=request.subscription_ids)
                await self._place(who)
            if self._positions is not None:
                async with self._knowing:
                    if not self.interests.of(who):
                        await self._positions.forget(who)
        else:
            async with self._knowing:
                if self._positions is not None:  # from now on what it wants is stored for it
                    after, had = await self._positions.of(who)
                    for each in self._epochs():  # it may have given up all before, and still listen
                        if who in each.joined:
                            await self._positions.join(who, each.number, each.channels(who))
                added = self.interests.add(who, request.filters)
            rows = [
                wire.SubscriptionRow(n, who, text) for n, text in zip(added, request.filters, strict=True)
            ]
            if rows:
                await self._tell(added=rows)
                await self._place(who)
        return msgspec.structs.replace(self.standing(who), added=added, after=after, had=had)

    def _note(self, said: wire.SubscriberReport) -> None:
        """Count what a subscriber says that it got."""
        if len(said.classes) != len(SECONDS) + 1:
            raise InputError(f"a report has {len(said.classes)} classes of seconds, not {len(SECONDS) + 1}")
        self.got.arriving.merge(said.classes, said.total)
        self.got.filtered += said.filtered
        self.got.repeated += said.repeated
        self.got.dropped += said.dropped

    async def _place(self, who: str) -> None:
        """Give somebody whom the plan does not know channels of it, where that costs less than without."""
        if self.epoch.knows(who) or not self.epoch.routes.plan.n_channels:
            return
        texts = list(self.interests.of(who).values())
        if sum(map(len, texts)) > LONGEST:  # who has that many is sent to directly until the next plan
            texts = []
        wants = Scan().fit(compile_filters(self.interests.schema, texts, limits=LENIENT).subscriptions)
        plan = self.epoch.routes.plan
        members = np.bincount(plan.listens.indices, minlength=plan.n_channels)
        spreads = self.epoch.routes.flows is None
        channels = self.recent.channels(wants, members, spreads=spreads) if texts else []
        before = [(self.epoch.number, channel) for channel in self.epoch.channels(who)]
        if self.epoch.place(who, channels):
            self._leaving[who] = before
            await self._tell(placed=[(self.epoch.number, who, channels)])
            await self.permit()
            await self.settle()  # nothing is on its way over channels that it may give up now
            del self._leaving[who]
            if set(before) - {(self.epoch.number, channel) for channel in channels}:
                asyncio.get_running_loop().call_later(_GIVEN_UP, self._permit_soon)

    def _permit_soon(self) -> None:
        """Take from subscribers what they were told to give up."""
        self._permitting = asyncio.ensure_future(self.permit())

    async def change(self, request: wire.AddFilters | wire.RemoveSubscriptions) -> wire.SubscriberState:
        """Change the subscriptions of somebody who may be elsewhere, and tell them."""
        answer = await self.ask(request)
        await self._order(request.subscriber, answer)
        return answer

    async def _order(
        self, who: str, order: wire.SubscriberState | wire.PreparePlan | wire.ReaderReplaced
    ) -> None:
        """Tell a subscriber what to do."""
        try:
            await self._transport.publish(self.subjects.control(who), wire.encode(order))
        except ParameterError as error:  # filters of a table
            log.warning("%s is not told what holds, which does not fit a message: %s", who, error)

    def standing(self, subscriber: str) -> wire.SubscriberState:
        """Return what holds for a subscriber."""
        return wire.SubscriberState(
            change=self._number,
            version=self.interests.version(subscriber),
            filters=self.interests.of(subscriber),
            schema=self.interests.schema.to_dict(),
            epoch=self.epoch.number,
            channels=self.epoch.channels(subscriber),
            prepared=next((each.number for each in (self._next, self._old) if each is not None), None),
            kept=self.interests.kept,
            since=self._since,
            store="" if self._positions is None else self._positions.store,
            key="" if self._positions is None else self._positions.records.key(subscriber),
        )

    # ---- other nodes

    async def _tell(self, **changed: Any) -> None:
        """Count a change, which is what `wire.Change` takes, and wait until all nodes have taken it up."""
        self._number += 1
        try:
            await self._others.tell(wire.ControlChange(number=self._number, **changed))
        except ParameterError:  # it does not fit a message: who misses one asks for all that holds
            self._number += 1
            await self._others.tell(wire.ControlChange(number=self._number))

    def _state(self, join: wire.NodeJoin) -> wire.NodeState:
        """Return what holds, for another node, which hears of all changes from now on."""
        self._others.add(join.node)
        some = self.interests.rows(join.after, _ROWS)
        rows = fitting([wire.SubscriptionRow(number, *row) for number, row in some.items()])
        epochs = self._epochs()
        plans = [each.said() if each.folder else None for each in epochs]
        return wire.NodeState(
            number=self._number,
            schema=self.interests.schema.to_dict(),
            rows=rows,
            more=len(rows) < len(some) or len(some) == _ROWS,
            plan=plans[0],
            prepared=plans[1] if len(plans) > 1 else None,
            placed=[(each.number, *one) for each in epochs for one in each.placed.items()],
            joined=[(each.number, name) for each in epochs for name in sorted(each.joined)],
            stored=self._positions is not None,
        )

    # ---- plans

    def _epochs(self) -> list[PlanEpoch]:
        """Return the plan in use, and the one to come, if there is one."""
        return [self.epoch] if self._next is None else [self.epoch, self._next]

    def use(self, routes: PlanRoutes, folder: str = "", flow: str | None = None) -> None:
        """Take up a plan at once, before anybody is there."""
        self.epoch = self._numbered(routes, folder, flow)

    def _numbered(self, routes: PlanRoutes, folder: str, flow: str | None) -> PlanEpoch:
        """Return a plan with a number of its own: channels of one that was given up are never another's."""
        self._plans += 1
        return PlanEpoch(self._plans, routes, folder, flow)

    async def rollout_from(
        self,
        folder: str,
        flow: str | None = None,
        *,
        overlap: float = OVERLAP,
        least: float = 0.0,
        joins: float | None = None,
    ) -> wire.RolloutDone:
        """Take up a plan from its folder: see `rollout`.

        Raises
        ------
        PlanError
            When there is no plan that can be used: then the old one stays.
        """
        try:
            routes = await read_offered(folder, flow, self.interests)
        except NarrowcastError as error:
            log.warning("the plan stays as it was: %s", error)
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
        folder, flow
            Where it was read from, for other nodes.
        least
            The share of those asked who have to listen in time; else the old plan stays.
        joins
            How many channels may be joined a second, at most; the desk's own limit where left out.

        Raises
        ------
        PlanError
            When too few listen: then the old plan is still in use.
        """
        if self.busy:
            raise PlanError("another plan is being taken up; wait until it is in use")
        if not 0 <= least <= 1 or (joins is not None and joins <= 0):
            raise ParameterError(f"least is {least} and joins {joins}; give a share, and a number above 0")
        if self._others.names and not folder:
            raise PlanError("the other nodes need the plan too; give it in a folder that they see")
        self.busy, then = True, self._numbered(routes, folder, flow)
        self._next, there = then, set(self._others.names)
        try:
            await self._tell(prepared=then.said())
            await self.permit()
            waited = await self._prepare(then, self._joins if joins is None else joins)
            with suppress(TimeoutError):
                async with asyncio.timeout(overlap):
                    while waited & self._present.keys() - then.joined:
                        self._arrived.clear()
                        await self._arrived.wait()
            late = len(waited & self._present.keys() - then.joined)
            if late > (1 - least) * len(waited):
                raise PlanError(
                    f"{late:,} of {len(waited):,} subscribers do not listen to the new plan within "
                    f"{overlap:g} s; the old one stays: see what keeps them, or ask for less"
                )
            if late:
                log.warning("%d subscribers do not listen to the new plan yet", late)
            self._old, self.epoch = self.epoch, then
            self.recent.clear()
            self.used(then)
            log.info(
                "plan %s is in use, %d listen to its channels", routes.name, len(then.joined),
                extra={"facts": {"plan": routes.name, "epoch": then.number, "listening": len(then.joined)}},
            )  # fmt: skip
        except NarrowcastError as error:
            log.warning("the plan stays as it was: %s", error)
            raise
        finally:
            self._next = None
            try:
                await self._give_up(there)
            finally:
                self.busy, self._old = False, None
        return len(then.joined)

    async def _give_up(self, there: set[str]) -> None:
        """Let everybody go by the plan in use, and give up the channels of others.

        Where events are stored, the nodes that were there are waited for: what one still stores for the old
        channels, when it has to wait for the server, comes only to who listens to them.
        """
        number = self._number + 1
        await self._tell(used=self.epoch.number)
        if self._positions is not None and self._old is not None:
            await self._others.taken(number, there, self._tell)
        await self.settle()
        self._old = None
        if self._positions is not None:
            with suppress(TransportError):  # those that are known for longer do no harm
                await self._positions.switch(self.epoch.number)
        for name in sorted(self._present):
            await self._order(name, self.standing(name))
        await self.permit()

    def channels(self, subscriber: str) -> list[tuple[int, int]]:
        """Return plan and number of the channels that a subscriber may listen to now."""
        epochs = self._epochs() if self._old is None else [*self._epochs(), self._old]
        now = [(each.number, channel) for each in epochs for channel in each.channels(subscriber)]
        return now + self._leaving.get(subscriber, [])

    async def _prepare(self, then: PlanEpoch, joins: float | None) -> set[str]:
        """Ask all who are there to listen to their channels of a plan; return whom."""
        waited = {name for name in self._present if then.channels(name)}
        for name in sorted(waited):
            channels = then.channels(name)
            await self._order(name, wire.PreparePlan(then.number, channels))
            if joins is not None:
                await asyncio.sleep(len(channels) / joins)
        return waited
