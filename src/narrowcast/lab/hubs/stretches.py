"""The stretch of every tree on each machine: contiguous ranges, split, handed on and taken over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.validation import check_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from narrowcast.lab.hubs.overlay import MachineRings
    from narrowcast.lab.hubs.paths import Line

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """Machines in the order of their ranges, for every tree; every machine is in all trees (section II-C).

    The segments of a tree are laid out along a line, key after key, and the segments of a key in the order of
    its list. A machine has a stretch of that line. So a stretch may end within the list of a key: then the
    key is spread over several adjacent machines, and its events go to all of them. Position x.25 is behind a
    quarter of the segments of key x.

    Parameters
    ----------
    lines
        The trees.
    cuts
        For each tree the beginnings of stretches, and the end of the last: ascending, from 0 to the number of
        keys.
    node
        For each tree the machine of each stretch.

    Examples
    --------
    >>> from narrowcast.costs.line_positions import LineCharges, LinePositions, hold
    >>> from narrowcast.lab.hubs.paths import Line
    >>> held = hold(LinePositions([0.25] * 4, [0, 3, 3], [1, 3, 3]), LineCharges())
    >>> line = Line(0, np.full(4, 0.25), held, np.zeros((4, 2), bool))
    >>> two = Stretches([line], [np.array([0.0, 2.0, 4.0])], [np.array([0, 1])])
    >>> two.storage(0).tolist(), two.halved(0, [1]).tolist()
    ([1.0, 2.0], [3.5])
    >>> moved = two.moved(0, helper=0, place=1, cut=3.5)
    >>> moved.cuts[0].tolist(), moved.node[0].tolist(), moved.storage(0).tolist()
    ([0.0, 3.5, 4.0], [1, 0], [2.0, 1.0])
    """

    lines: Sequence[Line]
    cuts: list[Doubles]
    node: list[Ints]

    @classmethod
    def even(cls, lines: Sequence[Line], overlay: MachineRings, *, nodes: int) -> Self:
        """Return machines with ranges of values of equal width, as before any balancing.

        A key is the value at which its range ends; it is never split.
        """
        check_whole("nodes", nodes)
        ends = np.arange(nodes + 1) / nodes
        cuts = []
        for line in lines:
            keys = np.append(overlay.bounds[line.attribute], 1.0)
            found = np.searchsorted(keys, ends, side="right").astype(np.float64)
            found[0], found[-1] = 0.0, len(keys)
            cuts.append(found)
        return cls(lines, cuts, [np.arange(nodes) for _ in lines])

    @property
    def n_nodes(self) -> int:
        """The number of machines."""
        return len(self.node[0])

    def below(self, hub: int) -> Doubles:
        """Return the number of segments below each key of a tree, and, last, the total."""
        return np.append(0.0, np.cumsum(self.lines[hub].held.segments))

    def storage(self, hub: int) -> Doubles:
        """Return the number of segments in each stretch of a tree."""
        below = self.below(hub)
        found = np.diff(np.interp(self.cuts[hub], np.arange(len(below)), below))
        return np.asarray(np.maximum(found, 0.0), np.float64)

    def keys(self, hub: int) -> Doubles:
        """Return the number of keys that begin in each stretch of a tree."""
        return np.diff(np.ceil(self.cuts[hub]))

    def halved(self, hub: int, places: ArrayLike) -> Doubles:
        """Return the positions that halve the segments of stretches; half of the length if there are none."""
        at = np.asarray(places, np.int64)
        low, high = self.cuts[hub][at], self.cuts[hub][at + 1]
        below = self.below(hub)
        number = np.arange(len(below))
        begin, end = np.interp(low, number, below), np.interp(high, number, below)
        half = (begin + end) / 2
        key = np.clip(np.searchsorted(below, half, side="right") - 1, 0, len(below) - 2)
        segments = below[key + 1] - below[key]
        part = np.divide(half - below[key], segments, out=np.zeros_like(half), where=segments > 0)
        found = np.where(end > begin, np.clip(key + part, low, high), (low + high) / 2)
        return np.asarray(found, np.float64)

    def moved(self, hub: int, *, helper: int, place: int, cut: float) -> Self:
        """Return the stretches after a machine has left its own to a neighbour and taken part of another.

        Parameters
        ----------
        hub
            The tree.
        helper
            The place of the machine that moves; its stretch goes to the machine before, or after it for the
            first.
        place, cut
            The stretch that it takes a part of, and the position from which on.
        """
        if helper == place:
            raise ParameterError(
                f"helper={helper}: must be another stretch than the one helped",
                parameter="helper",
                value=helper,
            )
        cuts, node = self.cuts[hub], self.node[hub]
        low, high = cuts[place : place + 2].tolist()
        if not low <= cut <= high:
            raise ParameterError(parameter="cut", value=cut, limit=f"a position from {low:g} to {high:g}")
        begins = np.insert(cuts[:-1], place + 1, cut)
        machines = np.insert(node, place + 1, node[helper])
        old_place = helper if helper <= place else helper + 1
        begins, machines = np.delete(begins, old_place), np.delete(machines, old_place)
        begins[0] = 0.0
        return self._with(hub, np.append(begins, cuts[-1]), machines)

    def without(self, nodes: Ints) -> Self:
        """Return the stretches after machines have left; theirs go to the machines before them."""
        if len(nodes) >= self.n_nodes:
            raise ParameterError(
                f"nodes: all {self.n_nodes} machines leave; at least one must stay",
                parameter="nodes",
                value=self.n_nodes,
            )
        # Remaining machines are renumbered without gaps.
        number = np.cumsum(~np.isin(np.arange(self.n_nodes), nodes)) - 1
        cuts, node = [], []
        for ends, machines in zip(self.cuts, self.node, strict=True):
            stays = ~np.isin(machines, nodes)
            begins = ends[:-1][stays]
            begins[0] = 0.0
            cuts.append(np.append(begins, ends[-1]))
            node.append(number[machines[stays]])
        return type(self)(self.lines, cuts, node)

    def joined(self, places: Sequence[Ints]) -> Self:
        """Return the stretches after machines have joined; each takes half of a stretch of every tree.

        Parameters
        ----------
        places
            For each tree the stretch that each new machine takes half of, all different.
        """
        cuts, node = [], []
        for hub, (ends, machines) in enumerate(zip(self.cuts, self.node, strict=True)):
            order = np.argsort(places[hub])
            at = places[hub][order] + 1
            cuts.append(np.insert(ends, at, self.halved(hub, at - 1)))
            node.append(np.insert(machines, at, self.n_nodes + order))
        return type(self)(self.lines, cuts, node)

    def owners(self, hub: int, keys: Ints) -> tuple[Ints, Ints]:
        """Return the first and the last stretch with a part of each key; those between may be empty."""
        cuts = self.cuts[hub]
        first = np.searchsorted(cuts, keys, side="right") - 1
        last = np.searchsorted(cuts, keys + 1, side="left") - 1
        return first, last

    def _with(self, hub: int, cuts: Doubles, node: Ints) -> Self:
        """Return the same stretches except for one tree."""
        all_cuts, all_nodes = list(self.cuts), list(self.node)
        all_cuts[hub], all_nodes[hub] = cuts, node
        return type(self)(self.lines, all_cuts, all_nodes)
