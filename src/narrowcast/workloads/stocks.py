"""Stock quotes as events, and subscriptions to them as boxes (riabov2003, section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
from scipy.special import ndtr

from narrowcast.errors import ParameterError
from narrowcast.model.schema import EVENT_ID, Schema
from narrowcast.validation import check_choice, check_seed
from narrowcast.workloads.base import BaseWorkload, box_filters, check_count, random_streams, zipf
from narrowcast.workloads.topologies import Edges, TransitStub, transit_stub

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]

#: Attributes of an event: side (buy, sell, transaction), stock, price and volume.
SCHEMA = Schema.of({"bst": "double", "name": "double", "quote": "double", "volume": "double"})

#: The transit blocks of the network: their shares of the subscriptions, and their mean stock names.
BLOCKS = np.array([0.4, 0.3, 0.3])
NAME_CENTRES = np.array([3.0, 10.0, 17.0])
#: Share of the subscriptions to each side.
SIDES = np.array([0.4, 0.4, 0.2])
#: The longest interval of names.
NAME_LENGTHS = 20
#: Share of subscriptions to any quote and to any volume. OPEN is the share of those bounded only below, and
#: also the share of those bounded only above.
ANY = {"quote": 0.15, "volume": 0.35}
OPEN = 0.1

#: A component of a mixture of normal distributions: weight, mean, standard deviation.
Normal: TypeAlias = tuple[float, float, float]
_SIDE: tuple[Normal, ...] = ((1.0, 1.0, 1.0),)
_VOLUME: tuple[Normal, ...] = ((1.0, 9.0, 6.0),)
#: For each number of modes, the mixture that each attribute of an event is drawn from. For nine modes the
#: paper names the third and fourth attribute yet leaves the fourth unchanged; we take it to mean the second
#: and third.
MIXTURES: dict[int, tuple[tuple[Normal, ...], ...]] = {
    1: (_SIDE, ((1.0, 10.0, 6.0),), ((1.0, 9.0, 2.0),), _VOLUME),
    4: (_SIDE, ((0.5, 12.0, 3.0), (0.5, 6.0, 2.0)), ((0.5, 4.0, 2.0), (0.5, 16.0, 2.0)), _VOLUME),
    9: (
        _SIDE,
        ((0.3, 4.0, 3.0), (0.4, 11.0, 3.0), (0.3, 18.0, 3.0)),
        ((0.3, 4.0, 3.0), (0.4, 9.0, 3.0), (0.3, 16.0, 3.0)),
        _VOLUME,
    ),
}
#: Indices of the attributes whose peaks drift, and the upper end of the range (0, DOMAIN] of the peaks.
MOVING = (1, 2)
DOMAIN = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stocks(BaseWorkload):
    """Interest in stocks as boxes, and quotes as points (riabov2003, section 5).

    A subscription has one side and intervals of names, quotes and volumes; `bst` is (0, 1] for buy, (1, 2]
    for sell and (2, 3] for transaction. Events are drawn from mixtures of normal distributions,
    independently for each attribute.

    A subscriber is a node of a network, named by block, stub and node, such as `b1.s03.n17`. Blocks have
    subscriptions in proportion 40 : 30 : 30; within a block stubs, and within a stub nodes, follow Zipf's
    law. The network is `transit_stub` of the same seed, with 3 blocks.

    Parameters
    ----------
    n_subscriptions
        Number of subscriptions.
    n_events
        Number of events. A larger number changes neither the subscriptions nor the first events.
    modes
        Number of peaks of the events: 1, 4 (two names by two quotes) or 9 (three by three).
    edges
        How the costs of network links are drawn: `levels`, `nested` or `hops`; see `transit_stub`. Nothing
        else depends on it.
    drift
        How far the peaks of the events have moved along names and quotes, as a share of their range
        (0, 20]; peaks are reflected at the ends of the range. Subscriptions and all other random choices are
        independent of it.
    nodes
        Number of nodes of the network, at least two per block.
    seed
        Seed of all random choices, at least 0.

    Examples
    --------
    >>> stocks = Stocks(n_subscriptions=3, n_events=2, seed=1)
    >>> stocks.tables()["subscriptions"].column_names, stocks.tables()["events"].num_rows
    (['subscription_id', 'subscriber', 'filter'], 2)
    >>> lo, hi = stocks.boxes()
    >>> lo.shape
    (3, 4)
    """

    n_subscriptions: int = 1000
    n_events: int = 10_000
    modes: Literal[1, 4, 9] = 1
    edges: Edges = "levels"
    drift: float = 0.0
    nodes: int = 600
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("n_subscriptions", self.n_subscriptions)
        check_count("n_events", self.n_events)
        if self.modes not in MIXTURES:
            limit = f"one of {', '.join(map(str, MIXTURES))}"
            raise ParameterError(parameter="modes", value=self.modes, limit=limit)
        check_choice("edges", self.edges, get_args(Edges))
        check_count("nodes", self.nodes)
        if self.nodes < 2 * len(BLOCKS):
            limit = f"at least {2 * len(BLOCKS)}, two per block"
            raise ParameterError(parameter="nodes", value=self.nodes, limit=limit)
        number = isinstance(self.drift, int | float | np.number) and not isinstance(self.drift, bool)
        if not number or not np.isfinite(self.drift):
            limit = "a finite number, a share of the range of names"
            raise ParameterError(parameter="drift", value=self.drift, limit=limit)
        check_seed(self.seed)

    def mixtures(self) -> list[tuple[Doubles, Doubles, Doubles]]:
        """Return, per attribute, the weights, means and standard deviations of the mixture of events.

        Examples
        --------
        >>> [weight, mean, deviation] = Stocks(modes=9, drift=0.25).mixtures()[1]
        >>> mean.tolist()  # 4, 11 and 18 moved by 5: the last turns at 20
        [9.0, 16.0, 17.0]
        """
        found = []
        for i, mixture in enumerate(MIXTURES[self.modes]):
            weight, mean, deviation = np.array(mixture, np.float64).T
            if i in MOVING:
                moved = (mean + DOMAIN * self.drift) % (2 * DOMAIN)
                mean = np.minimum(moved, 2 * DOMAIN - moved)
            found.append((weight, mean, deviation))
        return found

    def tables(self) -> dict[str, pa.Table]:
        """Return subscriptions, events, the network and the locations of subscribers.

        The tables are `subscriptions` (subscription_id, subscriber, filter), `events` (event_id, ...),
        `topology` (a, b, cost) and `locations` (subscriber, node); a subscriber has the name of its node.
        """
        lo, hi = self.boxes()
        network = self.network()
        names = network.topology.nodes.take(self._nodes(network))
        subscribers = names.unique().sort()
        subscriptions = pa.table(
            {
                "subscription_id": np.arange(self.n_subscriptions),
                "subscriber": names,
                "filter": box_filters(SCHEMA.names, lo, hi),
            }
        )
        points = self.points()
        attributes = {name: points[:, i] for i, name in enumerate(SCHEMA.names)}
        return {
            "subscriptions": subscriptions,
            "events": pa.table({EVENT_ID: np.arange(self.n_events), **attributes}),
            "topology": network.topology.to_table(),
            "locations": pa.table({"subscriber": subscribers, "node": subscribers}),
        }

    def boxes(self) -> tuple[Doubles, Doubles]:
        """Return the ends (lo, hi] of the subscriptions' boxes: a row per box and a column per attribute."""
        rng = self._streams()[1]
        n, block = self.n_subscriptions, self._blocks()
        lo, hi = np.empty((n, 4)), np.empty((n, 4))
        lo[:, 0] = rng.choice(3, n, p=SIDES)
        hi[:, 0] = lo[:, 0] + 1
        centre = rng.normal(NAME_CENTRES[block], 4)
        half = rng.choice(NAME_LENGTHS, n, p=zipf(NAME_LENGTHS)) / 2 + 0.5
        lo[:, 1], hi[:, 1] = centre - half, centre + half
        lo[:, 2], hi[:, 2] = _intervals(rng, n, ANY["quote"])
        lo[:, 3], hi[:, 3] = _intervals(rng, n, ANY["volume"])
        return lo, hi

    def subscribers(self) -> pa.Array:
        """Return the name of each subscription's subscriber."""
        network = self.network()
        return network.topology.nodes.take(self._nodes(network))

    def network(self) -> TransitStub:
        """Return the network that subscribers are nodes of, with the place of each node on the plane."""
        return transit_stub(self.seed, blocks=len(BLOCKS), nodes=self.nodes, edges=self.edges)

    def points(self) -> Doubles:
        """Return the events, one row per event and one column per attribute."""
        _, _, _, pick, draw = self._streams()
        chance = pick.random((self.n_events, 4))
        points = draw.standard_normal((self.n_events, 4))
        for i, (weight, mean, deviation) in enumerate(self.mixtures()):
            part = np.searchsorted(np.cumsum(weight)[:-1], chance[:, i], side="right")
            points[:, i] = mean[part] + deviation[part] * points[:, i]
        return points

    def density(self, lo: ArrayLike, hi: ArrayLike) -> Doubles:
        """Return the probability that an event falls in each box (lo, hi].

        Parameters
        ----------
        lo, hi
            Ends of the boxes; the last axis has one entry per attribute, infinite where unbounded.

        Examples
        --------
        >>> Stocks().density([0, -np.inf, 9, 9], [1, np.inf, np.inf, np.inf]).round(4).item()
        0.0853
        """
        low, high = np.asarray(lo, np.float64), np.asarray(hi, np.float64)
        sides = []
        for i, (weight, mean, deviation) in enumerate(self.mixtures()):
            below, above = ((end[..., i, None] - mean) / deviation for end in (low, high))
            sides.append(np.maximum(ndtr(above) - ndtr(below), 0) @ weight)
        return np.asarray(np.prod(sides, axis=0), np.float64)

    def _nodes(self, network: TransitStub) -> Ints:
        """Draw the node of each subscription, as an index into the nodes of the network."""
        rng = self._streams()[0]
        block, node = self._blocks(), np.empty(self.n_subscriptions, np.int64)
        # The order of popularity of the stubs of a block, and of the nodes of a stub, is random.
        stubs = [rng.permutation(network.n_stubs(number)) for number in range(len(BLOCKS))]
        order = rng.permutation(len(network.block))
        for number, ranked in enumerate(stubs):
            in_block = np.flatnonzero(block == number)
            stub = ranked[rng.choice(len(ranked), len(in_block), p=zipf(len(ranked)))]
            for each in range(len(ranked)):
                nodes = order[(network.block[order] == number) & (network.stub[order] == each)]
                in_stub = in_block[stub == each]
                node[in_stub] = nodes[rng.choice(len(nodes), len(in_stub), p=zipf(len(nodes)))]
        return node

    def _blocks(self) -> Ints:
        """Draw the block of each subscription; the shares are exact and the order is random."""
        ends = np.rint(np.cumsum(BLOCKS) * self.n_subscriptions).astype(np.int64)
        block = np.repeat(np.arange(len(BLOCKS)), np.diff(ends, prepend=0))
        return self._streams()[2].permutation(block)

    def _streams(self) -> list[np.random.Generator]:
        """Return one random generator each for nodes, boxes, blocks, and the modes and values of events."""
        return random_streams(self.seed, 5)


def _intervals(rng: np.random.Generator, n: int, anything: float) -> tuple[Doubles, Doubles]:
    """Draw the paper's intervals of quotes and volumes: unbounded, bounded below or above, or centred.

    `anything` is the share of unbounded intervals. The length of centred intervals follows Pareto's law,
    P(length > x) = 4 / x for x >= 4.
    """
    kind = np.searchsorted(np.cumsum([anything, OPEN, OPEN]), rng.random(n), side="right")
    end, centre = rng.normal(9, 1, n), rng.normal(9, 2, n)
    half = 2 / (1 - rng.random(n))
    lo = np.choose(kind, [-np.inf, end, -np.inf, centre - half])
    hi = np.choose(kind, [np.inf, np.inf, end, centre + half])
    return lo, hi
