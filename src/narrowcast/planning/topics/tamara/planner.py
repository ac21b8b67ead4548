"""Tamara as a planner that follows its users: changes of interest in, changes of the plan out."""

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
from narrowcast.validation import check_channels, check_seed, check_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from narrowcast.model.labels import Labels
    from narrowcast.model.relation import Positions, Relation

#: Seconds that no clock shows.
_FOREVER = 1e15
#: Who goes over to a new cluster of two topics: all direct subscribers of either, or those of both.
Pair = Literal["all", "common"]


class Tamara(BasePlanner):
    """Clusters of topics that adapt to who wants what, by local decisions (tamara2007).

    Topics with much the same audience share a channel; whoever wants enough of them joins it, and filters the
    rest out. Channels decide by what they know and by surveys of their members; every message that takes is
    counted, in `messages_`. `fit` lets subscribers arrive one after the other, in an order drawn by the seed;
    `update` goes on from there.

    Parameters
    ----------
    channels
        The most channels, those of clusters and those of single topics together; None for any number. What
        finds no channel goes by unicast.
    seed
        Of the order of arrivals, samples and coins.
    cost_m, cost_a, cost_n, cost_d, interval
        What channels and events cost: see `Overall`.
    rounds
        How often clusters look for one to merge with, and topics for a cluster, while `fit` goes on.
    period
        Seconds from one such round to the next while changes come in, or time passes by `advance`.
    pair
        Whether `all` direct subscribers of two topics go over to their new cluster, or the `common` ones.
    surely, margin, z
        How surely coins win when an update pays; the margin of samples, and how many deviations that is.
    by
        The share that a topic's frequency or a cluster's size has to change by to be looked at.
    grown
        Whether a cluster that grows looks at its topics; where left out, with `tamara-tidy` alone: the paper
        has no such trigger.
    adapt
        Whether clusters change at all; if not, subscribers choose among those that there are.
    half_life
        Seconds after which an observed frequency counts half.
    start
        A plan to begin with: its channels of several flows are clusters, and who listens to one and wants
        some of it is in it. There are no rounds then until changes come in.

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
    #: Whether clusters and members look at themselves in every round.
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
        """Let everybody arrive and subscribe, and make the first plan, `plan_`."""
        self._begin(interest)
        self._arrive(interest)
        return self

    def _arrive(self, interest: Interest) -> None:
        """Let subscribers come one after the other, each with what it wants in an order of its own."""
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
        """Check the parameters, and begin with subscribers who want nothing yet."""
        check_channels(self.channels)
        check_seed(self.seed)
        check_whole("rounds", self.rounds, least=0)
        if self.pair not in get_args(Pair):
            raise ParameterError(f"pair is {self.pair!r}; give one of {', '.join(get_args(Pair))}")
        for name in ("surely", "margin"):
            _check_number(name, getattr(self, name), most=1.0)
        for name in ("period", "z", "by", "half_life"):
            _check_number(name, getattr(self, name))
        for name, value in (("grown", self.grown), ("adapt", self.adapt)):
            if not isinstance(value, bool) and not (name == "grown" and value is None):
                raise ParameterError(f"{name} is {value!r}; give true or false")
        if self.start is not None and not isinstance(self.start, ChannelPlan):
            raise ParameterError(f"start is a {type(self.start).__name__}; give a plan, as --from does")
        model = Overall(
            cost_m=self.cost_m,
            cost_a=self.cost_a,
            cost_n=self.cost_n,
            cost_d=self.cost_d,
            interval=self.interval,
        )
        rules = ChannelRules(
            everybody=self.pair == "all", surely=self.surely, margin=self.margin, z=self.z, by=self.by,
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
        """Begin with the clusters of a plan, and with who is in them."""
        flow = positions("flow", plan.flows, interest.flows)
        peer = positions("subscriber", plan.subscribers, interest.subscribers.take(self._at))
        carries, listens = plan.carries.tocsc(), plan.listens.tocsc()
        system, wants = self._protocol.system, interest.wants[self._at].tocsc()
        for channel in range(plan.n_channels):
            topics = flow[carries.indices[carries.indptr[channel] : carries.indptr[channel + 1]]]
            topics = topics[topics >= 0]
            if len(topics) < 2 or not system.exchange.applied(system.addresses).room_for_cluster:
                continue
            members = peer[listens.indices[listens.indptr[channel] : listens.indptr[channel + 1]]]
            wanted = np.bincount(wants[:, topics].indices, minlength=interest.n_subscribers) > 0
            cluster = system.found(topics.tolist())
            for member in members[members >= 0].tolist():
                if wanted[member]:
                    system.join(member, cluster)
            system.clusters[cluster].checked = len(system.clusters[cluster].members)

    def resumed(self, interest: Interest, plan: ChannelPlan | None) -> Self:
        """Return a copy fitted to an interest that begins with the clusters of a plan, where there is one."""
        again = copy(self)
        if plan is not None:
            again.start = plan
        return again.fit(interest)

    def update(self, changes: pa.Table) -> PlanDelta:
        """Take up a table of changes (time, subscriber, flow, action) and return what changed in `plan_`.

        They count in the order of `time`, equal times in that of rows. Subscribing to what one has, and
        unsubscribing from what one has not, changes nothing and is counted in `ignored_`. A later call counts
        later, whatever its times are. A flow that is new has rate 1 until it is observed. Rounds that are due
        are held until one changes nothing.
        """
        self._check_fitted()
        subscriber, flow, subscribes, order = read_changes(changes)
        seconds = seconds_of(column_of(changes, "time", "changes")).tolist()
        who, what = _as(subscriber, self.subscribers_, "subscriber"), _as(flow, self.flows_, "flow")
        # Whoever unsubscribes from what nobody knows does not become known by it.
        joins = pa.array(subscribes)
        peer = self._numbers(who, who.filter(joins), self._peer, "subscribers_", self._admit)
        topic = self._numbers(what, what.filter(joins), self._topic, "flows_", self._create)
        interests = self._protocol.system.peers.interests
        for i in order.tolist():
            who_, what_ = int(peer[i]), int(topic[i])
            if who_ < 0 or what_ < 0 or interests.has(who_, what_) == subscribes[i]:
                self.ignored_ += 1  # nor does time pass by what is said in vain
                continue
            self._pass(seconds[i])
            act = self._protocol.subscribe if subscribes[i] else self._protocol.unsubscribe
            act(who_, what_)
        return self._delta()

    def observe(self, events: pa.Table, seconds: float) -> PlanDelta:
        """Take up how many events (flow, events) there were in the last so many seconds.

        A flow that is not named had none. Channels count the events that pass through them, and so learn how
        often their topic has events; nobody tells them when that changes.
        """
        self._check_fitted()
        _check_number("seconds", seconds)
        flow, count = labels_in(events, "flow", "events"), numbers_in(events, "events", "events")
        check_counts(count)
        flow = _as(flow, self.flows_, "flow")
        topic = self._numbers(flow, flow, self._topic, "flows_", self._create)
        seen = np.bincount(topic, count, len(self._protocol.system.topics))
        keep = 0.5 ** (seconds / self.half_life)
        new = -math.expm1(-math.log(2) * seconds / self.half_life)
        # What a mean over so many intervals would be as sure of.
        length = seconds / self.interval * (1 + keep) / new
        for each, events_seen in enumerate((seen * self.interval / seconds).tolist()):
            before = self._protocol.system.topics[each].frequency
            self._protocol.believe(each, keep * before + new * events_seen, length)
        return self._delta()

    def advance(self, time: float) -> PlanDelta:
        """Let time pass though nobody changes anything, and return what changed in `plan_`.

        Rounds that are due by then are held until one changes nothing, as they are by `update` when changes
        come in; `observe` does not move the clock. A time that has passed already changes nothing. The first
        time that is named, here or by a change, is when the clock begins.

        Parameters
        ----------
        time
            How late it is, in seconds: on the clock of `time` in changes, since 1970 where these are dates.

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
            raise ParameterError(f"time is {time!r}; give seconds, of less than {_FOREVER:g}")
        self._pass(float(time))
        return self._delta()

    def round(self) -> PlanDelta:
        """Let clusters look for one to merge with, and topics for a cluster, now."""
        self._check_fitted()
        self._protocol.round()
        return self._delta()

    @property
    def plan_(self) -> ChannelPlan:
        """The plan as it is now."""
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
        """Who wants what by now, with the rates that the channels believe in."""
        system = self._protocol.system
        bits = np.unpackbits(system.peers.interests.words.view(np.uint8), axis=1, bitorder="little")
        wants = np.empty((len(self.subscribers_), len(self.flows_)), np.bool_)
        wants[self._at] = bits[: len(self.subscribers_), : len(self.flows_)]
        rate = np.array([topic.frequency for topic in system.topics]) / self.interval
        return Interest(wants, rate, self.subscribers_, self.flows_)

    @property
    def cost_(self) -> float:
        """What channels and events cost by now (OC), kept up to date change by change."""
        return self._protocol.system.account.total

    @property
    def messages_(self) -> dict[str, int]:
        """Messages sent so far, by kind: see `exchange`."""
        return dict(self._protocol.exchange.sent)

    @property
    def updates_(self) -> dict[str, int]:
        """Changes of clusters so far, by kind."""
        return dict(self._protocol.system.updates)

    def _admit(self, count: int) -> None:
        """Add subscribers, who are numbered as they come."""
        self._protocol.system.admit(count)
        self._at = np.append(self._at, np.arange(len(self._at), len(self._at) + count))

    def _check_fitted(self) -> None:
        if not hasattr(self, "_protocol"):
            raise ParameterError("there is no plan to update yet; call fit with the first interest")

    def _pass(self, seconds: float) -> None:
        """Let time pass, with the rounds that are due meanwhile."""
        if self._time is None:
            self._time = seconds
        while seconds - self._time >= self.period:
            before = self.updates_
            self._protocol.round()
            settled = self.updates_ == before
            # After a round without an update the next would do the same, but for samples.
            self._time += self.period * ((seconds - self._time) // self.period if settled else 1)

    def _create(self, count: int) -> None:
        """Add flows, of rate 1 until they are observed."""
        self._protocol.system.create([self.interval] * count)

    def _numbers(
        self, labels: Labels, adding: Labels, known: dict[Any, int], name: str, more: Callable[[int], None]
    ) -> Positions:
        """Return labels as numbers, -1 where they are not known; of those to be added, new ones are."""
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
        """Return what has changed since this was last asked for."""
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
    """Tamara with a check of all clusters and members in every round.

    Every cluster takes one sample of its members and drops each topic that no longer pays; and a member
    leaves a cluster when what it needs from it alone is cheaper directly.

    Examples
    --------
    >>> interest = Interest([[1, 1, 0], [1, 1, 0], [1, 1, 0], [1, 1, 1]], rate=[1e-4, 1e-4, 1.0])
    >>> TamaraTidy().fit(interest).plan_.members().tolist()
    [4, 1]
    """

    tidy = True


def _check_number(name: str, value: float, *, most: float = math.inf) -> None:
    """Refuse what is no finite number above 0, or too large."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not 0 < value < most:
        limit = "" if most == math.inf else f" and below {most:g}"
        raise ParameterError(f"{name} is {value!r}; give a number above 0{limit}")


def _order(interest: Interest, rng: np.random.Generator) -> Positions:
    """Return an order of subscribers by chance that does not hang on how they are numbered.

    They are brought into an order by what they want, and only then drawn: who wants the same is the same.
    """
    weight = rng.integers(0, 2**63, interest.n_flows, dtype=np.uint64)
    by_wants = np.argsort(np.asarray(interest.wants.astype(np.uint64) @ weight), kind="stable")
    found: Positions = by_wants[rng.permutation(interest.n_subscribers)]
    return found


def _relation(parts: Iterable[tuple[Positions, int]], shape: tuple[int, int]) -> Relation:
    """Return the relation of rows to one column after the other."""
    parts = list(parts)
    rows = np.concatenate([np.zeros(0, np.int64), *(rows for rows, _ in parts)])
    columns = np.repeat([column for _, column in parts], [len(rows) for rows, _ in parts]) if parts else rows
    return relation_of(rows, columns, shape)


def _as(labels: Labels, like: Labels, what: str) -> Labels:
    """Return labels in the type of others, or say that they are of another kind."""
    text = pa.types.is_string(like.type) or pa.types.is_large_string(like.type)
    if not len(like) or not len(labels):
        return labels
    if text != (pa.types.is_string(labels.type) or pa.types.is_large_string(labels.type)):
        raise TableError(f"{what} is {labels.type} in this table and {like.type} in the plan; use the same")
    try:
        return labels.cast(like.type)
    except pa.ArrowException as error:
        raise TableError(f"{what} does not fit the labels of the plan: {error}") from error
