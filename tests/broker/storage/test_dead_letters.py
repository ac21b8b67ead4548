"""Dead letters: invalid events are stored with the reason, up to a limit, and can be published again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.broker import (
    ControlPlane,
    MemoryTransport,
    Node,
    Publisher,
    Subscriber,
    SubscriptionIndex,
    wire,
)
from narrowcast.broker.storage.dead_letters import DeadLetters
from narrowcast.errors import ParameterError, TransportError
from support.broker import SCHEMA
from support.errors import refused

if TYPE_CHECKING:
    from pathlib import Path


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=8), st.integers(1, 6), st.integers(1, 20))
def test_the_newest_within_the_limits_remain(batches: list[list[int]], most: int, size: int) -> None:
    kept, gone = DeadLetters(":memory:", most=most, bytes_=size), 0
    every: list[tuple[str, int, str, bytes]] = []
    for number, batch in enumerate(batches):
        some = [("p", number, "because", bytes(length)) for length in batch]
        kept.add(some)
        every += some
        while len(every) > most or sum(len(payload) for *_, payload in every) > size:
            every.pop(0)
            gone += 1
        assert [(*letter[2:4], letter.reason, letter.payload) for letter in kept.read()] == every
        assert (len(kept), kept.dropped) == (len(every), gone)
    kept.close()


def test_removal_by_another_process_makes_room(tmp_path: Path) -> None:
    kept = DeadLetters(tmp_path / "letters.db", most=10, bytes_=1000)
    kept.add([("p", i, "bad", b"x" * 10) for i in range(10)])
    other = DeadLetters(tmp_path / "letters.db")
    other.remove([letter.letter for letter in other.read(most=6)])
    assert (len(kept), len(other)) == (4, 4)
    kept.add([("p", i, "bad", b"y" * 10) for i in range(10, 16)])
    assert [letter.number for letter in kept.read()] == [*range(6, 16)]
    assert (kept.dropped, len(other)) == (0, 10)
    kept.add([("p", 16, "bad", b"z" * 10)])
    assert ([letter.number for letter in other.read()], kept.dropped) == ([*range(7, 17)], 1)
    other.close()
    kept.close()


def test_a_failed_write_is_not_counted(tmp_path: Path) -> None:
    kept, other = DeadLetters(tmp_path / "letters.db", most=3), DeadLetters(tmp_path / "letters.db")
    other._file.db.execute(
        "CREATE TRIGGER no BEFORE INSERT ON letters BEGIN SELECT RAISE(ABORT, 'full'); END"
    )
    with refused(TransportError, "full"):
        kept.add([("p", i, "bad", b"x") for i in range(3)])
    other._file.db.execute("DROP TRIGGER no")
    kept.add([("p", 7, "bad", b"x")])
    assert (len(kept), kept.dropped) == (1, 0)


def test_any_reason_can_be_stored() -> None:
    kept = DeadLetters(":memory:")
    kept.add([("p\ud800", 1, "\udc00 é" + "x" * 5000, b"")])
    [letter] = kept.read()
    assert (letter.publisher, letter.reason[:8], len(letter.reason)) == ("p\\ud800", "\\udc00 é", 1005)
    kept.close()


def test_the_rate_of_stored_letters_is_limited(tmp_path: Path) -> None:
    kept = DeadLetters(tmp_path / "a" / "letters.db", rate=10)
    kept.add([("p", i, "bad", b"x") for i in range(25)])
    assert (len(kept), kept.n_skipped) == (10, 15)
    kept.close()
    again = DeadLetters(tmp_path / "a" / "letters.db")
    assert [letter.number for letter in again.read(most=3)] == [0, 1, 2]
    assert [letter.number for letter in again.read(again.read()[7].letter)] == [8, 9]
    again.remove([letter.letter for letter in again.read(most=9)])
    assert again.reasons() == {"bad": 1}
    again.close()


def test_invalid_limits_and_files_are_refused(tmp_path: Path) -> None:
    with refused(ParameterError, parameter="most", value=0):
        DeadLetters(":memory:", most=0, bytes_=1, rate=1)
    (tmp_path / "letters.db").write_text("this is no database, however long it may be")
    with refused(TransportError, tmp_path / "letters.db", "file is not a database"):
        DeadLetters(tmp_path / "letters.db")


def test_a_node_stores_invalid_events(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        transport, kept = MemoryTransport(), DeadLetters(tmp_path / "letters.db")
        node = Node(
            transport, ControlPlane(transport, SubscriptionIndex(SCHEMA)), dead_letters=kept, largest=100
        )
        await node.start()
        async with Subscriber(transport, "ann") as ann, Publisher(transport, "p") as publisher:
            await ann.subscribe("price > 1")
            bad = [b"{", b"[1]", b'{"price": "dear"}', b'{"name": "%s"}' % (b"x" * 100), b""]
            first = publisher.number
            for event in (bad[0], b'{"price": 2}', *bad[1:], b'{"price": 3}'):
                await publisher.publish(event)
            await transport.publish("nc.in", b"garbage")  # without a client, and as an invalid batch
            await transport.publish("nc.in.0.q", b"\x93garbage")
            await publisher.flush()
            assert [(await anext(ann)).data["price"] for _ in range(2)] == [2, 3]
            async with asyncio.timeout(20):
                while len(kept) < 7:
                    await asyncio.sleep(0.01)
            letters = kept.read()
            assert sorted(letter.payload for letter in letters) == sorted([*bad, b"garbage", b"\x93garbage"])
            own = [letter for letter in letters if letter.publisher == "p"]
            assert [letter.number - first for letter in own] == [0, 2, 3, 4, 5]
            assert own[2].reason == "attribute 'price' is double, not a text"
            assert node.counts.bad == 7
            kept.close()  # as if the disk were gone: events go on
            for event in (b"{", b'{"price": 4}'):
                await publisher.publish(event)
            assert (await anext(ann)).data == {"price": 4}
        await node.stop()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert "1 dead letters" in caplog.text


def test_the_subject_identifies_the_publisher_of_a_letter() -> None:
    """The publisher's name in the message is ignored: with users only the publisher may use its subject."""

    async def run() -> None:
        transport = MemoryTransport()
        kept = DeadLetters(":memory:")
        desk = ControlPlane(transport, SubscriptionIndex(SCHEMA))
        node = Node(transport, desk, dead_letters=kept)
        await node.start()
        async with Subscriber(transport, "ann") as ann:
            await ann.subscribe("price >= 0")
            own = desk.subjects.ingress("mal lory", node.partitions)
            forged = wire.encode(wire.PublishedBatch("desk", 1, [b'{"price": 1}']))
            for payload in (forged, b"\x93\xff", b"junk", b'{"price": 2}'):
                await transport.publish(own, payload)
            await transport.publish(desk.subjects.plain, b'{"price": 3}')
            found = [await anext(ann) for _ in range(2)]
            assert [(event.publisher[:5], event.data["price"]) for event in found] == [
                ("mal l", 2), ("node-", 3),
            ]  # fmt: skip
        assert [letter.publisher for letter in kept.read()] == ["mal lory"] * 3
        await node.stop()
        kept.close()

    asyncio.run(asyncio.wait_for(run(), 30))
