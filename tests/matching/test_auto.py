"""The default puts each subscription where it costs least."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from narrowcast import AutoMatcher, EventBatch, Scan, Schema, SubscriptionSet
from narrowcast.matching import matcher_for
from narrowcast.matching.auto import IndexCostEstimate
from narrowcast.matching.ranks import Ranks

SCHEMA = Schema.of({f"a{i}": "double" for i in range(6)})


def some(n: int, width: float, n_bounded: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    lo, hi = np.full((n, 6), -np.inf), np.full((n, 6), np.inf)
    columns = np.argsort(rng.random((n, 6)), axis=1)[:, :n_bounded]
    at = np.arange(n)[:, None]
    lo[at, columns] = rng.uniform(0, 1 - width, (n, n_bounded))
    hi[at, columns] = lo[at, columns] + width
    return lo, hi


def events(n: int) -> EventBatch:
    points = np.random.default_rng(9).random((n, 6))
    return EventBatch.from_arrow(pa.table({f"a{i}": points[:, i] for i in range(6)}), SCHEMA)


def kinds(matcher: AutoMatcher) -> list[str]:
    (index,) = matcher.stats()["indexes"]
    return [part["kind"] for part in index["parts"]]


@pytest.mark.parametrize(
    ("n", "width", "bounded", "expected"),
    [(3000, 0.8, 2, ["flat"]), (500, 0.05, 3, ["blocks"]), (60_000, 0.05, 3, ["grid"])],
)
def test_the_kind_fits_the_boxes(n: int, width: float, bounded: int, expected: list[str]) -> None:
    lo, hi = some(n, width, bounded, 1)
    subscriptions = SubscriptionSet.from_boxes(SCHEMA, ["s"] * n, lo, hi)
    matcher = AutoMatcher().fit(subscriptions)
    assert kinds(matcher) == expected
    batch = events(40)
    assert matcher.match(batch) == Scan().fit(subscriptions).match(batch)


def test_broad_and_selective_boxes_each_get_their_part() -> None:
    broad, narrow = some(4000, 0.5, 2, 2), some(120_000, 0.04, 3, 3)
    order = np.random.default_rng(4).permutation(124_000)
    lo, hi = (np.concatenate(ends)[order] for ends in zip(broad, narrow, strict=True))
    subscriptions = SubscriptionSet.from_boxes(SCHEMA, ["s"] * len(lo), lo, hi)
    matcher = AutoMatcher(threads=2).fit(subscriptions)
    assert len(kinds(matcher)) >= 2
    assert kinds(matcher)[0] == "flat"
    batch = events(150)
    expected = Scan().fit(subscriptions).match(batch)
    assert matcher.match(batch) == expected
    assert matcher.count(batch).tolist() == expected.counts().tolist()


def test_a_part_that_is_hardly_worth_it_is_not_made() -> None:
    broad, narrow = some(20, 0.9, 2, 2), some(9980, 0.04, 3, 3)
    lo, hi = (np.concatenate(ends) for ends in zip(broad, narrow, strict=True))
    assert len(kinds(AutoMatcher().fit(SubscriptionSet.from_boxes(SCHEMA, ["s"] * 10_000, lo, hi)))) == 1


def test_the_estimate_foretells_how_many_match() -> None:
    lo, hi = some(20_000, 0.3, 3, 5)
    subscriptions = SubscriptionSet.from_boxes(SCHEMA, ["s"] * 20_000, lo, hi)
    _, boxes = Ranks.code(subscriptions.boxes)
    batch = events(300)
    seen = AutoMatcher().fit(subscriptions).count(batch).mean()
    assert 0.7 < IndexCostEstimate.of(boxes).found.sum() / seen < 1.4


def test_a_sample_tells_what_the_boxes_cannot() -> None:
    # events lie where few boxes end: by the ends alone, few match
    rng = np.random.default_rng(6)
    lo = np.concatenate([np.full(900, 0.5), rng.uniform(0, 0.1, 100)])[:, None]
    hi = np.concatenate([np.full(900, 0.9), rng.uniform(0.1, 0.2, 100)])[:, None]
    schema = Schema.of({"a": "double"})
    subscriptions = SubscriptionSet.from_boxes(schema, ["s"] * 1000, lo, hi)
    sample = EventBatch.from_arrow(pa.table({"a": rng.uniform(0.6, 0.8, 500)}), schema)
    ranks, boxes = Ranks.code(subscriptions.boxes)
    codes = ranks.codes([sample.keys(0)], 500)
    assert IndexCostEstimate.of(boxes, codes).found.sum() == pytest.approx(900, rel=0.01)
    assert IndexCostEstimate.of(boxes).found.sum() < 700
    fitted = AutoMatcher().fit(subscriptions, sample)
    assert fitted.match(sample) == Scan().fit(subscriptions).match(sample)


def test_no_boxes_at_all() -> None:
    none = SubscriptionSet.from_boxes(SCHEMA, [], np.empty((0, 6)), np.empty((0, 6)))
    assert AutoMatcher().fit(none).match(events(3)).counts().tolist() == [0, 0, 0]


def test_small_jobs_are_scanned() -> None:
    assert isinstance(matcher_for(1000, 1000), Scan)
    assert isinstance(matcher_for(10**6, 1000, threads=2), AutoMatcher)
