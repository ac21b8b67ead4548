"""Every message between subscribers and channels, counted by kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.planning.tamara.sampling import sample_size

if TYPE_CHECKING:
    from narrowcast.planning.tamara.channels import Members
    from narrowcast.planning.tamara.peers import Ints, Peers

#: What messages are for; `base` are direct subscriptions and their ends, which there are without clusters.
KINDS = ("base", "notify", "survey", "cluster", "resub")


class Exchange:
    """What channels ask subscribers, and what is told to whom.

    `notify` tells a cluster that a member subscribed or unsubscribed; `survey` is a question to a member, and
    another its answer; `cluster` is what channels tell each other, and clusters their members, when clusters
    change; `resub` is what subscribers send to find a cluster, to join or leave it, and to drop or take up
    direct subscriptions for its sake.

    Parameters
    ----------
    peers
        The subscribers: nobody else holds them but who acts for one of them.
    rng
        Draws samples.
    margin, z
        How good samples are: see `sample_size`.
    """

    __slots__ = ("_margin", "_peers", "_rng", "_z", "sent")

    def __init__(self, peers: Peers, rng: np.random.Generator, *, margin: float, z: float) -> None:
        self._peers = peers
        self._rng = rng
        self._margin, self._z = margin, z
        self.sent = dict.fromkeys(KINDS, 0)

    def send(self, kind: str, count: int = 1) -> None:
        """Count messages."""
        self.sent[kind] += count

    def _asked(self, members: Members) -> Ints:
        """Return a sample of a channel's members, each asked and answering."""
        size = sample_size(len(members), margin=self._margin, z=self._z)
        self.send("survey", 2 * size)
        return members.sample(size, self._rng)

    def having(self, members: Members, topic: int) -> int:
        """Ask members whether they have a topic directly, and return how many of all that makes."""
        asked = self._asked(members)
        return _scaled(int(self._peers.having(asked, topic).sum()), len(asked), len(members))

    def needing(self, members: Members, cluster: int) -> Ints:
        """Ask members what they have from a cluster alone; return, by topic, how many of all that makes."""
        asked = self._asked(members)
        return _all_scaled(self._peers.needs(asked, cluster), len(asked), len(members))

    def elsewhere(self, members: Members) -> tuple[Ints, Ints]:
        """Ask members for their clusters and direct topics; return how many of all have each."""
        asked = self._asked(members)
        return (
            _all_scaled(self._peers.in_clusters(asked), len(asked), len(members)),
            _all_scaled(self._peers.on_topics(asked), len(asked), len(members)),
        )

    def announced(self, members: Members) -> Ints:
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
