from __future__ import annotations

import pickle
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
from narrowcast.kernels import proposals
from narrowcast.model.artefact import read_plan
from narrowcast.model.interest import Interest
from narrowcast.planning.sessions import rounds
from narrowcast.planning.sessions.joint import Joint
from narrowcast.planning.sessions.rounds import Frozen, LocalKinds, in_rounds, plan_in_rounds
from narrowcast.spark.planning.distributed import plan_packed
from narrowcast.spark.planning.packed import packed
from narrowcast.spark.planning.plan import costs_of, make_plan, to_interest
from narrowcast.spark.stages.evaluate import evaluate
from narrowcast.spark.stages.interest import InterestFrames
from narrowcast.workloads.flows import Flows
from support.command import call, table_of

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    Ints = NDArray[np.int64]

N_USERS = 6


# ------------------------------------------------------------------------------------------------ kernels


class Case:
    """Some flows in sessions in groups, and what kernels read of them."""

    def __init__(
        self, sets: list[set[int]], rate: list[float], session: list[int], parent: list[int]
    ) -> None:
        self.sets, self.n_groups = sets, max(parent) + 1
        start = np.append(0, np.cumsum([len(each) for each in sets]))
        who = np.array([user for each in sets for user in sorted(each)], np.int32)
        self.points = start, who, np.array(rate)
        self.session, self.parent = np.array(session, np.int32), np.array(parent)
        self.sessions, self.groups = self.state(len(parent)), self.state(self.n_groups)
        self.member = np.zeros(N_USERS, np.int32)
        # Put in by the kernel itself, each where there is no choice.
        wanted, self.session[:] = self.session.copy()[:, None], -1
        inside = np.flatnonzero(wanted[:, 0] >= 0)
        self.accept(inside, wanted, (1.0, 1.0))

    @staticmethod
    def state(n: int) -> Any:
        shape = (N_USERS, n)
        return np.zeros(shape, np.int32), np.zeros(shape, np.uint8), np.zeros(n), np.zeros(n)

    def accept(self, order: Ints, wanted: NDArray[np.int32], weights: tuple[float, float]) -> int:
        flow = np.arange(len(self.sets), dtype=np.int32)
        return proposals.accept(
            self.points, weights, order, flow, wanted, self.session, self.parent, self.sessions, self.groups,
            self.member,
        )  # fmt: skip

    def propose(self, weights: tuple[float, float], choices: int) -> NDArray[np.int32]:
        out = np.zeros((len(self.sets), choices), np.int32)
        states = Frozen(self.sessions, self.groups, self.parent, weights, 0, self.session)
        seen = pickle.loads(pickle.dumps(states))  # as a worker sees it
        found = proposals.propose(
            self.points, weights, self.session, self.parent, seen.sessions, seen.groups, out
        )
        assert found == np.count_nonzero(out[:, 0] >= 0)
        return out

    def cost(self, session: NDArray[np.int32], weights: tuple[float, float]) -> float:
        """What users filter, by sets of users."""
        total = 0.0
        inside = np.flatnonzero(session >= 0)
        for weight, place in (
            (weights[1], {k: session[k] for k in inside}),
            (weights[0], {k: self.parent[session[k]] for k in inside}),
        ):
            for each in set(place.values()):
                flows = [k for k in inside if place[k] == each]
                total += (
                    weight
                    * len(set.union(*(self.sets[k] for k in flows)))
                    * sum(self.points[2][k] for k in flows)
                )
        return total

    def check(self) -> None:
        """What is counted is what is there."""
        sessions, groups = self.state(len(self.parent)), self.state(self.n_groups)
        for k in np.flatnonzero(self.session >= 0):
            s = self.session[k]
            sessions[0][sorted(self.sets[k]), s] += 1
            sessions[3][s] += self.points[2][k]
            groups[3][self.parent[s]] += self.points[2][k]
        for s, g in enumerate(self.parent):
            groups[0][:, g] += sessions[0][:, s] > 0
        for found, expected in ((self.sessions, sessions), (self.groups, groups)):
            assert np.array_equal(found[0], expected[0])
            assert np.array_equal(found[1], expected[0] > 0)
            assert np.array_equal(found[2], (expected[0] > 0).sum(0))
            assert found[3] == pytest.approx(expected[3], abs=1e-9)
        assert np.array_equal(self.member, (groups[0] > 0).sum(1))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    n, n_sessions = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    n_groups = draw(st.integers(1, n_sessions))
    sets = draw(st.lists(st.sets(st.integers(0, N_USERS - 1), min_size=1), min_size=n, max_size=n))
    rate = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0, 10.0]), min_size=n, max_size=n))
    session = draw(st.lists(st.integers(-1, n_sessions - 1), min_size=n, max_size=n))
    parent = [*range(n_groups)]
    more = n_sessions - n_groups
    parent += draw(st.lists(st.integers(0, n_groups - 1), min_size=more, max_size=more))
    return Case(sets, rate, session, parent)


WEIGHTS = st.sampled_from([(1.0, 1.0), (0.0, 2.0), (1.6, 0.4)])


@given(case=cases(), weights=WEIGHTS, choices=st.integers(1, 5))
def test_the_best_moves_are_proposed(case: Case, weights: tuple[float, float], choices: int) -> None:
    case.check()
    out = case.propose(weights, choices)
    for k, row in enumerate(out):
        before, session = case.cost(case.session, weights), case.session.copy()
        prices = []
        for to in range(len(case.parent)):
            session[k] = to
            prices.append(case.cost(session, weights) - before)
        own = int(case.session[k])
        told = [int(to) for to in row if to >= 0]
        assert own not in told
        assert (row[len(told) :] == -1).all()
        others = [(price, to) for to, price in enumerate(prices) if to != own]
        if own >= 0:
            others = [(price, to) for price, to in others if price < -1e-9]
        best = sorted(price for price, _ in others)[:choices]
        assert [prices[to] for to in told] == pytest.approx(best, abs=1e-9)


@given(case=cases(), weights=WEIGHTS, data=st.data())
def test_what_is_accepted_lowers_the_cost_by_what_it_should(
    case: Case, weights: tuple[float, float], data: st.DataObject
) -> None:
    n, n_sessions = len(case.sets), len(case.parent)
    to = st.integers(-1, n_sessions - 1)
    rows = data.draw(st.lists(st.lists(to, min_size=2, max_size=2), min_size=n, max_size=n))
    wanted, order = np.array(rows, np.int32), np.array(data.draw(st.permutations(range(n))))
    for k in order:
        before, session = case.session.copy(), case.session.copy()
        told = [t for i, t in enumerate(wanted[k]) if t >= 0 and (wanted[k, : i + 1] >= 0).all()]
        prices = {}
        for each in told:
            session[k] = each
            prices[each] = case.cost(session, weights)
        was = case.cost(before, weights)
        made = case.accept(np.array([k]), wanted, weights)
        now = case.cost(case.session, weights)
        if before[k] < 0:
            assert made == bool(told)
            assert now == pytest.approx(min(prices.values(), default=was))
        else:
            assert now == pytest.approx(min([was, *prices.values()]))
            assert made == (case.session[k] != before[k])
            assert now < was or not made
        case.check()


# -------------------------------------------------------------------------------------------------- Spark


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
    monkeypatch.setattr(rounds, "FEWEST", 80)
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
        monkeypatch.setattr(rounds, "VISITS", visits)
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


@pytest.mark.parametrize("sessions", [None, 24])
def test_rounds_in_one_process(sessions: int | None) -> None:
    """The same steps as on Spark, with all kinds here."""
    interest, model = small(), Filtering()
    planner = Joint(channels=8, sessions=sessions, sweeps=20)
    costs: list[float] = []
    plan = in_rounds(interest, planner, limit=200, tell=lambda _, cost: costs.append(cost))
    plan.validate(interest)
    there = model.score(interest, plan).total
    assert there == pytest.approx(costs[-1])
    assert there <= 1.05 * model.score(interest, planner.fit(interest).plan_).total
    assert costs == sorted(costs, reverse=True)


@pytest.mark.spark
def test_workers_propose_what_one_process_does(spark: SparkSession) -> None:
    planner = Joint(channels=4, sessions=9, sweeps=2, seed=3)
    with packed(frames_of(spark, small(n_flows=200, n_subscribers=15), 3)) as found:
        plan, _ = plan_packed(found, planner, limit=60, rounds=2)
        here = LocalKinds(found.part(0, len(found)), len(found.subscribers))
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
    with pytest.raises(ParameterError, match="sessions is 2 and channels 3"):
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
