"""Division: intervals cut in pieces where events saved are worth more than pieces to keep up (cobas2009)."""

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

#: How it is decided where to cut.
Way = Literal["optimal", "greedy", "all", "none"]
#: Positions up to which any cuts are tried.
FEW = 8


class IntervalPieces(NamedTuple):
    """Intervals in pieces that do not overlap: of which interval, held where, from and to which position."""

    interval: Ints
    position: Ints
    first: Ints
    last: Ints


class _Standing(NamedTuple):
    """What was found for a load, to go on from: the least cost below each position in each state."""

    how: tuple[float, float, float, bool]
    density: Doubles
    sums: kernels.NodeSums
    allowed: Flags
    value: Doubles
    push: Flags


class Division:
    """Decides for each position whether it hands what is to its left, or right, down the tree.

    A position that does keeps its own part of every interval, so that pieces are half open and nothing is
    delivered twice. What a position receives depends on those above it that hand down to it without a gap,
    and an interval comes to it when all that it covers do: the least cost follows from the bottom up, for
    each position and each number of these above it on the left and on the right (an exact dynamic programme,
    in about n log² n steps, and as much memory).

    Parameters
    ----------
    way
        `optimal`: the cheapest of all such divisions. `greedy`: from the top down, each position as if none
        below it did. `all` and `none`: without a choice.
    charges
        What messages and segments cost, and how many of the latter a machine holds.

    Examples
    --------
    >>> line = LinePositions([0.5, 0.2, 0.3], [0, 0], [2, 1])
    >>> division = Division(charges=LineCharges(message=1.0, segment=0.1)).fit(line)
    >>> division.push_.astype(int).tolist(), round(division.cost_.total, 9)
    ([[0, 0], [1, 1], [0, 0]], 0.5)
    >>> Division(way="none", charges=division.charges).fit(line).cost_.total
    1.0
    """

    #: For each position whether it hands down to the left and to the right.
    push_: Flags
    #: What each position holds.
    held_: PositionLoads
    cost_: Cost
    #: The hand-downs that the last `undo` took back: position and side, 0 for left and 1 for right.
    undone_: Ints
    #: How many positions the last call looked at; the rest was known.
    evaluated_: int

    def __init__(self, *, way: Way = "optimal", charges: LineCharges | None = None) -> None:
        self.way = way
        self.charges = LineCharges() if charges is None else charges
        self._standing: dict[str, _Standing] = {}

    def fit(self, positions: LinePositions) -> Self:
        """Divide intervals; after an earlier call, only what has changed is looked at again."""
        if self.way not in get_args(Way):
            raise ParameterError(f"way is {self.way!r}; give one of {', '.join(get_args(Way))}")
        _require(positions)
        self.undone_ = np.empty((0, 2), np.int64)
        n = len(positions)
        if self.way in ("all", "none"):
            self.evaluated_ = n
            self._keep(positions, np.full((n, 2), self.way == "all"), None)
            return self
        allowed = np.ones((n, 2), np.bool_)
        self._solve("fit", positions, allowed, local=self.way == "greedy")
        return self

    def undo(self, positions: LinePositions) -> Self:
        """Take back those hand-downs that no longer pay for another load, and make no new ones.

        Of all ways to take some back this is the cheapest. Below positions where neither events nor intervals
        have changed since the last time, nothing is looked at again.

        Parameters
        ----------
        positions
            The load, over as many positions as before.
        """
        before = self._divided()
        _require(positions)
        if len(positions) != len(before):
            raise ParameterError(
                f"there are {len(positions)} positions and were {len(before)}; give as many, or use fit"
            )
        self._solve("undo", positions, before, local=False)
        self.undone_ = np.argwhere(before & ~self.push_)
        return self

    def pieces(self, first: ArrayLike, last: ArrayLike) -> IntervalPieces:
        """Return intervals as they are cut.

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
        """Let go of what a later call would go on from, which is most of the memory; it begins anew then."""
        self._standing.clear()
        return self

    def _divided(self) -> Flags:
        """Return the division of the last call, or say that there is none."""
        try:
            return self.push_
        except AttributeError:
            raise ParameterError("nothing is divided yet; call fit first") from None

    def _solve(self, what: str, positions: LinePositions, allowed: Flags, *, local: bool) -> None:
        """Find the cheapest division with some hand-downs, going on from what was found last."""
        n = len(positions)
        tree = tree_of(n)
        sums = kernels.sums_of(tree, positions.first, positions.last, positions.weight)
        prices = self.charges.message, self.charges.segment, float(self.charges.capacity)
        known = self._standing.get(what)
        if known is None or len(known.density) != n or known.how != (*prices, local):
            stale = np.ones(n, np.bool_)
            value, push = np.zeros(tree.at[-1]), np.zeros((tree.at[-1], 2), np.bool_)
        else:
            value, push = known.value, known.push
            stale = _stale(tree, known, positions.density, sums, allowed)
        kernels.solve(tree, sums, positions.below(), prices, allowed, local, stale, value, push)
        self._standing[what] = _Standing((*prices, local), positions.density, sums, allowed, value, push)
        self.evaluated_ = int(stale.sum())
        self._keep(positions, kernels.followed(tree, push), sums)

    def _keep(self, positions: LinePositions, push: Flags, sums: kernels.NodeSums | None) -> None:
        """Set what a call is to leave."""
        self.push_ = push
        self.held_ = hold(positions, self.charges, push, sums=sums)
        self.cost_ = self.held_.cost(self.charges)


def _require(positions: object) -> None:
    """Refuse what is no line of positions."""
    if not isinstance(positions, LinePositions):
        raise ParameterError(f"positions are a {type(positions).__name__}; give Positions")


def _stale(
    tree: kernels.PositionTree, known: _Standing, density: Doubles, sums: kernels.NodeSums, allowed: Flags
) -> Flags:
    """Return the positions below which, themselves included, something has changed."""
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
    """Return the least cost there is when positions may cut anywhere, and where they do, by trying all.

    Each position keeps the part of its intervals from one position to another, itself among them, and hands
    down the rest; `Division` has it keep all of a side, or nothing but itself. For a few positions only.

    Examples
    --------
    >>> best_cuts(LinePositions([0.5, 0.2, 0.3], [0, 0], [2, 1]), LineCharges(message=1.0, segment=0.1))[1].tolist()
    [[0, 0], [1, 1], [2, 2]]
    """
    n = len(positions)
    if n > FEW:
        raise ParameterError(f"there are {n} positions; any cuts are tried for {FEW} at most, use Division")
    tree = tree_of(n)
    choices: list[list[tuple[int, int]]] = [
        list(product(range(int(tree.lo[x]), x + 1), range(x, int(tree.hi[x]) + 1))) for x in range(n)
    ]
    items = list(
        zip(*(column.tolist() for column in (positions.first, positions.last, positions.weight)), strict=True)
    )
    best: tuple[float, Any] = (np.inf, None)
    for cuts in product(*choices):
        cost = _clipped(positions, charges, items, cuts)
        best = min(best, (cost, cuts), key=lambda each: each[0])
    return best[0], np.array(best[1], np.int64)


def _clipped(
    positions: LinePositions, charges: LineCharges, items: list[tuple[int, int, float]], cuts: Any
) -> float:
    """Return what it costs when positions keep what is between their cuts."""
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
