"""What events cost that are really sent by a plan, with a router, on Spark.

Scores of a plan go by flows: whoever meets a cell counts as wanting all of its events. Here each event goes
to those whom it matches, the way that a router decides. Blocks of matched events are replayed in the workers
by `narrowcast.routing.replay`, and add up exactly: however the tables are cut, the same numbers come out.
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
from narrowcast.spark.stages.broadcast_variable import shipped
from narrowcast.spark.stages.delivery_results import DeliveryTotals, PlanWithRouter, ReplayResult
from narrowcast.spark.stages.event_scan import over_events
from narrowcast.spark.stages.network import NOWHERE, NetworkTables

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

#: Matches that are replayed in one go, about.
PAIRS = 1 << 20
#: Publishers x nodes, and publishers x members of all channels, that a worker looks at in one go.
PLACES = 1 << 24

#: The plan among the totals that stands for all: what hangs on the events alone.
_ALL = -1
_TOTALS = "plan int, term string, value double"


def replay(
    matches: DataFrame,
    owners: DataFrame,
    plans: Mapping[str, PlanWithRouter],
    *,
    flow_space: Literal["cells", "events"],
    cells: DataFrame | None = None,
    network: NetworkTables = NOWHERE,
    multicast: Literal["dense", "alm"] = "dense",
    seed: int = 0,
    block: int = PAIRS,
) -> ReplayResult:
    """Send matched events by plans, and return what that costs, on a network or in messages.

    The matches are read once for all plans. A worker holds the plans, and 12 bytes for each subscription and
    for each event whose publisher is told. Who wants an event and is not in a plan is sent to directly, and
    so is an event in a cell that it lacks. On a network, whoever wants an event or listens has a node.

    Parameters
    ----------
    matches
        `event_id` and `subscription_ids`, one row for each event.
    owners
        `subscription_id` and `subscriber`; a match of a subscription that is not there counts for nobody.
    plans
        What to send events by.
    flow_space
        What the plans' flows are. Of events every channel with an interested listener may carry an event.
    cells
        For cells: `event_id` and `flow`, the cell that each event falls in, as `cells_of` gives them.
    network
        What events are sent over. Where its publishers are told by event, each event comes from its own; one
        that has none there, and all where they are not told so, from one that is drawn among them.
    multicast
        As for `Network`.
    seed
        Of what publishers are drawn by, together with the event's id.
    block
        About how many matches are replayed in one go.
    """
    spark = matches.sparkSession
    events = matches.select(EVENT_ID, "subscription_ids")
    columns: list[str] = []
    if cells is not None:
        events, columns = events.join(cells.select(EVENT_ID, "flow"), EVENT_ID), ["flow"]
    with plainly("replay the events"):
        everybody, ids, place = _owners(owners, plans)
        job = _job(everybody, ids, place, plans, flow_space, network, multicast, seed, block)
        with shipped(spark, job) as sent:
            work = partial(_replayed, job=sent)
            rows = events.select(EVENT_ID, "subscription_ids", *columns).mapInArrow(work, _TOTALS).collect()
    parts: dict[tuple[int, str], list[float]] = defaultdict(list)
    for row in rows:
        parts[row.plan, row.term].append(row.value)
    return _summed({key: math.fsum(values) for key, values in parts.items()}, plans, job)


def replay_inputs(
    taken: LoadedInterest,
    inputs: PlanInputs,
    plans: Mapping[str, PlanWithRouter],
    *,
    network: NetworkTables = NOWHERE,
    multicast: Literal["dense", "alm"] = "dense",
) -> ReplayResult:
    """Send all events that an interest was made from by plans; they are matched once, if they are not yet.

    Parameters
    ----------
    taken, inputs
        What `take` made of filters and events, and of what.
    plans, network, multicast
        As for `replay`.
    """
    content, matches = taken.content, taken.matches
    assert content is not None
    if matches is None:
        matches = content.match(strategy=inputs.strategy, memory=inputs.memory, seed=inputs.seed)
    cells = None
    if taken.edges is not None:
        cells = cells_of(content.events, CellGrid.of_keys(content.schema, taken.edges))
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
    """Return `event_id`, `flow`: the cell of a grid that each event falls in."""
    work = partial(_cells, grid=grid)
    return over_events(events, grid.attributes, work, "event_id bigint, flow bigint")


def _cells(batches: Iterator[pa.RecordBatch], grid: CellGrid) -> Iterator[pa.RecordBatch]:
    schema = Schema.of({name: grid.schema[name] for name in grid.attributes})
    for batch in batches:
        found = EventBatch.from_arrow(batch, schema)
        columns = [pa.array(found.event_id), pa.array(grid.cell_of(found))]
        yield pa.RecordBatch.from_arrays(columns, names=[EVENT_ID, "flow"])


def drawn_publishers(event_id: ArrayLike, nodes: ArrayLike, seed: int = 0) -> Ints:
    """Return a node for each event, drawn by its id and a seed alone.

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
    """Return few numbers that add up to exactly what many do, none of it rounded away.

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
        some = whole[exponent == power]
        # In two halves, so that the sums of many stay within 64 bits.
        high, low = int((some >> 27).sum()), int((some & ((1 << 27) - 1)).sum())
        total += Fraction((high << 27) + low) * Fraction(2) ** (power - 53)
    parts = []
    while total:
        parts.append(float(total))
        total -= Fraction(parts[-1])
    return parts


@dataclass(frozen=True, slots=True)
class _Route:
    """A plan over everybody, with its router; `known` are its flows, None where any channel will do.

    `channel` is that of each subscription, where the plan has one for each. `members` are the groups of
    everybody, and `finer` those of each subscription; None where it is in those of its subscriber.
    """

    plan: ChannelPlan
    router: Router
    known: Labels | None
    channel: Ints | None
    members: Relation
    finer: Relation | None

    @classmethod
    def of(cls, fitted: PlanRoutes, router: Router) -> _Route:
        """Return the way to send by a plan that is fitted to everybody."""
        plan, channel = fitted.plan, fitted.channel
        groups, finer = plan.groups(), None
        shape = (plan.n_subscribers, plan.n_channels)
        members = relation_of(rows_of(plan.listens), groups[plan.listens.indices], shape)
        if channel is not None:
            some = np.flatnonzero(channel >= 0)
            finer = relation_of(some, groups[channel[some]], (len(channel), plan.n_channels))
        known = None if fitted.flows is None else fitted.known
        return cls(plan, router, known, channel, members, finer)


@dataclass(frozen=True, slots=True)
class _Job:
    """What workers are sent: all in positions among everybody, nothing to be looked up by name."""

    everybody: Labels
    ids: Ints
    place: NDArray[np.int32]
    routes: list[_Route]
    network: Network | None
    among: Ints | None
    told: pa.Table | None
    nowhere: Ints
    names: Labels
    seed: int
    block: int


def _owners(owners: DataFrame, plans: Mapping[str, PlanWithRouter]) -> tuple[Labels, Ints, NDArray[np.int32]]:
    """Return all subscribers, the ids of subscriptions ascending, and whose each is."""
    names = owners.select("subscriber").distinct().toArrow()
    columns = [labels_in(names, "subscriber", "subscriptions").cast(pa.string())]
    columns += [each.plan.subscribers.cast(pa.string()) for each in plans.values()]
    everybody, _ = encode("subscriber", *columns)
    with shipped(owners.sparkSession, everybody) as labels:
        rows = owners.select("subscription_id", "subscriber").mapInArrow(
            partial(_placed, labels=labels), "subscription_id bigint, place int"
        )
        found = rows.toArrow()
    ids = found["subscription_id"].to_numpy()
    order = np.argsort(ids, kind="stable")
    return everybody, ids[order], found["place"].to_numpy()[order]


def _placed(batches: Iterator[pa.RecordBatch], labels: Broadcast[Labels]) -> Iterator[pa.RecordBatch]:
    """Yield subscriptions with the place of their subscriber among all."""
    for batch in batches:
        who = pc.index_in(batch.column("subscriber").cast(pa.string()), value_set=labels.value)
        yield pa.RecordBatch.from_arrays(
            [batch.column("subscription_id"), who], names=["subscription_id", "place"]
        )


def _job(
    everybody: Labels,
    ids: Ints,
    place: NDArray[np.int32],
    plans: Mapping[str, PlanWithRouter],
    flow_space: str,
    tables: NetworkTables,
    multicast: Literal["dense", "alm"],
    seed: int,
    block: int,
) -> _Job:
    """Return what workers are sent."""
    flows = None if flow_space == "events" else FlowAssignment()
    fitted = [
        PlanRoutes("", each.plan, flows).for_subscribers(everybody, ids, place) for each in plans.values()
    ]
    network = among = None
    nowhere = np.empty(0, np.int64)
    if tables.topology is not None:
        tables = tables.fitting(text=True)
        given: dict[str, Any] = {**tables.given, "multicast": multicast}
        here, nowhere = _nodes(tables, Network(**given), everybody, [each.plan for each in fitted])
        network = Network(**{**given, "locations": here})
        every = np.arange(network.topology.n_nodes) if tables.publishers is None else tables.publishers
        among = np.sort(every).astype(np.int64)
    routes = []
    for each, fit in zip(plans.values(), fitted, strict=True):
        router = router_maker(each.router, each.params)(network)
        routes.append(_Route.of(fit, router.for_plan(fit.plan)))
    numbers = pa.array(np.arange(len(everybody)))
    names = everybody.take(pa.array(nowhere))
    return _Job(numbers, ids, place, routes, network, among, tables.published, nowhere, names, seed, block)


def _nodes(
    tables: NetworkTables, network: Network, everybody: Labels, plans: Iterable[ChannelPlan]
) -> tuple[NDArray[np.int32], Ints]:
    """Return where everybody is, and who is nowhere: these must not want or listen to anything."""
    assert tables.topology is not None
    known = tables.topology.nodes if tables.locations is None else tables.locations.subscribers
    listening = [np.flatnonzero(np.diff(plan.listens.indptr)) for plan in plans]
    placed = np.unique(np.concatenate([np.flatnonzero(positions_of(everybody, known) >= 0), *listening]))
    found = np.zeros(len(everybody), np.int32)
    found[placed] = network.nodes_of(everybody.take(pa.array(placed)))
    return found, np.setdiff1d(np.arange(len(everybody)), placed)


def _replayed(batches: Iterator[pa.RecordBatch], job: Broadcast[_Job]) -> Iterator[pa.RecordBatch]:
    """Yield the totals of a task's events."""
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
    """Some events: who wants each, by which subscriptions, where it comes from, and the label of its flow."""

    interested: Matches
    matched: Matches
    publisher: Ints | None
    flow: Labels | None


def _blocks(batch: pa.RecordBatch, job: _Job) -> Iterator[_Block]:
    """Yield the events of a batch in blocks of bounded size."""
    lists = batch.column("subscription_ids")
    starts = np.append(0, np.cumsum(np.asarray(pc.fill_null(pc.list_value_length(lists), 0), np.int64)))
    ids = np.asarray(lists.flatten(), np.int64)
    at = np.minimum(np.searchsorted(job.ids, ids), max(0, len(job.ids) - 1))
    known = job.ids[at] == ids if len(job.ids) else np.zeros(len(ids), np.bool_)
    row = np.repeat(np.arange(batch.num_rows), np.diff(starts))[known]
    matched = Matches.from_pairs(row, at[known], batch.num_rows)
    interested = Matches.from_pairs(row, job.place[at[known]], batch.num_rows)
    lost = np.flatnonzero(np.isin(job.nowhere, interested.index))
    if len(lost):
        raise ParameterError(
            f"subscriber {job.names[int(lost[0])].as_py()!r} wants events and is nowhere; give its node in "
            "locations"
        )
    publisher = _publishers(batch, job)
    order, rank = np.arange(batch.num_rows), np.zeros(batch.num_rows, np.int64)
    if publisher is not None and job.network is not None:
        # Side by side, so that few trees are needed at once on a network of many nodes.
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
    """Return the number of the node that each event comes from; None without a network."""
    if job.among is None:
        return None
    found = drawn_publishers(batch.column(EVENT_ID), job.among, job.seed)
    if job.told is not None and job.told.num_rows:
        ids, known = batch.column(EVENT_ID).to_numpy(), job.told[EVENT_ID].to_numpy()
        at = np.minimum(np.searchsorted(known, ids), len(known) - 1)
        found = np.where(known[at] == ids, job.told["node"].to_numpy()[at], found)
    return found


def _sums(block: _Block, job: _Job) -> Iterator[tuple[int, str, ArrayLike]]:
    """Yield numbers to be added up, by plan and term."""
    again = EventReplay(job.network, block.publisher, block.interested, job.everybody)
    wanted = block.interested.counts()
    yield _ALL, "events", [float(np.count_nonzero(wanted))]
    yield _ALL, "wanted", [float(wanted.sum())]
    yield _ALL, "matched", [float(block.matched.n_pairs)]
    for name in ("unicast", "ideal", "broadcast"):
        yield _ALL, name, getattr(again, name)
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
        messages = again.messages(sent, route.plan)
        yield number, "cost", again.cost(sent, route.plan)
        for name in ("channel", "received", "direct", "wasted"):
            yield number, name, [float(getattr(messages, name).sum())]
        for name, count in _in_vain(sent, block, route, job).items():
            yield number, name, [float(count)]
        yield number, "outside", [float(np.count_nonzero(outside))]
        for method, count in enumerate(
            np.bincount(sent.method[wanted > 0], minlength=len(RouteMethod)).tolist()
        ):
            yield number, f"way {RouteMethod(method).label}", [float(count)]


def _in_vain(sent: Deliveries, block: _Block, route: _Route, job: _Job) -> dict[str, int]:
    """Return how many events come to who does not want them, and to which subscriptions without a match.

    What is sent to somebody directly is wanted, and is for the subscriptions that it matches.
    """
    groups = route.plan.groups()[sent.channels.index]
    carries = relation_of(sent.channels.rows(), groups, (sent.n_events, route.plan.n_channels))
    every = sent.method == RouteMethod.BROADCAST
    who, which = block.interested, block.matched
    got = is_reached(carries, route.members, who.rows(), who.index.astype(np.int64)) | every[who.rows()]
    people = reached(carries, route.members).sum() + every.sum() * route.plan.n_subscribers
    listens, weight, row = route.finer, None, np.arange(len(job.ids))
    if listens is None:
        weight = np.bincount(job.place, minlength=route.plan.n_subscribers)
        listens, row = route.members, job.place.astype(np.int64)
    hit = is_reached(carries, listens, which.rows(), row[which.index]) | every[which.rows()]
    finer = reached(carries, listens, weight).sum() + every.sum() * len(job.ids)
    return {"false_positives": int(people - got.sum()), "finer": int(finer - hit.sum())}


def _summed(
    totals: Mapping[tuple[int, str], float], plans: Mapping[str, PlanWithRouter], job: _Job
) -> ReplayResult:
    """Return totals as what came of each plan."""
    n_events, n_wanted, n_matched = (
        int(totals.get((_ALL, name), 0)) for name in ("events", "wanted", "matched")
    )
    ends = {name: totals.get((_ALL, name), 0.0) for name in ("unicast", "broadcast", "ideal")}

    def gain(cost: float) -> float | None:
        return None if job.network is None else Network.improvement(cost, ends["unicast"], ends["ideal"])

    all_at_once = n_events * len(job.everybody)
    messages = {
        "unicast": (0, 0, n_wanted, 0, 0, 0),
        "broadcast": (
            n_events,
            all_at_once,
            0,
            all_at_once - n_wanted,
            all_at_once - n_wanted,
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
        terms = ("channel", "received", "direct", "wasted", "false_positives", "finer", "outside")
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
