"""What runs in Spark's Python workers: batches of events in, batches of matches out."""

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

#: The columns of the tables of matches: ids, or how many there are.
IDS = "event_id bigint, subscription_ids array<bigint>"
COUNTS = "event_id bigint, matches bigint"
#: Ids in a batch of matches, about: it bounds a worker's memory whatever the events match.
_IDS = 1 << 22
#: Events that are matched first, to see how much they match.
_FIRST = 1 << 10


class MatchSteps(Generic[M]):
    """Matches batches of events in steps, so that what comes out of one is bounded whatever events match.

    Parameters
    ----------
    matcher
        Finds the matches.
    """

    def __init__(self, matcher: M) -> None:
        self.matcher, self.subscriptions = matcher, matcher.subscriptions_
        # However much the first events match, they stay within the bound; then what was seen tells the size.
        self._least = self._step = max(1, min(_FIRST, _IDS // max(1, len(self.subscriptions))))

    def over(self, events: EventBatch) -> Iterator[tuple[int, EventBatch, Matches]]:
        """Yield where a step starts, its events, and their matches."""
        self._step = max(self._least, self._step // 8)  # a new batch may be of another kind
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
    """Yield the matches of events in batches of bounded size; no row where nothing matches."""
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
    """Yield the matches of batches of events, found by the index that was shipped as a file."""
    events = (EventBatch.from_arrow(batch, schema) for batch in batches)
    yield from matches_of(_matcher(file), events, counts=counts)


@lru_cache(maxsize=2)
def _matcher(file: str) -> IndexedMatcher:
    """Return the matcher of a shipped file, mapped into memory once for all tasks of this worker."""
    from pyspark import SparkFiles

    # Spark has just copied it: what it holds need not be read to be trusted.
    return load_matcher(SparkFiles.get(file), verify=False)


def _hush() -> None:
    """Keep a worker from printing a trace when Spark no longer listens: it has what it wanted, or stops."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is None or spec.name != "pyspark.daemon":
        return
    told = traceback.print_exc

    def print_exc(*words: Any, **options: Any) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            told(*words, **options)

    traceback.print_exc = print_exc


_hush()  # every worker imports this module with the first function of ours that it is sent
