"""What a planner reports about a fit in addition to the plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["FitReport", "Succession", "SuccessionStep"]


class SuccessionStep(NamedTuple):
    """A point of a cost curve: the filtering cost after a number of groups joined and left by subscribers.

    `direct` is the number of pairs of a subscriber and a flow that are sent directly.
    """

    moves: int
    cost: float
    direct: int = 0


class Succession(NamedTuple):
    """The change from the clusters of an earlier plan to the new ones.

    Parameters
    ----------
    known
        Subscribers in a cluster both in the earlier plan and now.
    moved
        Those of them in another cluster than before: each leaves one group and joins one.
    kept
        Messages per second that clusters would receive if no subscriber had moved, with new subscribers in
        the cluster where they cost least.
    cost
        Messages per second that clusters receive.
    """

    known: int
    moved: int
    kept: float
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """What a fit reports in addition to the plan.

    Parameters
    ----------
    method
        Name of the method that made the plan, if the planner chose among several; else empty.
    curve
        With an earlier plan as the start: the cost by the number of groups joined and left. None for methods
        that do not minimize these.
    moves
        Groups joined and left from the earlier plan to this one, a point of that curve.
    succession
        With an earlier plan of clusters as the start: the change to the new clusters.
    memberships
        The most groups that a subscriber may be in, also while switching from an earlier plan; None means no
        limit.
    """

    method: str = ""
    curve: tuple[SuccessionStep, ...] | None = None
    moves: int = 0
    succession: Succession | None = None
    memberships: int | None = None
