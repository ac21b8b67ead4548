"""Replays: what events cost by a plan, between all unicast and the ideal."""

from __future__ import annotations

import numpy as np
import pytest

from narrowcast import ChannelPlan, ChannelRouter, Matches, Network, Topology
from narrowcast.errors import ParameterError
from narrowcast.routing.replay import EventReplay

LINE = Topology([0, 1, 2], [1, 2, 3], [1.0, 10.0, 100.0])


def replay(publisher: list[int], event: list[int], who: list[int]) -> EventReplay:
    return EventReplay(Network(LINE), publisher, Matches.from_pairs(event, who, len(publisher)), LINE.nodes)


def test_costs_by_hand() -> None:
    found = replay([0, 3], [0, 0, 1], [2, 3, 1])
    assert found.unicast.tolist() == [11 + 111, 110]
    assert found.ideal.tolist() == [111, 110]
    plan = ChannelPlan([[1]], [[0], [1], [0], [1]])
    sent = ChannelRouter().route([0, 0], found.in_plan(plan), plan)
    # The first goes to nodes 1 and 3 by the tree and to 2 directly, the second to 1 and to its own node.
    assert found.cost(sent, plan).tolist() == [111 + 11, 110]
    assert found.improvement(sent, plan) == 0


def test_all_unicast_is_nothing_and_the_ideal_is_all() -> None:
    found = replay([0, 1, 2], [0, 0, 1, 1], [2, 3, 0, 3])
    nothing = ChannelPlan(np.zeros((1, 0)), np.zeros((4, 0)), unicast=np.ones((4, 1)))
    sent = ChannelRouter().route([0, 0, 0], found.in_plan(nothing), nothing)
    assert found.improvement(sent, nothing) == 0
    plan = ChannelPlan(np.eye(2), [[0, 1], [0, 0], [1, 0], [1, 1]])
    sent = ChannelRouter().route([0, 1, -1], found.in_plan(plan), plan)
    assert found.improvement(sent, plan) == 100


def test_somebody_whom_the_plan_lacks() -> None:
    plan = ChannelPlan([[1]], [[1], [1]], subscribers=[0, 1])
    with pytest.raises(ParameterError, match="subscriber 3 wants events and is not in the plan; plan anew"):
        replay([0], [0], [3]).in_plan(plan)
