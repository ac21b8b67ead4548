"""Machines that join and leave, filters that are added and removed, and the cost of the repair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from narrowcast.costs.line_positions import tree_of
from narrowcast.errors import ParameterError
from narrowcast.lab.hubs.toll import NEIGHBOURS, SEGMENT, Toll
from narrowcast.validation import check_seed, check_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from narrowcast.lab.hubs.links import Links
    from narrowcast.lab.hubs.stretches import Stretches
    from narrowcast.planning.ranges.merging import AttributeLines, AttributeTree

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class HubChurn:
    """The state after machines have left and joined, and the cost.

    Parameters
    ----------
    stretches
        The stretches of machines afterwards.
    links, keys, segments
        Cost of repairing the circles, of reconnecting nodes of trees, and of moving segments to the machines
        that store them now.
    rotations
        Number of trees in which one side of the root is less than half as high as the other without the lost
        keys: such a tree is rotated.
    """

    stretches: Stretches
    links: Toll
    keys: Toll
    segments: Toll
    rotations: int

    @property
    def total(self) -> Toll:
        """The total cost."""
        return self.links + self.keys + self.segments


def churn(
    stretches: Stretches,
    links: Links,
    *,
    leaving: int = 0,
    joining: int = 0,
    graceful: bool = False,
    seed: int = 0,
) -> HubChurn:
    """Let machines leave and others join, in all trees, and count the cost.

    The stretches of a machine that fails without notice go to its neighbours, but its segments are lost:
    agents of subscribers miss its heartbeats and register each segment again, with one lookup each. A machine
    that leaves gracefully hands its segments on. In both cases the machines with a link to it look for
    another one, its two neighbours connect, and the nodes of trees on it are reconnected to parent and
    children. A machine that joins looks up a stretch of each tree, drawn at random, takes half of it, and
    looks for links of its own.

    Parameters
    ----------
    stretches
        The stretches of machines.
    links
        Links of the machines, of the same number; the circles of all trees have the same links.
    leaving, joining
        Number of machines that leave, drawn at random, and that join. Leaving comes first.
    graceful
        Whether leaving machines hand on their segments.
    seed
        Seed of all random choices.
    """
    check_whole("leaving", leaving, least=0)
    check_whole("joining", joining, least=0)
    check_seed(seed)
    n = stretches.n_nodes
    if links.n_nodes != n:
        raise ParameterError(
            f"links has {links.n_nodes} machines: must have {n}, like the stretches",
            parameter="links",
            value=links.n_nodes,
        )
    if leaving >= n:
        raise ParameterError(parameter="leaving", value=leaving, limit=f"below the number of machines, {n}")
    if joining > n - leaving:
        raise ParameterError(
            parameter="joining",
            value=joining,
            limit=f"at most the number of remaining machines, {n - leaving}",
            fix="let them join in several steps",
        )
    rng = np.random.default_rng(seed)
    leaving_nodes = np.sort(rng.choice(n, leaving, replace=False))
    repaired, reconnected, moved, rotations = _leave(stretches, links, leaving_nodes, graceful, rng)
    after = stretches.without(leaving_nodes) if leaving else stretches
    if joining:
        places = [rng.choice(n - leaving, joining, replace=False) for _ in after.lines]
        joined = after.joined(places)
        lookups = len(after.lines) * joining * (1 + links.per_node)
        repaired += Toll.control(_total_hops(links, lookups, rng) + 2 * joining * len(after.lines))
        new = [np.flatnonzero(machines >= n - leaving) for machines in joined.node]
        held = sum(joined.storage(hub)[place].sum() for hub, place in enumerate(new))
        reconnected += Toll.control(
            NEIGHBOURS * sum(joined.keys(hub)[place].sum() for hub, place in enumerate(new))
        )
        moved += Toll.handed(held, batches=joining * len(after.lines))
        after = joined
    return HubChurn(after, repaired, reconnected, moved, rotations)


def _leave(
    stretches: Stretches, links: Links, leaving_nodes: Ints, graceful: bool, rng: np.random.Generator
) -> tuple[Toll, Toll, Toll, int]:
    """Return the cost of leaving machines for links, keys and segments, and the number of rotated trees."""
    named = links.named()
    repaired, reconnected, moved = Toll(), Toll(), Toll()
    rotations = 0
    for hub, machines in enumerate(stretches.node):
        places = np.flatnonzero(np.isin(machines, leaving_nodes))
        repaired += Toll.control(2 * len(places) + _total_hops(links, int(named[places].sum()), rng))
        reconnected += Toll.control(NEIGHBOURS * float(stretches.keys(hub)[places].sum()))
        held = float(stretches.storage(hub)[places].sum())
        if graceful:
            moved += Toll.handed(held, batches=len(places))
        else:
            # A segment costs as much as a new filter: a lookup, and one message to the machine that has the
            # key now.
            moved += Toll.control(held * _mean_hops(links, rng)) + Toll(held, SEGMENT * held)
            rotations += _unbalanced(stretches, hub, places)
    return repaired, reconnected, moved, rotations


def _unbalanced(stretches: Stretches, hub: int, places: Ints) -> bool:
    """Return whether one side of a tree, without the lost keys, is less than half as high as the other."""
    cuts = np.ceil(stretches.cuts[hub]).astype(np.int64)
    n = len(stretches.lines[hub].density)
    steps = np.zeros(n + 1, np.int64)
    np.add.at(steps, cuts[places], 1)
    np.add.at(steps, cuts[places + 1], -1)
    stays = np.cumsum(steps)[:n] == 0
    tree = tree_of(n)
    depth, root = tree.n_left + tree.n_right, (n - 1) // 2
    left, right = ((depth * stays)[side].max(initial=0) for side in (slice(0, root), slice(root + 1, n)))
    return bool(2 * min(left, right) < max(left, right))


def _total_hops(links: Links, many: int, rng: np.random.Generator) -> int:
    """Return the total hops of `many` lookups between random machines."""
    return int(links.hops(*rng.integers(0, links.n_nodes, (2, many))).sum())


def _mean_hops(links: Links, rng: np.random.Generator) -> float:
    """Return the mean hops of a lookup, from a sample of 1,000."""
    return _total_hops(links, 1000, rng) / 1000


class RegistrationCost(NamedTuple):
    """The cost of adding filters, and of removing them again; and the number of their pieces."""

    insertion: Toll
    deletion: Toll
    pieces: float


def register(
    trees: Mapping[int, AttributeTree],
    hubs: AttributeLines,
    new: AttributeLines,
    links: Links,
    *,
    seed: int = 0,
) -> RegistrationCost:
    """Add filters to existing trees, and remove them again.

    A filter goes to one tree, at random among those whose attribute it bounds, or else to the first. It is
    looked up there, and each of its pieces is sent to the machine that stores it, in one message with the
    segment. If a piece extends beyond the range its key covered before, the keys below for which it is new
    are notified. On removal the agent of the subscriber, which tracks all pieces, notifies each machine, and
    those below again.

    Parameters
    ----------
    trees, hubs
        Trees as returned by merging, and the filters and events they were made from.
    new
        The filters, over the same positions.
    links
        Links of the machines.
    seed
        Seed of the choice of trees, and of lookups.
    """
    check_seed(seed)
    if (new.n_attributes, new.n_positions) != (hubs.n_attributes, hubs.n_positions):
        raise ParameterError(
            f"new has {new.n_attributes} x {new.n_positions} positions: must have {hubs.n_attributes} x "
            f"{hubs.n_positions}, like the trees",
            parameter="new",
            value=(new.n_attributes, new.n_positions),
        )
    rng = np.random.default_rng(seed)
    alive = np.array(list(trees))
    key = np.where(new.first[:, alive] >= 0, rng.random((new.n_filters, len(alive))), np.inf)
    # argmin of a row of infinities is 0: filters without a bounded attribute go to the first tree.
    home = alive[key.argmin(axis=1)] if new.n_filters else np.empty(0, np.int64)
    hops = links.hops(*rng.integers(0, links.n_nodes, (2, new.n_filters)))
    looked_up = float((hops * new.weight).sum())
    pieces = notified = 0.0
    for attribute, tree in trees.items():
        assigned = np.flatnonzero(home == attribute)
        line = new.line(attribute, assigned)
        cut = tree.division.pieces(line.first, line.last)
        weight, held = line.weight[cut.interval], tree.division.held_
        pieces += float(weight.sum())
        low, high = held.first[cut.position], held.last[cut.position]
        beyond = np.maximum(0, low - cut.first) + np.maximum(0, cut.last - high)
        # A drawn filter represents several equal ones: after the first of them nothing is new.
        notified += float(beyond.sum())
    handed = Toll(pieces, SEGMENT * pieces)
    return RegistrationCost(
        Toll.control(looked_up + notified) + handed,
        Toll.control(pieces + notified),
        pieces / (new.weight.sum() or 1),
    )
