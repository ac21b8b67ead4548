"""Replay of matched events on Spark: the cost of sending each event by a plan and a router.

The costs of a plan are computed from flows: a subscriber whose box meets a cell of a grid counts as wanting
all of the cell's events. A replay sends each event to the subscribers that it matches, by the route that a
router chooses. Workers replay blocks, each of some thousands of events, with `narrowcast.routing.replay`. The
totals add up exactly, so they do not depend on how tables are partitioned.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.costs.false_positives import is_reached, reached
from narrowcast.costs.network import Network
from narrowcast.errors import ParameterError
from narrowcast.model.cells import CellGrid
from narrowcast.model.events import EventBatch
from narrowcast.model.labels import encode, labels_in
from narrowcast.model.matches import Matches
from narrowcast.model.relation import relation_of, rows_of
from narrowcast.model.schema import EVENT_ID, Schema
from narrowcast.planning.baselines.simple import stable_hash
from narrowcast.routing import RouteMethod, over_placed
from narrowcast.routing.plan_routes import FlowAssignment, PlanRoutes, positions_of
from narrowcast.routing.replay import EventReplay
from narrowcast.routing.router_parameters import router_maker
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.broadcast_variable import broadcast_value
from narrowcast.spark.stages.delivery_results import DeliveryTotals, PlanWithRouter, ReplayResult
from narrowcast.spark.stages.event_scan import over_events
from narrowcast.spark.stages.network import NO_NETWORK, NetworkTables

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import ArrayLike, NDArray
    from pyspark import Broadcast
    from pyspark.sql import DataFrame

    from narrowcast.model.labels import Labels
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.model.relation import Relation
    from narrowcast.routing import Deliveries, Router
    from narrowcast.spark.stages.plan_inputs import LoadedInterest, PlanInputs

    Ints = NDArray[np.int64]

#: Approximate number of matches that are replayed at once.
PAIRS = 1 << 20
#: Maximum of publishers x nodes, and of publishers x members of all channels, that a worker replays at once.
PLACES = 1 << 24

#: The plan number of totals that depend on the events alone.
_ALL = -1
_TOTALS = "plan int, term string, value double"


def replay(
    matches: DataFrame,
    owners: DataFrame,
    plans: Mapping[str, PlanWithRouter],
    *,
    flow_space: Literal["cells", "events"],
    cells: DataFrame | None = None,
    network: NetworkTables = NO_NETWORK,
    multicast: Literal["dense", "alm"] = "dense",
    seed: int = 0,
    block: int = PAIRS,
) -> ReplayResult:
    """Replay matched events with several plans, and return the costs, on a network or in messages.

    The matches are read once for all plans. A worker holds the plans, and 12 bytes for each subscription and
    for each event with a known publisher. Events are sent directly to interested subscribers that are not in
    a plan, and when their cell is not in the plan. On a network, every subscriber that wants an event or
    listens to a channel needs a node.

    Parameters
    ----------
    matches
        `event_id` and `subscription_ids`, one row for each event.
    owners
        `subscription_id` and `subscriber`. Matches of a subscription that is missing here are ignored.
    plans
        The plans with their routers, by name.
    flow_space
        Kind of the plans' flows. With `events`, any channel with an interested listener may carry an event.
    cells
        For `cells`: `event_id` and `flow`, the cell of each event, as from `cells_of`.
    network
        The network. An event comes from the publisher that the network knows for its id, otherwise from a
        publisher drawn at random.
    multicast
        As for `Network`.
    seed
        Seed for drawing publishers; the event's id enters, too.
    block
        Approximate number of matches that are replayed at once.

    Raises
    ------
    ParameterError
        When an interested subscriber has no node on the network.
    """
    spark = matches.sparkSession
    events = matches.select(EVENT_ID, "subscription_ids")
    columns: list[str] = []
    if cells is not None:
        events, columns = events.join(cells.select(EVENT_ID, "flow"), EVENT_ID), ["flow"]
    with plainly("replay the events"):
        subscribers, ids, place = _owners(owners, plans)
        job = _job(subscribers, ids, place, plans, flow_space, network, multicast, seed, block)
        with broadcast_value(spark, job) as shared_job:
            work = partial(_replay, job=shared_job)
            rows = events.select(EVENT_ID, "subscription_ids", *columns).mapInArrow(work, _TOTALS).collect()
    parts: dict[tuple[int, str], list[float]] = defaultdict(list)
    for row in rows:
        parts[row.plan, row.term].append(row.value)
    return _result({key: math.fsum(values) for key, values in parts.items()}, plans, job)


def replay_inputs(
    loaded: LoadedInterest,
    inputs: PlanInputs,
    plans: Mapping[str, PlanWithRouter],
    *,
    network: NetworkTables = NO_NETWORK,
    multicast: Literal["dense", "alm"] = "dense",
) -> ReplayResult:
    """Replay all events that an interest was made from; they are matched first if necessary.

    Parameters
    ----------
    loaded
        The result of `load_interest` for filters and events.
    inputs
        The inputs that it was loaded from.
    plans, network, multicast
        As for `replay`.
    """
    content, matches = loaded.content, loaded.matches
    assert content is not None
    if matches is None:
        matches = content.match(strategy=inputs.strategy, memory=inputs.memory, seed=inputs.seed)
    cells = None
    if loaded.edges is not None:
        cells = cells_of(content.events, CellGrid.of_keys(content.schema, loaded.edges))
    return replay(
        matches,
        content.owners,
        plans,
        flow_space="events" if cells is None else "cells",
        cells=cells,
        network=network,
        multicast=multicast,
        seed=inputs.seed,
    )


def cells_of(events: DataFrame, grid: CellGrid) -> DataFrame:
    """Return the cell of a grid that each event falls in: `event_id` and `flow`."""
    work = partial(_cells, grid=grid)
    return over_events(events, grid.attributes, work, "event_id bigint, flow bigint")


def _cells(batches: Iterator[pa.RecordBatch], grid: CellGrid) -> Iterator[pa.RecordBatch]:
    schema = Schema.of({name: grid.schema[name] for name in grid.attributes})
    for batch in batches:
        found = EventBatch.from_arrow(batch, schema)
        columns = [pa.array(found.event_id), pa.array(grid.cell_of(found))]
        yield pa.RecordBatch.from_arrays(columns, names=[EVENT_ID, "flow"])


def drawn_publishers(event_id: ArrayLike, nodes: ArrayLike, seed: int = 0) -> Ints:
    """Draw a publishing node for each event; it depends only on the event's id, the nodes and the seed.

    Parameters
    ----------
    event_id
        Ids of the events.
    nodes
        The nodes to draw from; one that is listed twice is twice as likely.
    seed
        Seed of the draw.

    Examples
    --------
    >>> drawn_publishers([1, 2, 3], [4, 5, 6, 7]).tolist()
    [4, 5, 7]
    """
    among = np.sort(np.asarray(nodes, np.int64))
    text = pc.binary_join_element_wise(str(seed), pa.array(event_id, pa.int64()).cast(pa.string()), ":")
    found: Ints = among[(stable_hash(text) % np.uint64(len(among))).astype(np.int64)]
    return found


def exact_parts(values: ArrayLike) -> list[float]:
    """Reduce many numbers to a few with exactly the same sum, without any rounding.

    Examples
    --------
    >>> exact_parts([0.1] * 10)
    [1.0, 5.551115123125783e-17]
    >>> exact_parts([])
    []
    """
    mantissa, exponent = np.frexp(np.asarray(values, np.float64))
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    total = Fraction(0)
    for power in np.unique(exponent).tolist():
        group = whole[exponent == power]
        # In two halves, so that the sums stay within 64 bits.
        high, low = int((group >> 27).sum()), int((group & ((1 << 27) - 1)).sum())
        total += Fraction((high << 27) + low) * Fraction(2) ** (power - 53)
    parts = []
    while total:
        parts.append(float(total))
        total -= Fraction(parts[-1])
    return parts


@dataclass(frozen=True, slots=True)
class _Route:
    """A plan extended to all subscribers, with its router, in the form that workers use.

    Parameters
    ----------
    plan, router
        The plan, and the fitted router.
    known
        The plan's flows; None when any channel with a listener may carry an event.
    channel
        The channel of each subscription, if the plan assigns one to each.
    members
        The groups (channels or their parents) that each subscriber listens to.
    subscription_members
        The groups of each subscription; None when they are those of its subscriber.
    """

    plan: ChannelPlan
    router: Router
    known: Labels | None
    channel: Ints | None
    members: Relation
    subscription_members: Relation | None

    @classmethod
    def of(cls, fitted: PlanRoutes, router: Router) -> _Route:
        """Prepare a plan, which must have all subscribers, and its router for workers."""
        plan, channel = fitted.plan, fitted.channel
        groups, subscription_members = plan.groups(), None
        shape = (plan.n_subscribers, plan.n_channels)
        members = relation_of(rows_of(plan.listens), groups[plan.listens.indices], shape)
        if channel is not None:
            assigned = np.flatnonzero(channel >= 0)
            subscription_members = relation_of(
                assigned, groups[channel[assigned]], (len(channel), plan.n_channels)
            )
        known = None if fitted.flows is None else fitted.known
        return cls(plan, router, known, channel, members, subscription_members)


@dataclass(frozen=True, slots=True)
class _Job:
    """The data of a replay that is broadcast to workers. Subscribers are positions in the list of all.

    Parameters
    ----------
    subscribers
        Positions of all subscribers, as labels.
    ids, place
        Ids of subscriptions, ascending, and the subscriber of each.
    routes
        The plans with their routers.
    network
        The network, if any.
    nodes
        Nodes to draw publishers from; None without a network.
    published
        Known publishers: `event_id`, ascending, and `node`.
    unplaced, names
        Subscribers without a node, and their names.
    seed, block
        As for `replay`.
    """

    subscribers: Labels
    ids: Ints
    place: NDArray[np.int32]
    routes: list[_Route]
    network: Network | None
    nodes: Ints | None
    published: pa.Table | None
    unplaced: Ints
    names: Labels
    seed: int
    block: int


def _owners(owners: DataFrame, plans: Mapping[str, PlanWithRouter]) -> tuple[Labels, Ints, NDArray[np.int32]]:
    """Return all subscribers, the ascending ids of subscriptions, and each one's subscriber as a position."""
    names = owners.select("subscriber").distinct().toArrow()
    columns = [labels_in(names, "subscriber", "subscriptions").cast(pa.string())]
    columns += [each.plan.subscribers.cast(pa.string()) for each in plans.values()]
    subscribers, _ = encode("subscriber", *columns)
    with broadcast_value(owners.sparkSession, subscribers) as labels:
        rows = owners.select("subscription_id", "subscriber").mapInArrow(
            partial(_to_positions, labels=labels), "subscription_id bigint, place int"
        )
        found = rows.toArrow()
    ids = found["subscription_id"].to_numpy()
    order = np.argsort(ids, kind="stable")
    return subscribers, ids[order], found["place"].to_numpy()[order]


def _to_positions(batches: Iterator[pa.RecordBatch], labels: Broadcast[Labels]) -> Iterator[pa.RecordBatch]:
    """Replace each subscription's subscriber by its position in the list of all subscribers."""
    for batch in batches:
        place = pc.index_in(batch.column("subscriber").cast(pa.string()), value_set=labels.value)
        yield pa.RecordBatch.from_arrays(
            [batch.column("subscription_id"), place], names=["subscription_id", "place"]
        )


def _job(
    subscribers: Labels,
    ids: Ints,
    place: NDArray[np.int32],
    plans: Mapping[str, PlanWithRouter],
    flow_space: str,
    tables: NetworkTables,
    multicast: Literal["dense", "alm"],
    seed: int,
    block: int,
) -> _Job:
    """Prepare the data that workers need for a replay: plans, routers, network, subscriptions' owners."""
    flows = None if flow_space == "events" else FlowAssignment()
    fitted = [
        PlanRoutes("", each.plan, flows).for_subscribers(subscribers, ids, place) for each in plans.values()
    ]
    network = nodes = None
    unplaced = np.empty(0, np.int64)
    if tables.topology is not None:
        tables = tables.fitting(text=True)
        given: dict[str, Any] = {**tables.given, "multicast": multicast}
        node_of, unplaced = _nodes(tables, Network(**given), subscribers, [each.plan for each in fitted])
        network = Network(**{**given, "locations": node_of})
        publishers = np.arange(network.topology.n_nodes) if tables.publishers is None else tables.publishers
        nodes = np.sort(publishers).astype(np.int64)
    routes = []
    for each, fit in zip(plans.values(), fitted, strict=True):
        router = router_maker(each.router, each.params)(network)
        routes.append(_Route.of(fit, router.for_plan(fit.plan)))
    numbers = pa.array(np.arange(len(subscribers)))
    names = subscribers.take(pa.array(unplaced))
    return _Job(numbers, ids, place, routes, network, nodes, tables.published, unplaced, names, seed, block)


def _nodes(
    tables: NetworkTables, network: Network, subscribers: Labels, plans: Iterable[ChannelPlan]
) -> tuple[NDArray[np.int32], Ints]:
    """Return the node of each subscriber, and the subscribers without a node.

    A subscriber without a node must not listen to a channel: that is an error here.
    """
    assert tables.topology is not None
    known = tables.topology.nodes if tables.locations is None else tables.locations.subscribers
    listening = [np.flatnonzero(np.diff(plan.listens.indptr)) for plan in plans]
    placed = np.unique(np.concatenate([np.flatnonzero(positions_of(subscribers, known) >= 0), *listening]))
    found = np.zeros(len(subscribers), np.int32)
    found[placed] = network.nodes_of(subscribers.take(pa.array(placed)))
    return found, np.setdiff1d(np.arange(len(subscribers)), placed)


def _replay(batches: Iterator[pa.RecordBatch], job: Broadcast[_Job]) -> Iterator[pa.RecordBatch]:
    """Replay the matched events of a task; yield the totals of each plan, by name of the total."""
    totals: dict[tuple[int, str], list[float]] = defaultdict(list)
    for batch in batches:
        for part in _blocks(batch, job.value):
            for plan, term, values in _sums(part, job.value):
                totals[plan, term] += exact_parts(values)
    rows = [(*key, value) for key, values in totals.items() for value in exact_parts(values)]
    kinds = [pa.int32(), pa.string(), pa.float64()]
    columns = zip(*rows, strict=True) if rows else [(), (), ()]
    arrays = [pa.array(list(column), kind) for column, kind in zip(columns, kinds, strict=True)]
    yield pa.RecordBatch.from_arrays(arrays, names=["plan", "term", "value"])


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of events: for each its interested subscribers, matching subscriptions, publisher and flow."""

    interested: Matches
    matched: Matches
    publisher: Ints | None
    flow: Labels | None


def _blocks(batch: pa.RecordBatch, job: _Job) -> Iterator[_Block]:
    """Divide a batch of matched events into blocks with a bounded number of matches."""
    lists = batch.column("subscription_ids")
    starts = np.append(0, np.cumsum(np.asarray(pc.fill_null(pc.list_value_length(lists), 0), np.int64)))
    ids = np.asarray(lists.flatten(), np.int64)
    at = np.minimum(np.searchsorted(job.ids, ids), max(0, len(job.ids) - 1))
    known = job.ids[at] == ids if len(job.ids) else np.zeros(len(ids), np.bool_)
    row = np.repeat(np.arange(batch.num_rows), np.diff(starts))[known]
    matched = Matches.from_pairs(row, at[known], batch.num_rows)
    interested = Matches.from_pairs(row, job.place[at[known]], batch.num_rows)
    lost = np.flatnonzero(np.isin(job.unplaced, interested.index))
    if len(lost):
        name = job.names[int(lost[0])].as_py()
        raise ParameterError(
            f"subscriber {name!r} wants events and is on no node of the network; add it to locations",
            parameter="locations",
            value=name,
        )
    publisher = _publishers(batch, job)
    order, rank = np.arange(batch.num_rows), np.zeros(batch.num_rows, np.int64)
    if publisher is not None and job.network is not None:
        # Sorted by publisher, so that a block needs few multicast trees on a network of many nodes.
        order = np.argsort(publisher, kind="stable")
        _, rank = np.unique(publisher[order], return_inverse=True)
        most = max([job.network.topology.n_nodes, *(route.plan.listens.nnz for route in job.routes)])
        rank = rank // max(1, PLACES // most)
    load = np.cumsum(interested.counts()[order]) // job.block
    for part in np.split(order, np.flatnonzero(np.diff(rank) | np.diff(load)) + 1):
        flow = batch.column("flow").take(pa.array(part)) if "flow" in batch.schema.names else None
        source = None if publisher is None else publisher[part]
        yield _Block(interested.take(part), matched.take(part), source, flow)


def _publishers(batch: pa.RecordBatch, job: _Job) -> Ints | None:
    """Return the publishing node of each event; None without a network."""
    if job.nodes is None:
        return None
    found = drawn_publishers(batch.column(EVENT_ID), job.nodes, job.seed)
    if job.published is not None and job.published.num_rows:
        ids, known = batch.column(EVENT_ID).to_numpy(), job.published[EVENT_ID].to_numpy()
        at = np.minimum(np.searchsorted(known, ids), len(known) - 1)
        found = np.where(known[at] == ids, job.published["node"].to_numpy()[at], found)
    return found


def _sums(block: _Block, job: _Job) -> Iterator[tuple[int, str, ArrayLike]]:
    """Replay a block of events with all plans; yield plan, name of the total, and the numbers to add up."""
    replayed = EventReplay(job.network, block.publisher, block.interested, job.subscribers)
    wanted = block.interested.counts()
    yield _ALL, "events", [float(np.count_nonzero(wanted))]
    yield _ALL, "wanted", [float(wanted.sum())]
    yield _ALL, "matched", [float(block.matched.n_pairs)]
    for name in ("unicast", "ideal", "broadcast"):
        yield _ALL, name, getattr(replayed, name)
    for number, route in enumerate(job.routes):
        flow, plan = np.zeros(len(wanted), np.int64), route.plan
        outside = np.zeros(len(wanted), np.bool_)
        if route.channel is not None:
            flow, plan = np.arange(len(wanted)), over_placed(plan, block.matched, route.channel)
        elif route.known is not None:
            assert block.flow is not None
            flow = positions_of(block.flow, route.known)
            carried = np.append(np.diff(route.plan.carries.indptr) > 0, False)
            outside = ~carried[flow] & (wanted > 0)
        sent = route.router.route(flow, block.interested, plan, block.publisher)
        messages = replayed.messages(sent, route.plan)
        yield number, "cost", replayed.cost(sent, route.plan)
        for name in ("channel", "received", "direct", "wasted"):
            yield number, name, [float(getattr(messages, name).sum())]
        for name, count in _false_positives(sent, block, route, job).items():
            yield number, name, [float(count)]
        yield number, "outside", [float(np.count_nonzero(outside))]
        for method, count in enumerate(
            np.bincount(sent.method[wanted > 0], minlength=len(RouteMethod)).tolist()
        ):
            yield number, f"way {RouteMethod(method).label}", [float(count)]


def _false_positives(sent: Deliveries, block: _Block, route: _Route, job: _Job) -> dict[str, int]:
    """Count the unwanted deliveries over channels, to subscribers and to subscriptions.

    Direct messages are always wanted, and are for the matching subscriptions only.
    """
    groups = route.plan.groups()[sent.channels.index]
    carries = relation_of(sent.channels.rows(), groups, (sent.n_events, route.plan.n_channels))
    flooded = sent.method == RouteMethod.BROADCAST
    interested, matched = block.interested, block.matched
    wanted = is_reached(carries, route.members, interested.rows(), interested.index.astype(np.int64))
    wanted |= flooded[interested.rows()]
    deliveries = reached(carries, route.members).sum() + flooded.sum() * route.plan.n_subscribers
    listens, weight, row = route.subscription_members, None, np.arange(len(job.ids))
    if listens is None:
        weight = np.bincount(job.place, minlength=route.plan.n_subscribers)
        listens, row = route.members, job.place.astype(np.int64)
    hits = is_reached(carries, listens, matched.rows(), row[matched.index]) | flooded[matched.rows()]
    subscription_deliveries = reached(carries, listens, weight).sum() + flooded.sum() * len(job.ids)
    return {
        "false_positives": int(deliveries - wanted.sum()),
        "subscription_false_positives": int(subscription_deliveries - hits.sum()),
    }


def _result(
    totals: Mapping[tuple[int, str], float], plans: Mapping[str, PlanWithRouter], job: _Job
) -> ReplayResult:
    """Return the result of a replay from the totals of each plan, by name of the total."""
    n_events, n_wanted, n_matched = (
        int(totals.get((_ALL, name), 0)) for name in ("events", "wanted", "matched")
    )
    ends = {name: totals.get((_ALL, name), 0.0) for name in ("unicast", "broadcast", "ideal")}

    def gain(cost: float) -> float | None:
        return None if job.network is None else Network.improvement(cost, ends["unicast"], ends["ideal"])

    flooded = n_events * len(job.subscribers)
    messages = {
        "unicast": (0, 0, n_wanted, 0, 0, 0),
        "broadcast": (
            n_events,
            flooded,
            0,
            flooded - n_wanted,
            flooded - n_wanted,
            n_events * len(job.ids) - n_matched,
        ),
        "ideal": (n_events, n_wanted, 0, 0, 0, 0),
    }
    baselines = {
        name: DeliveryTotals(cost, gain(cost), *messages[name], n_events) for name, cost in ends.items()
    }
    found = {}
    for number, (name, sending) in enumerate(plans.items()):
        cost = totals.get((number, "cost"), 0.0)
        unwanted = ("false_positives", "subscription_false_positives")
        terms = ("channel", "received", "direct", "wasted", "outside", *unwanted)
        counts = {term: int(totals.get((number, term), 0)) for term in terms}
        ways = {
            m.label: int(totals.get((number, f"way {m.label}"), 0))
            for m in RouteMethod
            if m != RouteMethod.NONE
        }
        found[name] = DeliveryTotals(
            cost, gain(cost), **counts, n_events=n_events, ways=ways, router=sending.router
        )
    return ReplayResult("messages" if job.network is None else "links", n_events, n_wanted, found, baselines)
