"""Clusters and who is in them: the changes that can be made, each of which leaves everybody covered."""

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
    """All subscribers and channels, with an account of what they cost.

    It carries out what has been decided, and counts the messages of it. `account` is for those who watch: no
    channel looks at it.

    Parameters
    ----------
    local
        What changes cost.
    limit
        The most channels; None for any number.
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
        """Add topics, with how often each has events in an interval."""
        for frequency in frequencies:
            self.topics.append(TopicChannel(frequency))
            self.account.frequency((0, True), 0.0, frequency)
        self._grow()

    def admit(self, peers: int) -> None:
        """Add subscribers."""
        self.n_peers += peers
        self._grow()

    def _grow(self) -> None:
        self.peers.grow(self.n_peers, len(self.topics), self._next)

    def believe(self, topic: int, frequency: float) -> None:
        """Have a topic's channel believe in a frequency; its clusters see it with the events."""
        channel = self.topics[topic]
        self.account.frequency(self._direct(topic), channel.frequency, frequency)
        channel.frequency = frequency
        for cluster in channel.clusters:
            before = self.clusters[cluster].numbers()
            self.clusters[cluster].set_frequency(topic, frequency)
            self.account.cluster(before, self.clusters[cluster].numbers())

    def _direct(self, topic: int) -> tuple[int, bool]:
        """Return how many have a topic directly, and whether they do so by a channel."""
        return len(self.topics[topic].members), ("t", topic) in self.addresses.number

    def take(self, peer: int, topic: int) -> None:
        """Subscribe somebody to a topic directly."""
        channel = self.topics[topic]
        if not len(channel.members):
            addresses = self.exchange.applied(self.addresses)
            if not addresses.open(("t", topic), (topic,)):
                addresses.wait(topic)
        before = self._direct(topic)
        self.peers.direct.put(peer, topic)
        channel.members.add(peer)
        self.account.topic(channel.frequency, before, self._direct(topic))
        self.addresses.listen(("t", topic), peer, 1)

    def drop(self, peer: int, topic: int) -> None:
        """End a direct subscription."""
        channel, before = self.topics[topic], self._direct(topic)
        self.peers.direct.clear(peer, topic)
        channel.members.remove(peer)
        self.account.topic(channel.frequency, before, self._direct(topic))
        self.addresses.listen(("t", topic), peer, -1)
        if not len(channel.members):
            addresses = self.exchange.returned(self.addresses)
            addresses.give_up(topic)
            if ("t", topic) in addresses.number:
                addresses.close(("t", topic), (topic,))
                self._seat()

    def _seat(self) -> None:
        """Give channels that have become free to topics that wait."""
        while (topic := self.addresses.next_waiting()) is not None:
            self._move(topic, lambda t: self.addresses.open(("t", t), (t,)))

    def _evict(self) -> None:
        """Have the topic that is sent to fewest go without a channel, for the sake of a cluster.

        Whoever hands out channels asks all topics that have one.
        """
        told = {
            topic: self.exchange.asked("cluster", self.topics[topic]).described()
            for kind, topic in self.addresses.number
            if kind == "t"
        }
        least = min(told, key=lambda t: ((1 + told[t].frequency) * told[t].members, t))
        self._move(least, lambda t: self.addresses.close(("t", t), (t,)))
        self.addresses.wait(least)

    def _move(self, topic: int, how: Callable[[int], object]) -> None:
        """Give a topic a channel or take it away, and its direct subscribers with it, who are told."""
        channel, before = self.exchange.reached("cluster", self.topics[topic]), self._direct(topic)
        members = self.exchange.announced(channel.members).tolist()
        for peer in members:
            self.addresses.listen(("t", topic), peer, -1)
        how(topic)
        for peer in members:
            self.addresses.listen(("t", topic), peer, 1)
        self.account.topic(channel.frequency, before, self._direct(topic))

    def join(self, peer: int, cluster: int) -> None:
        """Have somebody join a cluster, and drop what they have from it now."""
        self._enter(peer, cluster)
        taken = self.peers.taken_over(peer, cluster)
        self.exchange.send("resub", 1 + len(taken))
        for topic in taken:
            self.drop(peer, topic)
        self.updates["join"] += 1

    def leave(self, peer: int, cluster: int, need: list[int]) -> None:
        """Have somebody leave a cluster for direct subscriptions; a cluster without members is destroyed."""
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

    def _tie(self, topic: int, cluster: int) -> None:
        """Put a topic into a cluster; its channel tells the topic's other clusters."""
        before, channel, to = self.clusters[cluster].numbers(), self.topics[topic], self.clusters[cluster]
        self.exchange.send("cluster", 2 + len(channel.clusters))
        for other in channel.clusters:
            self.clusters[other].others[topic].add(cluster)
        to.others[topic] = set(channel.clusters)
        to.set_frequency(topic, channel.frequency)
        channel.clusters.add(cluster)
        self.peers.topics.put(cluster, topic)
        self.account.cluster(before, self.clusters[cluster].numbers())

    def _untie(self, topic: int, cluster: int) -> None:
        """Take a topic out of a cluster; its channel tells the topic's other clusters."""
        before, channel, of = self.clusters[cluster].numbers(), self.topics[topic], self.clusters[cluster]
        channel.clusters.remove(cluster)
        self.exchange.send("cluster", 2 + len(channel.clusters))
        for other in channel.clusters:
            self.clusters[other].others[topic].discard(cluster)
        of.drop(topic)
        self.peers.topics.clear(cluster, topic)
        self.account.cluster(before, self.clusters[cluster].numbers())

    def add(self, cluster: int, topic: int) -> None:
        """Put a topic into a cluster: members who have it directly drop that."""
        self._tie(topic, cluster)
        self.addresses.carry(("c", cluster), topic, 1)
        members = self.exchange.announced(self.clusters[cluster].members)
        for peer in members[self.peers.having(members, topic)].tolist():
            self.exchange.send("resub")
            self.drop(peer, topic)
        self.updates["add"] += 1

    def remove(self, cluster: int, topic: int) -> None:
        """Take a topic out of a cluster: members who have it from nowhere else subscribe directly."""
        members = self.exchange.announced(self.clusters[cluster].members)
        self._release(cluster, topic, members)
        self.updates["remove"] += 1
        if len(self.clusters[cluster].frequencies) < 2:
            self.destroy(cluster)

    def _release(self, cluster: int, topic: int, members: Ints) -> None:
        """Take a topic out of a cluster whose members know."""
        weight = np.zeros(len(self.topics))
        weight[topic] = 1.0
        needing = members[self.peers.worth(members, cluster, weight) > 0]
        self._untie(topic, cluster)
        self.addresses.carry(("c", cluster), topic, -1)
        for peer in needing.tolist():
            self.exchange.send("resub")
            self.take(peer, topic)

    def destroy(self, cluster: int) -> None:
        """End a cluster."""
        channel = self.clusters[cluster]
        members = self.exchange.announced(channel.members)
        for topic in list(channel.frequencies):
            self._release(cluster, topic, members)
        for peer in members.tolist():
            self._exit(peer, cluster)
        self._close(cluster)
        self.updates["destroy"] += 1

    def _close(self, cluster: int) -> None:
        """Forget a cluster that has no topics and no members any more."""
        self.account.cluster(self.clusters[cluster].numbers(), (0, 0, 0.0))
        self.exchange.returned(self.addresses).close(("c", cluster), ())
        del self.clusters[cluster]
        heapq.heappush(self._free, cluster)
        self._seat()

    def pair(self, one: int, other: int, *, everybody: bool) -> None:
        """Make a cluster of two topics, for all their direct subscribers or for those of both."""
        mine, theirs = (self.exchange.announced(self.topics[topic].members) for topic in (one, other))
        members = np.union1d(mine, theirs) if everybody else np.intersect1d(mine, theirs)
        cluster = self.found((one, other))
        for peer in members.tolist():
            self.join(peer, cluster)
        self.updates["join"] -= len(members)
        self.clusters[cluster].checked = len(members)
        self.updates["pair"] += 1

    def found(self, topics: Iterable[int]) -> int:
        """Make a cluster of topics, without members as yet, and return its number: there must be room."""
        cluster = heapq.heappop(self._free) if self._free else self._next
        self._next = max(self._next, cluster + 1)
        self._grow()
        self.clusters[cluster] = ClusterChannel()
        topics = tuple(topics)
        if not self.addresses.room:
            self._evict()
        self.addresses.open(("c", cluster), topics)
        for topic in topics:
            self._tie(topic, cluster)
        return cluster

    def merge(self, keep: int, gone: int) -> None:
        """Make two clusters one: members of the second join the first, which takes up its topics."""
        into, end = self.clusters[keep], self.clusters[gone]
        self.exchange.announced(into.members)
        for topic in [topic for topic in end.frequencies if topic not in into.frequencies]:
            self._tie(topic, keep)
            self.addresses.carry(("c", keep), topic, 1)
        for peer in self.exchange.announced(end.members).tolist():
            if peer not in into.members:
                self.exchange.send("resub")
                self._enter(peer, keep)
            self._exit(peer, gone)
        for topic in list(end.frequencies):
            self._untie(topic, gone)
            self.addresses.carry(("c", gone), topic, -1)
        self._close(gone)
        everybody = into.members.all()
        for peer in everybody[self.peers.overlapping(everybody, keep)].tolist():
            for topic in self.peers.taken_over(peer, keep):
                self.exchange.send("resub")
                self.drop(peer, topic)
        into.checked = len(into.members)
        self.updates["merge"] += 1
