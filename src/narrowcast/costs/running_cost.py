"""The overall cost of channels, updated with each change of a channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowcast.costs.exact_sum import ExactSum

if TYPE_CHECKING:
    from narrowcast.costs.local_changes import LocalChanges


class RunningCost:
    """Maintenance and dissemination of topics and clusters; a change takes constant time.

    Sums are exact, so that the running cost equals one computed anew, after any number of changes and with
    frequencies of any magnitude.

    Parameters
    ----------
    local
        Prices of channels and events.

    Examples
    --------
    >>> from narrowcast.costs.local_changes import LocalChanges
    >>> from narrowcast.costs.overall import Overall
    >>> running = RunningCost(LocalChanges(Overall()))
    >>> running.topic(0.5, (0, True), (10, True))  # ten subscribe to a flow of half an event per interval
    >>> running.total
    15.0
    """

    __slots__ = ("_dissemination", "_local", "_maintenance")

    def __init__(self, local: LocalChanges) -> None:
        self._local = local
        self._maintenance, self._dissemination = ExactSum(), ExactSum()

    @property
    def maintenance(self) -> float:
        """Messages per interval for the upkeep of all channels."""
        return self._maintenance.value

    @property
    def dissemination(self) -> float:
        """Messages per interval for all events."""
        return self._dissemination.value

    @property
    def total(self) -> float:
        """Messages per interval in all."""
        return self.maintenance + self.dissemination

    def topic(self, frequency: float, before: tuple[int, bool], after: tuple[int, bool]) -> None:
        """Change the number of direct subscribers of a flow, and whether it has a channel."""
        kept, sent = self._direct(*before)
        kept_now, sent_now = self._direct(*after)
        self._maintenance.change(kept, kept_now)
        self._dissemination.change(frequency * sent, frequency * sent_now)

    def frequency(self, members: tuple[int, bool], before: float, after: float) -> None:
        """Change the frequency of a flow; a new flow had 0 before."""
        sent = self._direct(*members)[1]
        self._dissemination.change(before * sent, after * sent)

    def _direct(self, members: int, has_channel: bool) -> tuple[float, float]:
        """Return the upkeep of direct subscribers, by a channel or by unicast, and the messages per event."""
        m, d, n = self._local.m, self._local.d, self._local.model.cost_n
        return (m(members), n + d(members)) if has_channel else (members * m(1), n + members * d(1))

    def cluster(self, before: tuple[int, int, float], after: tuple[int, int, float]) -> None:
        """Change a cluster's members, number of flows, and the summed frequency of its flows."""
        kept, sent = self._cluster(*before)
        kept_now, sent_now = self._cluster(*after)
        self._maintenance.change(kept, kept_now)
        self._dissemination.change(sent, sent_now)

    def _cluster(self, members: int, flows: int, frequency: float) -> tuple[float, float]:
        """Return the upkeep of a cluster, and its messages for all events of an interval."""
        local = self._local
        return local.m(members) + local.a(flows), frequency * (local.model.cost_n + local.d(members))
