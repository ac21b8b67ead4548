"""Hierarchies of peers keep the sizes of their groups, and every message is counted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from narrowcast.errors import ParameterError
from narrowcast.lab.clusters import Nice, NiceUpkeep
from support.errors import refused


def check(nice: Nice, members: set[int]) -> None:
    layers = nice.groups()
    assert {member for group in layers[0] for member in group} == members if layers else not members
    for number, groups in enumerate(layers):
        inside = [member for group in groups for member in group]
        assert len(inside) == len(set(inside))
        for group in groups:
            assert len(group) <= 3 * nice.least - 1
            assert len(group) >= nice.least or number == len(layers) - 1
        if number + 1 < len(layers):  # exactly the leaders are above
            above = {member for group in layers[number + 1] for member in group}
            assert above == {group[0] for group in groups}
            assert len(groups) > 1
    if layers:
        assert len(layers[-1]) == 1
        assert nice.top == layers[-1][0][0]
    parents = nice.parents()
    assert set(parents) == members
    assert [each for each, parent in parents.items() if parent < 0] == ([nice.top] if members else [])
    for each in members:  # the top reaches all members, in at most as many hops as there are layers
        steps = 0
        while parents[each] >= 0:
            each, steps = parents[each], steps + 1
        assert each == nice.top
        assert steps <= len(layers)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=150), st.integers(2, 4))
def test_groups_keep_their_sizes(changes: list[tuple[bool, int]], least: int) -> None:
    nice, members = Nice(least=least), set()
    for comes, member in changes:
        if comes and member not in members:
            members.add(member)
            assert nice.join(member).leave == 0
        elif not comes and member in members:
            members.remove(member)
            assert nice.leave(member).join == 0
        check(nice, members)
        assert len(nice) == len(members)


def test_all_come_and_all_go() -> None:
    nice = Nice(range(100))
    check(nice, set(range(100)))
    for member in range(100):
        nice.leave(member)
        check(nice, set(range(member + 1, 100)))
    assert nice.top == -1
    assert nice.heartbeats == 0


def test_messages_of_a_small_one() -> None:
    nice = Nice(least=2)
    assert nice.join(0) == NiceUpkeep(join=2)
    for member in range(1, 5):
        assert nice.join(member) == NiceUpkeep(join=4)
    assert nice.heartbeats == 5 * 4
    # Six are too many: all others hear of the cut, and the new leader joins the group above.
    assert nice.join(5) == NiceUpkeep(join=4, split=5 + 2)
    assert nice.groups() == [[[0, 1, 2], [3, 4, 5]], [[0, 3]]]
    assert nice.heartbeats == 2 * 3 * 2 + 2
    # Both leaders are asked, and then the group.
    assert nice.join(6) == NiceUpkeep(join=2 + 2 * 2 + 2)
    # The top leaves: three hear it, two of them who leads now; above one hears it, the new leader joins with
    # two messages, and hears from the one who is the top now.
    assert nice.leave(0) == NiceUpkeep(leave=3 + 2 + 1 + 2 + 1)
    assert nice.top == 3
    assert nice.leave(1).merge == 0
    # One of two leaves: the other is too few, and goes over to the other group.
    assert nice.leave(2) == NiceUpkeep(leave=1 + 1 + 2, merge=2 + 1)
    assert nice.groups() == [[[3, 4, 5, 6]]]


def test_upkeep_adds_up() -> None:
    both = NiceUpkeep(1, 2, 3, 4) + NiceUpkeep(10, 20, 30, 40)
    assert both == NiceUpkeep(11, 22, 33, 44)
    assert both.total == 110


def test_bad_input() -> None:
    with refused(ParameterError, parameter="least", value=1):
        Nice(least=1)
    nice = Nice([3])
    with refused(ParameterError, 3, parameter="member", value=3):
        nice.join(3)
    with refused(ParameterError, 4, parameter="member", value=4):
        nice.leave(4)
