"""Subscriptions that were added since the index was built."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from narrowcast.filters.checks import Checks
from narrowcast.kernels import append_index as tail_kernel
from narrowcast.kernels.rows import beside
from narrowcast.matching.event_keys import refined
from narrowcast.matching.index import CandidateBoxes
from narrowcast.matching.segment import BoxOwners

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from narrowcast.matching.segment import Keys
    from narrowcast.matching.single_event import OneEvent
    from narrowcast.model.boxes import Boxes
    from narrowcast.model.events import EventBatch
    from narrowcast.model.subscriptions import SubscriptionSet

    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]
    Words = NDArray[np.uint64]

N = TypeVar("N", bound=np.generic)

#: Boxes of a chunk.
CHUNK = 4096
_WIDTH = CHUNK // 64
#: Buckets of an attribute.
_BUCKETS = 32


@dataclass(frozen=True, slots=True, eq=False)
class BoxChunk:
    """Up to CHUNK boxes, in arrays with room to grow.

    The arrays are shared with the chunks that grew out of this one: what lies beyond `n_boxes`, or beyond
    `indptr[n_boxes]`, is theirs. Only the newest may grow.
    """

    n_boxes: int
    attributes: tuple[int, ...]
    place: Numbers
    cuts: Ints
    cut_at: Ints
    words: Words
    indptr: Ints
    attribute: NDArray[np.int16]
    lo: Ints
    hi: Ints
    owner: Numbers
    exact: NDArray[np.bool_]
    #: How many boxes the arrays have ever had: more, where an addition was not finished.
    written: list[int]

    @classmethod
    def empty(cls, n_attributes: int) -> BoxChunk:
        """Return a chunk without boxes."""
        room = 4 * CHUNK
        return cls(
            0,
            (),
            np.full(n_attributes, -1, np.int32),
            np.empty(0, np.int64),
            np.zeros(1, np.int64),
            np.empty(0, np.uint64),
            np.zeros(CHUNK + 1, np.int64),
            np.empty(room, np.int16),
            np.empty(room, np.int64),
            np.empty(room, np.int64),
            np.empty(CHUNK, np.int32),
            np.empty(CHUNK, bool),
            [0],
        )

    def knowing(self, attributes: NDArray[np.int16], cuts: Mapping[int, Ints]) -> BoxChunk:
        """Return the chunk with rows for more attributes; boxes in it do not bound them."""
        if len(attributes) == 0:
            return self
        place = self.place.copy()
        place[attributes] = np.arange(len(self.attributes), len(self.attributes) + len(attributes))
        new = [cuts[int(a)] for a in attributes]
        return replace(
            self,
            attributes=(*self.attributes, *(int(a) for a in attributes)),
            place=place,
            cuts=np.concatenate([self.cuts, *new]),
            cut_at=np.concatenate([self.cut_at, self.cut_at[-1] + np.cumsum([len(c) for c in new])]),
            words=np.concatenate(
                [self.words, np.full(len(attributes) * _BUCKETS * _WIDTH, ~np.uint64(0), np.uint64)]
            ),
        )

    def put(self, boxes: Boxes, begin: int, end: int, shift: int) -> BoxChunk:
        """Return the chunk with some boxes behind those it has, their owners numbered on from `shift`."""
        first, stop = int(boxes.indptr[begin]), int(boxes.indptr[end])
        at = int(self.indptr[self.n_boxes])
        need = at + stop - first
        grown = self
        if need > len(self.lo):
            room = max(need, 2 * len(self.lo))
            grown = replace(
                self,
                attribute=_longer(self.attribute, room),
                lo=_longer(self.lo, room),
                hi=_longer(self.hi, room),
            )
        grown.attribute[at:need] = boxes.attribute[first:stop]
        grown.lo[at:need] = boxes.lo[first:stop]
        grown.hi[at:need] = boxes.hi[first:stop]
        n = self.n_boxes + end - begin
        stale = self.written[0] > self.n_boxes
        self.written[0] = max(self.written[0], n)
        grown.owner[self.n_boxes : n] = boxes.owner[begin:end] + shift
        grown.exact[self.n_boxes : n] = boxes.exact[begin:end]
        grown.indptr[self.n_boxes + 1 : n + 1] = boxes.indptr[begin + 1 : end + 1] + (at - first)
        tail_kernel.put(
            grown.words,
            _WIDTH,
            _BUCKETS,
            grown.cuts,
            grown.cut_at,
            grown.place,
            self.n_boxes,
            grown.indptr[self.n_boxes : n + 1],
            grown.attribute,
            grown.lo,
            grown.hi,
            stale,
        )
        return replace(grown, n_boxes=n)

    def find(self, keys: Keys, n_events: int) -> CandidateBoxes:
        """Return the boxes of each event, given the keys of an attribute."""
        matrix = np.empty((n_events, len(self.attributes)), np.int64)
        for r, attribute in enumerate(self.attributes):
            matrix[:, r] = keys(attribute)
        bounds = (self.indptr, self.attribute, self.lo, self.hi)
        head = (self.words, _WIDTH, _BUCKETS, self.cuts, self.cut_at, self.place)
        return CandidateBoxes(*tail_kernel.find(*head, self.n_boxes, *bounds, matrix))


@dataclass(frozen=True, slots=True, eq=False)
class AppendIndex:
    """Boxes that were added, in chunks; never changed, though the newest shares its room with the next one.

    Parameters
    ----------
    n_attributes
        How many attributes boxes may bound.
    cuts
        For an attribute, keys that part events, and the ends of boxes, about evenly.
    """

    n_attributes: int
    cuts: Mapping[int, Ints]
    chunks: tuple[BoxChunk, ...] = ()
    n_subscriptions: int = 0
    checks: tuple[tuple[int, Checks], ...] = ()
    _owners: list[BoxOwners] = field(default_factory=list, init=False, repr=False)

    def put(self, subscriptions: SubscriptionSet) -> AppendIndex:
        """Return the tail with more subscriptions."""
        boxes, checks = subscriptions.boxes, self.checks
        if not boxes.exact.all():
            more = Checks(subscriptions.schema, subscriptions.check)
            checks = (*checks, (self.n_subscriptions, more))
            boxes = refined(boxes, subscriptions.schema, more)
        attributes = np.unique(boxes.attribute)
        cuts = self.cuts
        unknown = [int(a) for a in attributes if int(a) not in cuts]
        if unknown:
            cuts = {**cuts, **{a: some_cuts(_ends(boxes, a)) for a in unknown}}
        chunks = list(self.chunks)
        begin = 0
        while begin < len(boxes):
            if not chunks or chunks[-1].n_boxes == CHUNK:
                chunks.append(BoxChunk.empty(self.n_attributes))
            chunk = chunks[-1]
            chunk = chunk.knowing(attributes[chunk.place[attributes] < 0], cuts)
            end = min(len(boxes), begin + CHUNK - chunk.n_boxes)
            chunks[-1] = chunk.put(boxes, begin, end, self.n_subscriptions)
            begin = end
        n = self.n_subscriptions + len(subscriptions)
        return AppendIndex(self.n_attributes, cuts, tuple(chunks), n, checks)

    def find(self, events: EventBatch | OneEvent, keys: Keys) -> CandidateBoxes:
        """Return the subscriptions of each event, given the keys of an attribute."""
        found = CandidateBoxes(np.zeros(len(events) + 1, np.int64), np.empty(0, np.int32))
        shift = 0
        for chunk in self.chunks:
            found = CandidateBoxes(*beside(*found, *chunk.find(keys, len(events)), shift))
            shift += chunk.n_boxes
        if not self._owners:
            owner = np.concatenate([np.empty(0, np.int32), *(c.owner[: c.n_boxes] for c in self.chunks)])
            exact = np.concatenate([np.empty(0, bool), *(c.exact[: c.n_boxes] for c in self.chunks)])
            self._owners.append(BoxOwners.of(owner, exact, self.n_subscriptions, self._keep))
        return self._owners[0].resolve(events, found)

    def _keep(self, events: EventBatch, event: Ints, subscription: Ints) -> NDArray[np.bool_]:
        """Check pairs, each with the checks that its subscription came with."""
        kept = np.ones(len(event), bool)
        firsts = np.array([first for first, _ in self.checks])
        piece = np.searchsorted(firsts, subscription, side="right") - 1
        for p in np.unique(piece):
            mine = np.flatnonzero(piece == p)
            first, checks = self.checks[p]
            kept[mine] = checks.keep(events, event[mine], subscription[mine] - first)
        return kept

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(
            c.words.nbytes + c.lo.nbytes + c.hi.nbytes + c.attribute.nbytes + c.indptr.nbytes
            for c in self.chunks
        )


def some_cuts(ends: Ints) -> Ints:
    """Return keys that part sorted ends evenly, one fewer than there are buckets."""
    if len(ends) < _BUCKETS:
        return np.unique(ends)
    return np.unique(ends[np.linspace(0, len(ends) - 1, _BUCKETS + 1).astype(np.int64)[1:-1]])


def _ends(boxes: Boxes, attribute: int) -> Ints:
    entry = boxes.attribute == attribute
    return np.sort(np.concatenate([boxes.lo[entry], boxes.hi[entry]]))


def _longer(array: NDArray[N], room: int) -> NDArray[N]:
    out = np.empty(room, array.dtype)
    out[: len(array)] = array
    return out
