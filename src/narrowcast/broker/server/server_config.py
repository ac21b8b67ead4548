"""How the configuration of a NATS server is written."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_CONTROL = re.compile(r"[\0-\x1f\x7f]")


def quoted(text: str) -> str:
    r"""Return a text as a server reads it, whatever it holds.

    JSON would not do: servers know no `\u`, and no `\b`.

    Examples
    --------
    >>> print(quoted('anna "b." \\ *'), quoted("\0\n"), quoted("$HOME"))
    "anna \"b.\" \\ *" "\x00\x0a" "$HOME"
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", escaped) + '"'


def listed(texts: Iterable[str]) -> str:
    """Return texts as a list.

    Examples
    --------
    >>> listed(["nc.beats", "nc.out.all"])
    '["nc.beats", "nc.out.all"]'
    """
    return f"[{', '.join(map(quoted, texts))}]"
