"""The segments that machines store, and the events that they receive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from narrowcast.lab.hubs.paths import visits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.lab.hubs.stretches import Stretches

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Loads:
    """The load of each machine, by tree and in total (cobas2009, section VII-B).

    Parameters
    ----------
    storage, matching, work
        For each tree, by stretch: the number of segments; the share of events that visit it, or enter there;
        and the mean number of segments that an event is compared with there.
    node
        For each tree the machine of each stretch.
    n_nodes
        Number of machines.
    machines
        Mean number of machines that an event visits; one with stretches of several trees counts once.
    """

    storage: list[Doubles]
    matching: list[Doubles]
    work: list[Doubles]
    node: list[Ints]
    n_nodes: int
    machines: float

    def of(self, what: str) -> Doubles:
        """Return `storage`, `matching` or `work` of each machine, summed over all trees."""
        found = np.zeros(self.n_nodes)
        for part, node in zip(getattr(self, what), self.node, strict=True):
            found += np.bincount(node, part, self.n_nodes)
        return found

    @property
    def copies(self) -> float:
        """The mean number of machines of each tree that an event visits, summed over all trees.

        Machines where it enters are included, and a machine visited in several trees counts several times.
        """
        return float(sum(part.sum() for part in self.matching))


def loads_of(stretches: Stretches, at: Ints) -> Loads:
    """Return the loads of machines for some events.

    An event enters a tree at the first machine that has a part of its key, and goes on to all machines that
    have a part of a key above with a segment for it. A machine with several of these gets it once.

    Parameters
    ----------
    stretches
        The stretches of machines.
    at
        The key of each event in each attribute: events x attributes.
    """
    storage, matching, work, reached = [], [], [], []
    n_events = max(1, len(at))
    for hub, line in enumerate(stretches.lines):
        held = stretches.storage(hub)
        places = len(held)
        value = np.ascontiguousarray(at[:, line.attribute])
        event, key = visits(line, value)
        first, last = stretches.owners(hub, key)
        # An event is not sent to keys without a segment for it, except to the key where it enters.
        enters = (key == value[event]) & (line.held.segments[key] == 0)
        last = np.where(enters, first, last)
        many = last - first + 1
        begin = np.repeat(np.cumsum(many) - many, many)
        place = np.repeat(first, many) + np.arange(int(many.sum())) - begin
        event, key = np.repeat(event, many), np.repeat(key, many)
        cuts = stretches.cuts[hub]
        part = np.minimum(cuts[place + 1], key + 1) - np.maximum(cuts[place], key)
        real = (part > 0) | (place == stretches.owners(hub, value)[0][event])
        event, key, place, part = event[real], key[real], place[real], np.maximum(part[real], 0.0)
        once = np.unique(event * places + place)
        reached.append(once // places * stretches.n_nodes + stretches.node[hub][once % places])
        storage.append(held)
        matching.append(np.bincount(once % places, minlength=places) / n_events)
        work.append(np.bincount(place, part * line.held.segments[key], places) / n_events)
    machines = len(np.unique(np.concatenate(reached))) / n_events if reached else 0.0
    return Loads(storage, matching, work, list(stretches.node), stretches.n_nodes, machines)


def overloaded(load: Doubles, kappa: float) -> tuple[float, float]:
    """Return the share of machines with more than `kappa` times the mean load, and their share of the load.

    Examples
    --------
    >>> overloaded(np.array([1.0, 1.0, 1.0, 9.0]), 2)
    (0.25, 0.75)
    """
    total = float(load.sum())
    if not total > 0:
        return 0.0, 0.0
    over = load > kappa * total / len(load)
    return float(over.mean()), float(load[over].sum() / total)


def top(load: Doubles, share: float) -> float:
    """Return the share of the load that is on the most loaded machines, which are a given share of all.

    Examples
    --------
    >>> top(np.array([1.0, 1.0, 1.0, 9.0]), 0.25)
    0.75
    """
    total = float(load.sum())
    return float(np.sort(load)[::-1][: round(share * len(load))].sum() / total) if total > 0 else 0.0
