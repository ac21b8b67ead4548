"""Intervals and events on a line of positions, one machine each, and the cost of matching them.

The model of cobas2009, section IV: positions are the keys of a balanced search tree. An interval is stored at
the first position on the way down the tree that it covers, or in pieces at several. An event enters at its
own position and goes on to all positions above it whose intervals reach it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from narrowcast.errors import InputError, ParameterError
from narrowcast.kernels import division as kernels
from narrowcast.model.cost import Cost
from narrowcast.validation import check_number, is_number

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]
    Flags: TypeAlias = NDArray[np.bool_]

#: Of cobas2009, section VII: events per minute, bytes per event, bytes per minute to maintain a segment.
RATE, MESSAGE, UPKEEP = 1e4, 256e3, 12.8


@dataclass(frozen=True, slots=True, kw_only=True)
class LineCharges:
    """Prices of messages and segments, and the capacity of a machine.

    Parameters
    ----------
    message
        Price of an event sent on to another machine; with events per minute: rate x bytes.
    segment
        Price of an interval, or a piece of one, that a machine stores.
    capacity
        Segments that one machine stores; a position with more is spread over several machines, and its
        events go to all of them (default: infinite).

    Examples
    --------
    >>> LineCharges.of(rate=120, capacity=math.inf)
    LineCharges(message=30720000.0, segment=12.8, capacity=inf)
    >>> LineCharges(message=1.0, segment=0.1, capacity=2).machines([0, 2, 5]).tolist()
    [1.0, 1.0, 3.0]
    """

    message: float = 1.0
    segment: float = 0.0
    capacity: float = math.inf

    def __post_init__(self) -> None:
        for name in ("message", "segment"):
            check_number(name, getattr(self, name), least=0, limit="a finite number of at least 0")
        if not is_number(self.capacity) or not self.capacity > 0:
            raise ParameterError(
                parameter="capacity", value=self.capacity, limit="a number above 0; infinity means no limit"
            )

    @classmethod
    def of(
        cls,
        *,
        rate: float = RATE,
        message: float = MESSAGE,
        upkeep: float = UPKEEP,
        capacity: float = math.inf,
    ) -> LineCharges:
        """Return charges in bytes per minute, from events per minute and bytes per event."""
        return cls(message=rate * message, segment=upkeep, capacity=capacity)

    def machines(self, segments: ArrayLike) -> Doubles:
        """Return for each number of segments the machines that store them: at least one."""
        # The slack is that of the kernel: rounding of a weight must not add a machine.
        many = np.asarray(segments, np.float64) / self.capacity * (1 - 1e-12)
        return np.asarray(np.maximum(1.0, np.ceil(many)), np.float64)


@dataclass(frozen=True, slots=True, init=False, eq=False)
class LinePositions:
    """Event densities and intervals on a line of positions.

    Parameters
    ----------
    density
        Content density: events at each position, or their share.
    first, last
        The positions that each interval covers, both ends inclusive.
    weight
        Number of identical intervals that each row counts for (default: 1).

    Raises
    ------
    InputError
        Where an interval is empty or leaves the line, or a number is not usable.

    Examples
    --------
    >>> line = LinePositions([0.5, 0.25, 0.25], [0, 1], [2, 1])
    >>> line.popularity().tolist()
    [1.0, 2.0, 1.0]
    >>> LinePositions([1.0, 1.0], [1], [0])
    Traceback (most recent call last):
    narrowcast.errors.InputError: interval 0: first=1 is above last=0; leave it out, or swap its ends
    """

    density: Doubles
    first: Ints
    last: Ints
    weight: Doubles

    def __init__(
        self, density: ArrayLike, first: ArrayLike, last: ArrayLike, weight: ArrayLike | None = None
    ) -> None:
        events = np.array(density, np.float64)
        if events.ndim != 1 or not len(events):
            raise InputError(
                f"density: has shape {events.shape}; give one number per position", parameter="density"
            )
        bad = ~(np.isfinite(events) & (events >= 0))
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise InputError(
                f"density={events[at]} at position {at}: must be a finite number of at least 0",
                parameter="density",
                value=float(events[at]),
                limit="a finite number of at least 0",
            )
        low, high = _integers("first", first), _integers("last", last)
        if len(low) != len(high):
            raise InputError(
                f"last: has {len(high)} positions for {len(low)} in first; give one last for each first",
                parameter="last",
            )
        many = np.array(np.broadcast_to(np.asarray(1.0 if weight is None else weight, np.float64), len(low)))
        _refuse(low > high, "first={} is above last={}; leave it out, or swap its ends", low, high)
        beyond = "first={}, last={}: must be from 0 to " + str(len(events) - 1)
        _refuse((low < 0) | (high >= len(events)), beyond, low, high)
        _refuse(~(np.isfinite(many) & (many > 0)), "weight={}: must be a finite number above 0", many)
        for name, value in {"density": events, "first": low, "last": high, "weight": many}.items():
            value.flags.writeable = False
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.density)

    def popularity(self) -> Doubles:
        """Return the number of intervals that cover each position."""
        steps = np.bincount(self.first, self.weight, len(self) + 1)
        steps -= np.bincount(self.last + 1, self.weight, len(self) + 1)
        return np.asarray(np.cumsum(steps)[:-1], np.float64)

    def below(self) -> Doubles:
        """Return the events below each position, followed by the total."""
        return np.append(0.0, np.cumsum(self.density))


@dataclass(frozen=True, slots=True, eq=False)
class PositionLoads:
    """What each position stores, and the messages that reach it.

    Parameters
    ----------
    segments
        Intervals and pieces stored, by weight.
    first, last
        Ends of the smallest interval that covers these; the position itself where it stores none.
    machines
        Machines that these are spread over.
    messages
        Events that arrive from other positions, or are copied from the first machine to the others.
    """

    segments: Doubles
    first: Ints
    last: Ints
    machines: Doubles
    messages: Doubles

    def cost(self, charges: LineCharges) -> Cost:
        """Return the cost of all positions; the terms are `messages` and `segments`, as counts.

        Finding the position where an event enters is not included.
        """
        messages, segments = float(self.messages.sum()), float(self.segments.sum())
        total = charges.message * messages + charges.segment * segments
        return Cost(total, {"messages": messages, "segments": segments})


@lru_cache(maxsize=4)
def tree_of(n: int) -> kernels.PositionTree:
    """Return the balanced tree of n positions; it is shared and must not be modified."""
    return kernels.tree_of(n)


def hold(
    positions: LinePositions,
    charges: LineCharges,
    push: ArrayLike | None = None,
    *,
    sums: kernels.NodeSums | None = None,
) -> PositionLoads:
    """Return the load of each position when intervals are cut as the pushes say.

    Parameters
    ----------
    positions, charges
        Intervals, events and prices.
    push
        Booleans of shape (positions, 2): whether a position hands the part of an interval to its left down
        to its left child, and likewise on the right (default: none does).
    sums
        The result of `sums_of` for these intervals, if already known.

    Examples
    --------
    >>> line = LinePositions([0.5, 0.25, 0.25], [0, 0], [2, 1])
    >>> charges = LineCharges(message=1.0, segment=0.1)
    >>> hold(line, charges).cost(charges).terms
    {'messages': 0.75, 'segments': 2.0}
    >>> hold(line, charges, [[0, 0], [1, 0], [0, 0]]).cost(charges).terms
    {'messages': 0.25, 'segments': 4.0}
    """
    n = len(positions)
    pushed = np.zeros((n, 2), np.bool_) if push is None else np.asarray(push, np.bool_)
    if pushed.shape != (n, 2):
        raise InputError(
            f"push: has shape {pushed.shape}; give shape ({n}, 2), left and right for each position",
            parameter="push",
        )
    tree = tree_of(n)
    if sums is None:
        sums = kernels.sums_of(tree, positions.first, positions.last, positions.weight)
    segments, first, last = kernels.held(tree, sums, pushed)
    return _loads(positions, charges, segments, first, last)


def _loads(
    positions: LinePositions, charges: LineCharges, segments: Doubles, first: Ints, last: Ints
) -> PositionLoads:
    """Return the loads of positions from their segments and the ends of these."""
    below, machines = positions.below(), charges.machines(segments)
    others = (below[:-1] - below[first]) + (below[last + 1] - below[1:])
    messages = np.where(segments > 0, machines * others + (machines - 1) * positions.density, 0.0)
    return PositionLoads(segments, first, last, machines, messages)


def _integers(name: str, given: Any) -> Ints:
    found = np.asarray(given)
    if found.ndim != 1 or (len(found) and not np.issubdtype(found.dtype, np.integer)):
        raise InputError(
            f"{name}: has type {found.dtype} and shape {found.shape}; give one integer for each interval",
            parameter=name,
        )
    return np.array(found, np.int64)


def _refuse(bad: Flags, problem: str, *values: NDArray[Any]) -> None:
    """Raise an error about the first bad interval; `problem` is a format for the values at its position."""
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise InputError(f"interval {at}: {problem.format(*(value[at] for value in values))}")


def capacity_factor(kappa: float | str, *, above: float = 0.0) -> float:
    """Return the limit of a machine's load as a multiple of its even share; 0, inf and "inf" mean no limit.

    Parameters
    ----------
    kappa
        The multiple.
    above
        The multiple must be above this, unless it means no limit.

    Examples
    --------
    >>> capacity_factor(2), capacity_factor(0), capacity_factor("inf")
    (2.0, inf, inf)
    >>> capacity_factor(-1)
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: kappa=-1: must be a number above 0; 0 or inf means no limit
    """
    number = isinstance(kappa, int | float | np.number) and not isinstance(kappa, bool)
    if kappa == "inf" or (number and kappa == 0):
        return math.inf
    if not number or not float(kappa) > above:
        limit = f"a number above {above:g}; 0 or inf means no limit"
        raise ParameterError(parameter="kappa", value=kappa, limit=limit)
    return float(kappa)
