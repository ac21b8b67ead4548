"""What a connection reads and sends, whatever is on the other side."""

from __future__ import annotations

import asyncio
import inspect
import json
import ssl
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.protocol import parser

from narrowcast.broker.nats_transport import NatsTransport
from narrowcast.errors import TransportError
from narrowcast.jetstream.connection import NatsConnection
from narrowcast.jetstream.errors import PlainError
from narrowcast.jetstream.parser import Parser

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

#: What nats-py is given of a message: the number of the subscription, subjects, payload and headers.
Given = tuple[int, bytes, bytes, bytes, bytes | None]


class Recorder:
    """Stands for the client that a parser belongs to."""

    def __init__(self) -> None:
        self.messages: list[Given] = []
        self.pings = 0

    async def _process_msg(self, *given: *Given) -> None:
        self.messages.append(given)

    async def _process_ping(self) -> None:
        self.pings += 1


def read(received: bytes, cuts: list[int]) -> Recorder:
    """Return what is made of bytes that come in pieces."""
    found = Recorder()
    reader = Parser(found)
    places = sorted({0, *(cut % len(received) for cut in cuts), len(received)})

    async def run() -> None:
        for low, high in pairwise(places):
            await reader.parse(received[low:high])

    asyncio.run(run())
    return found


words = st.binary(min_size=1, max_size=9).filter(lambda word: not set(word) & set(b" \t\r\n"))
headers = st.none() | st.sampled_from(
    [b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\na: \xff\r\n\r\n", b"NATS/1.0 503\r\n"]
)


@given(
    st.lists(st.tuples(st.integers(0, 99), words, st.just(b"") | words, st.binary(max_size=30), headers)),
    st.lists(st.integers(0, 999), max_size=9),
)
def test_messages_are_read_whatever_they_hold_and_however_they_are_cut(
    messages: list[Given], cuts: list[int]
) -> None:
    received = b""
    for sid, subject, reply, payload, header in messages:
        sizes = [b"%d" % len(header), b"%d" % len(header + payload)] if header else [b"%d" % len(payload)]
        line = [b"HMSG" if header else b"MSG", subject, b"%d" % sid, *([reply] if reply else []), *sizes]
        received += b" ".join(line) + b"\r\n" + (header or b"") + payload + b"\r\nPING\r\n"
    found = read(received + b"PING\r\n", cuts)

    def text(word: bytes) -> bytes:
        return word.decode(errors="replace").encode()

    expected = [(sid, text(subject), text(reply), *rest) for sid, subject, reply, *rest in messages]
    assert found.messages == expected
    assert found.pings == len(messages) + 1


def test_nats_py_is_as_the_parser_needs_it() -> None:
    """The parser takes the place of one that is private: another version may have it elsewhere."""
    assert type(Client()._ps) is parser.Parser
    assert list(inspect.signature(parser.Parser.parse).parameters) == ["self", "data"]
    assert list(inspect.signature(Client._process_msg).parameters) == [
        "self", "sid", "subject", "reply", "data", "headers",
    ]  # fmt: skip
    assert "buf" in vars(parser.Parser())
    assert type(NatsConnection("", 1, None)._client._ps) is Parser


class Plain:
    """A server without TLS that asks for a password, and keeps what it is sent."""

    def __init__(self) -> None:
        self.received = b""
        self.said = json.dumps(
            {"client_id": 1, "auth_required": True, "max_payload": 1 << 20, "headers": True}
        )

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"INFO {self.said}\r\n".encode())
        while some := await reader.read(1 << 16):
            self.received += some
            if b"PING" in some:
                writer.write(b"-ERR 'Authorization Violation'\r\n")
                break
        writer.close()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[str]:
        """Yield its URL."""
        async with await asyncio.start_server(self._accept, "127.0.0.1", 0) as server:
            yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def test_a_server_without_tls_is_sent_no_password() -> None:
    async def run() -> None:
        context = ssl.create_default_context()
        server = Plain()
        async with server.opened() as url:
            with pytest.raises(PlainError):
                await NatsConnection.open(url, user="ann", password="secret", tls=context)
            with pytest.raises(TransportError, match="has no TLS, and would be told secrets openly"):
                await NatsTransport.connect(url, user="ann", password="secret", tls=context)
            assert b"CONNECT" in server.received
            assert b"secret" not in server.received
            with pytest.raises(TransportError, match="refuses user 'ann'"):
                await NatsTransport.connect(url, user="ann", password="secret")
            assert b"secret" in server.received

    asyncio.run(run())
