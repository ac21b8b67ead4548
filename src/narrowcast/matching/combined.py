"""Several indexes that share the boxes among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from narrowcast.kernels import rows
from narrowcast.matching.index import CandidateBoxes

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from narrowcast.matching.index import BoxIndex, Codes


@dataclass(frozen=True, slots=True, eq=False)
class CombinedIndex:
    """Every box is in exactly one of the parts.

    Parameters
    ----------
    parts
        The indexes.
    boxes
        For each part its boxes, ascending; None for a part that has them all.
    """

    parts: tuple[BoxIndex, ...]
    boxes: tuple[NDArray[np.int32] | None, ...]

    #: The kinds of index that a part may be, by name.
    kinds: ClassVar[dict[str, type[BoxIndex]]] = {}

    def find(self, codes: Codes) -> CandidateBoxes:
        """Return the boxes of each event."""
        found: CandidateBoxes | None = None
        for part, boxes in zip(self.parts, self.boxes, strict=True):
            own = part.find(codes)
            if boxes is not None:
                own = CandidateBoxes(own.indptr, boxes[own.box])
            found = own if found is None else CandidateBoxes(*rows.merge(*found, *own))
        assert found is not None, "there is always a part"
        return found

    def count(self, codes: Codes) -> NDArray[np.int64]:
        """Return how many boxes hold each event."""
        counts: NDArray[np.int64] = np.sum([part.count(codes) for part in self.parts], axis=0)
        return counts

    @property
    def bitmaps(self) -> Callable[[Codes], NDArray[np.uint64]] | None:
        """Return the flags of a single part, which has all boxes in order."""
        return self.parts[0].bitmaps if len(self.parts) == 1 else None

    def stats(self) -> dict[str, Any]:
        """Return what it holds."""
        return {"parts": [{"kind": _kind(part), **part.stats()} for part in self.parts]}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all that it is made of."""
        out: dict[str, NDArray[Any]] = {"n_parts": np.array([len(self.parts)])}
        for i, (part, boxes) in enumerate(zip(self.parts, self.boxes, strict=True)):
            out[f"{i}.kind"] = np.frombuffer(_kind(part).encode(), np.uint8)
            if boxes is not None:
                out[f"{i}.boxes"] = boxes
            out |= {f"{i}.part.{name}": array for name, array in part.arrays().items()}
        return out

    @classmethod
    def restore(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        """Return the index that is made of these arrays."""
        parts = []
        n = int(arrays["n_parts"][0])
        for i in range(n):
            prefix = f"{i}.part."
            own = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
            parts.append(cls.kinds[arrays[f"{i}.kind"].tobytes().decode()].restore(own))
        return cls(tuple(parts), tuple(arrays.get(f"{i}.boxes") for i in range(n)))


def _kind(part: BoxIndex) -> str:
    return next(name for name, kind in CombinedIndex.kinds.items() if type(part) is kind)
