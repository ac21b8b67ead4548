"""The seam that every matcher fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from narrowcast.registry import Registry

if TYPE_CHECKING:
    from narrowcast.model.events import EventBatch
    from narrowcast.model.matches import Matches
    from narrowcast.model.subscriptions import SubscriptionSet


class Matcher(Protocol):
    """Finds the subscriptions that each event matches; all matchers give what `scan` gives."""

    def fit(self, subscriptions: SubscriptionSet) -> Self:
        """Take up subscriptions in place of any before."""
        ...

    def match(self, events: EventBatch) -> Matches:
        """Return, for each event, the positions of the subscriptions that it matches."""
        ...


MATCHERS: Registry[type[Matcher]] = Registry("matcher")
