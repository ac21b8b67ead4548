"""When clusters are computed again, and from which events."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from narrowcast.errors import ParameterError
from narrowcast.validation import check_whole

__all__ = ["DriftWatch", "Due", "Policy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """When clusters are computed again. With neither a period nor drift they stay for ever.

    Parameters
    ----------
    history
        How many events, the last ones, clusters are computed from at most.
    period
        After how many events they are computed again in any case, at the end of a stretch; None for never.
    drift
        Events have changed when a stretch has more false positives per event than the first stretch behind
        the last computation, by more than this share of them; None not to look.
    mild
        Events have changed a little when a stretch has more false positives per event than the first stretch
        behind the last computation or refresh, by more than this share of them, and not so much more as with
        drift. Coordinates are refreshed then, by the bases and projections that there are (section 5), and
        who is nearer to another centre now goes there. Where that cannot be done, since the method has none
        or somebody has left whom others are compared with, clusters are computed. None not to look.
    stretch
        How many events a stretch has. After drift clusters are computed from the stretch that showed it, and
        again when two, four, eight, ... such stretches are there, up to the whole history: at once from few
        events, and then from as many as there are of the new kind.
    deviation
        How far centres must have moved for new clusters of spectral methods to be installed, see
        `narrowcast.lab.spectral.deviation`; None to install all.
    horizon
        New clusters are only installed if they pay within so many events: if, by the events that they were
        computed from, they save more receptions by flooding than it takes to move. These events speak for the
        new clusters, the more so the fewer they are. None to install all.
    move
        How many messages a move takes, for that.

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
        """Return whether it pays to install new clusters.

        Parameters
        ----------
        before, after
            Receptions per event with the clusters in use, and with new ones.
        moves
            How many subscriptions would move.
        """
        return self.horizon is None or (before - after) * self.horizon > moves * self.move


class Due(NamedTuple):
    """What is to be done now.

    Parameters
    ----------
    events
        From how many events, the last ones; 0 where nothing is to be done.
    refresh
        Whether coordinates are to be refreshed, and not clusters computed.
    """

    events: int = 0
    refresh: bool = False


class DriftWatch:
    """Looks at one stretch after the other, and says when to compute clusters and from how many events.

    Parameters
    ----------
    policy
        What is to be done when.
    start
        The number of the first event that is looked at.

    Examples
    --------
    >>> watch = DriftWatch(Policy(history=1000, drift=0.5, stretch=100), 0)
    >>> [watch.seen(at, wrong).events for at, wrong in ((100, 20.0), (200, 25.0), (300, 80.0))]
    [0, 0, 100]
    >>> [watch.seen(at, 30.0).events for at in range(400, 1500, 100)]
    [200, 0, 400, 0, 0, 0, 800, 0, 1000, 0, 0]
    """

    def __init__(self, policy: Policy, start: int) -> None:
        self.policy = policy
        #: False positives per event behind the last computation, and behind that or the last refresh.
        self._usual = self._lately = -1.0
        self._last = start
        #: Where events of the present kind begin, while there are fewer than the whole history of them.
        self._changed, self._next = start, 0

    def seen(self, at: int, wrong: float, *, able: bool = False) -> Due:
        """Take up a stretch that ends at an event, and its false positives per event.

        Parameters
        ----------
        at, wrong
            The event, and the false positives.
        able
            Whether coordinates can be refreshed.
        """
        mild, events = self.policy.mild, self._decided(at, wrong)
        little = not events and mild is not None and 0 <= self._lately < wrong / (1 + mild)
        if little:
            events = self._present(at)
        if events and not (little and able):
            self._last, self._usual, self._lately = at, -1.0, -1.0
            return Due(events)
        if self._usual < 0:
            self._usual = wrong
        if little:
            self._lately = -1.0
        elif self._lately < 0:
            self._lately = wrong
        return Due(events, refresh=little)

    def _decided(self, at: int, wrong: float) -> int:
        policy, stretch = self.policy, self.policy.stretch
        if policy.drift is not None and self._usual >= 0 and wrong > (1 + policy.drift) * self._usual:
            self._changed = at - stretch
            self._next = min(2 * stretch, policy.history) if stretch < policy.history else 0
            return min(stretch, policy.history)
        here = at - self._changed
        if self._next and here >= self._next:
            # Once the history is full there is no more to wait for.
            self._next = min(2 * self._next, policy.history) if self._next < policy.history else 0
            return min(here, policy.history)
        if policy.period is not None and at - self._last >= policy.period:
            return self._present(at)
        return 0

    def _present(self, at: int) -> int:
        """Return how many of the last events are of the present kind, up to the whole history."""
        return min(at - self._changed, self.policy.history) if self._next else self.policy.history
