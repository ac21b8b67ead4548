"""The overall cost of channels that change one at a time, kept up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowcast.costs.exact_sum import ExactSum

if TYPE_CHECKING:
    from narrowcast.costs.local_changes import LocalChanges


class RunningCost:
    """Maintenance and dissemination of topics and clusters; a change takes as long, however many there are.

    What a channel cost before a change is taken away to the last bit, so that the account equals one that is
    made anew, after any number of changes and with frequencies of any size.

    Parameters
    ----------
    local
        What channels and events cost.

    Examples
    --------
    >>> from narrowcast.costs.local_changes import LocalChanges
    >>> from narrowcast.costs.overall import Overall
    >>> account = RunningCost(LocalChanges(Overall()))
    >>> account.topic(0.5, (0, True), (10, True))  # ten subscribe to a flow with half an event in an interval
    >>> account.total
    15.0
    """

    __slots__ = ("_kept", "_local", "_sent")

    def __init__(self, local: LocalChanges) -> None:
        self._local = local
        self._kept, self._sent = ExactSum(), ExactSum()

    @property
    def maintenance(self) -> float:
        """What it takes to keep all channels up."""
        return self._kept.value

    @property
    def dissemination(self) -> float:
        """What it takes to send all events of an interval."""
        return self._sent.value

    @property
    def total(self) -> float:
        """What all channels cost."""
        return self.maintenance + self.dissemination

    def topic(self, frequency: float, before: tuple[int, bool], after: tuple[int, bool]) -> None:
        """Take up a change of the direct subscribers of a flow, and of whether they have a channel."""
        kept, sent = self._direct(*before)
        kept_now, sent_now = self._direct(*after)
        self._kept.change(kept, kept_now)
        self._sent.change(frequency * sent, frequency * sent_now)

    def frequency(self, members: tuple[int, bool], before: float, after: float) -> None:
        """Take up a change of a flow's frequency; one that is new had 0 before."""
        sent = self._direct(*members)[1]
        self._sent.change(before * sent, after * sent)

    def _direct(self, members: int, seated: bool) -> tuple[float, float]:
        """Return what direct subscribers, in a channel or by unicast, take: to keep up, and for an event."""
        m, d, n = self._local.m, self._local.d, self._local.model.cost_n
        return (m(members), n + d(members)) if seated else (members * m(1), n + members * d(1))

    def cluster(self, before: tuple[int, int, float], after: tuple[int, int, float]) -> None:
        """Take up a change of a cluster's members, flows, and the frequency of all its flows."""
        kept, sent = self._cluster(*before)
        kept_now, sent_now = self._cluster(*after)
        self._kept.change(kept, kept_now)
        self._sent.change(sent, sent_now)

    def _cluster(self, members: int, flows: int, frequency: float) -> tuple[float, float]:
        """Return what a cluster takes: to keep up, and for all events of an interval."""
        local = self._local
        return local.m(members) + local.a(flows), frequency * (local.model.cost_n + local.d(members))
