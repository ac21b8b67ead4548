"""Events in columns are the events: whatever goes where, and whatever comes again."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.broker import ControlPlane, MemoryTransport, Node, Subscriber, SubscriptionIndex, wire
from narrowcast.broker.clients.deduplication import EVENTS, Deduplicator
from narrowcast.broker.clients.frames import halves
from narrowcast.broker.clients.publisher import BATCH
from narrowcast.broker.data import incoming_events
from narrowcast.broker.data import node as node_of
from narrowcast.broker.data.incoming_events import IncomingEvents
from narrowcast.broker.limits import LONGEST_NAME
from narrowcast.broker.transport import Message
from narrowcast.errors import InputError

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

Entry = tuple[str, int, bytes]


@st.composite
def batches(draw: DrawFn) -> list[wire.PublishedBatch]:
    payloads = st.lists(st.binary(max_size=6), max_size=5)
    names = st.sampled_from(["p", "q", "r" * 40, "\N{OGHAM LETTER BEITH}" * 90])
    one = st.builds(wire.PublishedBatch, names, st.integers(0, 1 << 62), payloads)
    return draw(st.lists(one, max_size=6))


def entries_of(some: list[wire.PublishedBatch]) -> list[Entry]:
    return [(b.publisher, b.first + i, payload) for b in some for i, payload in enumerate(b.payloads)]


def read(frame: wire.Frame) -> list[Entry]:
    frame.check()
    who = [publisher for publisher, many in frame.runs for _ in range(many)]
    numbers = np.frombuffer(frame.numbers, "<i8").tolist()
    return list(zip(who, numbers, frame.payloads, strict=True))


@given(batches(), st.data())
def test_every_place_gets_its_events_in_their_order(
    some: list[wire.PublishedBatch], data: st.DataObject
) -> None:
    entries, arrived = entries_of(some), IncomingEvents.of(some)
    assert len(arrived) == len(entries)
    pair = st.tuples(st.integers(0, 4), st.integers(0, max(0, len(entries) - 1)))
    pairs = sorted(data.draw(st.sets(pair)) if entries else [], key=lambda each: each[1])
    most, many = data.draw(st.integers(1, 900)), data.draw(st.none() | st.integers(1, 9))
    place, row = (np.array([each[i] for each in pairs], np.int64) for i in range(2))
    expected: defaultdict[int, list[Entry]] = defaultdict(list)
    for at, i in pairs:
        expected[at].append(entries[i])
    found: defaultdict[int, list[Entry]] = defaultdict(list)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(incoming_events, "FRAME", most)
        for at, part in arrived.parts(place, row, many):
            said = wire.encode(wire.Frame(1 << 32, 1.5, *part))
            frame = wire.decode_frame(said)
            assert len(said) <= most or len(frame.payloads) == 1
            assert many is None or len(frame.payloads) <= many
            found[at] += read(frame)
    assert found == expected
    rows = np.array(data.draw(st.lists(st.integers(0, len(entries) - 1))) if entries else [], np.int64)
    again = arrived.take(rows)
    [*parts] = again.parts(np.zeros(len(rows), np.int64), np.arange(len(rows)))
    assert [one for _, part in parts for one in read(wire.Frame(0, 0.0, *part))] == [
        entries[i] for i in rows.tolist()
    ]


def test_a_frame_of_short_events_and_long_names_fits_a_message() -> None:
    names = [f"{i:04d}" + "n" * (LONGEST_NAME - 4) for i in range(3000)]
    some = IncomingEvents.of(
        [wire.PublishedBatch(name, 1, [b"{}"]) for name in names]
        + [wire.PublishedBatch("p", 0, [b""] * 99_999)]
    )
    parts = [part for _, part in some.parts(np.zeros(len(some), np.int64), np.arange(len(some)))]
    frames = [wire.Frame(-1, 1.5, *part) for part in parts]
    assert sum(len(frame.payloads) for frame in frames) == len(some)
    assert max(len(wire.encode(frame)) for frame in frames) <= incoming_events.FRAME
    assert len(frames) <= 7  # and not many more than have to be


@given(batches())
def test_halves_of_a_frame_hold_its_events(some: list[wire.PublishedBatch]) -> None:
    arrived = IncomingEvents.of(some)
    for _, part in arrived.parts(np.zeros(len(arrived), np.int64), np.arange(len(arrived))):
        frame = wire.Frame(-1, 1.5, *part)
        first, second = halves(frame)
        assert len(first.payloads) == len(frame.payloads) // 2
        assert read(first) + read(second) == read(frame)
        assert (first.exact, first.since) == (second.exact, second.since) == (-1, 1.5)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("pq"), st.lists(st.integers(0, 10), max_size=4), st.sampled_from([0, 1, 4, 25])
        ),
        max_size=40,
    ),
    st.booleans(),
)
def test_what_was_there_lately_is_known(arrive: list[tuple[str, list[int], int]], patient: bool) -> None:
    """It is fresh if it was never there, and is not if it is among the last so many of its publisher.

    Unless that was longer ago than a while; with patience however long ago, where numbers are close.
    """
    now, seconds = 0, 10
    seen, never = Deduplicator(events=5, seconds=seconds, patient=patient), defaultdict[str, set[int]](set)
    lately: defaultdict[str, deque[tuple[int, int]]] = defaultdict(lambda: deque(maxlen=5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("narrowcast.broker.clients.deduplication.time.monotonic", lambda: float(now))
        for publisher, numbers, later in arrive:
            now += later
            found = seen.fresh(publisher, numbers)
            flags = [True] * len(numbers) if found is None else found
            assert len(flags) == len(numbers)
            for number, fresh in zip(numbers, flags, strict=True):
                if number not in never[publisher]:
                    assert fresh
                if number in [each for each, at in lately[publisher] if patient or now - at <= seconds]:
                    assert not fresh
                never[publisher].add(number)
                if fresh:
                    lately[publisher].append((number, now))


def test_many_events_and_then_a_while_forget_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("narrowcast.broker.clients.deduplication.time.monotonic", lambda: now)
    seen = Deduplicator(events=3, seconds=10)
    seen.fresh("p", [0, 1])
    now = 9.0
    seen.fresh("p", [2])  # so many that the next ones begin anew
    now = 11.0
    assert seen.fresh("p", [2]) == [False]  # a while since the first


def test_who_reads_slowly_knows_what_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two turns of a node that was killed, an event a second, of a publisher that starts anew in between."""
    now, events = 0.0, 40
    monkeypatch.setattr("narrowcast.broker.clients.deduplication.time.monotonic", lambda: now)
    seen = Deduplicator(events=events, patient=True)
    half, most = events // 2, 0
    for life in range(4):
        own = [10**18 * life + half + n for n in range(half)] + [10**18 * (life + 1) + n for n in range(half)]
        for numbers, flags in ((own, None), (own, [False])):  # and all of it again
            for number in numbers:
                now += 1.0
                assert seen.fresh("p", [number]) == flags
                most = max(most, len(seen))
    assert most <= 2 * events
    now += 1.0
    assert seen.fresh("p", [half]) is None  # of long ago


def test_little_is_kept_of_who_is_wanted_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("narrowcast.broker.clients.deduplication.time.monotonic", lambda: now)
    seen = Deduplicator(events=1000, seconds=10, patient=True)
    for number in range(0, 100_000, 50):  # one of fifty, twenty a second
        now += 0.05
        assert seen.fresh("p", [number]) is None
        assert seen.fresh("p", [max(0, number - 1000)]) == [False]
        assert len(seen) <= 2 * (200 + 1)


def test_publishers_of_long_ago_are_forgotten() -> None:
    seen = Deduplicator(publishers=2)
    for publisher in ("a", "b", "a", "c"):
        seen.fresh(publisher, [1])
    assert [seen.fresh(publisher, [1]) for publisher in ("a", "c")] == [[False], [False]]
    assert seen.fresh("b", [1]) is None


def test_no_more_is_kept_than_lately_came(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("narrowcast.broker.clients.deduplication.time.monotonic", lambda: now)
    seen = Deduplicator(seconds=10)
    most = 0
    for step in range(1000):
        now = step / 10
        assert seen.fresh(f"p{step % 3}", [step, step + 1]) is None
        most = max(most, len(seen))
        if step >= 30:  # three seconds ago
            assert seen.fresh(f"p{step % 3}", [step - 30]) == [False]
    assert most <= 20 * 2 * 10 + 20  # twenty a second, for twice ten of them
    now += 25
    assert seen.fresh("q", [1]) is None
    assert len(seen) == 1  # publishers that are silent are forgotten
    assert seen.fresh("q", [1]) == [False]


@given(batches(), st.integers(1, 8))
def test_a_turn_has_no_more_events_than_may_come_again(some: list[wire.PublishedBatch], most: int) -> None:
    node = Node(transport := MemoryTransport(), ControlPlane(transport, SubscriptionIndex()))
    messages = [Message(node.subjects.ingress(b.publisher, 16), wire.encode(b)) for b in some]
    messages.insert(len(messages) // 2, Message(node.subjects.ingress("p", 16), b"\x93 is none"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(node_of, "TURN", most)
        turns = list(node._turns(messages))
    assert [message for turn in turns for message, _ in turn] == messages
    assert [batch for turn in turns for _, batch in turn if batch is not None] == some
    many = [[0 if batch is None else len(batch.payloads) for _, batch in turn] for turn in turns]
    assert all(sum(own) <= most or sum(own[:-1]) == 0 for own in many)
    for own, then in pairwise(many):  # no fewer than fit
        assert sum(own) + then[0] > most


def test_what_comes_again_after_a_kill_is_remembered() -> None:
    """A turn that a node was not done with, and the one before where that was not heard."""
    assert 2 * node_of.TURN <= EVENTS
    assert BATCH // len(b"{}") <= node_of.TURN  # one message of a publisher
    assert wire.MOST <= node_of.TURN  # and of anybody


@pytest.mark.parametrize(
    "frame",
    [
        wire.Frame(-1, 0.0, [("p", 2)], bytes(8), [b"x"]),
        wire.Frame(-1, 0.0, [("p", 1)], bytes(9), [b"x"]),
        wire.Frame(-1, 0.0, [("p", 2), ("q", -1)], bytes(8), [b"x"]),
    ],
)
def test_columns_that_do_not_go_together(frame: wire.Frame) -> None:
    with pytest.raises(InputError, match="columns of different lengths"):
        frame.check()


def test_a_subscriber_passes_over_what_is_no_frame(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        transport = MemoryTransport()
        node = Node(transport, ControlPlane(transport, SubscriptionIndex()))
        await node.start()
        async with Subscriber(transport, "ann") as ann:
            await ann.subscribe("price > 1")
            subject = node.subjects.to("ann")
            broken = wire.encode(wire.Frame(-1, 0.0, [("p", 2)], bytes(8), [b"x"]))
            for payload in (b"", b"garbage", b"\x93", broken):
                await transport.publish(subject, payload)
            await node.deliver(
                IncomingEvents.of([wire.PublishedBatch("p", 0, [b'{"price": 5}', b'{"price": 0}'])])
            )
            assert (await anext(ann)).data == {"price": 5}
        await node.stop()

    asyncio.run(run())
    assert caplog.text.count("is passed over") == 4
