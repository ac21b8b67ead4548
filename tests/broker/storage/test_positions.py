"""Positions of subscribers: encoding, restoring, and their storage in a stream."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from narrowcast.broker.nats_transport import NatsTransport
from narrowcast.broker.storage.positions import (
    Positions,
    decode_position,
    decode_read_events,
    encode_position,
    renew_records,
)
from narrowcast.broker.storage.record_subjects import RecordSubjects
from narrowcast.broker.storage.streams import EventStreams
from narrowcast.broker.wire import ReadEvents, Subjects
from narrowcast.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

STORES = st.text("0123456789abcdef", min_size=1, max_size=16)


@given(st.integers(0, 10**18 - 1), STORES, STORES)
def test_a_position_belongs_to_its_store(place: int, store: str, other: str) -> None:
    assert decode_position(encode_position(place, store), store) == place
    assert other == store or decode_position(encode_position(place, store), other) is None
    had = ReadEvents({"a b": [place, 3], "": [0]}, {"nc.out.to.a": place})
    assert decode_position(encode_position(place, store, had), store) == place
    assert decode_read_events(encode_position(place, store, had)) == had


@given(st.binary(max_size=40), STORES)
@example(b"9" * 5000 + b" a1", "a1")  # more digits than Python makes a number of
@example(b"9" * 20 + b" a1", "a1")  # more than a message holds
@example("²".encode() + b" a1", "a1")
@example(b'1 a1 {"events": {"p": [%d]}}' % 10**30, "a1")
@example(b'1 a1 {"subjects": {"p": %d}}' % -(10**30), "a1")
def test_any_bytes_decode_to_a_position_or_none(payload: bytes, store: str) -> None:
    found = decode_position(payload, store)
    assert found is None or payload.split(b" ")[1] == store.encode()
    msgspec.msgpack.encode(
        (found, decode_read_events(payload))
    )  # otherwise a client could crash the node that sends it


@given(
    st.dictionaries(st.sampled_from("pqrs"), st.integers(0, 99)),
    st.dictionaries(st.sampled_from("pqrs"), st.tuples(st.integers(0, 99), st.booleans())),
    st.text("0123456789abcdef", min_size=16, max_size=16),
)
def test_a_restored_store_keeps_positions_under_a_new_id(
    restored: dict[str, int], positions: dict[str, tuple[int, bool]], store: str
) -> None:
    of = RecordSubjects.new("a.b")
    records = [(of.store, store.encode()), (of.subject("joined", "p"), b"\x90")]
    had = ReadEvents({"p": [7]}, {"s": 9})
    records += [
        (of.subject("restored", name), encode_position(place, store, had)) for name, place in restored.items()
    ]
    # Some were written by clients of another store.
    records += [
        (of.subject("position", name), encode_position(place, store if own else "x"))
        for name, (place, own) in positions.items()
    ]
    records += [
        ("a.b.at.store.x", b'{"stream":"a_b_at"}'),
        ("a.b.at.position.x.p", encode_position(999, store)),
    ]
    found = dict(renew_records(records, "a.b"))
    now = RecordSubjects.from_rows("a.b", found.items())
    assert now is not None
    of, new = now
    assert new != store
    assert found.pop(of.store) == new.encode()
    assert found.pop(of.subject("joined", "p")) == b"\x90"
    right = restored | {name: place for name, (place, own) in positions.items() if own}
    assert {name: decode_position(found[of.subject("restored", name)], new) for name in right} == right
    assert len(found) == len(right)
    kept = [name for name in restored if not positions.get(name, (0, False))[1]]
    assert all(decode_read_events(found[of.subject("restored", name)]) == had for name in kept)


class Failing(EventStreams):
    """Streams of a server that at times does not store what it is given, or takes long for it."""

    refuses = False
    #: What is waited for before anything is stored.
    held: asyncio.Event | None = None

    async def put(self, subject: str, payload: bytes) -> None:
        if self.refuses:
            raise TransportError("no room")
        if self.held is not None:
            await self.held.wait()
        await super().put(subject, payload)


@asynccontextmanager
async def positions(url: str, prefix: str) -> AsyncIterator[tuple[Positions, Failing, Subjects]]:
    """Start positions on a server."""
    transport = await NatsTransport.connect(url)
    subjects = Subjects(prefix)
    streams = Failing(transport, subjects, max_bytes=16 << 20)
    await streams.start()
    made = Positions(streams, subjects)
    try:
        await made.start()
        yield made, streams, subjects
    finally:
        await streams.aclose()
        await transport.aclose()


async def stored(made: Positions, streams: EventStreams, name: str) -> list[list[int]]:
    """Return the stored channels of a subscriber."""
    payload = await streams.get(streams.at, made.records.subject("joined", name))
    assert payload is not None
    found: list[list[int]] = msgspec.msgpack.decode(payload)
    return found


@pytest.mark.nats
def test_channels_are_stored_by_the_next_join_after_an_error(nats_url: str) -> None:
    """Channels are unused before they are stored; afterwards a restarted node has to know them."""

    async def run() -> None:
        async with positions(nats_url, "unstored") as (made, streams, _):
            streams.refuses = True
            with pytest.raises(TransportError):
                await made.join("ann", 7, [1])
            streams.refuses = False
            await made.join("ann", 7, [1])
            assert await stored(made, streams, "ann") == [[7, 1, 0]]

    asyncio.run(run())


@pytest.mark.nats
def test_a_join_during_a_sweep_is_stored_last(nats_url: str) -> None:
    async def run() -> None:
        async with positions(nats_url, "swept") as (made, streams, subjects):
            await made.of("ann")
            await made.of("bob")
            for name in ("ann", "bob"):
                await made.join(name, 7, [1])
            await streams.put(subjects.stored("x"), b"")
            await made.switch(8)
            for name in ("ann", "bob"):  # they have read all that was over those channels
                await streams.put(made.records.subject("position", name), encode_position(1, made.store))
            streams.held = asyncio.Event()
            sweeping = asyncio.create_task(made.sweep())
            joining = [asyncio.create_task(made.join(name, 8, [2])) for name in ("bob", "cleo", "ann")]
            await asyncio.sleep(0.2)
            streams.held.set()
            await asyncio.gather(sweeping, *joining)
            for name in ("ann", "bob", "cleo"):
                assert await stored(made, streams, name) == [[8, 2, 0]]

    asyncio.run(run())


@pytest.mark.nats
def test_channels_joined_during_a_switch_remain(nats_url: str) -> None:
    async def run() -> None:
        async with positions(nats_url, "given") as (made, streams, subjects):
            await made.join("ann", 7, [1])
            await streams.put(subjects.stored("x"), b"")
            giving_up = asyncio.create_task(made.switch(8))
            await asyncio.sleep(0)  # it asks how much is stored
            await made.join("ann", 9, [2])
            await giving_up
            await made.join("ann", 9, [3])  # so that all is stored
            assert await stored(made, streams, "ann") == [[7, 1, 1], [9, 2, 0], [9, 3, 0]]

    asyncio.run(run())


@pytest.mark.nats
def test_messages_stored_during_a_check_are_not_skipped(nats_url: str) -> None:
    """The server searches one of two subjects before a message is stored under both."""

    async def run() -> None:
        async with positions(nats_url, "meanwhile") as (made, streams, subjects):
            await streams.put(subjects.stored("others"), b"")
            last = await streams.last()
            asked = streams.following

            async def late(stream: str, subject: str, after: int) -> int | None:
                if subject != subjects.stored(own):
                    await storing
                return await asked(stream, subject, after)

            async def store() -> None:
                await asyncio.sleep(0.2)
                await streams.put(subjects.stored(own), b"")
                await streams.put(subjects.stored(subjects.broadcast), b"")

            own, storing = subjects.to("ann"), asyncio.create_task(store())
            streams.following = late  # type: ignore[method-assign]
            assert await made._end_of_empty_range("ann", 0, last) == last

    asyncio.run(run())


@pytest.mark.nats
def test_a_position_beyond_the_end_trims_nothing(nats_url: str) -> None:
    """Subscribers write their own position; trimming the stream by it would move its start."""

    async def run() -> None:
        async with positions(nats_url, "ahead") as (made, streams, subjects):
            await made.of("ann")
            await streams.put(subjects.stored("x"), b"")
            await streams.put(made.records.subject("position", "ann"), encode_position(10**17, made.store))
            await made.sweep()
            assert await streams.last() == 1

    asyncio.run(run())


@pytest.mark.nats
def test_a_position_that_moves_back_leaves_the_empty_range(nats_url: str) -> None:
    async def run() -> None:
        async with positions(nats_url, "back") as (made, streams, subjects):
            await made.of("ann")
            own, others = subjects.stored(subjects.to("ann")), subjects.stored("others")
            for subject in (own, others, others):
                await streams.put(subject, b"")
            await made.find_empty_ranges({"ann": 1}, 3)
            assert [made._effective_position("ann", place) for place in range(5)] == [0, 3, 3, 3, 4]
            await made.find_empty_ranges({"ann": 0}, 3)  # what is for it comes first
            assert [made._effective_position("ann", place) for place in range(5)] == [0, 1, 2, 3, 4]

    asyncio.run(run())
