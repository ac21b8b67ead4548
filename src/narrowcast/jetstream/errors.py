"""Errors of connections and of JetStream, for callers that try again or report them in their own words."""

from __future__ import annotations


class LostError(Exception):
    """The connection is lost; another may work."""


class PlainError(OSError):
    """The server has no TLS, although the connection has to be encrypted."""


class DroppedError(Exception):
    """A message found no room in the queue of a subscription, and is dropped."""


class RefusedError(Exception):
    """JetStream refused a request or a message.

    Parameters
    ----------
    description
        Why, in the server's words.
    code
        The server's number for the reason.
    """

    def __init__(self, description: str, code: int = 0) -> None:
        super().__init__(description)
        self.description, self.code = description, code


class AbsentError(RefusedError):
    """The stream, consumer or message is not there."""
