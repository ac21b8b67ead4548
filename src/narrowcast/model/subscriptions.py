"""Subscription sets: filters as boxes in columns, each owned by a subscriber."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from narrowcast.errors import InputError, TableError
from narrowcast.model import keys
from narrowcast.model.boxes import Boxes
from narrowcast.model.labels import encode
from narrowcast.model.types import DataType

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from narrowcast.model.schema import Schema


@dataclass(frozen=True, slots=True, eq=False)
class SubscriptionSet:
    """Subscriptions of one schema; each is a union of boxes and belongs to a subscriber.

    Parameters
    ----------
    schema
        The attributes that the boxes bound.
    subscription_id
        Distinct id of each subscription.
    subscriber
        The position in `subscribers` of each subscription's subscriber.
    subscribers
        The names of the subscribers.
    boxes
        Half-open boxes over keys, each owned by a subscription.
    check
        For each subscription the filter to check again on events in its boxes, or null where the boxes are
        exact.

    Examples
    --------
    >>> from narrowcast.model.schema import Schema
    >>> prices = Schema.of({"price": "double"})
    >>> low, high = [[75], [-np.inf], [0]], [[80], [9], [0]]
    >>> s = SubscriptionSet.from_boxes(prices, ["ann", "bob", "ann"], low, high)
    >>> len(s), s.subscribers.to_pylist(), s.boxes.counts.tolist()
    (3, ['ann', 'bob'], [1, 1, 0])
    """

    schema: Schema
    subscription_id: npt.NDArray[np.int64]
    subscriber: npt.NDArray[np.int32]
    subscribers: pa.Array
    boxes: Boxes
    check: pa.Array

    def __post_init__(self) -> None:
        for name in ("subscription_id", "subscriber"):
            column = getattr(self, name).view()
            column.flags.writeable = False
            object.__setattr__(self, name, column)
        if self.check.type != pa.string():
            object.__setattr__(self, "check", self.check.cast(pa.string()))
        n = len(self.subscription_id)
        if not n == len(self.subscriber) == len(self.check) == self.boxes.n_owners:
            raise InputError(
                f"{n} subscription ids, {len(self.subscriber)} subscribers, {len(self.check)} checks and "
                f"boxes of {self.boxes.n_owners} owners: must be one of each per subscription"
            )
        if (self.subscription_id[1:] > self.subscription_id[:-1]).all():
            return
        unique, counts = np.unique(self.subscription_id, return_counts=True)
        if len(unique) < n:
            raise InputError(
                f"subscription_id={unique[counts > 1][0]} is used twice: must be distinct",
                parameter="subscription_id",
                value=int(unique[counts > 1][0]),
            )

    @classmethod
    def from_boxes(
        cls,
        schema: Schema,
        subscriber: pa.Array | list[str] | npt.NDArray[np.str_],
        lo: npt.ArrayLike,
        hi: npt.ArrayLike,
        subscription_id: npt.ArrayLike | None = None,
    ) -> SubscriptionSet:
        """Build one subscription per box (lo, hi] of values, for schemas whose attributes are all doubles.

        An infinite end means no bound on that side; an attribute without any bound may be null. A box with an
        empty range, such as (80, 80], contains no event. A NaN end is refused.
        """
        try:
            lows, highs = np.asarray(lo, np.float64), np.asarray(hi, np.float64)
        except ValueError as error:
            raise InputError(f"lo and hi: must be numbers, one row per box: {error}") from error
        who = pa.array(subscriber, pa.string())
        if who.null_count:
            raise InputError(
                f"subscriber is null in {who.null_count} boxes; name each", parameter="subscriber"
            )
        d = len(schema)
        wrong = [name for name, t in zip(schema.names, schema.types, strict=True) if t.name != "double"]
        if lows.ndim != 2 or lows.shape != highs.shape or lows.shape[1] != d or len(subscriber) != len(lows):
            raise InputError(
                f"lo has shape {lows.shape}, hi has shape {highs.shape}: both must be "
                f"({len(subscriber)}, {d}), subscribers x attributes"
            )
        if wrong:
            raise InputError(
                f"attribute {wrong[0]!r} has type {schema[wrong[0]]}: must be double", parameter=wrong[0]
            )
        if np.isnan(lows).any() or np.isnan(highs).any():
            i, j = np.argwhere(np.isnan(lows) | np.isnan(highs))[0]
            raise InputError(
                f"box {i} has a NaN end in {schema.names[j]!r}: must be a number; use infinity for no bound"
            )
        full: npt.NDArray[np.bool_] = np.all(lows < highs, axis=1)
        bound = (np.isfinite(lows) | np.isfinite(highs)) & full[:, None]
        attribute = np.nonzero(bound)[1]
        low, high = lows[bound], highs[bound]
        boxes = Boxes.build(
            len(lows),
            np.flatnonzero(full),
            bound.sum(axis=1)[full],
            attribute,
            np.where(np.isinf(low), keys.NULL, keys.float_keys(low)),
            np.where(np.isinf(high), keys.last(DataType("double")), keys.float_keys(high)),
            np.ones(int(full.sum()), bool),
        )
        ids = np.arange(len(lows)) if subscription_id is None else np.asarray(subscription_id, np.int64)
        names, [codes] = encode("subscriber", pa.array(subscriber, pa.string()))
        return cls(schema, ids, codes.astype(np.int32), names, boxes, pa.nulls(len(lows), pa.string()))

    def take(self, rows: npt.NDArray[np.int64]) -> SubscriptionSet:
        """Return the given subscriptions in the given order; each at most once."""
        return SubscriptionSet(
            self.schema,
            self.subscription_id[rows],
            self.subscriber[rows],
            self.subscribers,
            self.boxes.take(rows),
            self.check.take(pa.array(rows)),
        )

    def concat(self, other: SubscriptionSet) -> SubscriptionSet:
        """Append the subscriptions of another set of the same schema."""
        self.require(other)
        return SubscriptionSet(*_joined([self, other]))

    @classmethod
    def slots(cls, sets: Sequence[SubscriptionSet]) -> SubscriptionSet:
        """Concatenate sets of one schema, allowing repeated ids.

        For matchers, which may reuse an id after its subscription was removed.
        """
        if len(sets) == 1:
            return sets[0]
        new = object.__new__(cls)
        for name, value in zip(cls.__dataclass_fields__, _joined(sets), strict=True):
            object.__setattr__(new, name, value)
        new.subscription_id.flags.writeable = new.subscriber.flags.writeable = False
        return new

    def require(self, other: SubscriptionSet) -> None:
        """Refuse a set with another schema, or with labels of another type."""
        if other.schema is not self.schema and other.schema != self.schema:
            raise InputError(
                f"schema is {other.schema.to_dict()}: must be {self.schema.to_dict()}; compile both sets of "
                "subscriptions with one schema"
            )
        if other.subscribers.type != self.subscribers.type:  # integer and string labels do not mix
            encode("subscriber", self.subscribers.slice(0, 1), other.subscribers.slice(0, 1))

    def without(self, subscription_id: npt.ArrayLike | Set[int]) -> SubscriptionSet:
        """Remove the given ids; refuse an unknown id."""
        dropped = ids_of(subscription_id)
        unknown = np.setdiff1d(dropped, self.subscription_id)
        if len(unknown):
            raise InputError(
                f"subscription_id={unknown[0]} does not exist; nothing was removed",
                parameter="subscription_id",
                value=int(unknown[0]),
            )
        return self.take(np.flatnonzero(~np.isin(self.subscription_id, dropped)))

    def to_arrow(self) -> pa.Table:
        """Return one row per subscription; `boxes` lists its boxes, each with the attributes it bounds."""
        b = self.boxes
        entry = pa.StructArray.from_arrays(
            [
                pa.DictionaryArray.from_arrays(
                    pa.array(b.attribute), pa.array(self.schema.names, pa.string())
                ),
                pa.array(b.lo),
                pa.array(b.hi),
            ],
            names=["attribute", "lo", "hi"],
        )
        bounds = pa.LargeListArray.from_arrays(pa.array(b.indptr), entry)
        offsets = np.concatenate([[0], np.cumsum(b.counts)])
        box = pa.StructArray.from_arrays([bounds, pa.array(b.exact)], names=["bounds", "exact"])
        return pa.table(
            {
                "subscription_id": self.subscription_id,
                "subscriber": pa.DictionaryArray.from_arrays(pa.array(self.subscriber), self.subscribers),
                "boxes": pa.LargeListArray.from_arrays(pa.array(offsets), box),
                "check": self.check,
            }
        )

    @classmethod
    def from_arrow(cls, table: pa.Table, schema: Schema) -> SubscriptionSet:
        """Build from the table that `to_arrow` returned."""
        table = table.combine_chunks().unify_dictionaries()
        try:
            lists, check = _one(table, "boxes"), _one(table, "check")
            box = lists.flatten()
            bounds = box.field("bounds")
            entry = bounds.flatten()
            names = _coded(entry.field("attribute"))
            ids, who = _one(table, "subscription_id").cast(pa.int64()), _coded(_one(table, "subscriber"))
            for name, column in (("subscription_id", ids), ("subscriber", who)):
                if column.null_count:
                    raise TableError(f"not a table of compiled subscriptions: {name} is null")
        except (KeyError, AttributeError, pa.ArrowException) as error:
            raise TableError(f"not a table of compiled subscriptions: {error}") from error
        position = np.array([schema.index(name) for name in names.dictionary.to_pylist()], np.int64)
        boxes = Boxes.build(
            len(table),
            np.repeat(np.arange(len(table)), np.diff(np.asarray(lists.offsets))),
            np.diff(np.asarray(bounds.offsets)),
            position[np.asarray(names.indices)] if len(names) else np.empty(0, np.int64),
            np.asarray(entry.field("lo")),
            np.asarray(entry.field("hi")),
            np.asarray(box.field("exact")),
        )
        return cls(schema, np.asarray(ids), np.asarray(who.indices, np.int32), who.dictionary, boxes, check)

    @property
    def n_subscribers(self) -> int:
        """Number of subscribers."""
        return len(self.subscribers)

    def __len__(self) -> int:
        return len(self.subscription_id)


def ids_of(values: npt.ArrayLike | Set[int]) -> npt.NDArray[np.int64]:
    """Return one or several subscription ids as int64; refuse everything else."""
    try:
        found = np.atleast_1d(np.asarray(sorted(values) if isinstance(values, Set) else values))
    except ValueError as error:
        raise InputError(parameter="subscription_id", value=values, limit="integers in a list") from error
    whole = found.dtype.kind in "iu" or found.size == 0
    if found.ndim > 1 or not whole or (found.dtype.kind == "u" and found.size and found.max() >= 2**63):
        raise InputError(parameter="subscription_id", value=values, limit="64-bit integers in a list")
    return found.astype(np.int64)


def _joined(sets: Sequence[SubscriptionSet]) -> tuple[Any, ...]:
    """Return the fields of several sets, concatenated."""
    names = sets[0].subscribers
    subscriber: list[Any] = [s.subscriber for s in sets]
    if not all(s.subscribers is names or s.subscribers.equals(names) for s in sets):
        names, codes = encode("subscriber", *(s.subscribers for s in sets))
        subscriber = [code[s.subscriber] for code, s in zip(codes, sets, strict=True)]
    return (
        sets[0].schema,
        np.concatenate([s.subscription_id for s in sets]),
        np.concatenate(subscriber).astype(np.int32),
        names,
        Boxes.join([s.boxes for s in sets]),
        pa.concat_arrays([s.check for s in sets]),
    )


def _coded(column: pa.Array) -> pa.DictionaryArray:
    """Return strings as a dictionary array: files need not preserve the encoding."""
    if pa.types.is_dictionary(column.type):
        return column
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise TableError(f"not a table of compiled subscriptions: {column.type} instead of strings")
    return column.cast(pa.string()).dictionary_encode()


def _one(table: pa.Table, name: str) -> pa.Array:
    column = table[name]
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)
