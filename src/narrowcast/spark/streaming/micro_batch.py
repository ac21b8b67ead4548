"""Counts of a micro-batch of a stream."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Counts and duration of a micro-batch.

    Parameters
    ----------
    number
        Number of the micro-batch, from 0.
    events, rejected
        Number of events, and of rejected ones among them.
    matched, matches
        Number of events with at least one match, and number of pairs of an event and a matching subscription.
    snapshot, plan
        Number of the snapshot of subscriptions, and name of the plan's version; None without a plan.
    seconds
        Elapsed seconds from start to end.
    """

    number: int
    events: int
    rejected: int
    matched: int
    matches: int
    snapshot: int
    plan: str | None
    seconds: float
