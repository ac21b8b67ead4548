"""Every message between subscribers and channels, counted by kind."""

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

#: What messages are for; `base` are direct subscriptions and their ends, which there are without clusters.
KINDS = ("base", "notify", "survey", "cluster", "resub")

#: In the place of a size that nobody has asked for: no decision hangs on it.
HIDDEN = 0


class MessageCounter:
    """What channels and subscribers ask each other, and what is told to whom.

    `notify` tells a cluster that a member subscribed or unsubscribed; `survey` is a question to a member, and
    another its answer; `cluster` is what channels ask and tell each other, and their members, when clusters
    change or may; `resub` is what subscribers send, and are answered, to find a cluster, to join or leave it,
    and to drop or take up direct subscriptions for its sake.

    Whoever looks at a channel that is not its own does so by a method here. How often a topic has events is
    seen by all who get them, and told with a notification. How many subscribe to it is known to its channel
    alone, and how many are in a cluster to that cluster: where costs hang on that, it is asked for.

    Parameters
    ----------
    peers
        The subscribers: nobody else holds them but who acts for one of them.
    rng
        Draws samples.
    margin, z
        How good samples are: see `sample_size`.
    sized
        Whether costs hang on sizes: see `Local`.
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
        """Count messages."""
        self.sent[kind] += count

    def reached(self, kind: str, channel: Channel) -> Channel:
        """Send a message to a channel, and return it: it acts on the message."""
        self.send(kind)
        return channel

    def asked(self, kind: str, channel: Channel) -> Channel:
        """Ask a channel, and return it: its answer may say all that it knows."""
        self.send(kind, 2)
        return channel

    def passed_on(self, channel: TopicChannel, clusters: Sequence[ClusterChannel]) -> TopicCost:
        """Have a topic's channel pass a subscription on to its clusters, which answer the subscriber.

        What the channel says of itself goes with it, and is returned; answers may say all of the clusters.
        """
        self.send("resub", 2 * len(clusters))
        return channel.described()

    def topics(self, kind: str, channels: Sequence[TopicChannel]) -> list[TopicCost]:
        """Return what whoever gets the events of topics needs to know of them.

        Their sizes cannot be seen: each topic is asked, if costs hang on them.
        """
        if self._sized:
            self.send(kind, 2 * len(channels))
            return [channel.described() for channel in channels]
        return [TopicCost(channel.frequency, HIDDEN) for channel in channels]

    def cluster(self, kind: str, channel: ClusterChannel) -> tuple[int, float]:
        """Return size and frequency of a cluster for one of its members, who asks if costs hang on sizes."""
        if self._sized:
            return len(self.asked(kind, channel).members), channel.frequency
        return HIDDEN, channel.frequency

    def counted(self, channel: ClusterChannel) -> tuple[Ints, int]:
        """Return the members of a cluster and their number, which they are told if costs hang on sizes.

        With it goes what the cluster knows of its topics.
        """
        if self._sized:
            return self.announced(channel.members), len(channel.members)
        return channel.members.all(), HIDDEN

    def applied(self, addresses: ChannelRows) -> ChannelRows:
        """Ask whoever hands out channels, where these are limited; the answer may be a channel."""
        if addresses.limited:
            self.send("cluster", 2)
        return addresses

    def returned(self, addresses: ChannelRows) -> ChannelRows:
        """Tell whoever hands out channels, where these are limited, that one is needed no longer."""
        if addresses.limited:
            self.send("cluster")
        return addresses

    def _sampled(self, members: ChannelMembers) -> Ints:
        """Return a sample of a channel's members, each asked and answering."""
        size = sample_size(len(members), margin=self._margin, z=self._z)
        self.send("survey", 2 * size)
        return members.sample(size, self._rng)

    def having(self, members: ChannelMembers, topic: int) -> int:
        """Ask members whether they have a topic directly, and return how many of all that makes."""
        asked = self._sampled(members)
        return _scaled(int(self._peers.having(asked, topic).sum()), len(asked), len(members))

    def needing(self, members: ChannelMembers, cluster: int) -> Ints:
        """Ask members what they have from a cluster alone; return, by topic, how many of all that makes."""
        asked = self._sampled(members)
        return _all_scaled(self._peers.needs(asked, cluster), len(asked), len(members))

    def elsewhere(self, members: ChannelMembers) -> tuple[Ints, Ints]:
        """Ask members for their clusters and direct topics; return how many of all have each."""
        asked = self._sampled(members)
        return (
            _all_scaled(self._peers.in_clusters(asked), len(asked), len(members)),
            _all_scaled(self._peers.on_topics(asked), len(asked), len(members)),
        )

    def announced(self, members: ChannelMembers) -> Ints:
        """Tell all members of a channel what becomes of it, and return them."""
        self.send("cluster", len(members))
        return members.all()


def _scaled(count: int, of: int, members: int) -> int:
    return round(count * members / of) if of else 0


def _all_scaled(counts: Ints, of: int, members: int) -> Ints:
    if of in (0, members):
        return counts
    found: Ints = np.rint(counts * (members / of)).astype(np.int64)
    return found
