from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import narrowcast.model.plan as plan_module
from narrowcast.errors import ParameterError
from narrowcast.model.matches import Matches
from narrowcast.model.plan import ChannelPlan
from narrowcast.routing import ROUTERS, ChannelRouter, Deliveries, RouteMethod


def test_methods_as_users_see_them() -> None:
    assert [method.label for method in RouteMethod] == [
        "none",
        "unicast",
        "channel",
        "channel+unicast",
        "broadcast",
    ]
    assert ROUTERS["channels"] is ChannelRouter


def literal_route(flow: Any, interested: Any, plan: ChannelPlan) -> list[dict[str, Any]]:
    carries, listens = plan.carries.toarray(), plan.listens.toarray()
    found = []
    for event, f in enumerate(flow):
        wanted = np.flatnonzero(interested[event])
        channels = [
            c for c in range(plan.n_channels) if f >= 0 and carries[f, c] and listens[wanted, c].any()
        ]
        unicast = [int(s) for s in wanted if not listens[s, channels].any()]
        method = "+".join(["channel"] * bool(channels) + ["unicast"] * bool(unicast)) or "none"
        found.append({"method": method, "channels": channels, "unicast": unicast})
    return found


@settings(max_examples=300)
@given(st.data(), st.sampled_from([1, 4, 1 << 20]))
def test_channels_equals_literal_loops(data: st.DataObject, block: int) -> None:
    n_subscribers, n_flows, n_channels, n_events = (data.draw(st.integers(0, 4)) for _ in range(4))
    plan = ChannelPlan(
        data.draw(arrays(np.bool_, (n_flows, n_channels), elements=st.booleans(), fill=st.just(True))),
        data.draw(arrays(np.bool_, (n_subscribers, n_channels))),
    )
    flow = data.draw(arrays(np.int64, n_events, elements=st.integers(-1, n_flows - 1)))
    interested = data.draw(arrays(np.bool_, (n_events, n_subscribers)))
    event, subscriber = np.nonzero(interested)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_module, "BLOCK", block)
        sent = ChannelRouter().route(flow, Matches.from_pairs(event, subscriber, n_events), plan)
    assert sent.to_table().to_pylist() == literal_route(flow, interested, plan)


@pytest.mark.parametrize("seed", range(20))
def test_many_sets_of_channels_in_one_batch(seed: int) -> None:
    """Batches in which many events reach everybody, each by another set of channels."""
    random = np.random.default_rng(seed)
    n_subscribers, n_channels, n_events = random.integers(4, 9), random.integers(5, 9), 200
    plan = ChannelPlan(random.random((5, n_channels)) < 0.8, random.random((n_subscribers, n_channels)) < 0.5)
    flow = random.integers(-1, 5, n_events)
    interested = random.random((n_events, n_subscribers)) < random.random((n_events, 1))
    event, subscriber = np.nonzero(interested)
    sent = ChannelRouter().route(flow, Matches.from_pairs(event, subscriber, n_events), plan)
    expected = literal_route(flow, interested, plan)
    assert sent.to_table().to_pylist() == expected
    assert len({tuple(each["channels"]) for each in expected}) > 5


def test_channels_to_everybody_are_channels() -> None:
    """A broadcast is what a router decides on, and goes over no channel."""
    plan = ChannelPlan(carries=[[1, 1, 0], [1, 0, 1]], listens=[[1, 0, 0], [0, 1, 0], [0, 1, 1]])
    both, again, half = [0, 1], [0, 2], [0, 2]
    index = np.array([*both, *again, *half])
    matches = Matches(np.array([0, 2, 4, 6]), index)
    sent = ChannelRouter().route([0, 0, 1], matches, plan)
    assert sent.method.tolist() == [RouteMethod.CHANNEL] * 3
    assert sent.channels == Matches.from_pairs([0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 0, 2], 3)
    assert sent.unicast.n_pairs == 0


def test_batches_that_do_not_fit() -> None:
    plan = ChannelPlan([[1]], [[1]])
    route = ChannelRouter().route
    one = Matches.from_pairs([0], [0], 1)
    with pytest.raises(ParameterError, match="2 events for matches of 1"):
        route([0, 0], one, plan)
    with pytest.raises(ParameterError, match="events have flows 3 to 3; the plan's flows are 0 to 0"):
        route([3], one, plan)
    with pytest.raises(ParameterError, match="matches name subscriber 5; the plan's are 0 to 0"):
        route([0], Matches.from_pairs([0], [5], 1), plan)
    with pytest.raises(ParameterError, match="2 methods, 1 events with channels and 1"):
        Deliveries(np.zeros(2, np.uint8), one, one)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9))))
def test_matches_from_pairs(pairs: list[tuple[int, int]]) -> None:
    matches = Matches.from_pairs([e for e, _ in pairs], [i for _, i in pairs], 5)
    assert list(zip(matches.rows().tolist(), matches.index.tolist(), strict=True)) == sorted(set(pairs))
    assert matches.counts().tolist() == [len({p for p in pairs if p[0] == e}) for e in range(5)]
    assert (matches.n_events, matches.n_pairs) == (5, len(set(pairs)))
    assert [str(part.dtype) for part in (matches.indptr, matches.index)] == ["int64", "int32"]
    assert matches == Matches(matches.indptr.copy(), matches.index.copy())


@pytest.mark.parametrize(
    ("indptr", "index", "message"),
    [
        ([], [], "at least its leading 0"),
        ([1, 2], [0, 1], "indptr must rise from 0 to the 2 entries of index; it goes from 1 to 2"),
        ([0, 3], [0, 1], "it goes from 0 to 3"),
        ([0, 2, 1, 2], [0, 1], "indptr must rise"),
        ([0, 1], [-1], "index holds -1; positions start at 0"),
        ([0, 2], [3, 3], "index holds 3 after 3 in one event"),
        ([0, 1, 3], [5, 4, 2], "index holds 2 after 4 in one event"),
    ],
)
def test_bad_matches(indptr: list[int], index: list[int], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Matches(np.array(indptr, np.int64), np.array(index, np.int32))


def test_bad_pairs() -> None:
    with pytest.raises(ParameterError, match="events 0 to 3 lie outside 0 to 2"):
        Matches.from_pairs([0, 3], [1, 1], 3)
    with pytest.raises(ParameterError, match="positions -4 to 1 lie outside"):
        Matches.from_pairs([0, 0], [1, -4], 1)
    with pytest.raises(ParameterError, match="2 events for 1 positions"):
        Matches.from_pairs([0, 0], [1], 1)
