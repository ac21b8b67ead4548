"""Topics with wildcards, as in NATS and MQTT, as ordinary subscriptions.

A topic is split into levels and each level is a string attribute; missing levels are null. A pattern bounds
the
levels one by one, so it is a box that every matcher supports.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import FilterError, ParameterError, TableError
from narrowcast.files import first_line
from narrowcast.filters.ranges import Literals, ranges
from narrowcast.filters.subscriptions import CompiledTable, _column, _key_reasons, _texts
from narrowcast.filters.syntax import AttributeReference, Compare, IsNull, Like, Slot
from narrowcast.model.boxes import Boxes
from narrowcast.model.events import EventBatch
from narrowcast.model.labels import encode
from narrowcast.model.schema import EVENT_ID, Schema
from narrowcast.model.subscriptions import SubscriptionSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from narrowcast.filters.syntax import Predicate

    Ints = npt.NDArray[np.int64]

COLUMNS = ("subscription_id", "subscriber", "topic")

#: Largest number of levels of a topic space: each is an attribute.
MOST_LEVELS = 1_000

#: Internal levels that no valid pattern contains: the end of a pattern, and a start not hidden by `$`.
_END, _OPEN = "\0", "\0$"

_LEVEL = AttributeReference("level_0", 0)
_EQUAL = Compare("=", _LEVEL, Slot(0, "string"), "string")


class _WildcardLevel(NamedTuple):
    """The predicate of a wildcard level, with its literal, and both as SQL."""

    predicate: Predicate
    literal: str
    sql: str


_ANY = _WildcardLevel(IsNull(_LEVEL, negated=True), "", " IS NOT NULL")
_NONE = _WildcardLevel(IsNull(_LEVEL), "", " IS NULL")
_NOT_HIDDEN = _WildcardLevel(Like(_LEVEL, Slot(0, "string"), negated=True), "$%", " NOT LIKE '$%'")


class _Rule(NamedTuple):
    """A regular expression that finds an error in a text, and the reason."""

    expression: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Style:
    """The topic syntax of a broker.

    `many` is the wildcard for many levels. A pattern is rewritten before it is split; then each of its levels
    has one of the `meanings` or is a literal. `pattern` and `topic` are the rules that refuse invalid ones.
    """

    separator: str
    many: str
    most_bytes: int | None
    rewrites: tuple[tuple[str, str], ...]
    meanings: dict[str, _WildcardLevel]
    pattern: tuple[_Rule, ...]
    topic: tuple[_Rule, ...]


_ONE_TOPIC = "has a wildcard; a message must be published to one topic"
_NATS = (
    _Rule(r"\A\z", "is empty; write at least one level"),
    _Rule(r"[\x00-\x20\x7f]", "has a space or control character, which NATS does not allow; remove it"),
    _Rule(r"(?:\A|\.)(?:\.|\z)", "has an empty level, which NATS does not allow; remove the extra '.'"),
)
_MQTT = (
    _Rule(r"\A\z", "is empty; write at least one character"),
    _Rule(r"\x00", "has a null character, which MQTT does not allow; remove it"),
)
_STYLES = {
    "nats": _Style(
        separator=".",
        many=">",
        most_bytes=None,
        rewrites=((r"([^>])\z", rf"\1.{_END}"),),
        meanings={"*": _ANY, ">": _ANY, _END: _NONE},
        pattern=(
            *_NATS,
            # The server takes such a level literally, but its documentation forbids it.
            _Rule(r"[^.][*>]|[*>][^.]", "mixes a wildcard with text; '*' or '>' must be a whole level"),
            _Rule(r">\.", "has '>' before its last level; use '*' for one level"),
        ),
        topic=(*_NATS, _Rule(r"(?:\A|\.)[*>](?:\.|\z)", _ONE_TOPIC)),
    ),
    "mqtt": _Style(
        separator="/",
        many="#",
        most_bytes=65_535,
        # `a/#` includes `a` itself: after a level, `#` requires nothing.
        rewrites=((r"([^#])\z", rf"\1/{_END}"), (r"/#\z", ""), (r"\A[+#]", _OPEN)),
        meanings={"+": _ANY, _END: _NONE, _OPEN: _NOT_HIDDEN},
        pattern=(
            *_MQTT,
            _Rule(r"[^/][+#]|[+#][^/]", "mixes a wildcard with text; '+' or '#' must be a whole level"),
            _Rule(r"#/", "has '#' before its last level; use '+' for one level"),
            _Rule(r"\A\$share(?:/|\z)", "is a shared subscription; give only the part after the group name"),
        ),
        topic=(*_MQTT, _Rule(r"[+#]", _ONE_TOPIC)),
    ),
}


@dataclass(frozen=True, slots=True)
class TopicSpace:
    """Topics in the syntax of one broker, as events and subscriptions over their levels.

    Parameters
    ----------
    style
        `nats`: levels between dots, `*` for one level and `>` for one or more at the end.
        `mqtt`: levels between slashes, `+` for one level and `#` for any number at the end, even none; a
        pattern that starts with a wildcard excludes topics that start with `$`.
    levels
        Largest number of levels of a pattern, without a final `>` or `#`. Topics may have more.

    Attributes
    ----------
    schema
        `level_0`, `level_1`, ... of type string, one more than `levels`: the last is null unless a topic has
        more levels.

    Examples
    --------
    >>> from narrowcast.matching import Scan
    >>> space = TopicSpace("nats", levels=4)
    >>> done = space.compile(["time.*.east", "time.us.>", "time..east"])
    >>> done.rejected["reason"].to_pylist()
    ["'time..east' has an empty level, which NATS does not allow; remove the extra '.'"]
    >>> events = space.events(["time.us", "time.us.east", "time.us.east.atlanta"])
    >>> [row.tolist() for row in Scan().fit(done.subscriptions).match(events)]
    [[], [0, 1], [1]]
    """

    style: Literal["nats", "mqtt"] = "nats"
    levels: int = 16
    schema: Schema = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.style not in _STYLES:
            raise ParameterError(parameter="style", value=self.style, limit=f"one of {', '.join(_STYLES)}")
        if not 1 <= self.levels <= MOST_LEVELS:
            raise ParameterError(parameter="levels", value=self.levels, limit=f"from 1 to {MOST_LEVELS:,}")
        names = (f"level_{i}" for i in range(self.levels + 1))
        object.__setattr__(self, "schema", Schema.of(dict.fromkeys(names, "string")))

    def compile(self, patterns: pa.Table | Sequence[str], *, strict: bool = False) -> CompiledTable:
        """Compile patterns to subscriptions.

        Parameters
        ----------
        patterns
            A table with `subscription_id`, `subscriber` and `topic`, or a list of patterns, which are
            numbered from 0 and belong to subscribers named by their number.
        strict
            Whether the first bad row is an error instead of a rejected row (default: false).

        Examples
        --------
        >>> done = TopicSpace("mqtt", levels=2).compile(["a/+", "a/b/c"])
        >>> len(done.subscriptions), done.rejected["reason"].to_pylist()
        (1, ["'a/b/c' has 3 levels: must have at most 2; raise `levels` of the TopicSpace"])
        """
        unreadable: dict[int, str] = {}
        if not isinstance(patterns, pa.Table):
            if isinstance(patterns, str):
                raise TableError(
                    f"patterns={patterns!r:.60}: must be a list of patterns or a table, not one string"
                )
            texts, unreadable = _texts(patterns)
            numbers = pa.array(np.arange(len(texts)))
            columns = [numbers, numbers.cast(pa.string()), pa.array(texts, pa.string())]
            patterns = pa.table(columns, names=list(COLUMNS))
        ids, names, topics = (_column(patterns, name) for name in COLUMNS)
        reasons = _key_reasons(ids, names, topics)
        for i in np.flatnonzero(np.asarray(topics.is_null())).tolist():
            if reasons[i] == "filter is null":
                reasons[i] = unreadable.get(i, "topic is null")
        for i, reason in self._faults(topics).items():
            reasons[i] = reasons[i] or reason
        why = pa.array(reasons, pa.string())
        bad, good = (np.flatnonzero(np.asarray(flags)) for flags in (why.is_valid(), why.is_null()))
        if strict and len(bad):
            raise FilterError(f"row {bad[0] + 1}, subscription_id {ids[bad[0]].as_py()}: {reasons[bad[0]]}")
        kept = pa.array(good)
        boxes, check = self._boxes(topics.take(kept))
        subscribers, [codes] = encode("subscriber", names.take(kept))
        subscriptions = SubscriptionSet(
            self.schema, np.asarray(ids.take(kept)), codes.astype(np.int32), subscribers, boxes, check
        )
        aside = pa.array(bad)
        return CompiledTable(subscriptions, patterns.take(aside).append_column("reason", why.take(aside)))

    def events(
        self,
        topics: Sequence[str] | pa.Array | pa.ChunkedArray,
        event_id: npt.ArrayLike | pa.Array | None = None,
    ) -> EventBatch:
        """Return one event per message from the topic it is published to.

        Parameters
        ----------
        topics
            Topics without wildcards; the first invalid topic is an error.
        event_id
            Ids of the events (default: 0, 1, 2, ...).

        Examples
        --------
        >>> TopicSpace("mqtt", levels=2).events(["/finance"]).row(0)
        {'level_0': '', 'level_1': 'finance', 'level_2': None}
        """
        column = self._published(topics)
        # Everything after the last level stays in one piece, which shows that the topic has more levels.
        split = pc.split_pattern(column, pattern=_STYLES[self.style].separator, max_splits=self.levels)
        flat, depth, start = _pieces(split)
        deepest = depth.max(initial=0)
        nothing = pa.nulls(len(column), pa.string())
        found = {
            name: flat.take(pa.array(start + i, mask=depth <= i)) if i < deepest else nothing
            for i, name in enumerate(self.schema.names)
        }
        if event_id is not None:
            found[EVENT_ID] = _event_ids(event_id, len(column))
        return EventBatch.from_arrow(pa.record_batch(found), self.schema)

    def _published(self, topics: Any) -> pa.Array:
        """Return topics as one array; refuse the first that cannot be published to."""
        faults: dict[int, str] = {}
        if isinstance(topics, str):
            raise TableError(f"topics={topics!r:.60}: must be a list of topics, not one string")
        if not isinstance(topics, pa.Array | pa.ChunkedArray):
            topics, faults = _texts(topics)
            topics = pa.array(topics, pa.string())
        column = _column(pa.table({"topic": topics}), "topic")
        style = _STYLES[self.style]
        nulls = dict.fromkeys(np.flatnonzero(np.asarray(column.is_null())).tolist(), "topic is null")
        faults = nulls | faults | _too_long(column, style) | _broken_rules(column, style.topic)
        if faults:
            first = min(faults)
            raise TableError(f"row {first + 1} of {len(column):,}: {faults[first]}")
        return column

    def _faults(self, patterns: pa.Array) -> dict[int, str]:
        """Return the reason against each invalid pattern, by row; nulls are skipped."""
        style = _STYLES[self.style]
        depth = np.asarray(pc.count_substring(patterns, style.separator).fill_null(0), np.int64) + 1
        depth -= np.asarray(pc.ends_with(patterns, style.many).fill_null(False))
        deep = np.flatnonzero(depth > self.levels)
        fix = f"levels: must have at most {self.levels:,}; raise `levels` of the TopicSpace"
        faults = {
            row: f"{text!r:.60} has {n:,} {fix}"
            for row, text, n in zip(
                deep.tolist(), patterns.take(pa.array(deep)).to_pylist(), depth[deep], strict=True
            )
        }
        return faults | _too_long(patterns, style) | _broken_rules(patterns, style.pattern)

    def _boxes(self, patterns: pa.Array) -> tuple[Boxes, pa.Array]:
        """Return valid patterns as boxes, and as filters where the boxes are too wide."""
        style, n = _STYLES[self.style], len(patterns)
        for expression, by in style.rewrites:
            patterns = pc.replace_substring_regex(patterns, pattern=expression, replacement=by)
        flat, width, start = _pieces(pc.split_pattern(patterns, pattern=style.separator))
        owner = np.repeat(np.arange(n), width)
        level = np.arange(len(flat)) - start[owner]
        coded = flat.dictionary_encode()
        words, word = coded.dictionary, np.asarray(coded.indices)
        lo, hi, sure = self._ends(words)
        exact = np.ones(n, bool)
        exact[owner[~sure[word]]] = False
        # A leading wildcard that excludes `$` is two ranges, so its pattern is two boxes.
        twice = owner[np.asarray(pc.equal(flat, _OPEN), bool)]
        again = np.isin(owner, twice)
        boxes = Boxes.build(
            n,
            np.concatenate([np.arange(n), twice]),
            np.concatenate([width, width[twice]]),
            np.concatenate([level, level[again]]),
            np.concatenate([lo[0, word], lo[1, word[again]]]),
            np.concatenate([hi[0, word], hi[1, word[again]]]),
            np.concatenate([exact, exact[twice]]),
        )
        wide = np.flatnonzero(~exact)
        entry = np.flatnonzero(~exact[owner])
        filters = self._filters(words, word[entry], level[entry], width[wide])
        place = np.full(n, -1)
        place[wide] = np.arange(len(wide))
        return boxes, filters.take(pa.array(place, mask=exact))

    def _ends(self, words: pa.Array) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
        """Return up to two key ranges for each level of the patterns, and whether the keys are exact."""
        literals: list[tuple[str, ...]] = [(word,) for word in words.to_pylist()]
        literals = literals or [("",)]  # without rows there would be no slot
        equal = ranges(_EQUAL, Literals(literals), self.schema)
        lo, hi = (np.repeat(ends, 2, axis=0) for ends in equal.by_attribute[0])
        sure = equal.exact
        for word, meaning in _STYLES[self.style].meanings.items():
            at = pc.index(words, word).as_py()
            if at >= 0:
                own = ranges(meaning.predicate, Literals([(meaning.literal,)]), self.schema)
                lo[:, at], hi[:, at] = (ends[:, 0] for ends in own.by_attribute[0])
        return lo, hi, sure

    def _filters(self, words: pa.Array, word: Ints, level: Ints, width: Ints) -> pa.Array:
        """Return patterns as filters of the filter language; `width` is the number of levels of each."""
        quoted = pc.replace_substring(pc.replace_substring(words, "\\", "\\\\"), "'", "''")
        sql = pc.binary_join_element_wise(" = '", quoted, "'", "")
        for one, meaning in _STYLES[self.style].meanings.items():
            sql = pc.if_else(pc.equal(words, one), meaning.sql, sql)
        names = pa.array(self.schema.names, pa.string()).take(pa.array(level))
        terms = pc.binary_join_element_wise(names, sql.take(pa.array(word)), "")
        offsets = np.concatenate([[0], np.cumsum(width)]).astype(np.int32)
        return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), terms), " AND ")


def _pieces(split: pa.ListArray) -> tuple[pa.Array, Ints, Ints]:
    """Return the pieces of split texts as one array, with the number and start of each text's pieces."""
    count = np.asarray(split.value_lengths(), np.int64)
    return split.flatten(), count, np.cumsum(count) - count


def _broken_rules(texts: pa.Array, rules: tuple[_Rule, ...]) -> dict[int, str]:
    """Return by row the first rule that a text breaks; valid texts are examined once."""
    any_rule = "|".join(rule.expression for rule in rules)
    rows = np.flatnonzero(np.asarray(pc.match_substring_regex(texts, any_rule).fill_null(False)))
    bad = texts.take(pa.array(rows))
    broken = np.empty(len(rows), object)
    for rule in reversed(rules):
        broken[np.asarray(pc.match_substring_regex(bad, rule.expression), bool)] = rule.reason
    return {
        row: f"{text!r:.60} {reason}"
        for row, text, reason in zip(rows.tolist(), bad.to_pylist(), broken, strict=True)
    }


def _too_long(texts: pa.Array, style: _Style) -> dict[int, str]:
    """Return by row the texts that have more bytes than the broker accepts."""
    if style.most_bytes is None:
        return {}
    size = np.asarray(pc.binary_length(texts).fill_null(0))
    return {
        i: f"{texts[i].as_py()!r:.60} has {size[i]:,} bytes: must have at most {style.most_bytes:,}"
        for i in np.flatnonzero(size > style.most_bytes).tolist()
    }


def _event_ids(event_id: Any, n: int) -> pa.Array:
    """Return ids as a column; the event batch validates them."""
    try:
        ids = event_id if isinstance(event_id, pa.Array) else pa.array(event_id)
    except pa.ArrowException as error:
        raise TableError(f"event_id: must be integers: {first_line(error)}", parameter="event_id") from error
    if len(ids) != n:
        raise TableError(f"{len(ids):,} event ids, {n:,} topics: must be one id each", parameter="event_id")
    return ids
