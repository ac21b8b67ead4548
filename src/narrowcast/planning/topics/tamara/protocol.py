"""Reactions of subscribers and channels to subscriptions and rounds (tamara2007, sections 3 and 4).

Each topic has a channel. A cluster is a channel of several topics; its members receive all of them. A
subscriber gets a topic directly, from the topic's own channel, or from a cluster. In a round, repeated
regularly, clusters look for another cluster to merge with, and topics for a cluster to enter. A cluster
reviews a topic when it asks its members who needs the topic, and drops it if that lowers the cost. To save
messages, it asks random samples of members, and reacts to a notification only if a tossed coin wins.
"""

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
    """Rules by which channels decide when to change clusters.

    Parameters
    ----------
    all_members
        Who joins a new cluster of two topics: all direct subscribers of either (True), or those of both.
    surely
        Probability that a coin, tossed at each notification about a topic, has won once by the time that
        adding the topic lowers the cost.
    margin, z
        Margin of error of samples of members, and its number of standard deviations: see `sample_size`.
    by
        The share by which the frequency of a topic, or the size of a cluster, must change for a review.
    grown
        Whether clusters are also reviewed when they have grown, which the paper does not do.
    tidy
        Whether all clusters and members are reviewed in every round.
    adapt
        Whether clusters change at all.
    """

    all_members: bool = True
    surely: float = 0.99
    margin: float = 0.05
    z: float = 1.96
    by: float = 0.25
    grown: bool = False
    tidy: bool = False
    adapt: bool = True


class TamaraProtocol:
    """The protocol by which subscribers join and leave clusters of topics, and clusters change their topics.

    The first parameter of a method is the subscriber or channel that acts. It uses its own state only; all
    access to others goes through `exchange`, which counts the messages.

    Parameters
    ----------
    local
        Computes the cost difference of each change from what the acting subscriber or channel knows.
    rules
        Rules by which channels decide when to change clusters.
    rng
        Generator of coins and samples.
    limit
        The most channels; None means no limit.
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
        """Add a topic to a subscriber's interest; return False if it was there already."""
        system, peers = self.system, self.system.peers
        if peers.interests.has(peer, topic):
            return False
        peers.interests.put(peer, topic)
        if peers.gets(peer, topic):
            return True  # the subscriber's own filter accepts the topic from now on
        cluster = self._cluster_to_join(peer, topic)
        if cluster is not None:
            system.join(peer, cluster)
            self._on_resized(cluster)
            return True
        system.take(peer, topic)
        mine = peers.clusters_of(peer)
        if mine and self.rules.adapt:
            self._on_member_subscribed(mine[int(peers.unwanted(peer, mine).argmax())], topic)
        return True

    def _cluster_to_join(self, peer: int, topic: int) -> int | None:
        """Return the cluster to join for a topic, or None if a direct subscription is cheaper."""
        system, peers = self.system, self.system.peers
        channel = self.exchange.notify("base", system.topics[topic])
        candidates = sorted(channel.clusters)
        if not candidates:
            return None
        state = self.exchange.forward(channel, [system.clusters[each] for each in candidates])
        best = candidates[int(peers.overlaps(peer, candidates).argmax())]
        members, _, frequency = system.clusters[best].numbers()
        moved = self.exchange.topics("resub", [system.topics[t] for t in peers.taken_over(peer, best)])
        moved.append(TopicCost(state.frequency, state.members + 1))
        return best if self.local.join(moved, members=members, frequency=frequency) < 0 else None

    def unsubscribe(self, peer: int, topic: int) -> bool:
        """Remove a topic from a subscriber's interest; return False if it was not there."""
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
            if self._should_leave(peer, cluster):
                self._leave(peer, cluster)
                if cluster in system.clusters:
                    self._on_resized(cluster)
            if self.rules.adapt and cluster in system.clusters:
                self._on_member_unsubscribed(cluster, topic)
        return True

    def _should_leave(self, peer: int, cluster: int) -> bool:
        """Return whether leaving a cluster for direct subscriptions costs no more than staying."""
        system = self.system
        members, frequency = self.exchange.cluster("resub", system.clusters[cluster])
        need = [system.topics[each] for each in system.peers.need(peer, cluster)]
        topics = self.exchange.topics("resub", need)
        return self.local.leave(topics, members=members, frequency=frequency) <= 0

    def _leave(self, peer: int, cluster: int) -> None:
        """Let a subscriber leave a cluster, and subscribe directly to the topics it got from there alone."""
        self.system.leave(peer, cluster, self.system.peers.need(peer, cluster))

    # Clusters

    def _coin_wins(self, cluster: int, topic: TopicCost) -> bool:
        """Decide at random whether a cluster reacts to a notification about a topic.

        The coin wins almost surely (`ChannelRules.surely`) by the time that an update for the topic pays.
        """
        members, flows, _ = self.system.clusters[cluster].numbers()
        worth = self.local.worth(topic, members=members, flows=flows)
        return bool(self._rng.random() < coin(worth, surely=self.rules.surely))

    def _on_member_subscribed(self, cluster: int, topic: int) -> None:
        """React to the notification that a member subscribed to a topic outside of its cluster."""
        channel = self.exchange.notify("notify", self.system.clusters[cluster])
        [state] = self.exchange.topics("cluster", [self.system.topics[topic]])
        if not self._coin_wins(cluster, state):
            return
        common = self.exchange.count_having(channel.members, topic)
        if not self.local.sized:
            if not channel.adds(state, common=common, local=self.local):
                return
            state = self.exchange.query("cluster", self.system.topics[topic]).described()
        self._offer_topic(cluster, topic, state, common)

    def _offer_topic(self, cluster: int, topic: int, state: TopicCost, common: int) -> bool:
        """Add a topic to a cluster if that lowers the cost; `common` of its members have the topic directly.

        `common` may be estimated too high: the report of the topic's channel, `state`, bounds it.
        """
        channel = self.system.clusters[cluster]
        if not channel.adds(state, common=min(common, state.members), local=self.local):
            return False
        self.system.add(cluster, topic)
        return True

    def _on_member_unsubscribed(self, cluster: int, topic: int) -> None:
        """React to the notification that a member unsubscribed from one of the cluster's topics."""
        channel = self.exchange.notify("notify", self.system.clusters[cluster])
        if topic not in channel.frequencies:
            return
        [state] = self.exchange.topics("cluster", [self.system.topics[topic]])
        if self._coin_wins(cluster, state):
            need = self.exchange.count_needing(channel.members, cluster)
            self._review_topic(cluster, topic, state, int(need[topic]))

    def _review_topics(self, cluster: int, topics: list[int] | None = None) -> None:
        """Ask members of a cluster which of its topics they need, and drop the topics that do not pay."""
        channel = self.system.clusters[cluster]
        need = self.exchange.count_needing(channel.members, cluster)
        for topic in list(channel.frequencies) if topics is None else topics:
            if cluster not in self.system.clusters:
                return
            [state] = self.exchange.topics("cluster", [self.system.topics[topic]])
            self._review_topic(cluster, topic, state, int(need[topic]))

    def _review_topic(self, cluster: int, topic: int, state: TopicCost, need: int) -> None:
        """Drop a topic from a cluster if that pays; `need` members get the topic from this cluster alone."""
        if self.system.clusters[cluster].removes(state, need=need, local=self.local):
            self.system.remove(cluster, topic)

    def _on_resized(self, cluster: int) -> None:
        """After a change of a cluster's size, review its topics or look for another cluster to merge with."""
        channel = self.system.clusters[cluster]
        turn = channel.resized(self.rules.by) if self.rules.adapt else 0
        if turn == 0:
            return
        channel.checked = len(channel.members)
        if turn > 0 and self.rules.grown:
            self._review_topics(cluster)
        elif turn < 0:
            _, topics = self.exchange.count_elsewhere(channel.members)
            best = int(topics.argmax())
            if topics[best]:
                state = self.exchange.query("cluster", self.system.topics[best]).described()
                self._offer_topic(cluster, best, state, int(topics[best]))

    # Topics

    def set_frequency(self, topic: int, frequency: float, seen: float = math.inf) -> None:
        """Set the estimated frequency of a topic; if it changed, the clusters that contain it review it."""
        channel = self.system.topics[topic]
        self.system.set_frequency(topic, frequency)
        turn = channel.moved(self.rules.by, seen)
        if turn == 0 or not self.rules.adapt:
            return
        channel.checked = frequency
        if turn < 0:
            self._find_cluster(topic)
            return
        for cluster in sorted(channel.clusters):
            self._review_topics(cluster, [topic])

    def _find_cluster(self, topic: int) -> None:
        """Let a topic with direct subscribers enter a cluster, or form a new cluster with another topic."""
        system, channel = self.system, self.system.topics[topic]
        if len(channel.members) < 3:
            return
        clusters, topics = self.exchange.count_elsewhere(channel.members)
        best = int(clusters.argmax())
        if clusters[best]:
            self.exchange.query("cluster", system.clusters[best])
            if self._offer_topic(best, topic, channel.described(), int(clusters[best])):
                return
        topics[topic] = 0
        partner = int(topics.argmax())
        if not topics[partner]:
            return
        all_members = self.rules.all_members
        other = self.exchange.query("cluster", system.topics[partner]).described()
        common = min(int(topics[partner]), other.members, len(channel.members))
        if not channel.pairs(other, common=common, all_members=all_members, local=self.local):
            return
        if self.exchange.request_channel(system.addresses).room_for_cluster:
            system.pair(topic, partner, all_members=all_members)

    # Rounds

    def round(self) -> None:
        """Run a round: clusters look for a merge, topics for a cluster; with `tidy`, all are reviewed."""
        if not self.rules.adapt:
            return
        for channel in self.system.clusters.values():
            channel.locked = False
        for cluster in sorted(self.system.clusters):
            if cluster in self.system.clusters:
                self._find_merge(cluster)
        for topic in range(len(self.system.topics)):
            self._find_cluster(topic)
        if self.rules.tidy:
            for cluster in sorted(self.system.clusters):
                if cluster in self.system.clusters:
                    self._review_topics(cluster)
                if cluster in self.system.clusters:
                    self._review_members(cluster)

    def _find_merge(self, cluster: int) -> None:
        """Find the other cluster with most common members, and merge with it if that lowers the cost."""
        system, channel = self.system, self.system.clusters[cluster]
        if channel.locked:
            return
        common, _ = self.exchange.count_elsewhere(channel.members)
        common[cluster] = 0
        best = int(common.argmax())
        if not common[best]:
            return
        other = self.exchange.query("cluster", system.clusters[best])
        if other.locked or not other.merges(channel.offer(cluster, int(common[best])), self.local):
            return
        keep, gone = (cluster, best) if len(channel.members) >= len(other.members) else (best, cluster)
        system.merge(keep, gone)
        system.clusters[keep].locked = True

    def _review_members(self, cluster: int) -> None:
        """Remove members from a cluster for which direct subscriptions are cheaper; each decides for itself.

        A member that would leave according to the numbers sent by the cluster asks again before it leaves,
        because other members may have left meanwhile.
        """
        channel = self.system.clusters[cluster]
        prices = np.zeros(len(self.system.topics))
        topics = self.exchange.topics("cluster", [self.system.topics[each] for each in channel.frequencies])
        for topic, (frequency, direct) in zip(channel.frequencies, topics, strict=True):
            prices[topic] = self.local.last(TopicCost(frequency, direct + 1))
        members, size = self.exchange.members_and_size(channel)
        worth = self.system.peers.worth(members, cluster, prices)
        price = -self.local.leave((), members=size, frequency=channel.frequency)
        for peer in members[worth <= price * (1 + 1e-9)].tolist():
            if self._should_leave(peer, cluster):
                self._leave(peer, cluster)
                if cluster not in self.system.clusters:
                    return
        channel.checked = len(channel.members)
