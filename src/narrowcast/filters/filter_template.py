"""What all filters of one shape share: the tree, and the boxes as a function of the literals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.filters.binding import bind
from narrowcast.filters.normal_form import FALSE, Conjunction, Hull, Term, conjunctions, without_not
from narrowcast.filters.ranges import Literals, Ranges, ranges
from narrowcast.filters.syntax import Node, Predicate, Slot, operands, predicates

if TYPE_CHECKING:
    import numpy.typing as npt

    from narrowcast.filters.limits import FilterLimits
    from narrowcast.model.schema import Schema

    Ints = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

#: Ends of ranges held at once while boxes are made: 64 MB.
_CHUNK = 4_000_000


@dataclass(frozen=True, slots=True)
class BoxBlock:
    """Boxes that bound the same attributes: owners, ends of shape (boxes, attributes), exactness."""

    attributes: tuple[int, ...]
    owner: Ints
    lo: Ints
    hi: Ints
    exact: Flags


@dataclass(frozen=True, slots=True)
class FilterTemplate:
    """A shape bound to a schema: the tree as written, without NOT, and as conjunctions.

    `dropped` are the predicates that simplifying took out: they decide nothing, but must be right too.
    """

    schema: Schema
    node: Node
    positive: Node
    parts: tuple[Conjunction, ...]
    dropped: tuple[Predicate, ...]

    @classmethod
    def make(cls, node: Node, schema: Schema, limits: FilterLimits | None) -> FilterTemplate:
        """Bind and normalise a tree; without limits it can only be checked, not made into boxes."""
        bound = bind(node, schema)
        positive = without_not(bound)
        parts = () if limits is None or positive == FALSE else tuple(conjunctions(positive, limits))
        used = {slot.number for p in predicates(positive) for slot in operands(p) if isinstance(slot, Slot)}
        dropped = tuple(
            p
            for p in predicates(bound)
            if any(isinstance(slot, Slot) and slot.number not in used for slot in operands(p))
        )
        return cls(schema, bound, positive, parts, dropped)

    def boxes(self, literals: Literals) -> list[BoxBlock]:
        """Return the boxes of n filters, in blocks; owners are numbered from 0."""
        blocks = []
        known: dict[Hull, Ranges] = {}
        for part in self.parts:
            found = _meet([_cover(term, literals, self.schema, known) for term in part], len(literals))
            blocks += _multiply(found, len(literals))
        for predicate in self.dropped:
            literals.check(predicate)
        return blocks


def _cover(term: Term, literals: Literals, schema: Schema, known: dict[Hull, Ranges]) -> Ranges:
    """Return where a term can be true; a hull, which many conjunctions may share, is looked at once."""
    if not isinstance(term, Hull):
        return ranges(term, literals, schema)
    if term not in known:
        parts = [_meet([_cover(t, literals, schema, known) for t in p], len(literals)) for p in term.parts]
        hulls = {}
        for a in sorted(term.bounds):
            lo = np.min([part.by_attribute[a][0].min(axis=0) for part in parts], axis=0)
            hi = np.max([part.by_attribute[a][1].max(axis=0) for part in parts], axis=0)
            hulls[a] = (lo[None], hi[None])
        known[term] = Ranges(hulls, np.zeros(len(literals), bool))
    return known[term]


def _meet(found: list[Ranges], n: int) -> Ranges:
    """Return the ranges of a conjunction: those of one attribute intersected, each with each."""
    by_attribute: dict[int, tuple[Ints, Ints]] = {}
    exact = np.ones(n, bool)
    alive: Flags | None = None
    for one in found:
        exact = exact & one.exact
        if one.alive is not None:
            alive = one.alive if alive is None else alive & one.alive
        for a, (lo, hi) in one.by_attribute.items():
            if a in by_attribute:
                old_lo, old_hi = by_attribute[a]
                lo = np.maximum(old_lo[:, None], lo[None]).reshape(-1, n)
                hi = np.minimum(old_hi[:, None], hi[None]).reshape(-1, n)
            by_attribute[a] = (lo, hi)
    return Ranges(by_attribute, exact, alive)


def _multiply(found: Ranges, n: int) -> list[BoxBlock]:
    """Return the boxes of a conjunction: every choice of one range per attribute, the empty ones dropped."""
    attributes = tuple(sorted(found.by_attribute))
    choices = _choices([len(found.by_attribute[a][0]) for a in attributes])
    step = max(1, _CHUNK // max(1, choices.size))
    blocks = []
    for start in range(0, n, step):
        rows = slice(start, min(n, start + step))
        width = rows.stop - start
        lo = np.empty((choices.shape[1], width, len(attributes)), np.int64)
        hi = np.empty_like(lo)
        for i, a in enumerate(attributes):
            lo[:, :, i] = found.by_attribute[a][0][choices[i], rows]
            hi[:, :, i] = found.by_attribute[a][1][choices[i], rows]
        valid = (lo < hi).all(axis=2)
        if found.alive is not None:
            valid &= found.alive[rows]
        choice, owner = np.nonzero(valid)
        exact = found.exact[rows][owner]
        blocks.append(BoxBlock(attributes, owner + start, lo[choice, owner], hi[choice, owner], exact))
    return blocks


def _choices(sizes: list[int]) -> Ints:
    """Return every choice of one number below each size, one column per choice."""
    total = math.prod(sizes)
    choices = np.empty((len(sizes), total), np.int64)
    repeat = total
    for i, size in enumerate(sizes):
        repeat //= size
        choices[i] = np.arange(total) // repeat % size
    return choices
