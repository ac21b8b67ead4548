"""Who is in which group: connected parts, groups, landmarks and levels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast.errors import ParameterError
from narrowcast.lab.spectral.groups import admitting_groups, even_groups, main, random_groups
from narrowcast.lab.spectral.parts import ConnectedParts
from narrowcast.lab.spectral.tree import GroupTree, drawn, first_below, sizes
from narrowcast.model.relation import relation
from support.errors import refused

tables = arrays(np.bool_, st.tuples(st.integers(0, 12), st.integers(1, 8)))


def literal_parts(wants: Any) -> list[set[int]]:
    """The connected parts of rows that have a history, by joining sets until none can be joined."""
    found: list[tuple[set[int], set[int]]] = []
    for row, events in enumerate(wants):
        mine: tuple[set[int], set[int]] = ({row}, set(np.flatnonzero(events).tolist()))
        if not mine[1]:
            continue
        apart = []
        for other in found:
            if other[1] & mine[1]:
                mine = (mine[0] | other[0], mine[1] | other[1])
            else:
                apart.append(other)
        found = [*apart, mine]
    return [rows for rows, _ in found]


@given(wants=tables)
def test_parts_are_who_hangs_together(wants: Any) -> None:
    parts = ConnectedParts.of(relation(wants))
    expected = sorted(literal_parts(wants), key=lambda rows: (-len(rows), min(rows)))
    assert [set(np.flatnonzero(parts.row == i)) for i in range(len(parts.size))] == expected
    assert parts.size.tolist() == [len(rows) for rows in expected]
    assert (parts.row == -1).tolist() == (~wants.any(axis=1)).tolist()
    for event, part in enumerate(parts.event):
        assert set(parts.row[wants[:, event]]) == ({part} if part >= 0 else set())
    assert parts.of_others(relation(wants)).tolist() == parts.row.tolist()


@given(wants=tables, cut=st.integers(0, 12))
def test_parts_of_some_rows_and_of_the_others_make_those_of_all(wants: Any, cut: int) -> None:
    """A row for each part of either half: its events, how many it stands for, and its first row."""
    whole = ConnectedParts.of(relation(wants))
    events, count, first = [], [], []
    for low, high in ((0, cut), (cut, len(wants))):
        half = ConnectedParts.of(relation(wants[low:high]))
        for part, size in enumerate(half.size.tolist()):
            events.append(half.event == part)
            count.append(size)
            first.append(low + int(np.flatnonzero(half.row == part)[0]))
    rows = relation(np.array(events, np.bool_).reshape(len(count), wants.shape[1]))
    found = ConnectedParts.of(rows, count=np.array(count, np.int64), order=np.array(first, np.int64))
    assert found.event.tolist() == whole.event.tolist()
    assert found.size.tolist() == whole.size.tolist()


def test_parts_of_others_and_large_ones() -> None:
    parts = ConnectedParts.of(
        relation([[1, 1, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]])
    )
    assert parts.of_others(relation([[0, 0, 1, 1, 0], [0, 0, 1, 0, 0], [0, 0, 0, 0, 1]])).tolist() == [
        1,
        -1,
        2,
    ]
    assert parts.n_large(2) == 2
    assert parts.n_large(1) == 3
    assert parts.n_large(3) == 0


@given(n=st.integers(0, 30), groups=st.integers(1, 7), seed=st.integers(0, 9))
def test_groups_are_drawn_even(n: int, groups: int, seed: int) -> None:
    size = np.bincount(even_groups(n, groups, np.random.default_rng(seed)), minlength=groups)
    assert size.sum() == n
    assert size.max() - size.min() <= 1


@given(wants=tables, groups=st.integers(1, 5), seed=st.integers(0, 9))
def test_groups_hang_together_but_for_who_is_loose(wants: Any, groups: int, seed: int) -> None:
    rows = relation(wants)
    found = random_groups(rows, groups, np.random.default_rng(seed))
    n_groups = max(min(groups, len(wants)), 1)
    assert len(found.reach) == n_groups
    assert np.concatenate([found.members(g) for g in range(n_groups)]).size == len(wants)
    tight = np.flatnonzero(~found.loose)
    for number in range(n_groups):
        members = tight[found.group[tight] == number]
        assert len(literal_parts(wants[members])) <= 1
        reached = wants[members].any(axis=0) if len(members) else np.zeros(wants.shape[1], np.bool_)
        assert found.reach[number].tolist() == reached.tolist()
    start = even_groups(len(wants), n_groups, np.random.default_rng(seed))
    drawn_reach = np.stack([wants[start == g][main(rows[start == g])].any(axis=0) for g in range(n_groups)])
    for row in np.flatnonzero(found.loose):
        assert found.group[row] == start[row]
        assert not (wants[row] & drawn_reach).any()


def test_who_is_not_connected_asks_the_next_groups() -> None:
    reach = np.array([[1, 0, 0], [0, 1, 0], [0, 1, 1]], np.bool_)
    rows = relation([[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 0, 0], [0, 1, 0]])
    assert admitting_groups(rows, np.array([0, 0, 1, 2, 2]), reach).tolist() == [1, 2, 0, -1, 2]


@given(
    n=st.integers(0, 30),
    share=st.sampled_from([0.1, 0.3, 1.0]),
    least=st.integers(1, 40),
    seed=st.integers(0, 9),
)
def test_landmarks(n: int, share: float, least: int, seed: int) -> None:
    members = np.arange(100, 100 + n)
    loose = np.random.default_rng(seed).random(n) < 0.3
    head = 100 + n // 2
    found = drawn(members, loose, share, least, np.random.default_rng(seed), head)
    assert len(found) == len(set(found)) == min(max(int(share * n + 0.5), least), n)
    if n:
        assert members[found[0]] == head
    others = found[1:]
    if loose[others].any():
        assert set(np.flatnonzero(~loose)) <= set(found)


def test_levels_of_the_paper() -> None:
    """Table 1: 32,000 subscriptions, 64 groups, 25 % landmarks and 4 levels leave 500 at the root."""
    assert sizes(64, 0.25, 4) == [64, 16, 4, 1]
    tree = GroupTree.of(relation(np.ones((32_000, 1))), levels=4, groups=64, landmarks=0.25)
    assert [len(level) for level in tree.levels] == [64, 16, 4, 1]
    assert {len(group.members) for level in tree.levels for group in level} == {500}


def test_a_tree_of_levels() -> None:
    rows = relation(np.random.default_rng(0).random((200, 20)) < 0.3)
    tree = GroupTree.of(rows, levels=3, groups=6, landmarks=0.4, seed=5)
    assert [len(level) for level in tree.levels] == [6, 2, 1]
    assert tree.parents == [[0, 0, 0, 1, 1, 1], [0, 0]]
    assert sorted(np.concatenate([group.members for group in tree.levels[0]])) == list(range(200))
    for level in tree.levels[1:]:
        for group in level:
            below = tree.below(group)
            assert group.members.tolist() == np.concatenate([g.members[g.landmarks] for g in below]).tolist()
            assert group.coordinator == below[0].coordinator
    assert tree.root.coordinator == tree.levels[0][0].coordinator
    again = GroupTree.of(rows, levels=3, groups=6, landmarks=0.4, seed=5)
    other = GroupTree.of(rows, levels=3, groups=6, landmarks=0.4, seed=6)
    assert again.root.members.tolist() == tree.root.members.tolist()
    assert other.root.members.tolist() != tree.root.members.tolist()


@given(wants=tables, levels=st.integers(1, 4), groups=st.integers(1, 9), least=st.integers(1, 20))
def test_any_tree_ends_in_one_group(wants: Any, levels: int, groups: int, least: int) -> None:
    tree = GroupTree.of(relation(wants), levels=levels, groups=groups, least=least)
    assert len(tree.levels) == levels
    assert len(tree.levels[-1]) == 1
    assert len(tree.root.members) >= min(len(wants), least, 1)
    for level, above in zip(tree.parents, tree.levels[1:], strict=True):
        assert set(level) == set(range(len(above)))


@pytest.mark.parametrize(
    "given_", [{"levels": 0}, {"groups": 0}, {"landmarks": 0}, {"landmarks": 30}, {"seed": -1}, {"least": 0}]
)
def test_bad_input(given_: dict[str, Any]) -> None:
    [(name, value)] = given_.items()
    with refused(ParameterError, value, parameter=name, value=value):
        GroupTree.of(relation([[1]]), **given_)


def test_given_groups_are_those_that_would_be_drawn() -> None:
    rows = relation(np.random.default_rng(0).random((90, 20)) < 0.2)
    rows = rows[np.flatnonzero(np.diff(rows.indptr))]
    group = even_groups(rows.shape[0], 4, np.random.default_rng([5, 3]))
    one = GroupTree.of(rows, levels=3, groups=4, seed=5)
    other = GroupTree.of(rows, levels=3, groups=4, seed=5, group=group)
    assert other.base.group.tolist() == one.base.group.tolist()
    assert other.root.members.tolist() == one.root.members.tolist()
    empty = GroupTree.of(rows, levels=2, groups=3, group=np.full(rows.shape[0], 2))
    assert [len(each.members) for each in empty.levels[0]] == [0, 0, rows.shape[0]]


@given(below=st.integers(1, 40), above=st.integers(1, 40))
def test_the_first_group_below_each(below: int, above: int) -> None:
    above = min(above, below)
    parent = [number * above // below for number in range(below)]
    assert [first_below(group, above, below) for group in range(above)] == [
        parent.index(group) for group in range(above)
    ]
    assert first_below(above, above, below) == below
