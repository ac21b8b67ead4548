"""The overall cost of channels that change one at a time, kept up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from narrowcast.costs.local import Local


class Account:
    """Maintenance and dissemination of topics and clusters; a change takes as long, however many there are.

    Parameters
    ----------
    local
        What channels and events cost.

    Examples
    --------
    >>> from narrowcast.costs.local import Local
    >>> from narrowcast.costs.overall import Overall
    >>> account = Account(Local(Overall()))
    >>> account.topic(0.5, (0, True), (10, True))  # ten subscribe to a flow with half an event in an interval
    >>> account.total
    15.0
    """

    __slots__ = ("_local", "dissemination", "maintenance")

    def __init__(self, local: Local) -> None:
        self._local = local
        self.maintenance = 0.0
        self.dissemination = 0.0

    @property
    def total(self) -> float:
        """What all channels cost."""
        return self.maintenance + self.dissemination

    def topic(self, frequency: float, before: tuple[int, bool], after: tuple[int, bool]) -> None:
        """Take up a change of the direct subscribers of a flow, and of whether they have a channel."""
        for sign, state in ((-1.0, before), (1.0, after)):
            upkeep, sent = self._direct(*state)
            self.maintenance += sign * upkeep
            self.dissemination += sign * frequency * sent

    def frequency(self, members: tuple[int, bool], before: float, after: float) -> None:
        """Take up a change of a flow's frequency; one that is new had 0 before."""
        self.dissemination += (after - before) * (self._local.model.cost_n + self._direct(*members)[1])

    def _direct(self, members: int, seated: bool) -> tuple[float, float]:
        """Return what direct subscribers take to keep up and to send to: in a channel, or by unicast."""
        m, d = self._local.m, self._local.d
        return (m(members), d(members)) if seated else (members * m(1), members * d(1))

    def cluster(self, before: tuple[int, int, float], after: tuple[int, int, float]) -> None:
        """Take up a change of a cluster's members, flows, and the frequency of all its flows."""
        for sign, (members, flows, frequency) in ((-1.0, before), (1.0, after)):
            local = self._local
            self.maintenance += sign * (local.m(members) + local.a(flows))
            self.dissemination += sign * frequency * (local.model.cost_n + local.d(members))
