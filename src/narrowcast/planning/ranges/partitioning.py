"""Partitioners of the matching work by name: k-d trees, the trees of COBAS, and hashing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, get_args

import numpy as np

from narrowcast.costs.line_positions import LineCharges, LinePositions, capacity_factor
from narrowcast.errors import ParameterError
from narrowcast.matching.match_queries import require_fitting, require_subscriptions
from narrowcast.matching.partition.base import MOST_PARTS, shared
from narrowcast.matching.partition.partitioner import WEIGHT, Partitioner
from narrowcast.matching.partition.ranges import RangeTree, RangeTrees, hulls_of
from narrowcast.model.keys import NO_HIGH, NO_LOW, NULL, last
from narrowcast.planning.ranges.division import Division, Way
from narrowcast.planning.ranges.merging import AttributeLines, Merging, Routing, Search
from narrowcast.registry import Registry
from narrowcast.validation import check_choice, check_number, check_seed, check_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from narrowcast.matching.partition.base import Parts
    from narrowcast.model.events import EventBatch
    from narrowcast.model.schema import Schema
    from narrowcast.model.subscriptions import SubscriptionSet

    Ints: TypeAlias = NDArray[np.int64]
    Doubles: TypeAlias = NDArray[np.float64]

#: The most attributes with a tree: those bounded by the most subscriptions.
_ATTRIBUTES = 32
#: The most subscriptions from which trees are made, a random sample of all.
_SUBSCRIPTIONS = 50_000


class Scheme(Protocol):
    """Divides the matching work into partitions, for subscriptions and for events that resemble a sample."""

    def fit(self, subscriptions: SubscriptionSet, sample: EventBatch) -> Parts:
        """Return the partitions of the matching work for subscriptions and a sample of events."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CobasPartitioner:
    """Partitions the matching work by trees over attribute values, as published for COBAS (cobas2009).

    An event visits every position above its own that does not hand its side down. Unlike in the paper, this
    is not limited by the intervals stored there: later subscriptions may reach further than the sample's.

    Parameters
    ----------
    parts
        The most partitions; the number of positions is chosen so that all their machines do not exceed it.
    routing, search, way
        As for `Merging`: which tree stores a subscription, which trees are kept, how intervals are divided.
    kappa
        The most subscriptions of a machine as a multiple of its even share; 0 or inf for no limit.
    upkeep
        The cost of storing every subscription once, in copies of every event. A lower one cuts intervals into
        more pieces, and gives events fewer copies.
    seed
        Seed of the sample of subscriptions and of random routing.

    Examples
    --------
    >>> import narrowcast as nc
    >>> schema = nc.Schema.of({"price": "double", "size": "double"})
    >>> texts = [f"price > {p} AND price <= {p + 30}" for p in range(0, 70, 5)] + ["size > 5"] * 6
    >>> made = nc.compile_filters(schema, texts)
    >>> events = nc.EventBatch.from_rows([{"price": p + 0.5, "size": p % 10} for p in range(100)], schema)
    >>> parts = CobasPartitioner(parts=16).fit(made.subscriptions, events)
    >>> parts.parts <= 16, len(parts.trees)
    (True, 1)
    """

    parts: int = 64
    routing: Routing = "selective"
    search: Search = "greedy"
    way: Way = "optimal"
    kappa: float = 10.0
    upkeep: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("parts", self.parts)
        if self.parts > MOST_PARTS:
            limit = f"an integer from 1 to {MOST_PARTS}"
            raise ParameterError(parameter="parts", value=self.parts, limit=limit)
        for name, known in (
            ("routing", get_args(Routing)),
            ("search", get_args(Search)),
            ("way", get_args(Way)),
        ):
            check_choice(name, getattr(self, name), known)
        capacity_factor(self.kappa)
        check_number("upkeep", self.upkeep, least=0.0, limit="a number of at least 0")
        check_seed(self.seed)

    def fit(self, subscriptions: SubscriptionSet, sample: EventBatch) -> RangeTrees:
        """Return the partitions for subscriptions and events that resemble a sample."""
        require_subscriptions(subscriptions)
        require_fitting(sample, subscriptions.schema)
        rng = np.random.default_rng(self.seed)
        some = subscriptions
        if len(some) > _SUBSCRIPTIONS:
            some = some.take(np.sort(rng.permutation(len(some))[:_SUBSCRIPTIONS]))
        load = _Load.of(some, sample, rng)
        # Even one position per attribute may be too many: then subscriptions are hashed.
        best: tuple[RangeTree, ...] = (
            RangeTree(0, _EMPTY, np.zeros((1, 2), bool), np.array([self.parts]), _EMPTY),
        )
        least, most, n = 1, self.parts, self.parts
        while least <= most:
            trees = self._trees(load, n)
            many = int(sum(tree.machines.sum() for tree in trees))
            if many <= self.parts:
                best, least = trees, n + 1
            else:
                most = min(n - 1, n * self.parts // many + 1)
            n = (least + most) // 2 if many <= self.parts else most
        return RangeTrees(subscriptions.schema, best)

    def _trees(self, load: _Load, n: int) -> tuple[RangeTree, ...]:
        """Return the range trees for a load, with at most n positions each."""
        edges = [
            np.unique(pool[np.arange(1, n) * len(pool) // n]) if len(pool) else _EMPTY for pool in load.pools
        ]
        # The last range is unbounded, so that it includes values beyond the last one seen.
        edges = [
            each[each < pool[-1]] if len(pool) else each for each, pool in zip(edges, load.pools, strict=True)
        ]
        m = max((len(each) for each in edges), default=0) + 1
        shape = len(load.lo), len(edges)
        density = np.zeros((max(1, len(edges)), m))
        first, till = np.full(shape, -1, np.int64), np.full(shape, -1, np.int64)
        for i, ends in enumerate(edges):
            bounded = (load.lo[:, i] > NO_LOW) | (load.hi[:, i] < NO_HIGH)
            at = np.searchsorted(ends, load.keys[i])
            density[i] = np.bincount(at, minlength=m) / max(1, len(at))
            first[bounded, i] = np.searchsorted(ends, load.lo[bounded, i], side="right")
            till[bounded, i] = np.searchsorted(ends, load.hi[bounded, i])
        if not edges:
            first, till, edges = np.full((shape[0], 1), -1), np.full((shape[0], 1), -1), [_EMPTY]
        charges = self._charges(len(load.lo), m)
        hubs = AttributeLines(density, first, till)
        merged = Merging(
            search=self.search, routing=self.routing, way=self.way, charges=charges, seed=self.seed
        ).fit(hubs)
        attribute = load.attribute if len(load.attribute) else np.zeros(1, np.int64)
        made = []
        for i, tree in merged.trees_.items():
            whole = hubs.line(i, tree.filters)
            size = len(edges[i]) + 1
            # This attribute may have fewer distinct values than others have ranges.
            line = LinePositions(
                whole.density[:size], np.minimum(whole.first, size - 1), np.minimum(whole.last, size - 1)
            )
            division = Division(way=self.way, charges=charges).fit(line)
            made.append(_tree(int(attribute[i]), edges[i], line, division, charges, self.routing))
        return tuple(made)

    def _charges(self, subscriptions: int, positions: int) -> LineCharges:
        """Return the prices of messages and storage, in units of one copy of all events."""
        each = max(1, subscriptions)
        room = capacity_factor(self.kappa) * each / positions
        return LineCharges(message=1.0, segment=self.upkeep / each, capacity=room)


_EMPTY = np.empty(0, np.int64)


def _tree(
    attribute: int,
    edges: Ints,
    line: LinePositions,
    division: Division,
    charges: LineCharges,
    routing: Routing,
) -> RangeTree:
    """Return the range tree of an attribute, whose positions store intervals as the division decides."""
    held, here = division.held_, np.arange(len(line))
    # A side without intervals is handed down at no cost: events from there need not visit.
    idle = np.stack([held.first >= here, held.last <= here], axis=1) | (held.segments == 0)[:, None]
    machines = charges.machines(held.segments).astype(np.int64)
    weight = shared(np.maximum(line.density, 1e-9), WEIGHT) if routing == "selective" else _EMPTY
    return RangeTree(attribute, edges, division.push_ | idle, machines, weight)


@dataclass(frozen=True, slots=True)
class _Load:
    """What trees are made for: attributes, values of events, and ends of subscriptions, each sorted."""

    attribute: Ints
    keys: list[Ints]
    lo: Ints
    hi: Ints
    pools: list[Ints]

    @classmethod
    def of(cls, subscriptions: SubscriptionSet, sample: EventBatch, rng: np.random.Generator) -> _Load:
        """Return the load of subscriptions and sampled events; without events, box ends take their place."""
        boxes, schema = subscriptions.boxes, subscriptions.schema
        often = np.bincount(boxes.attribute, minlength=len(schema))
        attribute = np.sort(np.argsort(-often, kind="stable")[:_ATTRIBUTES])
        attribute = attribute[often[attribute] > 0]
        lo, hi, alive = hulls_of(boxes, attribute.tolist())
        keys, pools = [], []
        for i, a in enumerate(attribute.tolist()):
            ends = _inner(np.concatenate([lo[alive, i], hi[alive, i]]), schema, a)
            keys.append(sample.keys(a) if len(sample) else rng.permutation(ends))
            pools.append(np.sort(np.concatenate([keys[-1], ends])))
        return cls(attribute, keys, lo[alive], hi[alive], pools)


def _inner(ends: Ints, schema: Schema, a: int) -> Ints:
    """Return the ends of boxes that lie between two values of attribute `a`."""
    return ends[(ends > NULL) & (ends < last(schema.types[a]))]


def _kd(*, routing: str) -> Any:
    """Return a function that creates a k-d partitioner with the given routing."""

    def make(**options: Any) -> Partitioner:
        return Partitioner(**{"routing": routing, **options})

    return make


def _hash(*, parts: int = 64, **options: Any) -> Partitioner:
    """Return a partitioner that hashes subscriptions, and sends every event to all partitions."""
    options["copies"] = parts
    return Partitioner(parts=parts, **options)


#: Functions that make a partitioner from keyword parameters, by name.
SCHEMES: Registry[Any] = Registry("scheme")
SCHEMES.register("kd")(_kd(routing="hash"))
SCHEMES.register("selective")(_kd(routing="selective"))
SCHEMES.register("cobas")(CobasPartitioner)
SCHEMES.register("hash")(_hash)

#: Parameters of each scheme in addition to parts and seed.
TAKES: Mapping[str, tuple[str, ...]] = {
    "kd": ("copies", "work"),
    "selective": ("copies", "work"),
    "cobas": ("routing", "search", "way", "kappa", "upkeep"),
    "hash": ("work",),
}


def scheme(name: str, **params: Any) -> Scheme:
    """Return the partitioner with a given name; a parameter of None has its default.

    Examples
    --------
    >>> scheme("kd", parts=8, copies=2, seed=None)
    Partitioner(parts=8, copies=2, routing='hash', work=None, seed=0)
    >>> scheme("hash", copies=2)
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: copies=2: not a parameter of scheme 'hash'; it has work, parts, seed
    """
    make = SCHEMES[name]
    given = {key: value for key, value in params.items() if value is not None}
    known = ("parts", "seed", *TAKES[name])
    if odd := [key for key in given if key not in known]:
        raise ParameterError(
            f"{odd[0]}={given[odd[0]]!r}: not a parameter of scheme {name!r}; "
            f"it has {', '.join(TAKES[name])}, parts, seed",
            parameter=odd[0],
            value=given[odd[0]],
        )
    made: Scheme = make(**given)
    return made
