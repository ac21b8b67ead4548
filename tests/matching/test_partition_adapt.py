"""Parts that follow the load: balance comes back, and most subscriptions stay where they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast import AutoMatcher, EventBatch, Schema, SubscriptionSet, compile_filters
from narrowcast.errors import InputError, ParameterError
from narrowcast.matching.partition import Partitioner, Partitioning, PartWork, adapt, aligned, measure, moved
from narrowcast.matching.partition.adapt import renumbered
from narrowcast.planning.ranges.partitioning import scheme
from support.partition import check_parts, cobas, raw

Work_ = tuple[SubscriptionSet, EventBatch]


def drifted(batch: EventBatch, share: float, seed: int = 0) -> EventBatch:
    """Events of which a share has moved into a corner of the first two attributes."""
    rng = np.random.default_rng(seed)
    table = batch.to_arrow()
    moves = rng.random(len(batch)) < share
    for name in batch.schema.names[:2]:
        values = table[name].to_numpy().copy()
        values[moves] = 0.2 + 0.1 * values[moves]
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    return EventBatch.from_arrow(table, batch.schema)


@pytest.mark.parametrize(("copies", "routing"), [(1, "hash"), (4, "hash"), (4, "selective")])
def test_balance_comes_back_with_few_moves(copies: int, routing: Any) -> None:
    subscriptions, sample, unseen = cobas(8_000, 12_000, 1)
    maker = Partitioner(parts=32, copies=copies, routing=routing)
    parts = maker.fit(subscriptions, sample)
    now, later = drifted(sample, 0.15), drifted(unseen, 0.15, 1)
    before = measure(parts, subscriptions, later).work_max_over_mean
    found = adapt(parts, subscriptions, now, threshold=1.3)
    after = measure(found.parts, subscriptions, later)
    fresh = maker.fit(subscriptions, now)
    even = measure(fresh, subscriptions, later).work_max_over_mean
    assert before > 2.0
    assert found.before == pytest.approx(before, rel=0.2)
    assert after.work_max_over_mean < 1.6
    assert after.work_max_over_mean < max(1.5, 1.25 * even)
    assert found.parts.parts == parts.parts
    assert found.moved == pytest.approx(moved(parts, found.parts, subscriptions))
    # No more is moved than with parts made anew; these are taken where nothing else is even enough.
    assert found.even
    assert found.anew == (routing == "selective")
    assert found.fresh == pytest.approx(moved(parts, aligned(parts, fresh, subscriptions), subscriptions))
    assert found.fresh is not None
    assert 0 < found.moved < found.fresh or (found.anew and found.moved == found.fresh)


def test_what_is_even_stays() -> None:
    subscriptions, sample, unseen = cobas(3_000, 6_000, 2)
    parts = Partitioner(parts=16).fit(subscriptions, sample)
    found = adapt(parts, subscriptions, unseen, threshold=1.5)
    assert found.parts is parts
    assert (found.steps, found.moved, found.before) == (0, 0.0, found.after)


@settings(max_examples=60)
@given(
    work=raw(),
    late=raw(),
    shape=st.sampled_from([(1, 1), (5, 1), (6, 2), (8, 4)]),
    routing=st.sampled_from(["hash", "selective"]),
)
def test_nothing_is_lost(work: Work_, late: Work_, shape: tuple[int, int], routing: Any) -> None:
    parts = Partitioner(parts=shape[0], copies=shape[1], routing=routing).fit(*work)
    if late[0].schema != work[0].schema:
        return
    found = adapt(parts, *late, threshold=1.0)
    assert (found.parts.parts, found.parts.copies) == (parts.parts, parts.copies)
    assert found.after <= found.before
    check_parts(found.parts, *late)
    check_parts(found.parts, *work)
    again = adapt(Partitioning.from_arrow(found.parts.to_arrow(), parts.schema), *late, threshold=1.0)
    assert again.after <= found.after * (1 + 1e-9)


@pytest.mark.parametrize(
    ("copies", "routing", "share", "limit", "anew"),
    [
        (3, "selective", 0.3, 1.15, True),  # nothing is as even as that, and they come nearest
        (3, "selective", 0.9, 1.4, False),
        (1, "hash", 0.3, 1.15, True),  # as even, and they move less
        (1, "hash", 0.3, 1.4, False),
    ],
)
def test_parts_made_anew_are_taken_where_that_is_better(
    copies: int, routing: Any, share: float, limit: float, anew: bool
) -> None:
    subscriptions, sample, _ = cobas(2_000, 4_000, 5)
    maker = Partitioner(parts=12, copies=copies, routing=routing)
    parts = maker.fit(subscriptions, sample)
    now = drifted(sample, share)
    found = adapt(parts, subscriptions, now, threshold=limit)
    fresh = aligned(parts, maker.fit(subscriptions, now), subscriptions)
    assert found.before > limit
    assert found.anew == anew
    assert found.fresh == pytest.approx(moved(parts, fresh, subscriptions))
    assert found.fresh is not None
    assert found.moved <= found.fresh
    assert found.even == (found.after <= limit)
    assert (found.parts == fresh) == anew
    assert found.moved == pytest.approx(moved(parts, found.parts, subscriptions))


def test_what_cannot_be_made_even_says_so() -> None:
    """Nearly all events have one value, which no cut takes apart."""
    schema = Schema.of({"a": "bigint"})
    subscriptions = compile_filters(schema, [f"a = {i}" for i in range(8)]).subscriptions
    sample = EventBatch.from_rows([{"a": i % 8} for i in range(80)], schema)
    late = EventBatch.from_rows([{"a": 3 if i % 10 else i // 10} for i in range(80)], schema)
    parts = Partitioner(parts=8).fit(subscriptions, sample)
    found = adapt(parts, subscriptions, late)
    assert not found.even
    assert found.after > 5
    assert adapt(parts, subscriptions, sample).even


def test_numbers_are_dealt_out_so_that_little_moves() -> None:
    subscriptions, sample, _ = cobas(2_000, 3_000, 3)
    parts = Partitioner(parts=8, copies=2).fit(subscriptions, sample)
    order = np.random.default_rng(0).permutation(8)
    mixed = renumbered(parts, order)
    assert mixed != parts
    assert moved(parts, mixed, subscriptions) > 0.5
    assert aligned(parts, mixed, subscriptions) == parts
    assert moved(parts, parts, subscriptions) == 0.0


def test_work_as_it_was_measured_is_what_is_balanced() -> None:
    """Where matches cost most, cells with many are made smaller."""
    subscriptions, sample, unseen = cobas(4_000, 8_000, 4)
    counts = AutoMatcher().fit(subscriptions).count(unseen)

    def heaviest(parts: Partitioning) -> float:
        event, part = parts.parts_of_events(unseen)
        work = np.bincount(part, counts[event], minlength=parts.parts)
        return float(work.max() / work.mean())

    plain = Partitioner(parts=16).fit(subscriptions, sample)
    aware = Partitioner(parts=16, work=PartWork(event=0.0, pair=0.0, match=1.0)).fit(subscriptions, sample)
    assert heaviest(aware) < 1.25 < heaviest(plain)
    found = adapt(plain, subscriptions, sample, work=PartWork(event=0.0, pair=0.0, match=1.0), threshold=1.1)
    assert heaviest(found.parts) < heaviest(plain)


def test_work_is_fitted_without_going_below_zero() -> None:
    rng = np.random.default_rng(0)
    n, m, k = rng.integers(1, 1000, 200), rng.integers(1, 5000, 200), rng.integers(0, 9000, 200)
    true = PartWork(event=2e-6, held=6e-6, pair=1e-9, match=3e-8)
    seconds = true.of(n, m, k) * rng.uniform(0.98, 1.02, 200)
    found = PartWork.fitted(pa.table({"events": n, "subscriptions": m, "matches": k, "seconds": seconds}))
    np.testing.assert_allclose(found.of(n, m, k), true.of(n, m, k), rtol=0.1)
    assert min(found.event, found.held, found.pair, found.match) >= 0
    assert float(found.scaled(2, 3).of(n[0], m[0], k[0])) == pytest.approx(
        float(found.of(2 * n[0], 3 * m[0], 6 * k[0]))
    )


def test_what_is_refused() -> None:
    subscriptions, sample, _ = cobas(50, 60, 0)
    parts = Partitioner(parts=4).fit(subscriptions, sample)
    with pytest.raises(ParameterError, match=r"threshold is 0\.5; give a number of at least 1"):
        adapt(parts, subscriptions, sample, threshold=0.5)
    with pytest.raises(ParameterError, match="pair is -1"):
        PartWork(pair=-1)
    with pytest.raises(InputError, match="no column 'seconds'"):
        PartWork.fitted(pa.table({"events": [1], "subscriptions": [1], "matches": [1]}))
    with pytest.raises(ParameterError, match="work is 3; give a Work"):
        adapt(parts, subscriptions, sample, work=3)  # type: ignore[arg-type]
    ranges = scheme("cobas", parts=4).fit(subscriptions, sample)
    with pytest.raises(ParameterError, match="parts are RangeTrees; only those of the schemes kd, selective"):
        adapt(ranges, subscriptions, sample)  # type: ignore[arg-type]
    schema = EventBatch.from_rows([{"b": 1}]).schema
    with pytest.raises(ParameterError, match="do not go with parts over"):
        adapt(parts, compile_filters(schema, ["b > 1"]).subscriptions, sample)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("seconds", [0.0, 0.0], "all seconds are 0, so nothing tells parts apart; write it again with narro"),
        ("seconds", [-1.0, 2.0], "row 0 has -1.0 in column 'seconds'; give finite numbers of at least 0"),
        ("seconds", ["1", "x"], "column 'seconds' is string and not numbers; write it again with narrowcast"),
        ("matches", [1, None], "column 'matches' has 1 empty of 2; leave these rows out, or write it again"),
        ("matches", [], "it has no rows; write it again with narrowcast match --measured"),
    ],
)
def test_tables_that_tell_no_work(column: str, values: list[Any], message: str) -> None:
    names = ("events", "subscriptions", "matches", "seconds")
    table = {name: values if name == column else [1, 2][: len(values)] for name in names}
    with pytest.raises(InputError, match=message):
        PartWork.fitted(pa.table(table))


def test_balance_by_measured_work() -> None:
    """Beside events times subscriptions: by what a part finds, counted by a scan."""
    subscriptions, sample, unseen = cobas(300, 400, 6)
    work = PartWork(event=1.0, held=2.0, pair=0.5, match=30.0)
    ways: list[dict[str, Any]] = [{"copies": 1}, {"copies": 4, "routing": "selective"}]
    for way in ways:
        parts = Partitioner(parts=8, **way).fit(subscriptions, sample)
        event, seen = parts.parts_of_events(unseen)
        owner, held = parts.parts_of_subscriptions(subscriptions)
        found = np.zeros(8)
        for e, matched in enumerate(AutoMatcher().fit(subscriptions).match(unseen)):
            for p in matched.tolist():
                (part,) = set(seen[event == e].tolist()) & set(held[owner == p].tolist())
                found[part] += 1
        taken = work.of(np.bincount(seen, minlength=8), np.bincount(held, minlength=8), found)
        told = measure(parts, subscriptions, unseen, work=work)
        plain = measure(parts, subscriptions, unseen)
        assert told.measured_work_max_over_mean == pytest.approx(taken.max() / taken.mean())
        assert told.work_max_over_mean == plain.work_max_over_mean != told.measured_work_max_over_mean
        assert plain.measured_work_max_over_mean is None
