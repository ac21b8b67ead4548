"""Boxes and checks say of every event what the reference says."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from narrowcast import EventBatch, FilterLimits, Scan, Schema, compile_filters
from narrowcast.filters.compiler import FilterCompiler
from narrowcast.model import keys
from support.filters import TYPES, events, filters, schemas
from support.reference import found, reference


@st.composite
def cases(draw: st.DrawFn) -> tuple[Schema, list[str], pa.Table]:
    schema = draw(schemas())
    texts = draw(st.lists(filters(schema), min_size=1, max_size=8))
    return schema, texts, draw(events(schema))


@pytest.mark.parametrize("dtype", TYPES)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_boxes_and_checks_equal_the_reference_for_each_type(dtype: str, data: st.DataObject) -> None:
    schema = Schema.of({"a": dtype, "b": dtype})
    texts = data.draw(st.lists(filters(schema), min_size=4, max_size=12))
    table = data.draw(events(schema))
    assert found(schema, texts, table) == reference(schema, texts, table)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_boxes_and_checks_equal_the_reference(case: tuple[Schema, list[str], pa.Table]) -> None:
    schema, texts, table = case
    assert found(schema, texts, table) == reference(schema, texts, table)


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_tight_limits_change_the_boxes_but_not_the_matches(case: tuple[Schema, list[str], pa.Table]) -> None:
    schema, texts, table = case
    compiled = compile_filters(schema, texts, limits=FilterLimits(expand=1, boxes=2))
    kept = compiled.subscriptions.subscription_id
    batch = EventBatch.from_arrow(table, schema)
    got = [kept[m].tolist() for m in Scan().fit(compiled.subscriptions).match(batch)]
    assert got == [[i for i in row if i in kept] for row in reference(schema, texts, table)]
    assert all("boxes" in reason for reason in compiled.rejected["reason"].to_pylist())


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_the_cache_changes_nothing(case: tuple[Schema, list[str], pa.Table]) -> None:
    schema, texts, _ = case
    with_cache = FilterCompiler(schema).compile(texts * 2).boxes
    without = FilterCompiler(schema, cache=False).compile(texts * 2).boxes
    for column in ("owner", "indptr", "attribute", "lo", "hi", "exact"):
        np.testing.assert_array_equal(getattr(with_cache, column), getattr(without, column))


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_boxes_are_never_empty_and_exact_ones_need_no_check(case: tuple[Schema, list[str], pa.Table]) -> None:
    schema, texts, _ = case
    subscriptions = compile_filters(schema, texts, strict=True).subscriptions
    boxes = subscriptions.boxes
    assert (boxes.lo < boxes.hi).all()
    assert (boxes.lo >= keys.NO_LOW).all()
    checked = np.asarray(subscriptions.check.is_valid())
    assert set(np.flatnonzero(checked)) == set(boxes.owner[~boxes.exact])
