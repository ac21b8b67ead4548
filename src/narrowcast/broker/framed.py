"""Frames of events, as they come to subscribers."""

from __future__ import annotations

import logging
from itertools import compress
from typing import TYPE_CHECKING

import msgspec

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


def picked(flags: list[bool], numbers: list[int], payloads: list[bytes]) -> tuple[list[int], list[bytes]]:
    """Return the numbers and payloads of those events for which a flag is set.

    Examples
    --------
    >>> picked([False, True], [4, 5], [b"{}", b"[]"])
    ([5], [b'[]'])
    """
    return list(compress(numbers, flags)), list(compress(payloads, flags))
