"""Combined index: several indexes that each hold a part of the boxes."""

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
    """Several indexes that are searched as one; every box is in exactly one of them.

    Parameters
    ----------
    parts
        The indexes.
    boxes
        For each part its boxes, ascending; None for a part that has all boxes.
    """

    parts: tuple[BoxIndex, ...]
    boxes: tuple[NDArray[np.int32] | None, ...]

    #: The possible kinds of index of a part, by name.
    kinds: ClassVar[dict[str, type[BoxIndex]]] = {}

    def find(self, codes: Codes) -> CandidateBoxes:
        """Return the boxes that contain each event."""
        found: CandidateBoxes | None = None
        for part, boxes in zip(self.parts, self.boxes, strict=True):
            own = part.find(codes)
            if boxes is not None:
                own = CandidateBoxes(own.indptr, boxes[own.box])
            found = own if found is None else CandidateBoxes(*rows.merge(*found, *own))
        assert found is not None, "there is at least one part"
        return found

    def count(self, codes: Codes) -> NDArray[np.int64]:
        """Return, for each event, how many boxes contain it."""
        counts: NDArray[np.int64] = np.sum([part.count(codes) for part in self.parts], axis=0)
        return counts

    @property
    def bitmaps(self) -> Callable[[Codes], NDArray[np.uint64]] | None:
        """Function from codes of events to flags of boxes, if a single part has all boxes; else None."""
        return self.parts[0].bitmaps if len(self.parts) == 1 else None

    def stats(self) -> dict[str, Any]:
        """Return the kind and the statistics of each index."""
        return {"parts": [{"kind": _kind(part), **part.stats()} for part in self.parts]}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of all parts by name, to save the index."""
        out: dict[str, NDArray[Any]] = {"n_parts": np.array([len(self.parts)])}
        for i, (part, boxes) in enumerate(zip(self.parts, self.boxes, strict=True)):
            out[f"{i}.kind"] = np.frombuffer(_kind(part).encode(), np.uint8)
            if boxes is not None:
                out[f"{i}.boxes"] = boxes
            out |= {f"{i}.part.{name}": array for name, array in part.arrays().items()}
        return out

    @classmethod
    def restore(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        """Rebuild the index from the arrays of a saved one."""
        parts = []
        n = int(arrays["n_parts"][0])
        for i in range(n):
            prefix = f"{i}.part."
            own = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
            parts.append(cls.kinds[arrays[f"{i}.kind"].tobytes().decode()].restore(own))
        return cls(tuple(parts), tuple(arrays.get(f"{i}.boxes") for i in range(n)))


def _kind(part: BoxIndex) -> str:
    return next(name for name, kind in CombinedIndex.kinds.items() if type(part) is kind)
