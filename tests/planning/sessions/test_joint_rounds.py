"""`joint` in rounds: the best moves are proposed, accepted ones lower the cost, and the plan is as good."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.costs.filtering import Filtering
from narrowcast.kernels import proposals
from narrowcast.model.interest import Interest
from narrowcast.planning.sessions.joint import Joint
from narrowcast.planning.sessions.joint_rounds import FrozenLevels, in_rounds
from narrowcast.workloads.flows import Flows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

N_USERS = 6


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
        states = FrozenLevels(self.sessions, self.groups, self.parent, weights, 0, self.session)
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


def small(**given: Any) -> Interest:
    tables = Flows(**{"n_flows": 600, "n_subscribers": 30, "markets": 4, "share": 0.1, **given}).tables()
    return Interest.from_tables(tables["interests"], tables["rates"])


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
