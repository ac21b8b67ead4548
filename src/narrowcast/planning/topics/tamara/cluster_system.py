"""All topics, clusters and subscribers of Tamara, and the operations that change them.

A cluster is a channel of several topics; a subscriber gets a topic from a cluster, or directly from the
topic's own channel. After each operation, all subscribers get all topics that they want.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.costs.running_cost import RunningCost
from narrowcast.planning.topics.tamara.channel_numbers import ChannelRows
from narrowcast.planning.topics.tamara.channels import ClusterChannel, TopicChannel
from narrowcast.planning.topics.tamara.subscribers import SubscriberPeers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from narrowcast.costs.local_changes import LocalChanges
    from narrowcast.planning.topics.tamara.exchange import MessageCounter
    from narrowcast.planning.topics.tamara.subscribers import Ints


class ClusterSystem:
    """All subscribers and channels, with their running cost.

    It carries out the decisions of `TamaraProtocol`, and counts the messages that this takes. `account`, the
    running cost, is for reports only: no decision depends on it.

    Parameters
    ----------
    local
        Cost differences of changes.
    limit
        The most channels; None means no limit.
    """

    def __init__(self, local: LocalChanges, *, limit: int | None = None) -> None:
        self.peers = SubscriberPeers()
        self.topics: list[TopicChannel] = []
        self.clusters: dict[int, ClusterChannel] = {}
        self.account = RunningCost(local)
        self.addresses = ChannelRows(limit)
        self.updates = dict.fromkeys(("add", "remove", "pair", "merge", "destroy", "join", "leave"), 0)
        self.n_peers = 0
        self.exchange: MessageCounter
        self._free: list[int] = []
        self._next = 0

    def create(self, frequencies: Iterable[float]) -> None:
        """Add topics, given the events per interval of each."""
        for frequency in frequencies:
            self.topics.append(TopicChannel(frequency))
            self.account.frequency((0, True), 0.0, frequency)
        self._grow()

    def admit(self, peers: int) -> None:
        """Add subscribers without interest."""
        self.n_peers += peers
        self._grow()

    def _grow(self) -> None:
        self.peers.grow(self.n_peers, len(self.topics), self._next)

    def set_frequency(self, topic: int, frequency: float) -> None:
        """Set the frequency of a topic in its channel and the clusters that contain it, without messages."""
        channel = self.topics[topic]
        self.account.frequency(self._direct(topic), channel.frequency, frequency)
        channel.frequency = frequency
        for cluster in channel.clusters:
            before = self.clusters[cluster].numbers()
            self.clusters[cluster].set_frequency(topic, frequency)
            self.account.cluster(before, self.clusters[cluster].numbers())

    def _direct(self, topic: int) -> tuple[int, bool]:
        """Return the number of direct subscribers of a topic, and whether it has a channel."""
        return len(self.topics[topic].members), ("t", topic) in self.addresses.number

    def take(self, peer: int, topic: int) -> None:
        """Add a direct subscription of a subscriber to a topic."""
        channel = self.topics[topic]
        if not len(channel.members):
            addresses = self.exchange.request_channel(self.addresses)
            if not addresses.open(("t", topic), (topic,)):
                addresses.wait(topic)
        before = self._direct(topic)
        self.peers.direct.put(peer, topic)
        channel.members.add(peer)
        self.account.topic(channel.frequency, before, self._direct(topic))
        self.addresses.listen(("t", topic), peer, 1)

    def drop(self, peer: int, topic: int) -> None:
        """End a subscriber's direct subscription to a topic."""
        channel, before = self.topics[topic], self._direct(topic)
        self.peers.direct.clear(peer, topic)
        channel.members.remove(peer)
        self.account.topic(channel.frequency, before, self._direct(topic))
        self.addresses.listen(("t", topic), peer, -1)
        if not len(channel.members):
            addresses = self.exchange.free_channel(self.addresses)
            addresses.give_up(topic)
            if ("t", topic) in addresses.number:
                addresses.close(("t", topic), (topic,))
                self._assign_free_channels()

    def _assign_free_channels(self) -> None:
        """Give unused channels to topics that wait for one."""
        while (topic := self.addresses.next_waiting()) is not None:
            self._reassign(topic, lambda t: self.addresses.open(("t", t), (t,)))

    def _take_channel(self) -> None:
        """Free the channel of the topic that costs least without one, so that a cluster can have it.

        This asks all topics that have a channel for their cost.
        """
        reports = {
            topic: self.exchange.query("cluster", self.topics[topic]).described()
            for kind, topic in self.addresses.number
            if kind == "t"
        }
        least = min(reports, key=lambda t: ((1 + reports[t].frequency) * reports[t].members, t))
        self._reassign(least, lambda t: self.addresses.close(("t", t), (t,)))
        self.addresses.wait(least)

    def _reassign(self, topic: int, how: Callable[[int], object]) -> None:
        """Open or close a topic's channel; its direct subscribers are notified and leave or enter unicast."""
        channel, before = self.exchange.notify("cluster", self.topics[topic]), self._direct(topic)
        members = self.exchange.announce(channel.members).tolist()
        for peer in members:
            self.addresses.listen(("t", topic), peer, -1)
        how(topic)
        for peer in members:
            self.addresses.listen(("t", topic), peer, 1)
        self.account.topic(channel.frequency, before, self._direct(topic))

    def join(self, peer: int, cluster: int) -> None:
        """Let a subscriber join a cluster, and end the direct subscriptions that the cluster replaces."""
        self._enter(peer, cluster)
        taken = self.peers.taken_over(peer, cluster)
        self.exchange.send("resub", 1 + len(taken))
        for topic in taken:
            self.drop(peer, topic)
        self.updates["join"] += 1

    def leave(self, peer: int, cluster: int, need: list[int]) -> None:
        """Move a subscriber from a cluster to direct subscriptions for `need`; delete an empty cluster."""
        self._exit(peer, cluster)
        self.exchange.send("resub", 1 + len(need))
        for topic in need:
            self.take(peer, topic)
        self.updates["leave"] += 1
        if not len(self.clusters[cluster].members):
            self.destroy(cluster)

    def _enter(self, peer: int, cluster: int) -> None:
        before = self.clusters[cluster].numbers()
        self.peers.joined.put(peer, cluster)
        self.clusters[cluster].members.add(peer)
        self.account.cluster(before, self.clusters[cluster].numbers())
        self.addresses.listen(("c", cluster), peer, 1)

    def _exit(self, peer: int, cluster: int) -> None:
        before = self.clusters[cluster].numbers()
        self.peers.joined.clear(peer, cluster)
        self.clusters[cluster].members.remove(peer)
        self.account.cluster(before, self.clusters[cluster].numbers())
        self.addresses.listen(("c", cluster), peer, -1)

    def _add_topic(self, topic: int, cluster: int) -> None:
        """Add a topic to a cluster; the topic's channel notifies its other clusters."""
        before, channel, to = self.clusters[cluster].numbers(), self.topics[topic], self.clusters[cluster]
        self.exchange.send("cluster", 2 + len(channel.clusters))
        for other in channel.clusters:
            self.clusters[other].others[topic].add(cluster)
        to.others[topic] = set(channel.clusters)
        to.set_frequency(topic, channel.frequency)
        channel.clusters.add(cluster)
        self.peers.topics.put(cluster, topic)
        self.account.cluster(before, self.clusters[cluster].numbers())

    def _remove_topic(self, topic: int, cluster: int) -> None:
        """Remove a topic from a cluster; the topic's channel notifies its other clusters."""
        before, channel, of = self.clusters[cluster].numbers(), self.topics[topic], self.clusters[cluster]
        channel.clusters.remove(cluster)
        self.exchange.send("cluster", 2 + len(channel.clusters))
        for other in channel.clusters:
            self.clusters[other].others[topic].discard(cluster)
        of.drop(topic)
        self.peers.topics.clear(cluster, topic)
        self.account.cluster(before, self.clusters[cluster].numbers())

    def add(self, cluster: int, topic: int) -> None:
        """Add a topic to a cluster; members with a direct subscription end it."""
        self._add_topic(topic, cluster)
        self.addresses.carry(("c", cluster), topic, 1)
        members = self.exchange.announce(self.clusters[cluster].members)
        for peer in members[self.peers.having(members, topic)].tolist():
            self.exchange.send("resub")
            self.drop(peer, topic)
        self.updates["add"] += 1

    def remove(self, cluster: int, topic: int) -> None:
        """Remove a topic from a cluster; members that get it from nowhere else subscribe directly."""
        members = self.exchange.announce(self.clusters[cluster].members)
        self._release(cluster, topic, members)
        self.updates["remove"] += 1
        if len(self.clusters[cluster].frequencies) < 2:
            self.destroy(cluster)

    def _release(self, cluster: int, topic: int, members: Ints) -> None:
        """Remove a topic from a cluster with notified members; those that need it subscribe directly."""
        weight = np.zeros(len(self.topics))
        weight[topic] = 1.0
        needing = members[self.peers.worth(members, cluster, weight) > 0]
        self._remove_topic(topic, cluster)
        self.addresses.carry(("c", cluster), topic, -1)
        for peer in needing.tolist():
            self.exchange.send("resub")
            self.take(peer, topic)

    def destroy(self, cluster: int) -> None:
        """Remove all topics and members of a cluster, and the cluster."""
        channel = self.clusters[cluster]
        members = self.exchange.announce(channel.members)
        for topic in list(channel.frequencies):
            self._release(cluster, topic, members)
        for peer in members.tolist():
            self._exit(peer, cluster)
        self._close(cluster)
        self.updates["destroy"] += 1

    def _close(self, cluster: int) -> None:
        """Delete a cluster that has neither topics nor members, and free its channel."""
        self.account.cluster(self.clusters[cluster].numbers(), (0, 0, 0.0))
        self.exchange.free_channel(self.addresses).close(("c", cluster), ())
        del self.clusters[cluster]
        heapq.heappush(self._free, cluster)
        self._assign_free_channels()

    def pair(self, one: int, other: int, *, all_members: bool) -> None:
        """Make a cluster of two topics, with all direct subscribers of either or those of both."""
        mine, theirs = (self.exchange.announce(self.topics[topic].members) for topic in (one, other))
        members = np.union1d(mine, theirs) if all_members else np.intersect1d(mine, theirs)
        cluster = self.create_cluster((one, other))
        for peer in members.tolist():
            self.join(peer, cluster)
        self.updates["join"] -= len(members)
        self.clusters[cluster].checked = len(members)
        self.updates["pair"] += 1

    def create_cluster(self, topics: Iterable[int]) -> int:
        """Make a cluster of topics without members, and return its number; a channel must be available."""
        cluster = heapq.heappop(self._free) if self._free else self._next
        self._next = max(self._next, cluster + 1)
        self._grow()
        self.clusters[cluster] = ClusterChannel()
        topics = tuple(topics)
        if not self.addresses.room:
            self._take_channel()
        self.addresses.open(("c", cluster), topics)
        for topic in topics:
            self._add_topic(topic, cluster)
        return cluster

    def merge(self, keep: int, gone: int) -> None:
        """Merge two clusters: members of the second join the first, which adds the second's topics."""
        into, end = self.clusters[keep], self.clusters[gone]
        self.exchange.announce(into.members)
        for topic in [topic for topic in end.frequencies if topic not in into.frequencies]:
            self._add_topic(topic, keep)
            self.addresses.carry(("c", keep), topic, 1)
        for peer in self.exchange.announce(end.members).tolist():
            if peer not in into.members:
                self.exchange.send("resub")
                self._enter(peer, keep)
            self._exit(peer, gone)
        for topic in list(end.frequencies):
            self._remove_topic(topic, gone)
            self.addresses.carry(("c", gone), topic, -1)
        self._close(gone)
        members = into.members.all()
        for peer in members[self.peers.overlapping(members, keep)].tolist():
            for topic in self.peers.taken_over(peer, keep):
                self.exchange.send("resub")
                self.drop(peer, topic)
        into.checked = len(into.members)
        self.updates["merge"] += 1
