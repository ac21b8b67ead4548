"""Who subscribes to what right now: filters by id, and the index that finds them."""

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

#: What numbers are taken for where no schema says: events may have fractions where filters have none.
_NUMBER = "double"
#: Characters of a long reason that are told, of its beginning and of its end.
_SAID = 150


class SubscriptionIndex:
    """Subscriptions that come and go, with an index that changes along.

    Parameters
    ----------
    schema
        The types of attributes. Without one, what filters compare an attribute with tells its type, and a
        later filter that takes it for another is refused.
    limits
        Bounds on filters, and on how many `add` takes up; the usual ones where left out.
    store
        Where subscriptions are kept; those that are there are taken up, as far as they fit the schema. What
        is added and removed is on disk before it holds.
    record
        Where changes are written down, if anywhere.
    index
        Where the index of what is kept is, so that it need not be made anew.

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
    narrowcast.errors.InputError: filter "price = 'dear'" cannot be used: ...
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
        #: Changes since the index was written.
        self._unwritten = 0
        self._learns = schema is None
        self._bounds = limits or BrokerLimits()
        self._limits = self._bounds.filters
        self._filters: dict[int, tuple[str, str]] = {}
        self._owned: dict[str, dict[int, str]] = {}
        self._versions: dict[str, int] = {}
        self._next = 0
        self._use(schema or Schema.of({}))
        #: Why subscriptions that were kept are left out.
        self.refused: list[str] = []
        if store is not None:
            held = store.read()
            known = None if index is None else index.read(schema)
            rest = held if known is None else self._go_on(known, held)
            self._unwritten = 0
            self.refused = self._take_up(rest)
            self._next = store.next_id

    def _go_on(self, known: AutoMatcher, held: Mapping[int, tuple[str, str]]) -> dict[int, tuple[str, str]]:
        """Take up an index, as far as subscriptions are still held; return those that it lacks."""
        there = known.subscriptions_.subscription_id.tolist()
        gone = [number for number in there if number not in held]
        if gone:
            known.remove(gone)
        self._matcher, self.schema = known, known.subscriptions_.schema
        self._compiler = FilterCompiler(self.schema, self._limits)
        kept = {number: held[number] for number in there if number in held}
        self._note(kept)
        return {number: one for number, one in held.items() if number not in kept}

    def write_index(self, *, share: float = 0.1) -> bool:
        """Write the index, if more than a share of it has changed since; return whether it was."""
        if self._index is None or self._unwritten <= share * len(self._filters):
            return False
        self._unwritten = 0
        self._index.write(self._matcher)
        return True

    def _use(self, schema: Schema) -> None:
        """Index all there is by a schema."""
        self.schema = schema
        self._compiler = FilterCompiler(schema, self._limits)
        self._matcher = AutoMatcher().fit(self._compiled(self._filters))
        self.change = getattr(self, "change", 0) + 1

    def _compiled(
        self, filters: Mapping[int, tuple[str, str]], compiler: FilterCompiler | None = None
    ) -> SubscriptionSet:
        """Return filters as subscriptions; a bad one is an error."""
        compiler = compiler or self._compiler
        made = compile_filters(compiler.schema, _table(filters), compiler=compiler)
        if made.rejected.num_rows:
            [row] = made.rejected.slice(0, 1).to_pylist()
            raise InputError(f"filter {row['filter']!r:.200} cannot be used: {_short(row['reason'])}")
        return made.subscriptions

    def add(self, subscriber: str, filters: Sequence[str]) -> list[int]:
        """Take up filters of a subscriber, all of them or none, and return their ids.

        Raises
        ------
        InputError
            When a filter cannot be used, or it would be more than a limit allows.
        """
        self._check(subscriber, filters)
        numbers = list(range(self._next, self._next + len(filters)))
        fresh = {number: (subscriber, text) for number, text in zip(numbers, filters, strict=True)}
        before, schema = self.schema, self._learnt(filters) if self._learns else self.schema
        compiler = self._compiler
        if schema is not before:
            self._bounds.check_attributes(len(before), (name for name in schema.names if name not in before))
            compiler = FilterCompiler(schema, self._limits)
        compiled = self._compiled(fresh, compiler)
        if schema is not before:  # all others are indexed anew, but not for the sake of one that is bad
            self._use(schema)
        try:
            if self._store is not None:
                self._store.add(fresh)
        except NarrowcastError:
            if schema is not before:
                self._use(before)
            raise
        self._matcher.add(compiled)
        self._next += len(fresh)
        self._note(fresh)
        if self._record is not None:
            self._record.change("subscribe", fresh)
        return numbers

    def _check(self, subscriber: str, filters: Sequence[str]) -> None:
        """Refuse what a limit does not allow, and what is no text."""
        own = self._owned.get(subscriber, {})
        held = len(own)
        self._bounds.check_name(subscriber)
        self._bounds.check_subscriptions(subscriber, held, len(filters))
        if not held and self._bounds.subscribers is not None:
            self._bounds.check_subscribers(subscriber, len(self.subscribers))
        for text in filters:
            if not (text.isascii() or _is_text(text)):
                raise InputError(f"filter {text!r:.200} cannot be used: it is no valid text")
        self._bounds.check_text(subscriber, own.values(), filters)

    def load(
        self, subscribers: Sequence[str], filters: Sequence[str], ids: Sequence[int] | None = None
    ) -> list[str]:
        """Take up many filters at once, of any number of subscribers; return why some are left out.

        Parameters
        ----------
        subscribers, filters
            One of each for every subscription.
        ids
            The id of each; others than are there where left out. One that is there already, and is the same,
            is passed over.
        """
        numbers = range(self._next, self._next + len(filters)) if ids is None else ids
        given = dict(zip(numbers, zip(subscribers, filters, strict=True), strict=True))
        clash = {n for n, one in given.items() if self._filters.get(n, one) != one}
        fresh = {n: one for n, one in given.items() if n not in self._filters and n not in clash}
        bad = self._take_up(fresh)
        if self._store is not None:
            self._store.add({n: one for n, one in fresh.items() if n in self._filters})
        self._next = max(self._next, max(given, default=-1) + 1)
        return bad + [
            f"{given[n][0]}: subscription_id {n} is there already with another filter" for n in clash
        ]

    def _take_up(self, fresh: Mapping[int, tuple[str, str]]) -> list[str]:
        """Index filters, and return why some are left out."""
        if not fresh:
            return []
        filters = [text for _, text in fresh.values()]
        if self._learns:
            schema = self._learnt(filters)
            if schema is not self.schema:
                self._use(schema)
        table = _table(fresh)
        made = compile_filters(self.schema, table, compiler=self._compiler)
        if self._filters:
            self._matcher.add(made.subscriptions)
        else:
            self._matcher = AutoMatcher().fit(made.subscriptions)
        self._note({number: fresh[number] for number in made.subscriptions.subscription_id.tolist()})
        return [f"{row['subscriber']}: {row['filter']}: {row['reason']}" for row in made.rejected.to_pylist()]

    def remove(self, subscriber: str, ids: Sequence[int]) -> None:
        """Drop subscriptions of a subscriber, all of them or none."""
        own = self._owned.get(subscriber, {})
        for number in ids:
            if number not in own:
                raise InputError(f"subscription_id {number} is none of {subscriber!r}; nothing was removed")
        if self._store is not None:
            self._store.remove(sorted(set(ids)))
        self._matcher.remove(sorted(set(ids)))
        if self._record is not None:
            self._record.change("unsubscribe", {number: self._filters[number] for number in sorted(set(ids))})
        self._unwritten += len(set(ids))
        for number in set(ids):
            del own[number], self._filters[number]
        self._touched(subscriber)

    def of(self, subscriber: str) -> dict[int, str]:
        """Return the filters of a subscriber by id."""
        return dict(self._owned.get(subscriber, {}))

    def version(self, subscriber: str) -> int:
        """Return a fingerprint of the subscriptions of a subscriber: the same on every node that has them."""
        known = self._versions.get(subscriber)
        if known is None:
            ids = np.sort(np.fromiter(self._owned.get(subscriber, ()), np.int64))
            known = self._versions[subscriber] = zlib.crc32(ids.tobytes())
        return known

    def rows(self, after: int, most: int) -> dict[int, tuple[str, str]]:
        """Return so many subscriptions behind an id, by id."""
        ids = np.sort(np.fromiter(self._filters, np.int64, len(self._filters)))
        some = ids[np.searchsorted(ids, after, side="right") :][:most].tolist()
        return {number: self._filters[number] for number in some}

    def drop(self, ids: Sequence[int]) -> None:
        """Forget subscriptions, whoever's they are, as far as they are there."""
        by: dict[str, list[int]] = {}
        for number in ids:
            if number in self._filters:
                by.setdefault(self._filters[number][0], []).append(number)
        for subscriber, some in by.items():
            self.remove(subscriber, some)

    @property
    def kept(self) -> bool:
        """Whether subscriptions are on disk."""
        return self._store is not None

    @property
    def subscribers(self) -> set[str]:
        """Everybody who has a subscription."""
        return {name for name, held in self._owned.items() if held}

    @property
    def matcher(self) -> AutoMatcher:
        """The index."""
        return self._matcher

    def __len__(self) -> int:
        return len(self._filters)

    def _note(self, fresh: Mapping[int, tuple[str, str]]) -> None:
        """Remember filters that the index has taken up."""
        self._filters |= fresh
        for number, (subscriber, text) in fresh.items():
            self._owned.setdefault(subscriber, {})[number] = text
        self._unwritten += len(fresh)
        for subscriber in {subscriber for subscriber, _ in fresh.values()}:
            self._touched(subscriber)

    def _touched(self, subscriber: str) -> None:
        """Note a change."""
        self._versions.pop(subscriber, None)
        self.change += 1

    def _learnt(self, filters: Sequence[str]) -> Schema:
        """Return the schema, with the attributes that filters name and that it lacks."""
        try:
            named = infer_schema(filters, self._limits).to_dict()
        except SchemaError as error:
            raise InputError(f"attributes of the filters do not go together: {error}") from error
        fresh = {
            name: _NUMBER if kind == "bigint" else kind
            for name, kind in named.items()
            if name not in self.schema
        }
        return Schema.of(self.schema.to_dict() | fresh) if fresh else self.schema


def _short(reason: str) -> str:
    """Return a reason without the middle of what is long in it."""
    return reason if len(reason) <= 2 * _SAID else f"{reason[:_SAID]}...{reason[-_SAID:]}"


def _is_text(text: str) -> bool:
    """Return whether a text can be written: JSON knows halves of characters, too."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _table(filters: Mapping[int, tuple[str, str]]) -> pa.Table:
    """Return filters as a table of subscriptions."""
    return pa.table(
        {
            "subscription_id": np.fromiter(filters, np.int64, len(filters)),
            "subscriber": pa.array([subscriber for subscriber, _ in filters.values()], pa.string()),
            "filter": pa.array([text for _, text in filters.values()], pa.string()),
        }
    )
