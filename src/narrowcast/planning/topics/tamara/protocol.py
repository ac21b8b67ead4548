"""What happens when somebody subscribes or unsubscribes, and when a round is due (tamara2007, 3 and 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.costs.local_changes import TopicCost
from narrowcast.planning.topics.tamara.cluster_system import ClusterSystem
from narrowcast.planning.topics.tamara.exchange import MessageCounter
from narrowcast.planning.topics.tamara.sampling import coin

if TYPE_CHECKING:
    from narrowcast.costs.local_changes import LocalChanges


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRules:
    """How channels behave.

    Parameters
    ----------
    everybody
        Whether all direct subscribers of two topics go over to their new cluster, or those of both.
    surely
        How surely a coin is to win once when an update pays.
    margin, z
        How good samples are: see `sample_size`.
    by
        The share by which a frequency, or the size of a cluster, has to change to be looked at.
    grown
        Whether that holds for clusters that grow, too: the paper has no such trigger.
    tidy
        Whether clusters and members look at themselves in every round.
    adapt
        Whether clusters change at all.
    """

    everybody: bool = True
    surely: float = 0.99
    margin: float = 0.05
    z: float = 1.96
    by: float = 0.25
    grown: bool = False
    tidy: bool = False
    adapt: bool = True


class TamaraProtocol:
    """Subscribers and channels at work.

    The first argument of a method is who acts: it knows its own, and looks at others by `exchange` alone.

    Parameters
    ----------
    local
        What changes cost.
    rules
        How channels behave.
    rng
        Tosses coins and draws samples.
    limit
        The most channels; None for any number.
    """

    def __init__(
        self, local: LocalChanges, rules: ChannelRules, rng: np.random.Generator, *, limit: int | None = None
    ) -> None:
        self.local, self.rules, self._rng = local, rules, rng
        self.system = ClusterSystem(local, limit=limit)
        self.exchange = MessageCounter(
            self.system.peers, rng, margin=rules.margin, z=rules.z, sized=local.sized
        )
        self.system.exchange = self.exchange

    # Subscribers

    def subscribe(self, peer: int, topic: int) -> bool:
        """Have somebody want a topic; False where they do already."""
        system, peers = self.system, self.system.peers
        if peers.interests.has(peer, topic):
            return False
        peers.interests.put(peer, topic)
        if peers.gets(peer, topic):
            return True  # its filter lets the topic through from now on
        cluster = self._chosen(peer, topic)
        if cluster is not None:
            system.join(peer, cluster)
            self._resized(cluster)
            return True
        system.take(peer, topic)
        mine = peers.clusters_of(peer)
        if mine and self.rules.adapt:
            self._told_of_more(mine[int(peers.unwanted(peer, mine).argmax())], topic)
        return True

    def _chosen(self, peer: int, topic: int) -> int | None:
        """Return the cluster to join for a topic, where that is cheaper than to have the topic directly."""
        system, peers = self.system, self.system.peers
        channel = self.exchange.reached("base", system.topics[topic])
        candidates = sorted(channel.clusters)
        if not candidates:
            return None
        told = self.exchange.passed_on(channel, [system.clusters[each] for each in candidates])
        best = candidates[int(peers.overlaps(peer, candidates).argmax())]
        members, _, frequency = system.clusters[best].numbers()
        moved = self.exchange.topics("resub", [system.topics[t] for t in peers.taken_over(peer, best)])
        moved.append(TopicCost(told.frequency, told.members + 1))
        return best if self.local.join(moved, members=members, frequency=frequency) < 0 else None

    def unsubscribe(self, peer: int, topic: int) -> bool:
        """Have somebody want a topic no longer; False where they did not."""
        system, peers = self.system, self.system.peers
        if not peers.interests.has(peer, topic):
            return False
        peers.interests.clear(peer, topic)
        if peers.direct.has(peer, topic):
            self.exchange.send("base")
            system.drop(peer, topic)
            return True
        for cluster in peers.clusters_of(peer):
            if not peers.topics.has(cluster, topic):
                continue
            if self._leaves(peer, cluster):
                self._left(peer, cluster)
                if cluster in system.clusters:
                    self._resized(cluster)
            if self.rules.adapt and cluster in system.clusters:
                self._told_of_less(cluster, topic)
        return True

    def _leaves(self, peer: int, cluster: int) -> bool:
        """Return whether to stay in a cluster is no cheaper than to take what one needs of it directly."""
        system = self.system
        members, frequency = self.exchange.cluster("resub", system.clusters[cluster])
        need = [system.topics[each] for each in system.peers.need(peer, cluster)]
        told = self.exchange.topics("resub", need)
        return self.local.leave(told, members=members, frequency=frequency) <= 0

    def _left(self, peer: int, cluster: int) -> None:
        """Have somebody leave a cluster, and take what they need of it directly."""
        self.system.leave(peer, cluster, self.system.peers.need(peer, cluster))

    # Clusters

    def _wins(self, cluster: int, topic: TopicCost) -> bool:
        """Toss a coin that wins almost surely by the time that a topic is worth its while."""
        members, flows, _ = self.system.clusters[cluster].numbers()
        worth = self.local.worth(topic, members=members, flows=flows)
        return bool(self._rng.random() < coin(worth, surely=self.rules.surely))

    def _told_of_more(self, cluster: int, topic: int) -> None:
        """Have a cluster learn that a member subscribed to a topic that it does not have."""
        channel = self.exchange.reached("notify", self.system.clusters[cluster])
        [told] = self.exchange.topics("cluster", [self.system.topics[topic]])
        if not self._wins(cluster, told):
            return
        common = self.exchange.having(channel.members, topic)
        if not self.local.sized:
            if not channel.adds(told, common=common, local=self.local):
                return
            told = self.exchange.asked("cluster", self.system.topics[topic]).described()
        self._offered(cluster, topic, told, common)

    def _offered(self, cluster: int, topic: int, told: TopicCost, common: int) -> bool:
        """Have a cluster take up a topic that so many of its members have directly, if that pays.

        Samples may make them more than there are: `told` is what the topic's channel has said of itself.
        """
        channel = self.system.clusters[cluster]
        if not channel.adds(told, common=min(common, told.members), local=self.local):
            return False
        self.system.add(cluster, topic)
        return True

    def _told_of_less(self, cluster: int, topic: int) -> None:
        """Have a cluster learn that a member unsubscribed from one of its topics."""
        channel = self.exchange.reached("notify", self.system.clusters[cluster])
        if topic not in channel.frequencies:
            return
        [told] = self.exchange.topics("cluster", [self.system.topics[topic]])
        if self._wins(cluster, told):
            need = self.exchange.needing(channel.members, cluster)
            self._judged(cluster, topic, told, int(need[topic]))

    def _looked_at(self, cluster: int, topics: list[int] | None = None) -> None:
        """Have a cluster ask who needs its topics, or some of them, and drop those that do not pay."""
        channel = self.system.clusters[cluster]
        need = self.exchange.needing(channel.members, cluster)
        for topic in list(channel.frequencies) if topics is None else topics:
            if cluster not in self.system.clusters:
                return
            [told] = self.exchange.topics("cluster", [self.system.topics[topic]])
            self._judged(cluster, topic, told, int(need[topic]))

    def _judged(self, cluster: int, topic: int, told: TopicCost, need: int) -> None:
        """Have a cluster drop a topic that so many of its members have from it alone, if that pays."""
        if self.system.clusters[cluster].removes(told, need=need, local=self.local):
            self.system.remove(cluster, topic)

    def _resized(self, cluster: int) -> None:
        """Have a cluster look at its topics, or for one more, when its size has changed."""
        channel = self.system.clusters[cluster]
        turn = channel.resized(self.rules.by) if self.rules.adapt else 0
        if turn == 0:
            return
        channel.checked = len(channel.members)
        if turn > 0 and self.rules.grown:
            self._looked_at(cluster)
        elif turn < 0:
            _, topics = self.exchange.elsewhere(channel.members)
            best = int(topics.argmax())
            if topics[best]:
                told = self.exchange.asked("cluster", self.system.topics[best]).described()
                self._offered(cluster, best, told, int(topics[best]))

    # Topics

    def believe(self, topic: int, frequency: float, seen: float = math.inf) -> None:
        """Have the channel of a topic believe in a frequency, and clusters look at it if that has moved."""
        channel = self.system.topics[topic]
        self.system.believe(topic, frequency)
        turn = channel.moved(self.rules.by, seen)
        if turn == 0 or not self.rules.adapt:
            return
        channel.checked = frequency
        if turn < 0:
            self._searched(topic)
            return
        for cluster in sorted(channel.clusters):
            self._looked_at(cluster, [topic])

    def _searched(self, topic: int) -> None:
        """Have a topic with some direct subscribers look for a cluster, and else for a partner."""
        system, channel = self.system, self.system.topics[topic]
        if len(channel.members) < 3:
            return
        clusters, topics = self.exchange.elsewhere(channel.members)
        best = int(clusters.argmax())
        if clusters[best]:
            self.exchange.asked("cluster", system.clusters[best])
            if self._offered(best, topic, channel.described(), int(clusters[best])):
                return
        topics[topic] = 0
        partner = int(topics.argmax())
        if not topics[partner]:
            return
        everybody = self.rules.everybody
        other = self.exchange.asked("cluster", system.topics[partner]).described()
        common = min(int(topics[partner]), other.members, len(channel.members))
        if not channel.pairs(other, common=common, everybody=everybody, local=self.local):
            return
        if self.exchange.applied(system.addresses).room_for_cluster:
            system.pair(topic, partner, everybody=everybody)

    # Rounds

    def round(self) -> None:
        """Have clusters look for one to merge with, and topics for a cluster; then tidy up, where asked."""
        if not self.rules.adapt:
            return
        for channel in self.system.clusters.values():
            channel.locked = False
        for cluster in sorted(self.system.clusters):
            if cluster in self.system.clusters:
                self._courts(cluster)
        for topic in range(len(self.system.topics)):
            self._searched(topic)
        if self.rules.tidy:
            for cluster in sorted(self.system.clusters):
                if cluster in self.system.clusters:
                    self._looked_at(cluster)
                if cluster in self.system.clusters:
                    self._reconsidered(cluster)

    def _courts(self, cluster: int) -> None:
        """Have a cluster look for the one that it has most members in common with, and merge if that pays."""
        system, channel = self.system, self.system.clusters[cluster]
        if channel.locked:
            return
        common, _ = self.exchange.elsewhere(channel.members)
        common[cluster] = 0
        best = int(common.argmax())
        if not common[best]:
            return
        other = self.exchange.asked("cluster", system.clusters[best])
        if other.locked or not other.merges(channel.offer(cluster, int(common[best])), self.local):
            return
        keep, gone = (cluster, best) if len(channel.members) >= len(other.members) else (best, cluster)
        system.merge(keep, gone)
        system.clusters[keep].locked = True

    def _reconsidered(self, cluster: int) -> None:
        """Have members leave who have what they need of a cluster cheaper directly; each sees to itself.

        Who would leave by what the cluster told its members looks again, as others have left meanwhile.
        """
        channel = self.system.clusters[cluster]
        prices = np.zeros(len(self.system.topics))
        topics = self.exchange.topics("cluster", [self.system.topics[each] for each in channel.frequencies])
        for topic, (frequency, direct) in zip(channel.frequencies, topics, strict=True):
            prices[topic] = self.local.last(TopicCost(frequency, direct + 1))
        members, size = self.exchange.counted(channel)
        worth = self.system.peers.worth(members, cluster, prices)
        price = -self.local.leave((), members=size, frequency=channel.frequency)
        for peer in members[worth <= price * (1 + 1e-9)].tolist():
            if self._leaves(peer, cluster):
                self._left(peer, cluster)
                if cluster not in self.system.clusters:
                    return
        channel.checked = len(channel.members)
