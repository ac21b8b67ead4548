"""Parser of the NATS protocol that accepts any bytes in subjects and headers."""

from __future__ import annotations

from nats.errors import ProtocolError
from nats.protocol import parser

_CRLF = b"\r\n"
#: Beginning of headers, without and with a status of the server.
_HEADERS, _STATUS = b"NATS/1.0\r\n", b"NATS/1.0 "


class Parser(parser.Parser):
    """Parses messages itself, and passes all other verbs to the parser of nats-py.

    Publishers choose subjects, reply subjects and headers. The parser of nats-py ends a word of a subject at
    a form feed, and fails at invalid UTF-8, so that a single stored message would end every connection. Here
    invalid UTF-8 in a subject is replaced, and headers that nats-py cannot read are omitted.

    It uses one private name of nats-py, `Client._process_msg`, which a parser calls with each message.
    """

    def reset(self) -> None:
        """Discard all received bytes."""
        super().reset()
        #: Received bytes that are not processed yet, and the number of bytes of their first message.
        self._received: list[bytes] = []
        self._awaited = 0

    async def parse(self, data: bytes = b"") -> None:
        """Process the received bytes up to the last complete message or line."""
        self._received.append(data)
        if self._awaited and sum(map(len, self._received)) < self._awaited:
            return
        received, start = b"".join(self._received), 0
        self._received, self._awaited = [], 0
        while (end := received.find(_CRLF, start)) >= 0:
            line, body = received[start:end], end + len(_CRLF)
            if line.startswith((b"MSG ", b"HMSG ")):
                end = body + _size(line)
                if end + len(_CRLF) > len(received):
                    self._awaited = end + len(_CRLF) - start
                    break
                start = end + len(_CRLF)
                await self._process(line, received[body:end])
            else:
                start = body
                await super().parse(line + _CRLF)
                if self.buf:
                    raise ProtocolError("nats: unknown protocol")
        if start < len(received):
            self._received.append(received[start:])

    async def _process(self, line: bytes, body: bytes) -> None:
        """Pass a message to the client."""
        # The server separates words by single spaces, and subjects contain none.
        verb, subject, sid, *more, _ = line.split(b" ")
        headers = None
        if verb == b"HMSG":
            size = int(more.pop())
            headers, body = body[:size], body[size:]
        reply = _text(more[0]) if more else b""
        readable = headers if headers and _is_readable(headers) else None
        await self.nc._process_msg(int(sid), _text(subject), reply, body, readable)


def _size(line: bytes) -> int:
    """Return the number of bytes after the line of a message."""
    try:
        return int(line.rpartition(b" ")[2])
    except ValueError as error:
        raise ProtocolError("nats: malformed MSG") from error


def _text(subject: bytes) -> bytes:
    """Return a subject as valid UTF-8."""
    return subject if subject.isascii() else subject.decode(errors="replace").encode()


def _is_readable(headers: bytes) -> bool:
    r"""Return whether nats-py can read these headers: a status and its description have to be ASCII.

    Examples
    --------
    >>> [_is_readable(each) for each in (b"NATS/1.0 503\r\n\r\n", b"NATS/1.0 \xff", b"NATS/1.0", b"?")]
    [True, False, False, False]
    """
    return headers.startswith(_HEADERS) or (headers.startswith(_STATUS) and headers.isascii())
