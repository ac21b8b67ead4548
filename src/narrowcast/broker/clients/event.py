"""Events as subscribers get them."""

from __future__ import annotations

from typing import Any

import msgspec

_json = msgspec.json.Decoder().decode


class Event(msgspec.Struct, frozen=True, gc=False):
    """An event that somebody wants.

    Parameters
    ----------
    publisher, number
        Who published it, and the how many-th of theirs it is: together its id.
    payload
        As it was published.
    subject
        What it came over: a channel, or what is for this subscriber alone.
    """

    publisher: str
    number: int
    payload: bytes
    subject: str = ""

    @property
    def data(self) -> Any:
        """The event, read from its JSON."""
        return _json(self.payload)
