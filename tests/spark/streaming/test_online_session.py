"""An online planner that processes changes and counts of events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa
import pytest

from narrowcast.errors import TableError
from narrowcast.lab.giant import FrequencyThreshold
from narrowcast.model.diff import delta_between
from narrowcast.model.interest import Interest
from narrowcast.planning.base import BasePlanner, Capabilities
from narrowcast.planning.baselines.simple import PerFlow
from narrowcast.planning.replanner import HALF_LIFE, Replanner, observed
from narrowcast.planning.topics.tamara import Tamara
from narrowcast.spark.streaming.changelog import ChangeBatch
from narrowcast.spark.streaming.follow_state import FollowState
from narrowcast.spark.streaming.online_session import OnlineSession, OnlineStep
from narrowcast.spark.streaming.subscription_update import REJECTED
from narrowcast.spark.streaming.tally import Span, Tally
from support.errors import refused

if TYPE_CHECKING:
    from pathlib import Path

    from narrowcast.model.labels import Labels
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.planning.base import OnlinePlanner, PlanDelta

DAY = 86_400
INTEREST = Interest([[1, 1]] * 4 + [[1, 0]], [1e-4, 1e-4], subscribers=list("abcde"), flows=["x", "y"])


class Plain(BasePlanner):
    """An on-line planner that has what the contract asks for, and nothing else."""

    capabilities = Capabilities(online=True)
    seed, half_life = 0, HALF_LIFE

    def __init__(self) -> None:
        self.inner = Replanner(FrequencyThreshold())

    def fit(self, interest: Interest) -> Self:
        self.inner = Replanner(FrequencyThreshold()).fit(interest)
        return self

    def update(self, changes: pa.Table) -> PlanDelta:
        return self.inner.update(changes)

    def observe(self, events: pa.Table, seconds: float) -> PlanDelta:
        return self.inner.observe(events, seconds)

    def advance(self, time: float) -> PlanDelta:
        return self.inner.advance(time)

    def resumed(self, interest: Interest, plan: ChannelPlan | None) -> Self:
        assert plan is None or plan.n_flows == interest.n_flows
        return type(self)().fit(interest)

    @property
    def plan_(self) -> ChannelPlan:
        return self.inner.plan_

    @property
    def interest_(self) -> Interest:
        return self.inner.interest_

    @property
    def messages_(self) -> dict[str, int]:
        return {}


def seen(*weight: float, until: int = DAY) -> Tally:
    """Return a tally of what came in a day."""
    return Tally(np.array(weight), Span(0, until * 10**6), 100, 0, REJECTED.empty_table(), 0)


def after(
    planner: OnlinePlanner, *tallies: Tally, pieces: tuple[ChangeBatch, ...] = ()
) -> tuple[OnlineSession, OnlineStep]:
    session = OnlineSession(planner)
    state = FollowState(-1, session.initial_plan(INTEREST), INTEREST)
    for number, tally in enumerate(tallies):

        def count(_: Labels, tally: Tally = tally) -> Tally:
            return tally

        step = session.apply(state, pieces, number, count)
        state = step.state
    return session, step


@pytest.mark.parametrize("planner", [Tamara(), Replanner(FrequencyThreshold()), Plain()])
def test_a_flow_that_gets_busy_changes_the_plan(planner: OnlinePlanner) -> None:
    tally = seen(0.0, 50_000.0)
    session, step = after(planner, tally)
    counts = tally.counts(INTEREST.flows, None, HALF_LIFE)
    assert counts is not None
    wanted = observed(INTEREST, *counts, half_life=HALF_LIFE)
    assert step.state.interest.rate.tolist() == pytest.approx(wanted.rate.tolist(), rel=1e-9)
    assert (step.moved, step.rates_changed, step.events) == (2, True, 100)
    assert step.delta.n_changes
    assert step.has_changes
    assert step.state.span == Span(0, DAY * 10**6)
    # Made anew from there, it believes the same.
    again = OnlineSession(planner).apply(step.state, (), 1, lambda _: seen(0.0, 0.0, until=2 * DAY))
    on = session.apply(step.state, (), 1, lambda _: seen(0.0, 0.0, until=2 * DAY))
    assert again.state.interest.rate.tolist() == pytest.approx(on.state.interest.rate.tolist(), rel=1e-9)
    assert again.state.interest.rate.tolist() == pytest.approx(
        (wanted.rate * 2 ** (-1 / 3)).tolist(), rel=1e-9
    )


def test_counts_without_information_change_nothing() -> None:
    nothing = Tally(np.zeros(2), None, 0, 0, REJECTED.empty_table(), 3)
    _, step = after(Replanner(PerFlow()), nothing)
    assert (step.has_changes, step.rates_changed, step.moved, step.bad) == (False, False, 0, 3)
    # Rates that fade a little are others, and still the same to two digits; the plan stays.
    _, step = after(Replanner(PerFlow()), seen(0.0, 0.0, until=600))
    assert (step.has_changes, step.rates_changed, step.moved) == (False, True, 0)


@pytest.mark.parametrize("planner", [Tamara(), Replanner(PerFlow())])
def test_a_flow_of_the_same_micro_batch(planner: OnlinePlanner) -> None:
    rows = [(1, "a", "z", "subscribe"), (2, "nobody", "w", "unsubscribe")]
    names = ("time", "subscriber", "flow", "action")
    piece = ChangeBatch(
        pa.table(dict(zip(names, zip(*rows, strict=True), strict=True))), REJECTED.empty_table()
    )
    _, step = after(planner, seen(0.0, 0.0, 0.0, 8.0), pieces=(piece,))
    interest = step.state.interest
    assert interest.flows.to_pylist() == ["w", "x", "y", "z"]
    fade = 2 ** (-1 / 3)
    wanted = [fade, 1e-4 * fade, 1e-4 * fade, fade + 8 * np.log(2) / HALF_LIFE]
    assert interest.rate.tolist() == pytest.approx(wanted, rel=1e-9)
    assert (step.changes, step.ignored) == (2, 1)
    step.state.plan.validate(interest)


def test_rounds_are_held_while_only_events_come() -> None:
    """Without any change of interest, two topics with the same subscribers become a cluster in time."""
    planner = Tamara(rounds=0, period=float(DAY))
    little = 9.0  # as many as there were, so that no rate moves
    _, step = after(planner, seen(little, little), seen(little, little, until=3 * DAY))
    carried = np.bincount(step.state.plan.carries.indices)
    assert carried.max() == 2


def test_a_damaged_state(tmp_path: Path) -> None:
    session = OnlineSession(Replanner(PerFlow()))
    state = FollowState(0, session.initial_plan(INTEREST), INTEREST)
    delta = delta_between(state.plan, state.plan)
    state.write(tmp_path, delta, REJECTED.empty_table(), method="per-flow", params={}, seed=0, cost=1.0)
    found = FollowState.newest(tmp_path)
    assert found is not None
    assert found.plan == state.plan
    [damaged] = tmp_path.rglob("listens.parquet")
    damaged.write_bytes(damaged.read_bytes()[:20])
    with refused(TableError, tmp_path, parameter="checkpoint"):
        FollowState.newest(tmp_path)
