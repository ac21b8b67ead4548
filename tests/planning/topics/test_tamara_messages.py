"""What each step of Tamara takes, message by message: with linear costs, and where sizes are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from narrowcast.costs.local_changes import LocalChanges
from narrowcast.costs.overall import Overall
from narrowcast.model.interest import Interest
from narrowcast.model.plan import ChannelPlan
from narrowcast.planning.topics.tamara import Tamara
from narrowcast.planning.topics.tamara.protocol import ChannelRules, TamaraProtocol
from support.interests import clustered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Growths, and whether sizes are asked for.
GROWTHS = [("linear", 0), ("log", 1), ("sqrt", 1)]
growths = pytest.mark.parametrize(("growth", "sized"), GROWTHS)

#: Coins that never win, and that nearly always do.
NEVER, SURELY = 1e-15, 1 - 1e-15


def made(
    growth: str = "linear",
    *,
    frequency: float = 0.01,
    topics: int = 6,
    limit: int | None = None,
    **rules: Any,
) -> TamaraProtocol:
    """Topics that are all alike, and twenty subscribers who want nothing yet."""
    local = LocalChanges(Overall(cost_m=growth, cost_d=growth))
    protocol = TamaraProtocol(local, ChannelRules(**rules), np.random.default_rng(0), limit=limit)
    protocol.system.create([frequency] * topics)
    protocol.system.admit(20)
    return protocol


def wants(
    protocol: TamaraProtocol, peers: Iterable[int], topics: Iterable[int], cluster: int | None = None
) -> None:
    """Have subscribers want topics, directly or from a cluster that they join."""
    topics = list(topics)
    for peer in peers:
        for topic in topics:
            protocol.system.peers.interests.put(peer, topic)
            if cluster is None:
                protocol.system.take(peer, topic)
        if cluster is not None:
            protocol.system.join(peer, cluster)
    if cluster is not None:
        channel = protocol.system.clusters[cluster]
        channel.checked = len(channel.members)


def spent(protocol: TamaraProtocol, act: Callable[[], Any]) -> dict[str, int]:
    """Return the messages that something takes, by kind."""
    before = dict(protocol.exchange.sent)
    act()
    after = protocol.exchange.sent
    return {kind: after[kind] - before[kind] for kind in after if after[kind] != before[kind]}


@growths
def test_to_join_a_cluster(growth: str, sized: int) -> None:
    protocol = made(growth, adapt=False)
    cluster = protocol.system.found([0, 1, 2])
    wants(protocol, range(5), [0, 1, 2], cluster)
    wants(protocol, [9], [1, 2, 4])
    found = spent(protocol, lambda: protocol.subscribe(9, 0))
    assert protocol.system.updates["join"] == 6
    # The topic's cluster is asked; sizes of 1 and 2; then it is joined, and 1 and 2 are dropped.
    assert found == {"base": 1, "resub": 2 + sized * 2 * 2 + 1 + 2}


@growths
def test_to_stay_or_to_leave(growth: str, sized: int) -> None:
    protocol = made(growth, adapt=False)
    cluster = protocol.system.found([0, 1, 2])
    wants(protocol, range(5), [0, 1, 2], cluster)
    for topic, need in ((0, 2), (1, 1), (2, 0)):
        found = spent(protocol, lambda topic=topic: protocol.unsubscribe(3, topic))  # type: ignore[misc]
        left = protocol.system.updates["leave"]
        # The sizes of the cluster, and of topics that are needed; whoever leaves says so, and subscribes.
        assert found.get("resub", 0) == sized * (2 + 2 * need) + left * (1 + need)
        assert set(found) <= {"resub"}
        if left:
            break
    assert left == 1


@growths
def test_a_coin_that_loses(growth: str, sized: int) -> None:
    protocol = made(growth, surely=NEVER)
    cluster = protocol.system.found([0, 1, 2, 5])
    wants(protocol, range(9), [0, 1, 2, 5], cluster)
    asked = {"cluster": 2} if sized else {}
    found = spent(protocol, lambda: protocol.subscribe(3, 4))
    assert found == {"base": 1, "notify": 1, **asked}
    found = spent(protocol, lambda: protocol.unsubscribe(3, 0))
    assert found == {"notify": 1, **asked, **({"resub": 2 + 2 * 3} if sized else {})}


@growths
def test_a_topic_that_a_cluster_takes_up(growth: str, sized: int) -> None:
    protocol = made(growth, surely=SURELY)
    cluster = protocol.system.found([0, 1, 2])
    wants(protocol, range(9), [0, 1, 2], cluster)
    wants(protocol, range(8), [4])
    found = spent(protocol, lambda: protocol.subscribe(8, 4))
    assert protocol.system.updates["add"] == 1
    # Nine are asked and answer. The topic says its size, once in all; it is tied, and nine are told.
    assert found == {"base": 1, "notify": 1, "survey": 18, "cluster": 2 + 2 + 9, "resub": 9}


@growths
def test_a_topic_that_a_cluster_does_not_take_up(growth: str, sized: int) -> None:
    protocol = made(growth, surely=SURELY, frequency=5.0)
    cluster = protocol.system.found([0, 1, 2])
    wants(protocol, range(9), [0, 1, 2], cluster)
    found = spent(protocol, lambda: protocol.subscribe(8, 4))
    # With linear costs the survey says enough: the topic is not asked.
    assert found == {"base": 1, "notify": 1, "survey": 18, **({"cluster": 2} if sized else {})}
    assert protocol.system.updates["add"] == 0


def test_samples_that_say_too_much_are_put_right_by_the_topic() -> None:
    """One of twelve has the topic directly, by a sample of three maybe four: it is one, the topic says."""
    tried = []
    for seed in range(40):
        protocol = made(surely=SURELY, frequency=0.2, margin=0.55)
        protocol._rng = protocol.exchange._rng = np.random.default_rng(seed)
        cluster = protocol.system.found([0, 1, 2])
        wants(protocol, range(12), [0, 1, 2], cluster)
        found = spent(protocol, lambda at=protocol: at.subscribe(8, 4))  # type: ignore[misc]
        assert protocol.system.updates["add"] == 0
        tried.append(found.get("cluster", 0))
    assert set(tried) == {0, 2}


@growths
def test_a_topic_that_gets_busier(growth: str, sized: int) -> None:
    protocol = made(growth)
    cluster = protocol.system.found([0, 1, 2])
    wants(protocol, range(9), [0, 1, 2], cluster)
    found = spent(protocol, lambda: protocol.believe(0, 0.02))
    assert found == {"survey": 18, **({"cluster": 2} if sized else {})}


@growths
def test_a_cluster_that_shrinks_and_one_that_grows(growth: str, sized: int) -> None:
    protocol = made(growth, grown=True)
    cluster = protocol.system.found([0, 1, 2])
    wants(protocol, range(9), [0, 1, 2], cluster)
    protocol.system.clusters[cluster].checked = 3
    found = spent(protocol, lambda: protocol._resized(cluster))
    assert found == {"survey": 18, **({"cluster": 2 * 3} if sized else {})}
    protocol = made(growth, frequency=5.0)
    cluster = protocol.system.found([0, 1, 2])
    wants(protocol, range(9), [0, 1, 2], cluster)
    wants(protocol, [0], [4])
    protocol.system.clusters[cluster].checked = 30
    found = spent(protocol, lambda: protocol._resized(cluster))
    # The topic is asked, whatever costs are like: nobody has told the cluster of it.
    assert found == {"survey": 18, "cluster": 2}


@growths
def test_a_topic_that_looks_for_a_cluster_and_a_partner(growth: str, sized: int) -> None:
    protocol = made(growth, frequency=5.0)
    cluster = protocol.system.found([0, 1, 2])
    wants(protocol, range(9), [0, 1, 2], cluster)
    wants(protocol, range(3), [3, 4])
    found = spent(protocol, lambda: protocol._searched(3))
    assert found == {"survey": 6, "cluster": 2 + 2}


@growths
def test_clusters_that_do_not_merge(growth: str, sized: int) -> None:
    protocol = made(growth, frequency=5.0)
    clusters = [protocol.system.found(topics) for topics in ([0, 1], [2, 3])]
    for cluster in clusters:
        wants(protocol, range(2 * cluster, 9), [2 * cluster, 2 * cluster + 1], cluster)
    found = spent(protocol, lambda: protocol._courts(clusters[0]))
    assert found == {"survey": 18, "cluster": 2}


@growths
def test_members_who_look_at_themselves(growth: str, sized: int, monkeypatch: pytest.MonkeyPatch) -> None:
    protocol = made(growth, tidy=True, frequency=0.3)
    cluster = protocol.system.found([0, 1, 2])
    wants(protocol, range(9), [0, 1, 2], cluster)
    wants(protocol, range(9, 12), [0], cluster)
    wants(protocol, range(12, 20), [0])
    looked = []

    def leaves(peer: int, cluster: int) -> bool:
        need, left = (
            len(protocol.system.peers.need(peer, cluster)),
            TamaraProtocol._leaves(protocol, peer, cluster),
        )
        looked.append((need, left))
        return left

    monkeypatch.setattr(protocol, "_leaves", leaves)
    found = spent(protocol, lambda: protocol._reconsidered(cluster))
    # Topics are asked and members told; some look again at the cluster and what they need of it, and go.
    again = sum(sized * (2 + 2 * need) + left * (1 + need) for need, left in looked)
    assert found == {"resub": again, **({"cluster": 2 * 3 + 12} if sized else {})}
    assert protocol.system.updates["leave"] == sum(left for _, left in looked) >= 3


@pytest.mark.parametrize("limit", [None, 3])
def test_channels_that_are_limited_are_asked_for(limit: int | None) -> None:
    limited = limit is not None
    protocol = made(limit=limit, adapt=False)
    one = {"cluster": 2} if limited else {}
    assert spent(protocol, lambda: protocol.subscribe(0, 0)) == {"base": 1, **one}
    assert spent(protocol, lambda: protocol.subscribe(1, 0)) == {"base": 1}
    assert spent(protocol, lambda: protocol.unsubscribe(1, 0)) == {"base": 1}
    end = {"cluster": 1} if limited else {}
    assert spent(protocol, lambda: protocol.unsubscribe(0, 0)) == {"base": 1, **end}


@pytest.mark.parametrize(("limit", "told"), [(None, 0), (9, 1)])
def test_a_cluster_without_members_gives_its_channel_back(limit: int | None, told: int) -> None:
    protocol = made(limit=limit, adapt=False)
    cluster = protocol.system.found([0, 1, 2])
    wants(protocol, [0], [0, 1, 2], cluster)
    protocol.system.peers.interests.clear(0, 1)
    protocol.system.peers.interests.clear(0, 2)
    found = spent(protocol, lambda: protocol.unsubscribe(0, 0))
    assert found == {"resub": 1, "cluster": 3 * 2 + told}  # three topics are no longer tied to it
    assert not protocol.system.clusters


@pytest.mark.parametrize(("limit", "frequency"), [(None, 0.01), (6, 0.01), (3, 0.01), (3, 5.0)])
def test_two_topics_that_pair_within_a_limit(limit: int | None, frequency: float) -> None:
    protocol = made(limit=limit, frequency=frequency)
    wants(protocol, range(6), [0, 1])
    wants(protocol, [9], [2])
    found = spent(protocol, lambda: protocol._searched(0))
    if frequency > 1:
        assert found == {"survey": 12, "cluster": 2}, "what does not pay is not asked for"
        return
    # The partner is asked; the members of both are told, and both are tied; all join, and drop two each.
    cluster = 2 + 2 * 6 + 2 * 2
    if limit is not None:
        cluster += 2 + 2  # whoever hands out channels is asked, and two channels are free in the end
    if limit == 3:
        cluster += 3 * 2 + 1 + 1  # it asks three topics; the least is told, with one member
        cluster += 1 + 1  # and again, when a channel is free
    assert found == {"survey": 12, "cluster": cluster, "resub": 6 * 3}
    assert protocol.system.updates["pair"] == 1


@pytest.mark.parametrize(("channels", "asked"), [(None, 0), (10, 2 * 2)])
def test_a_plan_to_begin_with(channels: int | None, asked: int) -> None:
    """Each cluster of it is tied to its six topics, and asks for a channel where these are limited."""
    groups = np.arange(12)[:, None] // 6 == np.arange(2)
    plan = ChannelPlan(groups, np.zeros((0, 2)), subscribers=[], flows=range(12))
    planner = Tamara(start=plan, channels=channels).fit(Interest(np.zeros((3, 12))))
    assert planner.messages_ == {
        "base": 0,
        "notify": 0,
        "survey": 0,
        "cluster": 2 * 6 * 2 + asked,
        "resub": 0,
    }


@pytest.mark.parametrize("growth", ["linear", "log"])
def test_a_limit_that_is_never_met_costs_messages_alone(growth: str) -> None:
    interest = clustered(seed=1, subscribers=80)
    free, limited = (
        Tamara(channels=channels, cost_m=growth, cost_d=growth).fit(interest) for channels in (None, 10**6)
    )
    assert free.plan_ == limited.plan_
    more = {kind: count - free.messages_[kind] for kind, count in limited.messages_.items()}
    assert more.pop("cluster") > 2 * limited.updates_["pair"]
    assert set(more.values()) == {0}
