"""The interface of box indexes, which matchers are built on.

A box is a conjunction of ranges of attributes; a filter has one or several. A code is the rank of an
attribute value among the ends of boxes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    Codes = NDArray[np.unsignedinteger[Any]]


class CandidateBoxes(NamedTuple):
    """The boxes of each event as compressed rows, ascending within an event.

    The receiver owns the array of boxes, including any spare capacity behind it.
    """

    indptr: NDArray[np.int64]
    box: NDArray[np.int32]


class BoxIndex(Protocol):
    """Finds the boxes that contain an event. Immutable, so any number of threads may read it.

    An index consists of arrays only, so that it can be saved and mapped from a file: `restore` is the inverse
    of `arrays`.
    """

    def find(self, codes: Codes) -> CandidateBoxes:
        """Return the boxes of each event; codes have one row per event and one column per coded attribute."""
        ...

    def count(self, codes: Codes) -> NDArray[np.int64]:
        """Return, for each event, how many boxes contain it."""
        ...

    @property
    def bitmaps(self) -> Callable[[Codes], NDArray[np.uint64]] | None:
        """Function that returns a row of flags per event, bit i for box i; None if the index has no flags."""
        ...

    def stats(self) -> dict[str, Any]:
        """Return the kind of index, and counts that describe its structure, for diagnosis."""
        ...

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the index by name, to save it."""
        ...

    @classmethod
    def restore(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        """Rebuild the index from its arrays, which may be read-only and mapped from a file."""
        ...
