from __future__ import annotations

import pickle
import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import narrowcast.model.plan as module
from narrowcast.errors import PlanError, TableError
from narrowcast.model.interest import Interest
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.relation import relation_of
from support.errors import refused

sizes = st.integers(0, 4)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Interest, ChannelPlan]:
    """An interest and a plan over labels that overlap in part."""
    subscribers, flows, channels = draw(sizes), draw(sizes), draw(sizes)

    def matrix(rows: int, columns: int) -> Any:
        return draw(arrays(np.bool_, (rows, columns)))

    def labels(count: int) -> pa.Array:
        return pa.array(draw(st.permutations(range(6)))[:count], pa.int64())

    plan = ChannelPlan(
        matrix(flows, channels),
        matrix(subscribers, channels),
        unicast=matrix(subscribers, flows),
        subscribers=labels(subscribers),
        flows=labels(flows),
    )
    rows, columns = draw(sizes), draw(sizes)
    return Interest(matrix(rows, columns), subscribers=labels(rows), flows=labels(columns)), plan


def literal_exclusions(interest: Interest, plan: ChannelPlan) -> list[dict[str, int]]:
    wants, carries, listens, unicast = (
        each.toarray() for each in (interest.wants, plan.carries, plan.listens, plan.unicast)
    )
    missed = []
    for s, subscriber in enumerate(interest.subscribers.to_pylist()):
        for f, flow in enumerate(interest.flows.to_pylist()):
            served = False
            if subscriber in plan.subscribers.to_pylist() and flow in plan.flows.to_pylist():
                row, column = (
                    plan.subscribers.to_pylist().index(subscriber),
                    plan.flows.to_pylist().index(flow),
                )
                served = unicast[row, column] or any(carries[column] & listens[row])
            if wants[s, f] and not served:
                missed.append({"subscriber": subscriber, "flow": flow})
    return missed


@given(cases(), st.sampled_from([1, 2, 5, 1 << 20]))
def test_false_exclusions_equal_the_double_loop(case: tuple[Interest, ChannelPlan], block: int) -> None:
    interest, plan = case
    expected = literal_exclusions(interest, plan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", block)
        assert plan.false_exclusions(interest).to_pylist() == expected
        if not expected:
            plan.validate(interest)
        else:
            with refused(PlanError, interest.n_wants, value=len(expected)):
                plan.validate(interest)


@pytest.mark.parametrize("seed", range(10))
def test_false_exclusions_over_many_blocks(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(seed)
    subscribers, flows = random.permutation(12), random.permutation(12)
    plan = ChannelPlan(
        random.random((10, 4)) < 0.3,
        random.random((10, 4)) < 0.3,
        unicast=random.random((10, 10)) < 0.3,
        subscribers=subscribers[:10],
        flows=flows[2:],
    )
    interest = Interest(random.random((12, 12)) < 0.5, subscribers=subscribers[::-1], flows=flows)
    expected = literal_exclusions(interest, plan)
    assert 0 < len(expected) < interest.n_wants
    monkeypatch.setattr(module, "BLOCK", 7)
    assert plan.false_exclusions(interest).to_pylist() == expected


def test_validate_names_the_first_three() -> None:
    interest = Interest([[1, 1], [1, 1]], subscribers=["ann", "bob"], flows=[7, 9])
    plan = ChannelPlan(np.zeros((2, 0)), np.zeros((2, 0)), subscribers=["ann", "bob"], flows=[7, 9])
    first = (
        "subscriber 'ann' wants flow 7",
        "subscriber 'ann' wants flow 9",
        "subscriber 'bob' wants flow 7",
    )
    with refused(PlanError, "4 of 4", *first, value=4) as caught:
        plan.validate(interest)
    assert "subscriber 'bob' wants flow 9" not in str(caught.value)


def test_labels_of_another_kind_are_refused_not_called_unserved() -> None:
    plan = ChannelPlan([[1]], [[1]], flows=["0"])
    with refused(TableError, "int64", "string"):
        plan.validate(Interest([[1]]))


def test_two_levels() -> None:
    # Channels 0 and 2 are sessions of group 1; channel 3 stands alone.
    plan = ChannelPlan(
        carries=[[1, 0, 0, 0], [0, 0, 1, 0], [1, 0, 1, 0], [0, 0, 0, 1]],
        listens=[[1, 0, 1, 0], [1, 0, 0, 1], [0, 0, 0, 1]],
        parent=[1, -1, 1, -1],
    )
    assert (plan.n_channels, plan.n_groups, plan.n_used) == (4, 2, 2)
    assert plan.groups().tolist() == [1, 1, 1, 3]
    assert plan.members().tolist() == [2, 2, 1, 2]
    interest = Interest(np.ones((3, 4)), rate=[1, 10, 100, 1000])
    assert plan.rates(interest).tolist() == [101, 211, 110, 1000]
    assert plan.to_tables()["channels"].to_pydict() == {"channel": [0, 1, 2, 3], "parent": [1, None, 1, None]}


def test_rates_by_label() -> None:
    plan = ChannelPlan([[1, 0], [1, 1], [0, 1]], np.zeros((0, 2)), flows=["c", "a", "unknown"])
    interest = Interest(np.zeros((0, 2)), rate=[3, 5], flows=["a", "c"])
    assert plan.rates(interest).tolist() == [8, 3]


@given(cases())
def test_tables_come_back(case: tuple[Interest, ChannelPlan]) -> None:
    _, plan = case
    tables = plan.to_tables()
    again = ChannelPlan.from_tables(
        tables["carries"],
        tables["listens"],
        tables["unicast"],
        n_channels=plan.n_channels,
        parent=plan.parent,
    )
    for name, table in again.to_tables().items():
        key = [(column, "ascending") for column in table.column_names]
        assert table.sort_by(key) == tables[name].sort_by(key)
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_a_plan_cannot_change() -> None:
    plan = ChannelPlan([[1]], [[1]])
    for part in (plan.carries.data, plan.listens.indices, plan.parent, plan.unicast.indptr):
        with pytest.raises(ValueError, match="read-only"):
            part[0] = 0
    assert plan != ChannelPlan([[1]], [[1]], unicast=[[1]])


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({"listens": [[1]]}, ("2", "1")),
        ({"unicast": [[1]]}, ("1", "2")),
        ({"parent": [-1]}, ("1", "2")),
        ({"parent": [2, -1]}, ("0", "2", "1")),
        ({"parent": [-2, -1]}, ("0", "-2")),
        ({"parent": [1, 0]}, ("0", "1")),
        ({"parent": [0, -1]}, ("0",)),
        ({"parent": [1, -1]}, ("1",)),
        ({"parent": [1, -1], "carries": [[1, 0], [1, 0]]}, ("1",)),
    ],
)
def test_bad_plans(arguments: dict[str, Any], shown: tuple[str, ...]) -> None:
    with refused(PlanError, *shown):
        ChannelPlan(**{"carries": [[1, 0], [0, 1]], "listens": [[1, 1]]} | arguments)


def test_ten_million_wants_in_bounded_memory() -> None:
    n_subscribers, n_flows, each = 100_000, 1_000_000, 100
    flow = (np.arange(n_subscribers)[:, None] * 7919 + np.arange(each) * 9973) % n_flows
    subscriber = np.repeat(np.arange(n_subscribers), each)
    interest = Interest(relation_of(subscriber, flow.ravel(), (n_subscribers, n_flows)))
    assert interest.n_wants == 10_000_000
    plan = ChannelPlan(np.ones((n_flows, 1)), np.ones((n_subscribers, 1)))
    del flow, subscriber
    tracemalloc.start()
    try:
        assert plan.false_exclusions(interest).num_rows == 0
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Blocks of a million pairs take about 100 MB, the answers 20 MB; a dense table would take 100 GB.
    assert peak < 200e6
