"""Event as a subscriber receives it."""

from __future__ import annotations

from typing import Any

import msgspec

_json = msgspec.json.Decoder().decode


class Event(msgspec.Struct, frozen=True, gc=False):
    """An event that matches a filter of the subscriber.

    Parameters
    ----------
    publisher, number
        Name of the publisher, and the publisher's sequence number for the event: together the event's id.
    payload
        Bytes as published.
    subject
        Subject on which the event arrived: a channel, or the subscriber's own subject.
    """

    publisher: str
    number: int
    payload: bytes
    subject: str = ""

    @property
    def data(self) -> Any:
        """The payload, parsed as JSON."""
        return _json(self.payload)
