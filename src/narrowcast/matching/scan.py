"""Scan matcher: compares every event with every box, as the reference for other matchers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.filters.checks import Checks
from narrowcast.matching.match_queries import MatchQueries, require_fitting, require_subscriptions
from narrowcast.model.matches import Matches

if TYPE_CHECKING:
    import numpy.typing as npt
    from numpy.typing import ArrayLike

    from narrowcast.model.events import EventBatch
    from narrowcast.model.subscriptions import SubscriptionSet

#: (Event, box) pairs compared in one step: a megabyte of flags.
_PAIRS = 1 << 20


class Scan(MatchQueries):
    """Matcher that compares each event with each box, a range of boxes at a time; needs no index.

    Examples
    --------
    >>> import pyarrow as pa, narrowcast as nc
    >>> schema = nc.Schema.of({"price": "double", "name": "string"})
    >>> filters = ["price > 75", "price <= 75 AND name LIKE 'I%'", "name = 'IBM' OR price IS NULL"]
    >>> matcher = Scan().fit(nc.compile_filters(schema, filters).subscriptions)
    >>> table = pa.table({"price": [80.0, 75.0, None], "name": ["SAP", "IBM", "X"]})
    >>> events = nc.EventBatch.from_arrow(table)
    >>> [row.tolist() for row in matcher.match(events)]
    [[0], [1, 2], [2]]
    """

    def fit(self, subscriptions: SubscriptionSet) -> Self:
        """Set the subscriptions, replacing any previous ones."""
        require_subscriptions(subscriptions)
        self._subscriptions = subscriptions
        boxes = subscriptions.boxes
        order = np.argsort(boxes.attribute, kind="stable")
        entry_box, split = (
            boxes.box[order],
            np.searchsorted(boxes.attribute[order], np.arange(len(subscriptions.schema) + 1)),
        )
        self._bounds = [
            (a, entry_box[s], boxes.lo[order[s]], boxes.hi[order[s]])
            for a, s in ((a, slice(split[a], split[a + 1])) for a in range(len(subscriptions.schema)))
            if s.stop > s.start
        ]
        self._checks = Checks(subscriptions.schema, subscriptions.check)
        return self

    @property
    def subscriptions_(self) -> SubscriptionSet:
        """The current subscriptions, in the order of positions in results."""
        if not hasattr(self, "_subscriptions"):
            raise ParameterError("Scan has no subscriptions; call fit first")
        return self._subscriptions

    def add(self, subscriptions: SubscriptionSet) -> Self:
        """Append subscriptions; refuse an id that is in use."""
        return self.fit(self.subscriptions_.concat(subscriptions))

    def remove(self, subscription_id: ArrayLike) -> Self:
        """Remove subscriptions by id; the others keep their order."""
        return self.fit(self.subscriptions_.without(subscription_id))

    def match(self, events: EventBatch) -> Matches:
        """Return for each event the positions of the matching subscriptions."""
        require_fitting(events, self.subscriptions_.schema)
        n_boxes = len(self.subscriptions_.boxes)
        step = max(1, _PAIRS // max(1, n_boxes))
        found = [
            self._block(events, start, min(start + step, len(events)))
            for start in range(0, len(events), step)
        ]
        event = np.concatenate([np.empty(0, np.int64), *(e for e, _ in found)])
        index = np.concatenate([np.empty(0, np.int64), *(s for _, s in found)])
        return Matches.from_pairs(event, index, len(events))

    def _block(
        self, events: EventBatch, start: int, stop: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        boxes = self.subscriptions_.boxes
        inside = np.ones((stop - start, len(boxes)), bool)
        for attribute, box, lo, hi in self._bounds:
            key = events.keys(attribute)[start:stop, None]
            inside[:, box] &= (lo < key) & (key <= hi)
        event, box = np.nonzero(inside)
        event += start
        owner = boxes.owner[box]
        unsure = np.flatnonzero(~boxes.exact[box])
        if len(unsure):
            wrong = unsure[~self._checks.keep(events, event[unsure], owner[unsure])]
            event, owner = np.delete(event, wrong), np.delete(owner, wrong)
        return event, owner
