"""Merging: which attributes have a tree, and in which one each filter lives (cobas2009, section V)."""

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
from narrowcast.validation import check_seed, check_whole

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike, NDArray

    Ints: TypeAlias = NDArray[np.int64]
    Doubles: TypeAlias = NDArray[np.float64]
    Flags: TypeAlias = NDArray[np.bool_]

#: How it is found which trees stay.
Search = Literal["greedy", "exhaustive", "none"]
#: Which of its attributes a filter lives with.
Routing = Literal["random", "selective"]
#: Attributes up to which all sets of trees are tried.
FEW = 6


@dataclass(frozen=True, slots=True, init=False, eq=False)
class AttributeLines:
    """A line of positions for each attribute, and filters that have an interval on some of them.

    Parameters
    ----------
    density
        How many events there are at each position, or their share: attributes x positions.
    first, last
        The positions that each filter covers, both ends included: filters x attributes; -1 in both where it
        does not bound the attribute.
    weight
        How many filters each stands for; 1 where left out.

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
            raise InputError(f"density has shape {events.shape}; give attributes x positions, at least 1 x 1")
        d, n_positions = events.shape
        low, high = np.array(first), np.array(last)
        for name, ends in (("first", low), ("last", high)):
            whole = np.issubdtype(ends.dtype, np.integer)
            if not whole or ends.ndim != 2 or ends.shape != (len(low), d):
                raise InputError(
                    f"{name} is {ends.dtype} of shape {ends.shape}; give whole numbers, filters x {d}"
                )
        bounded = (low >= 0) | (high >= 0)
        wrong = bounded & ((low < 0) | (low > high) | (high >= n_positions))
        if wrong.any():
            i, a = np.argwhere(wrong)[0].tolist()
            raise InputError(
                f"filter {i} goes from {low[i, a]} to {high[i, a]} on attribute {a}; give positions from "
                f"0 to {n_positions - 1}, the first not above the last, or -1 for both"
            )
        many = np.array(np.broadcast_to(np.asarray(1.0 if weight is None else weight, np.float64), len(low)))
        light = ~(np.isfinite(many) & (many > 0))
        if light.any():
            i = int(np.flatnonzero(light)[0])
            raise InputError(f"filter {i} weighs {many[i]}; give a finite number above 0")
        for row in events:
            LinePositions(row, [], [])  # says what is wrong with a density
        whole_ends = {"first": low.astype(np.int64), "last": high.astype(np.int64)}
        given: dict[str, NDArray[Any]] = {"density": events, **whole_ends, "weight": many}
        for name, value in given.items():
            value.flags.writeable = False
            object.__setattr__(self, name, value)

    @property
    def n_attributes(self) -> int:
        """How many attributes there are."""
        return int(self.density.shape[0])

    @property
    def n_positions(self) -> int:
        """How many positions each has."""
        return int(self.density.shape[1])

    @property
    def n_filters(self) -> int:
        """How many filters there are."""
        return len(self.first)

    def line(self, attribute: int, filters: Ints | Flags) -> LinePositions:
        """Return an attribute with some of the filters; one that does not bound it covers all positions."""
        first, last = self.first[filters, attribute], self.last[filters, attribute]
        free = first < 0
        first, last = np.where(free, 0, first), np.where(free, self.n_positions - 1, last)
        return LinePositions(self.density[attribute], first, last, self.weight[filters])

    def covered(self) -> Doubles:
        """Return the share of events that each filter's interval covers: filters x attributes, 1 if free."""
        found = np.ones(self.first.shape)
        for a, density in enumerate(self.density):
            bounded = self.first[:, a] >= 0
            below = np.append(0.0, np.cumsum(density))
            mass = below[self.last[bounded, a] + 1] - below[self.first[bounded, a]]
            found[bounded, a] = mass / below[-1] if below[-1] else 0.0
        return found


class AttributeTree(NamedTuple):
    """A tree that stays: the filters that live in it, and how their intervals are divided."""

    filters: Ints
    division: Division


class Merging:
    """Decides which attributes keep their tree, by what all of it costs.

    A filter lives in one tree, of an attribute that it bounds; where none of these has a tree any more it is
    an orphan, covers the whole of another attribute, and begins at the root of that tree. An event is looked
    up in every tree, which takes log2 of the positions; a tree less saves that, and the others hold more.

    Parameters
    ----------
    search
        `greedy`: of all trees that which saves most is taken away, as long as one does. `exhaustive`: all
        sets of trees and, for each, all homes of orphans are tried; for up to 6 attributes. `none`: all stay.
    routing
        Which of the attributes with a tree a filter lives with: any, by chance (`random`), or that on which
        fewest events are in its interval (`selective`).
    way
        How intervals are divided: see `Division`.
    charges
        What messages and segments cost, and how many of the latter a machine holds.
    seed
        What random routing comes from.

    Examples
    --------
    >>> hubs = AttributeLines(np.full((3, 4), 0.25), first=[[0, -1, -1], [2, 1, -1]], last=[[1, -1, -1], [3, 1, -1]])
    >>> merging = Merging(charges=LineCharges(message=1.0, segment=0.1)).fit(hubs)
    >>> list(merging.trees_), merging.home_.tolist(), merging.orphans_.tolist()
    ([0], [0, 0], [])
    >>> merging.cost_.terms["lookups"], Merging(search="none").fit(hubs).cost_.terms["lookups"]
    (2.0, 6.0)
    """

    #: By attribute the trees that stay.
    trees_: dict[int, AttributeTree]
    #: The attribute in whose tree each filter lives.
    home_: Ints
    #: Filters that live in the tree of an attribute that they do not bound.
    orphans_: Ints
    cost_: Cost
    #: How many sets of trees were priced.
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
        """Decide which trees stay, and divide the intervals in them.

        Parameters
        ----------
        hubs
            Events and filters.
        alive
            The attributes that have a tree to begin with, for `greedy` and `none`; all unless given.
        most
            How many trees `greedy` takes away at most: one, to merge step by step. Any number unless given.
        """
        for name, known in (("search", get_args(Search)), ("routing", get_args(Routing))):
            if getattr(self, name) not in known:
                raise ParameterError(f"{name} is {getattr(self, name)!r}; give one of {', '.join(known)}")
        check_seed(self.seed)
        key = self._keys(hubs)
        everything = _alive(alive, hubs.n_attributes)
        if most is not None:
            check_whole("most", most, least=0)
        self.evaluations_ = 0
        if self.search == "exhaustive":
            best = self._exhaustive(hubs, key)
        else:
            best = self._priced(hubs, key, everything, everything[0])
            if self.search == "greedy":
                best = self._greedy(hubs, key, best, len(everything) if most is None else most)
        self.trees_, self.home_, self.cost_ = best.trees, best.home, best.cost
        bounds = hubs.first[np.arange(hubs.n_filters), self.home_] >= 0
        self.orphans_ = np.flatnonzero(~bounds)
        return self

    def _keys(self, hubs: AttributeLines) -> Doubles:
        """Return what a filter chooses by, the least: infinite for what it does not bound."""
        if self.routing == "selective":
            key = hubs.covered()
        else:
            key = np.random.default_rng(self.seed).random(hubs.first.shape)
        return np.where(hubs.first >= 0, key, np.inf)

    def _priced(
        self,
        hubs: AttributeLines,
        key: Doubles,
        alive: tuple[int, ...],
        orphans: int,
        known: _System | None = None,
    ) -> _System:
        """Return what a set of trees costs; trees that hold what they did are not priced again."""
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
        return _System(trees, home, _sum(trees.values(), hubs.n_positions, self.charges))

    def _greedy(self, hubs: AttributeLines, key: Doubles, best: _System, most: int) -> _System:
        """Take trees away as long as that saves something, so many at most."""
        fewest = max(1, len(best.trees) - most)
        while len(best.trees) > fewest:
            found = None
            for gone in best.trees:
                alive = tuple(a for a in best.trees if a != gone)
                priced = self._priced(hubs, key, alive, alive[0], best)
                if found is None or priced.cost.total < found.cost.total:
                    found = priced
            if found is None or found.cost.total >= best.cost.total:
                break
            best = found
        return best

    def _exhaustive(self, hubs: AttributeLines, key: Doubles) -> _System:
        """Try all sets of trees and all homes of orphans."""
        d = hubs.n_attributes
        if d > FEW:
            raise ParameterError(f"there are {d} attributes; all sets are tried for {FEW}, use greedy")
        found: _System | None = None
        for many in range(d, 0, -1):
            for alive in combinations(range(d), many):
                for orphans in alive:
                    priced = self._priced(hubs, key, alive, orphans)
                    if found is None or priced.cost.total < found.cost.total:
                        found = priced
        assert found is not None
        return found


class _System(NamedTuple):
    """Some trees, where filters live, and what it costs."""

    trees: dict[int, AttributeTree]
    home: Ints
    cost: Cost


def _alive(given: Iterable[int] | None, n_attributes: int) -> tuple[int, ...]:
    """Return the attributes that have a tree to begin with, ascending."""
    alive = tuple(range(n_attributes)) if given is None else tuple(sorted(set(given)))
    if not alive or alive[0] < 0 or alive[-1] >= n_attributes:
        raise ParameterError(f"alive is {alive}; give attributes from 0 to {n_attributes - 1}, one at least")
    return alive


def _sum(trees: Iterable[AttributeTree], n_positions: int, charges: LineCharges) -> Cost:
    """Return what trees cost together, with what it takes to look an event up in each."""
    terms: dict[str, Any] = {"lookups": 0.0, "messages": 0.0, "segments": 0.0}
    total = 0.0
    for tree in trees:
        cost = tree.division.cost_
        terms["lookups"] += math.log2(n_positions)
        terms["messages"] += cost.terms["messages"]
        terms["segments"] += cost.terms["segments"]
        total += cost.total
    return Cost(total + charges.message * terms["lookups"], terms)
