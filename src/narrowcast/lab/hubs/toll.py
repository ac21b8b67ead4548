"""The cost of keeping machines and filters in order: messages, and their bytes."""

from __future__ import annotations

from dataclasses import dataclass

#: Bytes of a message without an event: the paper's size of a heartbeat (cobas2009, section VII-A).
CONTROL = 128.0
#: Bytes of a filter, or a piece of one, that is handed on: as a heartbeat, since the paper does not say.
SEGMENT = 128.0
#: Links of a tree node: to its parent and to two children.
NEIGHBOURS = 3


@dataclass(frozen=True, slots=True)
class Toll:
    """Messages and bytes; several can be added.

    Parameters
    ----------
    messages
        Number of messages between machines.
    bytes
        Their size in bytes.

    Examples
    --------
    >>> Toll.control(2) + Toll.handed(10)
    Toll(messages=13.0, bytes=2816.0)
    """

    messages: float = 0.0
    bytes: float = 0.0

    @classmethod
    def control(cls, messages: float) -> Toll:
        """Return the cost of messages without content."""
        return cls(float(messages), float(CONTROL * messages))

    @classmethod
    def handed(cls, segments: float, *, batches: float = 1) -> Toll:
        """Return the cost of handing segments on in `batches` messages, and of notifying their agents."""
        return cls(float(batches), float(SEGMENT * segments)) + cls.control(segments)

    def __add__(self, other: Toll) -> Toll:
        return Toll(self.messages + other.messages, self.bytes + other.bytes)
