"""Balancing by samples: who has too much asks one with little to leave its place and take half (Mercury)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from narrowcast.costs.line_positions import shares_of
from narrowcast.lab.hubs.loads import loads_of
from narrowcast.lab.hubs.paths import visits
from narrowcast.lab.hubs.toll import NEIGHBOURS, Toll
from narrowcast.validation import check_seed, check_whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.lab.hubs.loads import Loads
    from narrowcast.lab.hubs.stretches import Stretches

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]

#: Machines that each one asks for their load in a round, times log2 of all.
SAMPLED = 4
#: Rounds in a row without a move after which it is over.
QUIET = 3


@dataclass(frozen=True, slots=True, eq=False)
class Balanced:
    """What there is after balancing, and what it took.

    Parameters
    ----------
    stretches
        Who has what now.
    rounds, moves
        How many rounds there were, and how often a machine moved.
    sampling, moving
        What it took to ask for loads, and to hand on what was held.
    """

    stretches: Stretches
    rounds: int
    moves: int
    sampling: Toll
    moving: Toll


def balance(
    stretches: Stretches, at: Ints, *, kappa: float = 10.0, rounds: int = 60, seed: int = 0
) -> Balanced:
    """Let machines with more than so many times the mean load be helped by such as have little.

    In each round every machine asks some others, drawn by chance, how many segments they hold and how many
    events come to them: by walks of log2 of the machines. Where it has more of either than `kappa` times the
    mean of its sample, it asks the one with the least that is not above the mean itself, and whose neighbour
    would not have too much when it takes over. That one leaves its stretch, of the tree where the other has
    most, to this neighbour, and takes half of the other's: of the segments; or of the events, by whole keys,
    for the list of a key cut in two has its events come to both. So where too many events come for a single
    key nothing is done: see `replicate`.

    Parameters
    ----------
    stretches
        Who has what.
    at
        Keys of the events that loads are counted by: events x attributes.
    kappa
        How many times the mean a machine may have, above 1; 0 or inf for no limit.
    rounds
        How many rounds there are at most; it ends before when none has moved for three.
    seed
        What samples are drawn from.
    """
    check_whole("rounds", rounds, least=0)
    check_seed(seed)
    kappa = shares_of(kappa, above=1)
    rng = np.random.default_rng(seed)
    n = stretches.n_nodes
    hops = math.ceil(math.log2(n)) if n > 1 else 0
    many = min(n, SAMPLED * hops)
    sampling, moving = Toll(), Toll()
    moves = done = quiet = 0
    while many and done < rounds and quiet < QUIET:
        done += 1
        sampling += Toll.control(n * many * (hops + 1))
        # Of a few, all; and oneself is as likely as any other, or the mean would come out too low.
        asked = rng.integers(0, n, (n, many)) if many < n else np.tile(np.arange(n), (n, 1))
        made = _round(stretches, loads_of(stretches, at), at, asked, kappa)
        quiet = quiet + 1 if made[1] == 0 else 0
        stretches, moves, moving = made[0], moves + made[1], moving + made[2]
    return Balanced(stretches, done, moves, sampling, moving)


def _round(
    stretches: Stretches, loads: Loads, at: Ints, asked: Ints, kappa: float
) -> tuple[Stretches, int, Toll]:
    """Let all machines that have too much be helped once; return how often and what was handed on."""
    storage, matching = loads.of("storage"), loads.of("matching")
    mean = {"storage": storage[asked].mean(axis=1), "matching": matching[asked].mean(axis=1)}
    ratio = {
        what: np.divide(load, mean[what], out=np.where(load > 0, np.inf, 0.0), where=mean[what] > 0)
        for what, load in (("storage", storage), ("matching", matching))
    }
    heavy = np.flatnonzero((ratio["storage"] > kappa) | (ratio["matching"] > kappa))
    worst = np.maximum(ratio["storage"], ratio["matching"])
    busy = np.zeros(len(storage), np.bool_)
    busy[heavy] = True
    known: dict[int, Ints] = {}
    toll, moves = Toll(), 0
    for who in heavy[np.argsort(-worst[heavy], kind="stable")].tolist():
        what = "storage" if ratio["storage"][who] > kappa else "matching"
        means = mean["storage"][who], mean["matching"][who]
        light = asked[who][~busy[asked[who]]]
        light = light[(storage[light] <= means[0]) & (matching[light] <= means[1])]
        hub = _busiest(loads, who, what)
        if what == "matching" and hub not in known:
            known[hub] = _counts(stretches, hub, at)
        room = kappa * mean["storage"][who]
        found = _helped(stretches, storage, hub, who, np.unique(light), known.get(hub), what, room)
        if found is None:
            continue
        stretches, helper, cost = found
        busy[helper] = True
        moves, toll = moves + 1, toll + cost
    return stretches, moves, toll


def _busiest(loads: Loads, who: int, what: str) -> int:
    """Return the tree in which a machine has most."""
    parts = getattr(loads, what)
    return int(np.argmax([parts[hub][node == who][0] for hub, node in enumerate(loads.node)]))


def _counts(stretches: Stretches, hub: int, at: Ints) -> Ints:
    """Return how many events come to each key of a tree."""
    line = stretches.lines[hub]
    _, key = visits(line, np.ascontiguousarray(at[:, line.attribute]))
    return np.bincount(key, minlength=len(line.density))


def _helped(
    stretches: Stretches,
    total: Doubles,
    hub: int,
    who: int,
    light: Ints,
    counts: Ints | None,
    what: str,
    room: float,
) -> tuple[Stretches, int, Toll] | None:
    """Return what there is once one of some light machines has helped, who it was, and what it took.

    `total` is what machines stored before the round, and `room` what one may store.
    """
    held, place = stretches.storage(hub), int(np.flatnonzero(stretches.node[hub] == who)[0])
    cut: float | None = float(stretches.halved(hub, [place])[0])
    if what == "matching":
        assert counts is not None
        cut = _between(stretches, hub, place, counts)
    if cut is None:
        return None
    places = np.flatnonzero(np.isin(stretches.node[hub], light))
    before = np.where(places > 0, places - 1, min(1, len(held) - 1))
    takes = stretches.node[hub][before]
    fits = (total[takes] + held[places] <= room) & (takes != who)
    places = places[fits]
    if not len(places):
        return None
    # Of those that may, the one with the least in all.
    nodes = stretches.node[hub][places]
    helper = int(places[np.argmin(total[nodes])])
    after = stretches.moved(hub, helper=helper, place=place, cut=cut)
    node = int(stretches.node[hub][helper])
    now = int(np.flatnonzero(after.node[hub] == node)[0])
    keys = stretches.keys(hub)[helper] + after.keys(hub)[now]
    handed = held[helper] + after.storage(hub)[now]
    # Asking and agreeing; two ends of the circle are tied at either place; nodes of the tree find each other.
    cost = Toll.handed(handed, batches=2) + Toll.control(2 + 4 + NEIGHBOURS * keys)
    return after, node, cost


def _between(stretches: Stretches, hub: int, place: int, counts: Ints) -> float | None:
    """Return the key between two halves of a stretch by the events that come to its keys; None for none."""
    low, high = stretches.cuts[hub][place : place + 2]
    inner = np.arange(math.floor(low) + 1, math.ceil(high))
    if not len(inner):
        return None
    below = np.append(0, np.cumsum(counts[math.floor(low) : math.ceil(high)]))
    # Both halves have something, or there is nothing to gain.
    part = below[1 : len(inner) + 1]
    worst = np.maximum(part, below[-1] - part)
    best = int(np.argmin(worst))
    return float(inner[best]) if worst[best] < below[-1] else None
