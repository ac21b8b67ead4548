"""The matcher of CobasTrees: where boxes live, what it sends, what it saves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from narrowcast import Cobas, EventBatch, Scan, Schema, SubscriptionSet, compile_filters, load_matcher
from narrowcast.errors import IndexFileError, InputError, ParameterError
from narrowcast.lab.cobas import CobasTree, IntervalColumns
from narrowcast.lab.cobas.forwarding import How
from narrowcast.lab.cobas.matcher import CobasIndex, Route, selectivity
from narrowcast.lab.kernels.cobas import LEFT, RIGHT, SIZE, START
from narrowcast.matching.ranks import CodedBoxes, Ranks
from support.errors import refused

Doubles = NDArray[np.float64]

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "golden" / "cobas2009_match.json").read_text()
)
HOWS: tuple[How, ...] = get_args(How)
every_route = pytest.mark.parametrize("route", get_args(Route))


def doubles(d: int) -> Schema:
    return Schema.of({f"a{i}": "double" for i in range(d)})


def batch(points: Doubles) -> EventBatch:
    d = points.shape[1]
    return EventBatch.from_arrow(pa.table({f"a{i}": points[:, i] for i in range(d)}), doubles(d))


def index(matcher: Cobas) -> CobasIndex:
    found = matcher._snapshot.segments[0].index
    assert isinstance(found, CobasIndex)
    return found


def some(n: int, d: int, seed: int = 0) -> SubscriptionSet:
    """Boxes of which a third of the sides is open, and some bound nothing."""
    rng = np.random.default_rng(seed)
    lo = rng.integers(0, 20, (n, d)).astype(np.float64)
    hi = lo + rng.integers(1, 8, (n, d))
    lo[rng.random((n, d)) < 0.35], hi[rng.random((n, d)) < 0.35] = -np.inf, np.inf
    return SubscriptionSet.from_boxes(doubles(d), ["s"] * n, lo, hi)


@every_route
@settings(max_examples=25)
@given(n=st.integers(0, 80), d=st.integers(1, 4), seed=st.integers(0, 99))
def test_equals_scan(route: Route, n: int, d: int, seed: int) -> None:
    subscriptions = some(n, d, seed)
    points = np.random.default_rng(seed).integers(-1, 30, (40, d)).astype(np.float64)
    points[::7] = np.nan
    events = batch(points)
    matcher = Cobas(route=route, seed=seed).fit(subscriptions)
    want = Scan().fit(subscriptions).match(events)
    assert matcher.match(events) == want
    assert matcher.count(events).tolist() == want.counts().tolist()


@every_route
def test_golden_filters(route: Route) -> None:
    names = [f"a{i}" for i in range(4)]
    schema = Schema.of(dict.fromkeys(names, "double"))
    texts = [
        " AND ".join(f"a{a} BETWEEN {low} AND {high}" for a, (low, high, *_) in filter_.items())
        for filter_ in GOLDEN["filters"]
    ]
    subscriptions = compile_filters(schema, texts, strict=True).subscriptions
    points = np.array(GOLDEN["contents"])
    matcher = Cobas(route=route).fit(subscriptions)
    assert [row.tolist() for row in matcher.match(batch(points))] == GOLDEN["matches"]


@every_route
def test_each_box_lives_in_one_tree(route: Route) -> None:
    found = index(Cobas(route=route).fit(some(300, 3)))
    held = [*found.bounds.box.tolist(), *found.everywhere.tolist()]
    assert sorted(held) == list(range(300))
    assert 0 < len(found.everywhere) < 30
    assert found.column.tolist() == [0, 1, 2]


def test_most_selective_attribute() -> None:
    """Filter 0 is narrow in a, filter 1 in b; an attribute that no filter is indexed by has no tree."""
    schema = Schema.of({"a": "bigint", "b": "bigint", "c": "bigint"})
    texts = ["a = 5 AND b > 0 AND c > 0", "b = 5 AND a > 0 AND c > 0"]
    texts += [f"a = {i}" for i in range(20)] + [f"b = {i}" for i in range(20)]
    matcher = Cobas().fit(compile_filters(schema, texts).subscriptions)
    found = index(matcher)
    assert found.column.tolist() == [0, 1]
    owner = found.bounds.box.tolist()
    # segments are numbered tree by tree
    assert owner.index(0) < 21 <= owner.index(1)
    assert matcher.stats()["indexes"][0]["trees"] == 2


def test_a_sample_decides_what_is_selective() -> None:
    column, (lo, hi) = np.array([0, 1, 0], np.int32), np.array([[0, 0, 2], [1, 2, 4]], np.uint16)
    boxes = CodedBoxes(np.array([0, 2, 3]), column, lo, hi, np.array([4, 4]))
    assert selectivity(boxes).tolist() == [0.25, 0.5, 0.5]
    none = np.empty((0, 2), np.uint16)
    assert selectivity(boxes, none).tolist() == [0.25, 0.5, 0.5]
    sample = np.array([[1, 3], [1, 4], [4, 2]], np.uint16)
    assert selectivity(boxes, sample).tolist() == [(2 + 0.25) / 4, (1 + 0.5) / 4, (1 + 0.5) / 4]
    schema = Schema.of({"a": "bigint", "b": "bigint"})
    subscriptions = compile_filters(schema, ["a < 10 AND b < 10"]).subscriptions
    for often, tree in (("a", 1), ("b", 0)):
        values = {"a": [20] * 50, "b": [20] * 50, often: [1] * 50}
        matcher = Cobas().fit(subscriptions, EventBatch.from_arrow(pa.table(values), schema))
        assert index(matcher).column.tolist() == [tree]


def test_random_is_by_seed() -> None:
    subscriptions = some(300, 3)
    owners = [index(Cobas(route="random", seed=s).fit(subscriptions)).bounds.box.tolist() for s in (1, 1, 2)]
    assert owners[0] == owners[1] != owners[2]


def test_nothing_bounded() -> None:
    schema = Schema.of({"a": "bigint", "b": "bigint"})
    events = EventBatch.from_arrow(pa.table({"a": [1, None], "b": [2, 3]}), schema)
    matcher = Cobas().fit(compile_filters(schema, ["TRUE", "TRUE"]).subscriptions)
    assert [row.tolist() for row in matcher.match(events)] == [[0, 1], [0, 1]]
    assert matcher.count(events).tolist() == [2, 2]
    assert [some.tolist() for some in matcher.probe(events)] == [[0, 0], [0, 0]]
    assert index(matcher).stats() == {"trees": 0, "nodes": 0, "height": 0, "everywhere": 2}


def boxes_of(found: CobasIndex, root: int) -> list[int]:
    """Return the boxes in a tree, by walking it."""
    if root < 0:
        return []
    start, size = found.nodes.link[root, START], found.nodes.link[root, SIZE]
    own = found.bounds.box[found.nodes.lower[start : start + size]].tolist()
    below = [boxes_of(found, int(found.nodes.link[root, side])) for side in (LEFT, RIGHT)]
    return sorted([*own, *below[0], *below[1]])


def test_messages_are_those_of_the_trees() -> None:
    """What trees built one by one would send."""
    points = np.random.default_rng(3).integers(-1, 30, (60, 3)).astype(np.float64)
    subscriptions = some(200, 3)
    matcher = Cobas().fit(subscriptions)
    found, events = index(matcher), batch(points)
    boxes = Ranks.code(subscriptions.boxes)[1]
    lo, hi = (ends.astype(np.float64) for ends in boxes.dense())
    trees = []
    for column, root in zip(found.column.tolist(), found.root.tolist(), strict=True):
        own = boxes_of(found, root)
        trees.append((column, CobasTree(IntervalColumns(lo[own, column] + 1, hi[own, column]))))
    assert sum(len(tree) for _, tree in trees) + len(found.everywhere) == 200
    codes = matcher._codes(events).astype(np.float64)
    for how in HOWS:
        sent = [tree.forward(codes[:, column], how) for column, tree in trees]
        messages, hops = matcher.probe(events, how)
        assert messages.tolist() == np.sum([one.messages for one in sent], axis=0).tolist()
        assert hops.tolist() == np.max([one.hops for one in sent], axis=0).tolist()
        assert messages.max() > 2


def test_changes_and_snapshots() -> None:
    subscriptions = some(300, 2)
    events = batch(np.random.default_rng(1).integers(-1, 30, (50, 2)).astype(np.float64))
    matcher = Cobas().fit(subscriptions.take(np.arange(200)))
    before, was = matcher.snapshot(), matcher.match(events)
    matcher.add(subscriptions.take(np.arange(200, 300))).remove(np.arange(0, 300, 3))
    left = subscriptions.take(np.setdiff1d(np.arange(300), np.arange(0, 300, 3)))
    for _ in range(2):
        assert matcher.match(events) == Scan().fit(left).match(events)
        matcher.compact()
    assert before.match(events) == was


@every_route
def test_saved_and_loaded(route: Route, tmp_path: Path) -> None:
    events = batch(np.random.default_rng(1).integers(-1, 30, (50, 3)).astype(np.float64))
    matcher = Cobas(route=route, seed=5).fit(some(100, 3))
    matcher.save(tmp_path / "saved")
    again = load_matcher(tmp_path / "saved")
    assert isinstance(again, Cobas)
    assert (again.route, again.seed) == (route, 5)
    assert again.match(events) == matcher.match(events)
    assert [a.tolist() for a in again.probe(events)] == [a.tolist() for a in matcher.probe(events)]


def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = index(Cobas().fit(some(50, 2))).arrays()
    for name in ("lower", "root", "column", "link"):
        with pytest.raises(ValueError, match="inconsistent"):
            CobasIndex.restore({**arrays, name: arrays[name][:-1]})
    with pytest.raises(ValueError, match="inconsistent"):
        CobasIndex.restore({**arrays, "root": arrays["root"] + len(arrays["link"])})
    monkeypatch.setattr(CobasIndex, "arrays", lambda self: {**arrays, "lower": arrays["lower"][:-1]})
    Cobas().fit(some(50, 2)).save(tmp_path / "damaged")
    with pytest.raises(IndexFileError, match="inconsistent"):
        load_matcher(tmp_path / "damaged")


def test_bad_parameters_are_refused() -> None:
    with refused(ParameterError, parameter="route", value="best"):
        Cobas(route="best")
    for seed in (-1, 1.5, True):
        with refused(ParameterError, seed, parameter="seed", value=seed):
            Cobas(seed=seed)
    matcher = Cobas().fit(some(5, 2))
    with refused(ParameterError, parameter="how", value="up"):
        matcher.probe(batch(np.zeros((1, 2))), "up")
    with refused(InputError, 2, parameter="codes", value=(1, 3)):
        index(matcher).find(np.zeros((1, 3), np.uint16))
