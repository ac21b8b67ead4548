"""Subscriptions that came and went since an index was built: few, and applied to it wherever it is."""

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

_NOBODY = pa.table(
    {
        "subscription_id": pa.array([], pa.int64()),
        "subscriber": pa.array([], pa.string()),
        "filter": pa.array([], pa.string()),
    }
)


@dataclass(frozen=True, slots=True)
class IndexChange:
    """What to take out of a set of subscriptions, and then to put in.

    Parameters
    ----------
    removed
        Ids, ascending; those that are not there do not matter.
    added
        Subscriptions, none with an id that stays.

    Examples
    --------
    >>> from narrowcast.model.schema import Schema
    >>> schema = Schema.of({"price": "double"})
    >>> rows = pa.table({"subscription_id": [3, 4], "subscriber": ["a", "b"], "filter": ["price > 75"] * 2})
    >>> new = compile_filters(schema, rows).subscriptions
    >>> change = IndexChange(np.array([0]), new).then(IndexChange(np.array([4, 7]), IndexChange.none(schema).added))
    >>> change.removed.tolist(), change.added.subscription_id.tolist()
    ([0, 4, 7], [3])
    """

    removed: Ints
    added: SubscriptionSet

    @classmethod
    def none(cls, schema: Schema) -> Self:
        """Return a change that changes nothing."""
        return cls(np.zeros(0, np.int64), compile_filters(schema, _NOBODY).subscriptions)

    def then(self, later: IndexChange) -> IndexChange:
        """Return one change instead of two."""
        kept = self.added.without(np.intersect1d(later.removed, self.added.subscription_id))
        return IndexChange(np.union1d(self.removed, later.removed), kept.concat(later.added))

    def of(self, subscriptions: SubscriptionSet) -> SubscriptionSet:
        """Return subscriptions as they are afterwards."""
        gone = np.intersect1d(self.removed, subscriptions.subscription_id)
        return subscriptions.without(gone).concat(self.added)

    def apply(self, matcher: IndexedMatcher) -> IndexedMatcher:
        """Change the subscriptions of a matcher, and return it."""
        gone = np.intersect1d(self.removed, matcher.subscriptions_.subscription_id)
        return matcher.remove(gone).add(self.added)

    def __len__(self) -> int:
        return len(self.removed) + len(self.added)

    def to_bytes(self) -> bytes:
        """Return it as bytes, for `from_bytes`."""
        return (
            len(self.removed).to_bytes(8, "little") + self.removed.astype("<i8").tobytes() + pack(self.added)
        )

    @classmethod
    def from_bytes(cls, packed: bytes, schema: Schema) -> Self:
        """Return the change that `to_bytes` wrote."""
        end = 8 + 8 * int.from_bytes(packed[:8], "little")
        removed = np.frombuffer(packed[8:end], "<i8").astype(np.int64)
        return cls(removed, unpack(packed[end:], schema))
