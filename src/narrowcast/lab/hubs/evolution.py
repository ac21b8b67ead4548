"""Trees that are merged and divided step by step, from machines' counts (cobas2009, sections IV and V)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from narrowcast.costs.line_positions import RATE, LineCharges, hold, tree_of
from narrowcast.lab.hubs.paths import Line
from narrowcast.lab.hubs.toll import Toll
from narrowcast.lab.hubs.work import imbalance
from narrowcast.planning.ranges.merging import AttributeLines, Merging
from narrowcast.validation import check_number, check_seed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]
    Flags: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class TreeState:
    """The state of the trees from an hour on.

    Parameters
    ----------
    hour
        Hours since the start.
    lines
        The trees, with their segments and divisions.
    home
        The attribute whose tree contains each filter.
    moved
        Cost of the change from the previous state: segments that were handed on.
    """

    hour: float
    lines: list[Line]
    home: Ints
    moved: Toll

    @property
    def messages(self) -> float:
        """Mean number of messages per event without lookups, by the law of events."""
        return float(sum(line.held.messages.sum() for line in self.lines))

    @property
    def segments(self) -> float:
        """Number of segments on all machines."""
        return float(sum(line.held.segments.sum() for line in self.lines))

    @property
    def imbalance(self) -> float:
        """Largest work of a machine over the mean; work beyond its capacity goes to the least loaded."""
        own, spread = np.zeros(len(self.lines[0].density)), [np.empty(0)]
        for line in self.lines:
            held = line.held
            below = np.append(0.0, np.cumsum(line.density))
            part = (below[held.last + 1] - below[held.first]) * held.segments / held.machines
            own += part
            spread.append(np.repeat(part, (held.machines - 1).astype(np.int64)))
        return imbalance(own, np.concatenate(spread))


def evolve(
    hubs: AttributeLines,
    charges: LineCharges,
    *,
    hours: float = 24.0,
    every: float = 0.5,
    rate: float = RATE,
    seed: int = 0,
) -> Iterator[TreeState]:
    """Yield the state of the trees, initially and after each round.

    Initially there is a tree for each attribute, and no interval is divided. In every round

    - machines count the events of each range, and decisions use all counts so far; reported costs of
      events use the law that events follow;
    - at most one tree is merged into others, the one that saves most by these counts;
    - division advances by one level: the keys of a level hand down the pieces of intervals that the cheapest
      division by these counts assigns to their children, which do the same in the next round, once they have
      them. Levels above are decided again.

    Positions and thus the shape of trees stay the same and balanced: no tree is ever rotated.

    Parameters
    ----------
    hubs
        Filters, and the law of events.
    charges
        Costs of messages and segments, and the capacity of a machine in segments.
    hours, every
        Duration, and length of a round, in hours.
    rate
        Events per minute.
    seed
        Seed of the counts, and of the trees of filters.

    Examples
    --------
    >>> hubs = AttributeLines([[0.25] * 4] * 2, first=[[0, -1], [1, 1]], last=[[3, -1], [1, 2]])
    >>> charges = LineCharges(message=1.0, segment=0.01)
    >>> [(each.hour, len(each.lines), each.messages) for each in evolve(hubs, charges, hours=1)]
    [(0.0, 2, 1.0), (0.5, 1, 0.25), (1.0, 1, 0.0)]
    """
    check_seed(seed)
    check_number("hours", hours, least=0, limit="a finite number of at least 0")
    check_number("every", every, least=1e-9, limit="a finite number above 0, in hours")
    check_number("rate", rate, least=0, limit="a finite number of at least 0")
    rng = np.random.default_rng([seed, 5])
    tree = tree_of(hubs.n_positions)
    depth = tree.n_left + tree.n_right
    alive: tuple[int, ...] = tuple(range(hubs.n_attributes))
    counts = np.zeros(hubs.density.shape)
    law = hubs.density / hubs.density.sum(axis=1, keepdims=True)
    start = Merging(search="none", way="none", charges=charges, seed=seed).fit(hubs)
    standing = _tree_state(0.0, hubs, charges, start, np.zeros(len(depth), np.bool_), None)
    yield standing
    for number in range(1, int(hours / every + 1e-9) + 1):
        events = rng.poisson(rate * 60 * every)
        counts += np.stack([rng.multinomial(events, row) for row in law])
        known = counts / max(1.0, counts[0].sum())
        counted = AttributeLines(known, hubs.first, hubs.last, hubs.weight)
        merging = Merging(charges=charges, seed=seed).fit(counted, alive=alive, most=1)
        alive = tuple(merging.trees_)
        standing = _tree_state(number * every, hubs, charges, merging, depth < number, standing)
        yield standing


def _tree_state(
    hour: float,
    hubs: AttributeLines,
    charges: LineCharges,
    merging: Merging,
    decided: Flags,
    before: TreeState | None,
) -> TreeState:
    """Return the state of the trees when only the decided keys follow the division."""
    lines = []
    for attribute, tree in merging.trees_.items():
        push = tree.division.push_ & decided[:, None]
        line = hubs.line(attribute, tree.filters)
        lines.append(Line(attribute, line.density, hold(line, charges, push), push))
    moved = 0.0
    if before is not None:
        held = {line.attribute: line.held.segments for line in before.lines}
        moved = sum(float(np.maximum(line.held.segments - held[line.attribute], 0.0).sum()) for line in lines)
    return TreeState(hour, lines, merging.home_, Toll.handed(moved, batches=moved))
