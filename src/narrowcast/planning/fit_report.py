"""What planners report about a fit beside the plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["FitReport", "Succession", "SuccessionStep"]


class SuccessionStep(NamedTuple):
    """What is filtered after a number of groups joined and left, with a number of wants sent directly."""

    moves: int
    cost: float
    direct: int = 0


class Succession(NamedTuple):
    """How clusters follow those of an earlier plan.

    Parameters
    ----------
    known
        Subscribers that were in a cluster of the earlier plan and are in one now.
    moved
        Of these, the subscribers that are in another cluster now: each leaves a group and joins one.
    kept
        The messages per second that clusters would get had no subscriber moved, with new subscribers where
        they cost least.
    cost
        The messages per second that clusters get.
    """

    known: int
    moved: int
    kept: float
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """What a fit found besides the plan.

    Parameters
    ----------
    method
        The name of the method that made the plan, where the planner chose among several; empty elsewhere.
    curve
        With an earlier plan to start from: the cost by the number of groups joined and left. None for methods
        that do not weigh these.
    moves
        The groups joined and left for the plan, on that curve.
    succession
        With an earlier plan of clusters to start from: how the new clusters follow them.
    memberships
        The most groups that a subscriber may be in, also on the way from an earlier plan; None for no limit.
    """

    method: str = ""
    curve: tuple[SuccessionStep, ...] | None = None
    moves: int = 0
    succession: Succession | None = None
    memberships: int | None = None
