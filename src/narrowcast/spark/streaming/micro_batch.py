"""What became of a micro-batch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What a micro-batch came to.

    Parameters
    ----------
    number
        Of the micro-batch.
    events, rejected
        How many arrived, and how many of those could not be used.
    matched, matches
        How many events somebody wants, and how many subscriptions they match in all.
    snapshot, plan
        What they were matched with, and sent by.
    seconds
        From start to end.
    """

    number: int
    events: int
    rejected: int
    matched: int
    matches: int
    snapshot: int
    plan: str | None
    seconds: float
