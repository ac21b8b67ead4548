"""The messages between subscribers and channels, and their counts by kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from narrowcast.costs.local_changes import TopicCost
from narrowcast.planning.topics.tamara.sampling import sample_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narrowcast.planning.topics.tamara.channel_numbers import ChannelRows
    from narrowcast.planning.topics.tamara.channels import ChannelMembers, ClusterChannel, TopicChannel
    from narrowcast.planning.topics.tamara.subscribers import Ints, SubscriberPeers

    Channel = TypeVar("Channel", TopicChannel, ClusterChannel)

#: Kinds of messages; `base` are direct subscriptions and their ends, which exist without clusters as well.
KINDS = ("base", "notify", "survey", "cluster", "resub")

#: Replaces a size that was not requested; no decision depends on it.
HIDDEN = 0


class MessageCounter:
    """Gives subscribers and channels access to each other's state, and counts the messages for it by kind.

    Kinds of messages: `base` is a direct subscription or its end; `notify` informs a cluster that a member
    subscribed or unsubscribed; `survey` is a question to a member, or its answer; `cluster` is exchanged
    among channels, and with their members, when clusters change or may change; `resub` is what subscribers
    send and receive to find, join or leave a cluster, and to end or start direct subscriptions because of it.

    Access to another channel's state goes through a method of this class. The frequency of a topic is
    observed by all that receive its events, and is part of a notification. The number of a topic's
    subscribers is known to its channel only, and the number of a cluster's members to that cluster: where
    costs depend on them, they are asked for.

    Parameters
    ----------
    peers
        The subscribers; otherwise only code that acts for a subscriber has access to it.
    rng
        Generator of samples.
    margin, z
        Quality of samples: see `sample_size`.
    sized
        Whether costs depend on sizes: see `LocalChanges`.
    """

    __slots__ = ("_margin", "_peers", "_rng", "_sized", "_z", "sent")

    def __init__(
        self, peers: SubscriberPeers, rng: np.random.Generator, *, margin: float, z: float, sized: bool
    ) -> None:
        self._peers = peers
        self._rng = rng
        self._margin, self._z = margin, z
        self._sized = sized
        self.sent = dict.fromkeys(KINDS, 0)

    def send(self, kind: str, count: int = 1) -> None:
        """Add to the number of messages of a kind."""
        self.sent[kind] += count

    def notify(self, kind: str, channel: Channel) -> Channel:
        """Send a message to a channel, and return the channel, which acts on it."""
        self.send(kind)
        return channel

    def query(self, kind: str, channel: Channel) -> Channel:
        """Ask a channel for its state, and return the channel: the answer may contain all of its state."""
        self.send(kind, 2)
        return channel

    def forward(self, channel: TopicChannel, clusters: Sequence[ClusterChannel]) -> TopicCost:
        """Have a topic's channel forward a subscription to its clusters, which answer the subscriber.

        The message contains the channel's own state, which is returned; answers may contain all state of the
        clusters.
        """
        self.send("resub", 2 * len(clusters))
        return channel.described()

    def topics(self, kind: str, channels: Sequence[TopicChannel]) -> list[TopicCost]:
        """Return frequency and size of topics, for a subscriber or channel that receives their events.

        Their sizes are not visible with the events: each topic is asked, if costs depend on sizes.
        """
        if self._sized:
            self.send(kind, 2 * len(channels))
            return [channel.described() for channel in channels]
        return [TopicCost(channel.frequency, HIDDEN) for channel in channels]

    def cluster(self, kind: str, channel: ClusterChannel) -> tuple[int, float]:
        """Return size and frequency of a cluster for a member, asking it only if costs depend on size."""
        if self._sized:
            return len(self.query(kind, channel).members), channel.frequency
        return HIDDEN, channel.frequency

    def members_and_size(self, channel: ClusterChannel) -> tuple[Ints, int]:
        """Return a cluster's members and their number, which is sent to them if costs depend on it.

        The message contains what the cluster knows of its topics.
        """
        if self._sized:
            return self.announce(channel.members), len(channel.members)
        return channel.members.all(), HIDDEN

    def request_channel(self, addresses: ChannelRows) -> ChannelRows:
        """Count a request for a channel and its answer, if channels are limited; return their table."""
        if addresses.limited:
            self.send("cluster", 2)
        return addresses

    def free_channel(self, addresses: ChannelRows) -> ChannelRows:
        """Count the message that a channel is free, if channels are limited; return their table."""
        if addresses.limited:
            self.send("cluster")
        return addresses

    def _sample(self, members: ChannelMembers) -> Ints:
        """Return a random sample of a channel's members, and count a question and an answer for each."""
        size = sample_size(len(members), margin=self._margin, z=self._z)
        self.send("survey", 2 * size)
        return members.sample(size, self._rng)

    def count_having(self, members: ChannelMembers, topic: int) -> int:
        """Estimate from a sample the number of members with a direct subscription to a topic."""
        asked = self._sample(members)
        return _scaled(int(self._peers.having(asked, topic).sum()), len(asked), len(members))

    def count_needing(self, members: ChannelMembers, cluster: int) -> Ints:
        """Estimate from a sample, for each topic, how many members get it from this cluster alone."""
        asked = self._sample(members)
        return _all_scaled(self._peers.needs(asked, cluster), len(asked), len(members))

    def count_elsewhere(self, members: ChannelMembers) -> tuple[Ints, Ints]:
        """Estimate from a sample how many members are in each other cluster, and have each topic directly."""
        asked = self._sample(members)
        return (
            _all_scaled(self._peers.in_clusters(asked), len(asked), len(members)),
            _all_scaled(self._peers.on_topics(asked), len(asked), len(members)),
        )

    def announce(self, members: ChannelMembers) -> Ints:
        """Notify all members of a channel that it has changed; count the messages, and return the members."""
        self.send("cluster", len(members))
        return members.all()


def _scaled(count: int, of: int, members: int) -> int:
    return round(count * members / of) if of else 0


def _all_scaled(counts: Ints, of: int, members: int) -> Ints:
    if of in (0, members):
        return counts
    found: Ints = np.rint(counts * (members / of)).astype(np.int64)
    return found
