from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from narrowcast.costs import COSTS, Forwarding
from narrowcast.errors import ParameterError
from narrowcast.model.interest import Interest
from narrowcast.model.plan import ChannelPlan
from support.errors import refused

INTEREST = Interest([[1, 1, 0], [0, 1, 1]], rate=[1, 10, 100])
MODEL = Forwarding(message=2.0, upkeep=3.0)


def test_it_is_registered() -> None:
    assert COSTS["forwarding"] is Forwarding
    assert not Forwarding().additive
    assert Forwarding().upkeep * 600 == pytest.approx(128)  # a heartbeat of 128 bytes in ten minutes


def test_copies_and_pairs() -> None:
    plan = ChannelPlan(carries=[[1, 0], [1, 1], [0, 1]], listens=[[1, 0], [1, 1]])
    assert MODEL.score(INTEREST, plan).terms == {
        "events": 2.0 * (1 + 10 * 2 + 100),
        "upkeep": 3.0 * 3,
        "copies": 121 / 111,
        "replication": 1.5,
        "delivery": 2.0 * (1 * 2 + 10 * 3 + 100),
    }


def test_what_is_served_directly_is_a_copy_and_a_pair() -> None:
    plan = ChannelPlan(carries=[[0], [1], [0]], listens=[[1], [1]], unicast=[[1, 0, 0], [0, 0, 1]])
    terms = MODEL.score(INTEREST, plan).terms
    assert (terms["events"], terms["upkeep"]) == (2.0 * 111, 3.0 * 4)
    assert (terms["copies"], terms["replication"], terms["delivery"]) == (1.0, 2.0, 2.0 * 121)


def test_sessions_are_what_events_go_to() -> None:
    plan = ChannelPlan([[0, 1, 0], [0, 1, 1], [0, 0, 1]], [[0, 1, 0], [0, 1, 1]], parent=[-1, 0, 0])
    terms = MODEL.score(INTEREST, plan).terms
    assert (terms["events"], terms["upkeep"]) == (2.0 * (1 + 20 + 100), 3.0 * 3)


def test_flows_the_interest_does_not_know_have_no_events() -> None:
    plan = ChannelPlan([[1], [1]], [[1], [1]], flows=["a", "b"], subscribers=["x", "y"])
    known = Interest([[1], [1]], rate=[1.0], flows=["a"], subscribers=["x", "y"])
    assert MODEL.score(known, plan).total == 2.0 + 3.0 * 2


def test_nobody_and_nothing() -> None:
    empty = MODEL.score(Interest(np.zeros((0, 0))), ChannelPlan(np.zeros((0, 2)), np.zeros((0, 2))))
    assert empty.total == empty.terms["copies"] == empty.terms["replication"] == 0
    assert MODEL.ideal(Interest(np.zeros((3, 2)))).total == 0


def test_the_ideal_is_one_copy_and_one_pair() -> None:
    nobody = Interest([[1, 1, 0], [0, 1, 0]], rate=[1, 10, 100])  # the last flow is for no one
    assert MODEL.ideal(nobody).terms == {
        "events": 22.0,
        "upkeep": 6.0,
        "copies": 11 / 111,
        "replication": 1.0,
        "delivery": 2.0 * 21,
    }


@pytest.mark.parametrize(("name", "value"), [("message", -1), ("upkeep", math.nan), ("upkeep", True)])
def test_invalid_parameters(name: str, value: Any) -> None:
    with refused(ParameterError, repr(value), parameter=name):
        Forwarding(**{name: value})
