"""Cost of a plan: a total and its terms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Cost:
    """A number to compare plans by, with the quantities that explain it.

    Parameters
    ----------
    total
        Lower is better.
    terms
        Named quantities behind the total, each in the unit that the cost model documents.

    Examples
    --------
    >>> Cost(2.0, {"deliveries": 5.0, "wanted": 3.0}).terms["deliveries"]
    5.0
    """

    total: float
    terms: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A copy, so that later changes by the caller have no effect here; a plain dict, so that it pickles.
        object.__setattr__(self, "terms", dict(self.terms))
