"""Topics with wildcards match what NATS and MQTT say they match."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast.errors import FilterError, ParameterError, TableError
from narrowcast.filters.subscriptions import compile_filters
from narrowcast.filters.topics import MOST_LEVELS, TopicSpace
from narrowcast.matching import Scan
from support.errors import refused

Style = Literal["nats", "mqtt"]
STYLES: list[Style] = ["nats", "mqtt"]
SIGNS = {"nats": (".", "*", ">"), "mqtt": ("/", "+", "#")}


def topic_matches(pattern: str, topic: str, style: Style) -> bool:
    """Whether a good pattern matches a good topic, by recursion on their levels."""
    separator, one, many = SIGNS[style]
    if style == "mqtt" and pattern[0] in (one, many) and topic[0] == "$":
        return False

    def match(wanted: list[str], levels: list[str]) -> bool:
        if wanted == [many]:
            return style == "mqtt" or len(levels) > 0
        if not wanted or not levels:
            return not wanted and not levels
        return wanted[0] in (one, levels[0]) and match(wanted[1:], levels[1:])

    return match(pattern.split(separator), topic.split(separator))


def as_filter(pattern: str, style: Style) -> str:
    """The filter that a good pattern stands for, written level by level."""
    separator, one, many = SIGNS[style]
    levels = pattern.split(separator)
    terms = []
    for i, level in enumerate(levels):
        if level == many and style == "mqtt" and i > 0:
            continue
        if level in (one, many):
            hidden = style == "mqtt" and i == 0
            terms.append(f"level_{i} NOT LIKE '$%'" if hidden else f"level_{i} IS NOT NULL")
        else:
            text = level.replace("\\", "\\\\").replace("'", "''")
            terms.append(f"level_{i} = '{text}'")
    if levels[-1] != many:
        terms.append(f"level_{len(levels)} IS NULL")
    return " AND ".join(terms)


def is_good(text: str, style: Style, *, wildcards: bool) -> bool:
    """Whether a text is a pattern or, without wildcards, a topic, by the rules of the broker."""
    separator, one, many = SIGNS[style]
    levels = text.split(separator)
    if wildcards:
        whole = all(level in (one, many) for level in levels if one in level or many in level)
        fit = whole and many not in levels[:-1] and not (style == "mqtt" and levels[0] == "$share")
    elif style == "nats":
        fit = one not in levels and many not in levels
    else:
        fit = one not in text and many not in text
    if style == "nats":
        return fit and all(levels) and not any(letter <= " " or letter == "\x7f" for letter in text)
    return fit and text != "" and "\0" not in text


def matches(style: Style, patterns: list[str], topics: list[str], levels: int = 16) -> list[list[int]]:
    """For each topic, the patterns that match it, by the code under test."""
    space = TopicSpace(style, levels)
    matcher = Scan().fit(space.compile(patterns, strict=True).subscriptions)
    return [row.tolist() for row in matcher.match(space.events(topics))]


def reasons(style: Style, patterns: list[Any], levels: int = 16) -> list[str]:
    found: list[str] = TopicSpace(style, levels).compile(patterns).rejected["reason"].to_pylist()
    return found


def words(style: Style) -> st.SearchStrategy[str]:
    """Levels that meet each other often, share the start of their keys, or need quoting."""
    few = [
        "a",
        "b",
        "$",
        "$SYS",
        "longer-than-a-key",
        "longer-than-a-kex",
        "sevenby",
        "sevenbyt",
        "é",
        "'",
        "\\",
    ]
    if style == "mqtt":
        few += ["", " ", "a b", "\n", "\\'", "\\n", "%", "a.b", "*", ">", "--", "\ue0000\ue001"]
    # In MQTT anything but the null character, in NATS anything without spaces.
    kept = {"nats": "./*>\x7f", "mqtt": "/+#\0"}[style]
    least = 33 if style == "nats" else 1
    letters = st.characters(codec="utf-8", min_codepoint=least, exclude_characters=kept)
    return st.sampled_from(few) | st.text(letters, min_size=int(style == "nats"), max_size=9)


@st.composite
def topics(draw: st.DrawFn, style: Style) -> str:
    levels = draw(st.lists(words(style), min_size=1, max_size=6))
    return SIGNS[style][0].join(levels) or "a"


@st.composite
def patterns(draw: st.DrawFn, style: Style, near: list[str]) -> str:
    """A pattern of at most four levels, as a rule made from a topic."""
    separator, one, many = SIGNS[style]
    topic = draw(st.sampled_from(near) | topics(style))
    levels = topic.split(separator)[: draw(st.integers(1, 4))]
    wild = draw(st.lists(st.booleans(), min_size=len(levels), max_size=len(levels)))
    made = [one if each else level for each, level in zip(wild, levels, strict=True)]
    pattern = separator.join(made + [many] * draw(st.booleans()))
    return many if pattern in ("", "$share") or pattern.startswith("$share/") else pattern


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=150)
@given(data=st.data())
def test_scan_equals_the_reference(style: Style, data: st.DataObject) -> None:
    published = data.draw(st.lists(topics(style), min_size=1, max_size=8))
    wanted = data.draw(st.lists(patterns(style, published), min_size=1, max_size=8))
    assert matches(style, wanted, published, levels=4) == [
        [i for i, pattern in enumerate(wanted) if topic_matches(pattern, topic, style)] for topic in published
    ]


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=150)
@given(data=st.data())
def test_a_pattern_is_the_filter_it_stands_for(style: Style, data: st.DataObject) -> None:
    wanted = data.draw(st.lists(patterns(style, ["a"]), min_size=1, max_size=8))
    space = TopicSpace(style, levels=4)
    ours = space.compile(wanted, strict=True).subscriptions
    filters = [as_filter(pattern, style) for pattern in wanted]
    theirs = compile_filters(space.schema, filters, strict=True).subscriptions
    for column in ("owner", "indptr", "attribute", "lo", "hi", "exact"):
        np.testing.assert_array_equal(getattr(ours.boxes, column), getattr(theirs.boxes, column))
    assert ours.check.equals(theirs.check)
    assert ours.subscription_id.tolist() == theirs.subscription_id.tolist()
    assert ours.subscribers.equals(theirs.subscribers)
    assert ours.subscriber.tolist() == theirs.subscriber.tolist()


@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=200)
@given(
    texts=st.lists(
        st.text(st.sampled_from("a.*>/+#$ \0\x7f\né"), max_size=5)
        | st.sampled_from(["$share", "$share/a", "a$share"]),
        max_size=20,
    )
)
def test_exactly_the_bad_are_refused(style: Style, texts: list[str]) -> None:
    space = TopicSpace(style)
    rejected = space.compile(texts).rejected["subscription_id"].to_pylist()
    assert rejected == [i for i, text in enumerate(texts) if not is_good(text, style, wildcards=True)]
    bad = [i for i, text in enumerate(texts) if not is_good(text, style, wildcards=False)]
    if bad:
        with refused(TableError, f"row {bad[0] + 1} of {len(texts)}"):
            space.events(texts)
    else:
        assert len(space.events(texts)) == len(texts)


# What the documentation of NATS says of its wildcards, and the tests of its server.
@pytest.mark.parametrize(
    ("pattern", "topic", "wanted"),
    [
        ("time.*.east", "time.us.east", True),
        ("time.*.east", "time.eu.east", True),
        ("time.*.east", "time.us.south.east", False),
        ("time.us.>", "time.us.east", True),
        ("time.us.>", "time.us.east.atlanta", True),
        ("time.us.*", "time.us.east", True),
        ("time.us.*", "time.us.east.atlanta", False),
        ("*.*.east.>", "time.us.east.atlanta", True),
        ("*.*.east.>", "time.us.east", False),
        ("foo.>", "foo.bar.baz.1", True),
        ("foo.>", "foo", False),
        ("foo", "foo", True),
        ("foo", "Foo", False),
        ("foo", "foo.bar", False),
        ("*", "foo", True),
        ("*", "foo.bar", False),
        (">", "foo", True),
        (">", "foo.bar", True),
        (">", "$SYS.foo", True),
        ("*.foo", "$SYS.foo", True),
        ("bar.>", "foo.bar", False),
        ("stats.*.*", "stats.test.22", True),
        ("stats.test.foo", "stats.test.foos", False),
        ("stats.test.*", "stats.test", False),
        ("stats.*", "stats.test.foos", False),
        ("stats.*.*.foos", "stats.test.foos", False),
        ("*", "foo*", True),
        ("foo.*.bar", "foo.>>>.bar", True),
    ],
)
def test_nats_vectors(pattern: str, topic: str, wanted: bool) -> None:
    assert topic_matches(pattern, topic, "nats") == wanted
    assert matches("nats", [pattern], [topic]) == [[0] if wanted else []]


# Section 4.7 of the specifications of MQTT 3.1.1 and 5.
@pytest.mark.parametrize(
    ("pattern", "topic", "wanted"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/tennis/player1/#", "sport/tennis/player2", False),
        ("sport/#", "sport", True),
        ("sport/#", "sports", False),
        ("#", "sport/tennis", True),
        ("#", "/", True),
        ("/#", "/", True),
        ("/#", "/finance", True),
        ("/#", "finance", False),
        ("sport/tennis/+", "sport/tennis/player1", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("sport/+/player1", "sport/tennis/player1", True),
        ("+/tennis/#", "sport/tennis", True),
        ("+/tennis/#", "sport/tennis/player1", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("+", "finance", True),
        ("finance", "/finance", False),
        ("/finance", "/finance", True),
        ("#", "$SYS/monitor/Clients", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("+/#", "$SYS", False),
        ("#", "$", False),
        ("#", "a/$SYS", True),
        ("$SYS/#", "$SYS/", True),
        ("$SYS/#", "$SYS/monitor/Clients", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
        ("a/+", "a/$b", True),
        ("ACCOUNTS", "Accounts", False),
        ("Accounts payable", "Accounts payable", True),
    ],
)
def test_mqtt_vectors(pattern: str, topic: str, wanted: bool) -> None:
    assert topic_matches(pattern, topic, "mqtt") == wanted
    assert matches("mqtt", [pattern], [topic]) == [[0] if wanted else []]


@pytest.mark.parametrize(
    ("style", "pattern", "reason"),
    [
        ("nats", "", "'' is empty; write at least one level"),
        ("nats", "a..b", "'a..b'"),
        ("nats", ".a", "has an empty level"),
        ("nats", "a.", "has an empty level"),
        ("nats", ".", "has an empty level"),
        ("nats", "a.>.b", "'a.>.b' has '>' before its last level; use '*' for one level"),
        ("nats", ">.b", "has '>' before its last level"),
        ("nats", "a.>.", "has an empty level"),
        ("nats", "foo*.bar", "'foo*.bar'"),
        ("nats", "f*o.b*r", "mixes a wildcard with text"),
        ("nats", "foo>", "mixes a wildcard with text"),
        ("nats", "a.**", "mixes a wildcard with text"),
        ("nats", "a b", "'a b'"),
        ("nats", "a.b\n", "'a.b\\n' has a space or control character"),
        ("nats", "a\0", "'a\\x00' has a space or control character"),
        ("mqtt", "", "'' is empty; write at least one character"),
        ("mqtt", "a+", "'a+'"),
        ("mqtt", "sport+", "mixes a wildcard with text"),
        ("mqtt", "sport/tennis#", "mixes a wildcard with text"),
        ("mqtt", "a/\n#", "mixes a wildcard with text"),
        ("mqtt", "++", "mixes a wildcard with text"),
        ("mqtt", "sport/tennis/#/ranking", "has '#' before its last level; use '+' for one level"),
        ("mqtt", "#/", "has '#' before its last level"),
        ("mqtt", "a\0", "'a\\x00'"),
        ("mqtt", "$share/group/a/#", "is a shared subscription; give only"),
        ("mqtt", "a" * 65_536, "65,536 bytes"),
    ],
)
def test_a_bad_pattern_says_why(style: Style, pattern: str, reason: str) -> None:
    [found] = reasons(style, [pattern])
    assert found.startswith(reason) or reason in found
    assert found.startswith(repr(pattern)[:40])


def test_too_many_levels_name_the_number_the_limit_and_the_fix() -> None:
    fix = "must have at most 2; raise `levels` of the TopicSpace"
    assert reasons("nats", ["a.b", "a.b.>", "a.b.c", "*.*.*.>"], 2) == [
        f"'a.b.c' has 3 levels: {fix}",
        f"'*.*.*.>' has 3 levels: {fix}",
    ]
    assert reasons("mqtt", ["a/b", "a/b/#", "//", "a/b/c/#"], 2) == [
        f"'//' has 3 levels: {fix}",
        f"'a/b/c/#' has 3 levels: {fix}",
    ]


@pytest.mark.parametrize("style", STYLES)
def test_topics_deeper_than_the_levels(style: Style) -> None:
    separator, one, many = SIGNS[style]
    wanted = [separator.join(p) for p in (["a"], ["a", one], ["a", "b", many], [many], ["a", many])]
    deep = [separator.join("abcd"[:n]) for n in (1, 2, 3, 4)]
    parent = [2] if style == "mqtt" else []
    self_ = [4] if style == "mqtt" else []
    assert matches(style, wanted, deep, levels=2) == [
        [0, 3, *self_],
        [1, *parent, 3, 4],
        [2, 3, 4],
        [2, 3, 4],
    ]


def test_bad_rows_are_kept_with_their_reason_and_the_rest_goes_on() -> None:
    given_table = pa.table(
        {
            "note": list("uvwxyz"),
            "topic": ["a.b", "a..b", "", "a", "a", None],
            "subscription_id": pa.array([7, 8, 7, None, 9, 10], pa.int64()),
            "subscriber": ["a", "b", "c", "d", None, "a"],
        }
    )
    done = TopicSpace("nats").compile(given_table)
    assert done.subscriptions.subscription_id.tolist() == [7]
    assert done.subscriptions.subscribers.to_pylist() == ["a"]
    assert done.rejected.column_names == ["note", "topic", "subscription_id", "subscriber", "reason"]
    assert done.rejected.select(["subscription_id", "note", "reason"]).to_pylist() == [
        {
            "subscription_id": 8,
            "note": "v",
            "reason": "'a..b' has an empty level, which NATS does not allow; remove the extra '.'",
        },
        {
            "subscription_id": 7,
            "note": "w",
            "reason": "subscription_id 7 is used by an earlier row: must be distinct",
        },
        {"subscription_id": None, "note": "x", "reason": "subscription_id is null"},
        {"subscription_id": 9, "note": "y", "reason": "subscriber is null"},
        {"subscription_id": 10, "note": "z", "reason": "topic is null"},
    ]


def test_a_list_is_numbered_and_its_odd_items_are_set_aside() -> None:
    done = TopicSpace("nats").compile(["a", None, 5, "\ud800", "b.>"])
    assert done.subscriptions.subscription_id.tolist() == [0, 4]
    assert done.subscriptions.subscribers.to_pylist() == ["0", "4"]
    assert done.rejected["subscription_id"].to_pylist() == [1, 2, 3]
    assert done.rejected["reason"].to_pylist() == ["topic is null", "5 is not text", "is not valid Unicode"]


def test_strict_makes_the_first_bad_row_an_error() -> None:
    with refused(FilterError, "2", "subscription_id", "1", "a+"):
        TopicSpace("mqtt").compile(["a", "a+", ""], strict=True)


def test_what_is_no_list_of_patterns() -> None:
    with refused(TableError, "a.b"):
        TopicSpace("nats").compile("a.b")
    with refused(TableError, "topic", "subscription_id", parameter="topic"):
        TopicSpace("nats").compile(pa.table({"subscription_id": [1], "filter": ["a"], "subscriber": ["x"]}))


@pytest.mark.parametrize("style", STYLES)
def test_no_patterns_only_bad_ones_and_no_topics(style: Style) -> None:
    space = TopicSpace(style)
    for wanted in ([], [""]):
        done = space.compile(wanted)
        assert (len(done.subscriptions), done.rejected.num_rows) == (0, len(wanted))
        assert Scan().fit(done.subscriptions).match(space.events(["a"])).counts().tolist() == [0]
    assert len(space.events([])) == 0


@pytest.mark.parametrize(
    ("style", "topic", "reason"),
    [
        ("nats", "", "'' is empty; write at least one level"),
        ("nats", "a..b", "'a..b'"),
        ("nats", "a.", "'a.' has an empty level"),
        ("nats", "a.*.b", "'a.*.b'"),
        ("nats", ">", "'>' has a wildcard"),
        ("nats", "a b", "'a b' has a space or control character"),
        ("mqtt", "", "'' is empty; write at least one character"),
        ("mqtt", "a/+", "'a/+'"),
        ("mqtt", "a#", "'a#' has a wildcard"),
        ("mqtt", "\0", "'\\x00' has a null character"),
        ("mqtt", "é" * 32_768, "'" + "é" * 59 + " has 65,536 bytes: must have at most 65,535"),
        ("mqtt", None, "topic is null"),
        ("mqtt", 5, "5 is not text"),
        ("mqtt", "\ud800", "is not valid Unicode"),
    ],
)
def test_a_topic_that_cannot_be_published_to_is_named(style: Style, topic: Any, reason: str) -> None:
    with pytest.raises(TableError) as error:
        TopicSpace(style).events(["a", "a", topic, "", None])
    assert str(error.value).startswith(f"row 3 of 5: {reason}")


def test_events_hold_the_levels_and_what_is_deeper() -> None:
    batch = TopicSpace("mqtt", levels=2).events(["a", "/b", "a/b/c/d"], event_id=[30, 10, 20])
    assert batch.to_arrow().to_pylist() == [
        {"event_id": 30, "level_0": "a", "level_1": None, "level_2": None},
        {"event_id": 10, "level_0": "", "level_1": "b", "level_2": None},
        {"event_id": 20, "level_0": "a", "level_1": "b", "level_2": "c/d"},
    ]
    assert TopicSpace("nats").events(["a", "b"]).event_id.tolist() == [0, 1]


def test_topics_as_arrow_columns() -> None:
    space = TopicSpace("nats", levels=1)
    column = pa.chunked_array([["x", "a.b"], ["c"]])
    for given_topics in (
        column.slice(1),
        pa.array(["x", "a.b", "c"]).slice(1),
        pa.array(["a.b", "c"], pa.large_string()),
        pa.array(["a.b", "c"]).dictionary_encode(),
    ):
        assert [c.to_pylist() for c in space.events(given_topics).columns] == [["a", "c"], ["b", None]]


def test_what_is_no_list_of_topics_or_ids() -> None:
    space = TopicSpace("nats")
    with refused(TableError, "a.b"):
        space.events("a.b")
    with refused(TableError, "3", "2", parameter="event_id"):
        space.events(["a", "b"], event_id=np.arange(3))
    with refused(TableError, "event_id", parameter="event_id"):
        space.events(["a", "b"], event_id=[1, "x"])
    with refused(TableError, "event_id", "1", parameter="event_id"):
        space.events(["a", "b"], event_id=pa.array([1, None]))


def test_the_space_itself() -> None:
    space = TopicSpace("mqtt", levels=3)
    assert space.schema.to_dict() == {f"level_{i}": "string" for i in range(4)}
    assert (space, hash(space)) == (TopicSpace("mqtt", 3), hash(TopicSpace("mqtt", 3)))
    assert repr(space) == "TopicSpace(style='mqtt', levels=3)"
    assert TopicSpace() == TopicSpace("nats", 16)
    with refused(ParameterError, "amqp", parameter="style", value="amqp"):
        TopicSpace("amqp")  # type: ignore[arg-type]
    for levels in (0, MOST_LEVELS + 1):
        with refused(ParameterError, "1,000", parameter="levels", value=levels):
            TopicSpace("nats", levels)


def test_the_deepest_pattern_there_can_be() -> None:
    long = "/".join(["longer-than-a-key"] * MOST_LEVELS)
    wanted = [long, f"{long}/#", "/".join("+" * MOST_LEVELS)]
    assert matches("mqtt", wanted, [long, f"{long}/x"], MOST_LEVELS) == [[0, 1, 2], [1]]
