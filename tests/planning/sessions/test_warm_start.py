"""Planning on from a plan: within so many groups joined and left, and each cheaper than with fewer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast import ChannelPlan, Interest, Joint
from narrowcast.errors import ParameterError
from narrowcast.model.relation import relation_of, rows_of
from narrowcast.planning.fit_report import SuccessionStep
from narrowcast.planning.sessions.hierarchical import GroupsFirst
from narrowcast.planning.sessions.warm_start import WarmStart
from narrowcast.workloads.flows import Flows


def joined(plan: ChannelPlan) -> set[tuple[int, int]]:
    """Return who is in which group."""
    return set(zip(rows_of(plan.listens).tolist(), plan.groups()[plan.listens.indices].tolist(), strict=True))


def curve(joint: Joint) -> tuple[SuccessionStep, ...]:
    """Return the cost by the number of groups joined and left."""
    assert joint.report_.curve is not None
    return joint.report_.curve


def changed(interest: Interest, share: float, seed: int = 0) -> Interest:
    """Return an interest in which a share of the pairs is other pairs."""
    rng = np.random.default_rng(seed)
    row, column = rows_of(interest.wants), interest.wants.indices
    stay = rng.random(len(row)) >= share
    n = int(np.count_nonzero(~stay))
    rows = np.append(row[stay], rng.choice(row, n))
    columns = np.append(column[stay], rng.choice(column, n))
    wants = relation_of(rows, columns, interest.wants.shape)
    return Interest(wants, interest.rate, interest.subscribers, interest.flows)


def workload() -> Interest:
    tables = Flows(n_flows=2000, n_subscribers=60, seed=4).tables()
    return Interest.from_tables(tables["interests"], tables["rates"])


@pytest.mark.parametrize("sessions", [None, 40])
def test_more_moves_save_more(sessions: int | None) -> None:
    old = workload()
    start = Joint(channels=12, sessions=sessions, sweeps=50).fit(old).plan_
    new = changed(old, 0.15)
    kept = Joint(start=start, moves=0, sweeps=50).fit(new)
    costs = [kept.cost_]
    for moves in (5, 40, 10_000):
        found = Joint(start=start, moves=moves, sweeps=50).fit(new)
        found.plan_.validate(new)
        assert found.report_.moves == len(joined(found.plan_) ^ joined(kept.plan_)) <= moves
        assert [step.moves for step in curve(found)] == sorted({step.moves for step in curve(found)})
        assert [step.cost for step in curve(found)] == sorted(
            {step.cost for step in curve(found)}, reverse=True
        )
        assert (found.report_.moves, found.cost_, 0) in curve(found)
        costs.append(found.cost_)
    assert costs == sorted(set(costs), reverse=True)
    # With few changes much of what planning anew saves is saved.
    anew = Joint(channels=12, sessions=sessions, sweeps=50).fit(new).cost_
    assert costs[-1] <= anew * 1.05
    assert start.n_channels == kept.plan_.n_channels
    assert (start.parent == kept.plan_.parent).all() or sessions


def test_any_number_of_moves() -> None:
    old = workload()
    start = GroupsFirst(channels=12, sessions=40).fit(old).plan_
    found = Joint(start=start, sweeps=50).fit(old)
    first, last = curve(found)[0], curve(found)[-1]
    assert first.moves == 0
    assert last == (found.report_.moves, found.cost_, 0)
    assert found.cost_ < first.cost
    assert found.cost_ == Joint(start=start, sweeps=50, moves=10**9).fit(old).cost_
    again = Joint(start=start, sweeps=50).fit(old)
    assert again.plan_ == found.plan_


def made(planner: Joint, interest: Interest) -> tuple[ChannelPlan | None, str]:
    """Return the plan, or why there is none."""
    try:
        return planner.fit(interest).plan_, ""
    except ParameterError as error:
        return None, str(error)


cases = st.tuples(st.integers(1, 5), st.integers(1, 7), st.integers(1, 3)).flatmap(
    lambda n: st.tuples(
        arrays(np.bool_, (n[0], n[1])),
        arrays(np.bool_, (n[0], n[1])),
        st.just(n[2]),
        st.one_of(st.none(), st.integers(0, 3)),
        st.integers(0, 9),
        st.one_of(st.none(), st.integers(1, 2)),
    )
)


@given(cases)
def test_moves_are_within_and_limits_kept(case: Any) -> None:
    wants, later, channels, more, moves, most = case
    old, new = Interest(wants, np.arange(wants.shape[1]) + 1), Interest(later, np.arange(wants.shape[1]) + 1)
    start = (
        Joint(channels=channels, sessions=None if more is None else channels + more, sweeps=5).fit(old).plan_
    )
    if not start.n_channels:
        return
    kept = Joint(start=start, moves=0, sweeps=5).fit(new)
    kept.plan_.validate(new)
    found = Joint(start=start, moves=moves, sweeps=5, memberships=most)
    plan, problem = made(found, new)
    if plan is None:
        assert problem.startswith(f"moves is {moves}, and limits were not kept")
        assert most is not None
        return
    plan.validate(new)
    assert found.report_.moves <= moves
    assert found.plan_.n_channels == start.n_channels
    if most is None:
        assert found.cost_ <= kept.cost_ + 1e-9
    else:
        users = [user for user, _ in joined(plan)]
        assert np.bincount(users, minlength=1).max() <= most


def test_more_groups_and_sessions_than_before() -> None:
    interest = workload()
    start = Joint(channels=5, sessions=10, sweeps=20).fit(interest).plan_
    found = Joint(start=start, channels=8, sessions=30, sweeps=20).fit(interest)
    assert found.cost_ < curve(found)[0].cost
    assert found.plan_.parent[:5].tolist() == [-1] * 5
    assert found.plan_.n_groups == 8
    flat = Joint(channels=5, sweeps=20).fit(interest).plan_
    more = Joint(start=flat, channels=8, sweeps=20).fit(interest).plan_
    assert more.n_channels == 8


def test_where_flows_are() -> None:
    plan = ChannelPlan(
        [[0, 1, 0], [0, 0, 1], [0, 0, 0]], [[0, 1, 1]], parent=[-1, 0, 0], flows=["a", "b", "c"]
    )
    at = WarmStart.of(plan, Interest([[1, 1, 1, 1]], flows=["b", "x", "a", "c"]))
    assert at.session.tolist() == [1, -1, 0, -1]
    assert (at.parent.tolist(), at.groups.tolist(), at.sessions.tolist(), at.flat) == (
        [0, 0],
        [0],
        [1, 2],
        False,
    )


@pytest.mark.parametrize(
    ("plan", "given", "message"),
    [
        (
            ChannelPlan([[1, 1]], [[1, 1]]),
            {},
            "the plan to start from has flow 0 in 2 channels; start from one",
        ),
        (
            ChannelPlan([[0, 1, 0], [0, 0, 1]], [[0, 1, 1]], parent=[-1, 0, -1]),
            {},
            "the plan to start from has flows in sessions and in groups",
        ),
        (
            ChannelPlan([[1, 0]], [[1, 0]]),
            {"channels": 1},
            "channels is 1, and the plan to start from has 2; give",
        ),
        (
            ChannelPlan([[1]], [[1]]),
            {"sessions": 4},
            "sessions is 4, and the plan to start from has one level",
        ),
        (ChannelPlan([[1]], [[1]]), {"moves": -1}, "moves is -1; give a whole number of at least 0"),
        (7, {}, "start is 7; give a plan, as --from does"),
        (None, {"moves": 3, "channels": 1}, "moves is 3 and there is no plan to start from; give one"),
    ],
)
def test_what_cannot_be_started_from(plan: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError) as told:
        Joint(start=plan, **given).fit(Interest([[1, 1]]))
    assert str(told.value).startswith(message)


def test_what_is_sent_directly_stays_so_where_limits_need_it() -> None:
    """A plan that keeps limits is a valid answer for the same interest, without any change."""
    interest = workload()
    start = Joint(channels=12, sweeps=20, members=20, memberships=2).fit(interest).plan_
    assert start.unicast.nnz
    kept = Joint(start=start, moves=0, members=20, memberships=2).fit(interest)
    assert (kept.report_.moves, joined(kept.plan_)) == (0, joined(start))
    assert kept.plan_.unicast.nnz == start.unicast.nnz


def test_pinned_flows_are_moves_too() -> None:
    interest = workload()
    start = Joint(channels=12, sweeps=20).fit(interest).plan_
    flows = np.flatnonzero(interest.audience() > 3)[:3]
    pinned = {
        interest.flows[int(f)].as_py(): (start.carries.indices[start.carries.indptr[f]] + 1) % 12
        for f in flows
    }
    with pytest.raises(
        ParameterError, match=r"^moves is 0, and .* not kept with so few; \d+ were enough$"
    ) as told:
        Joint(start=start, moves=0, pinned=pinned, sweeps=0).fit(interest)
    enough = int(str(told.value).split()[-3])
    found = Joint(start=start, moves=enough, pinned=pinned, sweeps=0).fit(interest)
    assert 0 < found.report_.moves == len(joined(found.plan_) ^ joined(start)) <= enough


def over(plan: ChannelPlan, most: int) -> int:
    """Return how many groups subscribers have to leave for a limit, whatever else is done."""
    counts = np.bincount([user for user, _ in joined(plan)], minlength=plan.n_subscribers)
    return int(np.maximum(counts - most, 0).sum())


@pytest.mark.parametrize("sessions", [None, 40])
@pytest.mark.parametrize("memberships", [2, 3])
def test_a_limit_is_kept_with_few_moves(sessions: int | None, memberships: int) -> None:
    """As few groups are left as must be, and a step that takes more sends less directly, or costs less."""
    interest = workload()
    start = Joint(channels=12, sessions=sessions, sweeps=50).fit(interest).plan_
    least = over(start, memberships)
    assert least > 3
    given: dict[str, Any] = {"start": start, "memberships": memberships, "sweeps": 20}
    free = Joint(**given).fit(interest)
    enough = curve(free)[0].moves
    assert least <= enough <= least + 3
    assert len(curve(free)) > 5
    worth = [(step.direct, step.cost) for step in curve(free)]
    assert worth == sorted(set(worth), reverse=True)
    assert free.plan_.unicast.nnz == 0 == curve(free)[-1].direct
    with pytest.raises(ParameterError, match=f"with so few; {enough} were enough"):
        Joint(**given, moves=enough - 1).fit(interest)
    for step in curve(free)[:: len(curve(free)) // 3]:
        found = Joint(**given, moves=step.moves).fit(interest)
        found.plan_.validate(interest)
        assert (found.report_.moves, found.cost_, found.plan_.unicast.nnz) == step
        assert len(joined(found.plan_) ^ joined(start)) == step.moves
        assert over(found.plan_, memberships) == 0


def test_a_limit_on_members_is_kept_with_few_moves() -> None:
    interest = workload()
    start = Joint(channels=12, sessions=40, sweeps=50).fit(interest).plan_
    most = int(start.members()[start.parent < 0].max()) - 3
    least = int(np.maximum(start.members()[start.parent < 0] - most, 0).sum())
    free = Joint(start=start, members=most, sweeps=20).fit(interest)
    assert least <= curve(free)[0].moves <= 3 * least
    found = Joint(start=start, members=most, sweeps=20, moves=curve(free)[0].moves).fit(interest)
    found.plan_.validate(interest)
    assert found.plan_.members()[found.plan_.parent < 0].max() <= most


@pytest.mark.parametrize("given", [{}, {"members": 25}, {"memberships": 3}])
def test_no_budget_gives_a_better_plan_than_none(given: dict[str, Any]) -> None:
    old = workload()
    start = Joint(channels=12, sessions=40, sweeps=20, **given).fit(old).plan_
    new = changed(old, 0.05)
    free = Joint(start=start, sweeps=20, **given).fit(new)
    worth = []
    for moves in (10, 20, 40, 80):
        plan, problem = made(found := Joint(start=start, sweeps=20, moves=moves, **given), new)
        if plan is None:
            assert "were enough" in problem
            continue
        worth.append((plan.unicast.nnz, found.cost_))
    assert [*worth, (free.plan_.unicast.nnz, free.cost_)] == sorted(
        [*worth, (free.plan_.unicast.nnz, free.cost_)], reverse=True
    )


def test_restarts_count_from_a_plan_too() -> None:
    old = workload()
    start = Joint(channels=12, sessions=40, sweeps=20).fit(old).plan_
    new = changed(old, 0.1)
    costs = [Joint(start=start, sweeps=10, restarts=n).fit(new).cost_ for n in (1, 4, 4)]
    assert costs[0] > costs[1] == costs[2]


def test_wants_that_are_sent_directly_are_counted_by_flows() -> None:
    """Flows that the same subscribers want are one, and as many wants as they are."""
    wants = np.repeat([[1, 0, 1], [0, 1, 1]], 5, axis=1)
    interest = Interest(wants)
    channel = np.repeat(np.eye(3, 2), 5, axis=0)
    start = ChannelPlan(channel, [[1, 0], [0, 1]], unicast=wants * (channel.sum(axis=1) == 0))
    found = Joint(start=start, moves=0, sweeps=0).fit(interest)
    assert curve(found)[0].direct == found.plan_.unicast.nnz == 10


def test_what_is_sent_directly_comes_back_where_it_fits() -> None:
    interest = workload()
    start = Joint(channels=12, sweeps=20, members=20, memberships=2).fit(interest).plan_
    assert start.unicast.nnz
    free = Joint(start=start, sweeps=20, members=60, memberships=8).fit(interest)
    assert free.plan_.unicast.nnz == 0
    assert curve(free)[0].moves == 0
