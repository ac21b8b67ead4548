"""Topic matcher: a hash index for boxes that mostly require single values, as topic patterns do.

A code is the rank of an attribute value among the ends of boxes; a column is a coded attribute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from narrowcast.kernels import tuples as kernels
from narrowcast.kernels.tuples import Tuples
from narrowcast.matching.index import CandidateBoxes
from narrowcast.matching.indexed_matcher import IndexedMatcher

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.matching.index import BoxIndex, Codes
    from narrowcast.matching.ranks import CodedBoxes, Ranks
    from narrowcast.model.schema import Schema

    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class TupleIndex:
    """Groups of boxes that require single codes in the same columns, with a hash table of those codes.

    An event costs one lookup per set of columns that any box requires: for topics, per pattern of literals
    and wildcards, however many topics there are. Boxes that require no single code are compared one by one.
    """

    tuples: Tuples
    bitmaps: ClassVar[None] = None

    @classmethod
    def build(cls, boxes: CodedBoxes) -> TupleIndex:
        """Build the index from coded boxes."""
        point = boxes.hi.astype(np.int64) == boxes.lo.astype(np.int64) + 1
        group, column_at, column = _groups(boxes, point)
        hashes = kernels.hash_points(group, boxes.indptr, boxes.column, boxes.hi, point)
        order = np.argsort(hashes, kind="stable")
        distinct, first = np.unique(hashes[order], return_index=True)
        slot = np.full(max(2, 1 << int(2 * len(distinct)).bit_length()), -1, np.int32)
        kernels.fill_slots(distinct, slot)
        return cls(
            Tuples(
                column_at,
                column,
                slot,
                distinct,
                np.append(first, len(boxes)),
                order.astype(np.int32),
                boxes.indptr,
                boxes.column,
                boxes.lo,
                boxes.hi,
            )
        )

    def find(self, codes: Codes) -> CandidateBoxes:
        """Return the boxes that contain each event."""
        return CandidateBoxes(*kernels.find(self.tuples, codes, True))

    def count(self, codes: Codes) -> Ints:
        """Return, for each event, how many boxes contain it."""
        return np.diff(kernels.find(self.tuples, codes, False)[0])

    def stats(self) -> dict[str, Any]:
        """Return the number of sets of columns that are looked up, and of combinations of codes in them."""
        return {"shapes": len(self.tuples.column_at) - 1, "tuples": len(self.tuples.hash)}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the index by name, to save it."""
        return self.tuples._asdict()

    @classmethod
    def restore(cls, arrays: dict[str, NDArray[Any]]) -> TupleIndex:
        """Rebuild the index from the arrays of a saved one."""
        return cls(Tuples(**{name: arrays[name] for name in Tuples._fields}))


class Topics(IndexedMatcher):
    """Looks up exact values by hash: for topics with wildcards, and for equality in general.

    `TopicSpace` turns topics of NATS or MQTT into subscriptions and events. Any other filter works too; one
    that requires no single value is compared with every event.

    Parameters
    ----------
    threads
        Number of threads that share a batch (default: 1).

    Examples
    --------
    >>> import narrowcast as nc
    >>> space = nc.TopicSpace(style="nats")
    >>> patterns = ["orders.*.eu", "orders.>", "orders.new.eu", "quotes.IBM"]
    >>> matcher = Topics().fit(space.compile(patterns).subscriptions)
    >>> [row.tolist() for row in matcher.match(space.events(["orders.new.eu", "orders.new", "quotes.SAP"]))]
    [[0, 1, 2], [1], []]
    """

    _indexes = (TupleIndex,)

    def _index(self, boxes: CodedBoxes, ranks: Ranks, schema: Schema, sample: Codes | None) -> BoxIndex:
        return TupleIndex.build(boxes)


def _groups(boxes: CodedBoxes, point: NDArray[np.bool_]) -> tuple[Ints, Ints, NDArray[np.int32]]:
    """Return the group of each box, and the columns in which the boxes of each group require single codes."""
    box = boxes.box[point]
    column = boxes.column[point]
    width = np.bincount(box, minlength=len(boxes))
    at = np.cumsum(width) - width
    seed = 0
    while True:
        weight = np.random.default_rng(seed).integers(1, 2**63, max(1, boxes.n_columns), np.uint64)
        total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(weight[column], dtype=np.uint64)])
        sums = total[at + width] - total[at]
        _, first, group = np.unique(sums, return_index=True, return_inverse=True)
        same = width == width[first][group]
        if (
            same.all()
            and (column == column[np.repeat(at[first][group] - at, width) + np.arange(len(column))]).all()
        ):
            break
        seed += 1  # hash collision of two sets of columns
    sizes = width[first]
    column_at = np.concatenate([[0], np.cumsum(sizes)])
    entry = np.repeat(at[first] - column_at[:-1], sizes) + np.arange(column_at[-1])
    return group, column_at, column[entry].astype(np.int32)
