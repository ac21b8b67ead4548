"""A real NATS server for tests, and streams and messages on it."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import nats
from nats.js.api import StreamConfig

from support.cluster import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from nats.aio.client import Client
    from nats.js import JetStreamContext

Answer = TypeVar("Answer")

#: The server that the wheel brings, beside the interpreter.
SERVER = Path(sys.executable).with_name("nats-server")

#: Where the server says that it listens.
_LISTENS = re.compile(r"Listening for client connections on [^\n]*:(\d+)")


class NatsServer:
    """A server with JetStream (by default), whose store outlives a stop.

    Parameters
    ----------
    folder
        Folder of its store and log.
    config
        Additional lines of its configuration.
    """

    def __init__(self, folder: Path, config: str = "", *, jetstream: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "log"
        self._config = folder / "nats.conf"
        self._text = config
        if jetstream:
            self._text += f'\njetstream {{ store_dir: "{folder / "store"}" }}'
        self._process: subprocess.Popen[bytes] | None = None
        #: Its port: any free one at first, the same one ever after.
        self.port = -1

    @property
    def url(self) -> str:
        """Its address."""
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._config.write_text(f"listen: 127.0.0.1:{self.port}\n{self._text}\n")
        with self._log.open("wb") as to:
            self._process = subprocess.Popen([SERVER, "-c", self._config], stdout=to, stderr=to)
        try:
            until(lambda: "Server is ready" in self._log.read_text(), "NATS server", patience=30)
        except AssertionError as error:
            self.stop()
            raise AssertionError(f"{error}: {self._log.read_text()}") from error
        found = _LISTENS.search(self._log.read_text())
        assert found is not None
        self.port = int(found[1])

    def stop(self) -> None:
        """Kill it, as when the machine fails."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Suspend the server for the length of a block."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        threads = Path(f"/proc/{self._process.pid}/task")
        try:
            until(lambda: all(map(_is_stopped, threads.iterdir())), "stop of all its threads", patience=30)
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def ask(self, do: Callable[[Client, JetStreamContext], Awaitable[Answer]]) -> Answer:
        """Call a function with a connection to the server, and return its result."""

        async def asked() -> Answer:
            client = await nats.connect(self.url, allow_reconnect=False)
            try:
                return await do(client, client.jetstream(timeout=30))
            finally:
                await client.close()

        return asyncio.run(asked())

    def make_stream(self, name: str, *subjects: str, **config: object) -> None:
        """Make a stream; by default for all subjects below its name."""
        chosen = StreamConfig(name=name, subjects=list(subjects) or [f"{name}.>"]).evolve(**config)
        self.ask(lambda _, js: js.add_stream(chosen))

    def fill(self, subject: str, payloads: Iterable[bytes], *, ids: Iterable[str] | None = None) -> None:
        """Publish messages in order, and wait until a stream has them all."""

        async def filled(_: Client, js: JetStreamContext) -> None:
            names = iter(ids) if ids is not None else None
            waiting = [
                await js.publish_async(
                    subject, payload, headers={"Nats-Msg-Id": next(names)} if names is not None else None
                )
                for payload in payloads
            ]
            await asyncio.wait_for(asyncio.gather(*waiting), 60)

        self.ask(filled)

    def delete(self, stream: str, sequences: Iterable[int]) -> None:
        """Delete messages of a stream."""

        async def deleted(_: Client, js: JetStreamContext) -> None:
            for sequence in sequences:
                await js.delete_msg(stream, sequence)

        self.ask(deleted)


def _is_stopped(thread: Path) -> bool:
    """Return whether a thread has been stopped by a signal."""
    return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"


@contextmanager
def nats_server(folder: Path, config: str = "", *, jetstream: bool = True) -> Iterator[NatsServer]:
    """Give a server that runs for the length of a block."""
    server = NatsServer(folder, config, jetstream=jetstream)
    server.start()
    try:
        yield server
    finally:
        server.stop()
