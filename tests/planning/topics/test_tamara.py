from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast.costs.local_changes import LocalChanges
from narrowcast.costs.overall import Overall
from narrowcast.errors import ParameterError, TableError
from narrowcast.model.diff import delta_between
from narrowcast.model.interest import Interest
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.relation import relation_of
from narrowcast.planning.baselines.simple import PerFlow
from narrowcast.planning.replanner import changed
from narrowcast.planning.topics.tamara import Tamara, TamaraTidy
from narrowcast.planning.topics.tamara.channels import ChannelMembers
from narrowcast.planning.topics.tamara.protocol import ChannelRules, TamaraProtocol
from narrowcast.planning.topics.tamara.sampling import coin, sample_size
from narrowcast.planning.topics.tamara.subscribers import BitRelation, SubscriberPeers
from narrowcast.workloads.feeds import Feeds
from support.interests import clustered

GOLDEN = Path(__file__).parents[2] / "golden"
GREEDY = json.loads((GOLDEN / "tamara2007_greedy_subscribe.json").read_text())
TEXT = json.loads((GOLDEN / "tamara2007_text_examples.json").read_text())


def table(rows: list[tuple[float, Any, Any, str]]) -> pa.Table:
    """Return changes as a table."""
    names = ("time", "subscriber", "flow", "action")
    if not rows:
        return pa.table({"time": pa.array([], pa.float64()), "subscriber": pa.array([], pa.int64()),
                         "flow": pa.array([], pa.int64()), "action": pa.array([], pa.string())})  # fmt: skip
    return pa.table(dict(zip(names, zip(*rows, strict=True), strict=True)))


def uncovered(planner: Tamara) -> int:
    """How many wanted pairs the plan leaves out."""
    found: int = planner.plan_.false_exclusions(planner.interest_).num_rows
    return found


def test_the_greedy_subscriptions_of_the_vector() -> None:
    """Clusters stay as they are, those without members too, and are paid."""
    protocol = TamaraProtocol(
        LocalChanges(Overall(interval=1)), ChannelRules(adapt=False), np.random.default_rng(0)
    )
    protocol.system.create(GREEDY["f"])
    protocol.system.admit(GREEDY["users"])
    for topics in GREEDY["clusters"]:
        protocol.system.found(topics)
    costs = []
    for peer, topic, action in GREEDY["ops"]:
        (protocol.subscribe if action > 0 else protocol.unsubscribe)(peer, topic)
        costs.append(protocol.system.account.total)
    assert costs == pytest.approx(GREEDY["oc_after_each_op"])


def test_samples_and_coins_of_the_text() -> None:
    assert sample_size(3000) == TEXT["cochran(3000,5%)"]
    assert sample_size(100) == TEXT["cochran(100,5%)"]
    assert sample_size(10**6) == TEXT["cochran(10**6,5%)"]
    assert sample_size(1) == 1
    assert coin(911) == pytest.approx(TEXT["omega(phi=.99,k=911)"])
    assert coin(910) == pytest.approx(TEXT["omega(phi=.99,k=910)"])


@st.composite
def histories(draw: st.DrawFn) -> tuple[Interest, list[list[tuple[float, int, int, str]]]]:
    """A first interest and batches of changes, some of which change nothing, some with new labels."""
    n, k = draw(st.integers(1, 12)), draw(st.integers(1, 9))
    wants = np.array(draw(st.lists(st.booleans(), min_size=n * k, max_size=n * k))).reshape(n, k)
    rates = st.sampled_from([0.0, 1e-5, 1e-4, 1e-3, 0.01])
    rate = draw(st.lists(rates, min_size=k, max_size=k))
    change = st.tuples(
        st.floats(0, 1e6),
        st.integers(0, n + 1),
        st.integers(0, k + 1),
        st.sampled_from(["subscribe", "unsubscribe"]),
    )
    return Interest(wants, rate), draw(st.lists(st.lists(change, max_size=30), max_size=4))


@given(
    histories(),
    st.sampled_from([Tamara, TamaraTidy]),
    st.sampled_from(["linear", "log", "sqrt"]),
    st.sampled_from([None, None, 1, 2, 4]),
    st.integers(0, 3),
)
@settings(max_examples=80)
def test_everybody_is_covered_and_the_cost_is_right(
    made: tuple[Interest, list[list[tuple[float, int, int, str]]]],
    kind: type[Tamara],
    growth: str,
    channels: int | None,
    seed: int,
) -> None:
    interest, batches = made
    costs: Any = {"cost_m": growth, "cost_d": growth}
    planner = kind(channels=channels, seed=seed, rounds=5, period=1e5, margin=0.3, **costs).fit(interest)
    model = Overall(cost_m=growth, cost_d=growth)
    want = interest
    for batch in [[], *batches]:
        before = planner.plan_
        delta = planner.update(table(batch))
        after = planner.plan_
        want = changed(want, table(batch))
        assert uncovered(planner) == 0
        assert channels is None or after.n_channels <= channels
        after.validate(want)
        assert model.score(planner.interest_, after).total == pytest.approx(planner.cost_)
        expected = delta_between(before, after)
        for name in ("carries", "listens", "unicast"):
            for mine, theirs in ((delta.added, expected.added), (delta.removed, expected.removed)):
                assert sorted(map(str, mine[name].to_pylist())) == sorted(map(str, theirs[name].to_pylist()))


@given(histories(), st.integers(0, 2))
@settings(max_examples=40)
def test_after_every_single_operation(
    made: tuple[Interest, list[list[tuple[float, int, int, str]]]], seed: int
) -> None:
    """Subscriptions and account agree with what they should be, change by change and round by round."""
    interest, batches = made
    protocol = TamaraProtocol(
        LocalChanges(Overall()), ChannelRules(tidy=True, margin=0.3), np.random.default_rng(seed)
    )
    protocol.system.create([*(interest.rate * 360).tolist(), 0.1, 0.2])
    protocol.system.admit(interest.n_subscribers + 2)
    pairs = [(int(s), int(t), "subscribe") for s, t in zip(*interest.wants.nonzero(), strict=True)]
    for i, (peer, topic, action) in enumerate(pairs + [row[1:] for batch in batches for row in batch]):
        act = protocol.subscribe if action == "subscribe" else protocol.unsubscribe
        act(peer, topic)
        check(protocol)
        if i % 7 == 0:
            protocol.round()
            check(protocol)


extremes = st.one_of(st.floats(1e-9, 1e9), st.sampled_from([1e-9, 1e9]))


@given(
    st.lists(extremes, min_size=4, max_size=4),
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 3), st.booleans(), extremes), max_size=80),
    st.sampled_from(["linear", "log"]),
    st.sampled_from([None, 2]),
)
@settings(max_examples=60)
def test_the_account_is_right_whatever_frequencies_are_like(
    first: list[float], steps: list[tuple[int, int, bool, float]], growth: str, limit: int | None
) -> None:
    """Kept up to date change by change it equals what is made anew, to nine digits."""
    model = Overall(cost_m=growth, cost_d=growth, cost_n=0.5, interval=1)
    rules = ChannelRules(tidy=True, margin=0.3)
    protocol = TamaraProtocol(LocalChanges(model), rules, np.random.default_rng(0), limit=limit)
    system = protocol.system
    system.create(first)
    system.admit(8)
    for i, (peer, topic, wanted, frequency) in enumerate(steps):
        (protocol.subscribe if wanted else protocol.unsubscribe)(peer, topic)
        if i % 5 == 0:
            protocol.believe(topic, frequency)
        if i % 7 == 0:
            protocol.round()
        total = sum(each.frequency * 0.5 for each in system.topics)
        for t, each in enumerate(system.topics):
            seated = ("t", t) in system.addresses.number
            size, times = (len(each.members), 1) if seated else (1, len(each.members))
            total += times * float(model.maintained(size) + each.frequency * model.sent(size))
        for cluster in system.clusters.values():
            size, busy = len(cluster.members), sum(system.topics[t].frequency for t in cluster.frequencies)
            total += float(model.maintained(size)) + len(cluster.frequencies)
            total += busy * (0.5 + float(model.sent(size)))
        assert system.account.total == pytest.approx(total, rel=1e-9, abs=0)


def check(protocol: TamaraProtocol) -> None:
    """Compare all that is kept up to date with the same worked out anew."""
    system, peers = protocol.system, protocol.system.peers
    n, k = system.n_peers, len(system.topics)
    wants = np.array([[peers.interests.has(p, t) for t in range(k)] for p in range(n)])
    direct = np.array([[peers.direct.has(p, t) for t in range(k)] for p in range(n)])
    got = np.zeros_like(direct)
    total = 0.0
    model = Overall(interval=1)
    for cluster, channel in system.clusters.items():
        assert len(channel.frequencies) >= 2
        assert len(channel.members)
        members = sorted(channel.members.all().tolist())
        assert members == [p for p in range(n) if peers.joined.has(p, cluster)]
        assert sorted(channel.frequencies) == peers.topics.of(cluster)
        assert channel.frequency == pytest.approx(
            sum(system.topics[t].frequency for t in channel.frequencies)
        )
        for topic, others in channel.others.items():
            assert others == system.topics[topic].clusters - {cluster}
        got[np.ix_(members, sorted(channel.frequencies))] = True
        size = len(members)
        total += float(model.maintained(size)) + len(channel.frequencies)
        total += sum(system.topics[t].frequency for t in channel.frequencies) * (1 + size)
    assert not (direct & got).any()
    assert not (direct & ~wants).any()
    assert not (wants & ~direct & ~got).any()
    for topic, own in enumerate(system.topics):
        size = int(direct[:, topic].sum())
        assert len(own.members) == size
        total += size + own.frequency * (1 + size)
    assert system.account.total == pytest.approx(total)


def test_finds_what_belongs_together() -> None:
    planner = Tamara().fit(clustered())
    carries = planner.plan_.carries.toarray()
    found = {tuple(np.flatnonzero(channel)) for channel in carries.T if channel.sum() > 1}
    assert found == {tuple(range(6)), tuple(range(6, 12))}


@pytest.mark.parametrize("kind", [Tamara, TamaraTidy])
def test_same_seed_same_plan(kind: type[Tamara]) -> None:
    interest = clustered()
    one, other = kind(seed=3).fit(interest), kind(seed=3).fit(interest)
    assert one.plan_ == other.plan_
    assert one.messages_ == other.messages_


def test_frequencies_that_change_are_noticed() -> None:
    """Nobody says so: channels see more and fewer events, take topics out, and back again."""
    planner = Tamara(half_life=86_400.0).fit(clustered())
    calm = planner.plan_.carries.toarray()[0].sum()
    flows = np.arange(12)
    busy = np.where(flows == 0, 10.0, 2e-4) * 86_400

    def days(count: int, events: Any) -> None:
        for _ in range(count):
            planner.observe(pa.table({"flow": flows, "events": events}), 86_400.0)

    in_cluster = [c for c in planner.plan_.carries.toarray().T if c.sum() > 1 and c[0]]
    assert calm == 1
    assert len(in_cluster) == 1
    days(10, busy)
    assert not [c for c in planner.plan_.carries.toarray().T if c.sum() > 1 and c[0]]
    assert uncovered(planner) == 0
    days(40, np.full(12, 2e-4 * 86_400))
    assert [c for c in planner.plan_.carries.toarray().T if c.sum() > 1 and c[0]]
    assert uncovered(planner) == 0


def test_what_is_unknown_observed_and_new() -> None:
    planner = Tamara().fit(clustered())
    planner.observe(pa.table({"flow": [99], "events": [5.0]}), 3600.0)
    assert planner.plan_.n_flows == 13
    for seconds in (0, float("inf"), True):
        with pytest.raises(ParameterError, match=f"seconds is {seconds}"):
            planner.observe(pa.table({"flow": [0], "events": [5.0]}), seconds)
    planner.observe(pa.table({"flow": [0], "events": [0.0]}), 1e-9)
    with pytest.raises(TableError, match="no column 'events'"):
        planner.observe(pa.table({"flow": [0]}), 60.0)


def test_changes_that_change_nothing_are_counted() -> None:
    planner = Tamara().fit(Interest([[1, 0], [0, 1]], rate=[1e-4, 1e-4]))
    rows = [
        (1.0, 0, 0, "subscribe"),  # already
        (2.0, 1, 0, "unsubscribe"),  # never was
        (3.0, 0, 1, "subscribe"),
        (3.0, 0, 1, "subscribe"),  # twice
        (9.0, 7, 5, "unsubscribe"),  # neither is known
    ]
    cost = planner.cost_
    delta = planner.update(table(rows))
    assert planner.ignored_ == 4
    assert planner.cost_ < cost + 2, "what was never there is not created"
    assert delta.added["listens"].num_rows == 1
    assert uncovered(planner) == 0


def test_changes_count_in_the_order_of_time() -> None:
    planner = Tamara().fit(Interest([[0, 0]], rate=[1e-4, 1e-4]))
    planner.update(table([(5.0, 0, 0, "unsubscribe"), (4.0, 0, 0, "subscribe"), (6.0, 0, 1, "subscribe")]))
    assert planner.interest_.wants.toarray().tolist() == [[False, True]]


def test_a_topic_that_vanishes() -> None:
    """Everybody unsubscribes: it leaves its cluster, and clusters without members or topics are destroyed."""
    interest = clustered(subscribers=40)
    planner = Tamara().fit(interest)
    who, what = interest.wants.nonzero()
    rows: list[Any] = [(1.0, int(s), int(t), "unsubscribe") for s, t in zip(who, what, strict=True)]
    planner.update(table(rows))
    assert planner.plan_.n_channels == 0
    assert planner.cost_ == pytest.approx(12 * 2e-4 * 360)


def test_no_more_channels_than_asked() -> None:
    interest = clustered()
    planner = Tamara(channels=3).fit(interest)
    assert planner.plan_.n_channels <= 3
    planner.plan_.validate(interest)
    scattered = Interest(np.eye(9), np.full(9, 1.0))
    planner = Tamara(channels=4).fit(scattered)
    assert (planner.plan_.n_channels, planner.plan_.unicast.nnz) == (4, 5)
    # One that has a channel goes, and one that waited takes its place.
    delta = planner.update(table([(1.0, int(planner.subscribers_[0].as_py()), 0, "unsubscribe")]))
    assert planner.plan_.n_channels == 4
    assert delta.n_changes in (1, 5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pair": "some"}, "pair is 'some'; give one of all, common"),
        ({"surely": 1.0}, "surely is 1.0; give a number above 0 and below 1"),
        ({"margin": 0}, "margin is 0"),
        ({"rounds": -1}, "rounds is -1"),
        ({"period": 0}, "period is 0; give a number above 0"),
        ({"z": float("inf")}, "z is inf"),
        ({"by": True}, "by is True; give a number above 0"),
        ({"half_life": "x"}, "half_life is 'x'"),
        ({"adapt": "no"}, "adapt is 'no'; give true or false"),
        ({"grown": 1}, "grown is 1; give true or false"),
        ({"start": 5}, "start is a int; give a plan"),
        ({"channels": 0}, "channels is 0"),
        ({"cost_n": -1}, "cost_n is -1"),
    ],
)
def test_bad_parameters(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        Tamara(**given).fit(Interest([[1]]))


def test_there_is_a_first_time() -> None:
    with pytest.raises(ParameterError, match="call fit"):
        Tamara().update(table([]))
    assert not hasattr(Tamara(), "plan_")


def test_members_and_bits() -> None:
    members = ChannelMembers()
    for row in (5, 3, 9):
        members.add(row)
    members.remove(5)
    assert sorted(members.all().tolist()) == [3, 9]
    assert 5 not in members
    assert sorted(members.sample(9, np.random.default_rng(0)).tolist()) == [3, 9]
    bits = BitRelation(1, 1)
    bits.grow(3, 130)
    bits.put(2, 129)
    bits.grow(9, 500)
    assert bits.of(2) == [129]


def test_answers_equal_a_literal_count() -> None:
    rng = np.random.default_rng(4)
    n, k, c = 30, 70, 5
    wants, topics, joined = rng.random((n, k)) < 0.4, rng.random((c, k)) < 0.3, rng.random((n, c)) < 0.5
    peers = SubscriberPeers(n, k)
    for bits, matrix in ((peers.interests, wants), (peers.topics, topics), (peers.joined, joined)):
        for row, column in zip(*matrix.nonzero(), strict=True):
            bits.put(int(row), int(column))
    rows, weight = np.array([3, 8, 21]), rng.random(k)
    for cluster in range(c):
        counts, worth = np.zeros(k, int), np.zeros(3)
        for i, row in enumerate(rows):
            for t in range(k):
                elsewhere = any(topics[o, t] and joined[row, o] for o in range(c) if o != cluster)
                if wants[row, t] and topics[cluster, t] and not elsewhere:
                    counts[t] += 1
                    worth[i] += weight[t]
        assert peers.needs(rows, cluster)[:k].tolist() == counts.tolist()
        assert peers.worth(rows, cluster, weight) == pytest.approx(worth)
    assert peers.in_clusters(rows)[:c].tolist() == joined[rows].sum(axis=0).tolist()


def test_plan_of_the_account() -> None:
    """The plan has clusters as channels of several flows, and direct subscriptions as channels of one."""
    interest = clustered()
    planner = TamaraTidy(seed=1).fit(interest)
    plan: ChannelPlan = planner.plan_
    assert relation_of([], [], (1, 1)).nnz == plan.unicast.nnz == 0
    assert (np.diff(plan.carries.tocsc().indptr) >= 1).all()
    assert Overall().score(interest, plan).total == pytest.approx(planner.cost_)


def test_start_from_a_plan() -> None:
    interest = clustered()
    first = Tamara().fit(interest)
    again = Tamara(start=first.plan_).fit(interest)
    assert again.cost_ == pytest.approx(first.cost_, rel=0.05)
    again.plan_.validate(interest)
    planted = ChannelPlan(
        np.arange(12)[:, None] // 6 == np.arange(2), np.zeros((0, 2)), subscribers=[], flows=range(12)
    )
    fixed = Tamara(start=planted, adapt=False).fit(interest)
    found = [tuple(np.flatnonzero(c)) for c in fixed.plan_.carries.toarray().T if c.sum() > 1]
    assert found == [tuple(range(6)), tuple(range(6, 12))]
    assert fixed.updates_["pair"] == fixed.updates_["merge"] == 0
    assert fixed.cost_ < Overall().score(interest, PerFlow().fit(interest).plan_).total / 2


def test_a_limit_on_channels_still_leaves_clusters() -> None:
    interest = Feeds(n_subscribers=200, seed=1).interest()
    free, alone = Tamara().fit(interest), Overall().score(interest, PerFlow().fit(interest).plan_).total
    for channels in (60, 10):
        planner = Tamara(channels=channels).fit(interest)
        planner.plan_.validate(interest)
        assert planner.plan_.n_channels <= channels
        assert planner.updates_["pair"] >= 1
        assert free.cost_ <= planner.cost_ * 1.1
        assert planner.cost_ < 0.75 * alone


@pytest.mark.parametrize(
    ("time", "said"),
    [
        ([float("inf")], "no time"),
        ([float("nan")], "no time"),
        (["soon"], "time' is of type string"),
        ([True], "time' is of type bool"),
    ],
)
def test_times_that_are_none_change_nothing(time: list[Any], said: str) -> None:
    planner = Tamara().fit(clustered(subscribers=20))
    before, plan = planner.cost_, planner.plan_
    changes = {"time": time, "subscriber": [99], "flow": [77], "action": ["subscribe"]}
    with pytest.raises(TableError, match=said):
        planner.update(pa.table(changes))
    assert (planner.cost_, planner.plan_) == (before, plan)


def test_a_long_time_without_changes_is_soon_over() -> None:
    planner = Tamara().fit(clustered(subscribers=60))
    planner.update(table([(0.0, 0, 0, "subscribe")]))
    before = planner.messages_["survey"]
    planner.update(table([(1.8e12, 1, 0, "subscribe")]))
    assert planner.messages_["survey"] - before < 100_000
    day = pa.array([20_000], pa.date32())
    planner.update(pa.table({"time": day, "subscriber": [0], "flow": [1], "action": ["subscribe"]}))


def test_labels_of_another_kind_change_nothing() -> None:
    planner = Tamara().fit(clustered(subscribers=20))
    plan = planner.plan_
    with pytest.raises(TableError, match="flow is string in this table and int64 in the plan"):
        planner.update(pa.table({"time": [1], "subscriber": [99], "flow": ["x"], "action": ["subscribe"]}))
    assert planner.plan_ == plan


@pytest.mark.parametrize("events", [[-1.0], [float("nan")], [float("inf")]])
def test_numbers_of_events_that_are_none(events: list[float]) -> None:
    planner = Tamara().fit(clustered(subscribers=20))
    before = planner.cost_
    with pytest.raises(TableError, match="give numbers of at least 0"):
        planner.observe(pa.table({"flow": [0], "events": events}), 60.0)
    assert planner.cost_ == before
