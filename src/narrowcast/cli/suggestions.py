"""Did-you-mean for names of parameters, methods and benchmarks."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def close_name(name: str, known: Iterable[str]) -> str:
    """Return a hint at the closest known name, or nothing.

    Examples
    --------
    >>> close_name("topp", ["top", "distance"]), close_name("zzz", ["top"])
    ("; did you mean 'top'?", '')
    """
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
