"""Topics by look-up: as Scan finds them, in one look-up for each pattern of wildcards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast import AutoMatcher, Scan, Topics, TopicSpace
from narrowcast.kernels import tuples as kernels
from narrowcast.kernels.tuples import Tuples
from narrowcast.matching.ranks import CodedBoxes
from narrowcast.matching.topics import TupleIndex

words = st.sampled_from(["a", "b", "orders", "device-000017", "device-000018", "eu"])


@st.composite
def patterns(draw: st.DrawFn, any_level: str, rest: str) -> str:
    levels = draw(st.lists(words | st.just(any_level), min_size=1, max_size=4))
    return "/".join([*levels, *([rest] if draw(st.booleans()) else [])])


@settings(max_examples=60)
@given(given=st.lists(patterns("+", "#"), max_size=12), data=st.data())
def test_equals_scan(given: list[str], data: st.DataObject) -> None:
    space = TopicSpace(style="mqtt", levels=5)
    names = data.draw(st.lists(st.lists(words, min_size=1, max_size=6).map("/".join), max_size=8))
    subscriptions = space.compile(given, strict=True).subscriptions
    events = space.events(names)
    expected = Scan().fit(subscriptions).match(events)
    for matcher in (Topics(), AutoMatcher()):
        assert matcher.fit(subscriptions).match(events) == expected
        assert matcher.count(events).tolist() == expected.counts().tolist()


def test_many_topics_of_few_shapes_take_few_look_ups() -> None:
    space = TopicSpace(levels=4)
    n = 3000
    kinds = (
        "sensors.device-{:06}.heat",
        "sensors.device-{:06}.*",
        "sensors.*.alarm-{:06}",
        "*.device-{:06}.>",
    )
    given = [kinds[i % 4].format(i // 4 % 500) for i in range(n)]
    subscriptions = space.compile(given, strict=True).subscriptions
    names = [f"sensors.device-{i:06}.heat" for i in range(0, 600, 7)] + ["sensors.x.alarm-000003"]
    events = space.events(names)
    matcher = Topics().fit(subscriptions)
    (index,) = matcher.stats()["indexes"]
    assert index["shapes"] == 4
    assert index["tuples"] == 2000
    assert matcher.match(events) == Scan().fit(subscriptions).match(events)
    assert matcher.match(events).n_pairs > 0


def boxes(rows: list[dict[int, tuple[int, int]]], last: list[int]) -> CodedBoxes:
    flat = [(c, lo, hi) for row in rows for c, (lo, hi) in sorted(row.items())]
    column, lo, hi = (np.array([f[i] for f in flat]) for i in range(3))
    indptr = np.cumsum([0, *map(len, rows)])
    return CodedBoxes(
        indptr, column.astype(np.int32), lo.astype(np.uint16), hi.astype(np.uint16), np.array(last)
    )


def test_hashes_that_fall_together_share_a_bucket_and_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    given = boxes([{0: (i % 5, i % 5 + 1), 1: (0, 9)} for i in range(20)], [9, 9])
    monkeypatch.setattr(kernels, "hash_points", lambda group, *_: np.full(20, 7, np.uint64))
    index = TupleIndex.build(given)
    assert index.stats() == {"shapes": 1, "tuples": 1}
    monkeypatch.undo()
    # where the event's hash is that of the bucket, the boxes are compared all the same
    right = TupleIndex.build(given)
    codes = np.array([[c, 3] for c in range(1, 10)], np.uint16)
    found = right.find(codes)
    assert [found.box[i:j].tolist() for i, j in zip(found.indptr[:-1], found.indptr[1:], strict=True)] == [
        [i for i in range(20) if i % 5 + 1 == c] for c in range(1, 10)
    ]


def test_sets_of_columns_whose_weights_fall_together_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rng:
        def __init__(self, seed: int) -> None:
            self.seed = seed

        def integers(
            self, low: int, high: int, size: int, dtype: type
        ) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
            return np.array([1, 2, 3] if self.seed == 0 else [1, 2, 4], np.uint64)

    monkeypatch.setattr(np.random, "default_rng", Rng)
    given = boxes([{0: (0, 1), 1: (0, 1)}, {2: (0, 1)}], [5, 5, 5])
    index = TupleIndex.build(given)
    assert isinstance(index.tuples, Tuples)
    assert index.stats()["shapes"] == 2
    assert index.find(np.array([[1, 1, 2], [2, 2, 1]], np.uint16)).box.tolist() == [0, 1]
