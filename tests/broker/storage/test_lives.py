"""A reader that is killed again and again: nothing is lost, and no more than a window comes again."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict, deque
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from narrowcast.broker import Event, MemoryTransport
from narrowcast.broker.clients import stored_reader
from narrowcast.broker.clients.request_client import RequestClient
from narrowcast.broker.clients.stored_reader import LEAST, StoredReader
from narrowcast.broker.storage.positions import had_in, place_in, written
from narrowcast.broker.transport import Message
from narrowcast.broker.wire import Subjects

NC = Subjects("nc")
STORE, KEY = "a1", "k1"
CHANNELS = [NC.channel(1, number) for number in range(2)]
#: The reader listens to it, but no node knows: no replay brings it. All of it comes directly too.
STRAY = NC.channel(1, 2)
SUBJECTS = [NC.to("ann"), *CHANNELS, STRAY]
#: Events that may wait, and what happens in the life of a world.
LIMIT, STEPS = 3 * LEAST, 120


class Stored(NamedTuple):
    """A message, the one before it under its subject, and how many events it has."""

    number: int
    subject: str
    before: int
    many: int


class Cut(MemoryTransport):
    """A transport whose connection can be another."""

    made = 1

    @property
    def connections(self) -> int:
        return self.made


class Life:
    """A reader from its start to its death."""

    def __init__(self, world: World, position: bytes) -> None:
        self._world, self._events = world, deque[Event]()
        after = place_in(position, STORE)
        assert after is not None
        asking = RequestClient(world.transport, NC.inbox("ann"))
        self._asking = asking
        self.reading = StoredReader(
            world.transport, NC, asking, "ann", self, after=after, store=STORE, key=KEY,
            had=had_in(position),
            window=LEAST,
        )  # fmt: skip
        self.handed: list[int] = []
        self._seen: set[int] = set()

    async def start(self) -> None:
        await self._asking.start()

    async def aclose(self) -> None:
        self.reading.end()
        await self._asking.aclose()

    def room(self) -> bool:
        return len(self._events) < LIMIT

    def remember(self, message: Message) -> None:
        """Events of a message are its number and which of it."""

    def accept(self, message: Message) -> None:
        assert message.number not in self._seen, f"{message} is there twice"
        self._seen.add(message.number)
        stored = self._world.stored[message.number - 1]
        many = 0 if stored.subject == STRAY else stored.many
        self._events += (Event("p", 1000 * stored.number + i, b"") for i in range(many))
        self.reading.added(message.number, message.subject, many)

    async def replay(self, after: int, token: str) -> int:
        """Bring all that is stored for the reader behind a place."""
        found = [each for each in self._world.stored[after:] if each.subject != STRAY]
        for i, each in enumerate(found, 1):
            reply = f"$JS.ACK.nc_out.ann.1.{each.number}.{i}.1700000000000000000.{len(found) - i}"
            self.reading._replayed(token, Message(NC.stored(each.subject), b"", reply))
        return len(found)

    async def take(self, most: int) -> None:
        """Hand out some events: those before are processed."""
        self.reading.processed()
        await self.reading.stored()
        some = [self._events.popleft() for _ in range(min(most, self.reading.left(), len(self._events)))]
        self.reading.taken(some)
        self.handed += [event.number for event in some]

    async def catch_up(self) -> None:
        """Have replayed what is missing, as far as there is room."""
        self.reading._look()
        if self.reading.cursor.behind and self.room():
            await self.reading._replay()


class World:
    """What is stored, and the lives of a reader."""

    def __init__(self) -> None:
        self.transport = Cut()
        self.stored: list[Stored] = []
        self._last: dict[str, int] = {}
        self._coming: dict[str, list[Message]] = defaultdict(list)
        self.position = written(0, STORE)
        self.lives: list[Life] = []

    async def start(self) -> Life:
        """Begin, with somebody who stores positions."""

        def store(message: Message) -> None:
            self.position = message.payload
            self._answer = asyncio.ensure_future(self.transport.publish(message.reply, b'{"seq": 1}'))

        await self.transport.subscribe(NC.position("ann", KEY), store)
        return await self.live()

    async def live(self) -> Life:
        """Let the reader live again."""
        if self.lives:
            await self.lives[-1].aclose()
            self._coming.clear()
        self.lives.append(Life(self, self.position))
        await self.lives[-1].start()
        return self.lives[-1]

    def send(self, subject: str, many: int, *, comes: bool = True, turns: int = 0) -> None:
        """Store a message, which comes live within some turns, or is lost with the connection."""
        made = Stored(len(self.stored) + 1, subject, self._last.get(subject, 0), many)
        self.stored.append(made)
        self._last[subject] = made.number
        if comes:
            self._coming[subject].append(Message(subject, b"", number=made.number, before=made.before))
            self._hear(self.lives[-1], subject, turns)
        else:
            self.transport.made += 1

    def _hear(self, life: Life, subject: str, turns: int) -> None:
        """Let the reader hear what has come under a subject: it has a queue of its own, as with nats-py."""
        if turns:
            asyncio.get_running_loop().call_soon(self._hear, life, subject, turns - 1)
            return
        some, self._coming[subject] = self._coming[subject], []
        for message in some if life is self.lives[-1] else ():
            life.reading.hear(message)

    async def settle(self) -> None:
        """Let everything come, and be read."""
        now = self.lives[-1]
        await stored_reader._turns()
        for _ in range(2 * STEPS):
            await now.catch_up()
            await now.take(LEAST)
        assert not now.reading.cursor.behind
        now.reading.processed()
        await now.reading.write()
        place = place_in(self.position, STORE)
        assert place is not None
        assert place >= max((each.number for each in self.stored if each.subject != STRAY), default=0)
        await now.aclose()

    def check(self) -> None:
        """All was handed out, and again only what was among the last of an earlier life."""
        wanted = {1000 * m.number + i for m in self.stored if m.subject != STRAY for i in range(m.many)}
        assert wanted == {number for life in self.lives for number in life.handed}
        before: set[int] = set()
        allowed: set[int] = set()
        for life in self.lives:
            assert len(life.handed) == len(set(life.handed))
            assert before.intersection(life.handed) <= allowed
            before.update(life.handed)
            allowed.update(life.handed[-LEAST:])


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_reader, "_DRAIN", 0.0)


@settings(max_examples=60)
@given(st.integers(0, 1 << 32), st.sampled_from([0, 3, 20]), st.sampled_from([0, 5]))
@example(0, 20, 5)
def test_whatever_is_lost_and_killed(seed: int, cuts: int, kills: int) -> None:
    """Of a hundred steps so many lose a connection, or kill the reader."""
    rng = random.Random(seed)

    async def step(world: World) -> None:
        now, which = world.lives[-1], rng.randrange(100)
        if which < cuts:
            world.send(rng.choice(SUBJECTS), rng.randint(1, 200), comes=False)
        elif which < cuts + kills:
            await world.live()
        elif which < 50:
            world.send(rng.choice(SUBJECTS), rng.randint(1, 200), turns=rng.randrange(4))
        elif which < 85:
            await now.take(rng.randint(1, 2 * LEAST))
        elif which < 95:
            await now.catch_up()
        else:
            await now.reading.write()

    async def run() -> None:
        world = World()
        await world.start()
        for _ in range(STEPS):
            await step(world)
        await world.settle()
        world.check()
        await world.transport.aclose()

    asyncio.run(run())
