"""One channel for all flows, or for the most wanted ones: the simplest clusterings, for comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.model.relation import relation_of
from narrowcast.planning.baselines.subscriber_choice import ChoosingBaseline

if TYPE_CHECKING:
    from narrowcast.model.interest import Interest
    from narrowcast.model.relation import Positions, Relation


class Giant(ChoosingBaseline):
    """Put all flows into one channel; subscribers for which that costs more are served by channels per flow.

    With linear costs a subscriber joins the channel when the sum of 1 + f over the flows that it wants is
    more than 1 + F, where f is the number of events of a flow in an interval and F that of all flows.

    Parameters
    ----------
    channels
        Largest number of channels, the common one included; flows that get none are sent directly to the
        subscribers outside the common channel. None: no limit.
    seed
        Ignored; the method draws nothing at random.
    cost_m, cost_a, cost_n, cost_d, interval
        Cost of channels and events: see `Overall`.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> interest = Interest([[1, 1, 1], [1, 1, 0], [0, 0, 1]], rate=[0.1, 0.2, 0.9])
    >>> giant = Giant(interval=1).fit(interest)
    >>> giant.plan_.listens.toarray().astype(int).tolist(), round(giant.cost_, 9)
    ([[1, 0], [1, 0], [0, 1]], 11.7)
    """

    def _topics(self, interest: Interest) -> Relation:
        return _one(np.arange(interest.n_flows), interest)


class FrequencyThreshold(ChoosingBaseline):
    """Put the flows with f < p / (1 - p) into one channel, and give each other flow a channel of its own.

    Here f is the number of events of a flow in an interval, and p the share of the subscribers that want it,
    among those that want anything. For each subscriber the flow then saves 1 + f with probability p and costs
    f otherwise. Subscribers for which the exact cost of the channel is higher are served per flow, as by
    `Giant`.

    Parameters
    ----------
    channels
        Largest number of channels: see `Giant`.
    seed
        Ignored; the method draws nothing at random.
    cost_m, cost_a, cost_n, cost_d, interval
        Cost of channels and events: see `Overall`.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> interest = Interest([[1, 1, 1], [1, 1, 0], [1, 1, 0]], rate=[0.1, 0.2, 0.9])
    >>> FrequencyThreshold(interval=1).fit(interest).plan_.carries.toarray().astype(int).tolist()
    [[1, 0], [1, 0], [0, 1]]
    """

    def _topics(self, interest: Interest) -> Relation:
        audience, people = interest.audience(), np.count_nonzero(np.diff(interest.wants.indptr))
        # Multiplied out, so that a flow that all subscribers want needs no case of its own.
        often = interest.rate * self.interval * (people - audience)
        return _one(np.flatnonzero((audience > 0) & (often < audience)), interest)


def _one(flows: Positions, interest: Interest) -> Relation:
    """Return the flows as members of a single cluster."""
    return relation_of(flows, np.zeros(len(flows), np.int64), (interest.n_flows, 1))
