"""Limits on the size of one filter and of its compiled form."""

from __future__ import annotations

from dataclasses import dataclass, fields

from narrowcast.errors import ParameterError

#: Deepest nesting that the parser supports on every version of Python; some crash far beyond it.
DEEPEST = 250


@dataclass(frozen=True, slots=True)
class FilterLimits:
    """Limits on one filter.

    Parameters
    ----------
    bytes
        Length of the text in UTF-8.
    depth
        Nesting of parentheses and NOTs; at most 250, since the parser's stack allows little more.
    expand
        Boxes that multiplying out alternatives (an OR or IN inside an AND) may produce; beyond it, the
        alternatives become one wider box and candidates are checked exactly.
    boxes
        Boxes of one filter in total. A filter that needs more and has no attribute bounded in every
        alternative is refused: it would have to be checked against every event.

    Examples
    --------
    >>> FilterLimits(boxes=0)
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: boxes=0: must be at least 1
    """

    bytes: int = 65_536
    depth: int = 100
    expand: int = 64
    boxes: int = 1_024

    def __post_init__(self) -> None:
        if self.depth > DEEPEST:
            raise ParameterError(
                f"depth={self.depth}: must be at most {DEEPEST}, the deepest nesting that can be parsed",
                parameter="depth",
                value=self.depth,
                limit=f"at most {DEEPEST}",
            )
        for limit in fields(self):
            if getattr(self, limit.name) < 1:
                raise ParameterError(
                    parameter=limit.name, value=getattr(self, limit.name), limit="at least 1"
                )


#: For filters that were already accepted, and for loading: no limit on the bytes of the text.
LENIENT = FilterLimits(bytes=1 << 30, depth=DEEPEST, boxes=1 << 16)
