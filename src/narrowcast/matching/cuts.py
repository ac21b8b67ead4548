"""Cuts of the event space into cells of similar work, with few subscriptions in several cells.

A cell is a range of keys (sortable integers of values) for each attribute. The work of a cell is its events
times its subscriptions, or a measured cost (`PartWork`). Cuts are chosen on a sample of both. The owner of a
box is its subscription.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.matching.auto import AutoMatcher
from narrowcast.matching.partition.cell_tree import CellTree
from narrowcast.matching.partition.part_work import PartWork
from narrowcast.model.keys import NO_HIGH, NO_LOW, NULL, last

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from narrowcast.model.boxes import Boxes
    from narrowcast.model.events import EventBatch
    from narrowcast.model.subscriptions import SubscriptionSet

    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]

#: Number of sampled boxes and events that cuts are chosen on; many cells require more events.
_BOXES, _EVENTS = 50_000, 100_000
_EVENTS_PER_CELL = 512
#: Number of attributes that cuts are tried on: those that the most boxes bound.
_ATTRIBUTES = 32
#: Number of cuts tried on each attribute: at this many quantiles of the events, and just below each.
_QUANTILES = 63
#: Guesses of g, where dividing a cell into m leaves m ** -g of its work in total; None always cuts the
#: heaviest cell next instead of distributing cells from the root. None is best everywhere, so each is tried.
GAINS = (None, 0.1, 0.2)


@dataclass(frozen=True, slots=True, eq=False)
class CutSpace:
    """The sample that cuts are chosen on: keys of events and ends of boxes, a row per attribute."""

    attribute: Ints
    keys: Ints
    lo: Ints
    hi: Ints
    owner: Ints
    #: The boxes, with all owners; subscriptions that were not sampled have none.
    boxes: Boxes
    #: Cost of cells, in events and boxes of the sample.
    work: PartWork
    #: Number of matches of each event in the sample, if the cost depends on matches.
    matches: Ints | None = None

    @classmethod
    def drawn(
        cls,
        subscriptions: SubscriptionSet,
        sample: EventBatch,
        cells: int,
        rng: np.random.Generator,
        *,
        work: PartWork | None = None,
        also: Iterable[int] = (),
    ) -> CutSpace:
        """Draw a sample of subscriptions and events; without events, box ends replace them.

        Parameters
        ----------
        subscriptions, sample, cells, rng
            The subscriptions and events to draw from, the number of cells, and the random generator.
        work
            Cost of cells in events and subscriptions before sampling (default: their product).
        also
            Attributes to include even if few boxes bound them.
        """
        schema, boxes = subscriptions.schema, _sampled_boxes(subscriptions.boxes, rng)
        often = np.bincount(boxes.attribute, minlength=len(schema))
        often[list(also)] += len(boxes.attribute) + 1
        attribute = np.argsort(-often, kind="stable")[: max(_ATTRIBUTES, len(set(also)))]
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
        matches = None
        if work is not None:
            drawn = int(np.count_nonzero(boxes.counts))
            work = work.scaled(len(sample) / max(1, len(chosen)), len(subscriptions) / max(1, drawn))
            if work.match and len(chosen):
                few = subscriptions.take(np.flatnonzero(boxes.counts))
                matches = AutoMatcher().fit(few).count(sample)[chosen]
        return cls(
            attribute,
            keys,
            lo[:, alive],
            hi[:, alive],
            boxes.owner[alive],
            boxes,
            work or PartWork(),
            matches,
        )

    def found(self, events: Numbers) -> float:
        """Return how many sampled subscriptions the events match; 0 if that does not affect the cost."""
        return 0.0 if self.matches is None else float(self.matches[events].sum())

    def covered(self) -> NDArray[np.float64]:
        """Return the share of events that each subscription covers: owners x attributes, 1 if not bounded."""
        owner, starts = np.unique(self.owner, return_index=True)
        share = np.ones((self.boxes.n_owners, len(self.attribute)))
        if not len(owner) or not self.keys.shape[1]:
            return share
        for i, keys in enumerate(np.sort(self.keys, axis=1)):
            lo = np.minimum.reduceat(self.lo[i], starts)
            hi = np.maximum.reduceat(self.hi[i], starts)
            within = np.searchsorted(keys, hi, side="right") - np.searchsorted(keys, lo, side="right")
            share[owner, i] = within / len(keys)
        return share

    def cut_of(self, boxes: Numbers, events: Numbers, cells: int, gain: float) -> tuple[int, int, int] | None:
        """Return the best cut of a cell into two: row of the attribute, key, and number of cells on the left.

        The best cut minimises the heaviest expected cell and the total work.
        """
        best, found = np.inf, None
        owner = self.owner[boxes]
        starts = np.flatnonzero(np.diff(owner, prepend=-1))
        for i in range(len(self.attribute)):
            keys, below_key = self._sorted(i, events)
            if len(keys) == 0 or keys[0] == keys[-1]:
                continue
            at = keys[np.arange(1, _QUANTILES + 1) * len(keys) // (_QUANTILES + 1)]
            below = np.searchsorted(keys, at) - 1
            cuts = np.unique(np.concatenate([at, keys[below[below >= 0]]]))
            cuts = cuts[cuts < keys[-1]]
            # a subscription is on each side of a cut that one of its boxes is on
            lo, hi = self.lo[i, boxes], self.hi[i, boxes]
            if len(starts) < len(boxes):
                lo, hi = np.minimum.reduceat(lo, starts), np.maximum.reduceat(hi, starts)
            n_left = np.searchsorted(keys, cuts, side="right")
            matches = below_key[n_left]
            n_lo = np.searchsorted(np.sort(lo), cuts)
            n_hi = len(hi) - np.searchsorted(np.sort(hi), cuts, side="right")
            left = self.work.of(n_left, n_lo, matches)
            right = self.work.of(len(keys) - n_left, n_hi, below_key[-1] - matches)
            share = 1 / (1 + (right / left) ** (1 / (1 + gain)))
            m = np.clip(np.rint(cells * share), 1, cells - 1)
            rest = cells - m
            left, right = left * m**-gain, right * rest**-gain
            cost = cells * np.maximum(left / m, right / rest) + left + right
            j = int(np.argmin(cost))
            if cost[j] < best:
                best, found = cost[j], (i, int(cuts[j]), int(m[j]))
        return found

    def _sorted(self, i: int, events: Numbers) -> tuple[Ints, Ints]:
        """Return the keys of events along an attribute, sorted, and their cumulative numbers of matches."""
        keys = self.keys[i, events]
        if self.matches is None:
            return np.sort(keys), np.zeros(len(keys) + 1, np.int64)
        order = np.argsort(keys, kind="stable")
        return keys[order], np.append(0, np.cumsum(self.matches[events[order]]))


class CutTree:
    """A tree of cells under construction: boxes and events of each node, and the cuts made so far.

    Parameters
    ----------
    space
        The sample that cuts are chosen on.
    boxes, events
        The boxes and events in the tree (default: all).
    """

    def __init__(self, space: CutSpace, boxes: Numbers | None = None, events: Numbers | None = None) -> None:
        self.space = space
        self.nodes: list[tuple[Numbers, Numbers]] = []
        self.work: list[float] = []
        self.cuts: dict[int, tuple[int, int, int]] = {}
        #: Nodes that were removed when a branch was replaced.
        self.gone: set[int] = set()
        self._add(
            np.arange(len(space.owner), dtype=np.int32) if boxes is None else boxes,
            np.arange(space.keys.shape[1], dtype=np.int32) if events is None else events,
        )

    def _add(self, boxes: Numbers, events: Numbers) -> int:
        self.nodes.append((boxes, events))
        held = self.held(len(self.nodes) - 1)
        self.work.append(float(self.space.work.of(len(events), held, self.space.found(events))))
        return len(self.nodes) - 1

    def held(self, node: int) -> int:
        """Return how many subscriptions are in the cell of a node."""
        return int(np.count_nonzero(np.diff(self.space.owner[self.nodes[node][0]], prepend=-1)))

    def split(self, node: int, cells: int, gain: float = 0.0) -> list[tuple[int, int]]:
        """Cut a cell in two if that helps; return each half with the number of cells it is to become."""
        boxes, events = self.nodes[node]
        found = self.space.cut_of(boxes, events, cells, gain)
        if found is None:
            return []
        i, cut, m = found
        left = self.cut(node, i, cut)
        return [(left, m), (left + 1, cells - m)]

    def cut(self, node: int, i: int, cut: int) -> int:
        """Cut a cell at a key; return the node of its left half, which the node of the right half follows."""
        boxes, events = self.nodes[node]
        is_left = self.space.keys[i, events] <= cut
        left = self._add(boxes[self.space.lo[i, boxes] < cut], events[is_left])
        self._add(boxes[self.space.hi[i, boxes] > cut], events[~is_left])
        self.cuts[node] = (i, cut, left)
        self.nodes[node] = (boxes[:0], events[:0])
        return left

    def grow(self, cells: int, gain: float | None) -> CutTree:
        """Cut until there are `cells` cells or none can be cut: the heaviest cell first if `gain` is None."""
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
        """Return the nodes that are cells: those that are not cut."""
        return [n for n in range(len(self.nodes)) if n not in self.cuts and n not in self.gone]

    def heaviest(self) -> float:
        """Return the work of the heaviest cell."""
        return max(self.work[node] for node in self.leaves())

    def graft(self, node: int, branch: CutTree) -> list[int]:
        """Replace the subtree at a node by another tree; return the new numbers of that tree's nodes."""
        todo = [node]
        while todo:
            below = todo.pop()
            if below in self.cuts:
                left = self.cuts.pop(below)[2]
                todo += [left, left + 1]
            if below != node:
                self.gone.add(below)
        # Both trees number the two halves of a cut consecutively.
        at = [node, *range(len(self.nodes), len(self.nodes) + len(branch.nodes) - 1)]
        self.nodes[node], self.work[node] = branch.nodes[0], branch.work[0]
        self.nodes += branch.nodes[1:]
        self.work += branch.work[1:]
        self.cuts |= {at[n]: (i, cut, at[left]) for n, (i, cut, left) in branch.cuts.items()}
        return at

    def cells(self, node: int = 0) -> list[int]:
        """Return the cells at or below a node, from left to right."""
        found, todo = [], [node]
        while todo:
            node = todo.pop()
            if node in self.cuts:
                todo += [self.cuts[node][2] + 1, self.cuts[node][2]]
            else:
                found.append(node)
        return found

    def tree(self, part: Mapping[int, int]) -> CellTree:
        """Return the finished cell tree; `part` is the number of the part for each cell."""
        name = {node: ~number for node, number in part.items()}
        inner: list[int] = []
        todo = [0]
        while todo:
            node = todo.pop()
            if node in self.cuts:
                name[node] = len(inner)
                inner.append(node)
                todo += [self.cuts[node][2] + 1, self.cuts[node][2]]
        cuts = [self.cuts[node] for node in inner]
        return CellTree(
            name[0],
            self.space.attribute[[i for i, _, _ in cuts]].astype(np.int32) if cuts else np.empty(0, np.int32),
            np.array([cut for _, cut, _ in cuts], np.int64),
            np.array([name[left] for _, _, left in cuts], np.int32),
            np.array([name[left + 1] for _, _, left in cuts], np.int32),
        )


def _sampled_boxes(boxes: Boxes, rng: np.random.Generator) -> Boxes:
    """Return the boxes of random subscriptions: up to a limit on boxes, but of at least one subscription."""
    order = rng.permutation(boxes.n_owners)
    n = max(1, int(np.searchsorted(np.cumsum(boxes.counts[order]), _BOXES, side="right")))
    kept = np.zeros(boxes.n_owners, bool)
    kept[order[:n]] = True
    return boxes.of_owners(kept)
