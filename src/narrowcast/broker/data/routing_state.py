"""Which plan is in use, who listens to its channels, and so which way each event goes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import scipy.sparse as sp

from narrowcast.broker.wire import PlanReference
from narrowcast.matching.match_queries import subscribers_of
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.relation import relation_of
from narrowcast.routing.plan_routes import PlanRoutes

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from numpy.typing import NDArray

    from narrowcast.broker.control.subscriber_placement import RecentEvents
    from narrowcast.broker.control.subscription_index import SubscriptionIndex
    from narrowcast.broker.wire import Subjects
    from narrowcast.matching.matcher_view import MatcherView
    from narrowcast.model.events import EventBatch
    from narrowcast.model.subscriptions import SubscriptionSet
    from narrowcast.routing import Deliveries, Router


def no_routes() -> PlanRoutes:
    """Return routes without a channel: everybody is sent to directly."""
    return PlanRoutes("none", ChannelPlan(np.zeros((1, 0), bool), np.zeros((0, 0), bool)), None)


async def nothing_on_its_way() -> None:
    """Return at once: no event is sent."""


class ControlState(Protocol):
    """What holds: who subscribes to what, and which plan is used. A node goes by it."""

    interests: SubscriptionIndex
    epoch: PlanEpoch
    subjects: Subjects
    recent: RecentEvents
    settle: Callable[[], Awaitable[None]]

    async def start(self) -> list[asyncio.Task[None]]:
        """Begin to keep it; return the tasks that do."""
        ...

    async def stop(self) -> None:
        """End."""
        ...


class RoutedEvents(NamedTuple):
    """Which way each event of a batch goes, and how many pairs of event and subscriber there are."""

    deliveries: Deliveries
    pairs: int


@dataclass(slots=True)
class PlanEpoch:
    """A plan, and who has said that they listen to their channels.

    Whoever has not is sent to directly: so it does not matter when they come, go, or change.

    Parameters
    ----------
    number
        Counts plans.
    routes
        The plan.
    folder, flow
        Where the plan is, and for one of topics the attribute that names them.
    joined
        Those who listen.
    """

    number: int
    routes: PlanRoutes
    folder: str = ""
    flow: str | None = None
    joined: set[str] = field(default_factory=set)
    #: Channels of those whom the plan does not know, and who were placed since.
    placed: dict[str, list[int]] = field(default_factory=dict)
    #: Counts changes of who listens.
    change: int = 0
    _rows: dict[str, int] | None = None

    def said(self) -> PlanReference:
        """Return it as other nodes hear of it."""
        return PlanReference(self.number, self.folder, self.flow, self.routes.name)

    def knows(self, subscriber: str) -> bool:
        """Return whether the plan says what somebody should listen to."""
        return self._row(subscriber) is not None

    def _row(self, subscriber: str) -> int | None:
        """Return which row of the plan is somebody's; None for who is not in it."""
        if self._rows is None:
            names = self.routes.plan.subscribers.cast(pa.string()).to_pylist()
            self._rows = {name: row for row, name in enumerate(names)}
        return self._rows.get(subscriber)

    def place(self, subscriber: str, channels: list[int]) -> bool:
        """Let somebody whom the plan does not know listen to channels; return whether that is new."""
        if self.placed.get(subscriber, []) == channels:
            return False
        self.placed[subscriber] = channels
        self.leave(subscriber)  # until it says that it listens to these
        self.change += 1
        return True

    def channels(self, subscriber: str) -> list[int]:
        """Return the channels that somebody should listen to."""
        if subscriber in self.placed:
            return self.placed[subscriber]
        row = self._row(subscriber)
        if row is None:
            return []
        listens = self.routes.plan.listens
        found: list[int] = listens.indices[listens.indptr[row] : listens.indptr[row + 1]].tolist()
        return found

    def join(self, subscriber: str, channels: list[int]) -> bool:
        """Note that somebody listens to some channels; return whether those are all that they should."""
        if not set(self.channels(subscriber)) <= set(channels):
            return False
        if subscriber not in self.joined:
            self.joined.add(subscriber)
            self.change += 1
        return True

    def leave(self, subscriber: str) -> None:
        """Note that somebody no longer listens."""
        if subscriber in self.joined:
            self.joined.remove(subscriber)
            self.change += 1


@dataclass(frozen=True, slots=True, eq=False)
class RoutingSnapshot:
    """Subscriptions and routes at one moment: what a batch of events is sent by.

    Parameters
    ----------
    epoch
        The number of the plan.
    reader
        The index.
    subscriptions
        What it holds.
    names
        The subscribers, by position.
    versions
        The version of the subscriptions of each.
    routes
        The plan for these subscribers.
    members
        How many listen to each channel.
    """

    epoch: int
    reader: MatcherView
    subscriptions: SubscriptionSet
    names: list[str]
    versions: list[int]
    routes: PlanRoutes
    members: NDArray[np.int64]

    @classmethod
    def of(cls, interests: SubscriptionIndex, epoch: PlanEpoch, router: Router) -> RoutingSnapshot:
        """Return what holds now, with what decides which way an event goes."""
        reader = interests.matcher.snapshot()
        mine = reader.subscriptions_
        names: list[str] = mine.subscribers.cast(pa.string()).to_pylist()
        fitted = epoch.routes.over(mine.subscribers, mine.subscription_id, mine.subscriber)
        there = np.fromiter((name in epoch.joined for name in names), bool, len(names))
        plan = fitted.plan
        listens = sp.csr_array(plan.listens.multiply(there[:, None]))
        if placed := [(i, c) for i in np.flatnonzero(there).tolist() for c in epoch.placed.get(names[i], ())]:
            rows, channels = zip(*placed, strict=True)
            listens = sp.csr_array(listens + relation_of(rows, channels, listens.shape))
        listens.eliminate_zeros()
        heard = ChannelPlan(plan.carries, listens.astype(bool), plan.parent)
        routes = replace(fitted, plan=heard, router=router)
        versions = [interests.version(name) for name in names]
        members = np.bincount(listens.indices, minlength=plan.n_channels)
        return cls(epoch.number, reader, mine, names, versions, routes, members)

    def route(self, events: EventBatch) -> RoutedEvents:
        """Return which way each event goes."""
        found = self.reader.match(events)
        interested = subscribers_of(found, self.subscriptions)
        return RoutedEvents(self.routes.route(events, interested, found), interested.n_pairs)
