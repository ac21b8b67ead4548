"""Ways to bring events to the machines that hold filters, and what they take."""

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

#: How trees are found and intervals divided in the systems that have trees of attributes.
_TREES: dict[str, tuple[Search, Way]] = {
    "cobas": ("greedy", "optimal"),
    "no-merging": ("none", "optimal"),
    "no-division": ("greedy", "none"),
    "start": ("none", "none"),
}
#: The systems of cobas2009, figure 6, and trees that are neither merged nor divided: the start.
SYSTEMS = ("multi-1d", "dr-tree", "no-merging", "no-division", "cobas", "start")


@dataclass(frozen=True, slots=True)
class HubTraffic:
    """What events and upkeep take.

    Parameters
    ----------
    total
        By the charges: events to all machines that hold something for them, looking up the first among them
        included, and upkeep.
    upkeep
        Of that, for segments.
    lookups, messages
        How often an event is sent on its way to the first machine of each tree, and from there to others.
    replication
        How many machines hold each filter, or a piece of it, on average.
    imbalance
        The most work of a machine over the mean. Work is events x what they are compared with there. What a
        machine has above its capacity goes to those with the least to do: so it is at least as uneven.
    trees
        How many trees, or hubs, an event is looked up in.
    delivery
        To how many agents of subscribers an event goes in the end, each machine being one, which neither
        copies nor the total count; with `multi-1d` from every attribute, for agents to count.
    saved
        Of the lookups, how many messages are saved where machines of frequent ranges are known.
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
        """How often an event is sent, before it goes to agents."""
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
    """Return what a system takes.

    Parameters
    ----------
    overlay
        Machines with their ranges, and filters.
    system
        One of `SYSTEMS`.
    charges
        What messages and segments cost, and how many of the latter a machine holds.
    routing
        Which tree a filter lives in: see `Merging`.
    curve
        What the curve of `dr-tree` goes through.
    cached
        The share of the ranges of each hub, the most frequent ones, whose machine everybody knows: it takes
        one message instead of log2 of the machines. Of `dr-tree`, the share of lookups. The total, and with
        it which trees stay, is without; `saved` says how much less it would be.
    seed
        What random routing comes from.

    Examples
    --------
    >>> from narrowcast.workloads import Intervals
    >>> from narrowcast.lab.hubs.overlay import MachineRings
    >>> overlay = MachineRings.of(Intervals(n_subscriptions=2000, attributes=4, represents=10_000_000), nodes=64)
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
    """Return what the trees take that merging left: see `traffic_of`."""
    own, spread = np.zeros(overlay.n_nodes), []
    saved = 0.0
    for attribute, tree in merging.trees_.items():
        held = tree.division.held_
        below = np.append(0.0, np.cumsum(overlay.hubs.density[attribute]))
        part = (below[held.last + 1] - below[held.first]) * held.segments / held.machines
        own += part
        spread.append(np.repeat(part, (held.machines - 1).astype(np.int64)))
        saved += _saved(overlay, attribute, cached)
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


def _saved(overlay: MachineRings, attribute: int, cached: float) -> float:
    """Return how many messages of a lookup are saved by knowing where frequent values are."""
    density = np.sort(overlay.hubs.density[attribute])[::-1]
    known = float(density[: round(cached * len(density))].sum())
    hops = math.log2(overlay.n_nodes)
    return known * (hops - min(1.0, hops))


def _multi(overlay: MachineRings, charges: LineCharges, cached: float) -> HubTraffic:
    """Return what it takes when each interval is on all ranges that it overlaps, for every attribute."""
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
        saved += _saved(overlay, attribute, cached)
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
    """Return what it takes with one tree of boxes: an event is looked up once, and goes down from the root.

    Leaf i is on machine i, a node above on that of its first leaf; machines have room for all of it.
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
