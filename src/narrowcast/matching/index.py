"""The seam below a matcher: an immutable index over coded boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    Codes = NDArray[np.unsignedinteger[Any]]


class CandidateBoxes(NamedTuple):
    """The boxes of each event as compressed rows, ascending within an event.

    The array of boxes belongs to whom it is given to, and so does the room behind it if it has any.
    """

    indptr: NDArray[np.int64]
    box: NDArray[np.int32]


class BoxIndex(Protocol):
    """Finds the boxes that hold an event. Built once, never changed, so any number of threads may read it.

    An index keeps everything in arrays, so that it can be saved and mapped back from a file: `arrays` and
    `restore` are each other's inverse.
    """

    def find(self, codes: Codes) -> CandidateBoxes:
        """Return the boxes of each event; codes have one row per event and one column per coded attribute."""
        ...

    def count(self, codes: Codes) -> NDArray[np.int64]:
        """Return how many boxes hold each event."""
        ...

    @property
    def bitmaps(self) -> Callable[[Codes], NDArray[np.uint64]] | None:
        """A function that returns a row of flags per event, bit i for box i; None without flags at hand."""
        ...

    def stats(self) -> dict[str, Any]:
        """Return what it holds: counts and sizes."""
        ...

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all that it is made of."""
        ...

    @classmethod
    def restore(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        """Return the index that is made of these arrays, which may be read-only and mapped from a file."""
        ...
