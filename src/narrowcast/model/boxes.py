"""Boxes over keys: many at once, each with only the attributes it bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]


#: Attributes are numbered in 16 bits.
MOST_ATTRIBUTES = 2**15


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """Half-open boxes, in compressed rows: box b bounds `attribute[indptr[b]:indptr[b + 1]]`.

    An event is in a box when `lo < key <= hi` for each attribute that the box bounds; a box that bounds none
    holds every event. Boxes are ordered by owner, the attributes of a box ascend. A box that is not `exact`
    is wider than what it stands for, and what falls in it must be checked again.
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
        """Return boxes given in any order of owners, `width` being how many attributes each bounds."""
        if len(attribute) and attribute.max() >= MOST_ATTRIBUTES:
            raise InputError(
                f"attribute number {attribute.max()} is over the limit of {MOST_ATTRIBUTES - 1} attributes"
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
        """How many boxes each owner has."""
        return np.bincount(self.owner, minlength=self.n_owners)

    @property
    def box(self) -> Ints:
        """The box of each entry."""
        return np.repeat(np.arange(len(self)), np.diff(self.indptr))

    def take(self, owners: Ints) -> Boxes:
        """Return the boxes of some owners, renumbered in the order given; each owner at most once."""
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
        """Return the boxes of several pieces one after another, owners numbered on; there is at least one."""
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
        """Return the boxes of some owners, whose numbers stay as they are."""
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
        """Bytes held by the columns."""
        columns = (self.owner, self.indptr, self.attribute, self.lo, self.hi, self.exact)
        return sum(column.nbytes for column in columns)
