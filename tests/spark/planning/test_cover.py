from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from narrowcast.costs.overall import Overall
from narrowcast.errors import ParameterError
from narrowcast.kernels import cover as kernels
from narrowcast.model.artefact import read_plan
from narrowcast.model.interest import Interest
from narrowcast.planning import Cover, PerFlow
from narrowcast.planning.topics.cover_rounds import in_rounds
from narrowcast.planning.topics.cover_state import CoverState
from narrowcast.spark.planning import large_cover
from narrowcast.spark.planning.large_cover import covered
from narrowcast.spark.planning.plan import costs_of, make_plan
from narrowcast.spark.stages.interest import InterestFrames
from narrowcast.workloads.feeds import Feeds
from support.command import call, table_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


def frames_of(spark: SparkSession, interest: Interest, partitions: int = 2) -> InterestFrames:
    interests, rates = (spark.createDataFrame(table) for table in interest.to_tables())
    return InterestFrames(interests.repartition(partitions), rates, "topics")


def small(n: int = 300, seed: int = 1) -> Interest:
    return Feeds(n_subscribers=n, n_flows=40, groups=5, home=1, wanted=9, seed=seed).interest()


def test_owners() -> None:
    interest = Interest([[1, 1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 1, 1]])
    found, _ = CoverState.of(interest, Overall(interval=0.001), 2)
    found.begin([[0, 1, 2], [2, 3, 4]])
    [both] = np.flatnonzero(found.state[1])
    first = found.rows[0][both]
    one, other = found.state[0][first : first + 2].tolist()
    for turn, head in ((0, one), (1, other), (2, one)):
        owner = np.empty(8, np.int32)
        kernels.owners(found.rows, found.state, turn, owner)
        mine = owner[first : first + 6].tolist()
        # The flow in both goes to the first, as does the one in neither.
        assert mine == [0, 0, head, 1, 1, head]
        assert sorted(owner.tolist()) == sorted([*mine, -1, -1])


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("channels", [None, 12])
def test_as_good_as_on_the_driver(
    spark: SparkSession, channels: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_cover, "CHUNK", 50)
    interest = small()
    planner = Cover(rounds=3, channels=channels)
    costs: list[float] = []
    with covered(
        frames_of(spark, interest),
        planner,
        limit=interest.n_wants // 3,
        say=lambda _, cost: costs.append(cost),
    ) as found:
        plan = found.plan()
    plan.validate(interest)
    here = planner.fit(interest).cost_
    there = Overall().score(interest, plan).total
    assert there == pytest.approx(found.cost) == pytest.approx(costs[-1])
    assert costs == sorted(costs, reverse=True)
    assert costs[0] == pytest.approx(Overall().score(interest, PerFlow().fit(interest).plan_).total)
    assert there <= 1.05 * here
    if channels is not None:
        assert plan.n_channels <= channels
    assert (plan.unicast.nnz == 0) == (channels is None)


@pytest.mark.slow
@pytest.mark.spark
def test_the_same_plan_whatever_the_partitions(spark: SparkSession) -> None:
    interest, plans = small(120), []
    for partitions in (1, 4):
        frames = frames_of(spark, interest, partitions)
        with covered(frames, Cover(rounds=1, seed=3), limit=400, rounds=3) as found:
            plans.append(found.plan())
    plans[0].validate(interest)
    assert plans[0] == plans[1]


@pytest.mark.spark
def test_workers_choose_what_one_process_does(spark: SparkSession) -> None:
    interest = small(120)
    planner = Cover(rounds=1, seed=3, channels=12)
    with covered(frames_of(spark, interest), planner, limit=interest.n_wants, rounds=3) as found:
        plan, cost = in_rounds(interest, planner, interest, rounds=3)
        assert (found.plan(), found.cost) == (plan, cost)


@pytest.mark.spark
def test_neither_interest_nor_listeners_are_collected(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    interest, seen = small(), list[int]()
    kind = type(spark.range(1))
    to_arrow, collect = kind.toArrow, kind.collect

    def arrow(frame: DataFrame) -> Any:
        table = to_arrow(frame)
        lists = [name for name in table.column_names if name == "flows"]
        seen.append(sum(len(table[name].combine_chunks().values) for name in lists) or table.num_rows)
        return table

    def rows(frame: DataFrame) -> Any:
        found = collect(frame)
        seen.append(len(found))
        return found

    monkeypatch.setattr(kind, "toArrow", arrow)
    monkeypatch.setattr(kind, "collect", rows)
    limit = interest.n_wants // 6
    with covered(frames_of(spark, interest), Cover(rounds=1), limit=limit, rounds=3) as found:
        assert seen
        assert max(seen) < interest.n_wants / 3  # a sample, and counts of clusters and flows
        monkeypatch.undo()
        assert found.listens.count() > interest.n_subscribers
        assert found.unicast.count() == 0
        assert found.listens.columns == ["subscriber", "channel"]


@pytest.mark.slow
@pytest.mark.spark
def test_nothing_and_little(spark: SparkSession) -> None:
    for wants in ([[1]], [[1, 1]], [[1, 0], [0, 1]]):
        interest = Interest(wants, [0.0] * len(wants[0]))
        with covered(frames_of(spark, interest), Cover(), limit=1, rounds=2) as found:
            plan = found.plan()
        plan.validate(interest)
        assert found.cost <= interest.n_wants
    nobody = InterestFrames(
        frames_of(spark, interest).interests.limit(0),
        spark.range(0).selectExpr("id AS flow", "0.5D AS rate"),
        "topics",
    )
    with covered(nobody, Cover(), limit=1, rounds=2) as found:
        assert (found.plan().n_channels, found.cost) == (0, 0.0)


@pytest.mark.slow
@pytest.mark.spark
def test_the_path_is_said(spark: SparkSession) -> None:
    interest = small(100)
    frames = frames_of(spark, interest)
    whole = make_plan(frames, "cover", channels=None, params={"rounds": 1})
    large = make_plan(frames, "cover", channels=None, params={"rounds": 1}, limit=interest.n_wants // 2)
    assert [(found.method, found.path) for found in (whole, large)] == [
        ("cover", "driver"),
        ("cover", "spark"),
    ]
    large.plan.validate(interest)
    assert large.interest.n_wants == 0
    cost = Overall().score(interest, large.plan).total
    assert costs_of(frames, large, costs=["overall"]) == pytest.approx({"overall": cost})
    assert costs_of(frames, large)["overall"] == pytest.approx(cost)  # which it has counted itself
    with pytest.raises(ParameterError, match="cost_m is given, which cover does without on Spark"):
        make_plan(frames, "cover", channels=None, params={"cost_m": "log"}, limit=50)
    with pytest.raises(ParameterError, match="bound is given, which cover does without on Spark"):
        make_plan(frames, "cover", channels=None, params={"bound": True}, limit=50)


@pytest.mark.spark
@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    tables, words = Feeds(n_subscribers=80, n_flows=30, groups=5, wanted=8).tables(), []
    for name in ("interests", "rates"):
        pq.write_table(tables[name], tmp_path / f"{name}.parquet")
        words += [f"--{name}", str(tmp_path / f"{name}.parquet")]
    found = call(
        "plan", *words, "--method", "cover", "--limit", "300", "--cost", "overall", "--out", tmp_path / "plan"
    )
    interest = Interest.from_tables(tables["interests"], tables["rates"])
    plan, info = read_plan(tmp_path / "plan")
    plan.validate(interest)
    shown = dict(row[:2] for row in table_of(found.stdout))
    assert shown["planned on"] == "spark"
    assert info.costs["overall"] == pytest.approx(Overall().score(interest, plan).total)
