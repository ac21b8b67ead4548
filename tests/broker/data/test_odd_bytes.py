"""Whatever bytes somebody sends, no node ends by them, and none of them comes again."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pytest

from narrowcast.broker import ControlPlane, Follower, Node, Publisher, Subscriber, SubscriptionIndex, wire
from narrowcast.broker.data.rate_limit import PublishRateLimit
from narrowcast.broker.data.refusals import RefusalResponder
from narrowcast.broker.storage import positions as of_subscribers
from narrowcast.broker.storage.positions import Positions
from narrowcast.broker.storage.streams import EventStreams
from narrowcast.broker.transport import Message
from support.broker import PATIENCE, SCHEMA
from support.stored import broker, connected, read

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.nats

#: Headers that clients cannot read, or that say what only a server says.
HEADERS = (
    b"NATS/1.0", b"NATS/1.0 \xff\xff\xff\r\n\r\n", b"NATS/1.0 503 \xff\r\n\r\n", b"NATS/1.0 503\r\n\r\n",
    b"NATS/1.0\r\nStatus: 100\r\n\r\n", b"NATS/1.0\r\nNats-Sequence: " + b"9" * 5000 + b"\r\n\r\n",
    b"NATS/1.0\r\n\xff: \xff\r\n\r\n", b"NATS/1.0\r\n", b"?",
)  # fmt: skip
#: Words of subjects that are no text, or white space to some and not to others; and how they are read.
WORDS = {
    b"\xff\xfe": "\ufffd\ufffd",
    b"a\x0bb": "a\vb",
    b"a\x0cb": "a\fb",
    b"\x00": "\0",
    b"\xed\xa0": "\ufffd" * 2,
}


def message(subject: bytes, payload: bytes, reply: bytes = b"", header: bytes = b"") -> bytes:
    """Return what a client writes to publish something."""
    sizes = b"%d %d" % (len(header), len(header + payload)) if header else b"%d" % len(payload)
    words = [b"HPUB" if header else b"PUB", subject, *([reply] if reply else []), sizes]
    return b" ".join(words) + b"\r\n" + header + payload + b"\r\n"


async def write(url: str, *messages: bytes) -> None:
    """Publish as a client does that checks nothing."""
    host, _, port = url.rpartition("/")[2].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    said = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1}
    writer.write(b"CONNECT %b\r\n" % json.dumps(said).encode() + b"".join(messages) + b"PING\r\n")
    async with asyncio.timeout(PATIENCE):
        while (line := await reader.readline()) != b"PONG\r\n":
            assert line.startswith((b"INFO", b"PING")), line
    writer.close()


def working(node: Node) -> bool:
    """Return whether no part of a node has ended."""
    return not any(task.done() for task in node._tasks)


def positions_of(node: Node) -> Positions:
    """Return what a node knows of subscribers."""
    assert isinstance(node.holding, ControlPlane)
    assert node.holding._positions is not None
    return node.holding._positions


async def heard(url: str, *messages: bytes) -> list[Message]:
    """Return what comes of messages below ``odd``, and of a last one, over one connection."""
    found: list[Message] = []
    async with connected(url) as one:
        await one.subscribe("odd.>", found.append)
        await write(url, *messages, message(b"odd.last", b"last"))
        async with asyncio.timeout(PATIENCE):
            while not found or found[-1].payload != b"last":
                await asyncio.sleep(0.01)
        assert one.connections == 1
    return found[:-1]


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_that_cannot_be_read_says_nothing(nats_url: str, header: bytes) -> None:
    came = asyncio.run(heard(nats_url, message(b"odd.a", b"hello", b"odd.b", header)))
    assert came == [Message("odd.a", b"hello", "odd.b")]


def test_only_a_server_says_that_nobody_listens(nats_url: str) -> None:
    some = [message(b"odd.a", b"", b"odd.b", header) for header in HEADERS]
    assert asyncio.run(heard(nats_url, *some)) == [Message("odd.a", b"", "odd.b")] * len(HEADERS)


@pytest.mark.parametrize("word", WORDS)
def test_subjects_that_are_no_text(nats_url: str, word: bytes) -> None:
    subject = b"odd." + word
    some = message(subject, b"1"), message(b"odd.a", b"2", subject), message(subject, b"3", b"r", b"NATS/1.0")
    came = asyncio.run(heard(nats_url, *some))
    read_as = "odd." + WORDS[word]
    assert came == [Message(read_as, b"1"), Message("odd.a", b"2", read_as), Message(read_as, b"3", "r")]


def test_stored_messages_that_cannot_be_read_come_once(nats_url: str, tmp_path: Path) -> None:
    """They are there before a node is, which takes them as any others, and is there for all after them."""

    async def run() -> None:
        prefix, subject = "poison", b"poison.in.3.p"
        some = [message(subject, b'{"price": %d}' % i, b"", each) for i, each in enumerate(HEADERS)]
        some += [message(subject, b"", b"", header) for header in HEADERS]
        batch = wire.encode(wire.PublishedBatch("p", 1, [b'{"price": 100}']))
        some += [message(b"poison.in.3." + word, batch) for word in WORDS]
        async with connected(nats_url) as one:
            streams = EventStreams(one, wire.Subjects(prefix))
            await streams.start()

            async def waiting() -> int:
                found = await streams.stream_info(streams.ingress)
                assert found is not None
                return int(found["state"]["messages"])

            async with broker(nats_url, tmp_path, prefix):
                ann = await Subscriber(one, "ann", prefix=prefix).start()
                await ann.subscribe("price >= 0")
            await write(nats_url, *some)
            async with asyncio.timeout(PATIENCE):
                while await waiting() < len(some):
                    await asyncio.sleep(0.01)
            async with broker(nats_url, tmp_path, prefix) as node:
                await write(nats_url, *some, message(subject, b'{"price": 1000}'))
                found = await read(ann, 2 * len(HEADERS) + 1)
                assert [event.data["price"] for event in found] == [*range(len(HEADERS))] * 2 + [1000]
                async with asyncio.timeout(PATIENCE):
                    while await waiting():
                        await asyncio.sleep(0.01)
                assert node.counts.reasons["event is empty"] == 2 * len(HEADERS)
                assert node.counts.bad == 2 * len(HEADERS) + 2 * len(WORDS)
                assert working(node)
            async with broker(nats_url, tmp_path, prefix) as node:
                await write(nats_url, message(subject, b'{"price": 1001}'))
                assert [event.data["price"] for event in await read(ann, 1)] == [1001]
                assert node.counts.bad == 0
            await ann.aclose()
            await streams.aclose()

    asyncio.run(run())


#: What is no subject to answer at, though it begins as one.
NOWHERE = b"..x", b".*", b".>", b".\x0bx", b".", b"." + b"x" * 2100


@asynccontextmanager
async def forgetful(url: str, prefix: str) -> AsyncIterator[Node]:
    """Run a node that stores nothing, with a connection of its own."""
    async with connected(url) as one:
        node = Node(one, ControlPlane(one, SubscriptionIndex(SCHEMA), prefix=prefix, others=True))
        await node.start()
        try:
            yield node
            assert working(node)
        finally:
            await node.stop()


def test_questions_that_no_answer_can_be_sent_to(nats_url: str) -> None:
    async def run() -> None:
        hello = wire.encode(wire.Hello("ann"))
        async with forgetful(nats_url, "ask"), connected(nats_url) as one:
            for each in NOWHERE:
                reply = b"ask.answer.ann" + each
                await write(nats_url, message(b"ask.ask.ann", hello, reply))
                await write(nats_url, message(b"ask.orders", b"?", reply))
            bob = await Subscriber(one, "bob", prefix="ask").start()
            assert await bob.subscribe("price > 1") == [0]
            await bob.aclose()

    asyncio.run(run())


def test_publishers_that_no_answer_can_be_sent_to(nats_url: str) -> None:
    async def run() -> None:
        subjects = wire.Subjects("pub")
        async with forgetful(nats_url, "pub") as node, connected(nats_url) as one:
            ann = await Subscriber(one, "ann", prefix="pub").start()
            await ann.subscribe("price >= 0")
            to = subjects.ingress("eve", 16).encode()
            batches = [
                wire.encode(wire.PublishedBatch("eve", i + 1, [b'{"price": 1}'])) for i in range(len(NOWHERE))
            ]
            some = [message(to, b, b"pub.answer.eve" + r) for b, r in zip(batches, NOWHERE, strict=True)]
            await write(nats_url, *some)
            assert len(await read(ann, len(NOWHERE))) == len(NOWHERE)
            async with Publisher(one, "p", prefix="pub") as publisher:
                await publisher.publish({"price": 7})
                await publisher.flush()
            assert [event.data for event in await read(ann, 1)] == [{"price": 7}]
            assert working(node)
            await ann.aclose()

    asyncio.run(run())


def test_publishers_that_cannot_be_told_that_there_is_no_room(nats_url: str) -> None:
    async def run() -> None:
        async with connected(nats_url) as one:
            refusing = RefusalResponder(one, wire.Subjects("full"))
            await refusing.say("no space left on device")
            await write(
                nats_url, *(message(b"full.in", b"{}", b"full.answer.eve" + each) for each in NOWHERE)
            )
            answers = await one.subscribe("full.answer.p")
            await one.publish("full.in", b"{}", reply="full.answer.p")
            async with asyncio.timeout(PATIENCE):
                said = wire.decode_answer((await anext(answers)).payload)
            assert isinstance(said, wire.Refusal)
            assert "no space left on device" in said.reason
            await refusing.say("")

    asyncio.run(run())


def test_publishers_whose_names_cannot_be_told(nats_url: str, tmp_path: Path) -> None:
    """One is too long for an answer, and another is no text; what they send is done with all the same."""

    async def run() -> None:
        prefix, name = "named", "p" * 2030
        subjects = wire.Subjects(prefix)
        async with (
            connected(nats_url) as one,
            broker(nats_url, tmp_path, prefix, pace=PublishRateLimit(1, burst=1)) as node,
        ):
            ann = await Subscriber(one, "ann", prefix=prefix).start()
            await ann.subscribe("price >= 0")
            batch = wire.encode(wire.PublishedBatch(name, 1, [b'{"price": 1}'], 0.0, settle=True))
            await write(nats_url, message(subjects.ingress(name, 16).encode(), batch))
            await write(nats_url, *[message(b"named.in.3.%FF", b'{"price": 2}')] * 3)
            async with Publisher(one, "p", prefix=prefix) as publisher:
                await publisher.publish({"price": 3})
                await publisher.flush()
            assert [event.data["price"] for event in await read(ann, 2)] == [2, 3]
            assert node.counts.bad == 3  # a name that is too long, and two that came too fast
            assert working(node)
            await ann.aclose()

    asyncio.run(run())


def test_changes_that_another_node_cannot_take_up(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that nobody waits for, nor one that is none, nor that the first node is gone ends it."""

    async def run() -> None:
        async with connected(nats_url) as one:
            async with forgetful(nats_url, "follow") as first:
                other = Follower(one, prefix="follow")
                tasks = await other.start()
                assert isinstance(first.holding, ControlPlane)

                async def forge(row: wire.SubscriptionRow) -> None:
                    change = wire.ControlChange(number=other._number + 1, added=[row])
                    await write(nats_url, message(b"follow.changes", wire.encode(change), b"follow.x"))

                known = wire.encode(wire.ControlChange(number=other._number))
                for reply in (b"", b"follow..x"):
                    await write(nats_url, message(b"follow.changes", known, reply))
                await forge(wire.SubscriptionRow(2**63, "eve", "price > 1"))
                await first.holding.ask(wire.AddFilters("ann", ["price > 1"]))
                async with asyncio.timeout(PATIENCE):
                    while other.interests.rows(-1, 9) != first.holding.interests.rows(-1, 9):
                        await asyncio.sleep(0.01)
            monkeypatch.setattr(other._asking, "ask", partial(other._asking.ask, patience=0.2))
            await forge(wire.SubscriptionRow(99, "eve", "fresh > 1"))
            await asyncio.sleep(0.5)  # nobody answers
            async with forgetful(nats_url, "follow") as first:
                assert isinstance(first.holding, ControlPlane)
                await first.holding.ask(wire.AddFilters("bob", ["price > 2"]))
                async with asyncio.timeout(PATIENCE):
                    while other.interests.rows(-1, 9) != first.holding.interests.rows(-1, 9):
                        await asyncio.sleep(0.01)
                assert not any(task.done() for task in tasks)
            await other.stop()

    asyncio.run(run())


def test_records_of_nobody_are_passed_over(
    nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node sweeps on, and starts again, whatever names others have written down."""
    monkeypatch.setattr(of_subscribers, "SWEEP", 0.05)
    monkeypatch.setattr(of_subscribers, "_REST", 0.0)

    async def run() -> None:
        words = b"%FF", b"\xff", b"a\x0bb", b"%ED%A0%80", b"x" * 2050, b"%"
        async with connected(nats_url) as one:
            async with broker(nats_url, tmp_path, "record") as node:
                known = positions_of(node)
                ann = await Subscriber(one, "ann", prefix="record").start()
                await ann.subscribe("price >= 0")
                for word in words:
                    place = message(b"record.at.position.x." + word, b"1 " + known.store.encode())
                    secret = f"record.at.joined.{known.records.secret}.".encode()
                    joined = message(secret + word, msgspec.msgpack.encode([(1, 1, 1)]))
                    await write(nats_url, place, joined)
                await known.sweep()
                await known.begin(["ann", "bob"])
                assert (await known.of("ann"))[0] == 0
                assert working(node)
            async with broker(nats_url, tmp_path, "record") as node:
                assert positions_of(node).store == known.store
                assert set(positions_of(node)._channels) - {"ann"} == {"\ud800", ""}
                await write(nats_url, message(b"record.in", b'{"price": 7}'))
                assert [event.data for event in await read(ann, 1)] == [{"price": 7}]
                await positions_of(node).sweep()
                assert [positions_of(node)._channels[name] for name in ("\ud800", "")] == [{(1, 1): 1}] * 2
                assert working(node)
            await ann.aclose()

    asyncio.run(run())
    assert "is kept for now" not in caplog.text


@pytest.mark.parametrize("store", [b"\xff", b"", b"a b", b"x" * 900_000])
def test_a_store_that_is_called_anything(nats_url: str, tmp_path: Path, store: bytes) -> None:
    async def run() -> None:
        prefix = f"store{len(store)}-{store[:1].hex()}"
        async with broker(nats_url, tmp_path, prefix) as node:
            made = positions_of(node).store
            assert re.fullmatch("[0-9a-f]{16}", made)
            for word in ("x", "\x0b", "0" * 32):
                await write(nats_url, message(f"{prefix}.at.store.{word}".encode(), store))
        async with broker(nats_url, tmp_path, prefix) as node, connected(nats_url) as one:
            assert positions_of(node).store == made
            ann = await Subscriber(one, "ann", prefix=prefix).start()
            await ann.aclose()
        async with broker(nats_url, tmp_path, prefix) as node:
            assert positions_of(node).store == made

    asyncio.run(run())


def test_a_sweep_that_fails_is_not_the_last(
    nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(of_subscribers, "SWEEP", 0.01)
    monkeypatch.setattr(of_subscribers, "_REST", 0.0)

    async def run() -> None:
        async with broker(nats_url, tmp_path, "sweeps") as node:
            swept, right = list[int](), positions_of(node).sweep

            async def sweep() -> None:
                swept.append(len(swept))
                if len(swept) == 1:
                    raise ValueError("what nobody thought of")
                await right()

            monkeypatch.setattr(positions_of(node), "sweep", sweep)
            async with asyncio.timeout(PATIENCE):
                while len(swept) < 3:
                    await asyncio.sleep(0.01)
            assert working(node)

    asyncio.run(run())
    assert "what nobody thought of" in caplog.text
