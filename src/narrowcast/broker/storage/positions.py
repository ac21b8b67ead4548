"""How far subscribers are in what is stored for them, and which channels hold it."""

from __future__ import annotations

import asyncio
import heapq
import logging
import re
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from narrowcast.broker.storage.record_subjects import Kind, RecordSubjects
from narrowcast.broker.wire import ReadEvents
from narrowcast.errors import InputError, ParameterError, TransportError
from narrowcast.model.subjects import subject_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Sequence

    from narrowcast.broker.storage.streams import EventStreams, StreamRoom
    from narrowcast.broker.wire import Subjects

log = logging.getLogger(__name__)

#: Messages before the first that somebody has not read that stay, so that one who starts again knows what was
#: stored twice; and the share of the room that they may take.
BEFORE, _SHARE = 16_384, 0.1
#: The part of the room that is taken before it is looked for those who hold back what is not for them; and
#: how many of them are looked at, at a time and together.
_FILLED, _LOOKS, _ASKED = 0.25, 2_000, 32
#: The part of the room that is taken before those are named who hold it back most, and how many of them are.
_TOLD, _NAMED = 0.5, 3
#: Seconds from one look at what everybody has read to the next; and how much longer than a look that is, at
#: least: with 100,000 subscribers one takes a second.
SWEEP, _REST = 5.0, 20.0
#: Digits of a place, at most, so that a message holds it: who writes down its own may write anything.
_DIGITS = 18
#: Positions that are written down at once.
_TOGETHER = 256
_TOKEN = re.compile(r"[0-9a-f]{16}")
#: Where it is written down how far somebody is, the latest first.
_PLACES: tuple[Kind, Kind] = ("position", "restored")
_decode = msgspec.msgpack.Decoder(list[tuple[int, int, int]]).decode
_decode_had = msgspec.json.Decoder(ReadEvents).decode


def written(place: int, store: str, had: ReadEvents | None = None) -> bytes:
    """Return a place as it is written down, with the store that it is one of, and what was had behind it.

    Examples
    --------
    >>> written(17, "a1"), had_in(written(17, "a1", ReadEvents({"p": [4, 5]}))).events
    (b'17 a1', {'p': [4, 5]})
    """
    return f"{place} {store}".encode() + (b" " + msgspec.json.encode(had) if had else b"")


def had_in(payload: bytes | None) -> ReadEvents:
    """Return what somebody has had behind a place, as it is written down."""
    try:
        return _decode_had((payload or b"").split(b" ", 2)[2])
    except (IndexError, msgspec.MsgspecError, UnicodeError):
        return ReadEvents()


def place_in(payload: bytes | None, store: str) -> int | None:
    """Return the place that is written down, None where there is none, or one of another store.

    Examples
    --------
    >>> place_in(b"17 a1", "a1"), place_in(b"17 a1", "b2"), place_in(None, "a1"), place_in(b"x a1", "a1")
    (17, None, None, None)
    """
    place, of, *_ = [*(payload or b"").split(b" ", 2), b""]
    right = place.isdigit() and len(place) <= _DIGITS and of == store.encode()
    return int(place) if right else None


def renewed(records: Sequence[tuple[str, bytes]], prefix: str) -> list[tuple[str, bytes]]:
    """Return what a backup has written down, for a store that is another from now on.

    Who was connected all the time may still write down a place of the old one: positions are kept where only
    a node may write, until there is one of this store.

    Examples
    --------
    >>> of, store = RecordSubjects("nc", "5ec4e7"), "0123456789abcdef"
    >>> rows = [(of.store, store.encode()), (of.subject("position", "ann"), written(17, store))]
    >>> found = renewed(rows, "nc")
    >>> new, now = RecordSubjects.found("nc", found)
    >>> now != store, place_in(dict(found)[new.subject("restored", "ann")], now)
    (True, 17)
    """
    new, store = RecordSubjects.new(prefix), secrets.token_hex(8)
    rows: dict[str, bytes] = {new.store: store.encode()}
    found = RecordSubjects.found(prefix, records)
    if found is not None:
        old, before = found
        kinds: tuple[Kind, ...] = ("joined", "restored", "position")  # the latest place comes last
        for kind in kinds:
            for subject, payload in records:
                if (name := old.name(kind, subject)) is None:
                    continue
                if kind == "joined":
                    rows[new.subject(kind, name)] = payload
                elif (place := place_in(payload, before)) is not None:
                    rows[new.subject("restored", name)] = written(place, store, had_in(payload))
    return list(rows.items())


class Positions:
    """What the first node knows of subscribers of a broker that stores events; all of it is in streams.

    Parameters
    ----------
    streams
        Where.
    subjects
        Of the broker.
    """

    def __init__(self, streams: EventStreams, subjects: Subjects) -> None:
        self._streams, self._subjects = streams, subjects
        #: What tells this store from others, once it has started; and where what is known is written down.
        self.store, self.records = "", RecordSubjects.new(subjects.prefix)
        # By subscriber, plan and channel: the place up to which the channel may hold something, 0 for any.
        self._channels: dict[str, dict[tuple[int, int], int]] = {}
        # Between which two places there is nothing for a subscriber.
        self._nothing: dict[str, tuple[int, int]] = {}
        # Positions that are nobody's.
        self._odd: list[str] = []
        # Who was told of last to hold back what is stored.
        self._told: list[str] = []
        # Those whose channels are not stored as they are here; and one at a time, so that what is stored last
        # is what was written last.
        self._unstored: set[str] = set()
        self._writing = asyncio.Lock()

    async def start(self) -> None:
        """Make the streams where they are not there, and take up what they hold."""
        await self._streams.make()
        prefix, at = self._subjects.prefix, self._streams.at
        rows = [
            (each.subject, each.payload) async for each in self._streams.newest(at, f"{prefix}.at.store.*")
        ]
        found = RecordSubjects.found(prefix, rows)
        if found is not None:
            self.records, self.store = found
        else:
            self.store = secrets.token_hex(8)
            await self._streams.put(self.records.store, self.store.encode())
        async for message in self._streams.newest(at, self.records.pattern("joined")):
            if (name := self.records.name("joined", message.subject)) is None:
                continue
            try:
                own = _decode(message.payload)
            except msgspec.MsgspecError:
                log.warning("%s cannot be read, and is left out", message.subject)
                continue
            joined = {(epoch, channel): until for epoch, channel, until in own}
            self._channels[name] = joined

    async def of(self, subscriber: str) -> tuple[int, ReadEvents]:
        """Return how far somebody is, and what it has had behind that; who is not known begins here."""
        for kind in _PLACES:
            payload = await self._streams.get(self._streams.at, self.records.subject(kind, subscriber))
            if (found := place_in(payload, self.store)) is not None:
                return found, had_in(payload)
        last = await self._streams.last()
        await self._streams.put(self.records.subject("position", subscriber), written(last, self.store))
        return last, ReadEvents()

    async def begin(self, subscribers: Collection[str]) -> None:
        """Keep from now on what is for all of these, also for those who were never there."""
        known: set[str] = set()
        for kind in _PLACES:
            known |= {name async for name, _ in self._places(kind)}
        fresh, last = sorted(set(subscribers) - known), written(await self._streams.last(), self.store)
        for start in range(0, len(fresh), _TOGETHER):
            subjects = [self.records.subject("position", name) for name in fresh[start : start + _TOGETHER]]
            await asyncio.gather(*(self._streams.put(subject, last) for subject in subjects))

    async def _places(self, kind: Kind) -> AsyncIterator[tuple[str, int]]:
        """Yield who is written down to be how far."""
        async for message in self._streams.newest(self._streams.at, self.records.pattern(kind)):
            if (name := self.records.name(kind, message.subject)) is None:
                self._odd.append(message.subject)
            elif (place := place_in(message.payload, self.store)) is not None:
                yield name, place

    async def forget(self, subscriber: str) -> None:
        """Keep nothing any more for somebody."""
        self._channels.pop(subscriber, None)
        self._unstored.discard(subscriber)
        kinds: tuple[Kind, ...] = (*_PLACES, "joined")
        for kind in kinds:
            await self._streams.purge(self._streams.at, filter=self.records.subject(kind, subscriber))

    async def join(self, subscriber: str, epoch: int, channels: list[int]) -> None:
        """Note that channels of a plan hold something for somebody from now on; return when it is stored."""
        own = self._channels.setdefault(subscriber, {})
        fresh = {(epoch, channel): 0 for channel in channels}
        if any(own.get(key) != 0 for key in fresh):
            own |= fresh
            self._unstored.add(subscriber)
        if subscriber in self._unstored:
            await self._write(subscriber)

    async def switch(self, epoch: int) -> None:
        """Note that a plan is in use on all nodes, and nothing more goes over channels of others."""
        over = [
            (own, key)
            for own in self._channels.values()
            for key, until in own.items()
            if not until and key[0] != epoch
        ]
        last = await self._streams.last()
        for own, key in over:  # not those that somebody has joined meanwhile
            if key in own:
                own[key] = last

    async def _write(self, subscriber: str) -> None:
        """Store the channels of somebody."""
        self._unstored.add(subscriber)
        async with self._writing:
            own = self._channels.get(subscriber)
            if own is None or subscriber not in self._unstored:
                return  # it was forgotten, or is stored meanwhile
            rows = [(*key, until) for key, until in own.items()]
            self._unstored.discard(subscriber)
            try:
                where = self.records.subject("joined", subscriber)
                await self._streams.put(where, msgspec.msgpack.encode(rows))
            except BaseException:  # also where nobody waits any more
                self._unstored.add(subscriber)
                raise

    async def replay(self, subscriber: str, after: int, token: str, store: str) -> int:
        """Let somebody have all again that was stored for it behind a place; return how many messages.

        They come below the subject that it has for replays, in their order.
        """
        if store != self.store:
            raise InputError(
                f"a replay behind {after} is of another store than there is now; say hello first"
            )
        if not _TOKEN.fullmatch(token) or after < 0:
            raise InputError(
                f"a replay behind {after} to {token!r:.40} cannot be; give 16 hexadecimal digits"
            )
        return await self._streams.feed(
            self._streams.out,
            subject_of("x", subscriber)[2:],
            f"{self._subjects.replay(subscriber)}.{token}",
            filters=self._kept_for(subscriber),
            after=after,
        )

    async def sweep(self) -> None:
        """Forget what everybody has read, and channels that hold nothing more for somebody."""
        room = await self._streams.room()  # who comes after that begins behind it
        positions: dict[str, int] = {}
        for kind in reversed(_PLACES):
            positions |= {name: place async for name, place in self._places(kind)}
        odd, self._odd = self._odd[:_TOGETHER], []
        for subject in odd:  # somebody has written where nobody reads
            with suppress(TransportError):  # it is no subject, either
                await self._streams.purge(self._streams.at, filter=subject)
        self._nothing = {name: places for name, places in self._nothing.items() if name in positions}
        if room.last - room.first >= _FILLED * room.fits:
            await self._look(positions, room.last)
        # Nobody is further than all that there is: trimmed behind it, places would begin there.
        places = {name: min(room.last, self._reached(name, place)) for name, place in positions.items()}
        before = min(places.values(), default=room.last) - min(BEFORE, int(_SHARE * room.fits)) + 1
        if before > room.first:
            await self._streams.trim(before)
        self._tell(places, room)
        for name, own in list(self._channels.items()):
            gone = [key for key, until in own.items() if until and until <= positions.get(name, 0)]
            for key in gone:
                del own[key]
            if gone or name in self._unstored:
                with suppress(ParameterError):  # a name that is too long, whoever joined by it
                    await self._write(name)

    def _reached(self, subscriber: str, place: int) -> int:
        """Return up to which place there is nothing for somebody who has read up to one."""
        first, last = self._nothing.get(subscriber, (0, 0))
        return last if first <= place <= last else place  # it may have gone back, for what it had missed

    def _tell(self, places: dict[str, int], room: StreamRoom) -> None:
        """Name those who hold back most of what is stored, when that is much, and others than before."""
        taken = room.last - min(places.values(), default=room.last)
        behind = heapq.nsmallest(_NAMED, places, key=places.__getitem__) if taken > _TOLD * room.fits else []
        if behind and behind != self._told:
            log.warning(
                "%.0f %% of the store waits for subscribers that are behind, most for %s; once it is full "
                "publishers are refused: let them read, or give up their subscriptions",
                100 * taken / room.fits, ", ".join(map(repr, behind)),
            )  # fmt: skip
        self._told = behind

    async def _look(self, positions: dict[str, int], last: int) -> None:
        """Look how far there is nothing for those who are behind most: what is for others need not wait."""
        places = {name: self._reached(name, place) for name, place in positions.items()}
        late = (name for name, place in places.items() if place < last)
        behind = heapq.nsmallest(_LOOKS, late, key=places.__getitem__)
        for start in range(0, len(behind), _ASKED):
            some = behind[start : start + _ASKED]
            found = await asyncio.gather(*(self._read_up_to(name, places[name], last) for name in some))
            for name, reached in zip(some, found, strict=True):
                self._nothing[name] = min(positions[name], reached), reached

    async def _read_up_to(self, subscriber: str, place: int, last: int) -> int:
        """Return up to which place behind one there is nothing for somebody, as far as it was stored then."""
        found = await asyncio.gather(
            *(
                self._streams.following(self._streams.out, subject, place)
                for subject in self._kept_for(subscriber)
            )
        )
        # No further: while some subjects are asked for, more is stored under others.
        return min([last, *(each - 1 for each in found if each is not None)])

    def _kept_for(self, subscriber: str) -> list[str]:
        """Return the subjects under which something may be stored for somebody."""
        of = self._subjects
        channels = [of.channel(*key) for key in self._channels.get(subscriber, {})]
        return [of.stored(subject) for subject in (of.to(subscriber), of.everybody, *channels)]

    async def sweeps(self) -> None:
        """Sweep again and again."""
        took = 0.0
        while True:
            await asyncio.sleep(max(SWEEP, _REST * took))
            begun = time.monotonic()
            try:
                await self.sweep()
            except TransportError as error:
                log.warning("what everybody has read is kept for now: %s", error)
            except Exception:  # nothing that is written down ends a node
                log.exception("what everybody has read is kept for now")
            took = time.monotonic() - begun
