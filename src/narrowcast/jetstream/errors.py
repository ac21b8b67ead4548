"""Errors of connections and of JetStream, for callers that try again or report them in their own words."""

from __future__ import annotations

from narrowcast.errors import TransportError


class LostError(Exception):
    """The connection is lost; another may work."""


class PlainError(OSError):
    """The server has no TLS, although the connection has to be encrypted."""


class DroppedError(Exception):
    """A message found no room in the queue of a subscription, and is dropped."""


class RefusedError(TransportError):
    """JetStream refused a request, named by its verb, or a message.

    `code` is the server's number for the reason, `absent` whether that is a stream, consumer or message that
    is not there.
    """

    def __init__(self, description: str, code: int = 0, *, absent: bool = False, verb: str = "") -> None:
        super().__init__(f"the NATS server refuses {verb}: {description}" if verb else description)
        self.description, self.code, self.absent = description, code, absent
