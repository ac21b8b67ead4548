"""Machines that come and go, filters that are added and taken away, and what it takes to mend everything."""

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
    """What there is once machines have gone and come, and what it took.

    Parameters
    ----------
    stretches
        Who has what now.
    links, keys, segments
        Messages that mend the circles; that tie nodes of trees together again; and that bring segments to
        where they are held now.
    rotations
        In how many trees one side of the root is less than half as high as the other, for the keys that
        went: there a tree is rotated.
    """

    stretches: Stretches
    links: Toll
    keys: Toll
    segments: Toll
    rotations: int

    @property
    def total(self) -> Toll:
        """All of it."""
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
    """Let machines go and others come, in all trees, and count what it takes.

    Who goes without a word leaves its stretches to the neighbours, but not what it held: agents miss its
    heartbeats and register each segment again, a lookup each. With a word it hands segments on itself. In
    both cases those that had a link to it look for another, its two neighbours find each other, and the
    nodes of trees that it held are tied to parent and children anew. Who comes looks up a stretch of each
    tree, drawn by chance, takes half of it, and looks for links of its own.

    Parameters
    ----------
    stretches
        Who has what.
    links
        Whom machines know, as many of them; all trees have circles alike.
    leaving, joining
        How many machines go, drawn by chance, and how many come. First some go, then others come.
    graceful
        Whether those that go hand on what they have.
    seed
        What is drawn comes from.
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
    gone = np.sort(rng.choice(n, leaving, replace=False))
    mended, tied, brought, rotations = _left(stretches, links, gone, graceful, rng)
    after = stretches.without(gone) if leaving else stretches
    if joining:
        places = [rng.choice(n - leaving, joining, replace=False) for _ in after.lines]
        joined = after.joined(places)
        lookups = len(after.lines) * joining * (1 + links.per_node)
        mended += Toll.control(_hops(links, lookups, rng) + 2 * joining * len(after.lines))
        new = [np.flatnonzero(who >= n - leaving) for who in joined.node]
        held = sum(joined.storage(hub)[place].sum() for hub, place in enumerate(new))
        tied += Toll.control(NEIGHBOURS * sum(joined.keys(hub)[place].sum() for hub, place in enumerate(new)))
        brought += Toll.handed(held, batches=joining * len(after.lines))
        after = joined
    return HubChurn(after, mended, tied, brought, rotations)


def _left(
    stretches: Stretches, links: Links, gone: Ints, graceful: bool, rng: np.random.Generator
) -> tuple[Toll, Toll, Toll, int]:
    """Return what it takes when machines go: of links, of keys and of segments; and how many trees turn."""
    named = links.named()
    mended, tied, brought = Toll(), Toll(), Toll()
    rotations = 0
    for hub, who in enumerate(stretches.node):
        places = np.flatnonzero(np.isin(who, gone))
        mended += Toll.control(2 * len(places) + _hops(links, int(named[places].sum()), rng))
        tied += Toll.control(NEIGHBOURS * float(stretches.keys(hub)[places].sum()))
        held = float(stretches.storage(hub)[places].sum())
        if graceful:
            brought += Toll.handed(held, batches=len(places))
        else:
            # A segment is as one more filter: looked up, and then handed to who has the key now.
            brought += Toll.control(held * _mean(links, rng)) + Toll(held, SEGMENT * held)
            rotations += _turned(stretches, hub, places)
    return mended, tied, brought, rotations


def _turned(stretches: Stretches, hub: int, places: Ints) -> bool:
    """Return whether one side of a tree is less than half as high as the other without keys that went."""
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


def _hops(links: Links, many: int, rng: np.random.Generator) -> int:
    """Return the hops of so many lookups from anybody for anybody."""
    return int(links.hops(*rng.integers(0, links.n_nodes, (2, many))).sum())


def _mean(links: Links, rng: np.random.Generator) -> float:
    """Return the hops of a lookup on average, by some."""
    return _hops(links, 1000, rng) / 1000


class Registered(NamedTuple):
    """What it takes to add filters, and to take the same away again; and how many pieces they are in."""

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
) -> Registered:
    """Add filters to the trees that there are, and take them away again.

    A filter goes to one tree, any of those whose attribute it bounds, or to the first. It is looked up
    there; each of its pieces is then one message to the machine that holds it, with the segment. Where a
    piece reaches beyond what its key covers, the keys below for which that is new are told. To take it away
    the agent, who keeps up with all its pieces, tells each machine; those below are told again.

    Parameters
    ----------
    trees, hubs
        Trees as merging left them, and what they are of.
    new
        The filters, over the same positions.
    links
        Whom machines know.
    seed
        What the tree of a filter, and lookups, are drawn from.
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
    # Of all infinite the first is the least: orphans go to the first tree.
    home = alive[key.argmin(axis=1)] if new.n_filters else np.empty(0, np.int64)
    hops = links.hops(*rng.integers(0, links.n_nodes, (2, new.n_filters)))
    looked_up = float((hops * new.weight).sum())
    pieces = told = 0.0
    for attribute, tree in trees.items():
        mine = np.flatnonzero(home == attribute)
        line = new.line(attribute, mine)
        cut = tree.division.pieces(line.first, line.last)
        weight, held = line.weight[cut.interval], tree.division.held_
        pieces += float(weight.sum())
        low, high = held.first[cut.position], held.last[cut.position]
        beyond = np.maximum(0, low - cut.first) + np.maximum(0, cut.last - high)
        # A filter that stands for others is as they are: once the first has come, nothing is new.
        told += float(beyond.sum())
    handed = Toll(pieces, SEGMENT * pieces)
    return Registered(
        Toll.control(looked_up + told) + handed, Toll.control(pieces + told), pieces / (new.weight.sum() or 1)
    )
