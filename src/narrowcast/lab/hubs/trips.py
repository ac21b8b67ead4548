"""Delays of events on their way to subscribers: counted hops, and seconds by a stated model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from narrowcast.costs.line_positions import MESSAGE
from narrowcast.lab.hubs.drtree import FANOUT
from narrowcast.lab.hubs.links import drawn
from narrowcast.lab.hubs.paths import holders, visits
from narrowcast.validation import check_number, check_seed, check_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from narrowcast.costs.line_positions import LineCharges
    from narrowcast.lab.hubs.drtree import DRTree
    from narrowcast.lab.hubs.links import Links
    from narrowcast.lab.hubs.overlay import MachineRings
    from narrowcast.lab.hubs.paths import Line

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]
    Flags: TypeAlias = NDArray[np.bool_]

#: Number of publishing machines, and of earlier lookups of each as a multiple of what it remembers.
PUBLISHERS, WARM = 64, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """The delay of a hop: a random latency, and the time to send an event.

    Latencies follow a log-normal law, drawn for each message. A machine sends the copies of an event one
    after the other. There is no queueing behind other events, and matching takes no time.

    Parameters
    ----------
    median_ms, spread
        Median latency in milliseconds, and the standard deviation of its logarithm; the defaults are about
        those of one-way pings across the world.
    mbit
        Sending rate of a machine in megabits per second; the default is the limit of a PlanetLab slice.
    size
        Bytes of an event.

    Examples
    --------
    >>> Delays().sending
    0.2048
    """

    median_ms: float = 40.0
    spread: float = 0.8
    mbit: float = 10.0
    size: float = MESSAGE

    def __post_init__(self) -> None:
        for name in ("median_ms", "spread", "size"):
            check_number(name, getattr(self, name), least=0, limit="a finite number of at least 0")
        check_number("mbit", self.mbit, least=1e-9, limit="a finite number above 0")

    @property
    def sending(self) -> float:
        """Seconds to send an event."""
        return self.size * 8 / (self.mbit * 1e6)

    def drawn(self, hops: Ints, rng: np.random.Generator) -> Doubles:
        """Return random latencies of paths with the given numbers of hops, in seconds, without sending."""
        each = np.exp(self.spread * rng.standard_normal(int(hops.sum()))) * self.median_ms / 1e3
        found = np.bincount(np.repeat(np.arange(len(hops)), hops), each, len(hops))
        return np.asarray(found, np.float64)


class Trip(NamedTuple):
    """Hops and seconds from the publisher to the agent of a subscriber, for each traced delivery."""

    hops: Doubles
    seconds: Doubles

    @property
    def mean_hops(self) -> float:
        """The mean number of hops; 0 without deliveries."""
        return float(self.hops.mean()) if len(self.hops) else 0.0

    @property
    def mean_seconds(self) -> float:
        """The mean number of seconds; 0 without deliveries."""
        return float(self.seconds.mean()) if len(self.seconds) else 0.0


class Trips:
    """Traces events to some of the filters that they match.

    Events are looked up from publishing machines, drawn at random. The last hop, to the agent of the
    subscriber, is one more message, which does not wait for other copies.

    Parameters
    ----------
    overlay
        Machines, filters, and the events to trace.
    links
        Links of the machines.
    delays
        The delay of hops.
    room
        Number of machines that a publisher remembers from earlier lookups, for each tree; 0 for none.
    each
        Largest number of traced filters per event.
    seed
        Seed of all random choices.
    """

    def __init__(
        self,
        overlay: MachineRings,
        links: Links,
        *,
        delays: Delays | None = None,
        room: int = 0,
        each: int = 20,
        seed: int = 0,
    ) -> None:
        check_whole("room", room, least=0)
        check_whole("each", each)
        check_seed(seed)
        self.overlay, self.links, self.room, self.seed = overlay, links, room, seed
        self.delays = Delays() if delays is None else delays
        rng = np.random.default_rng([seed, 1])
        publishers = rng.choice(links.n_nodes, min(PUBLISHERS, links.n_nodes), replace=False)
        #: The publishing machine of each event.
        self.source = rng.choice(publishers, len(overlay.events))
        #: Pairs of a traced event and a filter that it matches.
        self.event, self.filter = _traced(overlay, each, rng)

    def last(self, values: Doubles) -> float:
        """Return the mean over events of the largest value, that of the last traced subscriber."""
        most = np.full(len(self.overlay.events), -np.inf)
        np.maximum.at(most, self.event, values)
        found = most[np.isfinite(most)]
        return float(found.mean()) if len(found) else 0.0

    def trees(self, lines: Sequence[Line], home: Ints) -> Trip:
        """Return the trips with trees of attributes: to the key, and on to all machines with a segment.

        Parameters
        ----------
        lines
            The trees.
        home
            The attribute whose tree contains each filter.
        """
        rng = np.random.default_rng([self.seed, 2])
        hubs = self.overlay.hubs
        at = self.overlay.positions(self.overlay.events)
        hops, seconds = np.zeros(len(self.event)), np.zeros(len(self.event))
        for line in lines:
            a = line.attribute
            own = np.flatnonzero(home[self.filter] == a)
            looked_up, taken = self._lookup(line.density, at[:, a], len(lines), rng)
            event, chosen = self.event[own], self.filter[own]
            first, last = hubs.first[chosen, a], hubs.last[chosen, a]
            free = first < 0
            first, last = np.where(free, 0, first), np.where(free, hubs.n_positions - 1, last)
            value = at[event, a]
            key = holders(line.push, first, last, value)
            # If a key is spread over machines, a filter is on any of these, and an event enters at the first.
            machines = line.held.machines
            beside = (key != value) | (rng.random(len(key)) >= 1 / machines[key])
            visitor, visited = visits(line, np.ascontiguousarray(at[:, a]))
            copies = np.bincount(visitor, machines[visited], len(at)).round().astype(np.int64) - 1
            on, waits = self._sent_among(np.where(beside, copies[event], 0), rng)
            hops[own] = looked_up[event] + on
            seconds[own] = taken[event] + waits
        return self._with_last_hop(hops, seconds, rng)

    def everywhere(self, charges: LineCharges) -> Trip:
        """Return the trips if each attribute counts, and the agent waits for the last one (multi-1D)."""
        rng = np.random.default_rng([self.seed, 3])
        hubs = self.overlay.hubs
        at = self.overlay.positions(self.overlay.events)
        hops, seconds = np.zeros(len(self.event)), np.zeros(len(self.event))
        for a in range(hubs.n_attributes):
            machines = charges.machines(hubs.line(a, hubs.first[:, a] >= 0).popularity())
            looked_up, waited = self._lookup(hubs.density[a], at[:, a], hubs.n_attributes, rng)
            bounding = np.flatnonzero(hubs.first[self.filter, a] >= 0)
            event = self.event[bounding]
            many = machines[at[event, a]].astype(np.int64)
            on, waits = self._sent_among(np.where(rng.random(len(many)) >= 1 / many, many - 1, 0), rng)
            trip = self._with_last_hop(looked_up[event] + on, waited[event] + waits, rng)
            hops[bounding] = np.maximum(hops[bounding], trip.hops)
            seconds[bounding] = np.maximum(seconds[bounding], trip.seconds)
        return Trip(hops, seconds)

    def boxes(self, tree: DRTree) -> Trip:
        """Return the trips with one tree of boxes: to the machine of its root, and down to the leaf."""
        rng = np.random.default_rng([self.seed, 4])
        n = self.links.n_nodes
        even = np.full(n, 1 / n)
        target = drawn(even, len(self.overlay.events), rng)
        looked_up, waited = self._lookup(even, target, 1, rng)
        hops, seconds = looked_up[self.event].astype(np.float64), waited[self.event]
        for depth in range(len(tree.lo) - 1, 0, -1):
            node = tree.leaf[self.filter] // FANOUT**depth
            many = tree.branches(self.overlay.events[self.event], node, depth)
            on, waits = self._sent_among(many, rng)
            hops, seconds = hops + on, seconds + waits
        return self._with_last_hop(hops, seconds, rng)

    def _lookup(
        self, density: Doubles, target: Ints, trees: int, rng: np.random.Generator
    ) -> tuple[Ints, Doubles]:
        """Return hops and seconds of the lookup of each event in one of `trees` trees."""
        if self.room:
            askers = np.unique(self.source)
            before = np.repeat(askers, WARM * self.room)
            seen = drawn(density, len(before), rng)
            begin, end = np.concatenate([before, self.source]), np.concatenate([seen, target])
            hops = self.links.recalled(begin, end, room=self.room)[len(before) :]
        else:
            hops = self.links.hops(self.source, target)
        # The publisher sends to the trees one after the other, in random order.
        waits = rng.integers(0, trees, len(hops)) * (hops > 0)
        return hops, self.delays.drawn(hops, rng) + self.delays.sending * (hops + waits)

    def _sent_among(self, copies: Ints, rng: np.random.Generator) -> tuple[Ints, Doubles]:
        """Return hops and seconds of one of `copies` messages, sent in random order; 0 for no message."""
        hops = (copies > 0).astype(np.int64)
        rank = np.floor(rng.random(len(copies)) * copies) + hops
        return hops, self.delays.drawn(hops, rng) + self.delays.sending * rank

    def _with_last_hop(self, hops: Doubles | Ints, seconds: Doubles, rng: np.random.Generator) -> Trip:
        """Return the trips including the last hop, to the agent."""
        last = self.delays.drawn(np.ones(len(hops), np.int64), rng)
        return Trip(np.asarray(hops, np.float64) + 1.0, seconds + last + self.delays.sending)


def _traced(overlay: MachineRings, each: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Return pairs of an event and a filter that it matches, at most `each` per event."""
    low, high = (np.ascontiguousarray(ends.T) for ends in (overlay.lo, overlay.hi))
    events, filters = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for number, event in enumerate(overlay.events):
        left = np.flatnonzero((low[0] < event[0]) & (event[0] <= high[0]))
        for a in range(1, len(low)):
            left = left[(low[a][left] < event[a]) & (event[a] <= high[a][left])]
        some = rng.choice(left, min(each, len(left)), replace=False)
        events.append(np.full(len(some), number))
        filters.append(some)
    return np.concatenate(events), np.concatenate(filters)
