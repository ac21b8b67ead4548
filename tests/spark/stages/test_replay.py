"""Events replayed on Spark: the same as in one process, and as a loop over them by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import narrowcast as nc
import narrowcast.spark.stages.replay as replaying
from narrowcast.errors import ParameterError
from narrowcast.model.cells import CellGrid
from narrowcast.model.placement import Placement
from narrowcast.routing import RouteMethod
from narrowcast.routing.replay import EventReplay
from narrowcast.routing.router_parameters import router_maker
from narrowcast.spark.stages.delivery_results import PlanWithRouter, ReplayResult
from narrowcast.spark.stages.network import NO_NETWORK, NetworkTables
from narrowcast.spark.stages.replay import cells_of, drawn_publishers, exact_parts, replay
from support.errors import refused

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

#: Two rings of nodes joined by a dear link, with ties between paths.
NODES = [f"n{i}" for i in range(6)]
LINKS = nc.Topology([0, 1, 0, 3, 4, 3, 2], [1, 2, 2, 4, 5, 5, 3], [1.0, 1.5, 2.0, 0.1, 0.2, 0.3, 7.0], NODES)
PEOPLE = list("abcdefgh")
PLACES = nc.Locations(PEOPLE, [0, 1, 2, 3, 4, 5, 5, 0])
#: What each subscription's owner is; `h` has one and is in no plan.
OWNER = [*PEOPLE, "a", "b", "h"]


@dataclass
class Case:
    """Matched events with the cell of each, a plan of cells over most subscribers, and how to send."""

    matches: dict[int, list[int]]
    cell: dict[int, int]
    plan: nc.ChannelPlan
    router: str
    flow_space: str
    on_network: bool

    @property
    def tables(self) -> NetworkTables:
        return NetworkTables(LINKS, PLACES) if self.on_network else NO_NETWORK

    def frames(self, spark: SparkSession, partitions: int) -> tuple[DataFrame, DataFrame, DataFrame]:
        rows = list(self.matches.items())
        matched = spark.createDataFrame(rows, "event_id bigint, subscription_ids array<bigint>")
        people = spark.createDataFrame(list(enumerate(OWNER)), "subscription_id bigint, subscriber string")
        cells = spark.createDataFrame(list(self.cell.items()), "event_id bigint, flow bigint")
        return matched.repartition(partitions), people.repartition(partitions), cells

    def on_spark(self, spark: SparkSession, partitions: int = 1, block: int = 1 << 20) -> ReplayResult:
        matched, people, cells = self.frames(spark, partitions)
        return replay(
            matched,
            people,
            {"mine": PlanWithRouter(self.plan, self.router)},
            flow_space=self.flow_space,  # type: ignore[arg-type]
            cells=cells if self.flow_space == "cells" else None,
            network=self.tables,
            seed=3,
            block=block,
        )

    def wanting(self) -> dict[int, set[str]]:
        return {e: {OWNER[i] for i in ids if i < len(OWNER)} for e, ids in self.matches.items()}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    ids = st.lists(st.integers(0, len(OWNER)), unique=True, min_size=1, max_size=8).map(sorted)
    matches = draw(st.dictionaries(st.integers(-5, 60), ids, max_size=12))
    cell = {event: draw(st.integers(0, 5)) for event in matches}
    n_sessions, n_groups = draw(st.integers(0, 3)), draw(st.integers(0, 1))
    parent = [draw(st.sampled_from([-1, n_sessions] if n_groups else [-1])) for _ in range(n_sessions)]
    bits = st.lists(st.booleans(), min_size=n_sessions, max_size=n_sessions)
    carries = [[*draw(bits), *[False] * n_groups] for _ in range(4)]
    listens = [[*draw(bits), *[False] * n_groups] for _ in range(7)]
    shape = n_sessions + n_groups
    space = draw(st.sampled_from(["cells", "events"]))
    # Some subscriptions are in a channel, whether or not their subscriber listens to it.
    heard = np.flatnonzero(np.reshape(listens, (7, shape)).any(axis=0)).tolist()
    placed: dict[int, int] = {}
    if space == "events" and heard and draw(st.booleans()):
        placed = draw(st.dictionaries(st.integers(0, len(OWNER)), st.sampled_from(heard), min_size=1))
    plan = nc.ChannelPlan(
        np.reshape(carries, (4, shape)),
        np.reshape(listens, (7, shape)),
        [*parent, *[-1] * n_groups],
        subscribers=PEOPLE[:7],
        flows=[1, 2, 3, 9],
        subscriptions=Placement(list(placed), list(placed.values())) if placed else None,
    )
    router = draw(st.sampled_from(sorted(nc.ROUTERS)))
    return Case(matches, cell, plan, router, space, draw(st.booleans()))


def by_links(root: int, who: set[int], *, once: bool) -> float:
    """What messages to the nodes of some cost: each link of a tree once, or each path by itself."""
    tree, paid = LINKS.trees([root]), []
    for node in {int(PLACES.node[s]) for s in who}:
        while tree.parent[0, node] >= 0:
            paid.append(node)
            node = int(tree.parent[0, node])
    return math.fsum(tree.link[0, node] for node in (set(paid) if once else paid))


def locally(case: Case) -> dict[str, float]:
    """The same in one process, event by event: what each costs alone, and its messages counted by hand."""
    plan, order = case.plan, sorted(case.wanting().items())
    listens = np.vstack(
        [plan.listens.toarray(), np.zeros((1, plan.n_channels), bool)]
    )  # h listens to nothing
    carries, parent = plan.carries.toarray(), plan.parent
    if case.flow_space == "events":
        carries = ~np.isin(np.arange(plan.n_channels), parent)[None]
    fitted = nc.ChannelPlan(carries, listens, parent, subscribers=PEOPLE)
    owner = [PEOPLE.index(name) for name in OWNER]
    said = [] if plan.subscriptions is None else plan.subscriptions.to_table().to_pylist()
    placed = {each["subscription_id"]: each["channel"] for each in said}
    placed = {i: c for i, c in placed.items() if i < len(OWNER) and listens[owner[i], c]}
    network = nc.Network(**case.tables.given) if case.on_network else None
    router = router_maker(case.router)(network)
    flows = plan.flows.to_pylist()
    terms = (
        "cost",
        "channel",
        "received",
        "direct",
        "wasted",
        "outside",
        "false_positives",
        "subscription_false_positives",
    )
    found = dict.fromkeys(terms, 0.0)
    ends: dict[str, list[float]] = {"unicast": [], "ideal": [], "broadcast": []}
    costs = []
    for event, people in order:
        if not people:
            continue
        who = nc.Matches.from_pairs([0] * len(people), [PEOPLE.index(p) for p in people], 1)
        publisher = drawn_publishers([event], np.arange(LINKS.n_nodes), seed=3) if case.on_network else None
        flow = flows.index(case.cell[event]) if case.cell[event] in flows else -1
        flow = 0 if case.flow_space == "events" else flow
        which = {i for i in case.matches[event] if i < len(OWNER)}
        if plan.subscriptions is not None:
            carrying = np.isin(np.arange(plan.n_channels), [placed[i] for i in which if i in placed])
            fitted = nc.ChannelPlan(carrying[None], listens, parent, subscribers=PEOPLE)
        sent = router.route([flow], who, fitted, publisher)
        again = EventReplay(network, publisher, who, fitted.subscribers)
        costs.append(again.cost(sent, fitted)[0])
        for name, values in ends.items():
            values.append(getattr(again, name)[0])
        groups = fitted.groups()
        reached = [
            {
                s
                for s in range(8)
                if any(listens[s, c] for c in range(plan.n_channels) if groups[c] == groups[d])
            }
            for d in sent.channels[0].tolist()
        ]
        at_once = sent.method[0] == RouteMethod.BROADCAST
        copies = 8 if at_once else sum(map(len, reached))
        got = set(range(8)) if at_once else set().union(*reached)
        assert got | set(sent.unicast[0].tolist()) >= {PEOPLE.index(p) for p in people}
        found["channel"] += len(reached) or at_once
        found["received"] += copies
        found["direct"] += len(sent.unicast[0])
        found["wasted"] += copies + len(sent.unicast[0]) - len(people)
        found["false_positives"] += len(got - {PEOPLE.index(p) for p in people})
        used = {groups[d] for d in sent.channels[0].tolist()}
        come = {i for i, s in enumerate(owner) if s in got}
        if plan.subscriptions is not None and not at_once:
            come = {i for i, channel in placed.items() if groups[channel] in used}
        found["subscription_false_positives"] += len(come - which)
        found["outside"] += case.flow_space == "cells" and (flow < 0 or not carries[flow].any())
        if publisher is None:
            assert costs[-1] == copies + len(sent.unicast[0])
        elif not at_once:
            alone = by_links(int(publisher[0]), set(sent.unicast[0].tolist()), once=False)
            over = sum(by_links(int(publisher[0]), each, once=True) for each in reached)
            assert costs[-1] == pytest.approx(alone + over)
    return found | {"cost": math.fsum(costs)} | {name: math.fsum(values) for name, values in ends.items()}


def in_process(case: Case, block: int) -> ReplayResult:
    """What a worker would make of all events, without Spark."""
    plans, ids = {"mine": PlanWithRouter(case.plan, case.router)}, np.arange(len(OWNER))
    place = np.array([PEOPLE.index(name) for name in OWNER], np.int32)
    asked = (case.flow_space, case.tables, "dense", 3, block)
    job = replaying._job(pa.array(PEOPLE), ids, place, plans, *asked)  # type: ignore[arg-type]
    events = list(case.matches)
    columns = {
        "event_id": pa.array(events, pa.int64()),
        "subscription_ids": pa.array([case.matches[event] for event in events], pa.list_(pa.int64())),
    }
    if case.flow_space == "cells":
        columns["flow"] = pa.array([case.cell[event] for event in events], pa.int64())
    totals: dict[tuple[int, str], list[float]] = {}
    for part in replaying._blocks(pa.RecordBatch.from_pydict(columns), job):
        for number, term, values in replaying._sums(part, job):
            totals.setdefault((number, term), []).extend(np.asarray(values, float).tolist())
    return replaying._result({key: math.fsum(values) for key, values in totals.items()}, plans, job)


@settings(max_examples=150, deadline=None)
@given(case=cases(), block=st.sampled_from([1, 5, 1 << 20]))
def test_a_worker_alone_equals_a_loop_over_the_events(case: Case, block: int) -> None:
    found, expected = in_process(case, block), locally(case)
    for name, value in expected.items():
        mine = found.baselines[name].cost if name in found.baselines else getattr(found.plans["mine"], name)
        assert mine == pytest.approx(value, rel=1e-12), name
    everybody, said = found.baselines["broadcast"], found.plans["mine"].to_dict()
    matched = sum(len([i for i in ids if i < len(OWNER)]) for ids in case.matches.values())
    assert (everybody.false_positives, everybody.subscription_false_positives) == (
        len(PEOPLE) * found.n_events - found.n_wanted,
        len(OWNER) * found.n_events - matched,
    )
    n = max(1, found.n_events)
    assert said["false_positives_per_event"] == {
        "subscriber": expected["false_positives"] / n,
        "subscription": expected["subscription_false_positives"] / n,
    }


@pytest.mark.spark
@settings(max_examples=14, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases(), partitions=st.integers(1, 3), block=st.sampled_from([1, 5, 1 << 20]))
def test_it_equals_a_loop_over_the_events(
    spark: SparkSession, case: Case, partitions: int, block: int
) -> None:
    found, expected = case.on_spark(spark, partitions, block), locally(case)
    wanted = [len(people) for people in case.wanting().values() if people]
    assert (found.n_events, found.n_wanted) == (len(wanted), sum(wanted))
    mine = found.plans["mine"]
    for name, value in expected.items():
        here = found.baselines[name].cost if name in found.baselines else getattr(mine, name)
        assert here == pytest.approx(value, rel=1e-12), name
    assert sum((mine.ways or {}).values()) == found.n_events
    assert mine.router == case.router
    if case.on_network:
        gain = nc.Network.improvement(expected["cost"], expected["unicast"], expected["ideal"])
        assert mine.improvement_pct == pytest.approx(gain)
    else:
        assert mine.improvement_pct is None
        assert found.unit == "messages"


@pytest.mark.spark
def test_partitions_and_blocks_change_no_bit(spark: SparkSession) -> None:
    rng = np.random.default_rng(5)
    matches = {e: sorted(set(rng.integers(0, len(OWNER), 4).tolist())) for e in range(500)}
    cell = dict(zip(matches, rng.integers(0, 5, 500).tolist(), strict=True))
    plan = nc.ChannelPlan(
        rng.random((4, 3)) < 0.5, rng.random((7, 3)) < 0.6, subscribers=PEOPLE[:7], flows=[1, 2, 3, 9]
    )
    case = Case(matches, cell, plan, "threshold", "cells", on_network=True)
    found = [case.on_spark(spark, n, block) for n, block in ((1, 1 << 20), (3, 100), (2, 7))]
    assert found[0] == found[1] == found[2]
    assert found[0].plans["mine"].outside == sum(
        not (c in (1, 2, 3) and plan.carries.toarray()[[1, 2, 3].index(c)].any()) for c in cell.values()
    )
    exact = replace(case, router="exact").on_spark(spark).plans["mine"]
    assert exact.cost <= found[0].plans["mine"].cost <= found[0].baselines["unicast"].cost * 1.5
    assert found[0].baselines["ideal"].improvement_pct == 100
    assert found[0].baselines["unicast"].improvement_pct == 0


@pytest.mark.spark
def test_publishers_by_event(spark: SparkSession, tmp_path: Path) -> None:
    plan = nc.ChannelPlan(np.zeros((1, 0)), np.zeros((7, 0)), subscribers=PEOPLE[:7], flows=[1])
    case = Case({1: [3], 2: [3], 3: [4]}, {}, plan, "channels", "events", on_network=True)
    csv.write_csv(LINKS.to_table(), tmp_path / "t.csv")
    places = pa.table({"subscriber": PEOPLE, "node": [NODES[i] for i in PLACES.node]})
    csv.write_csv(places, tmp_path / "l.csv")
    (tmp_path / "p.csv").write_text("event_id,node\n1,n3\n2,n4\n7,n4\n")
    tables = NetworkTables.read(tmp_path / "t.csv", tmp_path / "l.csv", tmp_path / "p.csv")
    assert tables.published is not None
    assert tables.published.to_pydict() == {"event_id": [1, 2, 7], "node": [3, 4, 4]}
    assert tables.fitting(text=True).published is tables.published
    matched, people, _ = case.frames(spark, 1)

    def cost(seed: int = 0) -> float:
        sendings = {"mine": PlanWithRouter.by(plan, "unicast", "events", params={"threshold": 1})}
        found = replay(matched, people, sendings, flow_space="events", network=tables, seed=seed)
        return found.plans["mine"].cost

    # d is on n3 itself and 0.1 from n4; what is not told comes from a node that is, here n3 or n4: 0.1 or 0.
    drawn = [LINKS.distances(drawn_publishers([3], [3, 4, 4], seed))[0, 4] for seed in range(6)]
    assert [cost(seed) for seed in range(6)] == pytest.approx([0.1 + each for each in drawn])
    assert len(set(drawn)) == 2


@pytest.mark.spark
def test_publishers_whose_names_begin_with_a_zero(spark: SparkSession, tmp_path: Path) -> None:
    """Two readers of CSV may take 007 for 7: what was told must not be drawn instead."""
    (tmp_path / "t.csv").write_text("a,b,cost\n007,008,1\n008,009,10\n")
    (tmp_path / "l.csv").write_text("subscriber,node\na,007\nb,009\n")
    (tmp_path / "p.csv").write_text("event_id,node\n1,009\n2,009\n3,007\n")
    tables = NetworkTables.read(tmp_path / "t.csv", tmp_path / "l.csv", tmp_path / "p.csv")
    plan = nc.ChannelPlan(np.zeros((1, 0)), np.zeros((2, 0)), subscribers=["a", "b"], flows=[1])
    matched = spark.createDataFrame(
        [(1, [0]), (2, [0]), (3, [1])], "event_id bigint, subscription_ids array<bigint>"
    )
    people = spark.createDataFrame([(0, "a"), (1, "b")], "subscription_id bigint, subscriber string")
    for seed in range(4):
        found = replay(
            matched, people, {"mine": PlanWithRouter(plan)}, flow_space="events", network=tables, seed=seed
        )
        assert found.plans["mine"].cost == 33


@pytest.mark.spark
def test_nothing_to_send(spark: SparkSession) -> None:
    plan = nc.ChannelPlan(np.zeros((0, 0)), np.zeros((0, 0)), subscribers=pa.array([], pa.string()))
    found = Case({}, {}, plan, "threshold", "cells", on_network=True).on_spark(spark)
    assert (found.n_events, found.n_wanted, found.plans["mine"].cost) == (0, 0, 0)
    assert found.plans["mine"].improvement_pct == 0
    assert found.facts()["broadcast"]["received_over_channels"] == 0


@pytest.mark.slow
@pytest.mark.spark
def test_subscribers_without_a_node(spark: SparkSession) -> None:
    plan = nc.ChannelPlan([[1]], [[1]], subscribers=["zoe"], flows=[1])
    case = Case({1: [0]}, {1: 1}, plan, "threshold", "cells", on_network=True)
    with refused(ParameterError, "'zoe'", "locations"):
        case.on_spark(spark)
    # A subscriber without interest need not have a node, in the plan or not.
    plan = nc.ChannelPlan([[1]], [[1], [0]], subscribers=["a", "zoe"], flows=[1])
    matched, people, cells = replace(case, plan=plan).frames(spark, 1)
    people = people.unionByName(spark.createDataFrame([(99, "yan")], people.schema))

    def sent(frame: DataFrame) -> ReplayResult:
        sendings = {"mine": PlanWithRouter(plan)}
        return replay(frame, people, sendings, flow_space="cells", cells=cells, network=case.tables)

    assert sent(matched).baselines["unicast"].direct == 1
    wanting = spark.createDataFrame([(1, [0, 99])], matched.schema)
    with refused(ParameterError, "'yan'", "locations"):  # raised in a worker, so without fields
        sent(wanting)


@pytest.mark.spark
def test_the_cells_of_events(spark: SparkSession) -> None:
    schema = nc.Schema.of({"price": "double", "name": "string"})
    grid = CellGrid.equal(schema, {"price": (0, 20, 4)})
    rows = [(7, 3.0, "x"), (8, 12.0, None), (9, None, "y"), (10, 99.0, "z")]
    events = spark.createDataFrame(rows, "event_id bigint, price double, name string")
    found = cells_of(events, grid).orderBy("event_id").collect()
    assert [tuple(row) for row in found] == [(7, 0), (8, 2), (9, 0), (10, 3)]


@given(st.lists(st.floats(-1e300, 1e300), max_size=30))
def test_parts_add_up_exactly(values: list[float]) -> None:
    parts = exact_parts(values)
    assert sum(map(Fraction, parts)) == sum(map(Fraction, values))
    assert len(parts) <= 45


def test_publishers_are_drawn_alike_whatever_the_order() -> None:
    ids, nodes = np.arange(2000), [5, 1, 3, 3]
    found = drawn_publishers(ids, nodes, seed=1)
    assert np.array_equal(found[::-1], drawn_publishers(ids[::-1], nodes[::-1], seed=1))
    assert not np.array_equal(found, drawn_publishers(ids, nodes, seed=2))
    assert np.bincount(found, minlength=6)[[1, 3, 5]] / 2000 == pytest.approx([0.25, 0.5, 0.25], abs=0.05)


def test_few_publishers_at_a_time_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What bounds memory on large networks: a block for each publisher gives the same sums."""
    rng = np.random.default_rng(8)
    plan = nc.ChannelPlan(np.ones((1, 2)), rng.random((7, 2)) < 0.5, subscribers=PEOPLE[:7], flows=[1])
    sendings = {name: PlanWithRouter(plan, name) for name in nc.ROUTERS}
    job = replaying._job(
        pa.array(PEOPLE),
        np.arange(8),
        np.arange(8, dtype=np.int32),
        sendings,
        "events",
        NetworkTables(LINKS, PLACES),
        "dense",
        0,
        1 << 20,
    )
    lists = [sorted(set(rng.integers(0, 8, 3).tolist())) for _ in range(40)]
    batch = pa.RecordBatch.from_pydict({"event_id": pa.array(range(40)), "subscription_ids": lists})

    def totals() -> dict[tuple[int, str], float]:
        found: dict[tuple[int, str], list[float]] = {}
        for block in replaying._blocks(batch, job):
            for plan_number, term, values in replaying._sums(block, job):
                found.setdefault((plan_number, term), []).extend(np.asarray(values).tolist())
        return {key: math.fsum(values) for key, values in found.items()}

    assert len(list(replaying._blocks(batch, job))) == 1
    whole = totals()
    monkeypatch.setattr(replaying, "PLACES", 1)
    assert len(list(replaying._blocks(batch, job))) == 6
    assert totals() == whole
