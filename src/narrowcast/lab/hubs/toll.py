"""What it takes to keep machines and filters in order: messages, and their bytes."""

from __future__ import annotations

from dataclasses import dataclass

#: Bytes of a message without an event: the paper says so of heartbeats (cobas2009, section VII-A).
CONTROL = 128.0
#: Bytes of a filter, or a piece of one, that is handed on. The paper does not say; as much as a heartbeat.
SEGMENT = 128.0
#: Lines of a tree that end at a node: to its parent and to two children.
NEIGHBOURS = 3


@dataclass(frozen=True, slots=True)
class Toll:
    """Messages and bytes; those of several things may be added.

    Parameters
    ----------
    messages
        How many messages are sent from a machine to another.
    bytes
        How many bytes these have.

    Examples
    --------
    >>> Toll.control(2) + Toll.handed(10)
    Toll(messages=13.0, bytes=2816.0)
    """

    messages: float = 0.0
    bytes: float = 0.0

    @classmethod
    def control(cls, messages: float) -> Toll:
        """Return what messages take that carry nothing else."""
        return cls(float(messages), float(CONTROL * messages))

    @classmethod
    def handed(cls, segments: float, *, batches: float = 1) -> Toll:
        """Return what it takes to hand segments on in so many messages, and to tell the agent of each."""
        return cls(float(batches), float(SEGMENT * segments)) + cls.control(segments)

    def __add__(self, other: Toll) -> Toll:
        return Toll(self.messages + other.messages, self.bytes + other.bytes)
