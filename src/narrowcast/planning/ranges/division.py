"""Division of intervals in a tree of positions, where saved events outweigh the upkeep (cobas2009).

The values of an attribute are divided into positions: the nodes of a binary tree, each on a machine. The
interval of a filter is first stored at the topmost position that it covers. A position may hand down what
lies to its left, or to its right: then it divides each interval, keeps the piece with the position itself,
and passes the other pieces to the positions below. That takes more storage, but fewer events reach the top.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias, get_args

import numpy as np

from narrowcast.costs.line_positions import LineCharges, LinePositions, PositionLoads, hold, tree_of
from narrowcast.errors import ParameterError
from narrowcast.kernels import division as kernels

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from narrowcast.model.cost import Cost

    Ints: TypeAlias = NDArray[np.int64]
    Doubles: TypeAlias = NDArray[np.float64]
    Flags: TypeAlias = NDArray[np.bool_]

#: How to decide where to cut.
Way = Literal["optimal", "greedy", "all", "none"]
#: The most positions for which all possible cuts are tried.
FEW = 8


class IntervalPieces(NamedTuple):
    """Disjoint pieces of intervals: the interval's index, the storing position, first and last position."""

    interval: Ints
    position: Ints
    first: Ints
    last: Ints


class _Solution(NamedTuple):
    """The last solution of the dynamic program, so that the next `fit` computes only what has changed."""

    how: tuple[float, float, float, bool]
    density: Doubles
    sums: kernels.NodeSums
    allowed: Flags
    value: Doubles
    push: Flags


class Division:
    """Decides for each position whether it hands down the pieces of intervals to its left, and to its right.

    A position that hands down keeps only the position itself of each interval, so that pieces do not overlap
    and nothing is delivered twice. The events that a position receives depend on the chain of ancestors that
    hand down to it, and an interval reaches it when all positions that cover it do. The least cost follows
    from the bottom up, for each position and each number of such ancestors on the left and on the right: an
    exact dynamic program in about n log² n steps and as much memory.

    Parameters
    ----------
    way
        `optimal`: the cheapest division. `greedy`: from the top down, each position as if none below it
        handed down. `all` and `none`: every position, and no position, hands down.
    charges
        Prices of messages and segments, and the capacity of a machine.

    Examples
    --------
    >>> line = LinePositions([0.5, 0.2, 0.3], [0, 0], [2, 1])
    >>> division = Division(charges=LineCharges(message=1.0, segment=0.1)).fit(line)
    >>> division.push_.astype(int).tolist(), round(division.cost_.total, 9)
    ([[0, 0], [1, 1], [0, 0]], 0.5)
    >>> Division(way="none", charges=division.charges).fit(line).cost_.total
    1.0
    """

    #: Flags of shape (positions, 2): whether each position hands down to the left, and to the right.
    push_: Flags
    #: The load of each position.
    held_: PositionLoads
    cost_: Cost
    #: The hand-downs that the last `undo` took back, as rows of position and side (0 left, 1 right).
    undone_: Ints
    #: Positions that the last call computed; the others were known.
    evaluated_: int

    def __init__(self, *, way: Way = "optimal", charges: LineCharges | None = None) -> None:
        self.way = way
        self.charges = LineCharges() if charges is None else charges
        self._solutions: dict[str, _Solution] = {}

    def fit(self, positions: LinePositions) -> Self:
        """Decide which positions hand down intervals; after an earlier call, update only what has changed."""
        if self.way not in get_args(Way):
            raise ParameterError(parameter="way", value=self.way, limit=f"one of {', '.join(get_args(Way))}")
        _require_positions(positions)
        self.undone_ = np.empty((0, 2), np.int64)
        n = len(positions)
        if self.way in ("all", "none"):
            self.evaluated_ = n
            self._set_results(positions, np.full((n, 2), self.way == "all"), None)
            return self
        allowed = np.ones((n, 2), np.bool_)
        self._solve("fit", positions, allowed, local=self.way == "greedy")
        return self

    def undo(self, positions: LinePositions) -> Self:
        """For a new load, stop handing down where that no longer lowers the cost; start nowhere.

        The result is the cheapest that can be reached by taking some back. Positions below which neither
        events nor intervals have changed since the last call are not computed again.

        Parameters
        ----------
        positions
            The new load, over the same number of positions.
        """
        before = self._divided()
        _require_positions(positions)
        if len(positions) != len(before):
            raise ParameterError(
                f"positions: has {len(positions)} positions, but {len(before)} are divided; "
                "give the same number, or use fit",
                parameter="positions",
                value=len(positions),
                limit=f"{len(before)} positions",
            )
        self._solve("undo", positions, before, local=False)
        self.undone_ = np.argwhere(before & ~self.push_)
        return self

    def pieces(self, first: ArrayLike, last: ArrayLike) -> IntervalPieces:
        """Divide intervals, given by their first and last positions, into the pieces that positions store.

        Examples
        --------
        >>> division = Division(way="all").fit(LinePositions([1.0] * 5, [0], [3]))
        >>> [column.tolist() for column in division.pieces([0], [3])]
        [[0, 0, 0, 0], [2, 0, 1, 3], [2, 0, 1, 3], [2, 0, 1, 3]]
        """
        push = self._divided()
        line = LinePositions(np.ones(len(push)), np.asarray(first), np.asarray(last))
        return IntervalPieces(*kernels.pieces_of(tree_of(len(push)), push, line.first, line.last))

    def forget(self) -> Self:
        """Release the state that a later call would continue from, most of the memory; return self."""
        self._solutions.clear()
        return self

    def _divided(self) -> Flags:
        """Return the flags `push_` of the last division; refuse if none was made."""
        try:
            return self.push_
        except AttributeError:
            raise ParameterError("not divided yet: call fit first") from None

    def _solve(self, what: str, positions: LinePositions, allowed: Flags, *, local: bool) -> None:
        """Find the cheapest division where only `allowed` positions hand down, from the last solution on."""
        n = len(positions)
        tree = tree_of(n)
        sums = kernels.sums_of(tree, positions.first, positions.last, positions.weight)
        prices = self.charges.message, self.charges.segment, float(self.charges.capacity)
        known = self._solutions.get(what)
        if known is None or len(known.density) != n or known.how != (*prices, local):
            stale = np.ones(n, np.bool_)
            value, push = np.zeros(tree.at[-1]), np.zeros((tree.at[-1], 2), np.bool_)
        else:
            value, push = known.value, known.push
            stale = _stale(tree, known, positions.density, sums, allowed)
        kernels.solve(tree, sums, positions.below(), prices, allowed, local, stale, value, push)
        self._solutions[what] = _Solution((*prices, local), positions.density, sums, allowed, value, push)
        self.evaluated_ = int(stale.sum())
        self._set_results(positions, kernels.followed(tree, push), sums)

    def _set_results(self, positions: LinePositions, push: Flags, sums: kernels.NodeSums | None) -> None:
        self.push_ = push
        self.held_ = hold(positions, self.charges, push, sums=sums)
        self.cost_ = self.held_.cost(self.charges)


def _require_positions(positions: object) -> None:
    """Refuse an object that is not a `LinePositions`."""
    if not isinstance(positions, LinePositions):
        kind = type(positions).__name__
        raise ParameterError(
            f"positions: has type {kind}; use LinePositions",
            parameter="positions",
            value=kind,
            limit="LinePositions",
        )


def _stale(
    tree: kernels.PositionTree, known: _Solution, density: Doubles, sums: kernels.NodeSums, allowed: Flags
) -> Flags:
    """Return flags of the positions at or below which events, intervals or permissions have changed."""
    changed = (known.density != density) | (known.allowed != allowed).any(axis=1)
    for ends, now, then in (
        (tree.at, sums.segments, known.sums.segments),
        (tree.right_at, sums.first, known.sums.first),
        (tree.left_at, sums.last, known.sums.last),
    ):
        differ = np.append(0, np.cumsum(now != then))
        changed |= differ[ends[1:]] > differ[ends[:-1]]
    many = np.append(0, np.cumsum(changed))
    return np.asarray(many[tree.hi + 1] > many[tree.lo], np.bool_)


def best_cuts(positions: LinePositions, charges: LineCharges) -> tuple[float, Ints]:
    """Find the cheapest division by exhaustive search; return its cost, and the cuts at each position.

    Here each position keeps the part of its intervals between any two cuts around it, and hands down the
    rest; in `Division` it keeps either all of a side or nothing. For a few positions only.

    Examples
    --------
    >>> line = LinePositions([0.5, 0.2, 0.3], [0, 0], [2, 1])
    >>> best_cuts(line, LineCharges(message=1.0, segment=0.1))[1].tolist()
    [[0, 0], [1, 1], [2, 2]]
    """
    n = len(positions)
    if n > FEW:
        raise ParameterError(
            f"positions: has {n} positions; must be at most {FEW}, or use Division",
            parameter="positions",
            value=n,
            limit=f"at most {FEW}",
        )
    tree = tree_of(n)
    choices: list[list[tuple[int, int]]] = [
        list(product(range(int(tree.lo[x]), x + 1), range(x, int(tree.hi[x]) + 1))) for x in range(n)
    ]
    items = list(
        zip(*(column.tolist() for column in (positions.first, positions.last, positions.weight)), strict=True)
    )
    best: tuple[float, Any] = (np.inf, None)
    for cuts in product(*choices):
        cost = _cost_of_cuts(positions, charges, items, cuts)
        best = min(best, (cost, cuts), key=lambda each: each[0])
    return best[0], np.array(best[1], np.int64)


def _cost_of_cuts(
    positions: LinePositions, charges: LineCharges, items: list[tuple[int, int, float]], cuts: Any
) -> float:
    """Return the cost when each position stores the part of its intervals between its two cuts."""
    held: dict[int, list[tuple[int, int, float]]] = {}
    waiting = [(s, t, w, 0, len(positions) - 1) for s, t, w in items]
    while waiting:
        s, t, w, a, b = waiting.pop()
        x = (a + b) // 2
        if t < x:
            waiting.append((s, t, w, a, x - 1))
        elif s > x:
            waiting.append((s, t, w, x + 1, b))
        else:
            begin, end = cuts[x]
            held.setdefault(x, []).append((max(s, begin), min(t, end), w))
            if s < begin:
                waiting.append((s, begin - 1, w, a, x - 1))
            if t > end:
                waiting.append((end + 1, t, w, x + 1, b))
    total = 0.0
    for x, parts in held.items():
        count = sum(w for _, _, w in parts)
        machines = float(charges.machines(count))
        hull = positions.density[min(s for s, _, _ in parts) : max(t for _, t, _ in parts) + 1].sum()
        here = positions.density[x]
        messages = machines * (hull - here) + (machines - 1) * here
        total += charges.message * float(messages) + charges.segment * count
    return total
