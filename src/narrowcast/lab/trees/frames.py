"""Scales that turn the integer codes of box ends into numbers, to measure sides, volumes and centres.

A scale gives each code of a column a number that never decreases with the code. Boxes may be unbounded but
their measures must not be, so a scale is finite. It serves for measuring only: the box of a tree node stays
as wide as the boxes below it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from narrowcast.model import keys

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.matching.index import Codes
    from narrowcast.matching.ranks import CodedBoxes, Ranks
    from narrowcast.model.schema import Schema
    from narrowcast.model.types import DataType

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]

FrameName = Literal["world", "worldq", "cdf"]

#: Quantiles of the finite ends between which `worldq` measures.
_QUANTILES = (0.01, 0.99)
#: Total weight that is spread evenly over the codes of a column, in addition to 1 per end of a box.
_UNSEEN = 1e-3
#: Weight of the ends of boxes relative to a sample of events.
_PRIOR = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class CodeFrame:
    """Numbers that replace the codes of each column: code k of column c becomes `table[table_at[c] + k]`."""

    table: Doubles
    table_at: Ints

    @classmethod
    def events(cls, boxes: CodedBoxes, sample: Codes | None = None) -> CodeFrame:
        """Return a scale of cumulative shares of events, by which volume is the probability of a hit.

        Without a sample, the probability of a code is proportional to the number of box ends at it. A sample
        outweighs this a thousandfold, so that the ends matter only where the sample has no events.
        """
        at = np.concatenate([[0], np.cumsum(boxes.last + 1)])
        if len(at) == 1:
            return cls(np.empty(0), at)
        weight = _ends(boxes).astype(np.float64)
        weight += np.repeat(_UNSEEN / boxes.last, boxes.last + 1)
        weight[at[:-1]] = 0  # no event has code 0
        if sample is not None and len(sample):
            seen = np.bincount((sample + at[:-1]).ravel(), minlength=len(weight))
            whole = np.add.reduceat(weight, at[:-1])
            weight = seen + weight * np.repeat(_PRIOR * len(sample) / whole, boxes.last + 1)
        below = np.concatenate([[0.0], np.cumsum(weight)])
        whole = below[at[1:]] - below[at[:-1]]
        share = (below[1:] - np.repeat(below[at[:-1]], boxes.last + 1)) / np.repeat(whole, boxes.last + 1)
        share[at[1:] - 1] = 1
        return cls(share, at)

    @classmethod
    def published(
        cls, name: FrameName, boxes: CodedBoxes, ranks: Ranks, schema: Schema, sample: Codes | None = None
    ) -> CodeFrame:
        """Return the scale of a given name.

        `world` runs from the least to the greatest finite end, in raw units; `worldq` from the 1 % to the
        99 % quantile of the finite ends, each column scaled to 1; `cdf` is the cumulative share of events.
        """
        if name == "cdf":
            return cls.events(boxes, sample)
        at = np.concatenate([[0], np.cumsum(boxes.last + 1)])
        table, ends = np.empty(at[-1]), _ends(boxes)
        for c, cuts in enumerate(ranks.cuts):
            # attributes from len(schema) on are hashes of strings, which have the same types
            numbers = _numbers(cuts, schema.types[ranks.attribute[c] % len(schema)])
            finite = np.isfinite(numbers)
            low = high = 0.0
            if finite.any() and name == "world":
                low, high = numbers[finite].min(), numbers[finite].max()
            elif finite.any():
                repeats = ends[at[c] + 1 : at[c + 1] - 1]
                low, high = np.quantile(np.repeat(numbers[finite], repeats[finite]), _QUANTILES)
            framed = np.clip(np.concatenate([[low], numbers, [high]]), low, high)
            if name == "worldq":
                framed = (framed - low) / (high - low if high > low else 1.0)
            table[at[c] : at[c + 1]] = framed
        return cls(table, at)

    def numbers(self, codes: Codes, column: int) -> Doubles:
        """Return the numbers of codes in a column."""
        numbers: Doubles = self.table[self.table_at[column] + codes.astype(np.int64)]
        return numbers

    def centres(self, lo: Codes, hi: Codes, column: int) -> Doubles:
        """Return the centre of each box side, from a lower to an upper code, in a column."""
        return self.numbers(lo, column) / 2 + self.numbers(hi, column) / 2


def _ends(boxes: CodedBoxes) -> Ints:
    """Return the number of box ends at each code, column after column; unbounded sides have no end."""
    at = np.concatenate([[0], np.cumsum(boxes.last + 1)])
    ends = np.zeros(at[-1], np.int64)
    for codes in (boxes.lo, boxes.hi):
        ends += np.bincount(at[boxes.column] + codes, minlength=at[-1])
    ends[at[:-1]] = ends[at[1:] - 1] = 0
    return ends


def _numbers(cuts: Ints, dtype: DataType) -> Doubles:
    """Return keys as numbers: infinite for keys that bound nothing, ranks for types such as strings."""
    match dtype.family:
        case "float":
            bits = np.where(cuts < 0, cuts ^ np.int64(keys.NO_HIGH), cuts)
            numbers = bits.view(np.float64)
            least, most = keys.float_keys(np.array([-np.inf, np.inf]))
        case "boolean" | "integer" | "date" | "timestamp":
            numbers = cuts.astype(np.float64)
            least = keys.FIRST
            # true is a finite value, though it is the largest boolean
            most = keys.last(dtype) - (dtype.family != "boolean")
        case "decimal":
            cut = max(0, dtype.precision - keys.DIGITS)
            numbers = cuts.astype(np.float64) * 10.0 ** (cut - dtype.scale)
            least, most = keys.FIRST, keys.last(dtype) - 1
        case _:
            numbers = np.arange(1.0, len(cuts) + 1)
            least, most = keys.FIRST, keys.NO_HIGH
    return np.where(cuts < least, -np.inf, np.where(cuts > most, np.inf, numbers))
