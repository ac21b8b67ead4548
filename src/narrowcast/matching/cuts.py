"""Where to cut the space of events, so that cells have like work and few subscriptions lie in many.

The work of a cell is its events times the subscriptions that it holds. Cuts are chosen on a sample of both.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.model.keys import NO_HIGH, NO_LOW, NULL, last

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.boxes import Boxes
    from narrowcast.model.events import EventBatch
    from narrowcast.model.subscriptions import SubscriptionSet

    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]

#: Cuts are chosen on so many boxes and events, drawn by seed; many cells want more events.
_BOXES, _EVENTS = 50_000, 100_000
_EVENTS_PER_CELL = 512
#: Attributes that cuts are tried on: those that the most boxes bound.
_ATTRIBUTES = 32
#: Cuts tried on each attribute: at as many quantiles of the events, and just below each.
_QUANTILES = 63
#: Guesses of g where a cell cut into m has m ** -g of its work left in all; None cuts the heaviest cell next
#: instead of sharing cells out. No one is best everywhere, so a tree is made with each.
GAINS = (None, 0.1, 0.2)


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """What cuts are chosen on: keys of events and ends of boxes, a row for each attribute that is tried."""

    attribute: Ints
    keys: Ints
    lo: Ints
    hi: Ints
    owner: Ints

    @classmethod
    def drawn(
        cls, subscriptions: SubscriptionSet, sample: EventBatch, cells: int, rng: np.random.Generator
    ) -> Space:
        """Draw some subscriptions and some events; without events, ends of boxes stand for them."""
        schema, boxes = subscriptions.schema, _some(subscriptions.boxes, rng)
        often = np.bincount(boxes.attribute, minlength=len(schema))
        attribute = np.argsort(-often, kind="stable")[:_ATTRIBUTES]
        most = max(_EVENTS, _EVENTS_PER_CELL * cells)
        chosen = np.sort(rng.permutation(len(sample))[:most])
        keys = np.empty((len(attribute), len(chosen) or min(_EVENTS, 8 * len(boxes))), np.int64)
        lo = np.full((len(attribute), len(boxes)), NO_LOW, np.int64)
        hi = np.full((len(attribute), len(boxes)), NO_HIGH, np.int64)
        box = boxes.box
        for i, a in enumerate(attribute.tolist()):
            entry = np.flatnonzero(boxes.attribute == a)
            at = box[entry]
            lo[i, at], hi[i, at] = boxes.lo[entry], boxes.hi[entry]
            if len(chosen):
                keys[i] = sample.keys(a)[chosen]
            else:
                ends = np.concatenate([boxes.lo[entry], boxes.hi[entry]])
                ends = ends[(ends > NULL) & (ends < last(schema.types[a]))]
                keys[i] = rng.choice(ends, keys.shape[1]) if len(ends) else NULL
        alive = np.ones(len(boxes), bool)
        alive[box[boxes.lo >= boxes.hi]] = False
        return cls(attribute, keys, lo[:, alive], hi[:, alive], boxes.owner[alive])

    def cut_of(self, boxes: Numbers, events: Numbers, cells: int, gain: float) -> tuple[int, int, int] | None:
        """Return the cut of a cell that is to become several: its row, its key, and the cells on its left.

        A cut is as good as the heaviest cell that it promises, and the work in all that it leaves.
        """
        best, found = np.inf, None
        owner = self.owner[boxes]
        starts = np.flatnonzero(np.diff(owner, prepend=-1))
        for i in range(len(self.attribute)):
            keys = np.sort(self.keys[i, events])
            if len(keys) == 0 or keys[0] == keys[-1]:
                continue
            at = keys[np.arange(1, _QUANTILES + 1) * len(keys) // (_QUANTILES + 1)]
            below = np.searchsorted(keys, at) - 1
            cuts = np.unique(np.concatenate([at, keys[below[below >= 0]]]))
            cuts = cuts[cuts < keys[-1]]
            # a subscription is left of a cut when one of its boxes is, and likewise right of it
            lo, hi = self.lo[i, boxes], self.hi[i, boxes]
            if len(starts) < len(boxes):
                lo, hi = np.minimum.reduceat(lo, starts), np.maximum.reduceat(hi, starts)
            n_left = np.searchsorted(keys, cuts, side="right")
            left = _work(np.searchsorted(np.sort(lo), cuts), n_left)
            right = _work(len(hi) - np.searchsorted(np.sort(hi), cuts, side="right"), len(keys) - n_left)
            share = 1 / (1 + (right / left) ** (1 / (1 + gain)))
            m = np.clip(np.rint(cells * share), 1, cells - 1)
            rest = cells - m
            left, right = left * m**-gain, right * rest**-gain
            cost = cells * np.maximum(left / m, right / rest) + left + right
            j = int(np.argmin(cost))
            if cost[j] < best:
                best, found = cost[j], (i, int(cuts[j]), int(m[j]))
        return found


class Growth:
    """A tree that is being cut: node by node what it holds, and how it is cut once it is."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.nodes: list[tuple[Numbers, Numbers]] = []
        self.work: list[float] = []
        self.cuts: dict[int, tuple[int, int, int]] = {}
        self._add(np.arange(len(space.owner), dtype=np.int32), np.arange(space.keys.shape[1], dtype=np.int32))

    def _add(self, boxes: Numbers, events: Numbers) -> int:
        held = int(np.count_nonzero(np.diff(self.space.owner[boxes], prepend=-1)))
        self.nodes.append((boxes, events))
        self.work.append(float(_work(held, len(events))))
        return len(self.nodes) - 1

    def split(self, node: int, cells: int, gain: float = 0.0) -> list[tuple[int, int]]:
        """Cut a cell that is to become several; return its halves, each with its cells, or nothing."""
        boxes, events = self.nodes[node]
        found = self.space.cut_of(boxes, events, cells, gain)
        if found is None:
            return []
        i, cut, m = found
        is_left = self.space.keys[i, events] <= cut
        left = self._add(boxes[self.space.lo[i, boxes] < cut], events[is_left])
        self._add(boxes[self.space.hi[i, boxes] > cut], events[~is_left])
        self.cuts[node] = (i, cut, left)
        self.nodes[node] = (boxes[:0], events[:0])
        return [(left, m), (left + 1, cells - m)]

    def grow(self, cells: int, gain: float | None) -> Growth:
        """Cut until there are so many cells or none can be cut; with a gain, they are shared out first."""
        todo = [] if gain is None else [(0, cells)]
        while todo:
            node, m = todo.pop()
            todo += self.split(node, m, gain or 0.0) if m > 1 else []
        heap = [(-self.work[node], node) for node in self.leaves()]
        heapq.heapify(heap)
        while heap and len(self.cuts) + 1 < cells:
            for half, _ in self.split(heapq.heappop(heap)[1], 2):
                heapq.heappush(heap, (-self.work[half], half))
        return self

    def leaves(self) -> list[int]:
        """Return the nodes that are not cut."""
        return [node for node in range(len(self.nodes)) if node not in self.cuts]

    def heaviest(self) -> float:
        """Return the work of the heaviest cell."""
        return max(self.work[node] for node in self.leaves())

    def tree(self) -> tuple[Numbers, Ints, Numbers, Numbers]:
        """Return attributes, cuts and children of the inner nodes, with cells numbered from left to right."""
        name: dict[int, int] = {}
        inner: list[int] = []
        n_cells, todo = 0, [0]
        while todo:
            node = todo.pop()
            if node in self.cuts:
                name[node] = len(inner)
                inner.append(node)
                todo += [self.cuts[node][2] + 1, self.cuts[node][2]]
            else:
                name[node] = ~n_cells
                n_cells += 1
        cuts = [self.cuts[node] for node in inner]
        return (
            self.space.attribute[[i for i, _, _ in cuts]].astype(np.int32) if cuts else np.empty(0, np.int32),
            np.array([cut for _, cut, _ in cuts], np.int64),
            np.array([name[left] for _, _, left in cuts], np.int32),
            np.array([name[left + 1] for _, _, left in cuts], np.int32),
        )


def _some(boxes: Boxes, rng: np.random.Generator) -> Boxes:
    """Return the boxes of as many owners, drawn at random, as keep to the limit; at least of one."""
    order = rng.permutation(boxes.n_owners)
    n = max(1, int(np.searchsorted(np.cumsum(boxes.counts[order]), _BOXES, side="right")))
    kept = np.zeros(boxes.n_owners, bool)
    kept[order[:n]] = True
    return boxes.of_owners(kept)


def _work(subscriptions: Ints | int, events: Ints | int) -> NDArray[np.float64]:
    """Return work; an event costs something where nobody waits for it, so that such cells are cut evenly."""
    return np.asarray((subscriptions + 1.0) * events)
