"""The seam that every matcher fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from narrowcast.registry import Registry

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from narrowcast.model.events import EventBatch
    from narrowcast.model.matches import Matches
    from narrowcast.model.subscriptions import SubscriptionSet


class Matcher(Protocol):
    """Finds the subscriptions that each event matches; all matchers give what `scan` gives."""

    def fit(self, subscriptions: SubscriptionSet) -> Self:
        """Take up subscriptions in place of any before."""
        ...

    def match(self, events: EventBatch) -> Matches:
        """Return, for each event, the positions in `subscriptions_` of those that it matches."""
        ...

    def add(self, subscriptions: SubscriptionSet) -> Self:
        """Take up more subscriptions behind those there are; an id that is there already is an error."""
        ...

    def remove(self, subscription_id: ArrayLike) -> Self:
        """Drop subscriptions by id; the others keep their order. An unknown id is an error."""
        ...

    @property
    def subscriptions_(self) -> SubscriptionSet:
        """The subscriptions as they are now."""
        ...


#: Matchers by name.
MATCHERS: Registry[type[Matcher]] = Registry(
    "matcher",
    {
        "auto": "narrowcast.matching.auto:AutoMatcher",
        "bitmap": "narrowcast.matching.bitmap:Bitmap",
        "cobas": "narrowcast.lab.cobas.matcher:Cobas",
        "grid": "narrowcast.matching.grid:Grid",
        "hilbert": "narrowcast.lab.trees.hilbert:Hilbert",
        "scan": "narrowcast.matching.scan:Scan",
        "stree": "narrowcast.lab.trees.stree:STree",
        "topics": "narrowcast.matching.topics:Topics",
    },
    group="narrowcast.matchers",
)
