"""Channels of Tamara decide by what they know and what they asked: nothing else is within their reach."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np

from narrowcast.costs.local import Local
from narrowcast.costs.overall import Overall
from narrowcast.model.interest import Interest
from narrowcast.planning.tamara import TamaraTidy
from narrowcast.planning.tamara import channels as channels_module
from narrowcast.planning.tamara.channels import Members
from narrowcast.planning.tamara.exchange import Exchange
from narrowcast.planning.tamara.peers import Peers
from narrowcast.planning.tamara.protocol import Protocol, Rules
from support.interests import clustered


class Watched(Peers):
    """Subscribers who note whose rows are looked at."""

    __slots__ = ("seen",)

    def __init__(self, subscribers: int, topics: int) -> None:
        super().__init__(subscribers, topics)
        self.seen: set[int] = set()

    def clusters_of(self, peer: int) -> list[int]:
        self.seen.add(peer)
        return super().clusters_of(peer)

    def overlaps(self, peer: int, clusters: list[int]) -> Any:
        self.seen.add(peer)
        return super().overlaps(peer, clusters)

    def taken_over(self, peer: int, cluster: int) -> list[int]:
        self.seen.add(peer)
        return super().taken_over(peer, cluster)

    def unwanted(self, peer: int, clusters: list[int]) -> Any:
        self.seen.add(peer)
        return super().unwanted(peer, clusters)

    def overlapping(self, peers: Any, cluster: int) -> Any:
        self.seen.update(peers.tolist())
        return super().overlapping(peers, cluster)

    def needs(self, peers: Any, cluster: int) -> Any:
        self.seen.update(peers.tolist())
        return super().needs(peers, cluster)

    def worth(self, peers: Any, cluster: int, weight: Any) -> Any:
        self.seen.update(peers.tolist())
        return super().worth(peers, cluster, weight)

    def having(self, peers: Any, topic: int) -> Any:
        self.seen.update(peers.tolist())
        return super().having(peers, topic)

    def in_clusters(self, peers: Any) -> Any:
        self.seen.update(peers.tolist())
        return super().in_clusters(peers)

    def on_topics(self, peers: Any) -> Any:
        self.seen.update(peers.tolist())
        return super().on_topics(peers)


class Logged(Exchange):
    """Messages, with who got them."""

    def __init__(self, peers: Peers, rng: np.random.Generator, *, margin: float, z: float) -> None:
        super().__init__(peers, rng, margin=margin, z=z)
        self.reached: set[int] = set()

    def _asked(self, members: Members) -> Any:
        found = super()._asked(members)
        self.reached.update(found.tolist())
        return found

    def announced(self, members: Members) -> Any:
        found = super().announced(members)
        self.reached.update(found.tolist())
        return found


def watched(seed: int, interest: Interest) -> tuple[Protocol, Watched, Logged]:
    """A system whose subscribers and messages are watched."""
    protocol = Protocol(Local(Overall()), Rules(margin=0.2), np.random.default_rng(seed))
    peers = Watched(interest.n_subscribers, interest.n_flows)
    protocol.system.peers = peers
    exchange = Logged(peers, np.random.default_rng(seed), margin=0.2, z=1.96)
    protocol.exchange = protocol.system.exchange = exchange
    protocol.system.create((interest.rate * 360).tolist())
    protocol.system.admit(interest.n_subscribers)
    return protocol, peers, exchange


def test_nobody_is_looked_at_without_a_message() -> None:
    """Whoever acts looks at itself; all others have been asked or told something, which is counted."""
    interest = clustered(seed=5)
    protocol, peers, exchange = watched(5, interest)
    rng = np.random.default_rng(5)
    who, what = interest.wants.nonzero()
    looked = 0
    for i in rng.permutation(len(who)).tolist():
        for act in (protocol.subscribe, protocol.unsubscribe, protocol.subscribe):
            peers.seen.clear()
            exchange.reached.clear()
            before = sum(protocol.exchange.sent.values())
            act(int(who[i]), int(what[i]))
            assert peers.seen <= exchange.reached | {int(who[i])}
            assert sum(protocol.exchange.sent.values()) - before >= len(peers.seen - {int(who[i])})
            looked += len(peers.seen)
        if i % 50 == 0:
            peers.seen.clear()
            exchange.reached.clear()
            protocol.round()
            assert peers.seen <= exchange.reached
            looked += len(peers.seen)
    assert looked > 1000
    assert protocol.system.updates["pair"]
    assert protocol.system.updates["add"]


def test_nobody_looks_at_the_account() -> None:
    """With an account that is wrong throughout all decisions are the same."""
    interest = clustered(seed=2)
    right, wrong = TamaraTidy(seed=2), TamaraTidy(seed=2)
    right.fit(interest)
    wrong._begin(interest)
    wrong._protocol.system.account.maintenance = float("nan")
    wrong._protocol.system.account.dissemination = float("nan")
    wrong._arrive(interest)
    assert right.plan_ == wrong.plan_
    assert right.messages_ == wrong.messages_


def test_channels_cannot_see_others() -> None:
    """What decides knows of costs alone: neither subscribers nor other channels are within its reach."""
    source = Path(channels_module.__file__).read_text()
    imported = {
        name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom | ast.Import)
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
        )
    }
    ours = {name for name in imported if name and name.startswith("narrowcast")}
    assert ours == {"narrowcast.costs.local"}
