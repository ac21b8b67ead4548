"""The interface of matchers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from narrowcast.registry import Registry

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from narrowcast.model.events import EventBatch
    from narrowcast.model.matches import Matches
    from narrowcast.model.subscriptions import SubscriptionSet


class Matcher(Protocol):
    """Finds the subscriptions that each event matches; all matchers return the same result as `Scan`."""

    def fit(self, subscriptions: SubscriptionSet) -> Self:
        """Index these subscriptions, replacing any previous ones."""
        ...

    def match(self, events: EventBatch) -> Matches:
        """Return for each event the positions of the matching subscriptions in `subscriptions_`."""
        ...

    def add(self, subscriptions: SubscriptionSet) -> Self:
        """Append subscriptions; refuse an id that is in use."""
        ...

    def remove(self, subscription_id: ArrayLike) -> Self:
        """Remove subscriptions by id; the others keep their order. Refuse an unknown id."""
        ...

    @property
    def subscriptions_(self) -> SubscriptionSet:
        """The current subscriptions, in the order of positions in results."""
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
