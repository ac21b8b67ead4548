"""What is told of subscribers and channels adds up to what the plan costs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast import ChannelPlan, Interest, Waste
from narrowcast.model.artefact import write_plan
from narrowcast.report.explain import PlanContext, explain_channel, explain_event, explain_subscriber
from narrowcast.report.explain.event import EventSender
from narrowcast.routing import ChannelRouter

PEOPLE, FLOWS = ["ann", "bob", "cid"], ["w", "x", "y", "z"]


@st.composite
def cases(draw: st.DrawFn) -> tuple[ChannelPlan, Interest]:
    """Draw a plan of one level or two, and who wants what."""
    n = draw(st.integers(1, 4))
    carries, listens = draw(arrays(np.bool_, (4, n))), draw(arrays(np.bool_, (3, n)))
    parent = None
    if draw(st.booleans()):  # all are sessions of two groups
        nobody = np.zeros((4, 2), np.bool_)
        carries, listens = np.hstack([carries, nobody]), np.hstack([listens, nobody[:3]])
        parent = [*draw(st.lists(st.sampled_from([n, n + 1]), min_size=n, max_size=n)), -1, -1]
    unicast = draw(arrays(np.bool_, (3, 4)))
    plan = ChannelPlan(carries, listens, parent, unicast, PEOPLE, FLOWS)
    rate = draw(arrays(np.float64, 4, elements=st.sampled_from([0.0, 0.5, 1.0, 3.0])))
    return plan, Interest(draw(arrays(np.bool_, (3, 4))), rate, PEOPLE, FLOWS)


def kept(plan: ChannelPlan, interest: Interest, folder: Path) -> PlanContext:
    """Write everything, and return what is known then."""
    interests, rates = interest.to_tables()
    pq.write_table(interests, folder / "i.parquet")
    pq.write_table(rates, folder / "r.parquet")
    write_plan(plan, folder / "plan", method="own", interest=interest)
    return PlanContext(folder / "plan", interests=folder / "i.parquet", rates=folder / "r.parquet")


@settings(max_examples=50)
@given(cases())
def test_the_waste_of_all_is_the_cost(case: tuple[ChannelPlan, Interest]) -> None:
    plan, interest = case
    with tempfile.TemporaryDirectory() as folder:
        known = kept(plan, interest, Path(folder))
        written = known.plan  # without those who have nothing
        cost = Waste().score(interest, written)
        told = [explain_subscriber(known, str(name)) for name in written.subscribers.to_pylist()]
        assert sum(each["wasted"] for each in told) == pytest.approx(cost.total)
        assert sum(each["received"] for each in told) == pytest.approx(cost.terms["deliveries"])
        missed = written.false_exclusions(interest)["subscriber"].to_pylist()
        for each in told:
            assert each["wants_missed"] == missed.count(each["subscriber"])
            assert each["wants"] == (
                each["wants_over_channels"] + each["wants_directly"] + each["wants_missed"]
            )
        groups = np.flatnonzero(written.parent < 0).tolist()
        channels = [explain_channel(known, number) for number in groups]
        assert sum(each["delivered"] for each in channels) == pytest.approx(cost.terms["deliveries"])
        if (np.diff(written.carries.indptr) <= 1).all():  # else a second copy is wanted in one, waste in all
            assert sum(each["wasted"] for each in channels) == pytest.approx(cost.total)
        sessions = [explain_channel(known, number) for number in np.flatnonzero(written.parent >= 0).tolist()]
        for group in groups:
            inside = [each["wasted"] for each in sessions if each["parent"] == group]
            if inside:
                assert sum(inside) == pytest.approx(channels[groups.index(group)]["wasted"])


#: Two sessions of one group: ann listens to the first, bob to the second.
SESSIONS = ChannelPlan(
    [[1, 0, 0], [0, 1, 0]], [[1, 0, 0], [0, 1, 0]], [2, 2, -1], subscribers=["ann", "bob"], flows=["w", "x"]
)


def test_a_session_reaches_its_group(tmp_path: Path) -> None:
    known = kept(SESSIONS, Interest(np.eye(2), [2.0, 3.0], ["ann", "bob"], ["w", "x"]), tmp_path)
    found = explain_event(known, {"flow": "w"}, lambda labels: EventSender(ChannelRouter()))
    assert (found["carried_by"], found["received"], found["wasted"]) == ([0], 2, 1)
    assert found["subscribers"] == [{"subscriber": "bob", "interested": False, "gets_it": ["channel 0"]}]
    ann = explain_subscriber(known, "ann")
    assert (ann["received"], ann["wasted"]) == (5.0, 3.0)
    assert [(each["channel"], each["group"], each["rate"]) for each in ann["channels"]] == [(0, 2, 2.0)]
    group = explain_channel(known, 2)
    assert (group["sessions"], group["flows"], group["rate"], group["wasted"]) == ([0, 1], 2, 5.0, 5.0)
    assert group["most_wasted_flow"]["flow"] == "x"
    assert group["most_wasted_member"] == {"subscriber": "ann", "wanted": 2.0, "wasted": 3.0}


def test_a_subscriber_whom_only_the_interest_knows(tmp_path: Path) -> None:
    known = kept(SESSIONS, Interest([[1, 1]], subscribers=["eve"], flows=["w", "x"]), tmp_path)
    eve = explain_subscriber(known, "eve")
    assert (eve["in_plan"], eve["wants"], eve["wants_missed"]) == (False, 2, 2)
    assert eve["first_missed"] == ["w", "x"]
    assert (eve["received"], eve["channels"]) == (0.0, [])


@pytest.mark.parametrize(("labels", "name"), [([7, 8], "8"), (["7", "8"], "8")])
def test_numbers_and_their_text_are_the_same(labels: list[Any], name: str, tmp_path: Path) -> None:
    plan = ChannelPlan([[1]], [[1], [1]], subscribers=labels, flows=[3])
    write_plan(plan, tmp_path / "plan", method="own")
    (tmp_path / "i.csv").write_text("subscriber,flow\n8,3\n9,3\n")
    (tmp_path / "s.csv").write_text("subscription_id,subscriber,filter\n1,8,x > 1\n2,zoe,x > 2\n")
    known = PlanContext(tmp_path / "plan", interests=tmp_path / "i.csv")
    assert explain_subscriber(known, name)["wasted"] == 0.0
    assert explain_channel(known, 0)["most_wasted_member"]["subscriber"] == labels[0]
    filters = PlanContext(tmp_path / "plan", subscriptions=tmp_path / "s.csv", event={"x": 5})
    found = explain_event(filters, {"x": 5, "flow": 3}, lambda labels: EventSender(ChannelRouter()))
    assert [str(each) for each in found["first_interested"]] == ["8", "zoe"]
    assert found["first_directly"] == ["zoe"]


def test_an_attribute_that_few_filters_name(tmp_path: Path) -> None:
    """Types are taken from some of many filters; where these do not suffice, from all."""
    write_plan(ChannelPlan([[1]], [[1]], subscribers=["s1"]), tmp_path / "plan", method="own")
    texts = [f"x > {i}" for i in range(4_500)]
    texts[1] = "rare = 'yes'"
    table = pa.table(
        {"subscription_id": range(4_500), "subscriber": [f"s{i}" for i in range(4_500)], "filter": texts}
    )
    pq.write_table(table, tmp_path / "s.parquet")
    event = {"x": 2.5, "RARE": "yes", "flow": 0}
    known = PlanContext(tmp_path / "plan", subscriptions=tmp_path / "s.parquet", event=event)
    assert known.schema.to_dict() == {"x": "double", "rare": "string"}
    found = explain_event(known, event, lambda labels: EventSender(ChannelRouter()))
    assert found["first_interested"] == ["s1", "s0", "s2"]
    assert found["rejected"] == 0


def test_a_plan_of_events_by_its_events(tmp_path: Path) -> None:
    plan = ChannelPlan([[1], [1]], [[1], [1]], subscribers=["ann", "bob"], flows=[10, 12])
    write_plan(plan, tmp_path / "plan", method="own", flow_space="events")
    (tmp_path / "s.csv").write_text("subscription_id,subscriber,filter\n1,ann,x > 1\n2,bob,x > 2\n")
    (tmp_path / "e.csv").write_text("event_id,x\n10,2\n11,9\n12,3\n")
    known = PlanContext(tmp_path / "plan", subscriptions=tmp_path / "s.csv", events=tmp_path / "e.csv")
    assert known.interest is not None
    assert known.interest.flows.to_pylist() == [10, 12]
    bob = explain_subscriber(known, "bob")
    assert (bob["wants"], bob["received"], bob["wasted"], bob["alike"]) == (1, 2.0, 1.0, False)


def test_rates_of_cells_may_be_given(tmp_path: Path) -> None:
    write_plan(
        ChannelPlan([[1], [1]], [[1], [1]], subscribers=["ann", "bob"], flows=[0, 1]),
        tmp_path / "plan",
        method="own",
        flow_space="cells",
        params={"grid": {"x": [5]}},
        cells=pa.table({"flow": [0, 1], "lo": [[-np.inf], [5.0]], "hi": [[5.0], [np.inf]]}),
    )
    (tmp_path / "s.csv").write_text("subscription_id,subscriber,filter\n1,ann,x > 1\n2,bob,x > 7\n")
    (tmp_path / "r.csv").write_text("flow,rate\n0,8\n1,2\n5,1\n")
    plain = PlanContext(tmp_path / "plan", subscriptions=tmp_path / "s.csv")
    assert plain.alike
    assert explain_subscriber(plain, "bob")["wasted"] == 1.0
    rated = PlanContext(tmp_path / "plan", subscriptions=tmp_path / "s.csv", rates=tmp_path / "r.csv")
    assert not rated.alike
    assert explain_subscriber(rated, "bob")["wasted"] == 8.0
    assert explain_channel(rated, 0)["most_wasted_flow"] == {
        "flow": 0,
        "cell": {"x": [None, 5.0]},
        "wanted_by": 1,
        "wasted": 8.0,
    }
