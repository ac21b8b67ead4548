from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pytest

from narrowcast.errors import ParameterError, PlanError, TableError
from narrowcast.model.interest import Interest
from narrowcast.model.plan import ChannelPlan
from narrowcast.planning import PLANNERS, Hash
from narrowcast.planning.base import BasePlanner
from narrowcast.spark.arrow_batches import chunks
from narrowcast.spark.planning.plan import make_plan
from narrowcast.spark.stages.interest import InterestFrames
from narrowcast.spark.stages.interest_collection import LIMIT, to_interest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SQL = {pa.int64(): "bigint", pa.string(): "string"}


def frames_of(
    spark: SparkSession, interests: pa.Table, rates: pa.Table, *, partitions: int | None = None
) -> InterestFrames:
    """An interest as Spark has it, cut as asked."""
    subscriber, flow = (SQL[interests.schema.field(name).type] for name in ("subscriber", "flow"))
    pairs = spark.createDataFrame(interests, f"subscriber {subscriber}, flow {flow}")
    rated = spark.createDataFrame(rates, f"flow {SQL[rates.schema.field('flow').type]}, rate double")
    if partitions:
        pairs, rated = pairs.repartition(partitions), rated.repartition(partitions)
    return InterestFrames(pairs, rated, "topics", None)


def some(kind: pa.DataType, n: int = 300) -> tuple[pa.Table, pa.Table]:
    """Random pairs and rates, a few flows being wanted by nobody."""
    rng = np.random.default_rng(0)
    pairs = np.unique(np.column_stack([rng.integers(0, 40, n), rng.integers(-9, 9, n)]), axis=0)
    flows = np.arange(-12, 12)
    interests = pa.table({"subscriber": pa.array(pairs[:, 0]), "flow": pa.array(pairs[:, 1])})
    rates = pa.table({"flow": pa.array(flows), "rate": rng.random(len(flows))})
    if kind == pa.string():
        for name in ("subscriber", "flow"):
            interests = interests.set_column(
                interests.column_names.index(name), name, interests[name].cast(kind)
            )
        rates = rates.set_column(0, "flow", rates["flow"].cast(kind))
    return interests, rates


@pytest.mark.spark
@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=str)
def test_the_same_interest_whatever_the_partitions(spark: SparkSession, kind: pa.DataType) -> None:
    interests, rates = some(kind)
    expected = Interest.from_tables(interests, rates)
    for partitions in (1, 3):
        found = to_interest(frames_of(spark, interests, rates, partitions=partitions))
        assert found == expected
        assert found.flows.type == found.subscribers.type == kind


@pytest.mark.spark
def test_labels_of_two_types_and_a_flow_without_a_rate(spark: SparkSession) -> None:
    interests = pa.table({"subscriber": ["b", "a", "a"], "flow": [9, 9, 7]})
    rates = pa.table({"flow": [9, 8], "rate": [0.5, 0.0]})
    found = to_interest(frames_of(spark, interests, rates))
    assert found == Interest.from_tables(interests, rates)
    assert found.rate.tolist() == [1.0, 0.0, 0.5]


@pytest.mark.spark
@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=str)
def test_an_empty_interest(spark: SparkSession, kind: pa.DataType) -> None:
    nothing = pa.array([], kind)
    interests = pa.table({"subscriber": nothing, "flow": nothing})
    rates = pa.table({"flow": nothing, "rate": pa.array([], pa.float64())})
    found = to_interest(frames_of(spark, interests, rates))
    assert (found.n_subscribers, found.n_flows, found.n_wants) == (0, 0, 0)
    assert found.flows.type == kind
    plan, *_ = make_plan(frames_of(spark, interests, rates), "hash", channels=2)
    assert (plan.n_groups, plan.n_flows) == (2, 0)


@pytest.mark.spark
def test_an_interest_over_the_limit_is_refused(spark: SparkSession) -> None:
    interests, rates = some(pa.int64())
    frames = frames_of(spark, interests, rates)
    n = interests.num_rows
    said = f"has {n} wanted pairs and the driver takes {n - 1}; keep fewer flows"
    with pytest.raises(ParameterError, match=said):
        to_interest(frames, limit=n - 1)
    with pytest.raises(ParameterError, match="has 24 flows and the driver takes 23"):
        to_interest(InterestFrames(frames.interests.limit(5), frames.rates, "topics", None), limit=23)
    assert to_interest(frames, limit=n).n_wants == n
    with pytest.raises(ParameterError, match="the driver takes 10"):
        make_plan(frames, "hash", channels=2, limit=10)
    assert LIMIT == 50_000_000


@pytest.mark.spark
def test_bad_rates_are_refused(spark: SparkSession) -> None:
    interests = pa.table({"subscriber": [1], "flow": [1]})
    for rates, said in (
        (pa.table({"flow": [1], "rate": [-1.0]}), "flow 1 has rate -1.0"),
        (pa.table({"flow": [1, 1], "rate": [1.0, 2.0]}), "flow 1 has more than one row in rates"),
        (pa.table({"flow": ["1"], "rate": [1.0]}), "flow is int64 here and string there"),
    ):
        with pytest.raises(TableError, match=said):
            to_interest(frames_of(spark, interests, rates))


@pytest.mark.spark
def test_a_plan_by_name(spark: SparkSession) -> None:
    interests, rates = some(pa.string())
    plan, interest, *_ = make_plan(frames_of(spark, interests, rates), "hash", channels=3, seed=1)
    assert interest == Interest.from_tables(interests, rates)
    assert plan == Hash(channels=3).fit(interest).plan_


class Careless(BasePlanner):
    """A planner that serves only the first subscriber."""

    plan_: ChannelPlan

    def __init__(self, *, depth: int, wide: bool = False, channels: int | None = None, seed: int = 0) -> None:
        self.depth = depth

    def fit(self, interest: Interest) -> Self:
        everything = np.ones((interest.n_flows, 1))
        self.plan_ = ChannelPlan(
            everything, [[1]], subscribers=interest.subscribers.slice(0, 1), flows=interest.flows
        )
        return self


@pytest.fixture
def careless(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(PLANNERS._items, "careless", Careless)
    return "careless"


@pytest.mark.spark
def test_a_plan_that_leaves_somebody_out_is_refused(spark: SparkSession, careless: str) -> None:
    frames = frames_of(
        spark, pa.table({"subscriber": [1, 2, 3], "flow": [5, 5, 6]}), pa.table({"flow": [5], "rate": [1.0]})
    )
    said = "2 of 3 wanted pairs are not served: subscriber 2 wants flow 5, subscriber 3 wants flow 6"
    with pytest.raises(PlanError, match=said):
        make_plan(frames, careless, channels=None, params={"depth": 1})


@pytest.mark.parametrize(
    ("method", "given", "said"),
    [
        ("hush", {}, "unknown method 'hush'; did you mean 'hash'"),
        ("hash", {"params": {"depth": 1}}, "'hash' has no parameter 'depth'; it has: none besides channels"),
        ("careless", {"params": {"deep": 1}}, "no parameter 'deep'; it has: depth, wide"),
        ("careless", {"params": {"wide": True}}, "needs the parameter 'depth'"),
        ("careless", {"params": {"depth": 1, "seed": 2}}, "seed is among the parameters of 'careless'"),
        ("hash", {"channels": 0}, "channels is 0; give a whole number of at least 1"),
        ("hash", {"seed": -1}, "seed is -1; give a whole number of at least 0"),
    ],
)
def test_parameters_are_checked_before_anything_is_read(
    careless: str, method: str, given: dict[str, Any], said: str
) -> None:
    nothing: Any = None
    with pytest.raises(ParameterError, match=said):
        make_plan(nothing, method, **{"channels": 2, **given})


def test_chunks_keep_all_rows_in_order() -> None:
    batches = pa.table({"flow": range(10)}).to_batches(max_chunksize=3)
    empty = batches[0].slice(0, 0)
    found = list(chunks(iter([empty, *batches, empty]), 4))
    assert [table.num_rows for table in found] == [6, 4]
    assert pa.concat_tables(found)["flow"].to_pylist() == list(range(10))
    assert list(chunks(iter([empty]))) == []
