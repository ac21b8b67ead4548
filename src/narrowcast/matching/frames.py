"""What the codes of a box stand for when it is measured: how long a side is, where its centre lies.

A frame gives each code of a column a number that never falls, so sides, volumes and centres of boxes follow
from codes. Boxes may be endless, measures may not: a frame is finite. It serves only for measuring; what a
node of a tree covers stays as wide as its boxes are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from narrowcast.model import keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from narrowcast.matching.index import Codes
    from narrowcast.matching.ranks import CodedBoxes, Ranks
    from narrowcast.model.schema import Schema
    from narrowcast.model.types import DataType

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]

FrameName = Literal["world", "worldq", "cdf"]

#: The quantiles between which `worldq` measures.
_QUANTILES = (0.01, 0.99)
#: What the codes without any end of a box weigh together, in ends.
_UNSEEN = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """The number of each code: that of code k in column c is `table[table_at[c] + k]`."""

    table: Doubles
    table_at: Ints

    @classmethod
    def of(cls, columns: Sequence[Doubles]) -> Frame:
        """Return the frame that has these numbers, column by column."""
        at = np.cumsum([0, *map(len, columns)])
        return cls(np.concatenate([np.empty(0), *columns]), at)

    @classmethod
    def events(cls, boxes: CodedBoxes, sample: Codes | None = None) -> Frame:
        """Return the share of events up to each code, so that volume is the probability of a visit.

        Without a sample, a code is taken to be as likely as there are ends of boxes at it. A sample outweighs
        this a thousandfold, which only matters where it has no events.
        """
        columns = []
        for c, last in enumerate(boxes.last.tolist()):
            weight = _ends(boxes, c).astype(np.float64)
            weight[1:] += _UNSEEN / last
            if sample is not None and len(sample):
                seen = np.bincount(sample[:, c], minlength=last + 1)
                weight = seen + weight * (1e-3 * len(sample) / weight.sum())
            share = np.cumsum(weight)
            columns.append(share / share[-1])
        return cls.of(columns)

    @classmethod
    def published(
        cls, name: FrameName, boxes: CodedBoxes, ranks: Ranks, schema: Schema, sample: Codes | None = None
    ) -> Frame:
        """Return the frame by that name.

        `world` goes from the least finite end to the greatest, in raw units; `worldq` from the 1 % to the
        99 % quantile of the finite ends, each column scaled to 1; `cdf` is that of events.
        """
        if name == "cdf":
            return cls.events(boxes, sample)
        columns = []
        for c, cuts in enumerate(ranks.cuts):
            numbers = _numbers(cuts, schema.types[ranks.attribute[c]])
            finite = np.isfinite(numbers)
            low = high = 0.0
            if finite.any() and name == "world":
                low, high = numbers[finite].min(), numbers[finite].max()
            elif finite.any():
                repeated = np.repeat(numbers[finite], _ends(boxes, c)[1:-1][finite])
                low, high = np.quantile(repeated, _QUANTILES)
            framed = np.clip(np.concatenate([[low], numbers, [high]]), low, high)
            if name == "worldq":
                framed = (framed - low) / (high - low if high > low else 1.0)
            columns.append(framed)
        return cls.of(columns)

    def numbers(self, codes: Codes, column: int) -> Doubles:
        """Return the numbers of codes in a column."""
        numbers: Doubles = self.table[self.table_at[column] + codes.astype(np.int64)]
        return numbers

    def centres(self, lo: Codes, hi: Codes, column: int) -> Doubles:
        """Return the middle of each side from a lower to an upper code in a column."""
        return self.numbers(lo, column) / 2 + self.numbers(hi, column) / 2


def _ends(boxes: CodedBoxes, column: int) -> Ints:
    """Return how many ends of boxes each code of a column has; no bound is no end."""
    last = int(boxes.last[column])
    own = boxes.column == column
    ends = np.bincount(boxes.lo[own], minlength=last + 1) + np.bincount(boxes.hi[own], minlength=last + 1)
    ends[0] = ends[last] = 0
    return ends


def _numbers(cuts: Ints, dtype: DataType) -> Doubles:
    """Return keys as the numbers they stand for, endless where they bound nothing; else as ranks."""
    match dtype.family:
        case "float":
            bits = np.where(cuts < 0, cuts ^ np.int64(keys.NO_HIGH), cuts)
            numbers = bits.view(np.float64)
            least, most = keys.float_keys(np.array([-np.inf, np.inf]))
        case "boolean" | "integer" | "date" | "timestamp":
            numbers = cuts.astype(np.float64)
            least = keys.FIRST
            # true is not endless, though no boolean lies beyond it
            most = keys.last(dtype) - (dtype.family != "boolean")
        case "decimal":
            cut = max(0, dtype.precision - keys.DIGITS)
            numbers = cuts.astype(np.float64) * 10.0 ** (cut - dtype.scale)
            least, most = keys.FIRST, keys.last(dtype) - 1
        case _:
            numbers = np.arange(1.0, len(cuts) + 1)
            least, most = keys.FIRST, keys.NO_HIGH
    return np.where(cuts < least, -np.inf, np.where(cuts > most, np.inf, numbers))
