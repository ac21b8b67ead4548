"""Errors of connections and of JetStream, for callers that retry or report them."""

from __future__ import annotations

from narrowcast.errors import TransportError


class LostError(Exception):
    """The connection is lost; a new one may work."""


class PlainError(OSError):
    """The server has no TLS, but the connection must be encrypted."""


class DroppedError(Exception):
    """A message was dropped, since the queue of a subscription was full."""


class RefusedError(TransportError):
    """JetStream refused a request or a message.

    Parameters
    ----------
    description
        Reason, in the server's words.
    code
        The server's number for the reason; 0 if unknown.
    absent
        Whether the reason is a stream, consumer or message that does not exist.
    verb
        Verb of the request, such as ``STREAM.INFO.orders``; empty for a message.
    """

    def __init__(self, description: str, code: int = 0, *, absent: bool = False, verb: str = "") -> None:
        super().__init__(f"the NATS server refuses {verb}: {description}" if verb else description)
        self.description, self.code, self.absent = description, code, absent
