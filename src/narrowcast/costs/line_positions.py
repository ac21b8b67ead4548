"""Intervals and events along a line of positions, one machine each, and what it takes to bring them together.

The model of cobas2009, section IV: positions are the keys of a balanced tree. An interval is held by the
first position on the way down the tree that it covers, or in pieces by several; an event enters at its own
position and goes on to all those above whose intervals reach it.
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

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]
    Flags: TypeAlias = NDArray[np.bool_]

#: What cobas2009, section VII, says: events a minute, bytes of each, bytes a minute to keep up a segment.
RATE, MESSAGE, UPKEEP = 1e4, 256e3, 12.8


@dataclass(frozen=True, slots=True, kw_only=True)
class LineCharges:
    """What is paid for, and how much a machine holds.

    Parameters
    ----------
    message
        For an event that goes on to another machine; of events per minute, rate x bytes.
    segment
        For an interval, or a piece of one, that a machine holds.
    capacity
        How many segments a machine holds; what a position has above that is spread over more machines, to
        all of which its events go. Infinite unless given.

    Examples
    --------
    >>> LineCharges.of(rate=120, capacity=math.inf)
    Charges(message=30720000.0, segment=12.8, capacity=inf)
    >>> LineCharges(message=1.0, segment=0.1, capacity=2).machines([0, 2, 5]).tolist()
    [1.0, 1.0, 3.0]
    """

    message: float = 1.0
    segment: float = 0.0
    capacity: float = math.inf

    def __post_init__(self) -> None:
        for name in ("message", "segment"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 <= value < math.inf:
                raise ParameterError(f"{name} is {value!r}; give a finite number of at least 0")
        if not _is_number(self.capacity) or not self.capacity > 0:
            raise ParameterError(
                f"capacity is {self.capacity!r}; give a number above 0, infinity for no limit"
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
        """Return charges in bytes a minute, for events a minute and bytes of each."""
        return cls(message=rate * message, segment=upkeep, capacity=capacity)

    def machines(self, segments: ArrayLike) -> Doubles:
        """Return how many machines hold so many segments each: one at least."""
        # The same slack as in the kernel: a weight that was rounded makes no machine.
        many = np.asarray(segments, np.float64) / self.capacity * (1 - 1e-12)
        return np.asarray(np.maximum(1.0, np.ceil(many)), np.float64)


@dataclass(frozen=True, slots=True, init=False, eq=False)
class LinePositions:
    """Events and intervals along a line of positions.

    Parameters
    ----------
    density
        Content density: how many events there are at each position, or their share.
    first, last
        The positions that each interval covers, both ends included.
    weight
        How many intervals each stands for; 1 where left out.

    Raises
    ------
    InputError
        Where an interval is empty or beyond the line, or a number is of no use.

    Examples
    --------
    >>> line = LinePositions([0.5, 0.25, 0.25], [0, 1], [2, 1])
    >>> line.popularity().tolist()
    [1.0, 2.0, 1.0]
    >>> LinePositions([1.0, 1.0], [1], [0])
    Traceback (most recent call last):
    narrowcast.errors.InputError: interval 0 goes from 1 to 0 and is empty; leave it out, or exchange its ends
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
            raise InputError(f"density has shape {events.shape}; give a number for each position")
        bad = ~(np.isfinite(events) & (events >= 0))
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise InputError(f"density is {events[at]} at position {at}; give finite numbers of at least 0")
        low, high = _whole("first", first), _whole("last", last)
        if len(low) != len(high):
            raise InputError(f"there are {len(low)} first and {len(high)} last positions; give as many")
        many = np.array(np.broadcast_to(np.asarray(1.0 if weight is None else weight, np.float64), len(low)))
        _refuse(low > high, "goes from {} to {} and is empty; leave it out, or exchange its ends", low, high)
        beyond = "goes from {} to {}; give positions from 0 to " + str(len(events) - 1)
        _refuse((low < 0) | (high >= len(events)), beyond, low, high)
        _refuse(~(np.isfinite(many) & (many > 0)), "weighs {}; give a finite number above 0", many)
        for name, value in {"density": events, "first": low, "last": high, "weight": many}.items():
            value.flags.writeable = False
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.density)

    def popularity(self) -> Doubles:
        """Return how many intervals cover each position."""
        steps = np.bincount(self.first, self.weight, len(self) + 1)
        steps -= np.bincount(self.last + 1, self.weight, len(self) + 1)
        return np.asarray(np.cumsum(steps)[:-1], np.float64)

    def below(self) -> Doubles:
        """Return how many events there are below each position, and behind the last, in all."""
        return np.append(0.0, np.cumsum(self.density))


@dataclass(frozen=True, slots=True, eq=False)
class PositionLoads:
    """What each position holds, and what comes to it.

    Parameters
    ----------
    segments
        Intervals and pieces that it holds, by weight.
    first, last
        The positions that these cover together, its bounding interval; itself where it holds none.
    machines
        How many machines these are spread over.
    messages
        Events that come to these from other positions, or go on from the first of them to the others.
    """

    segments: Doubles
    first: Ints
    last: Ints
    machines: Doubles
    messages: Doubles

    def cost(self, charges: LineCharges) -> Cost:
        """Return what all positions cost; the terms are `messages` and `segments`, as they are counted.

        Looking up where an event enters is not part of it.
        """
        messages, segments = float(self.messages.sum()), float(self.segments.sum())
        total = charges.message * messages + charges.segment * segments
        return Cost(total, {"messages": messages, "segments": segments})


@lru_cache(maxsize=4)
def tree_of(n: int) -> kernels.PositionTree:
    """Return the balanced tree of so many positions; it is not to be written to."""
    return kernels.tree_of(n)


def hold(
    positions: LinePositions,
    charges: LineCharges,
    push: ArrayLike | None = None,
    *,
    sums: kernels.NodeSums | None = None,
) -> PositionLoads:
    """Return what each position holds when intervals are cut where pushes say.

    Parameters
    ----------
    positions, charges
        Intervals, events and what they cost.
    push
        For each position whether it hands what is to the left of it down to the left, and the same for the
        right; no position does where left out.
    sums
        What `sums_of` says of these intervals, where that is known already.

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
        raise InputError(f"push has shape {pushed.shape}; give ({n}, 2): left and right for each position")
    tree = tree_of(n)
    if sums is None:
        sums = kernels.sums_of(tree, positions.first, positions.last, positions.weight)
    segments, first, last = kernels.held(tree, sums, pushed)
    return _held(positions, charges, segments, first, last)


def _held(
    positions: LinePositions, charges: LineCharges, segments: Doubles, first: Ints, last: Ints
) -> PositionLoads:
    """Return what comes to positions that hold so many segments."""
    below, machines = positions.below(), charges.machines(segments)
    others = (below[:-1] - below[first]) + (below[last + 1] - below[1:])
    messages = np.where(segments > 0, machines * others + (machines - 1) * positions.density, 0.0)
    return PositionLoads(segments, first, last, machines, messages)


def _is_number(value: Any) -> bool:
    """Return whether a value is a number."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and value == value


def _whole(name: str, given: Any) -> Ints:
    """Return positions as whole numbers."""
    found = np.asarray(given)
    if found.ndim != 1 or (len(found) and not np.issubdtype(found.dtype, np.integer)):
        raise InputError(
            f"{name} is {found.dtype} of shape {found.shape}; give a whole number for each interval"
        )
    return np.array(found, np.int64)


def _refuse(bad: Flags, said: str, *values: NDArray[Any]) -> None:
    """Say what is wrong with the first bad interval."""
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise InputError(f"interval {at} {said.format(*(value[at] for value in values))}")


def shares_of(kappa: float | str, *, above: float = 0.0) -> float:
    """Return how many times its even share a machine may have; 0, inf and "inf" stand for no limit.

    Parameters
    ----------
    kappa
        The number.
    above
        What it has to be above, if it is a limit.

    Examples
    --------
    >>> shares_of(2), shares_of(0), shares_of("inf")
    (2.0, inf, inf)
    >>> shares_of(-1)
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: kappa is -1; give a number above 0, or 0 or inf for no limit
    """
    number = isinstance(kappa, int | float | np.number) and not isinstance(kappa, bool)
    if kappa == "inf" or (number and kappa == 0):
        return math.inf
    if not number or not float(kappa) > above:
        raise ParameterError(f"kappa is {kappa!r}; give a number above {above:g}, or 0 or inf for no limit")
    return float(kappa)
