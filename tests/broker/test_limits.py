"""Limits of a broker: what exceeds them is refused in bounded time, with value and limit."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import narrowcast as nc
from narrowcast.broker import ControlPlane, MemoryTransport, Node, Publisher, Subscriber, SubscriptionIndex
from narrowcast.broker.data.decode import LARGEST, Decoder
from narrowcast.broker.data.rate_limit import PublishRateLimit
from narrowcast.broker.limits import BrokerLimits
from narrowcast.broker.storage.dead_letters import DeadLetters
from narrowcast.errors import InputError, PaceError, ParameterError
from support.broker import SCHEMA
from support.errors import refused

if TYPE_CHECKING:
    from pathlib import Path

#: Seconds in which a filter of 64 KB is to be decided, on any machine.
PATIENCE = 20.0
NAMES = "bytes, depth, expand, boxes, payload, subscriptions, text, subscribers, attributes, rate, burst"


def test_parse() -> None:
    assert BrokerLimits.parse([]) == BrokerLimits()
    found = BrokerLimits.parse(
        ["bytes=1000", "boxes=7", "subscriptions=10_000", "rate=2.5", "burst=9", "subscribers=3"]
    )
    assert (found.filters.bytes, found.filters.boxes, found.filters.depth) == (1000, 7, 100)
    assert (found.subscriptions, found.subscribers, found.rate, found.burst) == (10_000, 3, 2.5, 9)
    assert (found.payload, found.attributes) == (LARGEST, 500)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["size=1"], ("size=1", NAMES)),
        (["payload"], ("payload", "''", 1000)),
        (["payload=1.5"], ("payload", "1.5", 1000)),
        (["payload=1"], ("payload", 1, 2, 1032192)),
        (["payload=2000000"], ("payload", 2000000, 2, 1032192)),
        (["depth=300"], ("depth", 300, 250)),
        (["boxes=0"], ("boxes", 0, 1)),
        (["boxes=100000"], ("boxes", 100000, 65536)),
        (["subscriptions=0"], ("subscriptions", 0, 1)),
        (["text=786433"], ("text", 786433, 786432)),
        (["rate=0"], ("rate", 0)),
        (["rate=nan"], ("rate", "nan")),
        (["burst=5"], ("burst", 5, "rate")),
        (["rate=5", "rate=6"], ("rate",)),
    ],
)
def test_invalid_limits(words: list[str], shown: tuple[object, ...]) -> None:
    with refused(ParameterError, *shown):
        BrokerLimits.parse(words)


def test_an_invalid_limit_is_in_the_fields_of_the_error() -> None:
    with refused(ParameterError, 1, parameter="payload", value=1):
        BrokerLimits(payload=1)
    with refused(ParameterError, "size=1", parameter="limit", value="size=1"):
        BrokerLimits.parse(["size=1"])


def assert_refused(
    interests: SubscriptionIndex,
    subscriber: str,
    *filters: str,
    shown: tuple[object, ...] = (),
    **fields: Any,
) -> None:
    """Check that filters are refused with certain values and fields, and that nothing is left of them."""
    before = (len(interests), interests.schema, interests.of(subscriber))
    with refused(InputError, *shown, **fields) as caught:
        interests.add(subscriber, filters)
    assert (len(interests), interests.schema, interests.of(subscriber)) == before
    assert len(str(caught.value)) < 600


def test_total_length_of_filters_per_subscriber() -> None:
    interests = SubscriptionIndex(SCHEMA, limits=BrokerLimits(text=100))
    interests.add("ann", ["price > 1", "name = 'é'"])  # 25 and 27 bytes
    assert_refused(
        interests, "ann", "price > 2", "price > 3",
        shown=("'ann'", 52, 50, 16, 100), parameter="text", value=102,
    )  # fmt: skip
    interests.add("ann", ["price > 2"])
    interests.add("bob", ["price > 2", "price > 3", "price > 4", "price > 5"])


def test_number_of_subscriptions_per_subscriber() -> None:
    interests = SubscriptionIndex(limits=BrokerLimits(subscriptions=3))
    interests.add("ann", ["price > 1", "price > 2"])
    assert_refused(
        interests, "ann", "price > 3", "price > 4",
        shown=("'ann' has 2", "2 more", 3), parameter="subscriptions", value=4,
    )  # fmt: skip
    [third] = interests.add("ann", ["price > 3"])
    assert_refused(interests, "ann", "price > 4", shown=("'ann' has 3",), parameter="subscriptions", value=4)
    interests.remove("ann", [third])
    interests.add("ann", ["price > 4"])
    interests.add("bob", ["price > 1"])
    # A table belongs to the operator, whom limits on subscribers do not bind.
    assert interests.load(["cid"] * 5, [f"price > {i}" for i in range(5)]) == []
    assert_refused(
        interests, "cid", "price > 9", shown=("'cid' has 5", 3), parameter="subscriptions", value=6
    )


def test_number_of_subscribers() -> None:
    interests = SubscriptionIndex(limits=BrokerLimits(subscribers=2))
    [first] = interests.add("ann", ["price > 1"])
    interests.add("bob", ["price > 1"])
    interests.add("ann", ["price > 2"])
    assert_refused(interests, "cid", "price > 1", shown=("'cid'", 2), parameter="subscribers", value=3)
    interests.remove("ann", [first, first + 2])
    interests.add("cid", ["price > 1"])


def test_number_of_attributes() -> None:
    interests = SubscriptionIndex(limits=BrokerLimits(attributes=3))
    interests.add("ann", ["a > 1 AND b > 1"])
    assert_refused(
        interests, "ann", "a > 2", "c > 1 AND d > 1", shown=(2, "'c'", 3), parameter="attributes", value=4
    )
    interests.add("ann", ["c > 1"])
    assert interests.schema.names == ("a", "b", "c")
    given_types = nc.Schema.of({f"a{i}": "double" for i in range(5)})
    SubscriptionIndex(given_types, limits=BrokerLimits(attributes=1)).add("ann", ["a4 > 1"])


def test_length_of_attribute_names() -> None:
    interests = SubscriptionIndex()
    name = "é" * 128 + "x"
    assert_refused(
        interests, "ann", "a > 1", f"{name} > 1",
        shown=("é" * 59, 257, 256), parameter="attribute", value=name,
    )  # fmt: skip
    interests.add("ann", [f"{'a' * 256} > 1"])
    assert interests.schema.names == ("a" * 256,)
    given_types = nc.Schema.of({"a" * 257: "double"})
    SubscriptionIndex(given_types).add("ann", [f"{'a' * 257} > 1"])


def test_filters() -> None:
    interests = SubscriptionIndex(limits=BrokerLimits.parse(["bytes=50", "depth=3", "boxes=4"]))
    assert_refused(interests, "ann", f"name = '{'x' * 52}'", shown=(61, 50))
    assert_refused(interests, "ann", "((((a > 1))))", shown=(4, 3))
    assert_refused(interests, "ann", "a>1 OR b>1 OR c>1 OR d>1 OR e>1", shown=(5, 4))
    assert len(interests) == 0


def test_subscriber_names() -> None:
    interests = SubscriptionIndex()
    assert_refused(interests, "x" * 513, "a > 1", shown=(513, 512), parameter="subscriber", value="x" * 513)
    assert_refused(interests, "\ud800", "a > 1", parameter="subscriber", value="\ud800")
    assert_refused(interests, "ann", "name = '\ud800'", parameter="filter", value="name = '\ud800'")


def test_a_refused_filter_changes_no_schema() -> None:
    """Valid subscriptions are not indexed again because of an invalid filter."""
    interests = SubscriptionIndex()
    interests.add("ann", ["price > 1"])
    change, matcher = interests.change, interests.matcher
    assert_refused(interests, "ann", "other > 1", "price = 'dear'", shown=("price = 'dear'",))
    assert interests.change == change
    assert interests.matcher is matcher


LARGE = {
    "parentheses": "(" * 30_000 + "a > 1" + ")" * 30_000,
    "nots": "NOT " * 16_000 + "b",
    "ors": " OR ".join(f"a = {i}" for i in range(5_000)),
    "ranges": " OR ".join(f"(a > {2 * i} AND a < {2 * i + 1})" for i in range(1_800)),
    "ors of many": " OR ".join(f"a{i % 20} > {i}" for i in range(4_000)),
    "ands of ors": " AND ".join(
        "(" + " OR ".join(f"a{j} > {i * j}" for j in range(20)) + ")" for i in range(200)
    ),
    "in": f"a IN ({','.join(map(str, range(11_000)))})",
    "not in": f"name NOT IN ({','.join(repr(str(i)) for i in range(7_000))})",
    "product": " AND ".join(f"a{i} IN ({','.join(map(str, range(100)))})" for i in range(20)),
    "wildcards": f"name LIKE '{'%a' * 30_000}%'",
    "both wildcards": f"name LIKE '{'%a_' * 20_000}%'",
    "underscores": f"name LIKE '{'_' * 60_000}'",
    "likes": " OR ".join(f"name LIKE '%{i}%a%b%'" for i in range(2_500)),
    "digits": f"a > {'9' * 60_000}",
    "exponent": f"a > 1e{'9' * 60_000}",
    "dots": ".".join("a" * 30_000),
    "semicolons": ";" * 60_000,
    "brackets": f"a{'[0]' * 20_000} = 1",
    "minuses": f"a > {'- ' * 30_000}1",
    "attributes": " AND ".join(f"x{i} > 1" for i in range(6_000)),
    "casts": f"a{'::int' * 10_000} = 1",
    "quotes": "'" * 60_001,
    "comment": "a > 1 /*" + "*" * 60_000,
}


def reason_against(interests: SubscriptionIndex, text: str) -> str:
    """Add a filter; return why it is refused, or an empty text."""
    try:
        interests.add("ann", [text])
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", LARGE)
def test_large_filters_are_decided_in_time(kind: str) -> None:
    """Large filters are accepted or refused in bounded time, and so are events matched with them."""
    interests, begun = SubscriptionIndex(), time.process_time()
    assert len(reason_against(interests, LARGE[kind][:65_536])) < 600
    payloads = [b'{"a": 7, "name": "%s", "b": true}' % (b"a" * 100_000)] * 5
    for events, _ in Decoder(interests.schema).decode(payloads).good:
        interests.matcher.match(events)
    assert time.process_time() - begun < PATIENCE


KNOWN = "a name ( ) AND OR NOT = <> < >= LIKE IN IS NULL BETWEEN 1 1.5 1e9 'x' '%_' CAST AS INT DATE TRUE"
ODD = ", . ; - * [ ] ` \" ' \\ /* */ -- \ud800 \0 \ue000 é"
words = st.sampled_from([*KNOWN.split(" "), *ODD.split(" ")])


@given(st.one_of(st.lists(words, max_size=25).map(" ".join), st.text(max_size=60)))
def test_any_text_is_accepted_or_refused(text: str) -> None:
    interests = SubscriptionIndex(limits=BrokerLimits(attributes=50))
    why = reason_against(interests, text)
    assert not re.search(r"[\n\r]", why)
    assert interests.of("ann") == ({} if why else {0: text})
    for events, _ in Decoder(interests.schema).decode([b'{"a": 1, "name": "x"}', b"{}"]).good:
        interests.matcher.match(events)


def test_a_node_enforces_the_rate_limit(tmp_path: Path) -> None:
    async def run() -> None:
        transport, kept = MemoryTransport(), DeadLetters(tmp_path / "letters.db")
        node = Node(
            transport,
            ControlPlane(transport, SubscriptionIndex(SCHEMA)),
            pace=PublishRateLimit(5, 10),
            dead_letters=kept,
        )
        await node.start()
        async with Subscriber(transport, "ann") as ann:
            await ann.subscribe("price >= 0")
            fast, slow = [await Publisher(transport, name).start() for name in ("fast", "slow")]
            for price in range(30):
                await fast.publish({"price": price})
            await slow.publish({"price": 100})
            await slow.flush()
            with refused(PaceError, 20, "'fast'", 5):
                await fast.flush()
            found = [event.data["price"] for event in await ann.take(100)]
            while 100 not in found:
                found += [event.data["price"] for event in await ann.take(100)]
            assert sorted(found) == [*range(10), 100]
            letters = kept.read()
            assert [letter.payload for letter in letters] == [b'{"price":%d}' % n for n in range(10, 30)]
            assert {letter.publisher for letter in letters} == {"fast"}
            await slow.aclose()
        await node.stop()
        kept.close()

    asyncio.run(run())
