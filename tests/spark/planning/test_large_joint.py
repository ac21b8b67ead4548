from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from narrowcast.costs.base import COSTS
from narrowcast.costs.filtering import Filtering
from narrowcast.errors import ParameterError
from narrowcast.model.artefact import read_plan
from narrowcast.model.interest import Interest
from narrowcast.planning.sessions import joint_rounds
from narrowcast.planning.sessions.joint import Joint
from narrowcast.planning.sessions.joint_rounds import LocalFlowKinds, plan_in_rounds
from narrowcast.spark.planning.large_joint import plan_packed
from narrowcast.spark.planning.packed_interest import packed
from narrowcast.spark.planning.plan import costs_of, make_plan
from narrowcast.spark.stages.evaluate import evaluate
from narrowcast.spark.stages.interest import InterestFrames
from narrowcast.spark.stages.interest_collection import to_interest
from narrowcast.workloads.flows import Flows
from support.command import call, table_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def frames_of(spark: SparkSession, interest: Interest, partitions: int | None = None) -> InterestFrames:
    interests, rates = interest.to_tables()
    text = pa.types.is_string(interest.subscribers.type)
    kind = "string" if text else "bigint"
    pairs = spark.createDataFrame(interests, f"subscriber {kind}, flow {kind}")
    rated = spark.createDataFrame(rates, f"flow {kind}, rate double")
    if partitions:
        pairs, rated = pairs.repartition(partitions), rated.repartition(partitions)
    return InterestFrames(pairs, rated, "topics", None)


def small(**given: Any) -> Interest:
    tables = Flows(**{"n_flows": 600, "n_subscribers": 30, "markets": 4, "share": 0.1, **given}).tables()
    return Interest.from_tables(tables["interests"], tables["rates"])


@pytest.mark.slow
@pytest.mark.spark
@settings(max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    wants=st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=1, max_size=5),
    rate=st.lists(st.floats(0, 100), min_size=9, max_size=9),
    sessions=st.sampled_from([None, 3, 5]),
)
def test_the_cost_never_rises(
    spark: SparkSession, wants: list[list[bool]], rate: list[float], sessions: int | None
) -> None:
    interest = Interest(np.array(wants), rate)
    costs: list[float] = []
    with packed(frames_of(spark, interest)) as found:
        planner = Joint(channels=3, sessions=sessions, sweeps=0, alpha=2.0)
        plan, rates = plan_packed(found, planner, limit=3, tell=lambda _, cost: costs.append(cost))
    plan.validate(interest)
    assert all(now <= was * (1 + 1e-12) for was, now in pairwise(costs))
    assert plan.n_groups <= 3
    if costs:
        model = Filtering(alpha=2.0)
        assert model.score(interest, plan).total == pytest.approx(costs[-1])
        assert dict(zip(rates.flows.to_pylist(), rates.rate, strict=True)) == {
            flow: interest.rate[flow] for flow in np.flatnonzero(interest.audience())
        }


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("sessions", [None, 24])
def test_as_good_as_on_the_driver(
    spark: SparkSession, sessions: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joint_rounds, "FEWEST", 80)
    interest = small()
    planner = Joint(channels=8, sessions=sessions, sweeps=0)
    costs: list[float] = []
    with packed(frames_of(spark, interest)) as found:
        assert found.entries > 600
        plan, _ = plan_packed(found, planner, limit=200, tell=lambda _, cost: costs.append(cost))
    model = Filtering()
    here = model.score(interest, planner.fit(interest).plan_).total
    there = model.score(interest, plan).total
    assert there == pytest.approx(costs[-1])
    assert there <= 1.05 * here
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < costs[0]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("sessions", [None, 24])
def test_parts_that_fit_are_moved_at_random(
    spark: SparkSession, sessions: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has them one after the other, none larger than it takes; the plan then is within 5 %."""
    interest = small()
    planner = Joint(channels=8, sessions=sessions, sweeps=100)
    excess = []
    model = Filtering()
    for visits in (0, 60):
        monkeypatch.setattr(joint_rounds, "VISITS", visits)
        with packed(frames_of(spark, interest)) as found:
            taken: list[int] = []
            part = type(found).part
            monkeypatch.setattr(
                type(found),
                "part",
                lambda self, low, high, part=part, taken=taken: (
                    taken.append(int(self.size[low:high].sum())) or part(self, low, high)
                ),
            )
            plan, _ = plan_packed(found, planner, limit=300)
            monkeypatch.undo()
        plan.validate(interest)
        assert max(taken) <= 330
        assert (len(taken) > 2) == (visits > 0)
        excess.append(model.score(interest, plan).terms["excess"])
    here = model.score(interest, planner.fit(interest).plan_).terms["excess"]
    assert excess[1] < 1.01 * excess[0]
    assert excess[1] <= 1.05 * here


@pytest.mark.spark
def test_workers_propose_what_one_process_does(spark: SparkSession) -> None:
    planner = Joint(channels=4, sessions=9, sweeps=2, seed=3)
    with packed(frames_of(spark, small(n_flows=200, n_subscribers=15), 3)) as found:
        plan, _ = plan_packed(found, planner, limit=60, rounds=2)
        here = LocalFlowKinds(found.part(0, len(found)), len(found.subscribers))
        levels = plan_in_rounds(here, here.propose, planner, limit=60, rounds=2)
        kind = found.flows().sort_by("flow")["kind"].to_numpy()
    used, session = np.unique(levels.session, return_inverse=True)
    groups = np.unique(levels.parent[used])
    assert plan.carries.indices.tolist() == (len(groups) + session[kind]).tolist()
    assert plan.parent[len(groups) :].tolist() == np.searchsorted(groups, levels.parent[used]).tolist()


@pytest.mark.spark
@pytest.mark.slow
def test_the_same_plan_whatever_the_partitions(spark: SparkSession) -> None:
    interest = small(n_flows=200, n_subscribers=15)
    planner, plans = Joint(channels=4, sessions=9, sweeps=2, seed=3), []
    for partitions in (1, 3, 7):
        with packed(frames_of(spark, interest, partitions)) as found:
            plans.append(plan_packed(found, planner, limit=60, rounds=2)[0])
    plans[0].validate(interest)
    assert plans[0] == plans[1] == plans[2]


@pytest.mark.spark
def test_seconds_that_are_over(spark: SparkSession) -> None:
    interest = small(n_flows=200, n_subscribers=15)
    turns: list[int] = []
    with packed(frames_of(spark, interest)) as found:
        planner = Joint(channels=4, seconds=1e-9)
        plan, _ = plan_packed(found, planner, limit=60, tell=lambda turn, _: turns.append(turn))
    plan.validate(interest)
    assert (turns, planner.seconds) == ([0], 1e-9)


# ---------------------------------------------------------------------------------------------- make_plan


@pytest.mark.spark
@pytest.mark.slow
def test_the_path_is_said(spark: SparkSession) -> None:
    # Three flows for each set of users: packed there is a third of it.
    each = small(n_flows=100, n_subscribers=12)
    interest = Interest(np.tile(each.wants.toarray(), 3), np.tile(each.rate, 3))
    frames = frames_of(spark, interest)
    given: dict[str, Any] = {"channels": 4, "params": {"sweeps": 1, "sessions": 6}}
    whole = make_plan(frames, "joint", **given)
    part = make_plan(frames, "joint", **given, limit=interest.n_wants // 2)
    none = make_plan(frames, "joint", **given, limit=interest.n_wants // 6)
    assert [found.path for found in (whole, part, none)] == ["driver", "driver", "spark"]
    assert whole.interest == to_interest(frames)
    for found in (part, none):
        found.plan.validate(interest)
        assert (found.method, found.plan.n_groups, found.plan.n_channels) == ("joint", 4, 10)
        assert found.interest.n_wants == 0
        assert found.plan.rates(found.interest) == pytest.approx(found.plan.rates(interest))
        additive = ["false-positives", "filtering", "waste"]
        score = evaluate(frames, found.plan, name="x", costs=additive).methods["x"].costs
        assert costs_of(frames, found) == {name: cost.total for name, cost in score.items()}
        assert list(costs_of(frames, found, costs=["waste"])) == ["waste"]
    assert costs_of(frames, whole, costs=["filtering"]) == {
        "filtering": Filtering().score(interest, whole.plan).total
    }


@pytest.mark.spark
def test_what_the_driver_does_not_take(spark: SparkSession) -> None:
    interest = small(n_flows=60, n_subscribers=8)
    frames = frames_of(spark, interest)
    found = make_plan(frames, "auto", channels=3, limit=20)
    assert (found.method, found.path) == ("joint", "spark")
    found.plan.validate(interest)
    said = f"has {interest.n_wants} wanted pairs and the driver takes 20; .* or take --method joint"
    with pytest.raises(ParameterError, match=said):
        make_plan(frames, "hash", channels=3, limit=20)
    with pytest.raises(ParameterError, match="memberships is given, which joint does without on Spark"):
        make_plan(frames, "joint", channels=3, limit=20, params={"memberships": 2})
    with pytest.raises(ParameterError, match=r"sessions=2: .* channels=3"):
        make_plan(frames, "joint", channels=3, limit=20, params={"sessions": 2})
    with pytest.raises(ParameterError, match="limit is 0; give a whole number of at least 1"):
        make_plan(frames, "joint", channels=3, limit=0)


@pytest.mark.slow
@pytest.mark.spark
def test_flows_that_nobody_wants_are_too_many(spark: SparkSession) -> None:
    frames = InterestFrames(
        spark.createDataFrame([("a", "x")], "subscriber string, flow string"),
        spark.createDataFrame([(f"f{i}", 1.0) for i in range(9)], "flow string, rate double"),
        "topics",
    )
    found = make_plan(frames, "joint", channels=2, limit=5)
    assert (found.path, found.plan.n_channels, found.plan.flows.to_pylist()) == ("driver", 1, ["x"])
    nobody = InterestFrames(frames.interests.limit(0), frames.rates, "topics")
    found = make_plan(nobody, "joint", channels=2, limit=5)
    assert (found.plan.n_channels, found.plan.n_flows, found.plan.n_subscribers) == (0, 0, 0)
    nothing = {"false-positives": 0.0, "filtering": 0.0, "forwarding": 0.0, "overall": 0.0, "waste": 0.0}
    assert costs_of(nobody, found) == nothing


@pytest.mark.slow
@pytest.mark.spark
def test_the_command(spark: SparkSession, tmp_path: Path) -> None:
    tables = Flows(n_flows=600, n_subscribers=30, markets=4, share=0.1).tables()
    words = []
    for name, table in tables.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
        words += [f"--{name}", str(tmp_path / f"{name}.parquet")]
    words += ["--method", "joint", "--channels", "4", "--sessions", "9", "--set", "sweeps=0"]
    found = call("plan", *words, "--limit", "100", "--out", tmp_path / "plan")
    interest = Interest.from_tables(tables["interests"], tables["rates"])
    plan, info = read_plan(tmp_path / "plan")
    plan.validate(interest)
    shown = dict(row[:2] for row in table_of(found.stdout))
    assert (shown["planned on"], shown["channels"], shown["subscribers"]) == ("spark", "4", "30")
    models = COSTS.made(["false-positives", "filtering", "waste"])  # on Spark, of costs those that add up
    costs = {name: model.score(interest, plan).total for name, model in models.items()}
    assert info.costs == pytest.approx(costs)
    assert (info.method, info.channels) == ("joint", 4)
    rates = pq.read_table(tmp_path / "plan" / "channels.parquet")["rate"].to_numpy()
    assert rates == pytest.approx(plan.rates(interest))
