"""The plan in use, its listeners, and snapshots that route events."""

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
    """Return routes without channels: every event is sent directly."""
    return PlanRoutes("none", ChannelPlan(np.zeros((1, 0), bool), np.zeros((0, 0), bool)), None)


async def do_nothing() -> None:
    """Return at once: the default of hooks that a node or the broker sets."""


class ControlState(Protocol):
    """Subscriptions and plan that a node routes by: a `ControlPlane` or a `Follower`."""

    interests: SubscriptionIndex
    epoch: PlanEpoch
    subjects: Subjects
    recent_events: RecentEvents
    wait_for_deliveries: Callable[[], Awaitable[None]]

    async def start(self) -> list[asyncio.Task[None]]:
        """Start to maintain the state; return the running tasks."""
        ...

    async def stop(self) -> None:
        """Stop all tasks."""
        ...


class RoutedEvents(NamedTuple):
    """Routes of a batch of events, and its number of matching pairs of event and subscriber."""

    deliveries: Deliveries
    pairs: int


@dataclass(slots=True)
class PlanEpoch:
    """A plan in use, and the subscribers that have joined its channels.

    All other subscribers receive their events directly. So subscribers may come, go and change at any time.

    Parameters
    ----------
    number
        The epoch: plans are numbered in order of use.
    routes
        The plan.
    folder, flow
        Folder of the plan; and for a plan of topics, the attribute with an event's topic.
    joined
        Subscribers that listen to all their channels.
    """

    number: int
    routes: PlanRoutes
    folder: str = ""
    flow: str | None = None
    joined: set[str] = field(default_factory=set)
    #: Channels of subscribers that the plan lacks and that were placed later.
    placed: dict[str, list[int]] = field(default_factory=dict)
    #: Number of changes of the listeners.
    change: int = 0
    _rows: dict[str, int] | None = None

    def reference(self) -> PlanReference:
        """Return the reference by which other nodes load the plan."""
        return PlanReference(self.number, self.folder, self.flow, self.routes.name)

    def knows(self, subscriber: str) -> bool:
        """Return whether the plan contains a subscriber."""
        return self._row(subscriber) is not None

    def _row(self, subscriber: str) -> int | None:
        """Return a subscriber's row in the plan; None when the plan lacks it."""
        if self._rows is None:
            names = self.routes.plan.subscribers.cast(pa.string()).to_pylist()
            self._rows = {name: row for row, name in enumerate(names)}
        return self._rows.get(subscriber)

    def place(self, subscriber: str, channels: list[int]) -> bool:
        """Assign channels to a subscriber that the plan lacks; return whether they have changed."""
        if self.placed.get(subscriber, []) == channels:
            return False
        self.placed[subscriber] = channels
        self.leave(subscriber)  # until it reports that it listens to these
        self.change += 1
        return True

    def channels(self, subscriber: str) -> list[int]:
        """Return the channels that a subscriber should listen to."""
        if subscriber in self.placed:
            return self.placed[subscriber]
        row = self._row(subscriber)
        if row is None:
            return []
        listens = self.routes.plan.listens
        channels: list[int] = listens.indices[listens.indptr[row] : listens.indptr[row + 1]].tolist()
        return channels

    def join(self, subscriber: str, channels: list[int]) -> bool:
        """Record that a subscriber listens to some channels; return whether these are all that it should."""
        if not set(self.channels(subscriber)) <= set(channels):
            return False
        if subscriber not in self.joined:
            self.joined.add(subscriber)
            self.change += 1
        return True

    def leave(self, subscriber: str) -> None:
        """Record that a subscriber no longer listens to its channels."""
        if subscriber in self.joined:
            self.joined.remove(subscriber)
            self.change += 1


@dataclass(frozen=True, slots=True, eq=False)
class RoutingSnapshot:
    """An immutable view of subscriptions, plan and listeners, by which batches of events are routed.

    Parameters
    ----------
    epoch
        Number of the plan.
    reader
        The matching index.
    subscriptions
        The subscriptions in the index.
    names
        Names of the subscribers, by position.
    versions
        Fingerprint of each subscriber's subscriptions.
    routes
        The plan, with the subscribers in the same order.
    members
        Number of listeners of each channel.
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
        """Return a snapshot of the current state.

        Parameters
        ----------
        interests
            The subscriptions.
        epoch
            The plan.
        router
            Decides the route of each event.
        """
        reader = interests.matcher.snapshot()
        subscriptions = reader.subscriptions_
        names: list[str] = subscriptions.subscribers.cast(pa.string()).to_pylist()
        fitted = epoch.routes.for_subscribers(
            subscriptions.subscribers, subscriptions.subscription_id, subscriptions.subscriber
        )
        joined = np.fromiter((name in epoch.joined for name in names), bool, len(names))
        plan = fitted.plan
        listens = sp.csr_array(plan.listens.multiply(joined[:, None]))
        if placed := [
            (i, c) for i in np.flatnonzero(joined).tolist() for c in epoch.placed.get(names[i], ())
        ]:
            rows, channels = zip(*placed, strict=True)
            listens = sp.csr_array(listens + relation_of(rows, channels, listens.shape))
        listens.eliminate_zeros()
        current = ChannelPlan(plan.carries, listens.astype(bool), plan.parent)
        routes = replace(fitted, plan=current, router=router)
        versions = [interests.version(name) for name in names]
        members = np.bincount(listens.indices, minlength=plan.n_channels)
        return cls(epoch.number, reader, subscriptions, names, versions, routes, members)

    def route(self, events: EventBatch) -> RoutedEvents:
        """Match and route events."""
        found = self.reader.match(events)
        interested = subscribers_of(found, self.subscriptions)
        return RoutedEvents(self.routes.route(events, interested, found), interested.n_pairs)
