"""One channel for everything, or for what most want: the simplest clusters, which every other has to beat."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.model.relation import relation_of
from narrowcast.planning.baselines.subscriber_choice import ChoosingBaseline

if TYPE_CHECKING:
    from narrowcast.model.interest import Interest
    from narrowcast.model.relation import Positions, Relation


class Giant(ChoosingBaseline):
    """One channel carries every flow, and who would rather not be in it is served per flow.

    With linear costs a subscriber is in it when 1 + f, summed over the flows that it wants, is more than
    1 + F: f are the events of a flow in an interval, F those of all flows.

    Parameters
    ----------
    channels
        The most channels, the one among them; flows for which none is left are sent directly to those who
        are not in it. None for as many as it takes.
    seed
        Changes nothing.
    cost_m, cost_a, cost_n, cost_d, interval
        What channels and events cost: see `Overall`.

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
    """One channel carries the flows with f < p / (1 - p); all others have one of their own.

    Here f are the events of a flow in an interval, and p is the share of the subscribers who want it, among
    those who want anything. For each subscriber that flow then saves 1 + f with chance p and costs f. Who
    would rather not be in the channel, by what exactly it costs, is served per flow, as with `giant`.

    Parameters
    ----------
    channels
        The most channels: see `Giant`.
    seed
        Changes nothing.
    cost_m, cost_a, cost_n, cost_d, interval
        What channels and events cost: see `Overall`.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> interest = Interest([[1, 1, 1], [1, 1, 0], [1, 1, 0]], rate=[0.1, 0.2, 0.9])
    >>> FrequencyThreshold(interval=1).fit(interest).plan_.carries.toarray().astype(int).tolist()
    [[1, 0], [1, 0], [0, 1]]
    """

    def _topics(self, interest: Interest) -> Relation:
        audience, people = interest.audience(), np.count_nonzero(np.diff(interest.wants.indptr))
        # Multiplied out, so that a flow that everybody wants needs no case of its own.
        often = interest.rate * self.interval * (people - audience)
        return _one(np.flatnonzero((audience > 0) & (often < audience)), interest)


def _one(flows: Positions, interest: Interest) -> Relation:
    """Return one cluster of some flows."""
    return relation_of(flows, np.zeros(len(flows), np.int64), (interest.n_flows, 1))
