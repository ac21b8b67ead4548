"""When clusters are computed again, and from which events."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from narrowcast.errors import ParameterError
from narrowcast.validation import check_whole

__all__ = ["ClusteringTask", "DriftWatch", "Policy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """When clusters are computed again. Without a period and without drift they never are.

    Parameters
    ----------
    history
        Largest number of recent events that clusters are computed from.
    period
        Number of events after which clusters are computed again in any case, at the end of a stretch; None
        for never.
    drift
        Drift is detected if a stretch has more false positives per event than the first stretch after the
        last computation, by more than this share of them; None to ignore drift.
    mild
        Mild drift is detected if a stretch has more false positives per event than the first stretch after
        the last computation or refresh, by more than this share of them, but not enough for drift.
        Coordinates are then refreshed with the existing bases and projections (section 5), and a subscription
        that is nearer to another centre now moves there. Clusters are computed if that is impossible, because
        the method has no coordinates, or because a subscription that others are compared with has left. None
        to ignore mild drift.
    stretch
        Number of events of a stretch. After drift, clusters are computed from the stretch that showed it, and
        again after two, four, eight, ... such stretches, up to the whole history: immediately from few
        events, and then from as many events as there are after the drift.
    deviation
        How far centres must have moved for new clusters of spectral methods to be installed, see
        `narrowcast.lab.spectral.deviation`; None to install all.
    horizon
        New clusters are only installed if they pay within this number of events: if, by the events that they
        were computed from, they save more receptions by flooding than moving costs. These events favour the
        new clusters, the more so the fewer they are. None to install all.
    move
        Messages per moved subscription, for that decision.

    Examples
    --------
    >>> policy = Policy(horizon=1000, move=20)
    >>> policy.pays(before=150.0, after=140.0, moves=400), policy.pays(before=150.0, after=140.0, moves=600)
    (True, False)
    """

    history: int = 1000
    period: int | None = None
    drift: float | None = 0.5
    mild: float | None = None
    stretch: int = 100
    deviation: float | None = None
    horizon: int | None = None
    move: float = 20.0

    def __post_init__(self) -> None:
        check_whole("history", self.history)
        check_whole("stretch", self.stretch)
        if self.period is not None:
            check_whole("period", self.period)
        if self.horizon is not None:
            check_whole("horizon", self.horizon)
        for name in ("drift", "mild", "deviation", "move"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ParameterError(parameter=name, value=value, limit="a finite number of at least 0")

    def pays(self, before: float, after: float, moves: int) -> bool:
        """Return whether installing new clusters pays.

        Parameters
        ----------
        before, after
            Receptions per event with the clusters in use, and with the new ones.
        moves
            Number of subscriptions that would move.
        """
        return self.horizon is None or (before - after) * self.horizon > moves * self.move


class ClusteringTask(NamedTuple):
    """What to do now.

    Parameters
    ----------
    events
        Number of recent events to use; 0 to do nothing.
    refresh
        Whether to refresh coordinates instead of computing clusters.
    """

    events: int = 0
    refresh: bool = False


class DriftWatch:
    """Drift detection: decides after each stretch whether to compute clusters, and from how many events.

    Parameters
    ----------
    policy
        The policy.
    start
        The number of the first event.

    Examples
    --------
    >>> watch = DriftWatch(Policy(history=1000, drift=0.5, stretch=100), 0)
    >>> [watch.observe(at, wrong).events for at, wrong in ((100, 20.0), (200, 25.0), (300, 80.0))]
    [0, 0, 100]
    >>> [watch.observe(at, 30.0).events for at in range(400, 1500, 100)]
    [200, 0, 400, 0, 0, 0, 800, 0, 1000, 0, 0]
    """

    def __init__(self, policy: Policy, start: int) -> None:
        self.policy = policy
        #: False positives per event after the last computation, and after that or the last refresh.
        self._usual = self._lately = -1.0
        self._last = start
        #: The first event after the last drift, while there are fewer than the whole history since then.
        self._changed, self._next = start, 0

    def observe(self, at: int, wrong: float, *, able: bool = False) -> ClusteringTask:
        """Record a stretch that ends at an event, and its false positives per event; return what to do.

        Parameters
        ----------
        at, wrong
            The event, and the false positives per event.
        able
            Whether coordinates can be refreshed.
        """
        mild, events = self.policy.mild, self._decided(at, wrong)
        little = not events and mild is not None and 0 <= self._lately < wrong / (1 + mild)
        if little:
            events = self._events_since_drift(at)
        if events and not (little and able):
            self._last, self._usual, self._lately = at, -1.0, -1.0
            return ClusteringTask(events)
        if self._usual < 0:
            self._usual = wrong
        if little:
            self._lately = -1.0
        elif self._lately < 0:
            self._lately = wrong
        return ClusteringTask(events, refresh=little)

    def _decided(self, at: int, wrong: float) -> int:
        policy, stretch = self.policy, self.policy.stretch
        if policy.drift is not None and self._usual >= 0 and wrong > (1 + policy.drift) * self._usual:
            self._changed = at - stretch
            self._next = min(2 * stretch, policy.history) if stretch < policy.history else 0
            return min(stretch, policy.history)
        here = at - self._changed
        if self._next and here >= self._next:
            # Once the history is full, more events would change nothing.
            self._next = min(2 * self._next, policy.history) if self._next < policy.history else 0
            return min(here, policy.history)
        if policy.period is not None and at - self._last >= policy.period:
            return self._events_since_drift(at)
        return 0

    def _events_since_drift(self, at: int) -> int:
        """Return the number of events since the last drift, up to the whole history."""
        return min(at - self._changed, self.policy.history) if self._next else self.policy.history
