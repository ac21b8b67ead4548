"""What it takes receivers to sort out the messages that reach them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np
import pyarrow as pa

from narrowcast.errors import ParameterError
from narrowcast.model.cost import Cost
from narrowcast.model.labels import encode, positions
from narrowcast.model.plan import BLOCK
from narrowcast.model.relation import relation_of, rows_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filtering:
    """The work of receivers per second (tock2005, equations 1 to 4).

    A receiver looks at every message of the groups it is a member of, to see which session it is of; that
    costs `alpha` each. It looks at every message of the sessions it listens to, to see which flow it is of;
    that costs `beta` each. What is sent directly is wanted, and costs both once. In a plan of one level each
    channel is a group and its only session.

    The terms: `groups`, the first of these (C1 in the paper); `sessions`, the second (C2); `direct`; `ideal`,
    what it costs to get what is wanted and nothing else; `excess`, the total less the ideal (Cx); and
    `everything`, what one subscriber who gets every wanted flow costs. From the last follows what flooding
    costs in excess (Cf), and from that how much of it a plan is left with: `share`.

    Parameters
    ----------
    alpha
        The cost of a message of a group that one is a member of: finite, at least 0.
    beta
        The cost of a message of a session that one listens to: finite, at least 0.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> from narrowcast.model.plan import ChannelPlan
    >>> interest = Interest([[1, 1], [0, 1]], rate=[3.0, 10.0])
    >>> two = ChannelPlan(carries=[[0, 1, 0], [0, 0, 1]], listens=[[0, 1, 1], [0, 0, 1]], parent=[-1, 0, 0])
    >>> cost = Filtering(alpha=1, beta=2).score(interest, two)
    >>> cost.total, cost.terms["groups"], cost.terms["sessions"], cost.terms["excess"]
    (72.0, 26.0, 46.0, 3.0)
    >>> Filtering.share(cost, n_subscribers=2)  # flooding would cost 3 + 6 in excess
    0.3333333333333333
    """

    alpha: float = 1.0
    beta: float = 1.0

    #: Each term is a sum over flows, and a flow that the interest does not know has rate 0.
    additive = True

    def __post_init__(self) -> None:
        _check("alpha", self.alpha)
        _check("beta", self.beta)

    @classmethod
    def at(cls, h: float, *, alpha: tuple[float, float], beta: tuple[float, float]) -> Self:
        """Return the model for h messages to a packet: alpha(h) = a0 + a1 / h, and beta(h) alike.

        Parameters
        ----------
        h
            How many messages a packet has on average: at least 1.
        alpha, beta
            The cost of a message as such, and that of a packet.

        Examples
        --------
        >>> Filtering.at(10, alpha=(0.5, 2.0), beta=(1.0, 4.0))
        Filtering(alpha=0.7, beta=1.4)
        """
        if not _number(h) or not 1 <= h < math.inf:
            raise ParameterError(f"h is {h!r}; give how many messages a packet has: a number, at least 1")
        return cls(alpha=alpha[0] + alpha[1] / h, beta=beta[0] + beta[1] / h)

    def score(self, interest: Interest, plan: ChannelPlan) -> Cost:
        """Return what a plan costs; its flows that the interest does not know have rate 0."""
        members = plan.members()
        place = positions("flow", interest.flows, plan.flows)
        direct, in_sessions, in_groups = (
            np.where(place >= 0, np.append(copies, 0)[place], 0)
            for copies in (
                np.bincount(plan.unicast.indices, minlength=plan.n_flows),
                np.asarray(plan.carries @ members),
                np.asarray(plan.carries @ members[plan.groups()]),
            )
        )
        audience, rate = interest.audience(), interest.rate
        groups, sessions = self.alpha * float(rate @ in_groups), self.beta * float(rate @ in_sessions)
        sent = (self.alpha + self.beta) * float(rate @ direct)
        # Copies are whole numbers, so that a plan without excess has exactly 0.
        excess = self.alpha * float(rate @ (in_groups + direct - audience))
        excess += self.beta * float(rate @ (in_sessions + direct - audience))
        return self._cost(interest, groups, sessions, sent, excess)

    def ideal(self, interest: Interest) -> Cost:
        """Return the cost of groups and sessions that bring everybody what they want and nothing else."""
        wanted = float(interest.rate @ interest.audience())
        return self._cost(interest, self.alpha * wanted, self.beta * wanted, 0.0, 0.0)

    def flooding(self, interest: Interest) -> float:
        """Return what it costs in excess when everybody who wants something gets every wanted flow (Cf).

        Examples
        --------
        >>> from narrowcast.model.interest import Interest
        >>> Filtering().flooding(Interest([[1, 1, 0], [0, 1, 0]], rate=[3.0, 10.0, 99.0]))
        6.0
        """
        audience = interest.audience()
        unwanted = np.where(audience > 0, receivers(interest) - audience, 0)
        return (self.alpha + self.beta) * float(interest.rate @ unwanted)

    @staticmethod
    def share(cost: Cost, n_subscribers: int) -> float:
        """Return the excess of a cost as a share of that of flooding: Cx / Cf, 0 where there is none.

        Parameters
        ----------
        cost
            As `score` returns it.
        n_subscribers
            How many subscribers flooding reaches: those who want something, or all that there are.
        """
        everything, ideal = n_subscribers * cost.terms["everything"], cost.terms["ideal"]
        flooding = everything - ideal
        # Sums that differ by less than this share differ by rounding only.
        return 0.0 if flooding <= 1e-12 * abs(everything) else cost.terms["excess"] / flooding

    @staticmethod
    def multiplicity(interest: Interest) -> float:
        """Return how many copies of a message unicast sends on average; 0 where nothing is sent.

        Examples
        --------
        >>> from narrowcast.model.interest import Interest
        >>> interest = Interest([[1, 1, 0], [0, 1, 0]], rate=[3.0, 7.0, 99.0])
        >>> Filtering.multiplicity(interest), Filtering.goodput(interest)
        (1.7, 0.85)
        """
        audience = interest.audience()
        sent = float(interest.rate @ (audience > 0))
        return float(interest.rate @ audience) / sent if sent else 0.0

    @staticmethod
    def goodput(interest: Interest) -> float:
        """Return the share of what flooding brings to receivers that they want; 0 where nothing is sent."""
        return Filtering.multiplicity(interest) / max(1, receivers(interest))

    def per_subscriber(self, interest: Interest, plan: ChannelPlan) -> pa.Table:
        """Return what each subscriber pays, in the order of labels; those of the plan alone pay, too.

        The columns: `subscriber`, `groups`, `sessions`, `direct`, `ideal` and `excess`; each adds up to the
        term of `score`.
        """
        labels, [wants, hears] = encode("subscriber", interest.subscribers, plan.subscribers)
        rates = plan.rates(interest)
        joined = relation_of(rows_of(plan.listens), plan.groups()[plan.listens.indices], plan.listens.shape)
        found = {name: np.zeros(len(labels)) for name in ("groups", "sessions", "direct", "ideal")}
        both = self.alpha + self.beta
        found["groups"][hears] = self.alpha * np.asarray(joined @ rates)
        found["sessions"][hears] = self.beta * np.asarray(plan.listens @ rates)
        found["direct"][hears] = both * np.asarray(plan.unicast @ plan.rate_of_flows(interest))
        found["ideal"][wants] = both * np.asarray(interest.wants @ interest.rate)
        excess = found["groups"] + found["sessions"] + found["direct"] - found["ideal"]
        return pa.table({"subscriber": labels, **found, "excess": excess})

    def per_channel(self, interest: Interest, plan: ChannelPlan) -> pa.Table:
        """Return what each channel costs its members.

        The columns: `channel`, `parent` (null for a group), `members`, `rate`, `wanted` (messages per second
        that members want, each of them once), `groups`, `sessions` and `excess`. `groups` and `sessions` add
        up to the terms of `score`; so does `excess`, where everybody gets everything from one place.
        """
        members, rates = plan.members(), plan.rates(interest)
        wanted = _wanted(interest, plan)
        session = plan.parent >= 0
        wanted += np.bincount(plan.parent[session], wanted[session], plan.n_channels)
        parents = np.zeros(plan.n_channels, np.bool_)
        parents[plan.parent[session]] = True
        alpha, beta = np.where(session, 0.0, self.alpha), np.where(parents, 0.0, self.beta)
        return pa.table(
            {
                "channel": np.arange(plan.n_channels, dtype=np.int32),
                "parent": pa.array(plan.parent, mask=~session),
                "members": members,
                "rate": rates,
                "wanted": wanted,
                "groups": alpha * members * rates,
                "sessions": beta * members * rates,
                "excess": (alpha + beta) * (members * rates - wanted),
            }
        )

    def _cost(self, interest: Interest, groups: float, sessions: float, direct: float, excess: float) -> Cost:
        """Return a cost with its terms."""
        audience, both = interest.audience(), self.alpha + self.beta
        terms = {"groups": groups, "sessions": sessions, "direct": direct, "excess": excess}
        terms["ideal"] = both * float(interest.rate @ audience)
        terms["everything"] = both * float(interest.rate @ (audience > 0))
        return Cost(groups + sessions + direct, terms)


def receivers(interest: Interest) -> int:
    """Return how many subscribers want something."""
    return int(np.count_nonzero(np.diff(interest.wants.indptr)))


def _wanted(interest: Interest, plan: ChannelPlan) -> Doubles:
    """Return the messages per second of each channel that its listeners want."""
    subscriber = positions("subscriber", interest.subscribers, plan.subscribers)
    flow = positions("flow", interest.flows, plan.flows)
    wants, found = interest.wants, np.zeros(plan.n_channels)
    for start in range(0, interest.n_wants, BLOCK):
        pair = np.arange(start, min(start + BLOCK, interest.n_wants))
        row, column = np.searchsorted(wants.indptr, pair, side="right") - 1, wants.indices[pair]
        for some, channel in plan.channels_reaching(subscriber[row], flow[column]):
            found += np.bincount(channel, interest.rate[column[some]], plan.n_channels)
    return found


def _number(value: object) -> bool:
    """Return whether a value is a number."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _check(name: str, value: float) -> None:
    """Refuse a cost of a message that is not a finite number, at least 0."""
    if not _number(value) or not 0 <= value < math.inf:
        raise ParameterError(f"{name} is {value!r}; give what a message costs: a finite number, at least 0")
