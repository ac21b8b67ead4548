"""Trees that are merged and divided step by step, from what machines count (cobas2009, sections IV and V)."""

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
    """How trees stand from some hour on.

    Parameters
    ----------
    hour
        From when on.
    lines
        The trees, with what they hold and how they are divided.
    home
        The attribute in whose tree each filter lives.
    moved
        What it took to come here from the last: segments that were handed on.
    """

    hour: float
    lines: list[Line]
    home: Ints
    moved: Toll

    @property
    def messages(self) -> float:
        """How often an event is sent on, lookups left out, by the law of events."""
        return float(sum(line.held.messages.sum() for line in self.lines))

    @property
    def segments(self) -> float:
        """How many segments machines hold."""
        return float(sum(line.held.segments.sum() for line in self.lines))

    @property
    def imbalance(self) -> float:
        """The most work of a machine over the mean; what a key has above its room goes to who has least."""
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
    """Yield how trees stand, at first and after each round.

    At first there is a tree for each attribute, and no interval is divided. In every round

    - machines count the events of each range, and all counts so far are what is decided by; what an event
      costs is by the law that they follow;
    - one tree is merged, the one that saves most by these counts, if one does;
    - division goes down one level further: the keys of a level hand down what the cheapest division by these
      counts has them hand down, and those below them follow in the next round, once they have it. Levels
      above are decided again.

    Positions and so the shape of trees stay, which are balanced: no tree is ever to be rotated.

    Parameters
    ----------
    hubs
        Filters, and the law of events.
    charges
        What messages and segments cost, and how many of the latter a machine holds.
    hours, every
        For how long, and how long a round takes.
    rate
        Events a minute.
    seed
        What counts, and the trees of filters, are drawn from.

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
    standing = _standing(0.0, hubs, charges, start, np.zeros(len(depth), np.bool_), None)
    yield standing
    for number in range(1, int(hours / every + 1e-9) + 1):
        events = rng.poisson(rate * 60 * every)
        counts += np.stack([rng.multinomial(events, row) for row in law])
        known = counts / max(1.0, counts[0].sum())
        counted = AttributeLines(known, hubs.first, hubs.last, hubs.weight)
        merging = Merging(charges=charges, seed=seed).fit(counted, alive=alive, most=1)
        alive = tuple(merging.trees_)
        standing = _standing(number * every, hubs, charges, merging, depth < number, standing)
        yield standing


def _standing(
    hour: float,
    hubs: AttributeLines,
    charges: LineCharges,
    merging: Merging,
    decided: Flags,
    before: TreeState | None,
) -> TreeState:
    """Return how trees stand when some keys have done what the division says, and the others not yet."""
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
