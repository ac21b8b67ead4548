"""Matching in Spark's Python workers: maps batches of events to batches of matches."""

from __future__ import annotations

import sys
import traceback
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from narrowcast.matching import load_matcher
from narrowcast.model.events import EventBatch
from narrowcast.model.schema import EVENT_ID

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from narrowcast.matching.indexed_matcher import IndexedMatcher
    from narrowcast.matching.match_queries import MatchQueries
    from narrowcast.model.matches import Matches
    from narrowcast.model.schema import Schema

M = TypeVar("M", bound="MatchQueries")

#: The columns of a table of matches: ids of subscriptions, or their number.
IDS = "event_id bigint, subscription_ids array<bigint>"
COUNTS = "event_id bigint, matches bigint"
#: Approximate number of ids in a batch of matches, which bounds a worker's memory.
_IDS = 1 << 22
#: Events in the first step, which measures the number of matches of an event.
_FIRST = 1 << 10


class MatchSteps(Generic[M]):
    """Matches a batch of events in steps, each with a bounded number of matches, to bound memory.

    Parameters
    ----------
    matcher
        A fitted matcher.
    """

    def __init__(self, matcher: M) -> None:
        self.matcher, self.subscriptions = matcher, matcher.subscriptions_
        # The first step stays within the bound even if all subscriptions match; later ones adapt their size.
        self._least = self._step = max(1, min(_FIRST, _IDS // max(1, len(self.subscriptions))))

    def over(self, events: EventBatch) -> Iterator[tuple[int, EventBatch, Matches]]:
        """Yield for each step the position of its first event, its events, and their matches."""
        self._step = max(self._least, self._step // 8)  # events of a new batch may match more
        start = 0
        while start < len(events):
            part = events.slice(start, start + self._step)
            found = self.matcher.match(part)
            yield start, part, found
            start += len(part)
            self._step = max(1, min(_IDS * len(part) // max(1, found.n_pairs), 8 * self._step))


def matches_of(
    matcher: MatchQueries, batches: Iterable[EventBatch], *, counts: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the matches of events in batches of bounded size; an event without a match has no row."""
    steps = MatchSteps(matcher)
    ids = steps.subscriptions.subscription_id
    for events in batches:
        if counts:
            yield _counts(matcher, events)
            continue
        for _, part, found in steps.over(events):
            yield from found.to_arrow(part.event_id, ids).to_batches()


def _counts(matcher: MatchQueries, events: EventBatch) -> pa.RecordBatch:
    found = matcher.count(events)
    some = np.flatnonzero(found)
    return pa.RecordBatch.from_arrays(
        [pa.array(events.event_id[some]), pa.array(found[some])], names=[EVENT_ID, "matches"]
    )


def match_batches(
    batches: Iterator[pa.RecordBatch], file: str, schema: Schema, *, counts: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the matches of batches of events, using an index in a file that Spark has sent to the worker."""
    events = (EventBatch.from_arrow(batch, schema) for batch in batches)
    yield from matches_of(_matcher(file), events, counts=counts)


@lru_cache(maxsize=2)
def _matcher(file: str) -> IndexedMatcher:
    """Return the matcher in a file that Spark has sent, mapped into memory once for all tasks here."""
    from pyspark import SparkFiles

    # Not verified: Spark has just copied the file, and checking the hash would read all of it.
    return load_matcher(SparkFiles.get(file), verify=False)


def _silence_broken_pipes() -> None:
    """Prevent a worker from printing a traceback when Spark closes its connection early.

    Spark does so when it has enough rows or stops, which is not an error.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is None or spec.name != "pyspark.daemon":
        return
    original = traceback.print_exc

    def print_exc(*words: Any, **options: Any) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            original(*words, **options)

    traceback.print_exc = print_exc


_silence_broken_pipes()  # a worker imports this module with the first function of Narrowcast that it runs
