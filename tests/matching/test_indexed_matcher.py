"""Matchers over an index: single events, other answers, threads, changes, and readers beside a writer."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, stateful
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

import narrowcast as nc
from narrowcast.errors import FilterError, InputError, NarrowcastError, ParameterError
from narrowcast.matching import MATCHERS, AutoMatcher, Scan, append_index, indexed_matcher
from narrowcast.matching.ids import SubscriptionIds
from narrowcast.matching.indexed_matcher import IndexedMatcher
from support.filters import events, filters, schemas

Make = Callable[..., IndexedMatcher]
Patch = pytest.MonkeyPatch

KINDS: dict[str, Make] = {name: kind for name, kind in MATCHERS.items() if issubclass(kind, IndexedMatcher)}
MAKES = {name: kind for name, kind in KINDS.items() if name != "bitmap"}
MAKES |= {layout: partial(KINDS["bitmap"], layout=layout) for layout in ("flat", "blocks")}
FEW = settings(max_examples=15, suppress_health_check=list(HealthCheck))
every = pytest.mark.parametrize("make", list(MAKES.values()), ids=list(MAKES))

COLUMNS = ["subscription_id", "subscriber", "filter"]
SCHEMA = nc.Schema.of({"a": "bigint", "b": "bigint", "s": "string", "x": "double"})
#: Several boxes, checks in the middle of a string, past a key's end and between attributes, and constants.
TEXTS = ["a > 3", "a = 2 AND b = 1", "a < 1 OR b > 4 OR s = 'm'", "a IN (1, 3, 5) AND b <> 2", "a < b"]
TEXTS += ["s LIKE '%long%'", "s = 'a long name of a thing'", "a = b OR s LIKE 'a%g'", "s IS NULL", "TRUE"]
TEXTS += ["s > 'a long name of' AND s < 'a long name of b'", "s = 'a long name of a thing' OR a = 0", "FALSE"]
TEXTS += ["s = 'a long name of another' AND a > 1", "x > 0.5 AND a IS NOT NULL", "NOT (x <= 0.25)"]
WORDS = [None, "", "m", "a", "a long name of a thing", "a long name of another", "along", "a long name of az"]


def batch_of(seed: int, n: int) -> nc.EventBatch:
    rng = np.random.default_rng(seed)
    values: dict[str, list[Any]] = {"a": [None, *range(7)], "b": [None, *range(7)], "s": WORDS}
    values["x"] = [None, 0.0, 0.25, 0.5, 1.0, math.nan]
    columns = {name: [v[i] for i in rng.integers(0, len(v), n)] for name, v in values.items()}
    types = [pa.int64(), pa.int64(), pa.string(), pa.float64()]
    arrays = [pa.array(column, kind) for column, kind in zip(columns.values(), types, strict=True)]
    return nc.EventBatch.from_arrow(pa.table(arrays, names=list(values)), SCHEMA)


def compiled(pairs: Mapping[int, str], schema: nc.Schema = SCHEMA) -> nc.SubscriptionSet:
    """Subscriptions by id; every third belongs to the same subscriber."""
    ids = pa.array(list(pairs), pa.int64())
    names = pa.array([f"s{i % 3}" for i in pairs], pa.string())
    table = pa.table([ids, names, pa.array(list(pairs.values()), pa.string())], names=COLUMNS)
    return nc.compile_filters(schema, table, strict=True).subscriptions


def many(n: int, first: int = 0) -> dict[int, str]:
    return {i: TEXTS[i % len(TEXTS)].replace("3", str(i % 7)) for i in range(first, first + n)}


def plain(n: int, first: int = 0) -> dict[int, str]:
    return {first + i: f"a > {i % 7} AND b <= {i % 5}" for i in range(n)}


def without(left: Mapping[int, str], gone: Collection[int]) -> dict[int, str]:
    return {i: text for i, text in left.items() if i not in gone}


def same(matcher: IndexedMatcher, left: Mapping[int, str], batch: nc.EventBatch) -> None:
    """Compare all answers with those of a scan over what is left."""
    now, want = matcher.subscriptions_, Scan().fit(compiled(left)).match(batch)
    assert now.subscription_id.tolist() == list(left)
    assert now.subscribers.take(pa.array(now.subscriber)).to_pylist() == [f"s{i % 3}" for i in left]
    assert matcher.match(batch) == want
    assert matcher.count(batch).tolist() == want.counts().tolist()
    names = now.subscribers.to_pylist()
    wanted = [[names[i] for i in row] for row in matcher.subscribers(batch)]
    assert wanted == [sorted({f"s{list(left)[i] % 3}" for i in row}) for row in want]
    flags = np.unpackbits(matcher.bitmaps(batch).view(np.uint8), axis=1, bitorder="little")
    assert flags.shape == (len(batch), 64 * -(-len(left) // 64))
    assert [np.flatnonzero(row).tolist() for row in flags] == [row.tolist() for row in want]
    for i in range(min(3, len(batch))):
        assert matcher.match_one(batch.row(i)).tolist() == want[i].tolist()


@pytest.fixture
def small_limits(monkeypatch: Patch) -> None:
    monkeypatch.setattr(indexed_matcher, "_TAIL", 5)
    monkeypatch.setattr(append_index, "CHUNK", 64)
    monkeypatch.setattr(append_index, "_WIDTH", 1)


def outcome(call: Callable[[Any], Any], event: Mapping[Any, Any]) -> tuple[Any, ...]:
    try:
        return ("found", call(event).tolist())
    except NarrowcastError as error:
        return (type(error), str(error))


@every
@FEW
@given(data=st.data())
def test_one_event_of_any_types_equals_a_batch(make: Make, data: st.DataObject) -> None:
    schema = data.draw(schemas())
    texts = data.draw(st.lists(filters(schema), max_size=6))
    table = data.draw(events(schema, size=4))
    subscriptions = nc.compile_filters(schema, texts, strict=True).subscriptions
    matcher = make().fit(subscriptions)
    want = Scan().fit(subscriptions).match(nc.EventBatch.from_arrow(table, schema))
    for i, row in enumerate(table.to_pylist()):
        bare = {name: value for name, value in row.items() if name != "event_id"}
        some = {name: value for name, value in bare.items() if value is not None}
        assert [matcher.match_one(e).tolist() for e in (row, bare, some)] == [want[i].tolist()] * 3


TYPED = {"a": "bigint", "b": "tinyint", "c": "double", "d": "float", "e": "string", "f": "boolean"}
TYPED |= {"g": "date", "h": "decimal(6,2)", "z": "struct", "z.q": "int", "t": "timestamp"}
TYPED_TEXTS = ["a > 1", "b = 5", "c > 1.5", "c >= 0", "d < 2", "e = 'a'", "e LIKE '%long%'", "f", "NOT f"]
TYPED_TEXTS += ["g > '2024-01-01'", "h = 2.5", "z IS NULL", "z IS NOT NULL", "z.q = 1", "a IS NULL", "a < b"]
TYPED_TEXTS += ["t > '2024-01-01T00:00:00'", "e = 'a long string'", "c = CAST('NaN' AS DOUBLE)"]
VALUES: dict[str, list[Any]] = {
    "a": [None, 2**63 - 1, -(2**63), 2**63, 2.0, 2.5, True, "2", "x", [], np.int64(2), Decimal(2)],
    "b": [5, 127, 128, -129],
    "c": [2, 2**53 + 1, 2**70, -0.0, math.nan, -math.inf, True, "2.5", np.float64(2.5), np.float32(2.5)],
    "d": [1.5, 0.1, 1e300, 3],
    "e": ["a long string", "along", "a\ud800", b"a", 5, "", np.str_("a")],
    "f": [False, 1, 2, "true", np.True_],
    "g": [date(2024, 3, 1), "2024-03-01", datetime(2024, 3, 1), datetime(2024, 3, 1, 5), "never"],
    "h": [Decimal("2.5"), Decimal("2.555"), 2.5, 2],
    "z": [None, {}, {"q": 1}, {"q": None}, {"q": "x"}, 5],
    "z.q": [1, "x"],
    "t": [datetime(2024, 3, 1, tzinfo=UTC), datetime(2024, 3, 1), "2024-03-01T00:00:00Z"],
    "A": [2, "x"],
    "event_id": [7, "x", None],
}
SINGLE: list[Mapping[Any, Any]] = [{}, {"a": 2, "b": 5, "c": 2.5, "e": "a", "f": True}]
SINGLE += [{name: value} for name, values in VALUES.items() for value in values]
SINGLE += [
    {"a": 2, "A": 3},
    {"a": 2, "nobody": {}},
    {"Z": {"Q": 1}},
    {"z": None, "z.q": 1},
    {"z": {"q": 1}, "z.q": 2},
]


NAMED = {"event_id": "bigint", "a": "bigint"}, ["event_id IS NULL", "event_id > 3", "a > 3"]
NAMED_EVENTS = [{"event_id": 5}, {"event_id": None}, {"a": 5}, {"event_id": 3, "a": 5}, {}]


@every
@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("case", [(TYPED, TYPED_TEXTS, SINGLE), (*NAMED, NAMED_EVENTS)])
def test_one_event_is_read_as_from_rows_reads_it(make: Make, changed: bool, case: tuple[Any, ...]) -> None:
    types, texts, single = case
    schema = nc.Schema.of(types)
    subscriptions = compiled(dict(enumerate(texts)), schema)
    scan = Scan().fit(subscriptions)
    matcher = make().fit(compiled({}, schema)).add(subscriptions) if changed else make().fit(subscriptions)
    for event in single:
        want = outcome(lambda e: scan.match(nc.EventBatch.from_rows([e], schema)).index, event)
        assert outcome(matcher.match_one, event) == want, event


@every
def test_one_event_as_a_batch(make: Make) -> None:
    matcher = make().fit(compiled(many(40)))
    batch = batch_of(1, 20)
    want = Scan().fit(compiled(many(40))).match(batch)
    assert all(np.array_equal(matcher.match_one(batch.slice(i, i + 1)), want[i]) for i in range(20))
    for wrong in (batch.slice(0, 2), batch.slice(0, 0)):
        with pytest.raises(InputError, match=f"match_one takes one event, not {len(wrong)}; use match"):
            matcher.match_one(wrong)


@every
@pytest.mark.parametrize("texts", [plain, many])
@pytest.mark.parametrize(("n", "threads"), [(0, 2), (1, 1), (63, 3), (64, 1), (65, 2), (200, 3)])
def test_all_answers_agree(make: Make, texts: Callable[..., dict[int, str]], n: int, threads: int) -> None:
    left, more = texts(n), texts(20, 1000)
    matcher = make(threads=threads).fit(compiled(left))
    for size in (0, 1, 127, 128, 193):
        same(matcher, left, batch_of(n, size))
    left |= more
    same(matcher.add(compiled(more)), left, batch_of(n + 1, 200))
    same(matcher.remove(list(left)[::4]), without(left, list(left)[::4]), batch_of(n + 2, 200))


@every
def test_a_sample_changes_nothing_but_speed(make: Make) -> None:
    left, batch = many(100), batch_of(5, 60)
    for sample in (batch_of(6, 200), batch_of(6, 1), batch_of(6, 0)):
        matcher = make().fit(compiled(left), sample)
        same(matcher, left, batch)
        same(matcher.add(compiled(many(9, 500))).compact(), left | many(9, 500), batch)
    with pytest.raises(InputError, match="read the events with the subscriptions' schema"):
        make().fit(compiled(left), nc.EventBatch.from_rows([{"q": 1}]))


@every
def test_stats(make: Make) -> None:
    matcher = make().fit(compiled(plain(100)))
    stats = matcher.stats()
    assert stats["matcher"] == next(name for name, kind in KINDS.items() if type(matcher) is kind)
    counts = itemgetter("subscriptions", "boxes", "added", "empty_slots")
    assert counts(stats) == (100, 100, 0, 0)
    assert [part["code_bits"] for part in stats["indexes"]] == [16]
    assert stats["bytes"] >= sum(part["bytes"] for part in stats["indexes"]) > 0
    matcher.add(compiled(plain(10, 500))).remove([0, 1, 505])
    assert counts(matcher.stats()) == (107, 107, 10, 3)
    assert counts(matcher.compact().stats()) == (107, 107, 0, 0)


class Changes(stateful.RuleBasedStateMachine):
    """Adds, removes, adds again what was removed, indexes anew, saves and loads; compares with a scan."""

    def __init__(self, make: Make, folder: Path) -> None:
        super().__init__()
        self.matcher, self.folder = make(), folder
        self.left: dict[int, str] = {}
        self.gone: set[int] = set()

    @stateful.initialize(texts=st.lists(st.sampled_from(TEXTS), max_size=8))
    def start(self, texts: list[str]) -> None:
        self.left = dict(enumerate(texts))
        self.matcher.fit(compiled(self.left))

    @rule(texts=st.dictionaries(st.integers(0, 60), st.sampled_from(TEXTS), max_size=9))
    def add(self, texts: dict[int, str]) -> None:
        more = {i: text for i, text in texts.items() if i not in self.left}
        self.matcher.add(compiled(more))
        self.left |= more
        self.gone -= set(more)

    @rule(data=st.data())
    @precondition(lambda self: self.gone)
    def add_again(self, data: st.DataObject) -> None:
        again = data.draw(st.lists(st.sampled_from(sorted(self.gone)), min_size=1, unique=True))
        self.add({i: data.draw(st.sampled_from(TEXTS)) for i in again})

    @rule(data=st.data())
    @precondition(lambda self: self.left)
    def remove(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(list(self.left)), min_size=1) | st.just(list(self.left)))
        self.matcher.remove(ids)
        self.gone |= set(ids)
        self.left = without(self.left, ids)

    @rule()
    def compact(self) -> None:
        self.matcher.compact()

    @rule()
    def save_and_load(self) -> None:
        path = self.folder / "index"
        self.matcher.save(path)
        self.matcher = type(self.matcher).load(path)

    @rule(seed=st.integers(0, 50))
    def match(self, seed: int) -> None:
        same(self.matcher, self.left, batch_of(seed, 12))

    def teardown(self) -> None:
        same(self.matcher, self.left, batch_of(99, 12))


@every
@pytest.mark.usefixtures("small_limits")
def test_any_changes_equal_fitting_what_is_left(make: Make, tmp_path: Path) -> None:
    class Machine(Changes):
        def __init__(self) -> None:
            super().__init__(make, tmp_path)

    stateful.run_state_machine_as_test(Machine, settings=settings(FEW, stateful_step_count=15))


@every
@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("step", [1, 3, 70])
def test_long_additions_pass_every_limit(make: Make, step: int) -> None:
    left = many(40)
    matcher = make().fit(compiled(left))
    rng = np.random.default_rng(step)
    for turn in range(max(6, min(50, 400 // step))):
        more = many(step, 100 + turn * step)
        matcher.add(compiled(more))
        left |= more
        if turn % 3 == 2:
            gone = rng.choice(list(left), min(len(left), step), replace=False).tolist()
            matcher.remove(gone)
            left = without(left, gone)
        if turn % 10 == 9:
            same(matcher, left, batch_of(turn, 15))
    same(matcher, left, batch_of(0, 60))


def boxes(n: int, first: int) -> nc.SubscriptionSet:
    schema = nc.Schema.of({"u": "double", "v": "double"})
    rng = np.random.default_rng(first)
    lo = np.where(rng.random((n, 2)) < 0.3, -np.inf, rng.random((n, 2)))
    return nc.SubscriptionSet.from_boxes(schema, ["s"] * n, lo, lo + 0.2, np.arange(first, first + n))


@every
def test_additions_pass_the_limits_as_they_are(make: Make) -> None:
    rng = np.random.default_rng(2)
    batch = nc.EventBatch.from_arrow(pa.table({"u": rng.random(40), "v": rng.random(40)}))
    sets = [boxes(n, i * 10**6) for i, n in enumerate((20000, append_index.CHUNK + 5, 4000, 1, 100, 9000, 1))]
    matcher, reference = make().fit(sets[0]), Scan().fit(sets[0])
    for more in sets[1:]:
        assert matcher.add(more).match(batch) == reference.add(more).match(batch)
    assert len(matcher.stats()["indexes"]) > 1
    gone = rng.choice(reference.subscriptions_.subscription_id, 5000, replace=False)
    assert matcher.remove(gone).match(batch) == reference.remove(gone).match(batch)


@every
def test_an_empty_set_takes_additions_and_loses_them(make: Make) -> None:
    batch = batch_of(3, 30)
    matcher = make().fit(compiled({}))
    same(matcher, {}, batch)
    same(matcher.add(compiled({})).remove([]).compact(), {}, batch)
    same(matcher.add(compiled(many(16))), many(16), batch)
    same(matcher.remove(range(16)), {}, batch)
    same(matcher.add(compiled({3: "a > 3", 1: "TRUE"})), {3: "a > 3", 1: "TRUE"}, batch)


@every
def test_removing_an_id_twice_in_one_call_is_removing_it(make: Make) -> None:
    left, batch = without(many(16), [3]), batch_of(0, 30)
    matcher = make().fit(compiled(many(16))).remove([3, 3, 3])
    for _ in range(3):
        same(matcher, left, batch)
        with pytest.raises(InputError, match="subscription_id 3 is not there; nothing was removed"):
            matcher.remove(3)
        same(matcher.add(compiled({3: "TRUE"})), left | {3: "TRUE"}, batch)
        matcher.remove(3)


@pytest.mark.parametrize("ids", [1.5, [0.5], "1", ["x"], None, [None], 2**64, True, [[0, 1]]])
def test_ids_that_are_no_ids_remove_nothing(ids: Any) -> None:
    matcher = AutoMatcher().fit(compiled(many(16))).add(compiled(many(1, 50)))
    with pytest.raises(InputError):
        matcher.remove(ids)
    same(matcher, many(16) | many(1, 50), batch_of(0, 20))


@every
def test_errors_leave_everything_as_it_was(make: Make) -> None:
    left, batch = many(16), batch_of(8, 30)
    matcher = make().fit(compiled(left))
    other = nc.Schema.of({"b": "bigint", "a": "bigint"})
    # a check that names what is not there cannot come from compile_filters
    bad = [replace(compiled({70: "a < b"}, schema), check=pa.array(["q > 1"])) for schema in (SCHEMA, other)]
    for _ in range(2):
        with pytest.raises(InputError, match="subscription_id 5 is used twice"):
            matcher.add(compiled({71: "TRUE", 5: "TRUE"}))
        with pytest.raises(InputError, match="do not go with those over"):
            matcher.add(compiled({70: "a > 1"}, other))
        with pytest.raises(InputError, match="subscription_id 800 is not there"):
            matcher.remove([1, 800])
        with pytest.raises(FilterError, match="unknown attribute 'q'"):
            matcher.add(bad[0])
        with pytest.raises(FilterError, match="unknown attribute 'q'"):
            matcher.fit(bad[1], nc.EventBatch.from_rows([{"a": 1}], other))
        same(matcher, left, batch)
        same(matcher.compact(), left, batch)
        same(matcher.add(compiled({70: "a > 1"})), left | {70: "a > 1"}, batch)
        matcher.remove(70)
    with pytest.raises(InputError, match="subscription_id 4 is used twice"):
        replace(compiled(many(2)), subscription_id=np.array([4, 4]))


@every
@pytest.mark.usefixtures("small_limits")
def test_an_index_that_fails_leaves_everything(make: Make, monkeypatch: Patch) -> None:
    left, batch = many(16), batch_of(8, 30)
    matcher = make().fit(compiled(left))
    changes: list[tuple[Any, ...]] = [("add", compiled(many(20, 100))), ("remove", range(12))]
    changes += [("compact",), ("fit", compiled(many(3)))]
    with monkeypatch.context() as patch:
        patch.setattr(matcher, "_index", Mock(side_effect=ParameterError("too large")))
        for name, *arguments in changes:
            with pytest.raises(ParameterError, match="too large"):
                getattr(matcher, name)(*arguments)
            same(matcher, left, batch)
    same(matcher.add(compiled(many(20, 100))), left | many(20, 100), batch)


@every
@pytest.mark.parametrize("late", [False, True])
def test_an_interrupted_addition_changes_nothing(make: Make, late: bool, monkeypatch: Patch) -> None:
    left, batch = many(16) | {90: "a = 2 AND b = 1"}, batch_of(8, 60)
    matcher = make().fit(compiled(many(16))).add(compiled({90: left[90]}))
    steps = [SubscriptionIds.add] * late + [Mock(side_effect=KeyboardInterrupt)]
    with monkeypatch.context() as patch:
        patch.setattr(SubscriptionIds, "add", lambda *given: [step(*given) for step in steps])
        with pytest.raises(KeyboardInterrupt):
            matcher.add(compiled({91: "a = 900", 92: "b = 900"}))
    same(matcher, left, batch)
    same(matcher.add(compiled({93: "b > 0", 92: "a > 0"})), left | {93: "b > 0", 92: "a > 0"}, batch)
    with pytest.raises(InputError, match="subscription_id 91 is not there"):
        matcher.remove(91)


@every
def test_misuse_is_told(make: Make) -> None:
    answers = ("match", "match_one", "count", "bitmaps", "subscribers")
    calls: list[tuple[Any, ...]] = [*((name, batch_of(0, 1)) for name in answers), ("compact",), ("stats",)]
    calls += [("match_one", {}), ("add", compiled({})), ("remove", []), ("save", "nowhere")]
    for name, *arguments in calls:
        with pytest.raises(ParameterError, match="call fit first"):
            getattr(make(), name)(*arguments)
    for threads in (0, -1, 1025, 1.0, True, "2", None):
        with pytest.raises(ParameterError, match=f"threads is {threads!r}; give a whole number from 1 to"):
            make(threads=threads)
    matcher = make().fit(compiled(plain(3)))
    for name in answers:
        with pytest.raises(InputError, match="read the events with the subscriptions' schema"):
            getattr(matcher, name)(nc.EventBatch.from_rows([{"q": 1}]))


BASE, X, Y = many(30), many(10, 100), many(10, 200)
#: What a writer does, over and over, and what is there afterwards.
PLAN = [("add", X, BASE | X), ("add", Y, BASE | X | Y), ("remove", X, BASE | Y), ("compact", {}, BASE | Y)]
PLAN += [("add", X, BASE | Y | X), ("remove", Y, BASE | X), ("remove", X, BASE)]


@every
@pytest.mark.usefixtures("small_limits")
def test_readers_see_some_state_of_the_writer(make: Make) -> None:
    batch = batch_of(4, 150)
    valid = [Scan().fit(compiled(left)).match(batch) for _, _, left in PLAN]
    ones, counts = [v[0].tolist() for v in valid], [v.counts().tolist() for v in valid]
    matcher = make(threads=2).fit(compiled(BASE))
    done = threading.Event()

    def read(turn: int) -> int:
        n = 0
        while not done.is_set() or n == 0:
            if turn:
                assert matcher.match(batch) in valid
            else:
                assert matcher.match_one(batch.row(0)).tolist() in ones
                assert matcher.count(batch).tolist() in counts
            n += 1
        return n

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read, turn) for turn in range(2)]
        try:
            for change, some, _ in PLAN * 6:
                given = compiled(some) if change == "add" else list(some)
                getattr(matcher, change)(*([given] if some else []))
        finally:
            done.set()
        assert all(reader.result(timeout=60) > 0 for reader in readers)
    same(matcher, BASE, batch)


@every
@pytest.mark.parametrize("change", ["compact", "fit", "other schema"])
def test_no_reader_waits_for_an_index(make: Make, change: str, monkeypatch: Patch) -> None:
    left, batch = many(30), batch_of(9, 200)
    matcher = make().fit(compiled(left))
    inside, go, real = threading.Event(), threading.Event(), matcher._index

    def slow(*given: Any) -> Any:
        inside.set()
        assert go.wait(60)
        return real(*given)

    monkeypatch.setattr(matcher, "_index", slow)
    other = nc.Schema(SCHEMA.names[::-1], SCHEMA.types[::-1])
    fresh = compiled(many(3), other if change == "other schema" else SCHEMA)
    with ThreadPoolExecutor(2) as pool:
        writer = pool.submit(matcher.compact) if change == "compact" else pool.submit(matcher.fit, fresh)
        try:
            assert inside.wait(60)
            second = pool.submit(matcher.remove, [1])
            same(matcher, left, batch)
            assert (writer.done(), second.done()) == (False, False)  # writers wait for one another
        finally:
            go.set()
        assert all(done.result(timeout=60) is matcher for done in (writer, second))
    left = without(left if change == "compact" else many(3), [1])
    assert matcher.subscriptions_.subscription_id.tolist() == list(left)
