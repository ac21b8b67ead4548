"""Frames of events: as they come to subscribers, and in halves where they are too large."""

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


def frame_of(message: Message) -> wire.Frame | None:
    """Return the frame of a message, None where it is none.

    Examples
    --------
    >>> from narrowcast.broker.transport import Message
    >>> frame_of(Message("nc.out.all", b"garbage"))
    """
    try:
        frame = wire.decode_frame(message.payload)
        frame.check()
    except (msgspec.MsgspecError, UnicodeError, InputError) as error:
        log.warning("a message at %s is passed over: %s", message.subject, first_line(error))
        return None
    return frame


def halves(frame: wire.Frame) -> tuple[wire.Frame, wire.Frame]:
    """Return the first and the second half of the events of a frame.

    Examples
    --------
    >>> some = wire.Frame(-1, 0.0, [("p", 2), ("q", 1)], b"1.......2.......3.......", [b"a", b"b", b"c"])
    >>> for half in halves(some):
    ...     print(half.runs, half.numbers, half.payloads)
    [('p', 1)] b'1.......' [b'a']
    [('p', 1), ('q', 1)] b'2.......3.......' [b'b', b'c']
    """
    middle = len(frame.payloads) // 2
    runs: tuple[list[wire.Run], list[wire.Run]] = ([], [])
    start = 0
    for name, many in frame.runs:
        first = min(max(middle - start, 0), many)  # of this run
        for own, part in zip(runs, (first, many - first), strict=True):
            if part:
                own.append((name, part))
        start += many
    at = 8 * middle
    return (
        replace(frame, runs=runs[0], numbers=frame.numbers[:at], payloads=frame.payloads[:middle]),
        replace(frame, runs=runs[1], numbers=frame.numbers[at:], payloads=frame.payloads[middle:]),
    )


def picked(flags: list[bool], numbers: list[int], payloads: list[bytes]) -> tuple[list[int], list[bytes]]:
    """Return the numbers and payloads of those events for which a flag is set.

    Examples
    --------
    >>> picked([False, True], [4, 5], [b"{}", b"[]"])
    ([5], [b'[]'])
    """
    return list(compress(numbers, flags)), list(compress(payloads, flags))
