"""A reader that begins anew is told once of what came before."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from narrowcast.broker import MemoryTransport
from narrowcast.broker.clients.request_client import RequestClient
from narrowcast.broker.clients.stored_reader import StoredReader
from narrowcast.broker.storage.positions import BEFORE
from narrowcast.broker.wire import Subjects
from support.broker import PATIENCE

if TYPE_CHECKING:
    from narrowcast.broker.transport import Message

#: A place behind which there is something to read, and the last that is stored.
AFTER, LAST = BEFORE + 100, BEFORE + 110


class Broken:
    """A reader; each replay for it breaks off behind a place, but for the last."""

    def __init__(self, transport: MemoryTransport, subjects: Subjects, breaks: list[int]) -> None:
        self._transport, self._subjects, self._breaks = transport, subjects, breaks
        self.reading: StoredReader | None = None
        self.asked: list[int] = []
        self.remembered: list[int] = []
        self.read: list[int] = []

    def accept(self, message: Message) -> None:
        self.read.append(message.number)

    def remember(self, message: Message) -> None:
        self.remembered.append(message.number)

    def room(self) -> bool:
        return True

    async def replay(self, after: int, token: str) -> int:
        """Replay all that is stored behind a place, or as far as it goes this time."""
        self.asked.append(after)
        end = self._breaks.pop(0) if self._breaks else LAST
        subject, to = self._subjects.stored(self._subjects.to("ann")), self._subjects.replay("ann")
        for i, number in enumerate(range(after + 1, end + 1), 1):
            place = f"$JS.ACK.nc_out.ann.1.{number}.{i}.1700000000000000000.{LAST - number}"
            await self._transport.publish(f"{to}.{token}", subject.encode(), reply=place)
        if end < LAST and self.reading is not None:
            self.reading.cursor.lost()
        return LAST - after


def read(breaks: list[int]) -> Broken:
    """Return what came of replays that break off."""

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


def test_what_was_before_is_remembered_once() -> None:
    """Another time later events would be forgotten for it, and come twice."""
    found = read([AFTER + 3, AFTER + 7])
    assert found.asked == [AFTER - BEFORE, AFTER + 3, AFTER + 7]
    assert found.remembered == list(range(AFTER - BEFORE + 1, AFTER + 1))
    assert found.read == list(range(AFTER + 1, LAST + 1))


def test_until_it_is_remembered_whole() -> None:
    found = read([AFTER - 3])
    assert found.asked == [AFTER - BEFORE] * 2
    assert found.remembered[-BEFORE:] == list(range(AFTER - BEFORE + 1, AFTER + 1))
    assert found.read == list(range(AFTER + 1, LAST + 1))
