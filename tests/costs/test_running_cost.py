"""The account of channels that change equals one that is made anew, whatever the numbers are like."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast.costs.exact_sum import ExactSum
from narrowcast.costs.growth import MeasuredGrowth
from narrowcast.costs.local_changes import LocalChanges, TopicCost
from narrowcast.costs.overall import Overall
from narrowcast.costs.running_cost import RunningCost

growths = st.sampled_from(["linear", "log", "sqrt", MeasuredGrowth([1, 4, 9], [2.0, 5.0, 20.0])])
frequencies = st.one_of(st.floats(1e-9, 1e9), st.sampled_from([1e-9, 1e9, 0.1, 0.0]))
# What changes of a topic or a cluster, which of three, and to what.
changes = st.lists(
    st.tuples(
        st.sampled_from(["members", "seated", "frequency", "cluster"]),
        st.integers(0, 2),
        st.integers(0, 3000),
        frequencies,
    ),
    max_size=60,
)


@given(changes, growths, growths, st.sampled_from([0.0, 1.0, 0.3]))
@settings(max_examples=200)
def test_equals_an_account_made_anew(
    made: list[tuple[str, int, int, float]], m: Any, d: Any, n: float
) -> None:
    local = LocalChanges(Overall(cost_m=m, cost_d=d, cost_n=n))
    account = RunningCost(local)
    topics: list[tuple[float, tuple[int, bool]]] = [(0.0, (0, True))] * 3
    clusters = [(0, 0, 0.0)] * 3
    for what, i, number, frequency in made:
        of, state = topics[i]
        if what == "frequency":
            account.frequency(state, of, frequency)
            topics[i] = frequency, state
        elif what == "cluster":
            account.cluster(clusters[i], (number, number % 7, frequency))
            clusters[i] = number, number % 7, frequency
        else:
            after = (number, state[1]) if what == "members" else (state[0], not state[1])
            account.topic(of, state, after)
            topics[i] = of, after
        maintenance, dissemination = anew(local, topics, clusters)
        assert account.maintenance == pytest.approx(maintenance, rel=1e-9, abs=0)
        assert account.dissemination == pytest.approx(dissemination, rel=1e-9, abs=0)
        assert account.total == pytest.approx(maintenance + dissemination, rel=1e-9, abs=0)


def anew(
    local: LocalChanges, topics: list[tuple[float, tuple[int, bool]]], clusters: list[tuple[int, int, float]]
) -> tuple[float, float]:
    """Return maintenance and dissemination, channel by channel."""
    model = local.model
    kept, sent = [], []
    for frequency, (members, seated) in topics:
        size, times = (members, 1) if seated else (1, members)
        kept.append(times * float(model.maintained(size)))
        sent.append(frequency * (model.cost_n + times * float(model.sent(size))))
    for members, flows, frequency in clusters:
        kept.append(float(model.maintained(members)) + float(model.tied(flows)))
        sent.append(frequency * (model.cost_n + float(model.sent(members))))
    return math.fsum(kept), math.fsum(sent)


def test_what_goes_leaves_no_trace() -> None:
    """A busy flow comes and goes a thousand times; a plain sum would be wrong in the fourth digit."""
    account = RunningCost(LocalChanges(Overall()))
    account.frequency((0, True), 0.0, 1e-9)
    plain = 1e-9
    for i in range(1000):
        busy = 1e9 / (i + 3)
        account.frequency((2999, True), 0.0, busy)
        account.frequency((2999, True), busy, 0.0)
        plain += busy * 3000
        plain -= busy * 3000
    assert account.total == 1e-9
    assert plain != pytest.approx(1e-9, rel=1e-4)


@given(st.lists(st.tuples(*[st.floats(-1e30, 1e30)] * 2), max_size=700))
@settings(max_examples=50)
def test_sums_are_exact(made: list[tuple[float, float]]) -> None:
    total, exact = ExactSum(), Fraction(0)
    for i, (before, after) in enumerate(made):
        total.change(before, after)
        exact += Fraction(after) - Fraction(before)
        if i % 100 == 0:
            assert total.value == float(exact)
    assert total.value == float(exact)
    for before, after in made:
        total.change(after, before)
    assert total.value == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([math.inf], math.inf),
        ([math.inf, -math.inf], math.nan),
        ([1e308] * 9, math.nan),
        ([math.nan], math.nan),
    ],
)
def test_sums_beyond_all_numbers_end(given: list[float], said: float) -> None:
    total = ExactSum()
    for each in given:
        total.change(0.0, each)
    assert total.value == pytest.approx(said, nan_ok=True)
    total.change(0.0, 1.0)
    assert not math.isfinite(total.value)


sizes = st.integers(-(10**6), 10**6)


@given(sizes, sizes, st.integers(0, 3000), st.integers(0, 3000), st.integers(2, 50), frequencies)
def test_with_linear_costs_sizes_cancel_out(
    one: int, other: int, members: int, common: int, flows: int, frequency: float
) -> None:
    """Any number does for the direct subscribers of a topic, and for a cluster that somebody joins."""
    local = LocalChanges(Overall(cost_n=0.7))
    assert not local.sized
    topics = TopicCost(frequency, one), TopicCost(frequency, other)

    def same(*found: float) -> None:
        assert found[0] == found[1]

    same(*(local.last(topic) for topic in topics))
    same(*(local.add(topic, members=members, flows=flows, common=common) for topic in topics))
    same(*(local.remove(topic, members=members, flows=flows, need=common) for topic in topics))
    same(*(local.worth(topic, members=members, flows=flows) for topic in topics))
    same(*(local.join([topic] * 2, members=topic.members, frequency=9.5) for topic in topics))
    same(*(local.leave([topic] * 2, members=topic.members, frequency=9.5) for topic in topics))


@pytest.mark.parametrize(
    "costs", [{"cost_m": "log"}, {"cost_d": "sqrt"}, {"cost_m": MeasuredGrowth([1], [1.0])}]
)
def test_other_costs_hang_on_sizes(costs: dict[str, Any]) -> None:
    assert LocalChanges(Overall(**costs)).sized


def test_what_ties_cost_does_not_hang_on_members() -> None:
    assert not LocalChanges(Overall(cost_a="log")).sized
