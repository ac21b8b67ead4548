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
#: What all codes weigh together in a column, over and above the ends of boxes they have.
_UNSEEN = 1e-3
#: What the ends of boxes weigh beside a sample of events.
_PRIOR = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class CodeFrame:
    """The number of each code: that of code k in column c is `table[table_at[c] + k]`."""

    table: Doubles
    table_at: Ints

    @classmethod
    def events(cls, boxes: CodedBoxes, sample: Codes | None = None) -> CodeFrame:
        """Return the share of events up to each code, so that volume is the probability of a visit.

        Without a sample, a code is taken to be as likely as there are ends of boxes at it. A sample outweighs
        this a thousandfold, so that it matters only where there are no events.
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
        """Return the frame by that name.

        `world` goes from the least finite end to the greatest, in raw units; `worldq` from the 1 % to the
        99 % quantile of the finite ends, each column scaled to 1; `cdf` is that of events.
        """
        if name == "cdf":
            return cls.events(boxes, sample)
        at = np.concatenate([[0], np.cumsum(boxes.last + 1)])
        table, ends = np.empty(at[-1]), _ends(boxes)
        for c, cuts in enumerate(ranks.cuts):
            # behind the attributes come the hashes of their strings, which are ranked as strings are
            numbers = _numbers(cuts, schema.types[ranks.attribute[c] % len(schema)])
            finite = np.isfinite(numbers)
            low = high = 0.0
            if finite.any() and name == "world":
                low, high = numbers[finite].min(), numbers[finite].max()
            elif finite.any():
                times = ends[at[c] + 1 : at[c + 1] - 1]
                low, high = np.quantile(np.repeat(numbers[finite], times[finite]), _QUANTILES)
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
        """Return the middle of each side from a lower to an upper code in a column."""
        return self.numbers(lo, column) / 2 + self.numbers(hi, column) / 2


def _ends(boxes: CodedBoxes) -> Ints:
    """Return how many ends of boxes each code has, column after column; no bound is no end."""
    at = np.concatenate([[0], np.cumsum(boxes.last + 1)])
    ends = np.zeros(at[-1], np.int64)
    for codes in (boxes.lo, boxes.hi):
        ends += np.bincount(at[boxes.column] + codes, minlength=at[-1])
    ends[at[:-1]] = ends[at[1:] - 1] = 0
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
