"""Every registered matcher gives the shared vectors of the papers."""

from __future__ import annotations

import json
import operator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from narrowcast import EventBatch, Schema, SubscriptionSet, compile_filters
from narrowcast.matching import MATCHERS

GOLDEN = Path(__file__).parents[1] / "golden"
COBAS: dict[str, Any] = json.loads((GOLDEN / "cobas2009_match.json").read_text())
NAMES = ["a0", "a1", "a2", "a3"]
SCHEMA = Schema.of(dict.fromkeys(NAMES, "double"))

every_matcher = pytest.mark.parametrize("name", list(MATCHERS))

Interval = tuple[float, float, bool, bool]


def batch(points: np.ndarray[Any, np.dtype[np.float64]]) -> EventBatch:
    return EventBatch.from_arrow(pa.table({name: points[:, i] for i, name in enumerate(NAMES)}), SCHEMA)


def sql(intervals: dict[str, Interval]) -> str:
    parts = []
    for attribute, (low, high, low_closed, high_closed) in intervals.items():
        parts.append(f"a{attribute} {'>=' if low_closed else '>'} {low}")
        parts.append(f"a{attribute} {'<=' if high_closed else '<'} {high}")
    return " AND ".join(parts)


def holds(intervals: dict[str, Interval], content: list[float]) -> bool:
    """The literal comparison."""
    return all(
        (operator.le if low_closed else operator.lt)(low, content[int(attribute)])
        and (operator.le if high_closed else operator.lt)(content[int(attribute)], high)
        for attribute, (low, high, low_closed, high_closed) in intervals.items()
    )


@every_matcher
def test_riabov2003_thousand_boxes(name: str) -> None:
    with np.load(GOLDEN / "riabov2003_matching_1000.npz") as golden:
        lo, hi, events, ptr, ids = (golden[key] for key in ("lo", "hi", "events", "ptr", "ids"))
    subscriptions = SubscriptionSet.from_boxes(SCHEMA, ["s"] * len(lo), lo, hi)
    matches = MATCHERS[name]().fit(subscriptions).match(batch(events))
    assert matches.indptr.tolist() == ptr.tolist()
    assert matches.index.tolist() == ids.tolist()


@every_matcher
def test_cobas2009_filters(name: str) -> None:
    texts = [sql(intervals) for intervals in COBAS["filters"]]
    matcher = MATCHERS[name]().fit(compile_filters(SCHEMA, texts, strict=True).subscriptions)
    matches = matcher.match(batch(np.array(COBAS["contents"])))
    assert [row.tolist() for row in matches] == COBAS["matches"]


@every_matcher
def test_cobas2009_filters_with_open_ends(name: str) -> None:
    """The vectors have closed ends only: open some, and let contents lie on them."""
    filters = [
        {a: (low, high, (i + int(a)) % 2 == 0, (i + int(a)) % 3 == 0) for a, (low, high, *_) in f.items()}
        for i, f in enumerate(COBAS["filters"])
    ]
    ends = [[f.get(str(a), (0.5, 0.5))[i % 2] for a in range(4)] for i, f in enumerate(filters)]
    contents = [*COBAS["contents"], *ends]
    wanted = [[i for i, f in enumerate(filters) if holds(f, content)] for content in contents]
    texts = [sql(intervals) for intervals in filters]
    matcher = MATCHERS[name]().fit(compile_filters(SCHEMA, texts, strict=True).subscriptions)
    assert [row.tolist() for row in matcher.match(batch(np.array(contents)))] == wanted
    assert sum(map(len, wanted)) > 300
