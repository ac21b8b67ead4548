"""One event given by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from narrowcast.errors import InputError


def read_event(text: str) -> dict[str, Any]:
    """Return an event given as JSON; `@file.json` stands for what a file holds, `-` for standard input."""
    told = text
    if text == "-":
        told = sys.stdin.read()
    elif text.startswith("@"):
        try:
            told = Path(text[1:]).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--event {text!r} cannot be read: {error}") from error
    try:
        return msgspec.json.decode(told, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InputError(f"--event {told.strip()[:60]!r} is not a JSON object: {error}") from error
