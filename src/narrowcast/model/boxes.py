"""Boxes over keys: conjunctions of ranges, many in one set of arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]


#: Attribute numbers are stored as 16-bit integers.
MOST_ATTRIBUTES = 2**15


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """Half-open boxes in compressed rows: box b bounds `attribute[indptr[b]:indptr[b + 1]]`.

    An event is in a box when `lo < key <= hi` for each attribute that the box bounds; a box without bounds
    contains every event. Boxes are sorted by owner, the attributes of a box ascend. A box that is not `exact`
    is wider than its filter, so events in it must be checked against the filter.
    """

    n_owners: int
    owner: Ints
    indptr: Ints
    attribute: npt.NDArray[np.int16]
    lo: Ints
    hi: Ints
    exact: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        for name in ("owner", "indptr", "attribute", "lo", "hi", "exact"):
            column = getattr(self, name).view()  # the caller's own array stays as writable as it was
            column.flags.writeable = False
            object.__setattr__(self, name, column)

    @classmethod
    def build(
        cls,
        n_owners: int,
        owner: Ints,
        width: Ints,
        attribute: Ints,
        lo: Ints,
        hi: Ints,
        exact: npt.NDArray[np.bool_],
    ) -> Boxes:
        """Build from boxes in any order of owners; `width` counts the attributes that each box bounds."""
        if len(attribute) and attribute.max() >= MOST_ATTRIBUTES:
            raise InputError(
                f"attribute number {attribute.max()}: must be at most {MOST_ATTRIBUTES - 1}",
                value=int(attribute.max()),
            )
        order = np.argsort(owner, kind="stable")
        start = np.cumsum(width) - width
        indptr = np.concatenate([[0], np.cumsum(width[order])])
        entry = np.repeat(start[order] - indptr[:-1], width[order]) + np.arange(indptr[-1])
        return cls(
            n_owners,
            owner[order],
            indptr,
            attribute[entry].astype(np.int16),
            lo[entry],
            hi[entry],
            exact[order],
        )

    def __len__(self) -> int:
        return len(self.owner)

    @property
    def counts(self) -> Ints:
        """Number of boxes of each owner."""
        return np.bincount(self.owner, minlength=self.n_owners)

    @property
    def box(self) -> Ints:
        """Box number of each entry."""
        return np.repeat(np.arange(len(self)), np.diff(self.indptr))

    def take(self, owners: Ints) -> Boxes:
        """Return the boxes of the given owners, renumbered in that order; each owner at most once."""
        number = np.full(self.n_owners, -1, np.int64)
        number[owners] = np.arange(len(owners))
        kept = number[self.owner] >= 0
        entry = np.repeat(kept, np.diff(self.indptr))
        return Boxes.build(
            len(owners),
            number[self.owner[kept]],
            np.diff(self.indptr)[kept],
            self.attribute[entry].astype(np.int64),
            self.lo[entry],
            self.hi[entry],
            self.exact[kept],
        )

    @classmethod
    def join(cls, pieces: Sequence[Boxes]) -> Boxes:
        """Concatenate at least one set of boxes; owners are numbered through."""
        owners = np.cumsum([0, *(p.n_owners for p in pieces)])
        entries = np.cumsum([0, *(len(p.lo) for p in pieces)])
        return cls(
            int(owners[-1]),
            np.concatenate([p.owner + n for p, n in zip(pieces, owners[:-1], strict=True)]),
            np.concatenate([[0], *(p.indptr[1:] + n for p, n in zip(pieces, entries[:-1], strict=True))]),
            np.concatenate([p.attribute for p in pieces]),
            np.concatenate([p.lo for p in pieces]),
            np.concatenate([p.hi for p in pieces]),
            np.concatenate([p.exact for p in pieces]),
        )

    def of_owners(self, kept: npt.NDArray[np.bool_]) -> Boxes:
        """Return the boxes of the owners selected by the mask; owners keep their numbers."""
        boxes = kept[self.owner]
        entry = np.repeat(boxes, np.diff(self.indptr))
        return Boxes(
            self.n_owners,
            self.owner[boxes],
            np.concatenate([[0], np.cumsum(np.diff(self.indptr)[boxes])]),
            self.attribute[entry],
            self.lo[entry],
            self.hi[entry],
            self.exact[boxes],
        )

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes."""
        columns = (self.owner, self.indptr, self.attribute, self.lo, self.hi, self.exact)
        return sum(column.nbytes for column in columns)
