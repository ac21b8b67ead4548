"""Clusters of subscriptions that follow the load: events stream by, peers come and go, clusters change."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.lab.clusters.members import ClusterMembers
from narrowcast.lab.clusters.method import ClusteredSubscriptions
from narrowcast.lab.clusters.peertree import PeerTree
from narrowcast.lab.clusters.policy import DriftWatch, Policy
from narrowcast.lab.clusters.traffic import ClusterTraffic, EventDelivery
from narrowcast.lab.spectral.quality import received
from narrowcast.validation import check_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from narrowcast.lab.clusters.method import ClusteringMethod, Computed
    from narrowcast.lab.clusters.stream import SubscriptionStream
    from narrowcast.lab.clusters.trees import ClusterTrees
    from narrowcast.model.interest import Interest

    Ints = NDArray[np.int64]

__all__ = ["Load", "LoadStep", "Window"]

#: Question and answer of a subscription that asks where it belongs.
_ASKED = 2
#: Messages of a peer that joins the groups of coordinators, of one that leaves, and in an interval.
_GROUP_JOIN, _GROUP_LEAVE, _GROUP_BEAT = 4, 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class LoadStep:
    """A run of events during which nothing changes.

    Parameters
    ----------
    start, stop
        The events, from one to before the other.
    trees
        The trees that they go along.
    traffic
        All messages, with those of the changes right before the first event.
    """

    start: int
    stop: int
    trees: ClusterTrees
    traffic: ClusterTraffic


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """What is measured of some events.

    Parameters
    ----------
    start, stop
        The events, from one to before the other.
    traffic
        All messages.
    """

    start: int
    stop: int
    traffic: ClusterTraffic


@dataclass(frozen=True, kw_only=True)
class Load:
    """A stream of events to subscriptions in clusters, with all messages that there are.

    An event is handed to the top of each cluster in which somebody wants it, and goes on from there, by both
    variants at once: see `ClusterTrees`. How a publisher knows these tops is left out, and so are clusters and trees
    at first.

    What happens between two events: subscriptions leave, and others come, which are placed without computing
    anything; clusters are computed, when the policy says so, and installed, or coordinates refreshed; peers
    join the clusters that they have to be in and leave those that they need not.

    An R-tree (`r-tree`, unless it is packed) is its own overlay: see `PeerTree` and `Branched`. An event is
    handed to its root, and all that it takes from there is counted. Nothing is ever computed.

    Parameters
    ----------
    stream
        Events and subscriptions.
    method
        How clusters are found.
    policy
        When they are found anew.
    start
        The first event that is counted. Clusters at first are computed from those before it, as many of them
        as the policy takes.
    window
        How many events are measured together.
    heartbeat
        How many events there are in an interval of heartbeats.
    least
        Of the hierarchies of clusters: see `Nice`.

    Examples
    --------
    >>> from narrowcast.lab.clusters.method import ClusteringMethod
    >>> from narrowcast.lab.clusters.stream import SubscriptionStream
    >>> stream = SubscriptionStream([[1, 1, 0, 0], [0, 0, 1, 1]] * 50)
    >>> load = Load(stream=stream, method=ClusteringMethod(name="direct", clusters=2), start=20, window=40)
    >>> total = load.total()
    >>> total.events, total.matches, total.flooding.receptions, total.notification_cost("flooding")
    (80, 160, 160, 1.0)
    """

    stream: SubscriptionStream
    method: ClusteringMethod
    policy: Policy = field(default_factory=Policy)
    start: int = 1000
    window: int = 50
    heartbeat: int = 500
    least: int = 3

    def __post_init__(self) -> None:
        for name in ("start", "window", "heartbeat"):
            check_whole(name, getattr(self, name))
        check_whole("least", self.least, least=2)
        if self.start >= self.stream.n_events:
            raise ParameterError(
                parameter="start",
                value=self.start,
                limit=f"below the number of events, {self.stream.n_events}",
            )
        if not self.stream.there(self.start).any():
            raise ParameterError(
                f"start={self.start}: no subscription is active at this event; start later, or let one come before",
                parameter="start",
                value=self.start,
            )

    def total(self) -> ClusterTraffic:
        """Return all messages."""
        return sum((step.traffic for step in self.steps()), ClusterTraffic())

    def windows(self) -> list[Window]:
        """Return the messages of each window; the last may have fewer events."""
        found: list[Window] = []
        for step in self.steps():
            first = step.start - (step.start - self.start) % self.window
            if found and found[-1].start == first:
                found[-1] = Window(first, step.stop, found[-1].traffic + step.traffic)
            else:
                found.append(Window(first, step.stop, step.traffic))
        return found

    def steps(self) -> Iterator[LoadStep]:
        """Go through the events, from one change to the next."""
        stream, run = self.stream, _Rooted(self) if self.method.rooted else _Run(self)
        since = ClusterTraffic()
        for start, stop in self._bounds():
            control = run.changed(start)
            if (start - self.start) % self.policy.stretch == 0 and start > self.start:
                control += run.decided(start, since.false_positives("flooding"))
                since = ClusterTraffic()
            event, subscription = stream.pairs(start, stop)
            points = None if stream.points is None else stream.points[start:stop]
            sent = run.trees.sent(event, subscription, stop - start, points)
            since += sent
            yield LoadStep(start, stop, run.trees, sent + control + run.beaten(stop - start))

    def _bounds(self) -> list[tuple[int, int]]:
        """Return runs of events between which something may change or be measured."""
        end = self.stream.n_events
        steps = [np.arange(self.start, end, each) for each in (self.window, self.policy.stretch)]
        changes = self.stream.changes()
        found = np.unique(np.concatenate([*steps, changes[changes >= self.start], [end]]))
        found = found[found >= self.start]
        return list(zip(found[:-1].tolist(), found[1:].tolist(), strict=True))


class _Run:
    """What there is at one time of a load."""

    def __init__(self, load: Load) -> None:
        self.load, self.stream = load, load.stream
        there = np.flatnonzero(self.stream.there(load.start))
        self.watch = DriftWatch(load.policy, load.start)
        self.due = np.zeros(2, np.int64)
        self.clustered = ClusteredSubscriptions(
            self.stream, self._computed(there, load.start, load.policy.history)
        )
        self.members = ClusterMembers(self.stream.peers, self.clustered.label, least=load.least)

    @property
    def trees(self) -> ClusterTrees:
        """The trees that events go along now."""
        return self.members.trees

    def _computed(self, there: Ints, at: int, events: int) -> Computed:
        """Return clusters from so many events before one."""
        return self.load.method.compute(self.stream, there, max(0, at - events), at)

    def decided(self, at: int, wrong: int) -> ClusterTraffic:
        """Compute clusters if it is time to, and install them if they are worth it; or refresh them."""
        policy = self.load.policy
        due = self.watch.seen(at, wrong / policy.stretch, able=self.clustered.refreshable)
        there = np.flatnonzero(self.clustered.label >= 0)
        if not due.events or not len(there):
            return ClusterTraffic()
        if due.refresh:
            return self._refreshed(at, due.events)
        found = self._computed(there, at, due.events)
        total = ClusterTraffic(clustering=found.messages, clustering_bytes=found.bytes, computed=1)
        if policy.deviation is not None and not found.differs(self.clustered.computed, policy.deviation):
            return total
        new = self.clustered.numbered(found)
        moves = int(np.count_nonzero(new != self.clustered.label))
        if not self._pays(found.interest, found.there, new, moves):
            return total
        self.clustered.install(found)
        return total + self._followed() + ClusterTraffic(moves=moves, installed=1)

    def _refreshed(self, at: int, events: int) -> ClusterTraffic:
        """Refresh coordinates, and let subscriptions go to the centre that is nearest now."""
        found = self.clustered.computed.refresh(self.stream, max(0, at - events), at)
        total = ClusterTraffic(clustering=found.messages, clustering_bytes=found.bytes, refreshed=1)
        new = self.clustered.renewed(found)
        moves = int(np.count_nonzero(new != self.clustered.label))
        if not self._pays(found.interest, self.clustered.computed.there, new, moves):
            return total
        self.clustered.label = new
        return total + self._followed() + ClusterTraffic(moves=moves)

    def _pays(self, seen: Interest, there: Ints, new: Ints, moves: int) -> bool:
        """Return whether it pays to move, by how many members got each of some events in the mean."""
        events = seen.wants.T
        old, now = (
            received(events, label[there]).receptions / max(events.shape[0], 1)
            for label in (self.clustered.label, new)
        )
        return self.load.policy.pays(old, now, moves)

    def changed(self, at: int) -> ClusterTraffic:
        """Let subscriptions leave and come before an event."""
        label, there = self.clustered.label, self.stream.there(at)
        gone, came = np.flatnonzero((label >= 0) & ~there), np.flatnonzero((label < 0) & there)
        if not len(gone) and not len(came):
            return ClusterTraffic()
        self.clustered.remove(gone)
        left = self._followed()
        self.clustered.place(came, at)
        return left + self._followed() + ClusterTraffic(clustering=_ASKED * len(came))

    def beaten(self, events: int) -> ClusterTraffic:
        """Return the heartbeats while some events pass: not all peers send theirs at the same time."""
        peers = len(np.unique(self.members.trees.peer)) if self.load.method.organised else 0
        # What does not make a whole message yet is carried on.
        self.due += events * np.array([self.members.heartbeats, _GROUP_BEAT * peers])
        sent, self.due = np.divmod(self.due, self.load.heartbeat)
        return ClusterTraffic(heartbeat=int(sent[0]), organisation=int(sent[1]))

    def _followed(self) -> ClusterTraffic:
        """Let peers join and leave clusters as labels say."""
        before = self.members.trees
        upkeep = self.members.follow(self.clustered.label)
        after = self.members.trees
        flooding, forwarding = after.updates(before)
        found = ClusterTraffic(
            flooding=EventDelivery(updates=flooding),
            forwarding=EventDelivery(updates=forwarding),
            join=upkeep.join,
            leave=upkeep.leave,
            split=upkeep.split,
            merge=upkeep.merge,
        )
        if self.load.method.organised:
            was, now = np.unique(before.peer), np.unique(after.peer)
            came, gone = (len(np.setdiff1d(*each)) for each in ((now, was), (was, now)))
            return replace(found, organisation=_GROUP_JOIN * came + _GROUP_LEAVE * gone)
        return found


class _Rooted:
    """What there is at one time of a load over an R-tree."""

    def __init__(self, load: Load) -> None:
        self.load, self.due = load, 0
        there = np.flatnonzero(load.stream.there(load.start))
        self.peers = PeerTree(load.stream, there, load.method.clusters)

    @property
    def trees(self) -> ClusterTrees:
        """The tree that events go along now."""
        return self.peers.trees

    def decided(self, at: int, wrong: int) -> ClusterTraffic:  # noqa: ARG002
        """Do nothing: an R-tree does not hang on events."""
        return ClusterTraffic()

    def changed(self, at: int) -> ClusterTraffic:
        """Let subscriptions leave and come before an event."""
        there, label = self.load.stream.there(at), self.peers.label
        gone, came = np.flatnonzero((label >= 0) & ~there), np.flatnonzero((label < 0) & there)
        if not len(gone) and not len(came):
            return ClusterTraffic()
        return self.peers.follow(gone=gone, came=came)

    def beaten(self, events: int) -> ClusterTraffic:
        """Return the heartbeats while some events pass."""
        sent, self.due = divmod(self.due + events * self.peers.heartbeats, self.load.heartbeat)
        return ClusterTraffic(heartbeat=sent)
