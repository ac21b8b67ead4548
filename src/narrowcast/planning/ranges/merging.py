"""Merging of trees: which attributes have a tree, and which tree stores each filter (cobas2009, section V).

The values of an attribute are divided into positions, which are the nodes of a binary tree. A filter is an
interval of positions for each attribute that it bounds, and is stored in the tree of one attribute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias, get_args

import numpy as np

from narrowcast.costs.line_positions import LineCharges, LinePositions
from narrowcast.errors import InputError, ParameterError
from narrowcast.model.cost import Cost
from narrowcast.planning.ranges.division import Division, Way
from narrowcast.validation import check_choice, check_seed, check_whole

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike, NDArray

    Ints: TypeAlias = NDArray[np.int64]
    Doubles: TypeAlias = NDArray[np.float64]
    Flags: TypeAlias = NDArray[np.bool_]

#: How to search for the trees to keep.
Search = Literal["greedy", "exhaustive", "none"]
#: Which of its attributes' trees stores a filter.
Routing = Literal["random", "selective"]
#: The most attributes for which all sets of trees are tried.
FEW = 6


@dataclass(frozen=True, slots=True, init=False, eq=False)
class AttributeLines:
    """For each attribute the events at its positions, and filters as intervals of positions.

    Parameters
    ----------
    density
        Events at each position, or their share: attributes x positions.
    first, last
        The positions that each filter covers, both ends inclusive: filters x attributes; -1 in both where the
        filter does not bound the attribute.
    weight
        Number of identical filters that each row counts for (default: 1).

    Examples
    --------
    >>> hubs = AttributeLines([[0.5, 0.5], [0.25, 0.75]], first=[[0, -1], [1, 0]], last=[[1, -1], [1, 0]])
    >>> hubs.n_attributes, hubs.n_positions, hubs.n_filters
    (2, 2, 2)
    """

    density: Doubles
    first: Ints
    last: Ints
    weight: Doubles

    def __init__(
        self, density: ArrayLike, first: ArrayLike, last: ArrayLike, weight: ArrayLike | None = None
    ) -> None:
        events = np.array(density, np.float64)
        if events.ndim != 2 or not events.size:
            raise InputError(
                f"density: has shape {events.shape}; give attributes x positions, at least 1 x 1",
                parameter="density",
            )
        d, n_positions = events.shape
        low, high = np.array(first), np.array(last)
        for name, ends in (("first", low), ("last", high)):
            whole = np.issubdtype(ends.dtype, np.integer)
            if not whole or ends.ndim != 2 or ends.shape != (len(low), d):
                raise InputError(
                    f"{name}: has type {ends.dtype} and shape {ends.shape}; give integers, filters x {d}",
                    parameter=name,
                )
        bounded = (low >= 0) | (high >= 0)
        wrong = bounded & ((low < 0) | (low > high) | (high >= n_positions))
        if wrong.any():
            i, a = np.argwhere(wrong)[0].tolist()
            raise InputError(
                f"filter {i}: first={low[i, a]}, last={high[i, a]} on attribute {a}: must be from 0 to "
                f"{n_positions - 1}, first not above last, or both -1",
                parameter="first",
                value=int(low[i, a]),
            )
        many = np.array(np.broadcast_to(np.asarray(1.0 if weight is None else weight, np.float64), len(low)))
        light = ~(np.isfinite(many) & (many > 0))
        if light.any():
            i = int(np.flatnonzero(light)[0])
            raise InputError(
                f"filter {i}: weight={many[i]}: must be a finite number above 0",
                parameter="weight",
                value=float(many[i]),
                limit="a finite number above 0",
            )
        for row in events:
            LinePositions(row, [], [])  # checks the density
        whole_ends = {"first": low.astype(np.int64), "last": high.astype(np.int64)}
        given: dict[str, NDArray[Any]] = {"density": events, **whole_ends, "weight": many}
        for name, value in given.items():
            value.flags.writeable = False
            object.__setattr__(self, name, value)

    @property
    def n_attributes(self) -> int:
        """Number of attributes."""
        return int(self.density.shape[0])

    @property
    def n_positions(self) -> int:
        """Number of positions of each attribute."""
        return int(self.density.shape[1])

    @property
    def n_filters(self) -> int:
        """Number of filters."""
        return len(self.first)

    def line(self, attribute: int, filters: Ints | Flags) -> LinePositions:
        """Return an attribute's positions and intervals; filters that do not bound it cover all positions."""
        first, last = self.first[filters, attribute], self.last[filters, attribute]
        free = first < 0
        first, last = np.where(free, 0, first), np.where(free, self.n_positions - 1, last)
        return LinePositions(self.density[attribute], first, last, self.weight[filters])

    def covered(self) -> Doubles:
        """Return the share of events in each filter's interval: filters x attributes, 1 if not bounded."""
        found = np.ones(self.first.shape)
        for a, density in enumerate(self.density):
            bounded = self.first[:, a] >= 0
            below = np.append(0.0, np.cumsum(density))
            mass = below[self.last[bounded, a] + 1] - below[self.first[bounded, a]]
            found[bounded, a] = mass / below[-1] if below[-1] else 0.0
        return found


class AttributeTree(NamedTuple):
    """The tree of an attribute: the filters that it stores, and the division of their intervals."""

    filters: Ints
    division: Division


class Merging:
    """Decides which attributes keep their tree, so that storing filters and matching events costs least.

    A filter is stored in one tree, of an attribute that it bounds; if none of these has a tree any more it is
    an orphan: it covers the whole of another attribute, and enters at the root of that tree. An event is
    looked up in every tree, which takes log2 of the positions; removing a tree saves that, and adds filters
    to the other trees.

    Parameters
    ----------
    search
        `greedy`: repeatedly remove the tree that saves most, while one saves. `exhaustive`: try all sets of
        trees and, for each, all trees for orphans; for up to 6 attributes. `none`: keep all trees.
    routing
        Which of its attributes with a tree stores a filter: a random one (`random`), or the one with the
        fewest events in the filter's interval (`selective`).
    way
        How to divide intervals: see `Division`.
    charges
        Prices of messages and segments, and the capacity of a machine.
    seed
        Seed of random routing.

    Examples
    --------
    >>> first, last = [[0, -1, -1], [2, 1, -1]], [[1, -1, -1], [3, 1, -1]]
    >>> hubs = AttributeLines(np.full((3, 4), 0.25), first=first, last=last)
    >>> merging = Merging(charges=LineCharges(message=1.0, segment=0.1)).fit(hubs)
    >>> list(merging.trees_), merging.home_.tolist(), merging.orphans_.tolist()
    ([0], [0, 0], [])
    >>> merging.cost_.terms["lookups"], Merging(search="none").fit(hubs).cost_.terms["lookups"]
    (2.0, 6.0)
    """

    #: The trees that are kept, by attribute.
    trees_: dict[int, AttributeTree]
    #: The attribute whose tree stores each filter.
    home_: Ints
    #: Filters stored in the tree of an attribute that they do not bound.
    orphans_: Ints
    cost_: Cost
    #: Number of sets of trees that were priced.
    evaluations_: int

    def __init__(
        self,
        *,
        search: Search = "greedy",
        routing: Routing = "random",
        way: Way = "optimal",
        charges: LineCharges | None = None,
        seed: int = 0,
    ) -> None:
        self.search = search
        self.routing = routing
        self.way = way
        self.charges = LineCharges() if charges is None else charges
        self.seed = seed

    def fit(
        self, hubs: AttributeLines, *, alive: Iterable[int] | None = None, most: int | None = None
    ) -> Self:
        """Decide which attributes keep a tree, assign each filter to a tree, and divide its intervals there.

        Parameters
        ----------
        hubs
            The events and filters.
        alive
            The attributes with a tree at the start, for `greedy` and `none` (default: all).
        most
            The most trees that `greedy` removes; 1 to merge step by step (default: no limit).
        """
        for name, known in (("search", get_args(Search)), ("routing", get_args(Routing))):
            check_choice(name, getattr(self, name), known)
        check_seed(self.seed)
        key = self._keys(hubs)
        everything = _alive(alive, hubs.n_attributes)
        if most is not None:
            check_whole("most", most, least=0)
        self.evaluations_ = 0
        if self.search == "exhaustive":
            best = self._exhaustive(hubs, key)
        else:
            best = self._price(hubs, key, everything, everything[0])
            if self.search == "greedy":
                best = self._greedy(hubs, key, best, len(everything) if most is None else most)
        self.trees_, self.home_, self.cost_ = best.trees, best.home, best.cost
        bounds = hubs.first[np.arange(hubs.n_filters), self.home_] >= 0
        self.orphans_ = np.flatnonzero(~bounds)
        return self

    def _keys(self, hubs: AttributeLines) -> Doubles:
        """Return a key per filter and attribute: the least key's tree stores the filter; inf if unbounded."""
        if self.routing == "selective":
            key = hubs.covered()
        else:
            key = np.random.default_rng(self.seed).random(hubs.first.shape)
        return np.where(hubs.first >= 0, key, np.inf)

    def _price(
        self,
        hubs: AttributeLines,
        key: Doubles,
        alive: tuple[int, ...],
        orphans: int,
        known: _PricedTrees | None = None,
    ) -> _PricedTrees:
        """Return the cost of a set of trees; the cost of trees in `known` with the same filters is reused."""
        self.evaluations_ += 1
        columns = np.array(alive)
        mine = key[:, columns]
        best = mine.argmin(axis=1)
        home = columns[best]
        home[~np.isfinite(mine[np.arange(len(mine)), best])] = orphans
        trees: dict[int, AttributeTree] = {}
        for a in alive:
            filters = np.flatnonzero(home == a)
            before = None if known is None else known.trees[a]
            if before is not None and np.array_equal(before.filters, filters):
                trees[a] = before
                continue
            division = Division(way=self.way, charges=self.charges).fit(hubs.line(a, filters))
            trees[a] = AttributeTree(filters, division.forget())
        return _PricedTrees(trees, home, _sum(trees.values(), hubs.n_positions, self.charges))

    def _greedy(self, hubs: AttributeLines, key: Doubles, best: _PricedTrees, most: int) -> _PricedTrees:
        """Remove the tree that saves most, again and again while that saves, at most `most` trees."""
        fewest = max(1, len(best.trees) - most)
        while len(best.trees) > fewest:
            found = None
            for gone in best.trees:
                alive = tuple(a for a in best.trees if a != gone)
                priced = self._price(hubs, key, alive, alive[0], best)
                if found is None or priced.cost.total < found.cost.total:
                    found = priced
            if found is None or found.cost.total >= best.cost.total:
                break
            best = found
        return best

    def _exhaustive(self, hubs: AttributeLines, key: Doubles) -> _PricedTrees:
        """Try all sets of trees, and for each all trees that can store filters without a tree of theirs."""
        d = hubs.n_attributes
        if d > FEW:
            raise ParameterError(
                f"search='exhaustive': {d} attributes, must be at most {FEW}; use greedy",
                parameter="search",
                value="exhaustive",
            )
        found: _PricedTrees | None = None
        for many in range(d, 0, -1):
            for alive in combinations(range(d), many):
                for orphans in alive:
                    priced = self._price(hubs, key, alive, orphans)
                    if found is None or priced.cost.total < found.cost.total:
                        found = priced
        assert found is not None
        return found


class _PricedTrees(NamedTuple):
    """A set of trees, the tree that stores each filter, and the total cost."""

    trees: dict[int, AttributeTree]
    home: Ints
    cost: Cost


def _alive(given: Iterable[int] | None, n_attributes: int) -> tuple[int, ...]:
    """Check and return the attributes that have a tree at the start, ascending; all if none are given."""
    alive = tuple(range(n_attributes)) if given is None else tuple(sorted(set(given)))
    if not alive or alive[0] < 0 or alive[-1] >= n_attributes:
        limit = f"attributes from 0 to {n_attributes - 1}, at least one"
        raise ParameterError(parameter="alive", value=alive, limit=limit)
    return alive


def _sum(trees: Iterable[AttributeTree], n_positions: int, charges: LineCharges) -> Cost:
    """Return the cost of all trees, including the lookup of an event in each."""
    terms: dict[str, Any] = {"lookups": 0.0, "messages": 0.0, "segments": 0.0}
    total = 0.0
    for tree in trees:
        cost = tree.division.cost_
        terms["lookups"] += math.log2(n_positions)
        terms["messages"] += cost.terms["messages"]
        terms["segments"] += cost.terms["segments"]
        total += cost.total
    return Cost(total + charges.message * terms["lookups"], terms)
