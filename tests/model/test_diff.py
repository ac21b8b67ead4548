from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast.errors import TableError
from narrowcast.model.diff import (
    CostChange,
    CountChange,
    MoveCounts,
    RowChanges,
    delta_between,
    diff_plans,
    renumbered,
)
from narrowcast.model.plan import ChannelPlan


@st.composite
def plans(draw: st.DrawFn) -> ChannelPlan:
    n_subscribers, n_flows, n_channels = (draw(st.integers(0, 4)) for _ in range(3))
    labels = [
        pa.array(draw(st.permutations(range(6)))[:count], pa.int64()) for count in (n_subscribers, n_flows)
    ]
    return ChannelPlan(
        draw(arrays(np.bool_, (n_flows, n_channels))),
        draw(arrays(np.bool_, (n_subscribers, n_channels))),
        None,
        draw(arrays(np.bool_, (n_subscribers, n_flows))),
        *labels,
    )


def rows(table: pa.Table) -> set[tuple[Any, ...]]:
    return set(zip(*table.to_pydict().values(), strict=True))


def channels_of(plan: ChannelPlan, name: str) -> dict[int, set[int]]:
    """The channels of each flow or subscriber that some row names."""
    table, unicast = plan.to_tables()[name], plan.to_tables()["unicast"]
    label = table.column_names[0]
    found: dict[int, set[int]] = {each: set() for each in unicast[label].to_pylist()}
    for each, channel in rows(table):
        found.setdefault(each, set()).add(channel)
    return found


@given(plans(), plans())
def test_numbers_equal_those_of_sets(before: ChannelPlan, after: ChannelPlan) -> None:
    delta, found = delta_between(before, after), diff_plans(before, after)
    old, new = before.to_tables(), after.to_tables()
    for name in ("carries", "listens", "unicast"):
        assert rows(delta.added[name]) == rows(new[name]) - rows(old[name])
        assert rows(delta.removed[name]) == rows(old[name]) - rows(new[name])
    assert found.channels == CountChange(before.n_channels, after.n_channels)
    assert found.listens == RowChanges(*delta.counts["listens"])
    assert found.unicast == RowChanges(*delta.counts["unicast"])
    for name, moves in (("carries", found.flows), ("listens", found.subscribers)):
        was, now = channels_of(before, name), channels_of(after, name)
        moved = sum(was[each] != now[each] for each in was.keys() & now.keys())
        assert moves == MoveCounts(moved, len(now.keys() - was.keys()), len(was.keys() - now.keys()))
    assert (delta.n_changes == 0) == all(
        rows(old[name]) == rows(new[name]) for name in delta.added if name in old
    )


def shared(one: ChannelPlan, other: ChannelPlan, i: int, j: int) -> int:
    """Common flows x common listeners of two channels."""
    count = 1
    for name in ("carries", "listens"):
        left, right = (
            {label for label, channel in rows(plan.to_tables()[name]) if channel == number}
            for plan, number in ((one, i), (other, j))
        )
        count *= len(left & right)
    return count


@given(plans(), plans())
def test_renumbering_fits_best(plan: ChannelPlan, like: ChannelPlan) -> None:
    found = renumbered(plan, like)
    width = max(plan.n_channels, like.n_channels)
    assert plan.n_channels <= found.n_channels <= width
    # It is the same plan but for the numbers: some one-to-one numbering leads to it.
    table = {i: tuple(sorted(map(str, column))) for i, column in enumerate(_columns(found))}
    assert sorted(v for v in table.values() if v) == sorted(
        tuple(sorted(map(str, column))) for column in _columns(plan) if column
    )
    weight = [[shared(like, plan, i, j) for j in range(plan.n_channels)] for i in range(like.n_channels)]
    padded = np.zeros((width, width), int)
    padded[: like.n_channels, : plan.n_channels] = np.reshape(weight, (like.n_channels, plan.n_channels))
    best = max(sum(padded[i, j] for i, j in enumerate(p)) for p in permutations(range(width)))
    kept = sum(shared(like, found, i, i) for i in range(min(found.n_channels, like.n_channels)))
    assert kept == best


def _columns(plan: ChannelPlan) -> list[list[tuple[str, Any]]]:
    found: list[list[tuple[str, Any]]] = [[] for _ in range(plan.n_channels)]
    for name in ("carries", "listens"):
        for label, channel in rows(plan.to_tables()[name]):
            found[channel].append((name, label))
    return found


@given(plans(), st.randoms())
def test_renumbering_undoes_a_shuffle(plan: ChannelPlan, random: Any) -> None:
    order = list(range(plan.n_channels))
    random.shuffle(order)
    shuffled = ChannelPlan(
        plan.carries.toarray()[:, order],
        plan.listens.toarray()[:, order],
        unicast=plan.unicast,
        subscribers=plan.subscribers,
        flows=plan.flows,
    )
    back = renumbered(shuffled, plan)
    # Every channel that delivers something is back where it was, or swapped with its equal.
    for c in range(plan.n_channels):
        if alone := shared(plan, plan, c, c):
            assert shared(plan, back, c, c) == alone == shared(back, back, c, c)


def test_two_levels_are_renumbered_together() -> None:
    # Sessions 0, 1 and 3, groups 2 and 4.
    before = ChannelPlan(
        carries=[[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 1, 0]],
        listens=[[1, 1, 0, 0, 0], [0, 0, 0, 1, 0]],
        parent=[2, 2, -1, 4, -1],
    )
    order = [4, 3, 1, 2, 0]
    number = np.argsort(order)
    after = ChannelPlan(
        before.carries.toarray()[:, order],
        before.listens.toarray()[:, order],
        [-1 if p < 0 else number[p] for p in before.parent[order]],
    )
    assert diff_plans(before, after).flows.moved == 3
    assert renumbered(after, before) == before
    regrouped = ChannelPlan(before.carries, before.listens, [2, 4, -1, 4, -1])
    assert diff_plans(before, regrouped).regrouped == 1
    delta = delta_between(before, regrouped)
    assert delta.added["parents"].to_pylist() == [{"channel": 1, "parent": 4}]
    assert delta.removed["parents"].to_pylist() == [{"channel": 1, "parent": 2}]


def test_costs_side_by_side() -> None:
    plan = ChannelPlan([[1]], [[1]])
    found = diff_plans(
        plan,
        plan,
        costs_before={"waste": 8, "old": 1, "zero": 0},
        costs_after={"waste": 6, "new": 2, "zero": 1},
    )
    assert found.costs == {
        "new": CostChange(None, 2, None),
        "old": CostChange(1, None, None),
        "waste": CostChange(8, 6, -25.0),
        "zero": CostChange(0, 1, None),
    }


def test_many_channels_are_matched_without_a_dense_table() -> None:
    count = 20_000
    numbers = np.random.default_rng(0).permutation(count)
    each = np.arange(count)
    before = ChannelPlan.from_tables(*_one_each(each, each), n_channels=count)
    after = ChannelPlan.from_tables(*_one_each(each, numbers), n_channels=count)
    assert renumbered(after, before) == before


def _one_each(label: Any, channel: Any) -> tuple[pa.Table, pa.Table]:
    return pa.table({"flow": label, "channel": channel}), pa.table({"subscriber": label, "channel": channel})


def test_labels_of_another_kind() -> None:
    with pytest.raises(TableError, match="flow is int64 here and string there"):
        diff_plans(ChannelPlan([[1]], [[1]]), ChannelPlan([[1]], [[1]], flows=["0"]))
