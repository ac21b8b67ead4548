"""Members and trees of clusters, and the members that events reach."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.lab.clusters.traffic import ClusterTraffic, EventDelivery

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.lab.clusters.traffic import Variant

    Bools = NDArray[np.bool_]
    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Hashes = NDArray[np.uint64]

__all__ = ["ClusterTrees"]

#: Largest number of pairs of events and members in a block.
_BLOCK = 1 << 22


@dataclass(frozen=True, eq=False)
class ClusterTrees:
    """The trees of all clusters at one time. A member is a peer in one cluster.

    Parameters
    ----------
    cluster, peer
        For each member the number of its cluster and of its peer; ordered by cluster, then by peer.
    parent
        For each member the number of the member that it gets events from, -1 for the top of a cluster.
    member
        For each subscription the member that it belongs to, -1 for an inactive one.
    n_peers
        Number of peers, active or not.

    Examples
    --------
    >>> cluster, peer, parent = np.array([0, 0, 0]), np.array([0, 1, 2]), np.array([-1, 0, 1])
    >>> trees = ClusterTrees(cluster, peer, parent, np.array([0, 1, 2]), 3)
    >>> found = trees.sent(np.array([0, 1]), np.array([0, 1]), 2)  # an event for the top, one for its child
    >>> found.matches, found.flooding.receptions, found.forwarding.receptions
    (2, 6, 3)
    """

    cluster: Ints
    peer: Ints
    parent: Ints
    member: Ints
    n_peers: int

    @property
    def n_members(self) -> int:
        """The number of members of all clusters."""
        return len(self.cluster)

    @cached_property
    def n_clusters(self) -> int:
        """The number of clusters, including empty ones."""
        return int(self.cluster.max(initial=-1)) + 1

    @cached_property
    def subscriptions(self) -> Ints:
        """The number of subscriptions of each member."""
        return np.bincount(self.member[self.member >= 0], minlength=self.n_members)

    @cached_property
    def top(self) -> Ints:
        """For each member the top of its cluster."""
        found = np.full(self.n_clusters, -1)
        tops = np.flatnonzero(self.parent < 0)
        found[self.cluster[tops]] = tops
        return found[self.cluster]

    @cached_property
    def _by_peer(self) -> tuple[Ints, Ints]:
        """Members ordered by peer, and the first position of each active peer."""
        order = np.argsort(self.peer, kind="stable")
        return order, np.flatnonzero(np.diff(self.peer[order], prepend=-1))

    def blocks(self, n_events: int) -> list[tuple[int, int]]:
        """Return runs of events that are processed together."""
        size = max(1, _BLOCK // max(self.n_members, 1))
        return [(start, min(start + size, n_events)) for start in range(0, n_events, size)]

    def gets(
        self,
        event: Ints,
        subscription: Ints,
        n_events: int,
        variant: Variant,
        points: Doubles | None = None,  # noqa: ARG002
    ) -> Bools:
        """Return which member gets which event, a row for each event.

        Parameters
        ----------
        event, subscription
            Pairs such that the event matches the subscription, which is active.
        n_events
            Number of events, numbered from 0.
        variant
            By `flooding` all members of a cluster get an event that matches one of its subscriptions; by
            `forwarding` only members with a matching subscription, and those between the top and them.
        points
            Coordinates of events, unused here.
        """
        wants = self.member[subscription]
        if variant == "flooding":
            hit = np.zeros((n_events, self.n_clusters), np.bool_)
            hit[event, self.cluster[wants]] = True
            return np.asarray(hit[:, self.cluster])
        found = np.zeros((n_events, self.n_members), np.bool_)
        while len(wants):
            found[event, wants] = True
            wants = self.parent[wants]
            event, wants = event[wants >= 0], wants[wants >= 0]
        return found

    def peers(self, gets: Bools) -> Bools:
        """Return which of the active peers, in their order, gets which event, given the same for members."""
        order, start = self._by_peer
        if len(start) == 0:
            return np.zeros((len(gets), 0), np.bool_)
        found: Bools = np.logical_or.reduceat(gets[:, order], start, axis=1)
        return found

    def sent(
        self, event: Ints, subscription: Ints, n_events: int, points: Doubles | None = None
    ) -> ClusterTraffic:
        """Return the traffic of events by both variants, without control messages.

        Parameters
        ----------
        event, subscription, n_events, points
            As for `gets`, events in order.
        """
        total = ClusterTraffic(events=n_events, matches=len(event))
        for start, stop in self.blocks(n_events):
            some = slice(*np.searchsorted(event, [start, stop]))
            here = event[some] - start, subscription[some], stop - start
            wants = np.zeros((stop - start, self.n_members), np.bool_)
            wants[here[0], self.member[here[1]]] = True
            where = None if points is None else points[start:stop]
            total += ClusterTraffic(
                peer_matches=int(np.count_nonzero(self.peers(wants))),
                flooding=self._delivery(self.gets(*here, "flooding", where)),
                forwarding=self._delivery(self.gets(*here, "forwarding", where)),
            )
        return total

    def _delivery(self, gets: Bools) -> EventDelivery:
        """Return the number of members, peers and subscriptions that events reach."""
        copies = np.count_nonzero(gets, axis=0)
        receptions = int(copies.sum())
        single = len(self._by_peer[1]) == self.n_members
        reached = receptions if single else int(np.count_nonzero(self.peers(gets)))
        return EventDelivery(receptions, reached, int(copies @ self.subscriptions))

    def updates(self, before: ClusterTrees) -> tuple[int, int]:
        """Return the number of messages that carry interest, by variant: see `EventDelivery.updates`.

        Parameters
        ----------
        before
            The trees until now. All changes of a member at one time are in one message.
        """
        if before is self:
            return 0, 0
        own, below = self._hashes
        was_own, was_below = before._hashes
        at = np.searchsorted(before._code, self._code)
        at = np.minimum(at, max(before.n_members - 1, 0))
        active = before._code[at] == self._code if before.n_members else np.zeros(self.n_members, np.bool_)
        below_top = self.parent >= 0

        def changed(now: Hashes, was: Hashes, receiver: Ints, was_receiver: Ints) -> int:
            if before.n_members == 0:
                return int(np.count_nonzero(below_top))
            to, to_before = self.peer[receiver], before.peer[was_receiver[at]]
            same = active & (now == was[at]) & (to == to_before) & (before.parent[at] >= 0)
            return int(np.count_nonzero(below_top & ~same))

        return (
            changed(own, was_own, self.top, before.top),
            changed(below, was_below, self.parent, before.parent),
        )

    @cached_property
    def _code(self) -> Ints:
        """A number that each member keeps while it is in its cluster; ascending."""
        return self.cluster * self.n_peers + self.peer

    @cached_property
    def _hashes(self) -> tuple[Hashes, Hashes]:
        """A hash of the subscriptions of each member, and one of these and all below it."""
        key = np.random.default_rng(0).integers(0, 2**63, len(self.member), np.uint64)
        active = self.member >= 0
        own = np.zeros(self.n_members, np.uint64)
        np.add.at(own, self.member[active], key[active])  # wraps, as a hash may
        below = own.copy()
        at, above = np.arange(self.n_members), self.parent
        while len(at):
            at, above = at[above >= 0], above[above >= 0]
            np.add.at(below, above, own[at])
            above = self.parent[above]
        return own, below
