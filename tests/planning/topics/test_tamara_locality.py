"""Channels of Tamara decide by what they know and what they asked: nothing else is within their reach.

Subscribers, channels and messages are watched while they work. The first argument of a method of the protocol
is who acts; it may look at its own, and at others that its messages have reached.
"""

from __future__ import annotations

import ast
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from narrowcast.costs.local_changes import LocalChanges, TopicCost
from narrowcast.costs.overall import Overall
from narrowcast.planning.topics.tamara import Tamara, TamaraTidy
from narrowcast.planning.topics.tamara import channels as channels_module
from narrowcast.planning.topics.tamara import cluster_system as system_module
from narrowcast.planning.topics.tamara import protocol as protocol_module
from narrowcast.planning.topics.tamara.channel_numbers import ChannelRows
from narrowcast.planning.topics.tamara.channels import ChannelMembers, ClusterChannel, TopicChannel
from narrowcast.planning.topics.tamara.exchange import MessageCounter
from narrowcast.planning.topics.tamara.protocol import ChannelRules, TamaraProtocol
from narrowcast.planning.topics.tamara.subscribers import SubscriberPeers
from support.interests import clustered

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from narrowcast.model.interest import Interest

ACTORS = ("peer", "cluster", "topic")


def acting() -> tuple[FrameType, str, int] | None:
    """Return who acts, and where; nobody while the system carries out what has been decided."""
    frame: FrameType | None = sys._getframe(1)
    carried_out = False
    while frame is not None:
        code = frame.f_code
        if code.co_filename == system_module.__file__:
            if code.co_name == "_evict":
                return frame, "addresses", 0
            carried_out = True
        elif code.co_filename == protocol_module.__file__ and code.co_varnames[:1] == ("self",):
            if carried_out:
                return None
            if code.co_argcount < 2:
                return frame, "nobody", 0
            assert code.co_varnames[1] in ACTORS, code.co_name
            return frame, code.co_varnames[1], frame.f_locals[code.co_varnames[1]]
        frame = frame.f_back
    return None


class Watch:
    """Who looked at whom, and by which messages they might."""

    def __init__(self) -> None:
        self.protocol: TamaraProtocol
        self.seen: set[int] = set()
        self.reached: set[int] = set()
        self.looks = {"own": 0, "asked": 0, "frequency": 0}
        self._granted: list[tuple[FrameType, object]] = []
        self._waiting: list[tuple[tuple[FrameType, str, int], object, str]] = []
        self._open = 0

    def clear(self) -> None:
        """Forget what was asked: it holds for the operation that asked."""
        self.seen.clear()
        self.reached.clear()
        self._granted.clear()

    def rows(self, peers: Sequence[int]) -> None:
        """Take up that rows of subscribers are looked at."""
        who = acting()
        if who is None or who[0].f_code.co_name != "_reconsidered" or self.protocol.local.sized:
            # In a check of all members each looks at itself; with other costs they have been told sizes.
            self.seen.update(row for row in peers if who is None or who[1:] != ("peer", row))

    def read(self, channel: object, what: str) -> None:
        """Take up that something of a channel is read."""
        who = acting()
        if who is None:
            return
        self._waiting.append((who, channel, what))
        if not self._open:
            self._judge()

    @contextmanager
    def asking(self, sent: dict[str, int], channels: Sequence[object], each: int) -> Iterator[None]:
        """Let somebody look at channels if so many messages to each are counted."""
        before, who = sum(sent.values()), acting()
        self._open += 1
        yield
        self._open -= 1
        if who is not None and channels and sum(sent.values()) - before >= each * len(channels):
            self._granted += [(who[0], channel) for channel in channels]
        if not self._open:
            self._judge()

    def _judge(self) -> None:
        for (frame, kind, number), channel, what in self._waiting:
            system = self.protocol.system
            own: object = None
            if kind == "topic":
                own = system.topics[number]
            elif kind == "cluster":
                own = system.clusters.get(number)
            if channel is own:
                assert self._called(frame, channel), f"{kind} {number} acts in {frame.f_code.co_name}, untold"
                self.looks["own"] += 1
            elif self._reached(frame, channel):
                self.looks["asked"] += 1
            else:
                seen = what == "frequency" and self._sees(frame, kind, number, channel)
                assert seen, f"{kind} {number} reads {what} of {channel} in {frame.f_code.co_name}, unasked"
                self.looks["frequency"] += 1
        self._waiting.clear()

    def _reached(self, frame: FrameType | None, channel: object) -> bool:
        """Return whether a message from somewhere has reached a channel."""
        return any(at is frame and to is channel for at, to in self._granted)

    def _called(self, frame: FrameType, channel: object) -> bool:
        """Return whether who acts has been told to where it does not act by itself."""
        if frame.f_code.co_name.startswith("_told_of"):
            return self._reached(frame, channel)
        by_a_topic = frame.f_back is not None and frame.f_back.f_code.co_name == "_searched"
        return not by_a_topic or self._reached(frame.f_back, channel)

    def _sees(self, frame: FrameType, kind: str, number: int, channel: object) -> bool:
        """Return whether somebody gets the events of a channel, or has been notified of its topic."""
        system, peers = self.protocol.system, self.protocol.system.peers
        topic = next((t for t, each in enumerate(system.topics) if each is channel), None)
        if kind == "peer":
            mine = peers.joined.of(number)
            if topic is None:
                return any(system.clusters[each] is channel for each in mine)
            return peers.direct.has(number, topic) or any(peers.topics.has(each, topic) for each in mine)
        if kind == "cluster" and topic is not None:
            told = frame.f_code.co_name == "_told_of_more" and frame.f_locals["topic"] == topic
            notified = told and self._reached(frame, system.clusters[number])
            return peers.topics.has(number, topic) or notified
        return False


class Watched(SubscriberPeers):
    """Subscribers who note whose rows are looked at."""

    __slots__ = ("watch",)

    def __init__(self, subscribers: int, topics: int, watch: Watch) -> None:
        super().__init__(subscribers, topics)
        self.watch = watch

    def clusters_of(self, peer: int) -> list[int]:
        self.watch.rows([peer])
        return super().clusters_of(peer)

    def overlaps(self, peer: int, clusters: list[int]) -> Any:
        self.watch.rows([peer])
        return super().overlaps(peer, clusters)

    def taken_over(self, peer: int, cluster: int) -> list[int]:
        self.watch.rows([peer])
        return super().taken_over(peer, cluster)

    def unwanted(self, peer: int, clusters: list[int]) -> Any:
        self.watch.rows([peer])
        return super().unwanted(peer, clusters)

    def overlapping(self, peers: Any, cluster: int) -> Any:
        self.watch.rows(peers.tolist())
        return super().overlapping(peers, cluster)

    def needs(self, peers: Any, cluster: int) -> Any:
        self.watch.rows(peers.tolist())
        return super().needs(peers, cluster)

    def worth(self, peers: Any, cluster: int, weight: Any) -> Any:
        self.watch.rows(peers.tolist())
        return super().worth(peers, cluster, weight)

    def having(self, peers: Any, topic: int) -> Any:
        self.watch.rows(peers.tolist())
        return super().having(peers, topic)

    def in_clusters(self, peers: Any) -> Any:
        self.watch.rows(peers.tolist())
        return super().in_clusters(peers)

    def on_topics(self, peers: Any) -> Any:
        self.watch.rows(peers.tolist())
        return super().on_topics(peers)


def watched_channel(kind: type[Any], watch: Watch) -> type[Any]:
    """Return a class of channels that note what is read of them."""

    def noted(name: str) -> property:
        slot = getattr(kind, name)

        def read(self: Any) -> Any:
            watch.read(self, name)
            return slot.__get__(self)

        return property(read, lambda self, value: slot.__set__(self, value))

    names = [name for name in kind.__slots__ if not name.startswith("_")]
    return type(f"Watched{kind.__name__}", (kind,), {"__slots__": (), **{n: noted(n) for n in names}})


class WatchedAddresses(ChannelRows):
    """Channels with a limit, which are asked for and given back by messages."""

    def __init__(self, limit: int | None) -> None:
        super().__init__(limit)
        self.asked = self.told = 0
        self.looks: dict[str, int] = dict.fromkeys(("room", "open", "give up"), 0)

    def _look(self, what: str, messages: int) -> None:
        self.looks[what] += 1
        assert not self.limited or messages >= 0, f"{what} without a message"

    @property
    def room_for_cluster(self) -> bool:
        self.asked -= 1
        self._look("room", self.asked)
        return super().room_for_cluster

    def open(self, key: Any, flows: Any) -> bool:
        if sys._getframe(1).f_code.co_name == "take":
            self.asked -= 1
            self._look("open", self.asked)
        return super().open(key, flows)

    def give_up(self, topic: int) -> None:
        self.told -= 1
        self._look("give up", self.told)
        super().give_up(topic)

    def close(self, key: Any, flows: Any) -> None:
        if key[0] == "c":
            self.told -= 1
            self._look("give up", self.told)
        super().close(key, flows)


class Logged(MessageCounter):
    """Messages, with whom they reached."""

    def __init__(
        self, watch: Watch, peers: SubscriberPeers, rng: np.random.Generator, *, sized: bool
    ) -> None:
        super().__init__(peers, rng, margin=0.2, z=1.96, sized=sized)
        self.watch = watch

    def reached(self, kind: str, channel: Any) -> Any:
        with self.watch.asking(self.sent, [channel], 1):
            return super().reached(kind, channel)

    def asked(self, kind: str, channel: Any) -> Any:
        with self.watch.asking(self.sent, [channel], 2):
            return super().asked(kind, channel)

    def passed_on(self, channel: TopicChannel, clusters: Sequence[ClusterChannel]) -> TopicCost:
        with self.watch.asking(self.sent, clusters, 2):
            return super().passed_on(channel, clusters)

    def topics(self, kind: str, channels: Sequence[TopicChannel]) -> list[TopicCost]:
        with self.watch.asking(self.sent, channels, 2):
            return super().topics(kind, channels)

    def cluster(self, kind: str, channel: ClusterChannel) -> tuple[int, float]:
        with self.watch.asking(self.sent, [channel], 2):
            return super().cluster(kind, channel)

    def applied(self, addresses: Any) -> Any:
        before = self.sent["cluster"]
        found = super().applied(addresses)
        addresses.asked += (self.sent["cluster"] - before) // 2
        return found

    def returned(self, addresses: Any) -> Any:
        before = self.sent["cluster"]
        found = super().returned(addresses)
        addresses.told += self.sent["cluster"] - before
        return found

    def _sampled(self, members: ChannelMembers) -> Any:
        before = self.sent["survey"]
        found = super()._sampled(members)
        if self.sent["survey"] - before == 2 * len(found):
            self.watch.reached.update(found.tolist())
        return found

    def announced(self, members: ChannelMembers) -> Any:
        before = self.sent["cluster"]
        found = super().announced(members)
        if self.sent["cluster"] - before == len(found):
            self.watch.reached.update(found.tolist())
        return found


def watched(
    monkeypatch: pytest.MonkeyPatch,
    interest: Interest,
    rules: ChannelRules,
    *,
    growth: str,
    limit: int | None,
) -> tuple[TamaraProtocol, Watch]:
    """A system whose subscribers, channels and messages are watched."""
    watch = Watch()
    monkeypatch.setattr(system_module, "TopicChannel", watched_channel(TopicChannel, watch))
    monkeypatch.setattr(system_module, "ClusterChannel", watched_channel(ClusterChannel, watch))
    monkeypatch.setattr(system_module, "Addresses", WatchedAddresses)
    local = LocalChanges(Overall(cost_m=growth, cost_d=growth))
    protocol = watch.protocol = TamaraProtocol(local, rules, np.random.default_rng(5), limit=limit)
    protocol.system.peers = Watched(interest.n_subscribers, interest.n_flows, watch)
    exchange = Logged(watch, protocol.system.peers, np.random.default_rng(5), sized=local.sized)
    protocol.exchange = protocol.system.exchange = exchange
    protocol.system.create((interest.rate * 360).tolist())
    protocol.system.admit(interest.n_subscribers)
    return protocol, watch


@pytest.mark.parametrize("limit", [None, 7])
@pytest.mark.parametrize("growth", ["linear", "log", "sqrt"])
@pytest.mark.parametrize("tidy", [False, True])
def test_nobody_is_looked_at_without_a_message(
    monkeypatch: pytest.MonkeyPatch, *, tidy: bool, growth: str, limit: int | None
) -> None:
    """Whoever acts looks at itself; all others have been asked or told something, which is counted."""
    interest = clustered(seed=5, subscribers=60)
    rules = ChannelRules(margin=0.2, tidy=tidy, grown=tidy, by=0.1)
    protocol, watch = watched(monkeypatch, interest, rules, growth=growth, limit=limit)
    system, rng = protocol.system, np.random.default_rng(5)
    who, what = interest.wants.nonzero()
    looked = 0
    for step, i in enumerate(rng.permutation(len(who)).tolist()):
        peer, topic = int(who[i]), int(what[i])
        for act in (protocol.subscribe, protocol.unsubscribe, protocol.subscribe):
            watch.clear()
            before = sum(protocol.exchange.sent.values())
            act(peer, topic)
            others = watch.seen - {peer}
            assert others <= watch.reached
            assert sum(protocol.exchange.sent.values()) - before >= len(others)
            looked += len(others)
        watch.clear()
        if step % 25 == 0:
            protocol.round()
        elif step % 25 == 12:
            busier = system.topics[topic].frequency * float(rng.choice([0.1, 20.0]))
            protocol.believe(topic, min(max(busier, 0.01), 3.0))
        assert watch.seen <= watch.reached
        looked += len(watch.seen)
    watch.clear()
    for i in rng.permutation(len(who)).tolist()[: len(who) // 2]:
        protocol.unsubscribe(int(who[i]), int(what[i]))
        watch.clear()
    assert looked > 500
    assert min(watch.looks["own"], watch.looks["asked"]) > 1000
    assert (watch.looks["frequency"] > 100) == (growth == "linear")
    assert system.updates["pair"]
    assert system.updates["leave"]
    assert system.updates["add"] or limit
    addresses: Any = system.addresses
    assert min(addresses.looks.values()) > 0


def test_nobody_looks_at_the_account() -> None:
    """With an account that is wrong throughout all decisions are the same."""
    interest = clustered(seed=2)
    right, wrong = TamaraTidy(seed=2), TamaraTidy(seed=2)
    right.fit(interest)
    wrong._begin(interest)
    wrong._protocol.system.account.topic(float("nan"), (0, True), (3, True))
    wrong._protocol.system.account.cluster((0, 0, 0.0), (2, 2, float("inf")))
    wrong._arrive(interest)
    assert np.isnan(wrong.cost_)
    assert right.plan_ == wrong.plan_
    assert right.messages_ == wrong.messages_


class Garbled(MessageCounter):
    """Messages in which every size that is hidden, or all where costs hang on them, is made up."""

    __slots__ = ("_noise", "made_up")

    def __init__(self, like: MessageCounter, peers: SubscriberPeers, rng: np.random.Generator) -> None:
        super().__init__(peers, rng, margin=like._margin, z=like._z, sized=like._sized)
        self._noise = np.random.default_rng(1)
        self.made_up = 0

    def _any(self) -> int:
        self.made_up += 1
        return int(self._noise.integers(1 if self._sized else -5000, 5000))

    def topics(self, kind: str, channels: Sequence[TopicChannel]) -> list[TopicCost]:
        return [topic._replace(members=self._any()) for topic in super().topics(kind, channels)]

    def cluster(self, kind: str, channel: ClusterChannel) -> tuple[int, float]:
        return self._any(), super().cluster(kind, channel)[1]

    def counted(self, channel: ClusterChannel) -> tuple[Any, int]:
        return super().counted(channel)[0], self._any()


def led(planner: Tamara, interest: Interest, *, garbled: bool) -> int:
    """Lead a planner through arrivals, changes and events; return how many sizes were made up."""
    planner._begin(interest)
    protocol = planner._protocol
    if garbled:
        exchange = Garbled(protocol.exchange, protocol.system.peers, planner._rng)
        protocol.exchange = protocol.system.exchange = exchange
    planner._arrive(interest)
    rng = np.random.default_rng(3)
    changes = pa.table(
        {
            "time": np.arange(1500) * 3600.0,
            "subscriber": rng.integers(0, interest.n_subscribers, 1500),
            "flow": rng.integers(0, 12, 1500),
            "action": rng.choice(["subscribe", "unsubscribe"], 1500),
        }
    )
    for part in range(3):
        planner.update(changes.slice(part * 500, 500))
        busy = np.where(np.arange(12) % 3 == part, 0.01, 1e-4) * 86_400
        planner.observe(pa.table({"flow": np.arange(12), "events": busy}), 86_400.0)
    return exchange.made_up if garbled else 0


@pytest.mark.parametrize("kind", [Tamara, TamaraTidy])
@pytest.mark.parametrize("pair", ["all", "common"])
def test_with_linear_costs_no_decision_hangs_on_hidden_sizes(kind: type[Tamara], pair: Any) -> None:
    interest = clustered(seed=2, subscribers=120)
    right, wrong = (kind(seed=2, pair=pair, period=86_400.0) for _ in range(2))
    led(right, interest, garbled=False)
    assert led(wrong, interest, garbled=True) > 1000
    assert min(right.updates_[each] for each in ("add", "remove", "pair", "join", "leave")) > 0
    assert right.plan_ == wrong.plan_
    assert (right.messages_, right.updates_) == (wrong.messages_, wrong.updates_)


def test_with_other_costs_decisions_hang_on_sizes() -> None:
    """What is made up does come to those who decide."""
    interest = clustered(seed=2, subscribers=120)
    right, wrong = (TamaraTidy(seed=2, cost_m="log", cost_d="log") for _ in range(2))
    led(right, interest, garbled=False)
    led(wrong, interest, garbled=True)
    assert right.plan_ != wrong.plan_


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
    assert ours == {"narrowcast.costs.local_changes", "narrowcast.costs.exact_sum"}
