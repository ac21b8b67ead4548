"""The messages of a stretch of events, and their cost per wanted event."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, TypeAlias, get_args

from narrowcast.errors import ParameterError

__all__ = ["VARIANTS", "ClusterTraffic", "EventDelivery", "Variant"]

#: How events are delivered inside a cluster: to every member, or only to branches with a matching
#: subscription.
Variant: TypeAlias = Literal["flooding", "forwarding"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)


class _Sum:
    """Named numbers that are added one by one."""

    __slots__ = ()

    def __add__(self, other: Self) -> Self:
        names = [each.name for each in fields(self)]  # type: ignore[arg-type]
        return type(self)(*(getattr(self, name) + getattr(other, name) for name in names))


@dataclass(frozen=True, slots=True)
class EventDelivery(_Sum):
    """The delivery of events to members by one variant.

    Parameters
    ----------
    receptions
        Messages that bring an event to a member of a cluster; a peer in two clusters may get an event twice.
    reached
        Pairs of event and peer such that the peer got the event, at least once.
    offered
        Pairs of event and subscription such that the event reached the subscription's peer in the
        subscription's own cluster.
    updates
        Messages that carry interest. By flooding each member sends its interest to the top of its cluster. By
        forwarding each member sends its parent the interest of itself and all below it. Both are sent again
        when the interest or the receiver changes. In an R-tree, messages about boxes that have become
        smaller; all other changes are sent with the messages of joining and leaving.
    """

    receptions: int = 0
    reached: int = 0
    offered: int = 0
    updates: int = 0


@dataclass(frozen=True, slots=True)
class ClusterTraffic(_Sum):
    """The messages during some events; those of several stretches can be added.

    Parameters
    ----------
    events
        Number of events.
    matches, peer_matches
        Pairs of event and subscription, or event and peer, such that the event is wanted.
    flooding, forwarding
        The delivery by both variants, on the same trees.
    heartbeat, join, leave, split, merge
        Messages that maintain the hierarchies of clusters: see `Nice` and `NiceUpkeep`; or an R-tree: see
        `BoxTree`.
    organisation
        Messages that maintain the groups in which coordinates are computed, for methods with such groups.
    clustering, clustering_bytes
        Number and size of messages that carry histories, landmarks, coordinates, centres and clusters;
        including those by which a new subscription finds its cluster.
    moves
        Number of times a subscription changed its cluster because of new clusters; the messages are among
        those of join and leave.
    computed, installed, refreshed
        Number of times that clusters were computed, that computed clusters were installed, and that
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
        """Return the delivery by a variant."""
        if variant not in VARIANTS:
            raise ParameterError(parameter="variant", value=variant, limit=f"one of {', '.join(VARIANTS)}")
        return self.flooding if variant == "flooding" else self.forwarding

    @property
    def upkeep(self) -> int:
        """Messages that maintain the hierarchies of clusters."""
        return self.heartbeat + self.join + self.leave + self.split + self.merge

    def control(self, variant: Variant) -> int:
        """Return the number of all messages that carry no event."""
        return self.upkeep + self.organisation + self.clustering + self.delivery(variant).updates

    def notification_cost(self, variant: Variant) -> float:
        """Return the number of all messages divided by the number of matches (tariq2012, section 6.3)."""
        sent = self.delivery(variant).receptions + self.control(variant)
        if self.matches:
            return sent / self.matches
        return math.inf if sent else 0.0

    def false_positives(self, variant: Variant, *, peers: bool = False) -> int:
        """Return the number of pairs of event and subscription such that an unwanted event arrived.

        Parameters
        ----------
        variant
            The variant.
        peers
            Whether to count pairs of event and peer; an event is wanted by a peer if one of its subscriptions
            matches.
        """
        found = self.delivery(variant)
        return found.reached - self.peer_matches if peers else found.offered - self.matches

    def flat(self) -> dict[str, Any]:
        """Return all numbers by name, those of variants prefixed by the variant."""
        found: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, EventDelivery):
                found |= {f"{each.name}_{one.name}": getattr(value, one.name) for one in fields(value)}
            else:
                found[each.name] = value
        return found
