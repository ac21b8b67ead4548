"""All messages of a stretch of events, and what one that is wanted costs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, TypeAlias, get_args

from narrowcast.errors import ParameterError

__all__ = ["VARIANTS", "ClusterTraffic", "EventDelivery", "Variant"]

#: How events go on inside a cluster: to every member, or only where somebody below wants them.
Variant: TypeAlias = Literal["flooding", "forwarding"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)


class _Sum:
    """Numbers by name, which add up one by one."""

    __slots__ = ()

    def __add__(self, other: Self) -> Self:
        names = [each.name for each in fields(self)]  # type: ignore[arg-type]
        return type(self)(*(getattr(self, name) + getattr(other, name) for name in names))


@dataclass(frozen=True, slots=True)
class EventDelivery(_Sum):
    """What one variant takes to bring events to members.

    Parameters
    ----------
    receptions
        Messages that bring an event to a member of a cluster; who is in two clusters may get it twice.
    reached
        Pairs of event and peer such that the peer got the event, once or more often.
    offered
        Pairs of event and subscription such that the event came to the subscription's peer in the
        subscription's own cluster.
    updates
        Messages that say what is wanted. By flooding each member tells the top of its cluster. By forwarding
        each member tells its parent what is wanted by itself and all below it. Both again when that changes,
        or who is to be told. In an R-tree, boxes that have become smaller; all else is told on the way.
    """

    receptions: int = 0
    reached: int = 0
    offered: int = 0
    updates: int = 0


@dataclass(frozen=True, slots=True)
class ClusterTraffic(_Sum):
    """The messages while some events pass; those of stretches add up.

    Parameters
    ----------
    events
        How many events.
    matches, peer_matches
        Pairs of event and subscription, or peer, such that the event is wanted.
    flooding, forwarding
        What both variants take, on the same trees.
    heartbeat, join, leave, split, merge
        Messages that keep the hierarchies of clusters: see `Nice` and `Upkeep`; or an R-tree: see `BoxTree`.
    organisation
        Messages that keep the groups in which coordinates are found, for methods that have such groups.
    clustering, clustering_bytes
        Messages that carry histories, landmarks, coordinates, centres and clusters, and how large they are;
        also those by which a new subscription finds its cluster.
    moves
        How many times a subscription changed its cluster because of new ones; the messages are among those
        of join and leave.
    computed, installed, refreshed
        How many times clusters were computed, how many of these were put to use, and how many times
        coordinates were refreshed instead.

    Examples
    --------
    >>> one = ClusterTraffic(events=1, matches=4, flooding=EventDelivery(6, 6, 6), join=2)
    >>> both = one + one
    >>> both.control("flooding"), both.notification_cost("flooding"), both.false_positives("flooding")
    (4, 2.0, 4)
    """

    events: int = 0
    matches: int = 0
    peer_matches: int = 0
    flooding: EventDelivery = field(default_factory=EventDelivery)
    forwarding: EventDelivery = field(default_factory=EventDelivery)
    heartbeat: int = 0
    join: int = 0
    leave: int = 0
    split: int = 0
    merge: int = 0
    organisation: int = 0
    clustering: int = 0
    clustering_bytes: int = 0
    moves: int = 0
    computed: int = 0
    installed: int = 0
    refreshed: int = 0

    def delivery(self, variant: Variant) -> EventDelivery:
        """Return what a variant takes."""
        if variant not in VARIANTS:
            raise ParameterError(parameter="variant", value=variant, limit=f"one of {', '.join(VARIANTS)}")
        return self.flooding if variant == "flooding" else self.forwarding

    @property
    def upkeep(self) -> int:
        """Messages that keep the hierarchies of clusters."""
        return self.heartbeat + self.join + self.leave + self.split + self.merge

    def control(self, variant: Variant) -> int:
        """Return all messages that bring no event."""
        return self.upkeep + self.organisation + self.clustering + self.delivery(variant).updates

    def notification_cost(self, variant: Variant) -> float:
        """Return all messages by the number of matches (tariq2012, section 6.3)."""
        sent = self.delivery(variant).receptions + self.control(variant)
        if self.matches:
            return sent / self.matches
        return math.inf if sent else 0.0

    def false_positives(self, variant: Variant, *, peers: bool = False) -> int:
        """Return pairs of event and subscription such that the event came in vain.

        Parameters
        ----------
        variant
            Which variant.
        peers
            Whether pairs are of events and peers; who has one subscription that matches gets it for that.
        """
        found = self.delivery(variant)
        return found.reached - self.peer_matches if peers else found.offered - self.matches

    def flat(self) -> dict[str, Any]:
        """Return all numbers by name, those of variants with the variant before it."""
        found: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, EventDelivery):
                found |= {f"{each.name}_{one.name}": getattr(value, one.name) for one in fields(value)}
            else:
                found[each.name] = value
        return found
