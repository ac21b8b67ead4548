"""The state of subscribers in Tamara: interests, direct subscriptions, and clusters of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from narrowcast.kernels.peers import needed, tally, worth

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words: TypeAlias = NDArray[np.uint64]
    Ints: TypeAlias = NDArray[np.int64]
    Doubles: TypeAlias = NDArray[np.float64]


class BitRelation:
    """A relation of rows and columns with one bit per pair, to which rows and columns can be added."""

    __slots__ = ("words",)

    def __init__(self, rows: int = 1, columns: int = 1) -> None:
        self.words: Words = np.zeros((max(rows, 1), (max(columns, 1) + 63) // 64), np.uint64)

    @property
    def columns(self) -> int:
        """Number of columns for which space is allocated."""
        return 64 * int(self.words.shape[1])

    def grow(self, rows: int, columns: int) -> None:
        """Allocate space for rows and columns, at least twice the previous space, so that this is rare."""
        have_rows, have_words = self.words.shape
        words = (columns + 63) // 64
        if rows > have_rows or words > have_words:
            more = np.zeros(
                (have_rows if rows <= have_rows else max(rows, 2 * have_rows),
                 have_words if words <= have_words else max(words, 2 * have_words)),
                np.uint64,
            )  # fmt: skip
            more[:have_rows, :have_words] = self.words
            self.words = more

    def has(self, row: int, column: int) -> bool:
        """Return whether the relation contains a pair of row and column."""
        return bool(int(self.words[row, column >> 6]) >> (column & 63) & 1)

    def put(self, row: int, column: int) -> None:
        """Add a pair of row and column to the relation."""
        self.words[row, column >> 6] |= np.uint64(1 << (column & 63))

    def clear(self, row: int, column: int) -> None:
        """Remove a pair of row and column from the relation."""
        self.words[row, column >> 6] &= ~np.uint64(1 << (column & 63))

    def of(self, row: int) -> list[int]:
        """Return the columns of a row, ascending."""
        return columns_of(self.words[row])


def columns_of(words: Words) -> list[int]:
    """Return the positions of the bits that are set in a row of words."""
    found: list[int] = np.unpackbits(words.view(np.uint8), bitorder="little").nonzero()[0].tolist()
    return found


class SubscriberPeers:
    """The interests, direct subscriptions and clusters of all subscribers, and the topics of clusters.

    The rows of a subscriber may be read by that subscriber, or after a message to it: `MessageCounter` makes
    sure of the latter.
    """

    __slots__ = ("direct", "interests", "joined", "topics")

    def __init__(self, subscribers: int = 0, topics: int = 0) -> None:
        self.interests = BitRelation(subscribers, topics)
        self.direct = BitRelation(subscribers, topics)
        self.joined = BitRelation(subscribers, 64)
        #: The topics of each cluster, as its members have been notified.
        self.topics = BitRelation(64, topics)

    def grow(self, subscribers: int, topics: int, clusters: int) -> None:
        """Allocate space for the given numbers of subscribers, topics and clusters."""
        for each in (self.interests, self.direct):
            each.grow(subscribers, topics)
        self.joined.grow(subscribers, clusters)
        self.topics.grow(clusters, topics)

    def clusters_of(self, peer: int) -> list[int]:
        """Return the clusters of a subscriber."""
        return self.joined.of(peer)

    def gets(self, peer: int, topic: int) -> bool:
        """Return whether a subscriber gets a topic from a cluster it is a member of."""
        mine = self.clusters_of(peer)
        return bool(mine) and bool(
            (self.topics.words[mine, topic >> 6] >> np.uint64(topic & 63) & np.uint64(1)).any()
        )

    def overlaps(self, peer: int, clusters: list[int]) -> Ints:
        """Return, for each of some clusters, how many of a subscriber's direct subscriptions it replaces."""
        common = self.direct.words[peer] & self.topics.words[clusters]
        found: Ints = np.bitwise_count(common).sum(axis=1, dtype=np.int64)
        return found

    def taken_over(self, peer: int, cluster: int) -> list[int]:
        """Return the direct subscriptions of a subscriber that a cluster replaces."""
        return columns_of(self.direct.words[peer] & self.topics.words[cluster])

    def overlapping(self, peers: Ints, cluster: int) -> NDArray[np.bool_]:
        """Return flags of the members with a direct subscription to a topic of their cluster as well."""
        return np.asarray((self.direct.words[peers] & self.topics.words[cluster]).any(axis=1), np.bool_)

    def unwanted(self, peer: int, clusters: list[int]) -> Ints:
        """Return, for each of some clusters, how many of its topics the subscriber does not want."""
        words = self.topics.words[clusters] & ~self.interests.words[peer]
        found: Ints = np.bitwise_count(words).sum(axis=1, dtype=np.int64)
        return found

    def needs(self, peers: Ints, cluster: int) -> Ints:
        """Return for each topic the number of members that want it and get it from this cluster alone."""
        counts = np.zeros(self.interests.columns, np.int64)
        needed(self.interests.words, self.joined.words, self.topics.words, peers, cluster, counts)
        return counts

    def need(self, peer: int, cluster: int) -> list[int]:
        """Return the topics that a member wants and gets from this cluster alone."""
        found: list[int] = np.flatnonzero(self.needs(np.array([peer]), cluster)).tolist()
        return found

    def worth(self, peers: Ints, cluster: int, weight: Doubles) -> Doubles:
        """Return, for each member, the sum of `weight` over the topics it gets from this cluster alone."""
        found = np.zeros(len(peers))
        padded = np.zeros(self.interests.columns)
        padded[: len(weight)] = weight
        words = (self.interests.words, self.joined.words, self.topics.words)
        worth(*words, peers, cluster, padded, found)
        return found

    def having(self, peers: Ints, topic: int) -> NDArray[np.bool_]:
        """Return flags of the subscribers that have a direct subscription to a topic."""
        bit = self.direct.words[peers, topic >> 6] >> np.uint64(topic & 63) & np.uint64(1)
        return np.asarray(bit, np.bool_)

    def in_clusters(self, peers: Ints) -> Ints:
        """Return, for each cluster, how many of the given subscribers are members."""
        counts = np.zeros(self.joined.columns, np.int64)
        tally(self.joined.words, peers, counts)
        return counts

    def on_topics(self, peers: Ints) -> Ints:
        """Return, for each topic, how many of the given subscribers have a direct subscription."""
        counts = np.zeros(self.direct.columns, np.int64)
        tally(self.direct.words, peers, counts)
        return counts
