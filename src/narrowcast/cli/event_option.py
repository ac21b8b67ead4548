"""The option `--event`: one event as JSON."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from narrowcast.errors import InputError


def read_event(text: str) -> dict[str, Any]:
    """Read an event from a JSON object, from a file (``@FILE``) or from standard input (``-``)."""
    document = text
    if text == "-":
        document = sys.stdin.read()
    elif text.startswith("@"):
        try:
            document = Path(text[1:]).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--event={text!r}: cannot be read ({error})") from error
    try:
        return msgspec.json.decode(document, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InputError(f"--event={document.strip()[:60]!r}: not a JSON object ({error})") from error
