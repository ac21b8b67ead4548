"""What groups must keep to: never broken, and told before planning where it cannot be kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast import ChannelPlan, Interest, Joint
from narrowcast.errors import ParameterError, TableError
from narrowcast.model.relation import relation_of, rows_of
from narrowcast.planning.sessions.limits import GroupLimits
from narrowcast.workloads.flows import Flows


def memberships(plan: ChannelPlan) -> Any:
    """Return in how many groups each subscriber is."""
    joined = relation_of(rows_of(plan.listens), plan.groups()[plan.listens.indices], plan.listens.shape)
    return np.diff(joined.indptr)


def workload(n_flows: int = 3000, n_subscribers: int = 80, seed: int = 3) -> Interest:
    tables = Flows(n_flows=n_flows, n_subscribers=n_subscribers, seed=seed).tables()
    return Interest.from_tables(tables["interests"], tables["rates"])


def made(planner: Joint, interest: Interest) -> tuple[ChannelPlan | None, str]:
    """Return the plan, or why there is none."""
    try:
        return planner.fit(interest).plan_, ""
    except ParameterError as error:
        return None, str(error)


cases = st.tuples(st.integers(1, 5), st.integers(1, 7), st.integers(1, 3)).flatmap(
    lambda n: st.tuples(
        arrays(np.bool_, (n[0], n[1])),
        arrays(np.float64, n[1], elements=st.integers(0, 5)),
        st.just(n[2]),
        st.one_of(st.none(), st.integers(0, 3)),
        st.one_of(st.none(), st.integers(1, 3)),
        st.one_of(st.none(), st.integers(1, 5)),
        st.one_of(st.none(), st.floats(1, 20)),
        st.dictionaries(st.integers(0, n[1] - 1), st.integers(0, n[2] - 1), max_size=3),
    )
)


@given(cases, st.integers(0, 3))
def test_limits_are_kept_whatever_they_are(case: Any, seed: int) -> None:
    """Where a plan is made, each limit is kept and everybody is served; else it is said why not."""
    wants, rates, channels, more, most, members, rate, pinned = case
    interest = Interest(wants, rates)
    sessions = None if more is None else channels + more
    given = {"memberships": most, "members": members, "rate": rate, "pinned": pinned or None}
    planner = Joint(channels=channels, sessions=sessions, seed=seed, sweeps=20, **given)
    plan, problem = made(planner, interest)
    if plan is None:
        assert problem.startswith(("members is", "memberships is", "rate is"))
        return
    plan.validate(interest)
    groups = plan.parent < 0
    assert plan.n_groups <= channels
    if most is not None:
        assert memberships(plan).max(initial=0) <= most
    if members is not None:
        assert plan.members()[groups].max(initial=0) <= members
    if rate is not None:
        assert plan.rates(interest)[groups].max(initial=0) <= rate * (1 + 1e-9)
    for flow, channel in pinned.items():
        if wants[:, flow].any():
            carrier = plan.carries.indices[plan.carries.indptr[flow] : plan.carries.indptr[flow + 1]]
            assert plan.groups()[carrier].tolist() == [channel]
    # A flow has one channel, or goes directly to all who want it.
    carried = np.diff(plan.carries.indptr) > 0
    direct = np.bincount(plan.unicast.indices, minlength=plan.n_flows)
    assert (direct == np.where(carried, 0, wants.sum(axis=0))).all()
    assert plan == planner.fit(interest).plan_


@pytest.mark.parametrize("sessions", [None, 60])
def test_a_limit_on_groups_costs_little_and_sends_nothing_directly(sessions: int | None) -> None:
    interest = workload()
    free = Joint(channels=20, sessions=sessions, sweeps=100).fit(interest)
    most = int(memberships(free.plan_).max())
    for limit, dearer in ((most, 1.05), (most - 2, 1.3), (1, 50)):
        found = Joint(channels=20, sessions=sessions, sweeps=100, memberships=limit).fit(interest)
        assert memberships(found.plan_).max() <= limit
        assert found.plan_.unicast.nnz == 0
        assert found.cost_ <= dearer * free.cost_


def test_a_limit_on_rates() -> None:
    interest = workload()
    total = interest.rate[interest.audience() > 0].sum()
    free = Joint(channels=10, sweeps=50).fit(interest)
    limit = float(total / 10 * 1.1)
    assert free.plan_.rates(interest).max() > limit
    found = Joint(channels=10, sweeps=50, rate=limit).fit(interest)
    assert found.plan_.rates(interest).max() <= limit * (1 + 1e-9)
    assert found.plan_.unicast.nnz < interest.n_wants / 50


def test_a_limit_on_members() -> None:
    interest = workload()
    free = Joint(channels=20, sweeps=50).fit(interest)
    limit = int(free.plan_.members().max() * 0.8)
    found = Joint(channels=20, sweeps=50, members=limit).fit(interest)
    assert found.plan_.members().max() <= limit
    assert found.plan_.unicast.nnz < interest.n_wants / 10


def test_pinned_flows_are_where_they_must_be() -> None:
    interest = workload(600, 30)
    wanted = np.flatnonzero(interest.audience() > 0)
    pinned = pa.table({"flow": interest.flows.take(wanted[:6]), "channel": [5, 5, 3, 0, 3, 5]})
    for sessions in (None, 40):
        plan = Joint(channels=7, sessions=sessions, sweeps=50, pinned=pinned).fit(interest).plan_
        channel = plan.carries.indices[plan.carries.indptr[wanted[:6]]]
        assert plan.groups()[channel].tolist() == [5, 5, 3, 0, 3, 5]
        plan.validate(interest)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"memberships": 0}, "memberships is 0; give a whole number of at least 1"),
        ({"memberships": 2.5}, "memberships is 2.5; give a whole number of at least 1"),
        ({"members": True}, "members is True; give a whole number of at least 1"),
        ({"rate": 0}, "rate is 0; give the most messages per second in a group, above 0"),
        ({"rate": float("inf")}, "rate is inf; give the most"),
        ({"rate": "9"}, "rate is '9'; give the most"),
        ({"members": 2}, "members is 2 and flow 'c' has 3 subscribers by itself; allow as many in a group"),
        ({"rate": 3.0}, "rate is 3.0 and flow 'b' has 4.0 by itself; allow as much in a group"),
        ({"rate": 4.5}, "rate is 4.5: 2 groups have room for 9 of 10 messages per second; allow as much"),
        ({"pinned": {"c": 2}}, "flow 'c' is pinned to channel 2; groups are 0 to 1"),
        ({"pinned": {"c": -1}}, "flow 'c' is pinned to channel -1; groups are 0 to 1"),
        ({"pinned": {"c": 0.5}}, "the channels of pinned flows"),
        ({"pinned": 5}, "pinned is 5; give a table of flow and channel, as --pinned does, or a mapping"),
        ({"pinned": {"x": 1}}, "flow 'x' is pinned and not in the interest; leave it out"),
        (
            {"pinned": pa.table({"flow": ["a", "b", "a"], "channel": [0, 0, 1]})},
            "flow 'a' is pinned to several channels; give one",
        ),
        (
            {"pinned": {"a": 0, "b": 0, "c": 0}, "rate": 7.0},
            "rate is 7.0 and the flows pinned to channel 0 have 10; allow as much, or pin fewer",
        ),
        (
            {"pinned": {"a": 0, "c": 1}, "memberships": 1},
            "memberships is 1 and subscriber 'u' wants flows pinned to 2 channels; allow as many",
        ),
    ],
)
def test_what_cannot_be_kept_is_told(given: dict[str, Any], message: str) -> None:
    interest = Interest(
        [[1, 0, 1], [0, 1, 1], [0, 0, 1]], rate=[3, 4, 3], subscribers=["u", "v", "w"], flows=["a", "b", "c"]
    )
    with pytest.raises(ParameterError) as told:
        Joint(channels=2, **given).fit(interest)
    assert str(told.value).startswith(message)


def test_too_few_places() -> None:
    interest = Interest(np.eye(5, dtype=bool))
    with pytest.raises(
        ParameterError, match="members is 2: 2 groups have room for 4 of 5 subscribers; allow"
    ):
        Joint(channels=2, members=2).fit(interest)
    pinned = dict.fromkeys(range(3), 0)
    with pytest.raises(ParameterError, match="members is 2 and the flows pinned to channel 0 have 3 subs"):
        Joint(channels=3, members=2, pinned=pinned).fit(interest)


def test_a_table_of_pinned_flows_has_its_columns() -> None:
    with pytest.raises(TableError, match="pinned has no column 'channel'; its columns: 'flow'"):
        Joint(channels=2, pinned=pa.table({"flow": [0]})).fit(Interest([[1]]))


def test_a_flow_nobody_wants_may_be_pinned() -> None:
    plan = Joint(channels=2, pinned={1: 1}).fit(Interest([[1, 0]])).plan_
    assert plan.carries.toarray().tolist() == [[True], [False]]


def test_none_given() -> None:
    assert not GroupLimits().given
    assert GroupLimits(rate=3).given
    assert GroupLimits(pinned={}).given


def test_what_is_sent_directly_fits_in_no_group() -> None:
    interest = workload()
    for members, most in ((14, 99), (25, 2)):
        plan = Joint(channels=12, sweeps=20, members=members, memberships=most).fit(interest).plan_
        assert plan.unicast.nnz
        inside = plan.listens.toarray().astype(bool)
        for flow in np.unique(plan.unicast.indices).tolist():
            who = interest.wants[:, [flow]].toarray()[:, 0].astype(bool)
            for channel in range(plan.n_channels):
                after = inside[:, channel] | who
                more = inside.sum(axis=1) + (after & ~inside[:, channel])
                assert after.sum() > members or more[who].max() > most


def test_pinned_plans_have_no_empty_session() -> None:
    interest = workload(600, 30)
    wanted = np.flatnonzero(interest.audience() > 0)
    pinned = {interest.flows[int(wanted[0])].as_py(): 3}
    plan = Joint(channels=5, sessions=400, sweeps=10, pinned=pinned).fit(interest).plan_
    used = np.bincount(plan.carries.indices, minlength=plan.n_channels)
    assert (used[plan.parent >= 0] > 0).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seconds": "abc"}, "seconds is 'abc'; give a number above 0"),
        ({"seconds": float("nan")}, "seconds is nan; give a number above 0"),
        ({"seconds": True}, "seconds is True; give a number above 0"),
        ({"alpha": -1}, "alpha is -1; give what a message costs"),
        ({"beta": float("nan")}, "beta is nan; give what a message costs"),
        ({"alpha": "x"}, "alpha is 'x'; give what a message costs"),
    ],
)
def test_parameters_that_are_none(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError) as told:
        Joint(channels=1, **given).fit(Interest([[1]]))
    assert str(told.value).startswith(message)
