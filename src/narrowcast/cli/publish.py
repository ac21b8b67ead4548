"""`narrowcast publish`: events from a file to a live broker."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from concurrent.futures import CancelledError
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from narrowcast.cli import broker_options, options
from narrowcast.errors import InputError, ParameterError
from narrowcast.files import first_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import BinaryIO

    from narrowcast.broker.security.login import Login

#: Bytes that are read in one go.
_CHUNK = 1 << 18
_check = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def publish(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="JSON lines; - for standard input.")],
    nats: broker_options.Nats = broker_options.HERE,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="P", help="Who publishes; else the user, or like no other."),
    ] = None,
    prefix: broker_options.Prefix = "nc",
    user: broker_options.User = None,
    token: broker_options.Token = None,
    tls_ca: broker_options.TlsCa = None,
    tls_cert: broker_options.TlsCert = None,
    tls_key: broker_options.TlsKey = None,
    as_json: options.Json = False,
) -> None:
    """Publish JSON objects, plain or CloudEvents, one a line, in their order.

    It ends when nodes have taken all of them. A line that is no JSON object ends it with an error; what stood
    before has been published.

    Examples:

        narrowcast publish events.jsonl

        echo '{"price": 80, "name": "IBM"}' | narrowcast publish -

        NARROWCAST_TOKEN=... narrowcast publish events.jsonl --user desk
    """
    who = broker_options.login(nats, user, token, tls_ca, tls_cert, tls_key)
    with ExitStack() as stack:
        lines: BinaryIO = sys.stdin.buffer
        if file != "-":
            try:
                lines = stack.enter_context(Path(file).open("rb"))
            except OSError as error:
                raise InputError(
                    f"{file} cannot be read: {error.strerror}; give a file of JSON lines"
                ) from error
        if who.user and name not in (None, who.user):
            raise ParameterError(
                f"--name is {name!r}, and user {who.user!r} publishes as itself; leave --name out"
            )
        published: list[int] = []
        broker_options.until_interrupted(
            _publish(who, lines, file, name or who.user or None, prefix, published)
        )
    if published:
        rows = [("", "number"), ("events", f"{published[0]:,}")]
        options.show({"command": "publish", "events": published[0]}, {"Published": rows}, as_json=as_json)


async def _publish(
    who: Login, lines: BinaryIO, file: str, name: str | None, prefix: str, published: list[int]
) -> None:
    """Publish lines, and note how many."""
    from narrowcast.broker import Publisher

    async with broker_options.connected(who, "narrowcast publish", prefix) as transport:
        publisher = await Publisher(transport, name, prefix=prefix).start()
        try:
            number = 0
            async for line in _read(lines):
                number += 1
                event = line.strip()
                if not event:
                    continue
                try:
                    _check(event)
                except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                    raise InputError(
                        f"line {number} of {file} is no JSON object: {error}; mend it"
                    ) from error
                await publisher.publish(event)
        finally:
            await publisher.aclose()
        published.append(publisher.published)


async def _read(stream: BinaryIO) -> AsyncIterator[bytes]:
    """Yield lines as they come; while none does, what came before is sent.

    A thread waits for them that nobody waits for: it may do so for ever.
    """
    loop, chunks = asyncio.get_running_loop(), asyncio.Queue[bytes | Exception](1)

    def pump() -> None:
        chunk: bytes | Exception = b"more"
        with suppress(RuntimeError, CancelledError):  # the loop has ended, and so has the command
            while chunk and not isinstance(chunk, Exception):
                try:
                    chunk = os.read(stream.fileno(), _CHUNK)
                except (OSError, ValueError) as error:  # the command may have closed it
                    chunk = error
                asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()

    threading.Thread(target=pump, daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        if isinstance(chunk, Exception):
            raise InputError(f"{stream.name} cannot be read to its end: {first_line(chunk)}") from chunk
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest
