"""How far somebody has read: what is written down is read back, and nothing else is taken for it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from narrowcast.broker.nats_transport import NatsTransport
from narrowcast.broker.storage.positions import Positions, had_in, place_in, renewed, written
from narrowcast.broker.storage.record_subjects import RecordSubjects
from narrowcast.broker.storage.streams import EventStreams
from narrowcast.broker.wire import ReadEvents, Subjects
from narrowcast.errors import TransportError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

STORES = st.text("0123456789abcdef", min_size=1, max_size=16)


@given(st.integers(0, 10**18 - 1), STORES, STORES)
def test_a_place_is_one_of_its_store(place: int, store: str, other: str) -> None:
    assert place_in(written(place, store), store) == place
    assert other == store or place_in(written(place, store), other) is None
    had = ReadEvents({"a b": [place, 3], "": [0]}, {"nc.out.to.a": place})
    assert place_in(written(place, store, had), store) == place
    assert had_in(written(place, store, had)) == had


@given(st.binary(max_size=40), STORES)
@example(b"9" * 5000 + b" a1", "a1")  # more digits than Python makes a number of
@example(b"9" * 20 + b" a1", "a1")  # more than a message holds
@example("²".encode() + b" a1", "a1")
@example(b'1 a1 {"events": {"p": [%d]}}' % 10**30, "a1")
@example(b'1 a1 {"subjects": {"p": %d}}' % -(10**30), "a1")
def test_whatever_somebody_writes_is_a_place_or_nothing(payload: bytes, store: str) -> None:
    found = place_in(payload, store)
    assert found is None or payload.split(b" ")[1] == store.encode()
    msgspec.msgpack.encode((found, had_in(payload)))  # or somebody could end the node that tells them


@given(
    st.dictionaries(st.sampled_from("pqrs"), st.integers(0, 99)),
    st.dictionaries(st.sampled_from("pqrs"), st.tuples(st.integers(0, 99), st.booleans())),
    st.text("0123456789abcdef", min_size=16, max_size=16),
)
def test_a_restored_store_is_another_with_the_same_positions(
    restored: dict[str, int], positions: dict[str, tuple[int, bool]], store: str
) -> None:
    of = RecordSubjects.new("a.b")
    records = [(of.store, store.encode()), (of.subject("joined", "p"), b"\x90")]
    had = ReadEvents({"p": [7]}, {"s": 9})
    records += [
        (of.subject("restored", name), written(place, store, had)) for name, place in restored.items()
    ]
    # Some were written down by somebody who did not know of this store.
    records += [
        (of.subject("position", name), written(place, store if own else "x"))
        for name, (place, own) in positions.items()
    ]
    records += [("a.b.at.store.x", b'{"stream":"a_b_at"}'), ("a.b.at.position.x.p", written(999, store))]
    found = dict(renewed(records, "a.b"))
    now = RecordSubjects.found("a.b", found.items())
    assert now is not None
    of, new = now
    assert new != store
    assert found.pop(of.store) == new.encode()
    assert found.pop(of.subject("joined", "p")) == b"\x90"
    right = restored | {name: place for name, (place, own) in positions.items() if own}
    assert {name: place_in(found[of.subject("restored", name)], new) for name in right} == right
    assert len(found) == len(right)
    kept = [name for name in restored if not positions.get(name, (0, False))[1]]
    assert all(had_in(found[of.subject("restored", name)]) == had for name in kept)


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
    streams = Failing(transport, subjects, most=16 << 20)
    await streams.start()
    made = Positions(streams, subjects)
    try:
        await made.start()
        yield made, streams, subjects
    finally:
        await streams.aclose()
        await transport.aclose()


async def stored(made: Positions, streams: EventStreams, name: str) -> list[list[int]]:
    """Return the channels that are stored for somebody."""
    payload = await streams.get(streams.at, made.records.subject("joined", name))
    assert payload is not None
    found: list[list[int]] = msgspec.msgpack.decode(payload)
    return found


@pytest.mark.nats
def test_channels_that_could_not_be_stored_are_when_they_are_joined_again(nats_url: str) -> None:
    """Nothing goes over them before; after that a node that starts anew has to know of them."""

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
def test_what_is_joined_while_others_are_swept_is_stored_last(nats_url: str) -> None:
    async def run() -> None:
        async with positions(nats_url, "swept") as (made, streams, subjects):
            await made.of("ann")
            await made.of("bob")
            for name in ("ann", "bob"):
                await made.join(name, 7, [1])
            await streams.put(subjects.stored("x"), b"")
            await made.switch(8)
            for name in ("ann", "bob"):  # they have read all that was over those channels
                await streams.put(made.records.subject("position", name), written(1, made.store))
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
def test_channels_that_are_joined_while_others_are_given_up_stay(nats_url: str) -> None:
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
def test_nobody_is_taken_to_have_read_what_is_stored_meanwhile(nats_url: str) -> None:
    """Of two subjects one is asked for before something is stored under both."""

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
                await streams.put(subjects.stored(subjects.everybody), b"")

            own, storing = subjects.to("ann"), asyncio.create_task(store())
            streams.following = late  # type: ignore[method-assign]
            assert await made._read_up_to("ann", 0, last) == last

    asyncio.run(run())


@pytest.mark.nats
def test_a_place_that_is_not_there_yet_moves_nothing(nats_url: str) -> None:
    """A subscriber writes down its own; were the stream trimmed by that, all places would begin there."""

    async def run() -> None:
        async with positions(nats_url, "ahead") as (made, streams, subjects):
            await made.of("ann")
            await streams.put(subjects.stored("x"), b"")
            await streams.put(made.records.subject("position", "ann"), written(10**17, made.store))
            await made.sweep()
            assert await streams.last() == 1

    asyncio.run(run())


@pytest.mark.nats
def test_who_goes_back_for_what_it_missed_is_not_taken_to_be_further(nats_url: str) -> None:
    async def run() -> None:
        async with positions(nats_url, "back") as (made, streams, subjects):
            await made.of("ann")
            own, others = subjects.stored(subjects.to("ann")), subjects.stored("others")
            for subject in (own, others, others):
                await streams.put(subject, b"")
            await made._look({"ann": 1}, 3)
            assert [made._reached("ann", place) for place in range(5)] == [0, 3, 3, 3, 4]
            await made._look({"ann": 0}, 3)  # what is for it comes first
            assert [made._reached("ann", place) for place in range(5)] == [0, 1, 2, 3, 4]

    asyncio.run(run())
