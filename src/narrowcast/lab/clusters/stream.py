"""A stream of events, and the subscriptions that come and leave during it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.lab.boxes.base import finite
from narrowcast.model.relation import relation, rows_of
from narrowcast.validation import check_seed, check_whole

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from narrowcast.model.relation import Relation

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["SubscriptionStream", "lives"]


@dataclass(frozen=True, eq=False)
class SubscriptionStream:
    """The events that match each subscription, and when each subscription is active.

    Parameters
    ----------
    matches
        Events x subscriptions, in the order of events; any matrix that scipy accepts. It includes matches of
        inactive subscriptions.
    peers
        For each subscription the number of its peer (default: each has a peer of its own).
    comes, leaves
        For each subscription the event before which it comes, and before which it leaves (default: all are
        active from the first event to the last).
    boxes
        The lower and the upper ends (lo, hi] of the boxes of subscriptions, for methods that need them; may
        be infinite.
    points
        Coordinates of events, a row each and a column for each attribute of the boxes, for an R-tree, which
        routes events by them. An event must be inside the boxes of all subscriptions that it matches.

    Attributes
    ----------
    sides
        The boxes as they were given; `boxes` are finite.

    Examples
    --------
    >>> stream = SubscriptionStream([[1, 0, 0], [1, 1, 1]], comes=[0, 0, 1])
    >>> stream.pairs(0, 2)
    (array([0, 1, 1, 1]), array([0, 0, 1, 2]))
    >>> stream.active(0).tolist()
    [True, True, False]
    """

    matches: Any
    peers: Any = None
    comes: Any = None
    leaves: Any = None
    boxes: tuple[Any, Any] | None = None
    points: Any = None
    sides: tuple[Any, Any] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        found: Relation = relation(self.matches)
        n_events, n = found.shape
        peers = np.arange(n) if self.peers is None else _checked_numbers("peers", self.peers, n)
        comes = np.zeros(n, np.int64) if self.comes is None else _checked_numbers("comes", self.comes, n)
        leaves = np.full(n, n_events) if self.leaves is None else _checked_numbers("leaves", self.leaves, n)
        wrong = np.flatnonzero(leaves < comes)
        if len(wrong):
            raise ParameterError(
                f"leaves={leaves[wrong[0]]}: subscription {wrong[0]} comes at event {comes[wrong[0]]}; "
                "must not leave before it",
                parameter="leaves",
                value=int(leaves[wrong[0]]),
            )
        if self.boxes is not None:
            lo, hi = finite(*self.boxes)
            if len(lo) != n:
                raise ParameterError(
                    f"boxes has {len(lo)} rows: must be one for each of the {n} subscriptions",
                    parameter="boxes",
                    value=len(lo),
                )
            object.__setattr__(self, "sides", tuple(np.asarray(each, np.float64) for each in self.boxes))
            object.__setattr__(self, "boxes", (lo, hi))
        if self.points is not None:
            object.__setattr__(self, "points", self._checked_points(found))
        for name, value in (("matches", found), ("peers", peers), ("comes", comes), ("leaves", leaves)):
            object.__setattr__(self, name, value)

    def _checked_points(self, matches: Relation) -> Doubles:
        """Return the coordinates of events, and refuse events outside the boxes that they match."""
        points = np.asarray(self.points, np.float64)
        if self.sides is None:
            raise ParameterError(
                "boxes are missing: points have no meaning without them; give boxes as well",
                parameter="boxes",
            )
        lo, hi = self.sides
        if points.shape != (matches.shape[0], lo.shape[1]):
            raise ParameterError(
                f"points has shape {points.shape}: must have a row for each of the {matches.shape[0]} events "
                f"and a column for each of the {lo.shape[1]} attributes of boxes",
                parameter="points",
                value=points.shape,
            )
        event, which = rows_of(matches), matches.indices
        outside = ~((points[event] > lo[which]) & (points[event] <= hi[which])).all(axis=1)
        if outside.any():
            first = int(outside.argmax())
            raise ParameterError(
                f"points: event {event[first]} matches subscription {which[first]} but is outside its box; "
                "give boxes (lo, hi] that contain all matches",
                parameter="points",
                value=int(event[first]),
            )
        return points

    @property
    def n_events(self) -> int:
        """The number of events."""
        return int(self.matches.shape[0])

    @property
    def n_subscriptions(self) -> int:
        """The number of subscriptions, active at one time or another."""
        return int(self.matches.shape[1])

    @cached_property
    def _wanted_pairs(self) -> tuple[Ints, Ints]:
        """Pairs of event and subscription such that the event matches the subscription, which is active."""
        event, which = rows_of(self.matches), self.matches.indices.astype(np.int64)
        active = (self.comes[which] <= event) & (event < self.leaves[which])
        return event[active], which[active]

    def active(self, event: int) -> NDArray[np.bool_]:
        """Return for each subscription whether it is active at an event."""
        return np.asarray((self.comes <= event) & (event < self.leaves))

    def pairs(self, start: int, stop: int) -> tuple[Ints, Ints]:
        """Return the wanted deliveries of some events: indexes of events and of active subscriptions."""
        event, which = self._wanted_pairs
        some = slice(*np.searchsorted(event, [start, stop]))
        return event[some] - start, which[some]

    def history(self, subscriptions: Ints, start: int, stop: int) -> Relation:
        """Return subscriptions x events: the matches of some events, of active and inactive subscriptions."""
        return relation(self.matches[start:stop][:, subscriptions].T)

    def changes(self) -> Ints:
        """Return the events before which a subscription comes or leaves, each once."""
        found = np.unique(np.concatenate([self.comes, self.leaves]))
        return found[(found > 0) & (found < self.n_events)]


def lives(
    n: int, n_events: int, *, churn: float, step: int, seed: int = 0, start: int = 0
) -> tuple[Ints, Ints]:
    """Return when subscriptions come and leave, such that at each step some leave and as many others come.

    Parameters
    ----------
    n
        Number of active subscriptions at any time.
    n_events
        Number of events.
    churn
        The share of active subscriptions that leave at a step, drawn at random (tariq2012, figure 3l).
    step
        Number of events of a step.
    seed
        Seed of the random choices.
    start
        The event at which the first step begins; the first subscriptions leave at its end.

    Returns
    -------
    tuple
        `comes` and `leaves` of the n initial subscriptions, followed by those of later ones, in their order.

    Examples
    --------
    >>> comes, leaves = lives(4, 30, churn=0.5, step=10, seed=1)
    >>> comes.tolist(), sorted(leaves.tolist())
    ([0, 0, 0, 0, 10, 10, 20, 20], [10, 10, 20, 20, 30, 30, 30, 30])
    """
    check_whole("n", n, least=0)
    check_whole("step", step)
    check_seed(seed)
    if not 0 <= churn <= 1:
        raise ParameterError(parameter="churn", value=churn, limit="a share from 0 to 1")
    count = round(churn * n)
    times = np.arange(start + step, n_events, step)
    comes = np.concatenate([np.zeros(n, np.int64), np.repeat(times, count)])
    leaves = np.full(len(comes), n_events)
    rng = np.random.default_rng(seed)
    active = np.arange(n)
    for i, time in enumerate(times.tolist()):
        removed = rng.permutation(n)[:count]
        leaves[active[removed]] = time
        active[removed] = np.arange(n + i * count, n + (i + 1) * count)
    return comes, leaves


def _checked_numbers(name: str, values: ArrayLike, n: int) -> Ints:
    """Return an array of one integer of at least 0 for each subscription."""
    found = np.asarray(values)
    if found.shape != (n,) or (n and not np.issubdtype(found.dtype, np.integer)):
        raise ParameterError(
            f"{name} has shape {found.shape} and type {found.dtype}: must be an integer for each of the {n} "
            "subscriptions",
            parameter=name,
            value=found.shape,
        )
    if n and found.min() < 0:
        raise ParameterError(parameter=name, value=int(found.min()), limit="at least 0")
    return found.astype(np.int64)
