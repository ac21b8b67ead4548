"""A TCP proxy that can cut the network."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self, TypeVar

Found = TypeVar("Found")
_CHUNK = 1 << 16


class Proxy:
    """Forwards bytes to a port of this machine and back, in a thread of its own, unless cut.

    Parameters
    ----------
    port
        Port to forward connections to.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._open: asyncio.Event
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refusing = False
        #: Where it listens, once it has started.
        self.port = 0

    @property
    def url(self) -> str:
        """URL for clients."""
        return f"nats://127.0.0.1:{self.port}"

    def _run(self, work: Coroutine[Any, Any, Found]) -> Found:
        """Run a coroutine in the loop of the thread, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._start())
        return self

    async def _start(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        await self._reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- connections

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        ends = [writer]
        try:
            if self._refusing:
                raise ConnectionRefusedError
            await self._open.wait()
            there, back = await asyncio.open_connection("127.0.0.1", self._to)
            ends.append(back)
            self._pairs.add(pair := (writer, back))
            try:
                await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
            finally:
                self._pairs.discard(pair)
        except (OSError, asyncio.CancelledError):
            for end in ends:
                _break(end)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward bytes in one direction; while the network is cut they are held back."""
        with suppress(OSError):
            while some := await reader.read(_CHUNK):
                await self._open.wait()
                writer.write(some)
                await writer.drain()
        with suppress(OSError):
            writer.close()

    # ---- cuts

    def cut(self) -> None:
        """Forward nothing and close nothing; new connections get no answer."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def heal(self) -> None:
        """Forward everything again, including what was held back."""
        self._refusing = False
        self._loop.call_soon_threadsafe(self._open.set)

    def reset(self) -> None:
        """Reset all connections, dropping bytes in flight, and refuse new ones."""
        self._refusing = True
        self._run(self._reset())

    async def _reset(self) -> None:
        for pair in list(self._pairs):
            for writer in pair:
                _break(writer)


def _break(writer: asyncio.StreamWriter) -> None:
    """Close a connection so that the other side sees a reset."""
    at = writer.get_extra_info("socket")
    if at is not None:
        with suppress(OSError):
            at.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
