"""The filtering cost: the work of receivers to sort the messages that reach them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np
import pyarrow as pa

from narrowcast.model.cost import Cost
from narrowcast.model.labels import encode, positions
from narrowcast.model.plan import BLOCK
from narrowcast.model.relation import relation_of, rows_of
from narrowcast.validation import check_number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filtering:
    """The work of receivers per second (tock2005, equations 1 to 4).

    A receiver inspects every message of the groups that it is a member of, to find its session; each costs
    `alpha`. It inspects every message of the sessions that it listens to, to find its flow; each costs
    `beta`. A message sent directly is wanted and costs both once. In a plan of one level each channel is a
    group with one session.

    The terms: `groups`, the cost of inspecting group messages (C1 in the paper); `sessions`, that of session
    messages (C2); `direct`; `ideal`, the cost of receiving exactly what is wanted; `excess`, the total less
    the ideal (Cx); and `everything`, the cost of one subscriber that receives every wanted flow. The last
    gives the excess cost of flooding (Cf), and the excess of a plan as a share of it: `share`.

    Parameters
    ----------
    alpha
        Cost of inspecting a message of a joined group: finite, at least 0.
    beta
        Cost of inspecting a message of a session listened to: finite, at least 0.

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

    #: Each term is a sum over flows, and a flow that the interest does not have counts with rate 0.
    additive = True

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            check_number(name, getattr(self, name), least=0, limit="a finite number of at least 0")

    @classmethod
    def at(cls, h: float, *, alpha: tuple[float, float], beta: tuple[float, float]) -> Self:
        """Return the model at h messages per packet: alpha(h) = a0 + a1 / h, and beta(h) alike.

        Parameters
        ----------
        h
            Messages per packet on average: at least 1.
        alpha, beta
            The cost per message and the cost per packet, as (a0, a1).

        Examples
        --------
        >>> Filtering.at(10, alpha=(0.5, 2.0), beta=(1.0, 4.0))
        Filtering(alpha=0.7, beta=1.4)
        """
        check_number("h", h, least=1, limit="a finite number of messages per packet, at least 1")
        return cls(alpha=alpha[0] + alpha[1] / h, beta=beta[0] + beta[1] / h)

    def score(self, interest: Interest, plan: ChannelPlan) -> Cost:
        """Return the filtering cost of a plan; flows that only the plan has count with rate 0."""
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
        # Copies are integers, so that a plan without excess has exactly 0.
        excess = self.alpha * float(rate @ (in_groups + direct - audience))
        excess += self.beta * float(rate @ (in_sessions + direct - audience))
        return self._cost(interest, groups, sessions, sent, excess)

    def ideal(self, interest: Interest) -> Cost:
        """Return the cost when each subscriber receives exactly what it wants."""
        wanted = float(interest.rate @ interest.audience())
        return self._cost(interest, self.alpha * wanted, self.beta * wanted, 0.0, 0.0)

    def flooding(self, interest: Interest) -> float:
        """Return the excess cost of flooding: each subscriber with any interest gets every wanted flow (Cf).

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
        """Return the excess of a cost as a share of that of flooding: Cx / Cf; 0 where flooding has none.

        Parameters
        ----------
        cost
            A cost that `score` returned.
        n_subscribers
            Subscribers that flooding reaches: those with any interest, or all.
        """
        everything, ideal = n_subscribers * cost.terms["everything"], cost.terms["ideal"]
        flooding = everything - ideal
        # Sums that differ by less than this share differ by rounding only.
        return 0.0 if flooding <= 1e-12 * abs(everything) else cost.terms["excess"] / flooding

    @staticmethod
    def multiplicity(interest: Interest) -> float:
        """Return the mean number of copies of a message that unicast sends; 0 where nothing is sent.

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
        """Return the share of flooding's deliveries that is wanted; 0 where nothing is sent."""
        return Filtering.multiplicity(interest) / max(1, receivers(interest))

    def per_subscriber(self, interest: Interest, plan: ChannelPlan) -> pa.Table:
        """Return the cost of each subscriber of the interest or the plan, in the order of labels.

        The columns: `subscriber`, `groups`, `sessions`, `direct`, `ideal` and `excess`; each adds up to the
        term of `score`.
        """
        labels, [wants, in_plan] = encode("subscriber", interest.subscribers, plan.subscribers)
        rates = plan.rates(interest)
        joined = relation_of(rows_of(plan.listens), plan.groups()[plan.listens.indices], plan.listens.shape)
        found = {name: np.zeros(len(labels)) for name in ("groups", "sessions", "direct", "ideal")}
        both = self.alpha + self.beta
        found["groups"][in_plan] = self.alpha * np.asarray(joined @ rates)
        found["sessions"][in_plan] = self.beta * np.asarray(plan.listens @ rates)
        found["direct"][in_plan] = both * np.asarray(plan.unicast @ plan.rate_of_flows(interest))
        found["ideal"][wants] = both * np.asarray(interest.wants @ interest.rate)
        excess = found["groups"] + found["sessions"] + found["direct"] - found["ideal"]
        return pa.table({"subscriber": labels, **found, "excess": excess})

    def per_channel(self, interest: Interest, plan: ChannelPlan) -> pa.Table:
        """Return the filtering cost that each channel causes at its members.

        The columns: `channel`, `parent` (null for a group), `members`, `rate`, `wanted` (messages per second
        that members want, each counted once), `groups`, `sessions` and `excess`. `groups` and `sessions` add
        up to the terms of `score`; so does `excess`, if no subscriber gets a flow from two channels.
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
        audience, both = interest.audience(), self.alpha + self.beta
        terms = {"groups": groups, "sessions": sessions, "direct": direct, "excess": excess}
        terms["ideal"] = both * float(interest.rate @ audience)
        terms["everything"] = both * float(interest.rate @ (audience > 0))
        return Cost(groups + sessions + direct, terms)


def receivers(interest: Interest) -> int:
    """Return the number of subscribers that want at least one flow."""
    return int(np.count_nonzero(np.diff(interest.wants.indptr)))


def _wanted(interest: Interest, plan: ChannelPlan) -> Doubles:
    """Return for each channel the messages per second that its listeners want."""
    subscriber = positions("subscriber", interest.subscribers, plan.subscribers)
    flow = positions("flow", interest.flows, plan.flows)
    wants, found = interest.wants, np.zeros(plan.n_channels)
    for start in range(0, interest.n_wants, BLOCK):
        pair = np.arange(start, min(start + BLOCK, interest.n_wants))
        row, column = np.searchsorted(wants.indptr, pair, side="right") - 1, wants.indices[pair]
        for some, channel in plan.channels_reaching(subscriber[row], flow[column]):
            found += np.bincount(channel, interest.rate[column[some]], plan.n_channels)
    return found
