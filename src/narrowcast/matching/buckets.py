"""Buckets of codes: ranges of coded attribute values, few enough for a row of flags per bucket.

A code is the rank of an attribute value among the ends of boxes. A column is a coded attribute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.kernels.blocks import bucket_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.matching.index import Codes
    from narrowcast.matching.ranks import CodedBoxes

    Ints = NDArray[np.int64]
    Bytes = NDArray[np.uint8]

#: Buckets per column.
N_BUCKETS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    """For each column the bucket of every code: a range of codes, with about as many box ends in each.

    Parameters
    ----------
    table
        The buckets of the codes of all columns, column after column.
    table_at
        Start of each column in `table`; one entry more than there are columns.
    """

    table: Bytes
    table_at: Ints

    @classmethod
    def of(cls, boxes: CodedBoxes, sample: Codes | None = None) -> Buckets:
        """Divide codes so that buckets share box ends evenly, and also the events of a sample if given."""
        order = np.argsort(boxes.column, kind="stable")
        split = np.searchsorted(boxes.column[order], np.arange(boxes.n_columns + 1))
        tables = []
        for c in range(boxes.n_columns):
            entry = order[split[c] : split[c + 1]]
            last = int(boxes.last[c])
            # an end at code x separates x from x + 1; ends at 0 and at the last code separate nothing
            weight = np.bincount(boxes.lo[entry], minlength=last + 1).astype(np.float64)
            weight += np.bincount(boxes.hi[entry], minlength=last + 1)
            weight[0] = weight[last] = 0
            weight /= max(1.0, weight.sum())
            if sample is not None and len(sample):
                weight += np.bincount(sample[:, c], minlength=last + 1) / len(sample)
            tables.append(_cut(weight, last))
        sizes = [len(t) for t in tables]
        return cls(
            np.concatenate([np.empty(0, np.uint8), *tables]),
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        )

    def bounds(self, boxes: CodedBoxes) -> tuple[Bytes, Bytes, Bytes, Bytes]:
        """Return for each bound the range of buckets that it overlaps (first, end), and that it covers."""
        at = self.table_at[:-1][boxes.column]
        last = boxes.last[boxes.column]
        low, high = boxes.lo.astype(np.int64), boxes.hi.astype(np.int64)
        empty = low >= high
        start = np.minimum(low + 1, last)
        first = self.table[at + start]
        end = self.table[at + high] + np.uint8(1)
        # a bucket is covered from its first code on when the code before is in another bucket
        whole_low = (start == 1) | (self.table[at + np.maximum(start - 1, 1)] != first)
        whole_high = (high == last) | (self.table[at + np.minimum(high + 1, last)] != end - 1)
        sure_first = first + np.where(whole_low, 0, 1).astype(np.uint8)
        sure_end = end - np.where(whole_high, 0, 1).astype(np.uint8)
        for column in (first, end, sure_first, sure_end):
            column[empty] = 0
        return first, end, sure_first, sure_end

    def __call__(self, codes: Codes) -> Bytes:
        """Return the bucket of each code in an array with one column per coded attribute."""
        found: Bytes = bucket_of(codes, self.table, self.table_at)
        return found

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name, to save the buckets."""
        return {"bucket_table": self.table, "bucket_at": self.table_at}

    @classmethod
    def restore(cls, arrays: dict[str, NDArray[Any]]) -> Buckets:
        """Rebuild the buckets from saved arrays."""
        return cls(arrays["bucket_table"], arrays["bucket_at"])


def _cut(weight: NDArray[np.float64], last: int) -> Bytes:
    """Return the bucket of each code from 0 to `last`, so that buckets have similar weight; 0 is as 1."""
    if last <= N_BUCKETS:
        buckets = np.arange(last + 1) - 1
    else:
        # never decreases, not even by rounding: ascending codes have ascending buckets
        before = np.concatenate([[0.0], np.cumsum(weight)[:-1]])
        share = np.floor(before * (N_BUCKETS / max(weight.sum(), 1e-300))).astype(np.int64)
        buckets = np.unique(np.minimum(share, N_BUCKETS - 1), return_inverse=True)[1]
    buckets[0] = 0
    return buckets.astype(np.uint8)
