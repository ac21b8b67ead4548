"""A restarted reader remembers the messages before its position once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from narrowcast.broker import MemoryTransport
from narrowcast.broker.clients.request_client import RequestClient
from narrowcast.broker.clients.stored_reader import StoredReader
from narrowcast.broker.storage.positions import REPLAY_MARGIN
from narrowcast.broker.wire import Subjects
from support.broker import PATIENCE

if TYPE_CHECKING:
    from narrowcast.broker.transport import Message

#: The position of the reader, and the last stored message.
AFTER, LAST = REPLAY_MARGIN + 100, REPLAY_MARGIN + 110


class Broken:
    """A receiver; each replay for it, except the last, is interrupted after a position."""

    def __init__(self, transport: MemoryTransport, subjects: Subjects, breaks: list[int]) -> None:
        self._transport, self._subjects, self._breaks = transport, subjects, breaks
        self.reading: StoredReader | None = None
        self.asked: list[int] = []
        self.remembered: list[int] = []
        self.read: list[int] = []

    def accept(self, message: Message) -> None:
        self.read.append(message.number)

    def mark_seen(self, message: Message) -> None:
        self.remembered.append(message.number)

    def has_room(self) -> bool:
        return True

    async def request_replay(self, after: int, token: str) -> int:
        """Replay what is stored after a position, up to the next interruption."""
        self.asked.append(after)
        end = self._breaks.pop(0) if self._breaks else LAST
        subject, to = self._subjects.stored(self._subjects.to("ann")), self._subjects.replay("ann")
        for i, number in enumerate(range(after + 1, end + 1), 1):
            place = f"$JS.ACK.nc_out.ann.1.{number}.{i}.1700000000000000000.{LAST - number}"
            await self._transport.publish(f"{to}.{token}", subject.encode(), reply=place)
        if end < LAST and self.reading is not None:
            self.reading.cursor.mark_behind()
        return LAST - after


def read(breaks: list[int]) -> Broken:
    """Return the receiver after replays that are interrupted at these positions."""

    async def run() -> Broken:
        transport, subjects = MemoryTransport(), Subjects("nc")
        reader = Broken(transport, subjects, breaks)
        asking = RequestClient(transport, "nc.answer.ann")
        reader.reading = StoredReader(
            transport, subjects, asking, "ann", reader, after=AFTER, store="a1", key="k1"
        )
        running = asyncio.create_task(reader.reading.run())
        async with asyncio.timeout(PATIENCE):
            while reader.reading.cursor.behind:
                await asyncio.sleep(0.01)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await transport.aclose()
        return reader

    return asyncio.run(run())


def test_events_before_the_start_are_remembered_once() -> None:
    """A second time, later events would be forgotten, and delivered twice."""
    found = read([AFTER + 3, AFTER + 7])
    assert found.asked == [AFTER - REPLAY_MARGIN, AFTER + 3, AFTER + 7]
    assert found.remembered == list(range(AFTER - REPLAY_MARGIN + 1, AFTER + 1))
    assert found.read == list(range(AFTER + 1, LAST + 1))


def test_an_interrupted_first_replay_is_repeated() -> None:
    found = read([AFTER - 3])
    assert found.asked == [AFTER - REPLAY_MARGIN] * 2
    assert found.remembered[-REPLAY_MARGIN:] == list(range(AFTER - REPLAY_MARGIN + 1, AFTER + 1))
    assert found.read == list(range(AFTER + 1, LAST + 1))
