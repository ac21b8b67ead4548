"""How large a filter may be, and how large it may become."""

from __future__ import annotations

from dataclasses import dataclass, fields

from narrowcast.errors import ParameterError

#: Nesting that the parser still takes on every version of Python; far past it some of them crash.
DEEPEST = 250


@dataclass(frozen=True, slots=True)
class FilterLimits:
    """Bounds on one filter; each can be raised.

    Parameters
    ----------
    bytes
        Length of the text in UTF-8.
    depth
        Nesting of parentheses and NOTs; 250 at the most, because the parser's stack holds little more.
    expand
        Boxes that combining alternatives (an OR or IN inside an AND) may make; past it, an alternative
        stays whole as one wider box with a check on the candidates.
    boxes
        Boxes that one filter may become in all. A filter that would need more and has no attribute
        bounded in every alternative is refused: it would be checked against every event.

    Examples
    --------
    >>> FilterLimits(boxes=0)
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: limit boxes=0 is below 1
    """

    bytes: int = 65_536
    depth: int = 100
    expand: int = 64
    boxes: int = 1_024

    def __post_init__(self) -> None:
        if self.depth > DEEPEST:
            raise ParameterError(f"limit depth={self.depth} is over {DEEPEST}, the most that can be parsed")
        for limit in fields(self):
            if getattr(self, limit.name) < 1:
                raise ParameterError(f"limit {limit.name}={getattr(self, limit.name)} is below 1")


#: For filters that somebody else has let through, and for memory: no text has too many bytes.
LENIENT = FilterLimits(bytes=1 << 30, depth=DEEPEST, boxes=1 << 16)
