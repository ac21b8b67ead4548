"""The planners `tamara` and `tamara-tidy`: they update the plan with every change of interest.

A cluster is a channel of several topics, whose members receive all of them; other subscriptions are direct.
A round, held regularly, lets clusters look for a merge with another one, and topics for a cluster to enter.
"""

from __future__ import annotations

import math
from copy import copy
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import numpy as np
import pyarrow as pa

from narrowcast.costs.local_changes import LocalChanges
from narrowcast.costs.overall import INTERVAL, Overall
from narrowcast.errors import ParameterError, TableError
from narrowcast.model.diff import PlanDelta
from narrowcast.model.interest import Interest
from narrowcast.model.labels import column_of, labels_in, numbers_in, positions
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.relation import relation_of, rows_of
from narrowcast.planning.base import BasePlanner, Capabilities
from narrowcast.planning.replanner import check_counts, read_changes, seconds_of
from narrowcast.planning.topics.tamara.protocol import ChannelRules, TamaraProtocol
from narrowcast.validation import check_channels, check_seed, check_whole, is_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from narrowcast.model.labels import Labels
    from narrowcast.model.relation import Positions, Relation

#: Seconds beyond any time of a clock.
_FOREVER = 1e15
#: Which subscribers join a new cluster of two topics: the direct ones of either, or those of both.
Pair = Literal["all", "common"]


class Tamara(BasePlanner):
    """Overlapping clusters of topics that adapt to interest by local decisions (tamara2007).

    Topics with similar audiences share a channel; a subscriber that wants enough of them joins it, and
    filters the others out. Channels decide by their own state and by surveys of their members; `messages_`
    counts all messages that this takes. `fit` lets subscribers arrive one by one in random order; `update`
    continues from there.

    Parameters
    ----------
    channels
        The most channels, for clusters and single topics together; None means no limit. Topics without a
        channel go by unicast.
    seed
        Seed of the order of arrivals, of samples and of coins.
    cost_m, cost_a, cost_n, cost_d, interval
        The cost model: see `Overall`.
    rounds
        Number of rounds during `fit`, in which clusters look for a merge and topics for a cluster.
    period
        Seconds between two rounds while changes arrive, or time passes by `advance`.
    pair
        Whether `all` direct subscribers of two topics join their new cluster, or only the `common` ones.
    surely, margin, z
        Probability that coins win once an update pays; margin of samples, and its number of deviations.
    by
        The share by which a topic's frequency or a cluster's size must change for a review.
    grown
        Whether growing clusters review their topics, which the paper does not have (default: for
        `tamara-tidy` only).
    adapt
        Whether clusters change at all; if not, subscribers choose among existing ones.
    half_life
        Seconds after which an observed event counts half.
    start
        An earlier plan to start from: its channels of several flows are clusters, and listeners that want one
        of the flows are members. There are no rounds until changes arrive.

    Examples
    --------
    >>> interest = Interest([[1, 1, 0], [1, 1, 0], [1, 1, 0], [1, 1, 1]], rate=[1e-4, 1e-4, 1.0])
    >>> planner = Tamara().fit(interest)
    >>> planner.plan_.carries.toarray().astype(int).tolist()
    [[1, 0], [1, 0], [0, 1]]
    >>> changes = {"time": [9.0], "subscriber": [0], "flow": [2], "action": ["subscribe"]}
    >>> planner.update(pa.table(changes)).added["listens"].to_pylist()
    [{'subscriber': 0, 'channel': 1}]
    """

    capabilities = Capabilities(warm_start="optional", online=True)
    #: Whether clusters and members are reviewed in every round.
    tidy = False

    def __init__(
        self,
        *,
        channels: int | None = None,
        seed: int = 0,
        cost_m: Any = "linear",
        cost_a: Any = "linear",
        cost_n: float = 1.0,
        cost_d: Any = "linear",
        interval: float = INTERVAL,
        rounds: int = 100,
        period: float = 43_200.0,
        pair: Pair = "all",
        surely: float = 0.99,
        margin: float = 0.05,
        z: float = 1.96,
        by: float = 0.25,
        grown: bool | None = None,
        adapt: bool = True,
        half_life: float = 3 * 86_400.0,
        start: ChannelPlan | None = None,
    ) -> None:
        self.channels = channels
        self.seed = seed
        self.cost_m = cost_m
        self.cost_a = cost_a
        self.cost_n = cost_n
        self.cost_d = cost_d
        self.interval = interval
        self.rounds = rounds
        self.period = period
        self.pair = pair
        self.surely = surely
        self.margin = margin
        self.z = z
        self.by = by
        self.grown = grown
        self.adapt = adapt
        self.half_life = half_life
        self.start = start

    def fit(self, interest: Interest) -> Self:
        """Let all subscribers arrive and subscribe, and make the first plan, `plan_`."""
        self._begin(interest)
        self._arrive(interest)
        return self

    def _arrive(self, interest: Interest) -> None:
        """Let subscribers arrive one by one, each with its topics in random order."""
        wants = interest.wants[self._at]
        rows = rows_of(wants)
        topic = wants.indices[np.lexsort((self._rng.random(interest.n_wants), rows))].tolist()
        peer = rows.tolist()
        rounds = self.rounds if self.start is None else 0
        due = np.linspace(0, len(peer), rounds + 1)[1:].astype(np.int64).tolist()
        for i, pair in enumerate(zip(peer, topic, strict=True), 1):
            self._protocol.subscribe(*pair)
            while due and due[0] <= i:
                due.pop(0)
                self._protocol.round()
        self._protocol.system.addresses.settle()

    def _begin(self, interest: Interest) -> None:
        """Check parameters, and create all flows and subscribers of an interest, without subscriptions."""
        check_channels(self.channels)
        check_seed(self.seed)
        check_whole("rounds", self.rounds, least=0)
        if self.pair not in get_args(Pair):
            raise ParameterError(
                parameter="pair", value=self.pair, limit=f"one of {', '.join(get_args(Pair))}"
            )
        for name in ("surely", "margin"):
            _check_number(name, getattr(self, name), most=1.0)
        for name in ("period", "z", "by", "half_life"):
            _check_number(name, getattr(self, name))
        for name, value in (("grown", self.grown), ("adapt", self.adapt)):
            if not isinstance(value, bool) and not (name == "grown" and value is None):
                raise ParameterError(parameter=name, value=value, limit="true or false")
        if self.start is not None and not isinstance(self.start, ChannelPlan):
            raise ParameterError(parameter="start", value=self.start, limit="a plan")
        model = Overall(
            cost_m=self.cost_m,
            cost_a=self.cost_a,
            cost_n=self.cost_n,
            cost_d=self.cost_d,
            interval=self.interval,
        )
        rules = ChannelRules(
            all_members=self.pair == "all", surely=self.surely, margin=self.margin, z=self.z, by=self.by,
            grown=self.tidy if self.grown is None else self.grown, tidy=self.tidy, adapt=self.adapt,
        )  # fmt: skip
        self._rng = np.random.default_rng(self.seed)
        self._protocol = TamaraProtocol(LocalChanges(model), rules, self._rng, limit=self.channels)
        self._time: float | None = None
        self.ignored_ = 0
        self.subscribers_, self.flows_ = interest.subscribers, interest.flows
        self._at = _order(interest, self._rng)
        self._peer = {label: i for i, label in enumerate(interest.subscribers.take(self._at).to_pylist())}
        self._topic = {label: i for i, label in enumerate(interest.flows.to_pylist())}
        self._protocol.system.create(model.frequencies(interest).tolist())
        self._protocol.system.admit(interest.n_subscribers)
        if self.start is not None:
            self._take_over(self.start, interest)

    def _take_over(self, plan: ChannelPlan, interest: Interest) -> None:
        """Start with the clusters of an earlier plan and their members."""
        flow = positions("flow", plan.flows, interest.flows)
        peer = positions("subscriber", plan.subscribers, interest.subscribers.take(self._at))
        carries, listens = plan.carries.tocsc(), plan.listens.tocsc()
        system, wants = self._protocol.system, interest.wants[self._at].tocsc()
        for channel in range(plan.n_channels):
            topics = flow[carries.indices[carries.indptr[channel] : carries.indptr[channel + 1]]]
            topics = topics[topics >= 0]
            if len(topics) < 2 or not system.exchange.request_channel(system.addresses).room_for_cluster:
                continue
            members = peer[listens.indices[listens.indptr[channel] : listens.indptr[channel + 1]]]
            wanted = np.bincount(wants[:, topics].indices, minlength=interest.n_subscribers) > 0
            cluster = system.create_cluster(topics.tolist())
            for member in members[members >= 0].tolist():
                if wanted[member]:
                    system.join(member, cluster)
            system.clusters[cluster].checked = len(system.clusters[cluster].members)

    def resumed(self, interest: Interest, plan: ChannelPlan | None) -> Self:
        """Return a copy fitted to an interest that starts with the clusters of a plan, if one is given."""
        again = copy(self)
        if plan is not None:
            again.start = plan
        return again.fit(interest)

    def update(self, changes: pa.Table) -> PlanDelta:
        """Apply a table of changes (time, subscriber, flow, action) and return what changed in `plan_`.

        Changes apply in the order of `time`, those of equal times in the order of rows. A repeated
        subscription, or an unsubscription without a subscription, changes nothing and is counted in
        `ignored_`. Changes of a later call apply later, whatever their times. A new flow has rate 1 until it
        is observed. Rounds that are due are held until one changes nothing.
        """
        self._check_fitted()
        subscriber, flow, subscribes, order = read_changes(changes)
        seconds = seconds_of(column_of(changes, "time", "changes")).tolist()
        who, what = (
            _converted(subscriber, self.subscribers_, "subscriber"),
            _converted(flow, self.flows_, "flow"),
        )
        # An unsubscription does not make its subscriber or flow known.
        joins = pa.array(subscribes)
        peer = self._numbers(who, who.filter(joins), self._peer, "subscribers_", self._admit)
        topic = self._numbers(what, what.filter(joins), self._topic, "flows_", self._create)
        interests = self._protocol.system.peers.interests
        for i in order.tolist():
            who_, what_ = int(peer[i]), int(topic[i])
            if who_ < 0 or what_ < 0 or interests.has(who_, what_) == subscribes[i]:
                self.ignored_ += 1  # an ignored change does not advance the time either
                continue
            self._pass(seconds[i])
            act = self._protocol.subscribe if subscribes[i] else self._protocol.unsubscribe
            act(who_, what_)
        return self._delta()

    def observe(self, events: pa.Table, seconds: float) -> PlanDelta:
        """Update rates from the numbers of events (flow, events) of the last seconds.

        A flow without a row had no events. Channels count the events that pass through them, and so estimate
        the frequency of their topic; a change of frequency takes no message.
        """
        self._check_fitted()
        _check_number("seconds", seconds)
        flow, count = labels_in(events, "flow", "events"), numbers_in(events, "events", "events")
        check_counts(count)
        flow = _converted(flow, self.flows_, "flow")
        topic = self._numbers(flow, flow, self._topic, "flows_", self._create)
        seen = np.bincount(topic, count, len(self._protocol.system.topics))
        keep = 0.5 ** (seconds / self.half_life)
        new = -math.expm1(-math.log(2) * seconds / self.half_life)
        # The number of intervals whose plain mean would be as certain.
        length = seconds / self.interval * (1 + keep) / new
        for each, events_seen in enumerate((seen * self.interval / seconds).tolist()):
            before = self._protocol.system.topics[each].frequency
            self._protocol.set_frequency(each, keep * before + new * events_seen, length)
        return self._delta()

    def advance(self, time: float) -> PlanDelta:
        """Advance the time without changes of interest, and return what changed in `plan_`.

        Rounds that are due by then are held until one changes nothing, as by `update`; `observe` does not
        advance the time. A time in the past changes nothing. The first time given, here or by a change, is
        when the clock starts.

        Parameters
        ----------
        time
            The current time in seconds: of the same clock as `time` in changes, since 1970 for timestamps.

        Examples
        --------
        >>> interest = Interest([[1, 1], [1, 1], [1, 1]], rate=[1e-4, 1e-4])
        >>> planner = Tamara(rounds=0, period=3600.0).fit(interest)  # a channel for each topic
        >>> planner.advance(0.0).n_changes
        0
        >>> planner.advance(3600.0).added["listens"].num_rows  # a round, in which both become a cluster
        3
        """
        self._check_fitted()
        number = isinstance(time, int | float | np.number) and not isinstance(time, bool)
        if not number or not abs(time) < _FOREVER:
            limit = f"a number of seconds between -{_FOREVER:g} and {_FOREVER:g}"
            raise ParameterError(parameter="time", value=time, limit=limit)
        self._pass(float(time))
        return self._delta()

    def round(self) -> PlanDelta:
        """Run a round now: each cluster looks for another one to merge with, and each topic for a cluster."""
        self._check_fitted()
        self._protocol.round()
        return self._delta()

    @property
    def plan_(self) -> ChannelPlan:
        """The plan with the current clusters, topics and their members."""
        system = self._protocol.system
        n_channels = max(system.addresses.number.values(), default=-1) + 1
        carried, listened = [], []
        for (kind, key), number in system.addresses.number.items():
            channel = system.topics[key] if kind == "t" else system.clusters[key]
            flows = [key] if kind == "t" else sorted(system.clusters[key].frequencies)
            carried.append((np.array(flows, np.int64), number))
            listened.append((self._at[channel.members.all()], number))
        waiting = [
            t
            for t, each in enumerate(system.topics)
            if len(each.members) and ("t", t) not in system.addresses.number
        ]
        alone = [(self._at[system.topics[t].members.all()], t) for t in waiting]
        n_flows, n_subscribers = len(self.flows_), len(self.subscribers_)
        return ChannelPlan(
            _relation(carried, (n_flows, n_channels)),
            _relation(listened, (n_subscribers, n_channels)),
            unicast=_relation(alone, (n_subscribers, n_flows)),
            subscribers=self.subscribers_,
            flows=self.flows_,
        )

    @property
    def interest_(self) -> Interest:
        """The current interest, with the rates that channels estimate."""
        system = self._protocol.system
        bits = np.unpackbits(system.peers.interests.words.view(np.uint8), axis=1, bitorder="little")
        wants = np.empty((len(self.subscribers_), len(self.flows_)), np.bool_)
        wants[self._at] = bits[: len(self.subscribers_), : len(self.flows_)]
        rate = np.array([topic.frequency for topic in system.topics]) / self.interval
        return Interest(wants, rate, self.subscribers_, self.flows_)

    @property
    def cost_(self) -> float:
        """The current overall cost (OC), updated with every change."""
        return self._protocol.system.account.total

    @property
    def messages_(self) -> dict[str, int]:
        """Number of messages sent so far, by kind: `base`, `notify`, `survey`, `cluster` or `resub`."""
        return dict(self._protocol.exchange.sent)

    @property
    def updates_(self) -> dict[str, int]:
        """Number of changes of clusters so far, by kind of change."""
        return dict(self._protocol.system.updates)

    def _admit(self, count: int) -> None:
        """Add subscribers without interest, numbered in the order of arrival."""
        self._protocol.system.admit(count)
        self._at = np.append(self._at, np.arange(len(self._at), len(self._at) + count))

    def _check_fitted(self) -> None:
        if not hasattr(self, "_protocol"):
            raise ParameterError("no plan yet: nothing to update; call fit with the first interest")

    def _pass(self, seconds: float) -> None:
        """Advance the time to the given seconds, and run the rounds that are due."""
        if self._time is None:
            self._time = seconds
        while seconds - self._time >= self.period:
            before = self.updates_
            self._protocol.round()
            settled = self.updates_ == before
            # After a round without an update, the next one would do the same, except for samples.
            self._time += self.period * ((seconds - self._time) // self.period if settled else 1)

    def _create(self, count: int) -> None:
        """Add flows, with rate 1 until they are observed."""
        self._protocol.system.create([self.interval] * count)

    def _numbers(
        self, labels: Labels, adding: Labels, known: dict[Any, int], name: str, more: Callable[[int], None]
    ) -> Positions:
        """Return labels as numbers, -1 if unknown; unknown labels selected by `adding` get a new number."""
        new = [value for value in adding.unique().to_pylist() if value not in known]
        if new:
            before: Labels = getattr(self, name)
            kind = before.type if len(before) else adding.type
            setattr(self, name, pa.concat_arrays([before.cast(kind), pa.array(new, kind)]))
            known.update(zip(new, range(len(known), len(known) + len(new)), strict=True))
            more(len(new))
        coded = labels.dictionary_encode()
        numbers = np.array([known.get(value, -1) for value in coded.dictionary.to_pylist()], np.int64)
        found: Positions = numbers[coded.indices.to_numpy()] if len(labels) else numbers[:0]
        return found

    def _delta(self) -> PlanDelta:
        """Return the changes of the plan since the last call."""
        addresses = self._protocol.system.addresses
        columns = {
            "carries": (("flow", self.flows_), ("channel", None)),
            "listens": (("subscriber", self.subscribers_), ("channel", None)),
            "unicast": (("subscriber", self.subscribers_), ("flow", self.flows_)),
        }
        tables: list[dict[str, pa.Table]] = []
        for sign in (1, -1):
            found = {}
            for table, names in columns.items():
                rows = [pair for pair, net in addresses.changes[table].items() if net == sign]
                pairs = np.array(rows, np.int32).reshape(-1, 2)
                if names[0][0] == "subscriber":
                    pairs[:, 0] = self._at[pairs[:, 0]]
                pairs = pairs[np.lexsort(pairs.T[::-1])]
                found[table] = pa.table(
                    {
                        name: pa.array(pairs[:, i]) if labels is None else labels.take(pa.array(pairs[:, i]))
                        for i, (name, labels) in enumerate(names)
                    }
                )
            found["parents"] = pa.table(
                {"channel": pa.array([], pa.int32()), "parent": pa.array([], pa.int32())}
            )
            tables.append(found)
        addresses.forget()
        return PlanDelta(*tables)


class TamaraTidy(Tamara):
    """Tamara with a review of all clusters and members in every round.

    Every cluster samples its members and drops each topic that no longer pays; a member leaves a cluster when
    direct subscriptions for what it gets from it alone are cheaper.

    Examples
    --------
    >>> interest = Interest([[1, 1, 0], [1, 1, 0], [1, 1, 0], [1, 1, 1]], rate=[1e-4, 1e-4, 1.0])
    >>> TamaraTidy().fit(interest).plan_.members().tolist()
    [4, 1]
    """

    tidy = True


def _check_number(name: str, value: float, *, most: float = math.inf) -> None:
    """Refuse a value that is not a finite number above 0, or not below `most`."""
    if not is_number(value) or not 0 < value < most:
        limit = "" if most == math.inf else f" and below {most:g}"
        raise ParameterError(parameter=name, value=value, limit=f"a finite number above 0{limit}")


def _order(interest: Interest, rng: np.random.Generator) -> Positions:
    """Return subscribers in a random order that does not depend on their numbering in the interest.

    They are sorted by interest first and then shuffled: subscribers of equal interest are interchangeable.
    """
    weight = rng.integers(0, 2**63, interest.n_flows, dtype=np.uint64)
    by_wants = np.argsort(np.asarray(interest.wants.astype(np.uint64) @ weight), kind="stable")
    found: Positions = by_wants[rng.permutation(interest.n_subscribers)]
    return found


def _relation(parts: Iterable[tuple[Positions, int]], shape: tuple[int, int]) -> Relation:
    """Return the relation in which each column contains the given rows."""
    parts = list(parts)
    rows = np.concatenate([np.zeros(0, np.int64), *(rows for rows, _ in parts)])
    columns = np.repeat([column for _, column in parts], [len(rows) for rows, _ in parts]) if parts else rows
    return relation_of(rows, columns, shape)


def _converted(labels: Labels, like: Labels, what: str) -> Labels:
    """Return labels converted to the type of `like`, the plan's; refuse to mix text and numbers."""
    text = pa.types.is_string(like.type) or pa.types.is_large_string(like.type)
    if not len(like) or not len(labels):
        return labels
    if text != (pa.types.is_string(labels.type) or pa.types.is_large_string(labels.type)):
        raise TableError(
            f"{what}: has type {labels.type} in this table and {like.type} in the plan; use one type",
            parameter=what,
        )
    try:
        return labels.cast(like.type)
    except pa.ArrowException as error:
        raise TableError(f"{what}: does not fit the labels of the plan: {error}", parameter=what) from error
