"""A change of an index: subscriptions removed and added since the index was built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa

from narrowcast.filters.subscriptions import compile_filters
from narrowcast.spark.stages.compile import pack, unpack

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.matching.indexed_matcher import IndexedMatcher
    from narrowcast.model.schema import Schema
    from narrowcast.model.subscriptions import SubscriptionSet

    Ints = NDArray[np.int64]

_NO_SUBSCRIPTIONS = pa.table(
    {
        "subscription_id": pa.array([], pa.int64()),
        "subscriber": pa.array([], pa.string()),
        "filter": pa.array([], pa.string()),
    }
)


@dataclass(frozen=True, slots=True)
class IndexChange:
    """Subscriptions to remove from a set or an index, and subscriptions to add afterwards.

    Parameters
    ----------
    removed
        Ids of subscriptions, ascending; unknown ids are ignored.
    added
        Subscriptions; their ids must not be in use after the removal.

    Examples
    --------
    >>> from narrowcast.model.schema import Schema
    >>> schema = Schema.of({"price": "double"})
    >>> rows = pa.table({"subscription_id": [3, 4], "subscriber": ["a", "b"], "filter": ["price > 75"] * 2})
    >>> new = compile_filters(schema, rows).subscriptions
    >>> later = IndexChange(np.array([4, 7]), IndexChange.none(schema).added)
    >>> change = IndexChange(np.array([0]), new).then(later)
    >>> change.removed.tolist(), change.added.subscription_id.tolist()
    ([0, 4, 7], [3])
    """

    removed: Ints
    added: SubscriptionSet

    @classmethod
    def none(cls, schema: Schema) -> Self:
        """Return an empty change."""
        return cls(np.zeros(0, np.int64), compile_filters(schema, _NO_SUBSCRIPTIONS).subscriptions)

    def then(self, later: IndexChange) -> IndexChange:
        """Return one change that is equivalent to this change followed by a later one."""
        remaining = self.added.without(np.intersect1d(later.removed, self.added.subscription_id))
        return IndexChange(np.union1d(self.removed, later.removed), remaining.concat(later.added))

    def apply_to(self, subscriptions: SubscriptionSet) -> SubscriptionSet:
        """Return the subscriptions after the change."""
        gone = np.intersect1d(self.removed, subscriptions.subscription_id)
        return subscriptions.without(gone).concat(self.added)

    def apply(self, matcher: IndexedMatcher) -> IndexedMatcher:
        """Apply the change to a matcher in place, and return the matcher."""
        gone = np.intersect1d(self.removed, matcher.subscriptions_.subscription_id)
        return matcher.remove(gone).add(self.added)

    def __len__(self) -> int:
        return len(self.removed) + len(self.added)

    def to_bytes(self) -> bytes:
        """Encode the change for `from_bytes`."""
        return (
            len(self.removed).to_bytes(8, "little") + self.removed.astype("<i8").tobytes() + pack(self.added)
        )

    @classmethod
    def from_bytes(cls, packed: bytes, schema: Schema) -> Self:
        """Decode a change that `to_bytes` encoded."""
        end = 8 + 8 * int.from_bytes(packed[:8], "little")
        removed = np.frombuffer(packed[8:end], "<i8").astype(np.int64)
        return cls(removed, unpack(packed[end:], schema))
