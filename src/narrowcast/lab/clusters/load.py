"""Simulation of clusters of subscriptions: events arrive, peers come and leave, clusters change."""

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

    from narrowcast.lab.clusters.method import ClusteringMethod, ComputedClusters
    from narrowcast.lab.clusters.stream import SubscriptionStream
    from narrowcast.lab.clusters.trees import ClusterTrees
    from narrowcast.model.interest import Interest

    Ints = NDArray[np.int64]

__all__ = ["Load", "LoadStep", "Window"]

#: Request and reply of a subscription that asks for its cluster.
_ASKED = 2
#: Messages of a peer that joins the groups of coordinators, of one that leaves, and per heartbeat interval.
_GROUP_JOIN, _GROUP_LEAVE, _GROUP_BEAT = 4, 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class LoadStep:
    """A run of consecutive events without any change.

    Parameters
    ----------
    start, stop
        The events, from one to before the other.
    trees
        The trees that deliver them.
    traffic
        All messages, including those of the changes right before the first event.
    """

    start: int
    stop: int
    trees: ClusterTrees
    traffic: ClusterTraffic


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """The messages of a range of events.

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
    """A simulation of a stream of events to clustered subscriptions that counts all messages.

    An event is handed to the top of each cluster with a matching subscription, and is delivered from there by
    both variants at once: see `ClusterTrees`. How a publisher finds these tops is not simulated, and building
    the initial clusters and trees is not counted.

    Between two events subscriptions leave and others come, which are placed without computing
    clusters; clusters are computed, if the policy says so, and installed, or coordinates are refreshed; peers
    join the clusters of their subscriptions, and leave clusters without one.

    An R-tree (`r-tree`, unless it is packed) is an overlay of its own: see `PeerTree` and `RTreeClusters`. An
    event is handed to its root, and all messages from there on are counted. Clusters are never computed.

    Parameters
    ----------
    stream
        Events and subscriptions.
    method
        The method that computes clusters.
    policy
        When clusters are computed again.
    start
        The first event that is counted. Initial clusters are computed from events before it, at most as many
        as the policy's history.
    window
        Number of events per window of `windows`.
    heartbeat
        Number of events between two heartbeats.
    least
        Smallest size of groups in the hierarchies of clusters: see `Nice`.

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
        if not self.stream.active(self.start).any():
            raise ParameterError(
                f"start={self.start}: no subscription is active at this event; start later",
                parameter="start",
                value=self.start,
            )

    def total(self) -> ClusterTraffic:
        """Return the messages of all events from `start` on."""
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
        """Yield the runs of events between changes."""
        stream, run = self.stream, _RTreeRun(self) if self.method.rooted else _ClusterRun(self)
        since = ClusterTraffic()
        for start, stop in self._bounds():
            control = run.changed(start)
            if (start - self.start) % self.policy.stretch == 0 and start > self.start:
                control += run.adapt(start, since.false_positives("flooding"))
                since = ClusterTraffic()
            event, subscription = stream.pairs(start, stop)
            points = None if stream.points is None else stream.points[start:stop]
            sent = run.trees.sent(event, subscription, stop - start, points)
            since += sent
            yield LoadStep(start, stop, run.trees, sent + control + run.heartbeats_during(stop - start))

    def _bounds(self) -> list[tuple[int, int]]:
        """Return the runs of events between which clusters may change or a window ends."""
        end = self.stream.n_events
        steps = [np.arange(self.start, end, each) for each in (self.window, self.policy.stretch)]
        changes = self.stream.changes()
        found = np.unique(np.concatenate([*steps, changes[changes >= self.start], [end]]))
        found = found[found >= self.start]
        return list(zip(found[:-1].tolist(), found[1:].tolist(), strict=True))


class _ClusterRun:
    """The state of a simulation."""

    def __init__(self, load: Load) -> None:
        self.load, self.stream = load, load.stream
        active = np.flatnonzero(self.stream.active(load.start))
        self.watch = DriftWatch(load.policy, load.start)
        self.due = np.zeros(2, np.int64)
        self.clustered = ClusteredSubscriptions(
            self.stream, self._compute(active, load.start, load.policy.history)
        )
        self.members = ClusterMembers(self.stream.peers, self.clustered.label, least=load.least)

    @property
    def trees(self) -> ClusterTrees:
        """The trees that deliver events now."""
        return self.members.trees

    def _compute(self, active: Ints, at: int, events: int) -> ComputedClusters:
        """Return clusters computed from a number of events before `at`."""
        return self.load.method.compute(self.stream, active, max(0, at - events), at)

    def adapt(self, at: int, wrong: int) -> ClusterTraffic:
        """Compute clusters if due, and install them if that pays; or refresh coordinates."""
        policy = self.load.policy
        due = self.watch.observe(at, wrong / policy.stretch, able=self.clustered.refreshable)
        active = np.flatnonzero(self.clustered.label >= 0)
        if not due.events or not len(active):
            return ClusterTraffic()
        if due.refresh:
            return self._refresh(at, due.events)
        found = self._compute(active, at, due.events)
        total = ClusterTraffic(clustering=found.messages, clustering_bytes=found.bytes, computed=1)
        if policy.deviation is not None and not found.differs(self.clustered.computed, policy.deviation):
            return total
        new = self.clustered.numbered(found)
        moves = int(np.count_nonzero(new != self.clustered.label))
        if not self._pays(found.interest, found.active, new, moves):
            return total
        self.clustered.install(found)
        return total + self._update_members() + ClusterTraffic(moves=moves, installed=1)

    def _refresh(self, at: int, events: int) -> ClusterTraffic:
        """Refresh coordinates, and move subscriptions to the clusters whose centres are nearest now."""
        found = self.clustered.computed.refresh(self.stream, max(0, at - events), at)
        total = ClusterTraffic(clustering=found.messages, clustering_bytes=found.bytes, refreshed=1)
        new = self.clustered.renewed(found)
        moves = int(np.count_nonzero(new != self.clustered.label))
        if not self._pays(found.interest, self.clustered.computed.active, new, moves):
            return total
        self.clustered.label = new
        return total + self._update_members() + ClusterTraffic(moves=moves)

    def _pays(self, seen: Interest, active: Ints, new: Ints, moves: int) -> bool:
        """Return whether moving pays, by the mean number of members that got each event."""
        events = seen.wants.T
        old, now = (
            received(events, label[active]).receptions / max(events.shape[0], 1)
            for label in (self.clustered.label, new)
        )
        return self.load.policy.pays(old, now, moves)

    def changed(self, at: int) -> ClusterTraffic:
        """Let subscriptions leave and come before an event."""
        label, active = self.clustered.label, self.stream.active(at)
        removed, added = np.flatnonzero((label >= 0) & ~active), np.flatnonzero((label < 0) & active)
        if not len(removed) and not len(added):
            return ClusterTraffic()
        self.clustered.remove(removed)
        left = self._update_members()
        self.clustered.place(added, at)
        return left + self._update_members() + ClusterTraffic(clustering=_ASKED * len(added))

    def heartbeats_during(self, events: int) -> ClusterTraffic:
        """Return the heartbeats during some events; heartbeats of peers are spread evenly over time."""
        peers = len(np.unique(self.members.trees.peer)) if self.load.method.organised else 0
        # Fractions of a message are carried over.
        self.due += events * np.array([self.members.heartbeats, _GROUP_BEAT * peers])
        sent, self.due = np.divmod(self.due, self.load.heartbeat)
        return ClusterTraffic(heartbeat=int(sent[0]), organisation=int(sent[1]))

    def _update_members(self) -> ClusterTraffic:
        """Let peers join and leave clusters according to the labels of their subscriptions."""
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
            added, removed = (len(np.setdiff1d(*each)) for each in ((now, was), (was, now)))
            return replace(found, organisation=_GROUP_JOIN * added + _GROUP_LEAVE * removed)
        return found


class _RTreeRun:
    """The state of a simulation over an R-tree."""

    def __init__(self, load: Load) -> None:
        self.load, self.due = load, 0
        active = np.flatnonzero(load.stream.active(load.start))
        self.peers = PeerTree(load.stream, active, load.method.clusters)

    @property
    def trees(self) -> ClusterTrees:
        """The tree that delivers events now."""
        return self.peers.trees

    def adapt(self, at: int, wrong: int) -> ClusterTraffic:  # noqa: ARG002
        """Do nothing: an R-tree does not depend on events."""
        return ClusterTraffic()

    def changed(self, at: int) -> ClusterTraffic:
        """Let subscriptions leave and come before an event."""
        active, label = self.load.stream.active(at), self.peers.label
        removed, added = np.flatnonzero((label >= 0) & ~active), np.flatnonzero((label < 0) & active)
        if not len(removed) and not len(added):
            return ClusterTraffic()
        return self.peers.follow(removed=removed, added=added)

    def heartbeats_during(self, events: int) -> ClusterTraffic:
        """Return the heartbeats during some events."""
        sent, self.due = divmod(self.due + events * self.peers.heartbeats, self.load.heartbeat)
        return ClusterTraffic(heartbeat=sent)
