"""The systems of the paper: ways to bring events to the machines that store filters, and their cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.lab.hubs.drtree import FANOUT, Curve, DRTree
from narrowcast.lab.hubs.work import imbalance
from narrowcast.planning.ranges.merging import Merging, Routing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.costs.line_positions import LineCharges
    from narrowcast.lab.hubs.overlay import MachineRings
    from narrowcast.planning.ranges.division import Way
    from narrowcast.planning.ranges.merging import Search

    Doubles: TypeAlias = NDArray[np.float64]

#: The search of trees and the division of intervals in the systems with a tree for each attribute.
_TREES: dict[str, tuple[Search, Way]] = {
    "cobas": ("greedy", "optimal"),
    "no-merging": ("none", "optimal"),
    "no-division": ("greedy", "none"),
    "start": ("none", "none"),
}
#: The systems of cobas2009, figure 6, and `start`: trees that are neither merged nor divided.
SYSTEMS = ("multi-1d", "dr-tree", "no-merging", "no-division", "cobas", "start")


@dataclass(frozen=True, slots=True)
class HubTraffic:
    """The traffic of events and upkeep.

    Parameters
    ----------
    total
        Total by the charges: sending events to all machines with a segment for them, the lookup of the first
        of these, and upkeep.
    upkeep
        The part of the total for the upkeep of segments.
    lookups, messages
        Messages per event on the way to the first machine of each tree, and from there to others.
    replication
        Mean number of machines that have each filter, or a piece of it.
    imbalance
        The largest work of a machine over the mean. Work is events x segments they are compared with. Work
        beyond the capacity of a machine goes to the least loaded one, so this is a lower bound.
    trees
        Number of trees, or hubs, in which an event is looked up.
    delivery
        Mean number of agents of subscribers that an event goes to in the end, each of which is a machine; not
        part of copies and total. With `multi-1d` each attribute sends to the agents, which count the
        attributes.
    saved
        Messages per event saved in lookups if the machines of frequent ranges are known.
    """

    total: float
    upkeep: float
    lookups: float
    messages: float
    replication: float
    imbalance: float
    trees: int
    delivery: float
    saved: float = 0.0

    @property
    def copies(self) -> float:
        """Messages per event before it goes to agents."""
        return self.lookups + self.messages


def traffic_of(
    overlay: MachineRings,
    system: str,
    charges: LineCharges,
    *,
    routing: Routing = "random",
    curve: Curve = "centres",
    cached: float = 0.0,
    seed: int = 0,
) -> HubTraffic:
    """Return the traffic of a system.

    Parameters
    ----------
    overlay
        Machines with their ranges, and filters.
    system
        One of `SYSTEMS`.
    charges
        Costs of messages and segments, and the capacity of a machine in segments.
    routing
        Choice of the tree of a filter: see `Merging`.
    curve
        Points that the curve of `dr-tree` orders.
    cached
        The share of the ranges of each hub, the most frequent ones, whose machines all publishers know:
        reaching them takes one message instead of log2(machines). For `dr-tree`, the share of lookups. The
        total, and with it the choice of trees, ignores it; `saved` is the reduction.
    seed
        Seed of random routing.

    Examples
    --------
    >>> from narrowcast.workloads import Intervals
    >>> from narrowcast.lab.hubs.overlay import MachineRings
    >>> filters = Intervals(n_subscriptions=2000, attributes=4, represents=10_000_000)
    >>> overlay = MachineRings.of(filters, nodes=64)
    >>> found = {name: traffic_of(overlay, name, overlay.charges()) for name in SYSTEMS}
    >>> min(found, key=lambda name: found[name].total), found["cobas"].trees, found["no-merging"].trees
    ('cobas', 1, 4)
    """
    if system not in SYSTEMS:
        raise ParameterError(parameter="system", value=system, limit=f"one of {', '.join(SYSTEMS)}")
    if not 0 <= cached <= 1:
        raise ParameterError(parameter="cached", value=cached, limit="a share from 0 to 1")
    if system == "dr-tree":
        return _dr_tree(overlay, charges, curve, cached)
    if system == "multi-1d":
        return _multi(overlay, charges, cached)
    search, way = _TREES[system]
    merging = Merging(search=search, way=way, routing=routing, charges=charges, seed=seed).fit(overlay.hubs)
    return tree_traffic(overlay, merging, charges, cached=cached)


def tree_traffic(
    overlay: MachineRings, merging: Merging, charges: LineCharges, *, cached: float = 0.0
) -> HubTraffic:
    """Return the traffic of the trees that remain after merging: see `traffic_of`."""
    own, spread = np.zeros(overlay.n_nodes), []
    saved = 0.0
    for attribute, tree in merging.trees_.items():
        held = tree.division.held_
        below = np.append(0.0, np.cumsum(overlay.hubs.density[attribute]))
        part = (below[held.last + 1] - below[held.first]) * held.segments / held.machines
        own += part
        spread.append(np.repeat(part, (held.machines - 1).astype(np.int64)))
        saved += _saved_lookups(overlay, attribute, cached)
    terms = merging.cost_.terms
    return HubTraffic(
        total=merging.cost_.total,
        upkeep=charges.segment * terms["segments"],
        lookups=terms["lookups"],
        messages=terms["messages"],
        replication=terms["segments"] / (overlay.n_filters or 1),
        imbalance=imbalance(own, np.concatenate(spread)),
        trees=len(merging.trees_),
        delivery=overlay.agents(overlay.matched),
        saved=saved,
    )


def _saved_lookups(overlay: MachineRings, attribute: int, cached: float) -> float:
    """Return the number of messages that a lookup saves if the machines of frequent ranges are known."""
    density = np.sort(overlay.hubs.density[attribute])[::-1]
    known = float(density[: round(cached * len(density))].sum())
    hops = math.log2(overlay.n_nodes)
    return known * (hops - min(1.0, hops))


def _multi(overlay: MachineRings, charges: LineCharges, cached: float) -> HubTraffic:
    """Return the traffic if each interval is on all ranges it overlaps, for every attribute (multi-1D)."""
    own, spread = np.zeros(overlay.n_nodes), []
    messages = segments = delivery = saved = 0.0
    at = overlay.positions(overlay.events)
    for attribute in range(overlay.hubs.n_attributes):
        line = overlay.hubs.line(attribute, overlay.hubs.first[:, attribute] >= 0)
        many = line.popularity()
        machines = charges.machines(many)
        part = line.density * many / machines
        own += part
        spread.append(np.repeat(part, (machines - 1).astype(np.int64)))
        saved += _saved_lookups(overlay, attribute, cached)
        messages += float(((machines - 1) * line.density).sum())
        segments += float(many.sum())
        delivery += overlay.agents(many[at[:, attribute]])
    lookups = overlay.hubs.n_attributes * math.log2(overlay.n_nodes)
    return HubTraffic(
        total=charges.message * (lookups + messages) + charges.segment * segments,
        upkeep=charges.segment * segments,
        lookups=lookups,
        messages=messages,
        replication=segments / (overlay.n_filters or 1),
        imbalance=imbalance(own, np.concatenate(spread)),
        trees=overlay.hubs.n_attributes,
        delivery=delivery,
        saved=saved,
    )


def _dr_tree(overlay: MachineRings, charges: LineCharges, curve: Curve, cached: float) -> HubTraffic:
    """Return the traffic of one tree of boxes: an event is looked up once, and goes down from the root.

    Leaf i is on machine i, and an inner node on the machine of its first leaf; capacity is not limited.
    """
    tree = DRTree.of(overlay.lo, overlay.hi, overlay.n_nodes, curve=curve)
    visits = tree.visits(overlay.events)
    own = np.zeros(overlay.n_nodes)
    weight = overlay.n_filters / max(1, overlay.hubs.n_filters)
    first = np.arange(len(tree.size))
    entries = tree.size * weight
    for seen in visits:
        np.add.at(own, first, seen * entries)
        children = np.arange(0, len(first), FANOUT)
        entries = np.diff(children, append=len(first)).astype(np.float64)
        first = first[children]
    hops = math.log2(overlay.n_nodes)
    messages = float(sum(level.sum() for level in visits[:-1]))
    upkeep = charges.segment * overlay.n_filters
    return HubTraffic(
        total=charges.message * (hops + messages) + upkeep,
        upkeep=upkeep,
        lookups=hops,
        messages=messages,
        replication=1.0,
        imbalance=imbalance(own, np.empty(0)),
        trees=1,
        delivery=overlay.agents(overlay.matched),
        saved=cached * (hops - min(1.0, hops)),
    )
