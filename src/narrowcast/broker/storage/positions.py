"""Positions of subscribers in the stored events, and the channels that they have joined."""

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

    from narrowcast.broker.storage.streams import EventStreams, StreamCapacity
    from narrowcast.broker.wire import Subjects

log = logging.getLogger(__name__)

#: Messages retained before the lowest position, so that a subscriber that restarts recognizes events that
#: were stored twice; and the share of the stream's capacity that they may take.
REPLAY_MARGIN, _SHARE = 16_384, 0.1
#: Share of the capacity in use from which `sweep` looks for subscribers whose lag holds back only messages
#: for others; and how many of them it checks, in all and in parallel.
_FILLED, _MAX_CHECKED, _PARALLEL = 0.25, 2_000, 32
#: Share of the capacity in use from which the slowest subscribers are logged, and how many of them are.
_WARNED, _NAMED = 0.5, 3
#: Seconds between two sweeps, and the least multiple of the duration of a sweep between two of them: with
#: 100,000 subscribers a sweep takes a second.
SWEEP, _REST = 5.0, 20.0
#: Digits of a position, at most: clients write their own position, and may write anything.
_DIGITS = 18
#: Positions that are stored at a time.
_BATCH = 256
_TOKEN = re.compile(r"[0-9a-f]{16}")
#: Kinds of records that contain a position; the first one found is valid.
_POSITION_KINDS: tuple[Kind, Kind] = ("position", "restored")
_decode = msgspec.msgpack.Decoder(list[tuple[int, int, int]]).decode
_decode_read_events = msgspec.json.Decoder(ReadEvents).decode


def encode_position(place: int, store: str, read: ReadEvents | None = None) -> bytes:
    """Encode a position with the id of its store, and with the messages and events read after it.

    Examples
    --------
    >>> payload = encode_position(17, "a1", ReadEvents({"p": [4, 5]}))
    >>> encode_position(17, "a1"), decode_read_events(payload).events
    (b'17 a1', {'p': [4, 5]})
    """
    return f"{place} {store}".encode() + (b" " + msgspec.json.encode(read) if read else b"")


def decode_read_events(payload: bytes | None) -> ReadEvents:
    """Decode the messages and events read after a position; empty if there are none, or they are invalid."""
    try:
        return _decode_read_events((payload or b"").split(b" ", 2)[2])
    except (IndexError, msgspec.MsgspecError, UnicodeError):
        return ReadEvents()


def decode_position(payload: bytes | None, store: str) -> int | None:
    """Decode a position; None if there is none, or it is invalid or belongs to another store.

    Examples
    --------
    >>> [decode_position(payload, "a1") for payload in (b"17 a1", b"17 b2", None, b"x a1")]
    [17, None, None, None]
    """
    place, of, *_ = [*(payload or b"").split(b" ", 2), b""]
    right = place.isdigit() and len(place) <= _DIGITS and of == store.encode()
    return int(place) if right else None


def renew_records(records: Sequence[tuple[str, bytes]], prefix: str) -> list[tuple[str, bytes]]:
    """Convert the records of a backup for a new store, which gets a new id and a new secret.

    A client that stayed connected may still write a position of the old store. So positions are written as
    kind "restored", which only nodes can write, and are valid until the client stores one of the new store.

    Examples
    --------
    >>> of, store = RecordSubjects("nc", "5ec4e7"), "0123456789abcdef"
    >>> rows = [(of.store, store.encode()), (of.subject("position", "ann"), encode_position(17, store))]
    >>> found = renew_records(rows, "nc")
    >>> new, now = RecordSubjects.from_rows("nc", found)
    >>> now != store, decode_position(dict(found)[new.subject("restored", "ann")], now)
    (True, 17)
    """
    new, store = RecordSubjects.new(prefix), secrets.token_hex(8)
    rows: dict[str, bytes] = {new.store: store.encode()}
    found = RecordSubjects.from_rows(prefix, records)
    if found is not None:
        old, before = found
        kinds: tuple[Kind, ...] = ("joined", "restored", "position")  # the latest place comes last
        for kind in kinds:
            for subject, payload in records:
                if (name := old.name(kind, subject)) is None:
                    continue
                if kind == "joined":
                    rows[new.subject(kind, name)] = payload
                elif (place := decode_position(payload, before)) is not None:
                    rows[new.subject("restored", name)] = encode_position(
                        place, store, decode_read_events(payload)
                    )
    return list(rows.items())


class Positions:
    """Positions and joined channels of all subscribers, as the coordinating node stores them in JetStream.

    Only a broker that stores events (at least once) has them.

    Parameters
    ----------
    streams
        Streams of the broker.
    subjects
        Subjects of the broker.
    """

    def __init__(self, streams: EventStreams, subjects: Subjects) -> None:
        self._streams, self._subjects = streams, subjects
        #: Id of the store, set by `start`, and the subjects of its records.
        self.store, self.records = "", RecordSubjects.new(subjects.prefix)
        # By subscriber, epoch and channel: position up to which the channel may contain events for the
        # subscriber, 0 for no limit.
        self._channels: dict[str, dict[tuple[int, int], int]] = {}
        # By subscriber: two positions between which nothing is stored for it.
        self._empty_ranges: dict[str, tuple[int, int]] = {}
        # Subjects of positions that belong to no subscriber.
        self._invalid: list[str] = []
        # The slowest subscribers that were logged last.
        self._reported: list[str] = []
        # Subscribers whose channels have changed since they were stored. They are stored one at a time, so
        # that the last write is stored last.
        self._unsaved: set[str] = set()
        self._write_lock = asyncio.Lock()

    async def start(self) -> None:
        """Create the streams if they do not exist, and load the joined channels."""
        await self._streams.create()
        prefix, at = self._subjects.prefix, self._streams.at
        rows = [
            (each.subject, each.payload)
            async for each in self._streams.last_messages(at, f"{prefix}.at.store.*")
        ]
        found = RecordSubjects.from_rows(prefix, rows)
        if found is not None:
            self.records, self.store = found
        else:
            self.store = secrets.token_hex(8)
            await self._streams.put(self.records.store, self.store.encode())
        async for message in self._streams.last_messages(at, self.records.pattern("joined")):
            if (name := self.records.name("joined", message.subject)) is None:
                continue
            try:
                own = _decode(message.payload)
            except msgspec.MsgspecError:
                log.warning("subject %s: skipping an invalid record of joined channels", message.subject)
                continue
            joined = {(epoch, channel): until for epoch, channel, until in own}
            self._channels[name] = joined

    async def of(self, subscriber: str) -> tuple[int, ReadEvents]:
        """Return a subscriber's position, with the messages and events that it has read after it.

        A new subscriber starts at the end of the stream, and that position is stored.
        """
        for kind in _POSITION_KINDS:
            payload = await self._streams.get(self._streams.at, self.records.subject(kind, subscriber))
            if (found := decode_position(payload, self.store)) is not None:
                return found, decode_read_events(payload)
        last = await self._streams.last()
        await self._streams.put(
            self.records.subject("position", subscriber), encode_position(last, self.store)
        )
        return last, ReadEvents()

    async def begin(self, subscribers: Collection[str]) -> None:
        """Store a position at the end of the stream for each subscriber without one.

        From then on events are retained for them, even before they connect for the first time.
        """
        known: set[str] = set()
        for kind in _POSITION_KINDS:
            known |= {name async for name, _ in self._positions_of(kind)}
        fresh, last = (
            sorted(set(subscribers) - known),
            encode_position(await self._streams.last(), self.store),
        )
        for start in range(0, len(fresh), _BATCH):
            subjects = [self.records.subject("position", name) for name in fresh[start : start + _BATCH]]
            await asyncio.gather(*(self._streams.put(subject, last) for subject in subjects))

    async def _positions_of(self, kind: Kind) -> AsyncIterator[tuple[str, int]]:
        """Yield the stored positions of one kind, by subscriber."""
        async for message in self._streams.last_messages(self._streams.at, self.records.pattern(kind)):
            if (name := self.records.name(kind, message.subject)) is None:
                self._invalid.append(message.subject)
            elif (place := decode_position(message.payload, self.store)) is not None:
                yield name, place

    async def forget(self, subscriber: str) -> None:
        """Delete the position and channels of a subscriber; events are no longer retained for it."""
        self._channels.pop(subscriber, None)
        self._unsaved.discard(subscriber)
        kinds: tuple[Kind, ...] = (*_POSITION_KINDS, "joined")
        for kind in kinds:
            await self._streams.purge(self._streams.at, filter=self.records.subject(kind, subscriber))

    async def join(self, subscriber: str, epoch: int, channels: list[int]) -> None:
        """Record that a subscriber receives channels of a plan from now on; return once that is stored."""
        own = self._channels.setdefault(subscriber, {})
        fresh = {(epoch, channel): 0 for channel in channels}
        if any(own.get(key) != 0 for key in fresh):
            own |= fresh
            self._unsaved.add(subscriber)
        if subscriber in self._unsaved:
            await self._store_channels(subscriber)

    async def switch(self, epoch: int) -> None:
        """Record that all nodes use the plan of this epoch and send no more over channels of other plans."""
        over = [
            (own, key)
            for own in self._channels.values()
            for key, until in own.items()
            if not until and key[0] != epoch
        ]
        last = await self._streams.last()
        for own, key in over:  # without channels that were joined meanwhile
            if key in own:
                own[key] = last

    async def _store_channels(self, subscriber: str) -> None:
        """Store the channels of a subscriber if they have changed."""
        self._unsaved.add(subscriber)
        async with self._write_lock:
            own = self._channels.get(subscriber)
            if own is None or subscriber not in self._unsaved:
                return  # the subscriber was removed, or its channels were stored meanwhile
            rows = [(*key, until) for key, until in own.items()]
            self._unsaved.discard(subscriber)
            try:
                where = self.records.subject("joined", subscriber)
                await self._streams.put(where, msgspec.msgpack.encode(rows))
            except BaseException:  # also when cancelled
                self._unsaved.add(subscriber)
                raise

    async def replay(self, subscriber: str, after: int, token: str, store: str) -> int:
        """Replay what is stored for a subscriber to its replay subject, in order.

        Parameters
        ----------
        subscriber
            Name of the subscriber.
        after
            Position after which to begin.
        token
            Last word of the replay subject: 16 hexadecimal digits.
        store
            Id of the store that the position belongs to.

        Returns
        -------
        int
            Number of messages.

        Raises
        ------
        InputError
            When the store is another one, or the position or token is invalid.
        """
        if store != self.store:
            raise InputError(
                f"store={store!r:.40}: position {after} does not belong to the current store; connect again "
                "before a replay",
                parameter="store",
                value=store,
            )
        if not _TOKEN.fullmatch(token):
            raise InputError(
                f"token={token!r:.40}: must be 16 hexadecimal digits",
                parameter="token",
                value=token,
                limit="16 hexadecimal digits",
            )
        if after < 0:
            raise InputError(parameter="after", value=after, limit="at least 0")
        return await self._streams.start_consumer(
            self._streams.out,
            subject_of("x", subscriber)[2:],
            f"{self._subjects.replay(subscriber)}.{token}",
            filters=self._stored_subjects(subscriber),
            after=after,
        )

    async def sweep(self) -> None:
        """Delete messages that all subscribers have read, and records of channels that they have left."""
        room = await self._streams.capacity()  # later subscribers begin after its last message
        positions: dict[str, int] = {}
        for kind in reversed(_POSITION_KINDS):
            positions |= {name: place async for name, place in self._positions_of(kind)}
        invalid, self._invalid = self._invalid[:_BATCH], []
        for subject in invalid:  # written by a client under the wrong subject
            with suppress(TransportError):  # the subject may be invalid, too
                await self._streams.purge(self._streams.at, filter=subject)
        self._empty_ranges = {
            name: places for name, places in self._empty_ranges.items() if name in positions
        }
        if room.last - room.first >= _FILLED * room.fits:
            await self.find_empty_ranges(positions, room.last)
        # Limit positions to the last message: a trim after it would move the start of the stream.
        places = {
            name: min(room.last, self._effective_position(name, place)) for name, place in positions.items()
        }
        before = min(places.values(), default=room.last) - min(REPLAY_MARGIN, int(_SHARE * room.fits)) + 1
        if before > room.first:
            await self._streams.trim(before)
        self._report_slowest(places, room)
        for name, own in list(self._channels.items()):
            gone = [key for key, until in own.items() if until and until <= positions.get(name, 0)]
            for key in gone:
                del own[key]
            if gone or name in self._unsaved:
                with suppress(ParameterError):  # the name may be too long for a subject
                    await self._store_channels(name)

    def _effective_position(self, subscriber: str, place: int) -> int:
        """Return the end of the empty range in which a position lies, or else the position itself."""
        first, last = self._empty_ranges.get(subscriber, (0, 0))
        return last if first <= place <= last else place  # a position may move back after a missed message

    def _report_slowest(self, places: dict[str, int], room: StreamCapacity) -> None:
        """Log the slowest subscribers when they hold back much of the store, and have changed."""
        taken = room.last - min(places.values(), default=room.last)
        behind = (
            heapq.nsmallest(_NAMED, places, key=places.__getitem__) if taken > _WARNED * room.fits else []
        )
        if behind and behind != self._reported:
            log.warning(
                "%.0f %% of the store is held back by slow subscribers, most by %s; once it is full, "
                "publishers are refused: let these subscribers read, or remove their subscriptions",
                100 * taken / room.fits, ", ".join(map(repr, behind)),
            )  # fmt: skip
        self._reported = behind

    async def find_empty_ranges(self, positions: dict[str, int], last: int) -> None:
        """Find the range after each slow subscriber's position in which nothing is stored for it.

        Messages in it are for others, and need not be retained for this subscriber.
        """
        places = {name: self._effective_position(name, place) for name, place in positions.items()}
        late = (name for name, place in places.items() if place < last)
        behind = heapq.nsmallest(_MAX_CHECKED, late, key=places.__getitem__)
        for start in range(0, len(behind), _PARALLEL):
            batch = behind[start : start + _PARALLEL]
            found = await asyncio.gather(
                *(self._end_of_empty_range(name, places[name], last) for name in batch)
            )
            for name, reached in zip(batch, found, strict=True):
                self._empty_ranges[name] = min(positions[name], reached), reached

    async def _end_of_empty_range(self, subscriber: str, place: int, last: int) -> int:
        """Return the position up to which nothing is stored for a subscriber after `place`."""
        found = await asyncio.gather(
            *(
                self._streams.following(self._streams.out, subject, place)
                for subject in self._stored_subjects(subscriber)
            )
        )
        # At most `last`: while the server searches one subject, messages are stored under others.
        return min([last, *(each - 1 for each in found if each is not None)])

    def _stored_subjects(self, subscriber: str) -> list[str]:
        """Return the subjects under which events may be stored for a subscriber."""
        of = self._subjects
        channels = [of.channel(*key) for key in self._channels.get(subscriber, {})]
        return [of.stored(subject) for subject in (of.to(subscriber), of.broadcast, *channels)]

    async def run_sweeps(self) -> None:
        """Sweep at intervals, until cancelled; errors are logged."""
        elapsed = 0.0
        while True:
            await asyncio.sleep(max(SWEEP, _REST * elapsed))
            begin = time.monotonic()
            try:
                await self.sweep()
            except TransportError as error:
                log.warning("cannot delete messages that all subscribers have read, retrying: %s", error)
            except Exception:  # no record that a client has written may end a node
                log.exception("cannot delete messages that all subscribers have read, retrying")
            elapsed = time.monotonic() - begin
