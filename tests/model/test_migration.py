"""The way from plan to plan: at no point does anybody miss what it had before and has after."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast import Interest, Joint
from narrowcast.errors import ParameterError
from narrowcast.model.migration import ACTIONS, migration, peak
from narrowcast.model.plan import ChannelPlan
from narrowcast.workloads.flows import Flows
from support.errors import refused

Pairs = set[tuple[int, int]]


class Live:
    """Who is where, by doing one row after the other."""

    def __init__(self, plan: ChannelPlan) -> None:
        self.parent = dict(enumerate(plan.parent.tolist()))
        self.carries = {(int(f), int(c)) for f, c in zip(*plan.carries.nonzero(), strict=True)}
        self.listens = {(int(u), int(c)) for u, c in zip(*plan.listens.nonzero(), strict=True)}
        self.joined = {(u, self.group(c)) for u, c in self.listens}
        self.direct = {(int(u), int(f)) for u, f in zip(*plan.unicast.nonzero(), strict=True)}

    def group(self, channel: int) -> int:
        above = self.parent.get(channel, -1)
        return channel if above < 0 else above

    def memberships(self, user: int) -> int:
        """Return the number of groups of a subscriber."""
        return sum(each == user for each, _ in self.joined)

    def served(self) -> Pairs:
        """Return who gets which flow."""
        found = {
            (u, f)
            for u, c in self.listens
            for f, carrier in self.carries
            if c == carrier and (u, self.group(c)) in self.joined
        }
        return found | self.direct

    def do(self, rows: list[dict[str, Any]]) -> None:
        """Do a row, or all rows of one switch."""
        row = rows[0]
        u, f, c = row["subscriber"], row["flow"], row["channel"]
        match row["action"]:
            case "join":
                assert (u, c) not in self.joined
                self.joined.add((u, c))
                if not any(above == c for above in self.parent.values()):
                    self.listens.add((u, c))
            case "leave":
                self.joined.remove((u, c))
                self.listens.discard((u, c))
            case "listen":
                assert (u, c) not in self.listens
                self.listens.add((u, c))
            case "ignore":
                self.listens.remove((u, c))
            case "directly":
                self.direct.add((u, f))
            case "no longer directly":
                self.direct.remove((u, f))
            case "switch":
                self.carries = {pair for pair in self.carries if pair[0] != f}
                self.carries |= {(f, each["channel"]) for each in rows if each["channel"] is not None}
            case "regroup":
                self.parent[c] = -1 if row["parent"] is None else row["parent"]
            case other:
                raise AssertionError(other)


def checked(
    before: ChannelPlan, after: ChannelPlan, memberships: int | None = None, interest: Interest | None = None
) -> list[dict[str, Any]]:
    """Go the whole way, and look after each row."""
    way = migration(before, after, memberships=memberships, interest=interest)
    rows: list[dict[str, Any]] = way.to_pylist()
    live, end = Live(before), Live(after)
    most = {user: max(live.memberships(user), end.memberships(user)) for user in range(before.n_subscribers)}
    highest = max(most.values(), default=0)
    for mine, theirs in ((live, end), (end, live)):
        used = {c for _, c in mine.carries | mine.listens} | set(mine.parent.values())
        for channel in range(max(before.n_channels, after.n_channels)):
            # The group of a session that is new or unused is the one in the other plan.
            if channel not in used:
                mine.parent[channel] = theirs.parent.get(channel, -1)
    always = live.served() & end.served()
    if interest is not None:
        always &= {(int(u), int(f)) for u, f in zip(*interest.wants.nonzero(), strict=True)}

    def one(at: tuple[int, dict[str, Any]]) -> tuple[int, Any]:
        """Return what all rows of a change have in common."""
        place, row = at
        return (-row["step"], row["flow"]) if row["action"] == "switch" else (place, None)

    for _, some in groupby(enumerate(rows), key=one):
        live.do([row for _, row in some])
        assert always <= live.served()
        now = {user: live.memberships(user) for user in most}
        highest = max(highest, *now.values())
        if memberships is not None:
            assert all(n <= max(memberships, most[user]) for user, n in now.items())
    assert peak(before, way) == highest
    assert live.served() == end.served()
    assert live.carries == end.carries
    assert live.parent == end.parent
    assert live.direct == end.direct
    assert live.joined == end.joined
    assert {pair for pair in live.listens if live.parent[pair[1]] >= 0} == {
        pair for pair in end.listens if end.parent[pair[1]] >= 0
    }
    assert all(row["action"] in ACTIONS for row in rows)
    assert [row["step"] for row in rows] == sorted(row["step"] for row in rows)
    return rows


def one_level(draw: Any, n_flows: int, n_users: int) -> ChannelPlan:
    """Return any plan of one level."""
    n = draw(st.integers(1, 4))
    return ChannelPlan(
        draw(arrays(np.bool_, (n_flows, n))),
        draw(arrays(np.bool_, (n_users, n))),
        unicast=draw(arrays(np.bool_, (n_users, n_flows))) & draw(st.booleans()),
    )


@st.composite
def pairs_of_plans(draw: Any) -> tuple[ChannelPlan, ChannelPlan]:
    n_flows, n_users = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    return one_level(draw, n_flows, n_users), one_level(draw, n_flows, n_users)


@st.composite
def pairs_of_two_levels(draw: Any) -> tuple[ChannelPlan, ChannelPlan]:
    n_flows, n_users, groups = (draw(st.integers(1, 4)) for _ in range(3))
    found = []
    for _ in range(2):
        more = draw(st.integers(1, 4))
        sessions = groups + more - 1
        parent = np.append(
            np.arange(groups), draw(arrays(np.int64, more - 1, elements=st.integers(0, groups - 1)))
        )
        none_f, none_u = np.zeros((n_flows, groups), bool), np.zeros((n_users, groups), bool)
        found.append(
            ChannelPlan(
                np.hstack([none_f, draw(arrays(np.bool_, (n_flows, sessions)))]),
                np.hstack([none_u, draw(arrays(np.bool_, (n_users, sessions)))]),
                parent=np.append(np.full(groups, -1), draw(st.permutations(parent.tolist()))),
            )
        )
    return found[0], found[1]


@given(pairs_of_plans())
def test_no_subscriber_misses_a_message(plans: tuple[ChannelPlan, ChannelPlan]) -> None:
    checked(*plans)


@given(pairs_of_two_levels())
def test_no_subscriber_misses_a_message_on_two_levels(plans: tuple[ChannelPlan, ChannelPlan]) -> None:
    checked(*plans)


@given(st.one_of(pairs_of_plans(), pairs_of_two_levels()), st.integers(1, 3), st.data())
def test_no_subscriber_exceeds_its_limit_of_groups(
    plans: tuple[ChannelPlan, ChannelPlan], memberships: int, data: Any
) -> None:
    """Subscribers within the limit in both plans stay within it, and none misses a message."""
    checked(*plans, memberships)
    wants = data.draw(arrays(np.bool_, plans[0].unicast.shape))
    checked(*plans, memberships, Interest(wants))


def test_plans_that_keep_a_limit_keep_it_on_the_way() -> None:
    tables = Flows(n_flows=1500, n_subscribers=60, share=0.02, seed=5).tables()
    interest = Interest.from_tables(tables["interests"], tables["rates"])
    one, two = (
        Joint(channels=12, sessions=40, sweeps=20, memberships=3, seed=seed).fit(interest).plan_
        for seed in range(2)
    )
    assert peak(one, migration(one, two)) > 3
    way = migration(one, two, memberships=3, interest=interest)
    assert peak(one, way) == 3
    actions = way["action"].to_pylist()
    assert actions.count("directly") == actions.count("no longer directly") > 0
    everything = migration(one, two, memberships=3)["action"].to_pylist()
    assert actions.count("directly") <= everything.count("directly")


def test_a_limit_is_a_number() -> None:
    plan = ChannelPlan([[1]], [[1]])
    with refused(ParameterError, "0", "1", parameter="memberships", value=0):
        migration(plan, plan, memberships=0)


def test_no_subscriber_needs_more_than_it_has_room_for() -> None:
    """One who may be in one group is sent its flow directly while it changes groups."""
    before = ChannelPlan([[1, 0]], [[1, 0]])
    after = ChannelPlan([[0, 1]], [[0, 1]])
    assert [row["action"] for row in checked(before, after, 1)] == [
        "directly",
        "leave",
        "join",
        "switch",
        "no longer directly",
    ]


def test_nothing_to_do() -> None:
    plan = ChannelPlan(carries=[[1, 0], [0, 1]], listens=[[1, 1]])
    table = migration(plan, plan)
    assert table.num_rows == 0
    assert table.column_names == ["step", "action", "subscriber", "flow", "channel", "parent"]


def test_labels_stay_what_they_are() -> None:
    names: dict[str, Any] = {"subscribers": ["ann", "bob"], "flows": ["ibm", "sap"]}
    before = ChannelPlan([[1, 0], [1, 0]], [[1, 0], [1, 0]], **names)
    after = ChannelPlan([[1, 0], [0, 1]], [[1, 0], [0, 1]], **names)
    rows = checked_labels(before, after)
    assert rows == [
        (1, "join", "bob", None, 1),
        (1, "switch", None, "sap", 1),
        (1, "leave", "bob", None, 0),
    ]


def checked_labels(before: ChannelPlan, after: ChannelPlan) -> list[tuple[Any, ...]]:
    names = ("step", "action", "subscriber", "flow", "channel")
    return [tuple(row[name] for name in names) for row in migration(before, after).to_pylist()]


def test_a_session_in_another_group() -> None:
    """All listeners join the new group first; those without other sessions in the old group leave it."""
    carries = [[0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]
    listens = [[0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]
    before = ChannelPlan(carries, listens, parent=[-1, -1, 0, 0, 1])
    after = ChannelPlan(carries, listens, parent=[-1, -1, 0, 1, 1])
    rows = checked(before, after)
    assert [(row["action"], row["subscriber"], row["channel"], row["parent"]) for row in rows] == [
        ("join", 0, 1, None),
        ("regroup", None, 3, 1),
        ("leave", 1, 0, None),
    ]
