"""How far subscribers are in what is stored for them, and which channels hold it."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING

import msgspec

from narrowcast.errors import InputError, TransportError
from narrowcast.model.subjects import name_of, subject_of

if TYPE_CHECKING:
    from narrowcast.broker.streams import Streams
    from narrowcast.broker.wire import Subjects

log = logging.getLogger(__name__)

#: Messages before the first that somebody has not read that stay, so that one who starts again knows what was
#: stored twice; and the share of the room that they may take.
BEFORE, _SHARE = 16_384, 0.1
#: Seconds from one look at what everybody has read to the next.
SWEEP = 5.0
_TOKEN = re.compile(r"[0-9a-f]{16}")
_decode = msgspec.msgpack.Decoder(list[tuple[int, int, int]]).decode


class Positions:
    """What the first node knows of subscribers of a broker that stores events; all of it is in streams.

    Parameters
    ----------
    streams
        Where.
    subjects
        Of the broker.
    """

    def __init__(self, streams: Streams, subjects: Subjects) -> None:
        self._streams, self._subjects = streams, subjects
        # By subscriber, plan and channel: the place up to which the channel may hold something, 0 for any.
        self._channels: dict[str, dict[tuple[int, int], int]] = {}

    async def start(self) -> None:
        """Make the streams where they are not there, and take up what they hold."""
        await self._streams.make()
        last = await self._streams.last()
        prefix = f"{self._subjects.prefix}.at.joined"
        async for message in self._streams.newest(self._streams.at, f"{prefix}.*"):
            try:
                rows = _decode(message.payload)
            except msgspec.MsgspecError:
                log.warning("%s cannot be read, and is left out", message.subject)
                continue
            found = {(epoch, channel): until or last for epoch, channel, until in rows}
            self._channels[name_of(prefix, message.subject)] = found

    async def of(self, subscriber: str) -> int:
        """Return how far somebody is; who is not known begins here and now."""
        subject = self._subjects.position(subscriber)
        found = await self._streams.get(self._streams.at, subject)
        if found is not None and found.isdigit():
            return int(found)
        last = await self._streams.last()
        await self._streams.put(subject, b"%d" % last)
        return last

    async def forget(self, subscriber: str) -> None:
        """Keep nothing any more for somebody."""
        self._channels.pop(subscriber, None)
        for subject in (self._subjects.position(subscriber), self._subjects.joined(subscriber)):
            await self._streams.forget(self._streams.at, subject)

    async def join(self, subscriber: str, epoch: int, channels: list[int]) -> None:
        """Note that channels of a plan hold something for somebody from now on; return when it is stored."""
        own = self._channels.setdefault(subscriber, {})
        fresh = {(epoch, channel): 0 for channel in channels}
        if any(own.get(key) != 0 for key in fresh):
            own |= fresh
            await self._write(subscriber)

    async def switch(self, epoch: int) -> None:
        """Note that a plan is in use, and nothing more goes over channels of others."""
        last = await self._streams.last()
        for own in self._channels.values():
            own.update({key: last for key, until in own.items() if not until and key[0] != epoch})

    async def _write(self, subscriber: str) -> None:
        """Store the channels of somebody."""
        rows = [(*key, until) for key, until in self._channels[subscriber].items()]
        await self._streams.put(self._subjects.joined(subscriber), msgspec.msgpack.encode(rows))

    async def replay(self, subscriber: str, after: int, token: str) -> int:
        """Let somebody have all again that was stored for it behind a place; return how many messages.

        They come below the subject that it has for replays, in their order.
        """
        if not _TOKEN.fullmatch(token) or after < 0:
            raise InputError(
                f"a replay behind {after} to {token!r:.40} cannot be; give 16 hexadecimal digits"
            )
        of = self._subjects
        channels = [of.channel(*key) for key in self._channels.get(subscriber, {})]
        return await self._streams.feed(
            self._streams.out,
            subject_of("x", subscriber)[2:],
            f"{of.replay(subscriber)}.{token}",
            filters=[of.stored(subject) for subject in (of.to(subscriber), of.everybody, *channels)],
            after=after,
        )

    async def sweep(self) -> None:
        """Forget what everybody has read, and channels that hold nothing more for somebody."""
        prefix = f"{self._subjects.prefix}.at.position"
        positions: dict[str, int] = {}
        async for message in self._streams.newest(self._streams.at, f"{prefix}.*"):
            if message.payload.isdigit():
                positions[name_of(prefix, message.subject)] = int(message.payload)
        floor = min(positions.values(), default=await self._streams.last())
        first, room = await self._streams.room()
        before = floor - min(BEFORE, int(_SHARE * room)) + 1
        if before > first:
            await self._streams.trim(before)
        for name, own in self._channels.items():
            held = {key: until for key, until in own.items() if not until or until > positions.get(name, 0)}
            if len(held) < len(own):
                self._channels[name] = held
                await self._write(name)

    async def sweeps(self) -> None:
        """Sweep again and again."""
        while True:
            await asyncio.sleep(SWEEP)
            try:
                await self.sweep()
            except TransportError as error:
                log.warning("what everybody has read is kept for now: %s", error)
