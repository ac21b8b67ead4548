"""News feeds as flows, and readers who come and change their minds: a workload of tamara2007."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from narrowcast.errors import ParameterError
from narrowcast.model.interest import Interest
from narrowcast.model.relation import relation_of, rows_of
from narrowcast.validation import check_seed
from narrowcast.workloads.base import BaseWorkload, check_count, random_streams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from narrowcast.model.relation import Relation

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]

#: How interests are drawn.
Interests = Literal["clustered", "uniform"]
#: How frequent events are.
Model = Literal["average", "frequent", "infrequent"]
#: How new interests are drawn, if there are any.
Shift = Literal["none", "clustered", "uniform"]

#: Table 1 of the seed: bands of events per interval, each with the share of flows in it. It prints the first
#: band as 0.6-0.6; its Tables 2 and 3 speak for 0.4-0.6.
MODELS: dict[str, tuple[tuple[float, float, float], ...]] = {
    "average": (
        (0.4, 0.6, 0.15),
        (0.2, 0.4, 0.05),
        (0.1, 0.2, 0.25),
        (0.02, 0.1, 0.45),
        (0.002, 0.02, 0.1),
    ),
    "frequent": ((1.0, 3.0, 0.05), (0.5, 1.0, 0.2), (0.1, 0.5, 0.5), (0.01, 0.1, 0.2), (0.001, 0.01, 0.05)),
    "infrequent": ((0.1, 0.2, 0.1), (0.01, 0.1, 0.4), (0.001, 0.01, 0.5)),
}
#: The standard deviation of how many flows a subscriber wants.
SPREAD = 2.0
#: The longest time that changes can be spread over: a hundred years.
LONGEST = 36_525.0

_DAY = 86_400.0
#: Random numbers that are looked at in one go: it bounds the memory.
_BLOCK = 1 << 21
#: Sources of chance that interests are drawn from.
_DRAWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Feeds(BaseWorkload):
    """Interest in feeds, in groups or not, and how it arises and changes (tamara2007, section 5.2).

    Flows are split at random into groups of about the same size. A subscriber has some home groups, wants
    each flow of these with chance `p_in`, and flows outside of them, each as likely as the other, until
    there are as many as a normal distribution says. One who already wants more at home has just these. With
    `uniform` there are no groups, and all flows are as likely.

    Without a shift subscribers arrive one after the other, in random order, and subscribe to their flows in
    random order. With a shift they are there already, and one after the other takes up interests that are
    drawn anew, with new groups: a flow is given up and another subscribed to, in turn, until the rest of
    either is done alone. A flow in the old and the new interests is left alone.

    Parameters
    ----------
    n_subscribers
        How many subscribers there are. More of them leave the interests of those before as they were.
    n_flows
        How many flows there are.
    interests
        Whether interests come in groups (`clustered`) or not (`uniform`).
    groups
        How many groups of flows there are.
    home
        How many of them are home to a subscriber.
    p_in
        The chance that a flow of a home group is wanted.
    wanted
        How many flows a subscriber wants: the mean of a normal distribution with standard deviation 2.
    model
        How frequent events are: `average`, `frequent` or `infrequent`. The share of flows in each band of
        frequencies is exact, as far as flows are whole.
    interval
        The seconds that a frequency is about.
    days
        How long the changes take; they are spread evenly, from 1970-01-01 on.
    shift
        How the interests are drawn that everybody changes to: `clustered` or `uniform`; or `none`.
    rates_shift
        Whether halfway through the flows trade their frequencies, at random.
    seed
        What all random choices come from.

    Examples
    --------
    >>> feeds = Feeds(n_subscribers=4, seed=1)
    >>> feeds.interest()
    Interest(4 subscribers, 120 flows, 100 wants)
    >>> {name: table.num_rows for name, table in feeds.tables().items()}
    {'interests': 100, 'rates': 120, 'changes': 100}
    >>> Feeds(n_subscribers=4, shift="uniform", seed=1).tables()["changes"]["action"][:3].to_pylist()
    ['unsubscribe', 'subscribe', 'unsubscribe']
    """

    #: The tables that there are: other workloads make subscriptions and events.
    makes: ClassVar[tuple[str, ...]] = ("interests", "rates", "changes")

    n_subscribers: int = 3000
    n_flows: int = 120
    interests: Interests = "clustered"
    groups: int = 10
    home: int = 2
    p_in: float = 0.9
    wanted: float = 25.0
    model: Model = "average"
    interval: float = 360.0
    days: float = 61.0
    shift: Shift = "none"
    rates_shift: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("n_subscribers", "n_flows", "groups", "home"):
            check_count(name, getattr(self, name))
        for name in ("n_flows", "groups", "home"):
            if getattr(self, name) < 1:
                raise ParameterError(f"{name} is {getattr(self, name)}; give at least 1")
        for name, known in (("interests", Interests), ("model", Model), ("shift", Shift)):
            if getattr(self, name) not in get_args(known):
                choice = ", ".join(get_args(known))
                raise ParameterError(f"{name} is {getattr(self, name)!r}; give one of {choice}")
        if "clustered" in (self.interests, self.shift):
            if self.groups > self.n_flows:
                raise ParameterError(
                    f"groups is {self.groups} and there are {self.n_flows} flows; give {self.n_flows} at most"
                )
            if self.home > self.groups:
                raise ParameterError(
                    f"home is {self.home} and there are {self.groups} groups; give {self.groups} at most"
                )
        check_number("p_in", self.p_in, 0, 1)
        check_number("wanted", self.wanted, 0, self.n_flows)
        check_number("interval", self.interval, 0, np.inf, above=True)
        check_number("days", self.days, 0, LONGEST, above=True)
        if not isinstance(self.rates_shift, bool | np.bool_):
            raise ParameterError(f"rates_shift is {self.rates_shift!r}; give true or false")
        check_seed(self.seed)

    def tables(self) -> dict[str, pa.Table]:
        """Return `interests` (subscriber, flow), `rates` (flow, rate) and `changes`, in the order of time.

        Without a shift `interests` is what the changes come to; with one, what holds before them. `changes`
        has time, subscriber, flow and action. When frequencies change, `rates` has a `time` as well, and two
        rows for each flow.
        """
        before, after = self._states()
        users, flows = self._streams()[3:5]
        interests, rates = self._first(before, after).to_tables()
        if self.rates_shift:
            start, middle = (times_at(np.full(self.n_flows, day)) for day in (0, self.days / 2))
            rates = pa.concat_tables(
                [
                    rates.append_column("time", start),
                    after.to_tables()[1].append_column("time", middle),
                ]
            )
        return {
            "interests": interests,
            "rates": rates,
            "changes": changes_between(before, after, self.days, users=users, flows=flows),
        }

    def interest(self) -> Interest:
        """Return what `interests` says, with the rates at the beginning."""
        return self._first(*self._states())

    def later(self) -> Interest:
        """Return the interest after all changes, with the rates at the end."""
        return self._states()[1]

    def frequencies(self) -> Doubles:
        """Return the events per interval of each flow, at the beginning.

        Examples
        --------
        >>> frequency = Feeds(model="infrequent").frequencies()
        >>> np.histogram(frequency, [0.001, 0.01, 0.1, 0.2])[0].tolist()
        [60, 48, 12]
        """
        value, order = self._streams()[:2]
        low, high, share = np.array(MODELS[self.model]).T
        ends = np.rint(np.cumsum(share) * self.n_flows).astype(np.int64)
        band = order.permutation(np.repeat(np.arange(len(share)), np.diff(ends, prepend=0)))
        return np.asarray(low[band] + (high - low)[band] * value.random(self.n_flows))

    def planted(self) -> Ints:
        """Return the group of each flow that interests come in at the beginning, where they do.

        Examples
        --------
        >>> np.bincount(Feeds(seed=1).planted()).tolist()
        [12, 12, 12, 12, 12, 12, 12, 12, 12, 12]
        """
        plant = self._streams()[-2 * _DRAWN]
        return plant.permutation(np.arange(self.n_flows) % self.groups)

    def _first(self, before: Interest, after: Interest) -> Interest:
        """Return the first interest that is not empty, with the rates at the beginning."""
        wants = after.wants if self.shift == "none" else before.wants
        return Interest(wants, before.rate, before.subscribers, before.flows)

    def _states(self) -> tuple[Interest, Interest]:
        """Return the interest before and after the changes, each with the rates of its time."""
        streams, rate = self._streams(), self.frequencies() / self.interval
        wants = self._wants(self.interests, streams[-2 * _DRAWN : -_DRAWN])
        if self.shift == "none":
            before, after = sparse.csr_array(wants.shape, dtype=np.bool_), wants
        else:
            before, after = wants, self._wants(self.shift, streams[-_DRAWN:])
        then = streams[2].permutation(rate) if self.rates_shift else rate
        who, what = (np.arange(count, dtype=np.int32) for count in wants.shape)
        return Interest(before, rate, who, what), Interest(after, then, who, what)

    def _wants(self, kind: str, streams: Sequence[np.random.Generator]) -> Relation:
        """Draw who wants what. Each subscriber has its own numbers of every stream, whoever comes after."""
        plant, homes, inside, totals, noise = streams
        shape = (self.n_subscribers, self.n_flows)
        group = plant.permutation(np.arange(self.n_flows) % self.groups)
        rows, columns = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        step = max(1, _BLOCK // self.n_flows)
        for start in range(0, self.n_subscribers, step):
            size = min(step, self.n_subscribers - start)
            own = np.zeros((size, self.groups), np.bool_)
            if kind == "clustered":
                chosen = np.argsort(homes.random(own.shape), axis=1)[:, : self.home]
                np.put_along_axis(own, chosen, True, axis=1)
            at_home = own[:, group]
            sure = at_home & (inside.random(at_home.shape) < self.p_in)
            least = sure.sum(axis=1)
            total = np.rint(totals.normal(self.wanted, SPREAD, size)).astype(np.int64)
            count = np.clip(total, least, least + (~at_home).sum(axis=1))
            turn = noise.random(at_home.shape)
            turn[at_home] = 2
            turn[sure] = -1
            most = int(count.max())
            first = np.argpartition(turn, most - 1, axis=1)[:, :most]
            order = np.take_along_axis(first, np.argsort(np.take_along_axis(turn, first, 1), axis=1), 1)
            row, place = np.nonzero(np.arange(most) < count[:, None])
            rows.append(row + start)
            columns.append(order[row, place])
        return relation_of(np.concatenate(rows), np.concatenate(columns), shape)

    def _streams(self) -> list[np.random.Generator]:
        """Return a source of chance each for all that is drawn.

        Frequencies, their order, and how they are traded; the order of subscribers, and of their flows; and
        what the first and the second interests are drawn from.
        """
        return random_streams(self.seed, 5 + 2 * _DRAWN)


def check_number(name: str, value: float, low: float, high: float, *, above: bool = False) -> None:
    """Refuse what is no number from `low` to `high`; with `above`, `low` itself and infinity as well.

    Examples
    --------
    >>> check_number("share", 2, 0, 1)
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: share is 2; give a number from 0 to 1
    """
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if number and np.isfinite(value) and low <= value <= high and not (above and value == low):
        return
    limit = "" if np.isinf(high) else f" to {high:,.10g}" if not above else f" and up to {high:,.10g}"
    raise ParameterError(f"{name} is {value!r}; give a number {'above' if above else 'from'} {low:g}{limit}")


def times_at(days: Doubles) -> pa.Array:
    """Return the instants so many days after the beginning of 1970, in UTC."""
    return pa.array(np.rint(days * (_DAY * 1e6)).astype(np.int64), pa.timestamp("us", "UTC"))


def changes_between(
    before: Interest, after: Interest, days: float, *, users: np.random.Generator, flows: np.random.Generator
) -> pa.Table:
    """Return `changes` (time, subscriber, flow, action) that turn one interest into another.

    One subscriber after the other gives up a flow and subscribes to another, in turn, until the rest of
    either is done alone; what is wanted before and after is left alone.

    Parameters
    ----------
    before, after
        The interests, over the same subscribers and flows.
    days
        How long the changes take, spread evenly from the beginning of 1970.
    users, flows
        What the order of subscribers, and that of the flows of each, come from.

    Examples
    --------
    >>> one, two = Interest([[1, 1, 0, 0]]), Interest([[0, 1, 1, 1]])
    >>> rng = np.random.default_rng(0)
    >>> changes = changes_between(one, two, 3.0, users=rng, flows=rng)
    >>> changes["action"].to_pylist(), changes["time"][2].as_py().day
    (['unsubscribe', 'subscribe', 'subscribe'], 3)
    """
    n_flows = before.n_flows
    old, new = (rows_of(each.wants) * n_flows + each.wants.indices for each in (before, after))
    turn = users.permutation(before.n_subscribers)
    code, place = [], []
    for first, pairs in enumerate((np.setdiff1d(old, new, True), np.setdiff1d(new, old, True))):
        pairs = pairs[np.lexsort((flows.random(len(pairs)), turn[pairs // n_flows]))]
        who = turn[pairs // n_flows]
        count = np.bincount(who, minlength=len(turn))
        code.append(pairs)
        place.append(2 * (np.arange(len(pairs)) - (np.cumsum(count) - count)[who]) + first)
    pairs, step = np.concatenate(code), np.concatenate(place)
    order = np.lexsort((step, turn[pairs // n_flows]))
    pairs, joins = pairs[order], step[order] % 2 == 1
    return pa.table(
        {
            "time": times_at(np.arange(len(pairs), dtype=np.float64) * (days / max(1, len(pairs)))),
            "subscriber": after.subscribers.take(pa.array(pairs // n_flows)),
            "flow": after.flows.take(pa.array(pairs % n_flows)),
            "action": pc.if_else(pa.array(joins), "subscribe", "unsubscribe"),
        }
    )
