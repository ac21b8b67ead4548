from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from narrowcast.costs import COSTS, FalsePositives, Forwarding, Waste
from narrowcast.costs.filtering import Filtering, receivers
from narrowcast.costs.overall import Overall
from narrowcast.errors import ParameterError, PlanError, TableError
from narrowcast.model.cost import Cost
from narrowcast.model.interest import Interest
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.topology import Topology
from narrowcast.planning import PLANNERS, Broadcast, Hash, PerFlow, Unicast
from narrowcast.planning.baselines.simple import stable_hash
from narrowcast.spark.stages.blocks import FlowBlocks
from narrowcast.spark.stages.evaluate import BASELINES, BLOCK, ScoredPlan, evaluate, false_exclusions
from narrowcast.spark.stages.interest import InterestFrames
from narrowcast.spark.stages.network import NetworkTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SQL = {pa.int64(): "bigint", pa.string(): "string"}


@dataclass
class Case:
    """An interest as tables, and a plan."""

    interests: pa.Table
    rates: pa.Table
    plan: ChannelPlan

    @property
    def interest(self) -> Interest:
        return Interest.from_tables(self.interests, self.rates)

    def frames(self, spark: SparkSession, partitions: int | None = None) -> InterestFrames:
        subscriber, flow = (SQL[self.interests.schema.field(name).type] for name in ("subscriber", "flow"))
        pairs = spark.createDataFrame(self.interests, f"subscriber {subscriber}, flow {flow}")
        rates = spark.createDataFrame(self.rates, f"flow {flow}, rate double")
        if partitions:
            pairs, rates = pairs.repartition(partitions), rates.repartition(partitions)
        return InterestFrames(pairs, rates, "topics", None)


def pairs_table(pairs: list[tuple[int, int]], names: dict[str, pa.DataType | None]) -> pa.Table:
    """Pairs of numbers as a table whose columns have the given types."""
    columns = zip(*pairs, strict=True) if pairs else [(), ()]
    return pa.table(
        {
            name: pa.array([str(v) if kind == pa.string() else v for v in values], kind or pa.int32())
            for (name, kind), values in zip(names.items(), columns, strict=True)
        }
    )


@st.composite
def cases(draw: st.DrawFn, *, served: bool) -> Case:
    """A plan that knows other labels than the interest does; when it is to serve all, the rest directly."""
    subscriber_kind, flow_kind = (draw(st.sampled_from([pa.int64(), pa.string()])) for _ in range(2))
    label = st.integers(0, 11)

    def some(one: st.SearchStrategy[int], other: st.SearchStrategy[int], most: int) -> list[tuple[int, int]]:
        return draw(st.lists(st.tuples(one, other), unique=True, max_size=most))

    wanted = some(label, label, 40)
    rates = {flow: draw(st.sampled_from([0.0, 0.1, 1.0, 3.7])) for flow in {f for _, f in wanted}}
    rates |= dict.fromkeys(draw(st.sets(st.integers(8, 14), max_size=4)), 2.5)
    n_sessions, n_groups = draw(st.integers(0, 4)), draw(st.integers(0, 2))
    parent = [draw(st.integers(-1, n_groups - 1)) for _ in range(n_sessions)]
    parents = [n_sessions + p if p >= 0 else -1 for p in parent] + [-1] * n_groups
    carries, listens = [], []
    if n_sessions:
        channel, known = st.integers(0, n_sessions - 1), st.integers(2, 14)
        carries, listens = some(known, channel, 25), some(known, channel, 25)
    direct = some(st.integers(2, 14), st.integers(2, 14), 5)
    if served:
        heard = {(s, f) for s, c in listens for f, d in carries if c == d}
        direct = sorted({*direct, *(pair for pair in wanted if pair not in heard)})
    plan = ChannelPlan.from_tables(
        pairs_table(carries, {"flow": flow_kind, "channel": None}),
        pairs_table(listens, {"subscriber": subscriber_kind, "channel": None}),
        pairs_table(direct, {"subscriber": subscriber_kind, "flow": flow_kind}),
        n_channels=n_sessions + n_groups,
        parent=parents,
    )
    flows = pairs_table([(flow, 0) for flow in rates], {"flow": flow_kind, "": None})["flow"]
    rated = pa.table({"flow": flows, "rate": pa.array(rates.values(), pa.float64())})
    return Case(pairs_table(wanted, {"subscriber": subscriber_kind, "flow": flow_kind}), rated, plan)


def on_the_driver(case: Case, channels: int) -> dict[str, ScoredPlan]:
    """The slow reference: everything at once, in this process."""
    interest = case.interest
    plans = {
        "mine": case.plan,
        "unicast": Unicast().fit(interest).plan_,
        "broadcast": Broadcast().fit(interest).plan_,
        "per-flow": PerFlow().fit(interest).plan_,
        "hash": Hash(channels=channels).fit(interest).plan_,
    }
    models = COSTS.made()
    found = {
        name: ScoredPlan(plan.n_used, {cost: model.score(interest, plan) for cost, model in models.items()})
        for name, plan in plans.items()
    }
    return found | {
        "ideal": ScoredPlan(None, {cost: model.ideal(interest) for cost, model in models.items()})
    }


def assert_same(found: Any, expected: dict[str, ScoredPlan]) -> None:
    assert list(found) == list(expected)
    for name, scored in expected.items():
        assert found[name].channels == scored.channels, name
        assert list(found[name].costs) == list(scored.costs)
        for cost, value in scored.costs.items():
            assert found[name].costs[cost].total == pytest.approx(value.total, rel=1e-12, abs=1e-12), name
            assert found[name].costs[cost].terms == pytest.approx(value.terms, rel=1e-12, abs=1e-12), name


spark_settings = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.slow
@pytest.mark.spark
@spark_settings
@given(
    case=cases(served=True),
    channels=st.none() | st.integers(1, 5),
    block_size=st.sampled_from([1, 4, 15, BLOCK]),
    partitions=st.integers(1, 3),
)
def test_it_equals_the_costs_on_the_driver(
    spark: SparkSession, case: Case, channels: int | None, block_size: int, partitions: int
) -> None:
    frames = case.frames(spark, partitions)
    found = evaluate(frames, case.plan, name="mine", channels=channels, block_size=block_size)
    assert found.n_pairs == case.interest.n_wants
    assert_same(found.methods, on_the_driver(case, channels or max(1, case.plan.n_groups)))


@pytest.mark.spark
@settings(spark_settings, max_examples=8)
@given(case=cases(served=False), partitions=st.integers(1, 3))
def test_what_is_not_served_is_found_and_refused(spark: SparkSession, case: Case, partitions: int) -> None:
    expected = case.plan.false_exclusions(case.interest)
    frames = case.frames(spark, partitions)
    found = false_exclusions(frames, case.plan)
    assert found.schema["flow"].dataType == frames.interests.schema["flow"].dataType
    assert found.orderBy("subscriber", "flow").toArrow().to_pylist() == expected.to_pylist()
    if expected.num_rows:
        with pytest.raises(PlanError) as said:
            case.plan.validate(case.interest)
        with pytest.raises(PlanError, match=f"^{re.escape(str(said.value))}$"):
            evaluate(frames, case.plan, name="mine")


def random_case(kind: pa.DataType, n: int = 4000) -> Case:
    rng = np.random.default_rng(1)
    # A few flows that most want, many that few want.
    pairs = sorted({(int(s), int(f)) for s, f in zip(rng.integers(0, 200, n), rng.zipf(1.5, n), strict=True)})
    interests = pairs_table(pairs, {"subscriber": kind, "flow": kind})
    flows = interests["flow"].unique()
    rates = pa.table({"flow": flows, "rate": rng.random(len(flows))})
    return Case(interests, rates, Hash(channels=7).fit(Interest.from_tables(interests, rates)).plan_)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=str)
def test_large_hash_channels_are_cut_and_partitions_do_not_matter(
    spark: SparkSession, kind: pa.DataType
) -> None:
    case = random_case(kind)
    found = [
        evaluate(case.frames(spark, partitions), case.plan, name="mine", channels=2, block_size=300)
        for partitions in (1, 3)
    ]
    assert found[0].to_dict() == found[1].to_dict()
    assert_same(found[0].methods, on_the_driver(case, 2))


@pytest.mark.spark
def test_odd_interests_and_plans(spark: SparkSession) -> None:
    nothing = pa.table({"subscriber": pa.array([], pa.string()), "flow": pa.array([], pa.string())})
    no_rates = pa.table({"flow": pa.array([], pa.string()), "rate": pa.array([], pa.float64())})
    no_channels = ChannelPlan(np.zeros((0, 0)), np.zeros((0, 0)))
    empty = evaluate(Case(nothing, no_rates, no_channels).frames(spark), no_channels, name="mine")
    assert {name: scored.channels for name, scored in empty.methods.items()} == {
        "mine": 0,
        "unicast": 0,
        "broadcast": 0,
        "per-flow": 0,
        "hash": 0,
        "ideal": None,
    }
    zero = {"deliveries": 0.0, "wanted": 0.0, "wasted": 0.0, "unicast": 0.0}
    assert all(scored.costs["waste"] == Cost(0.0, zero) for scored in empty.methods.values())
    # Nobody wants the flow, but somebody listens where it is sent.
    rates = pa.table({"flow": ["a"], "rate": [3.0]})
    plan = ChannelPlan([[1]], [[1], [1]], flows=["a"])
    unwanted = evaluate(Case(nothing, rates, plan).frames(spark), plan, name="mine", block_size=1)
    assert {name: scored.costs["waste"].total for name, scored in unwanted.methods.items()} == {
        "mine": 6.0,
        **dict.fromkeys(BASELINES, 0.0),
    }
    silent = Case(
        pa.table({"subscriber": [1, 2], "flow": [7, 8]}), pa.table({"flow": [7, 8], "rate": [0.0, 0.0]}), plan
    )
    plan = Broadcast().fit(silent.interest).plan_
    still = evaluate(silent.frames(spark), plan, name="mine")
    assert all(scored.costs["waste"].total == 0 for scored in still.methods.values())
    assert still.methods["per-flow"].channels == 2


@pytest.mark.slow
@pytest.mark.spark
def test_a_plan_with_the_name_of_a_baseline(spark: SparkSession) -> None:
    case = random_case(pa.int64(), 300)
    frames = case.frames(spark)
    same = evaluate(frames, case.plan, name="hash")
    assert same.name == "hash"
    assert list(same.methods) == ["hash", "unicast", "broadcast", "per-flow", "ideal"]
    direct = evaluate(frames, Unicast().fit(case.interest).plan_, name="unicast", block_size=50)
    assert direct.name == "unicast"
    limited = PerFlow(channels=3).fit(case.interest).plan_
    other = evaluate(frames, limited, name="per-flow")
    assert other.name == "per-flow, as planned"
    assert list(other.methods) == [other.name, *BASELINES]
    assert other.methods[other.name].channels == 3
    assert other.methods["hash"].channels == 3
    # As many channels, another plan: the number of listeners tells.
    whole = case.plan
    crowd = ChannelPlan(
        whole.carries, np.ones(whole.listens.shape), subscribers=whole.subscribers, flows=whole.flows
    )
    assert evaluate(frames, crowd, name="hash").name == "hash, as planned"
    ideal, least = Filtering().ideal(case.interest), Overall().ideal(case.interest)
    sent = Forwarding().ideal(case.interest)
    text = json.dumps(other.to_dict())
    assert json.loads(text)["methods"]["ideal"] == {
        "channels": None,
        "costs": {
            "false-positives": {"total": 0.0, "terms": dict(FalsePositives().ideal(case.interest).terms)},
            "filtering": {"total": pytest.approx(ideal.total), "terms": pytest.approx(dict(ideal.terms))},
            "forwarding": {"total": pytest.approx(sent.total), "terms": pytest.approx(dict(sent.terms))},
            "overall": {"total": pytest.approx(least.total), "terms": pytest.approx(dict(least.terms))},
            "waste": {"total": 0.0, "terms": dict(Waste().ideal(case.interest).terms)},
        },
        "excess_share": 0.0,
    }


@pytest.mark.spark
def test_a_broadcast_reaches_who_wants_nothing(spark: SparkSession) -> None:
    """Where all are known: those who wanted nothing, and somebody of the plan who is gone."""
    pairs = pa.table({"subscriber": ["a", "a", "b"], "flow": [1, 2, 2]})
    rates = pa.table({"flow": [1, 2], "rate": [1.0, 1.0]})
    plan = ChannelPlan(np.ones((2, 1)), np.ones((4, 1)), subscribers=[*"abcz"], flows=[1, 2])
    topics = Case(pairs, rates, plan).frames(spark)
    people = spark.createDataFrame([(name,) for name in "abcd"], "subscriber string")
    frames = InterestFrames(topics.interests, topics.rates, "events", subscribers=people)
    for listed, others, excess in ((topics, 2, 5), (frames, 5, 5)):
        found = evaluate(listed, plan, name="direct").methods
        flooding = found["broadcast"].costs["false-positives"]
        assert flooding.total == 2 * others - 3
        assert found["broadcast"].excess_share == pytest.approx(1)
        assert found["direct"].excess_share == pytest.approx(excess / (2 * others - 3))
    nodes = NetworkTables(Topology([0, 1], [1, 2], [1.0, 1.0], nodes=[*"abc"]))
    here = evaluate(frames, plan, name="direct", costs=["waste"], network=nodes)
    assert here.methods["broadcast"].costs["waste"].total == 2 * 3 - 3, "nobody is sent to who is on no node"


class Listeners:
    """A cost that does not add up over flows: a listener counts once, whatever the channel carries."""

    additive = False
    scored: ClassVar[list[int]] = []

    def score(self, interest: Interest, plan: ChannelPlan) -> Cost:
        self.scored.append(interest.n_wants)
        return Cost(plan.listens.nnz, {"flows": interest.n_flows})

    def ideal(self, interest: Interest) -> Cost:
        return Cost(0.0, {"flows": interest.n_flows})


@pytest.mark.slow
@pytest.mark.spark
def test_a_cost_that_does_not_add_up_is_scored_at_once(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COSTS._items, "listeners", Listeners)
    case = random_case(pa.int64(), 300)
    frames = case.frames(spark)
    found = evaluate(frames, case.plan, name="mine", block_size=40)
    assert_same(found.methods, on_the_driver(case, 7))
    assert list(found.methods["mine"].costs) == [
        *("false-positives", "filtering", "forwarding", "listeners", "overall", "waste")
    ]
    # Each block has some of the subscribers; the share is of flooding to all of them.
    for each in found.methods.values():
        share = Filtering.share(each.costs["filtering"], receivers(case.interest))
        assert each.excess_share == pytest.approx(share)
    assert found.methods["broadcast"].excess_share == pytest.approx(1)
    few = evaluate(frames, case.plan, name="mine", limit=10)
    assert list(few.methods["mine"].costs) == ["false-positives", "filtering", "waste"], (
        "what takes all at once is left out"
    )
    alone = evaluate(frames, case.plan, name="mine", costs=["listeners"])
    assert alone.methods["hash"].excess_share is None
    assert alone.methods["hash"].costs["listeners"].total == case.plan.listens.nnz
    assert alone.methods["per-flow"].channels == np.count_nonzero(case.interest.audience())
    with pytest.raises(ParameterError, match="wanted pairs and the driver takes 10;"):
        evaluate(frames, case.plan, name="mine", costs=["listeners"], limit=10)
    assert (
        evaluate(frames, case.plan, name="mine", costs=["waste"], limit=10).n_pairs == case.interest.n_wants
    )
    Listeners.scored.clear()
    with pytest.raises(PlanError, match="are not served"):
        evaluate(frames, ChannelPlan([[1]], [[1]]), name="mine")
    assert Listeners.scored == []


@pytest.mark.slow
@pytest.mark.spark
def test_labels_of_another_type_are_refused(spark: SparkSession) -> None:
    case = random_case(pa.int64(), 50)
    plan = ChannelPlan([[1]], [[1]], flows=["1"], subscribers=[1])
    with pytest.raises(TableError, match="flow is int64 here and string there"):
        evaluate(case.frames(spark), plan, name="mine")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"costs": ["wast"]}, "unknown cost 'wast'; did you mean 'waste'"),
        ({"channels": 0}, "channels is 0"),
        ({"block_size": 0}, "block_size is 0; give at least 1"),
    ],
)
def test_parameters_are_checked(spark: SparkSession, given: dict[str, Any], said: str) -> None:
    case = random_case(pa.int64(), 5)
    with pytest.raises(ParameterError, match=said):
        evaluate(case.frames(spark), case.plan, name="mine", **given)


def test_blocks_hold_whole_hash_channels_or_parts_of_one_group() -> None:
    flows = pa.array([f"topic {i}" for i in range(2000)])
    for channels, block_size in ((1, 100), (3, 100), (50, 100), (5000, 100), (50, 10**6)):
        channel = (stable_hash(flows) % np.uint64(channels)).astype(np.int64)
        n_groups = min(channels, 40)
        sizes = np.bincount(channel % n_groups, minlength=n_groups)
        blocks = FlowBlocks.of_sizes(sizes, channels, block_size)
        block, hashed = blocks.place(flows)
        assert hashed.tolist() == channel.tolist()
        for group in range(n_groups):
            inside = set(block[channel % n_groups == group].tolist())
            assert inside <= set(range(blocks.first[group], blocks.first[group] + blocks.count[group]))
        in_block = np.bincount(block)
        assert in_block.max() <= 2 * block_size
        assert len(in_block) <= 2 * -(-len(flows) // block_size) + n_groups
        for cut in np.flatnonzero(blocks.count > 1):
            others = np.delete(np.arange(n_groups), cut)
            own = np.arange(blocks.first[cut], blocks.first[cut] + blocks.count[cut])
            assert not np.isin(blocks.first[others], own).any()


def test_every_baseline_but_the_ideal_is_a_planner() -> None:
    assert set(BASELINES) - {"ideal"} <= set(PLANNERS)
