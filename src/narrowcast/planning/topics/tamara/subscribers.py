"""What subscribers know of themselves: wants, direct subscriptions, and the clusters that they are in."""

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
    """A relation that grows: a bit for each row and column."""

    __slots__ = ("words",)

    def __init__(self, rows: int = 1, columns: int = 1) -> None:
        self.words: Words = np.zeros((max(rows, 1), (max(columns, 1) + 63) // 64), np.uint64)

    @property
    def columns(self) -> int:
        """How many columns there is room for."""
        return 64 * int(self.words.shape[1])

    def grow(self, rows: int, columns: int) -> None:
        """Make room for so many rows and columns; it doubles, so that this is rare."""
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
        """Return whether a bit is set."""
        return bool(int(self.words[row, column >> 6]) >> (column & 63) & 1)

    def put(self, row: int, column: int) -> None:
        """Set a bit."""
        self.words[row, column >> 6] |= np.uint64(1 << (column & 63))

    def clear(self, row: int, column: int) -> None:
        """Clear a bit."""
        self.words[row, column >> 6] &= ~np.uint64(1 << (column & 63))

    def of(self, row: int) -> list[int]:
        """Return the columns of a row, in order."""
        return columns_of(self.words[row])


def columns_of(words: Words) -> list[int]:
    """Return the places of the bits that are set."""
    found: list[int] = np.unpackbits(words.view(np.uint8), bitorder="little").nonzero()[0].tolist()
    return found


class SubscriberPeers:
    """Subscribers by number. Each knows its own rows here, and the topics of the clusters that it is in.

    Who asks for the row of a subscriber is either that subscriber, or has sent it a message: `Exchange` sees
    to the latter.
    """

    __slots__ = ("direct", "interests", "joined", "topics")

    def __init__(self, subscribers: int = 0, topics: int = 0) -> None:
        self.interests = BitRelation(subscribers, topics)
        self.direct = BitRelation(subscribers, topics)
        self.joined = BitRelation(subscribers, 64)
        #: Cluster by cluster, its topics, as its members have been told.
        self.topics = BitRelation(64, topics)

    def grow(self, subscribers: int, topics: int, clusters: int) -> None:
        """Make room."""
        for each in (self.interests, self.direct):
            each.grow(subscribers, topics)
        self.joined.grow(subscribers, clusters)
        self.topics.grow(clusters, topics)

    def clusters_of(self, peer: int) -> list[int]:
        """Return the clusters that a subscriber is in."""
        return self.joined.of(peer)

    def gets(self, peer: int, topic: int) -> bool:
        """Return whether a subscriber has a topic from one of its clusters."""
        mine = self.clusters_of(peer)
        return bool(mine) and bool(
            (self.topics.words[mine, topic >> 6] >> np.uint64(topic & 63) & np.uint64(1)).any()
        )

    def overlaps(self, peer: int, clusters: list[int]) -> Ints:
        """Return how many direct subscriptions of a subscriber each of some clusters would take over."""
        common = self.direct.words[peer] & self.topics.words[clusters]
        found: Ints = np.bitwise_count(common).sum(axis=1, dtype=np.int64)
        return found

    def taken_over(self, peer: int, cluster: int) -> list[int]:
        """Return the direct subscriptions of a subscriber that a cluster has."""
        return columns_of(self.direct.words[peer] & self.topics.words[cluster])

    def overlapping(self, peers: Ints, cluster: int) -> NDArray[np.bool_]:
        """Return which of some members have a topic of their cluster directly as well."""
        return np.asarray((self.direct.words[peers] & self.topics.words[cluster]).any(axis=1), np.bool_)

    def unwanted(self, peer: int, clusters: list[int]) -> Ints:
        """Return how many topics of each of its clusters a subscriber filters out."""
        words = self.topics.words[clusters] & ~self.interests.words[peer]
        found: Ints = np.bitwise_count(words).sum(axis=1, dtype=np.int64)
        return found

    def needs(self, peers: Ints, cluster: int) -> Ints:
        """Return, for each topic, how many of some members want it and have it from this cluster alone."""
        counts = np.zeros(self.interests.columns, np.int64)
        needed(self.interests.words, self.joined.words, self.topics.words, peers, cluster, counts)
        return counts

    def need(self, peer: int, cluster: int) -> list[int]:
        """Return what a member wants and has from this cluster alone."""
        found: list[int] = np.flatnonzero(self.needs(np.array([peer]), cluster)).tolist()
        return found

    def worth(self, peers: Ints, cluster: int, weight: Doubles) -> Doubles:
        """Return, for each of some members, the sum of weights of what it has from this cluster alone."""
        found = np.zeros(len(peers))
        padded = np.zeros(self.interests.columns)
        padded[: len(weight)] = weight
        words = (self.interests.words, self.joined.words, self.topics.words)
        worth(*words, peers, cluster, padded, found)
        return found

    def having(self, peers: Ints, topic: int) -> NDArray[np.bool_]:
        """Return which of some subscribers have a topic directly."""
        bit = self.direct.words[peers, topic >> 6] >> np.uint64(topic & 63) & np.uint64(1)
        return np.asarray(bit, np.bool_)

    def in_clusters(self, peers: Ints) -> Ints:
        """Return, for each cluster, how many of some subscribers are in it."""
        counts = np.zeros(self.joined.columns, np.int64)
        tally(self.joined.words, peers, counts)
        return counts

    def on_topics(self, peers: Ints) -> Ints:
        """Return, for each topic, how many of some subscribers have it directly."""
        counts = np.zeros(self.direct.columns, np.int64)
        tally(self.direct.words, peers, counts)
        return counts
