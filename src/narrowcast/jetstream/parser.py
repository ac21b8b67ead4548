"""Parser for what a NATS server sends, which accepts any bytes that clients may have published."""

from __future__ import annotations

from typing import Any

from nats.errors import ProtocolError
from nats.protocol import parser

_CRLF = b"\r\n"
#: How headers begin, without and with a status of the server.
_HEADERS, _STATUS = b"NATS/1.0\r\n", b"NATS/1.0 "


class Parser(parser.Parser):
    """Splits the stream into messages itself and leaves their delivery, and all other verbs, to nats-py.

    Publishers choose subjects, reply subjects and headers. nats-py takes a form feed in a subject for the end
    of a word, and stops reading at invalid UTF-8, so that one message, once stored, ends every connection.
    Here invalid UTF-8 in a subject is replaced, and headers that nats-py cannot read are left out.
    """

    def reset(self) -> None:
        """Forget what has been received."""
        super().reset()
        self._received = bytearray()

    async def parse(self, data: bytes = b"") -> None:
        """Process all complete messages and lines."""
        self._received.extend(data)
        start = 0
        try:
            while (end := self._received.find(_CRLF, start)) >= 0:
                line = bytes(self._received[start:end])
                end += len(_CRLF)
                if line.startswith((b"MSG ", b"HMSG ")):
                    next_start = end + int(line.rpartition(b" ")[2]) + len(_CRLF)
                    if next_start > len(self._received):
                        return
                    start, body = next_start, bytes(self._received[end:next_start])
                    await super().parse(self._begin(line, body))
                else:
                    start = end
                    await super().parse(line + _CRLF)
                    if self.buf:
                        raise ProtocolError("nats: unknown protocol")
        except ValueError as error:
            raise ProtocolError("nats: malformed MSG") from error
        finally:
            del self._received[:start]

    def _begin(self, line: bytes, body: bytes) -> bytes:
        """Set what nats-py reads from the line of a message, and return the rest of the message."""
        # The server separates words by single spaces, and subjects contain none.
        verb, subject, sid, *reply, size = line.split(b" ")
        header_size = int(reply.pop()) if verb == b"HMSG" else 0
        if header_size and not _is_readable(body[:header_size]):
            size, body, header_size = b"%d" % (int(size) - header_size), body[header_size:], 0
        self.msg_arg: dict[str, Any] = {
            "subject": _text(subject),
            "sid": int(sid),
            "reply": _text(*reply) if reply else b"",
        }
        self.needed, self.header_needed = int(size), header_size
        self.state = parser.AWAITING_MSG_PAYLOAD
        return body


def _text(subject: bytes) -> bytes:
    """Return a subject as valid UTF-8."""
    return subject if subject.isascii() else subject.decode(errors="replace").encode()


def _is_readable(headers: bytes) -> bool:
    r"""Return whether nats-py can read headers; a status and its description have to be ASCII.

    Examples
    --------
    >>> [_is_readable(each) for each in (b"NATS/1.0 503\r\n\r\n", b"NATS/1.0 \xff", b"NATS/1.0", b"?")]
    [True, False, False, False]
    """
    return headers.startswith(_HEADERS) or (headers.startswith(_STATUS) and headers.isascii())
