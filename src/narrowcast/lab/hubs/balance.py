"""Balancing by samples: lightly loaded machines take over parts of overloaded ones (Mercury)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from narrowcast.costs.line_positions import capacity_factor
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

#: Machines that each machine samples in a round, as a multiple of log2(machines).
SAMPLED = 4
#: Number of consecutive rounds without a move that end the balancing.
QUIET = 3


@dataclass(frozen=True, slots=True, eq=False)
class BalanceResult:
    """The state after balancing, and its cost.

    Parameters
    ----------
    stretches
        The stretches of machines after balancing.
    rounds, moves
        Number of rounds, and of moves of machines.
    sampling, moving
        Cost of sampling loads, and of moving segments.
    """

    stretches: Stretches
    rounds: int
    moves: int
    sampling: Toll
    moving: Toll


def balance(
    stretches: Stretches, at: Ints, *, kappa: float = 10.0, rounds: int = 60, seed: int = 0
) -> BalanceResult:
    """Relieve machines with more than `kappa` times the mean load by machines with little load.

    In each round every machine asks some others, drawn at random, for the number of segments they store and
    of events they receive; each is reached by a walk of log2(machines) hops. If it has more of either than
    `kappa` times the mean of its sample, it selects the machine with the least load among those not above the
    mean whose neighbour has room to take over their stretch. The helper leaves its stretch, in the tree where
    the overloaded machine has most, to this neighbour, and takes half of the overloaded stretch: half of the
    segments; or half of the events, by whole keys, because the events of a key whose list is cut in two go to
    both parts. So too many events for a single key cannot be relieved: see `replicate`.

    Parameters
    ----------
    stretches
        The stretches of machines.
    at
        Keys of the events that define loads: events x attributes.
    kappa
        Load limit of a machine as a multiple of the mean, above 1; 0 or inf for no limit.
    rounds
        Largest number of rounds; balancing also ends after three rounds without a move.
    seed
        Seed of the samples.
    """
    check_whole("rounds", rounds, least=0)
    check_seed(seed)
    kappa = capacity_factor(kappa, above=1)
    rng = np.random.default_rng(seed)
    n = stretches.n_nodes
    hops = math.ceil(math.log2(n)) if n > 1 else 0
    many = min(n, SAMPLED * hops)
    sampling, moving = Toll(), Toll()
    moves = done = quiet = 0
    while many and done < rounds and quiet < QUIET:
        done += 1
        sampling += Toll.control(n * many * (hops + 1))
        # A machine may sample itself, otherwise the mean would be biased; small networks are sampled
        # completely.
        asked = rng.integers(0, n, (n, many)) if many < n else np.tile(np.arange(n), (n, 1))
        made = _round(stretches, loads_of(stretches, at), at, asked, kappa)
        quiet = quiet + 1 if made[1] == 0 else 0
        stretches, moves, moving = made[0], moves + made[1], moving + made[2]
    return BalanceResult(stretches, done, moves, sampling, moving)


def _round(
    stretches: Stretches, loads: Loads, at: Ints, asked: Ints, kappa: float
) -> tuple[Stretches, int, Toll]:
    """Relieve each overloaded machine once; return the stretches, the number of moves and their cost."""
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
    for machine in heavy[np.argsort(-worst[heavy], kind="stable")].tolist():
        what = "storage" if ratio["storage"][machine] > kappa else "matching"
        means = mean["storage"][machine], mean["matching"][machine]
        light = asked[machine][~busy[asked[machine]]]
        light = light[(storage[light] <= means[0]) & (matching[light] <= means[1])]
        hub = _busiest_tree(loads, machine, what)
        if what == "matching" and hub not in known:
            known[hub] = _events_of_keys(stretches, hub, at)
        room = kappa * mean["storage"][machine]
        found = _relieve(stretches, storage, hub, machine, np.unique(light), known.get(hub), what, room)
        if found is None:
            continue
        stretches, helper, cost = found
        busy[helper] = True
        moves, toll = moves + 1, toll + cost
    return stretches, moves, toll


def _busiest_tree(loads: Loads, machine: int, what: str) -> int:
    """Return the tree in which a machine has most of `what`."""
    parts = getattr(loads, what)
    return int(np.argmax([parts[hub][node == machine][0] for hub, node in enumerate(loads.node)]))


def _events_of_keys(stretches: Stretches, hub: int, at: Ints) -> Ints:
    """Return the number of events that visit each key of a tree."""
    line = stretches.lines[hub]
    _, key = visits(line, np.ascontiguousarray(at[:, line.attribute]))
    return np.bincount(key, minlength=len(line.density))


def _relieve(
    stretches: Stretches,
    total: Doubles,
    hub: int,
    machine: int,
    light: Ints,
    counts: Ints | None,
    what: str,
    room: float,
) -> tuple[Stretches, int, Toll] | None:
    """Let one of the `light` machines take half of a stretch; return the stretches, the helper and the cost.

    `total` is what each machine stored before the round, and `room` what it may store. None if no light
    machine fits.
    """
    held, place = stretches.storage(hub), int(np.flatnonzero(stretches.node[hub] == machine)[0])
    cut: float | None = float(stretches.halved(hub, [place])[0])
    if what == "matching":
        assert counts is not None
        cut = _halving_key(stretches, hub, place, counts)
    if cut is None:
        return None
    places = np.flatnonzero(np.isin(stretches.node[hub], light))
    before = np.where(places > 0, places - 1, min(1, len(held) - 1))
    takes = stretches.node[hub][before]
    fits = (total[takes] + held[places] <= room) & (takes != machine)
    places = places[fits]
    if not len(places):
        return None
    # Of the machines that fit, the one that stores least in total.
    nodes = stretches.node[hub][places]
    helper = int(places[np.argmin(total[nodes])])
    after = stretches.moved(hub, helper=helper, place=place, cut=cut)
    node = int(stretches.node[hub][helper])
    now = int(np.flatnonzero(after.node[hub] == node)[0])
    keys = stretches.keys(hub)[helper] + after.keys(hub)[now]
    handed = held[helper] + after.storage(hub)[now]
    # A request and its reply; two links of the circle at both places; links between nodes of the tree.
    cost = Toll.handed(handed, batches=2) + Toll.control(2 + 4 + NEIGHBOURS * keys)
    return after, node, cost


def _halving_key(stretches: Stretches, hub: int, place: int, counts: Ints) -> float | None:
    """Return the key that halves the events of a stretch; None if there is none."""
    low, high = stretches.cuts[hub][place : place + 2]
    inner = np.arange(math.floor(low) + 1, math.ceil(high))
    if not len(inner):
        return None
    below = np.append(0, np.cumsum(counts[math.floor(low) : math.ceil(high)]))
    # Cutting pays only if both halves get events.
    part = below[1 : len(inner) + 1]
    worst = np.maximum(part, below[-1] - part)
    best = int(np.argmin(worst))
    return float(inner[best]) if worst[best] < below[-1] else None
