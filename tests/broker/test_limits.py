"""What is too much is refused in one line that names value, limit and fix, and in bounded time."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING

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
    ("words", "reason"),
    [
        (["size=1"], f"--limit is 'size=1'; give NAME=VALUE, with one of these names: {NAMES}"),
        (["payload"], "--limit payload is ''; give a whole number, such as payload=1000"),
        (["payload=1.5"], "--limit payload is '1.5'; give a whole number, such as payload=1000"),
        (["payload=1"], "--limit payload=1 is outside 2 to 1032192: a message of NATS has 1 MB"),
        (["payload=2000000"], "--limit payload=2000000 is outside 2 to 1032192: a message of NATS has 1 MB"),
        (["depth=300"], "--limit depth=300 is over 250, the most that can be parsed; give another"),
        (["boxes=0"], "--limit boxes=0 is below 1; give another"),
        (["boxes=100000"], "--limit boxes=100000 is over 65536, the most that subscribers take"),
        (["subscriptions=0"], "--limit subscriptions=0 is below 1; raise it"),
        (["text=786433"], "--limit text=786433 is over 786432: a message of NATS has 1 MB"),
        (["rate=0"], "--limit rate=0 is not above 0; raise it, or leave it out for any rate"),
        (["rate=nan"], "--limit rate=nan is not above 0; raise it, or leave it out for any rate"),
        (["burst=5"], "--limit burst=5 is given without rate; give both"),
        (["rate=5", "rate=6"], "--limit rate is given twice; leave one out"),
    ],
)  # fmt: skip
def test_limits_that_are_none(words: list[str], reason: str) -> None:
    with pytest.raises(ParameterError) as refused:
        BrokerLimits.parse(words)
    assert str(refused.value) == reason


def refusal(interests: SubscriptionIndex, subscriber: str, *filters: str) -> str:
    """Return why filters are refused; nothing is left of them."""
    before = (len(interests), interests.schema, interests.of(subscriber))
    with pytest.raises(InputError) as refused:
        interests.add(subscriber, filters)
    assert (len(interests), interests.schema, interests.of(subscriber)) == before
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600
    return str(refused.value)


def test_filters_of_one_together() -> None:
    interests = SubscriptionIndex(SCHEMA, limits=BrokerLimits(text=100))
    interests.add("ann", ["price > 1", "name = 'é'"])  # 25 and 27 bytes
    said = refusal(interests, "ann", "price > 2", "price > 3")
    assert said == (
        "'ann' has filters of 52 bytes and asks for 50 more, with 16 for the number of each; 100 are the "
        "most that a subscriber may have: use fewer or shorter ones, or another name beside this one, or "
        "raise serve --limit text="
    )
    interests.add("ann", ["price > 2"])
    interests.add("bob", ["price > 2", "price > 3", "price > 4", "price > 5"])


def test_subscriptions_of_one() -> None:
    interests = SubscriptionIndex(limits=BrokerLimits(subscriptions=3))
    interests.add("ann", ["price > 1", "price > 2"])
    fix = "or raise serve --limit subscriptions="
    most = "3 are the most that a subscriber may have"
    assert refusal(interests, "ann", "price > 3", "price > 4") == (
        f"'ann' has 2 subscriptions and asks for 2 more; {most}: ask for fewer, {fix}"
    )
    [third] = interests.add("ann", ["price > 3"])
    assert refusal(interests, "ann", "price > 4") == (
        f"'ann' has 3 subscriptions; {most}: give some up, {fix}"
    )
    interests.remove("ann", [third])
    interests.add("ann", ["price > 4"])
    interests.add("bob", ["price > 1"])
    # A table is whoever's who starts the broker.
    assert interests.load(["cid"] * 5, [f"price > {i}" for i in range(5)]) == []
    assert "'cid' has 5 subscriptions; 3 are the most" in refusal(interests, "cid", "price > 9")


def test_subscribers_in_all() -> None:
    interests = SubscriptionIndex(limits=BrokerLimits(subscribers=2))
    [first] = interests.add("ann", ["price > 1"])
    interests.add("bob", ["price > 1"])
    interests.add("ann", ["price > 2"])
    assert refusal(interests, "cid", "price > 1") == (
        "'cid' is one too many: there are 2 subscribers, and 2 may be there; others have to give theirs up, "
        "or raise serve --limit subscribers="
    )
    interests.remove("ann", [first, first + 2])
    interests.add("cid", ["price > 1"])


def test_attributes_in_all() -> None:
    interests = SubscriptionIndex(limits=BrokerLimits(attributes=3))
    interests.add("ann", ["a > 1 AND b > 1"])
    assert refusal(interests, "ann", "a > 2", "c > 1 AND d > 1") == (
        "filters name 2 attributes, and 'c' is new; 3 may be named: use those that there are, say by serve "
        "--schema which there are, or raise serve --limit attributes="
    )
    interests.add("ann", ["c > 1"])
    assert interests.schema.names == ("a", "b", "c")
    given_types = nc.Schema.of({f"a{i}": "double" for i in range(5)})
    SubscriptionIndex(given_types, limits=BrokerLimits(attributes=1)).add("ann", ["a4 > 1"])


def test_names_of_attributes() -> None:
    interests = SubscriptionIndex()
    assert refusal(interests, "ann", "a > 1", f"{'é' * 128}x > 1") == (
        f"attribute '{'é' * 59} has a name of 257 bytes; the most is 256 where filters say which there are: "
        "shorten it, or say so by serve --schema"
    )
    interests.add("ann", [f"{'a' * 256} > 1"])
    assert interests.schema.names == ("a" * 256,)
    given_types = nc.Schema.of({"a" * 257: "double"})
    SubscriptionIndex(given_types).add("ann", [f"{'a' * 257} > 1"])


def test_filters() -> None:
    interests = SubscriptionIndex(limits=BrokerLimits.parse(["bytes=50", "depth=3", "boxes=4"]))
    assert "a filter of 61 bytes is over the limit of 50" in refusal(interests, "ann", f"name = '{'x' * 52}'")
    assert "is nested 4 deep; the limit is 3" in refusal(interests, "ann", "((((a > 1))))")
    assert "needs 5 boxes, over the limit of 4" in refusal(
        interests, "ann", "a>1 OR b>1 OR c>1 OR d>1 OR e>1"
    )
    assert len(interests) == 0


def test_names() -> None:
    interests = SubscriptionIndex()
    assert refusal(interests, "x" * 513, "a > 1").endswith(
        "has a name of 513 bytes; the most is 512: shorten it"
    )
    assert "is no valid text; mend the name" in refusal(interests, "\ud800", "a > 1")
    assert "it is no valid text" in refusal(interests, "ann", "name = '\ud800'")


def test_what_is_refused_is_not_learnt() -> None:
    """Others are not indexed anew for the sake of a filter that cannot be used."""
    interests = SubscriptionIndex()
    interests.add("ann", ["price > 1"])
    change, matcher = interests.change, interests.matcher
    assert "cannot be used" in refusal(interests, "ann", "other > 1", "price = 'dear'")
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
    """Let somebody subscribe; return why not, or nothing."""
    try:
        interests.add("ann", [text])
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", LARGE)
def test_large_filters_are_decided_in_time(kind: str) -> None:
    """As they are taken or refused, so are events matched with those that are taken."""
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
def test_any_text_is_taken_or_refused(text: str) -> None:
    interests = SubscriptionIndex(limits=BrokerLimits(attributes=50))
    why = reason_against(interests, text)
    assert not re.search(r"[\n\r]", why)
    assert interests.of("ann") == ({} if why else {0: text})
    for events, _ in Decoder(interests.schema).decode([b'{"a": 1, "name": "x"}', b"{}"]).good:
        interests.matcher.match(events)


def test_a_node_holds_publishers_to_their_rate(tmp_path: Path) -> None:
    async def run() -> None:
        transport, kept = MemoryTransport(), DeadLetters(tmp_path / "letters.db")
        node = Node(
            transport,
            ControlPlane(transport, SubscriptionIndex(SCHEMA)),
            pace=PublishRateLimit(5, 10),
            quarantine=kept,
        )
        await node.start()
        async with Subscriber(transport, "ann") as ann:
            await ann.subscribe("price >= 0")
            fast, slow = [await Publisher(transport, name).start() for name in ("fast", "slow")]
            for price in range(30):
                await fast.publish({"price": price})
            await slow.publish({"price": 100})
            await slow.flush()
            with pytest.raises(
                PaceError, match=r"^20 events of 'fast' from .* sends more than 5 events a second"
            ):
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
