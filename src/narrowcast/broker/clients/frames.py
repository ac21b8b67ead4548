"""Parsing and splitting of frames (batches of events on the wire)."""

from __future__ import annotations

import logging
from itertools import compress
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from narrowcast.broker import wire
from narrowcast.errors import InputError
from narrowcast.files import first_line

if TYPE_CHECKING:
    from narrowcast.broker.transport import Message

log = logging.getLogger(__name__)


def parse_frame(message: Message) -> wire.Frame | None:
    """Parse the payload of a message as a frame; log a warning and return None when it is invalid.

    Examples
    --------
    >>> from narrowcast.broker.transport import Message
    >>> parse_frame(Message("nc.out.all", b"garbage"))
    """
    try:
        frame = wire.decode_frame(message.payload)
        frame.check()
    except (msgspec.MsgspecError, UnicodeError, InputError) as error:
        log.warning("subject %s: skipping an invalid frame: %s", message.subject, first_line(error))
        return None
    return frame


def split_frame(frame: wire.Frame) -> tuple[wire.Frame, wire.Frame]:
    """Split a frame into two frames of half the events each, for a frame that is too large for one message.

    Examples
    --------
    >>> some = wire.Frame(-1, 0.0, [("p", 2), ("q", 1)], b"1.......2.......3.......", [b"a", b"b", b"c"])
    >>> for half in split_frame(some):
    ...     print(half.runs, half.numbers, half.payloads)
    [('p', 1)] b'1.......' [b'a']
    [('p', 1), ('q', 1)] b'2.......3.......' [b'b', b'c']
    """
    middle = len(frame.payloads) // 2
    runs: tuple[list[wire.Run], list[wire.Run]] = ([], [])
    start = 0
    for name, many in frame.runs:
        first = min(max(middle - start, 0), many)  # events of this run in the first half
        for own, part in zip(runs, (first, many - first), strict=True):
            if part:
                own.append((name, part))
        start += many
    at = 8 * middle
    return (
        replace(frame, runs=runs[0], numbers=frame.numbers[:at], payloads=frame.payloads[:middle]),
        replace(frame, runs=runs[1], numbers=frame.numbers[at:], payloads=frame.payloads[middle:]),
    )


def select(flags: list[bool], numbers: list[int], payloads: list[bytes]) -> tuple[list[int], list[bytes]]:
    """Return the numbers and payloads of the events whose flag is set.

    Examples
    --------
    >>> select([False, True], [4, 5], [b"{}", b"[]"])
    ([5], [b'[]'])
    """
    return list(compress(numbers, flags)), list(compress(payloads, flags))
