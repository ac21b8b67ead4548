"""The current subscriptions of a broker, with a matching index."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from narrowcast.broker.limits import BrokerLimits
from narrowcast.errors import InputError, NarrowcastError, SchemaError
from narrowcast.filters.compiler import FilterCompiler
from narrowcast.filters.subscriptions import compile_filters
from narrowcast.filters.type_inference import infer_schema
from narrowcast.matching import AutoMatcher
from narrowcast.model.schema import Schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from narrowcast.broker.control.index_file import IndexFile
    from narrowcast.broker.data.activity_log import ActivityLog
    from narrowcast.broker.storage.subscription_store import SubscriptionStore
    from narrowcast.model.subscriptions import SubscriptionSet

#: Learned type of attributes that filters compare with integers: values in events may have fractions.
_NUMBER = "double"
#: Characters shown of the beginning and of the end of a long reason.
_SHOWN = 150


class SubscriptionIndex:
    """Subscriptions by id and by subscriber, with an index that follows every change.

    Parameters
    ----------
    schema
        Types of the attributes. Without one, the type of an attribute is learned from the values that filters
        compare it with, and a later filter that implies another type is refused.
    limits
        Limits on filters, and on what `add` accepts (default: `BrokerLimits()`).
    store
        Store on disk. Its subscriptions are loaded as far as they fit the schema; later changes are on disk
        before they take effect.
    record
        Log to which changes of subscriptions are written.
    index
        File with a saved index of the store, so that it need not be built again.

    Examples
    --------
    >>> interests = SubscriptionIndex()
    >>> interests.add("ann", ["price > 75", "name = 'IBM'"])
    [0, 1]
    >>> interests.schema.to_dict()
    {'price': 'double', 'name': 'string'}
    >>> interests.remove("ann", [0])
    >>> interests.of("ann")
    {1: "name = 'IBM'"}
    >>> interests.add("bob", ["price = 'dear'"])
    Traceback (most recent call last):
    narrowcast.errors.InputError: filter="price = 'dear'": cannot be used: ...
    """

    def __init__(
        self,
        schema: Schema | None = None,
        *,
        limits: BrokerLimits | None = None,
        store: SubscriptionStore | None = None,
        record: ActivityLog | None = None,
        index: IndexFile | None = None,
    ) -> None:
        self._store, self._record, self._index = store, record, index
        #: Changes since the index was last saved.
        self._unwritten = 0
        self._learns = schema is None
        self._broker_limits = limits or BrokerLimits()
        self._limits = self._broker_limits.filters
        self._filters: dict[int, tuple[str, str]] = {}
        self._by_subscriber: dict[str, dict[int, str]] = {}
        self._versions: dict[str, int] = {}
        self._next = 0
        self._reindex(schema or Schema.of({}))
        #: Reasons for which subscriptions of the store were skipped.
        self.refused: list[str] = []
        if store is not None:
            held = store.read()
            saved = None if index is None else index.read(schema)
            rest = held if saved is None else self._adopt(saved, held)
            self._unwritten = 0
            self.refused = self._index_all(rest)
            self._next = store.next_id

    def _adopt(self, saved: AutoMatcher, held: Mapping[int, tuple[str, str]]) -> dict[int, tuple[str, str]]:
        """Use a saved index for the subscriptions still held; return those that it lacks."""
        ids = saved.subscriptions_.subscription_id.tolist()
        removed = [number for number in ids if number not in held]
        if removed:
            saved.remove(removed)
        self._matcher, self.schema = saved, saved.subscriptions_.schema
        self._compiler = FilterCompiler(self.schema, self._limits)
        indexed = {number: held[number] for number in ids if number in held}
        self._register(indexed)
        return {number: one for number, one in held.items() if number not in indexed}

    def write_index(self, *, share: float = 0.1) -> bool:
        """Save the index if enough of it has changed since the last time; return whether it was saved.

        Parameters
        ----------
        share
            Number of changes, as a share of all subscriptions, above which the index is saved (default 0.1).
        """
        if self._index is None or self._unwritten <= share * len(self._filters):
            return False
        self._unwritten = 0
        self._index.write(self._matcher)
        return True

    def _reindex(self, schema: Schema) -> None:
        """Index all subscriptions again for another schema."""
        self.schema = schema
        self._compiler = FilterCompiler(schema, self._limits)
        self._matcher = AutoMatcher().fit(self._compiled(self._filters))
        self.change = getattr(self, "change", 0) + 1

    def _compiled(
        self, filters: Mapping[int, tuple[str, str]], compiler: FilterCompiler | None = None
    ) -> SubscriptionSet:
        """Compile filters; the first invalid one raises an InputError."""
        compiler = compiler or self._compiler
        made = compile_filters(compiler.schema, _table(filters), compiler=compiler)
        if made.rejected.num_rows:
            [row] = made.rejected.slice(0, 1).to_pylist()
            raise InputError(
                f"filter={row['filter']!r:.200}: cannot be used: {_shortened(row['reason'])}",
                parameter="filter",
                value=row["filter"],
            )
        return made.subscriptions

    def add(self, subscriber: str, filters: Sequence[str]) -> list[int]:
        """Add filters of a subscriber, all or none, and return their subscription ids.

        Parameters
        ----------
        subscriber
            Its name.
        filters
            The filters.

        Raises
        ------
        InputError
            When a filter is invalid, or a limit would be exceeded; then nothing has changed.
        """
        self._check(subscriber, filters)
        numbers = list(range(self._next, self._next + len(filters)))
        fresh = {number: (subscriber, text) for number, text in zip(numbers, filters, strict=True)}
        before, schema = self.schema, self._extended_schema(filters) if self._learns else self.schema
        compiler = self._compiler
        if schema is not before:
            self._broker_limits.check_attributes(
                len(before), (name for name in schema.names if name not in before)
            )
            compiler = FilterCompiler(schema, self._limits)
        compiled = self._compiled(fresh, compiler)
        if (
            schema is not before
        ):  # index all subscriptions again only once the new filters are known to compile
            self._reindex(schema)
        try:
            if self._store is not None:
                self._store.add(fresh)
        except NarrowcastError:
            if schema is not before:
                self._reindex(before)
            raise
        self._matcher.add(compiled)
        self._next += len(fresh)
        self._register(fresh)
        if self._record is not None:
            self._record.change("subscribe", fresh)
        return numbers

    def _check(self, subscriber: str, filters: Sequence[str]) -> None:
        """Refuse additional filters that exceed a limit or are not valid UTF-8."""
        own = self._by_subscriber.get(subscriber, {})
        held = len(own)
        self._broker_limits.check_name(subscriber)
        self._broker_limits.check_subscriptions(subscriber, held, len(filters))
        if not held and self._broker_limits.subscribers is not None:
            self._broker_limits.check_subscribers(subscriber, len(self.subscribers))
        for text in filters:
            if not (text.isascii() or _is_utf8(text)):
                raise InputError(
                    f"filter={text!r:.200}: must be valid UTF-8; remove unpaired surrogates",
                    parameter="filter",
                    value=text,
                )
        self._broker_limits.check_text(subscriber, own.values(), filters)

    def load(
        self, subscribers: Sequence[str], filters: Sequence[str], ids: Sequence[int] | None = None
    ) -> list[str]:
        """Add filters of any subscribers at once; return the reasons for which some were skipped.

        Limits on subscriptions per subscriber do not apply.

        Parameters
        ----------
        subscribers, filters
            The subscriber and the filter of each subscription.
        ids
            Subscription id of each (default: new ids). An existing id with the same subscriber and filter is
            ignored; with another filter it is an error, reported in the result.
        """
        numbers = range(self._next, self._next + len(filters)) if ids is None else ids
        given = dict(zip(numbers, zip(subscribers, filters, strict=True), strict=True))
        clash = {n for n, one in given.items() if self._filters.get(n, one) != one}
        fresh = {n: one for n, one in given.items() if n not in self._filters and n not in clash}
        skipped = self._index_all(fresh)
        if self._store is not None:
            self._store.add({n: one for n, one in fresh.items() if n in self._filters})
        self._next = max(self._next, max(given, default=-1) + 1)
        return skipped + [
            f"{given[n][0]}: subscription_id={n}: exists already with another filter" for n in clash
        ]

    def _index_all(self, fresh: Mapping[int, tuple[str, str]]) -> list[str]:
        """Index filters; return the reasons for which some were skipped."""
        if not fresh:
            return []
        filters = [text for _, text in fresh.values()]
        if self._learns:
            schema = self._extended_schema(filters)
            if schema is not self.schema:
                self._reindex(schema)
        table = _table(fresh)
        made = compile_filters(self.schema, table, compiler=self._compiler)
        if self._filters:
            self._matcher.add(made.subscriptions)
        else:
            self._matcher = AutoMatcher().fit(made.subscriptions)
        self._register({number: fresh[number] for number in made.subscriptions.subscription_id.tolist()})
        return [f"{row['subscriber']}: {row['filter']}: {row['reason']}" for row in made.rejected.to_pylist()]

    def remove(self, subscriber: str, ids: Sequence[int]) -> None:
        """Remove subscriptions of a subscriber, all or none.

        Parameters
        ----------
        subscriber
            Its name.
        ids
            Subscription ids.

        Raises
        ------
        InputError
            When an id does not belong to the subscriber; then nothing has changed.
        """
        own = self._by_subscriber.get(subscriber, {})
        for number in ids:
            if number not in own:
                raise InputError(
                    f"subscription_id={number}: not a subscription of {subscriber!r}; nothing was removed",
                    parameter="subscription_id",
                    value=number,
                )
        if self._store is not None:
            self._store.remove(sorted(set(ids)))
        self._matcher.remove(sorted(set(ids)))
        if self._record is not None:
            self._record.change("unsubscribe", {number: self._filters[number] for number in sorted(set(ids))})
        self._unwritten += len(set(ids))
        for number in set(ids):
            del own[number], self._filters[number]
        self._mark_changed(subscriber)

    def of(self, subscriber: str) -> dict[int, str]:
        """Return the filters of a subscriber by subscription id."""
        return dict(self._by_subscriber.get(subscriber, {}))

    def version(self, subscriber: str) -> int:
        """Return a fingerprint of a subscriber's subscription ids, equal on all nodes that have these ids."""
        known = self._versions.get(subscriber)
        if known is None:
            ids = np.sort(np.fromiter(self._by_subscriber.get(subscriber, ()), np.int64))
            known = self._versions[subscriber] = zlib.crc32(ids.tobytes())
        return known

    def rows(self, after: int, most: int) -> dict[int, tuple[str, str]]:
        """Return up to `most` subscriptions with ids above `after`: subscriber and filter by id."""
        ids = np.sort(np.fromiter(self._filters, np.int64, len(self._filters)))
        page = ids[np.searchsorted(ids, after, side="right") :][:most].tolist()
        return {number: self._filters[number] for number in page}

    def drop(self, ids: Sequence[int]) -> None:
        """Remove subscriptions of any subscribers; unknown ids are ignored."""
        by_subscriber: dict[str, list[int]] = {}
        for number in ids:
            if number in self._filters:
                by_subscriber.setdefault(self._filters[number][0], []).append(number)
        for subscriber, own in by_subscriber.items():
            self.remove(subscriber, own)

    @property
    def is_durable(self) -> bool:
        """Whether subscriptions are stored on disk."""
        return self._store is not None

    @property
    def subscribers(self) -> set[str]:
        """Names of all subscribers with at least one subscription."""
        return {name for name, held in self._by_subscriber.items() if held}

    @property
    def matcher(self) -> AutoMatcher:
        """The index as a matcher; it changes with the subscriptions."""
        return self._matcher

    def __len__(self) -> int:
        return len(self._filters)

    def _register(self, fresh: Mapping[int, tuple[str, str]]) -> None:
        """Record filters that the matcher has indexed."""
        self._filters |= fresh
        for number, (subscriber, text) in fresh.items():
            self._by_subscriber.setdefault(subscriber, {})[number] = text
        self._unwritten += len(fresh)
        for subscriber in {subscriber for subscriber, _ in fresh.values()}:
            self._mark_changed(subscriber)

    def _mark_changed(self, subscriber: str) -> None:
        """Record that the subscriptions of a subscriber have changed."""
        self._versions.pop(subscriber, None)
        self.change += 1

    def _extended_schema(self, filters: Sequence[str]) -> Schema:
        """Return the schema extended by the attributes that filters name and it lacks."""
        try:
            named = infer_schema(filters, self._limits).to_dict()
        except SchemaError as error:
            raise InputError(f"filters disagree about the type of an attribute: {error}") from error
        fresh = {
            name: _NUMBER if kind == "bigint" else kind
            for name, kind in named.items()
            if name not in self.schema
        }
        return Schema.of(self.schema.to_dict() | fresh) if fresh else self.schema


def _shortened(reason: str) -> str:
    """Return a reason with the middle cut out when it is long."""
    return reason if len(reason) <= 2 * _SHOWN else f"{reason[:_SHOWN]}...{reason[-_SHOWN:]}"


def _is_utf8(text: str) -> bool:
    """Return whether a text is valid UTF-8; JSON may contain unpaired surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _table(filters: Mapping[int, tuple[str, str]]) -> pa.Table:
    return pa.table(
        {
            "subscription_id": np.fromiter(filters, np.int64, len(filters)),
            "subscriber": pa.array([subscriber for subscriber, _ in filters.values()], pa.string()),
            "filter": pa.array([text for _, text in filters.values()], pa.string()),
        }
    )
