"""News feeds as flows, and readers whose interests change over time (tamara2007, section 5.2)."""

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
from narrowcast.validation import check_choice, check_flag, check_seed
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
#: How the new interests after a shift are drawn; `none` for no shift.
Shift = Literal["none", "clustered", "uniform"]

#: Table 1 of the paper: bands of events per interval, each with the share of flows in it. The paper prints
#: the first band as 0.6-0.6; its Tables 2 and 3 agree with 0.4-0.6.
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
#: Standard deviation of the number of flows that a subscriber wants.
SPREAD = 2.0
#: The longest period of changes, in days: a hundred years.
MAX_DAYS = 36_525.0

_DAY = 86_400.0
#: Random numbers processed at once; bounds the memory.
_BLOCK = 1 << 21
#: Random generators that one set of interests is drawn from.
_INTEREST_STREAMS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Feeds(BaseWorkload):
    """Interest in feeds, clustered or uniform, as a log of subscriptions (tamara2007, section 5.2).

    Flows are split at random into groups of about equal size. A subscriber has `home` home groups and wants
    each flow of these with probability `p_in`. Flows outside the home groups are added uniformly at random
    until the total reaches a draw from a normal distribution; none are added if the home groups alone
    exceed it. With `uniform` there are no groups, and all flows are equally likely.

    Without a shift, subscribers arrive one after the other in random order and subscribe to their flows in
    random order. With a shift, all subscribers are present from the start and switch one after the other to
    new interests, drawn with new groups: a subscriber alternates between unsubscribing from an old flow and
    subscribing to a new one until either list is exhausted, then works off the other. Flows that are in the
    old and in the new interests are not touched.

    Parameters
    ----------
    n_subscribers
        Number of subscribers. A larger number does not change the interests of the first subscribers.
    n_flows
        Number of flows, at least 1.
    interests
        Whether interests are clustered in groups (`clustered`) or not (`uniform`).
    groups
        Number of groups of flows, at most `n_flows`.
    home
        Number of home groups of a subscriber, at most `groups`.
    p_in
        Probability that a subscriber wants a flow of a home group, from 0 to 1.
    wanted
        Number of flows that a subscriber wants: the mean of a normal distribution with standard deviation 2.
    model
        How frequent events are: `average`, `frequent` or `infrequent`. The share of flows in each band of
        frequencies is exact up to rounding to whole flows.
    interval
        Length in seconds of the interval that frequencies refer to (events per interval).
    days
        Number of days over which the changes are spread evenly, starting on 1970-01-01; above 0 and at most
        a hundred years.
    shift
        How the new interests that all subscribers switch to are drawn: `clustered` or `uniform`; `none` for
        no switch.
    rates_shift
        Whether the frequencies are permuted among the flows, at random, after half of the days.
    seed
        Seed of all random choices, at least 0.

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

    #: Unlike other workloads, this one generates no subscriptions and events.
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
            check_count(name, getattr(self, name), 0 if name == "n_subscribers" else 1)
        for name, known in (("interests", Interests), ("model", Model), ("shift", Shift)):
            check_choice(name, getattr(self, name), get_args(known))
        if "clustered" in (self.interests, self.shift):
            for name, most in (("groups", self.n_flows), ("home", self.groups)):
                if getattr(self, name) > most:
                    limit = f"at most {most}, the number of {'flows' if name == 'groups' else 'groups'}"
                    raise ParameterError(parameter=name, value=getattr(self, name), limit=limit)
        check_number("p_in", self.p_in, 0, 1)
        check_number("wanted", self.wanted, 0, self.n_flows)
        check_number("interval", self.interval, 0, np.inf, above=True)
        check_number("days", self.days, 0, MAX_DAYS, above=True)
        check_flag("rates_shift", self.rates_shift)
        check_seed(self.seed)

    def tables(self) -> dict[str, pa.Table]:
        """Return `interests` (subscriber, flow), `rates` (flow, rate) and `changes`, ordered by time.

        Without a shift, `interests` is the state after all changes; with one, the state before them.
        `changes` has the columns time, subscriber, flow and action. With `rates_shift`, `rates` also has a
        `time` and two rows per flow.
        """
        before, after = self._states()
        users, flows = self._streams()[3:5]
        interests, rates = self._initial(before, after).to_tables()
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
        """Return the interest of the table `interests`, with the rates at the beginning."""
        return self._initial(*self._states())

    def later(self) -> Interest:
        """Return the interest after all changes, with the rates at the end.

        Without a shift it differs from `interest` at most in the rates.
        """
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
        """Return the group number of each flow for the interests at the beginning (with `clustered`).

        Examples
        --------
        >>> np.bincount(Feeds(seed=1).planted()).tolist()
        [12, 12, 12, 12, 12, 12, 12, 12, 12, 12]
        """
        groups = self._streams()[-2 * _INTEREST_STREAMS]
        return groups.permutation(np.arange(self.n_flows) % self.groups)

    def _initial(self, before: Interest, after: Interest) -> Interest:
        """Return the first interest that is not empty, with the rates at the beginning."""
        wants = after.wants if self.shift == "none" else before.wants
        return Interest(wants, before.rate, before.subscribers, before.flows)

    def _states(self) -> tuple[Interest, Interest]:
        """Return the interest before and after the changes, each with the rates of its time."""
        streams, rate = self._streams(), self.frequencies() / self.interval
        wants = self._wants(self.interests, streams[-2 * _INTEREST_STREAMS : -_INTEREST_STREAMS])
        if self.shift == "none":
            before, after = sparse.csr_array(wants.shape, dtype=np.bool_), wants
        else:
            before, after = wants, self._wants(self.shift, streams[-_INTEREST_STREAMS:])
        rate_after = streams[2].permutation(rate) if self.rates_shift else rate
        subscribers, flows = (np.arange(count, dtype=np.int32) for count in wants.shape)
        return Interest(before, rate, subscribers, flows), Interest(after, rate_after, subscribers, flows)

    def _wants(self, kind: str, streams: Sequence[np.random.Generator]) -> Relation:
        """Draw the flows of all subscribers, `kind` being `clustered` or `uniform`.

        A subscriber's random numbers do not depend on the number of subscribers after it.
        """
        groups, homes, inside, totals, noise = streams
        shape = (self.n_subscribers, self.n_flows)
        group = groups.permutation(np.arange(self.n_flows) % self.groups)
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
        """Return one random generator per purpose.

        In order: frequencies, their order and their later permutation; the order of subscribers and that of
        their flows; then five generators each for the first and the second interests.
        """
        return random_streams(self.seed, 5 + 2 * _INTEREST_STREAMS)


def check_number(name: str, value: float, low: float, high: float, *, above: bool = False) -> None:
    """Raise a `ParameterError` unless a value is a finite number from `low` to `high`.

    With `above`, `low` itself is refused too.

    Examples
    --------
    >>> check_number("share", 2, 0, 1)
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: share=2: must be a number from 0 to 1
    """
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if number and np.isfinite(value) and low <= value <= high and not (above and value == low):
        return
    upper = "" if np.isinf(high) else f" to {high:,.10g}" if not above else f" and at most {high:,.10g}"
    limit = f"a number {'above' if above else 'from'} {low:g}{upper}"
    raise ParameterError(parameter=name, value=value, limit=limit)


def times_at(days: Doubles) -> pa.Array:
    """Return timestamps in UTC from numbers of days since 1970-01-01."""
    return pa.array(np.rint(days * (_DAY * 1e6)).astype(np.int64), pa.timestamp("us", "UTC"))


def changes_between(
    before: Interest, after: Interest, days: float, *, users: np.random.Generator, flows: np.random.Generator
) -> pa.Table:
    """Return a table (time, subscriber, flow, action) of changes that turn one interest into another.

    Subscribers change one after the other. Each alternates between unsubscribing from an old flow and
    subscribing to a new one until either list is exhausted, then works off the other. Flows wanted before
    and after are not touched.

    Parameters
    ----------
    before, after
        The interests, over the same subscribers and flows.
    days
        Number of days over which the changes are spread evenly, starting on 1970-01-01.
    users, flows
        Random generators of the order of subscribers and of the order of the flows of each.

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
        owner = turn[pairs // n_flows]
        count = np.bincount(owner, minlength=len(turn))
        code.append(pairs)
        place.append(2 * (np.arange(len(pairs)) - (np.cumsum(count) - count)[owner]) + first)
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
