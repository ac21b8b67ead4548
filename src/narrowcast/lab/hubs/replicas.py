"""Copies of stretches that many events visit, so that each event goes to one of the copies."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from narrowcast.costs.line_positions import UPKEEP
from narrowcast.errors import ParameterError
from narrowcast.lab.hubs.toll import Toll

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.lab.hubs.loads import Loads

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Replicas:
    """Copies of stretches on other machines.

    Parameters
    ----------
    many
        For each tree, the number of machines that have each stretch; at least 1.
    hub, place, node
        For each copy besides the first: its tree and stretch, and the machine that has it.
    """

    many: list[Ints]
    hub: Ints
    place: Ints
    node: Ints

    def segments(self, loads: Loads) -> float:
        """Return the number of additional segments, in copies."""
        return float(
            sum(((many - 1) * held).sum() for many, held in zip(self.many, loads.storage, strict=True))
        )

    def upkeep(self, loads: Loads) -> float:
        """Return the upkeep of copies in bytes per minute: as many heartbeats as for other segments."""
        return UPKEEP * self.segments(loads)

    def making(self, loads: Loads) -> Toll:
        """Return the cost of making the copies."""
        return Toll.handed(self.segments(loads), batches=len(self.node))

    def spread(self, loads: Loads, what: str) -> Doubles:
        """Return `storage`, `matching` or `work` of each machine, over all trees and copies.

        An event goes to one of the copies, drawn at random; each copy has all segments.
        """
        found = np.zeros(loads.n_nodes)
        for hub, (many, part) in enumerate(zip(self.many, getattr(loads, what), strict=True)):
            each = part if what == "storage" else part / many
            found += np.bincount(loads.node[hub], each, loads.n_nodes)
            own = self.hub == hub
            found += np.bincount(self.node[own], each[self.place[own]], loads.n_nodes)
        return found


def replicate(loads: Loads, *, share: float = 5.0) -> Replicas:
    """Copy stretches in proportion to the events that visit them (cobas2009, section VII-A).

    A stretch visited by more than `share` times the mean number of events per machine is copied to as many
    machines as this ratio says: popular filters, which cover more values, are on more of them. An event goes
    to one copy, so that the number of messages stays the same; only upkeep grows. Copies go to the machines
    with the fewest events, those of the busiest stretch first.

    Parameters
    ----------
    loads
        Loads of machines without copies.
    share
        Largest number of events of a copy, as a multiple of the mean per machine.

    Examples
    --------
    >>> from narrowcast.lab.hubs.loads import Loads
    >>> loads = Loads([np.array([6.0, 1.0, 1.0])], [np.array([0.9, 0.1, 0.2])], [np.zeros(3)],
    ...               [np.arange(3)], 3, 1.2)
    >>> found = replicate(loads, share=1)
    >>> found.many[0].tolist(), found.spread(loads, "matching").round(3).tolist(), found.segments(loads)
    ([3, 1, 1], [0.3, 0.4, 0.5], 12.0)
    """
    if not share > 0:
        raise ParameterError(
            parameter="share", value=share, limit="a number above 0; infinity means no copies"
        )
    matching = loads.of("matching")
    limit = share * float(matching.mean())
    every: list[Ints] = []
    waiting: list[tuple[float, int, int]] = []
    for hub, part in enumerate(loads.matching):
        many = np.ones(len(part), np.int64)
        if limit > 0:
            # The same tolerance as for machines: rounding errors make no copy.
            many = np.clip(np.ceil(part / limit * (1 - 1e-12)), 1, loads.n_nodes).astype(np.int64)
        every.append(many)
        matching -= np.bincount(loads.node[hub], part * (1 - 1 / many), loads.n_nodes)
        waiting += [(float(part[i] / many[i]), hub, i) for i in np.flatnonzero(many > 1).tolist()]
    least = [(load, node) for node, load in enumerate(matching.tolist())]
    heapq.heapify(least)
    made: list[tuple[int, int, int]] = []
    for each, hub, place in sorted(waiting, reverse=True):
        own, back = int(loads.node[hub][place]), []
        wanted = len(made) + int(every[hub][place]) - 1
        while len(made) < wanted:
            load, node = heapq.heappop(least)
            if node != own:
                made.append((hub, place, node))
            back.append((load + each * (node != own), node))
        for entry in back:
            heapq.heappush(least, entry)
    columns = np.array(made, np.int64).reshape(-1, 3)
    return Replicas(every, columns[:, 0], columns[:, 1], columns[:, 2])
