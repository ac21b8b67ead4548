"""Append index: subscriptions added since the main index was built, searched along with it.

A key is an attribute value as a sortable integer. Boxes are stored in chunks of fixed capacity. In each
chunk, the keys of an attribute are divided into buckets by cuts, and a row of flags per bucket has the boxes
that overlap it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from narrowcast.filters.checks import Checks
from narrowcast.kernels import append_index as tail_kernel
from narrowcast.kernels.rows import beside
from narrowcast.matching.event_keys import with_hash_bounds
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

#: Boxes per chunk.
CHUNK = 4096
_WIDTH = CHUNK // 64
#: Buckets per attribute.
_BUCKETS = 32


@dataclass(frozen=True, slots=True, eq=False)
class BoxChunk:
    """Up to CHUNK boxes of added subscriptions, in arrays with spare capacity.

    Chunks that were grown from this one share its arrays: entries beyond `n_boxes`, or beyond
    `indptr[n_boxes]`, belong to them. Only the newest chunk may grow.
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
    #: Boxes ever written to the arrays; more than `n_boxes` if an addition was interrupted.
    written: list[int]

    @classmethod
    def empty(cls, n_attributes: int) -> BoxChunk:
        """Return a chunk without boxes, for events with a number of attributes."""
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
        """Return the chunk with rows of flags for additional attributes, which no existing box bounds."""
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
        """Return the chunk with boxes `begin` to `end` appended; owners are numbered from `shift` on."""
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
        """Return the boxes that may contain each event, given a function from attribute to keys of events."""
        matrix = np.empty((n_events, len(self.attributes)), np.int64)
        for r, attribute in enumerate(self.attributes):
            matrix[:, r] = keys(attribute)
        bounds = (self.indptr, self.attribute, self.lo, self.hi)
        head = (self.words, _WIDTH, _BUCKETS, self.cuts, self.cut_at, self.place)
        return CandidateBoxes(*tail_kernel.find(*head, self.n_boxes, *bounds, matrix))


@dataclass(frozen=True, slots=True, eq=False)
class AppendIndex:
    """Boxes of added subscriptions in chunks. Immutable: adding returns a new index that shares arrays.

    Parameters
    ----------
    n_attributes
        Number of attributes that boxes may bound.
    cuts
        For each attribute, keys that divide events and box ends about evenly.
    """

    n_attributes: int
    cuts: Mapping[int, Ints]
    chunks: tuple[BoxChunk, ...] = ()
    n_subscriptions: int = 0
    checks: tuple[tuple[int, Checks], ...] = ()
    _owners: list[BoxOwners] = field(default_factory=list, init=False, repr=False)

    def put(self, subscriptions: SubscriptionSet) -> AppendIndex:
        """Return the index with additional subscriptions."""
        boxes, checks = subscriptions.boxes, self.checks
        if not boxes.exact.all():
            more = Checks(subscriptions.schema, subscriptions.check)
            checks = (*checks, (self.n_subscriptions, more))
            boxes = with_hash_bounds(boxes, subscriptions.schema, more)
        attributes = np.unique(boxes.attribute)
        cuts = self.cuts
        unknown = [int(a) for a in attributes if int(a) not in cuts]
        if unknown:
            cuts = {**cuts, **{a: even_cuts(_ends(boxes, a)) for a in unknown}}
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
        """Return the matching subscriptions of each event, given a function from attribute to event keys."""
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
        """Return for each pair of event and subscription whether the checks of the filter confirm it."""
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
        """Size of the chunks in memory, in bytes."""
        return sum(
            c.words.nbytes + c.lo.nbytes + c.hi.nbytes + c.attribute.nbytes + c.indptr.nbytes
            for c in self.chunks
        )


def even_cuts(ends: Ints) -> Ints:
    """Return cuts that divide sorted keys of box ends into buckets of about equal numbers."""
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
