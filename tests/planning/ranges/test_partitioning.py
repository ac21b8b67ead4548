"""All schemes of parts: nothing is lost or found twice, and what is published comes out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from narrowcast import EventBatch, Schema, SubscriptionSet, compile_filters
from narrowcast.errors import InputError, ParameterError, TableError
from narrowcast.matching.partition import RangeTrees, parts_of_table
from narrowcast.planning.ranges.partitioning import SCHEMES, CobasPartitioner, scheme
from support.filters import events, filters, schemas
from support.partition import check_parts, cobas, raw

#: Every scheme in several ways.
WAYS: list[tuple[str, dict[str, Any]]] = [
    ("kd", {"parts": 7}),
    ("kd", {"parts": 12, "copies": 3}),
    ("selective", {"parts": 7, "copies": 2}),
    ("selective", {"parts": 16, "copies": 5}),
    ("hash", {"parts": 5}),
    ("cobas", {"parts": 8}),
    ("cobas", {"parts": 1}),
    ("cobas", {"parts": 30, "routing": "random", "search": "none", "kappa": 1.0}),
    ("cobas", {"parts": 20, "way": "all", "kappa": 0.0, "search": "none"}),
    ("cobas", {"parts": 20, "way": "none", "kappa": 0.5}),
    ("cobas", {"parts": 20, "way": "greedy", "upkeep": 0.0, "search": "none", "kappa": 2.0}),
]


def test_every_scheme_is_tried() -> None:
    assert {name for name, _ in WAYS} == set(SCHEMES)


@settings(max_examples=120)
@given(work=raw(), way=st.sampled_from(WAYS), n_sample=st.sampled_from([0, 1, 10]))
def test_boxes_on_few_keys(
    work: tuple[SubscriptionSet, EventBatch], way: tuple[str, dict[str, Any]], n_sample: int
) -> None:
    subscriptions, batch = work
    name, params = way
    made = scheme(name, **params).fit(subscriptions, batch.slice(0, n_sample))
    assert made.parts <= params["parts"]
    check_parts(made, subscriptions, batch)


def test_no_limit_can_be_said_in_several_ways() -> None:
    subscriptions, sample, _ = cobas(300, 400, 0)
    made = [
        scheme("cobas", parts=8, kappa=kappa).fit(subscriptions, sample)
        for kappa in (0, 0.0, math.inf, "inf")
    ]
    assert all(each == made[0] for each in made)
    assert made[0] != scheme("cobas", parts=8, kappa=1).fit(subscriptions, sample)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_filters_of_any_type(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    texts = data.draw(st.lists(filters(schema), max_size=8))
    made = compile_filters(schema, texts, strict=True).subscriptions
    batch = EventBatch.from_arrow(data.draw(events(schema)), schema)
    name, params = data.draw(st.sampled_from(WAYS))
    sample = batch.slice(0, data.draw(st.sampled_from([0, 6, 12])))
    check_parts(scheme(name, **params).fit(made, sample), made, batch)


@settings(max_examples=40)
@given(work=raw(), late=raw(), way=st.sampled_from(WAYS))
def test_subscriptions_and_events_that_come_later(
    work: tuple[SubscriptionSet, EventBatch],
    late: tuple[SubscriptionSet, EventBatch],
    way: tuple[str, dict[str, Any]],
) -> None:
    made = scheme(way[0], **way[1]).fit(*work)
    if late[0].schema == work[0].schema:
        check_parts(made, *late)


def test_selective_rows_hold_half_as_much() -> None:
    subscriptions, sample, unseen = cobas(20_000, 20_000, 0)
    by_hash, selective = (
        scheme(name, parts=64, copies=4).fit(subscriptions, sample).measure(subscriptions, unseen)  # type: ignore[attr-defined]
        for name in ("kd", "selective")
    )
    assert selective.copies == by_hash.copies == 4
    assert selective.replication < 0.6 * by_hash.replication
    assert selective.work < 0.6 * by_hash.work
    assert selective.work_max_over_mean <= 1.3


def test_cobas_as_it_was_measured_before() -> None:
    """The table of the notes on cobas2009, at 64 parts and ten dimensions."""
    subscriptions, sample, unseen = cobas(20_000, 20_000, 0)
    whole, central, apart = (
        CobasPartitioner(**each).fit(subscriptions, sample)
        for each in ({"way": "all", "kappa": 0.0}, {"kappa": 0.0}, {"search": "none"})
    )
    found = whole.measure(subscriptions, unseen)
    assert (found.copies, whole.parts, len(whole.trees)) == (1, 64, 1)
    assert found.replication == pytest.approx(25.5, rel=0.1)
    assert found.work == pytest.approx(0.402, rel=0.1)
    found = central.measure(subscriptions, unseen)
    assert found.copies == pytest.approx(2.0, rel=0.1)
    assert found.replication == pytest.approx(1.7, rel=0.25)
    assert found.work_max_over_mean > 50  # central: nearly all of it is at the root
    assert len(apart.trees) == 10
    assert apart.parts <= 64


def ints(columns: dict[str, Any]) -> tuple[Schema, EventBatch]:
    schema = Schema.of(dict.fromkeys(columns, "bigint"))
    return schema, EventBatch.from_arrow(
        pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()}), schema
    )


def test_a_position_is_spread_over_machines() -> None:
    schema, batch = ints({"a": range(60), "b": [0] * 60})
    made = compile_filters(schema, ["a >= 0 AND a <= 59"] * 40 + ["b = 0"] * 20).subscriptions
    parts = CobasPartitioner(parts=12, way="none", kappa=2.0, upkeep=1.0).fit(made, batch)
    machines = parts.trees[0].machines
    assert machines.max() > 1
    _, part = parts.parts_of_subscriptions(made)
    first = int(machines[: machines.argmax()].sum())
    many = np.bincount(part, minlength=parts.parts)[first : first + machines.max()]
    assert (many > 0).all()
    check_parts(parts, made, batch)


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("kdd", {}, "unknown scheme 'kdd'; did you mean 'kd'"),
        ("cobas", {"copies": 2}, "scheme 'cobas' has no parameter 'copies'; it has routing, search"),
        ("cobas", {"parts": 0}, "parts=0"),
        ("cobas", {"parts": 65_537}, "parts is 65537; give a whole number from 1 to 65536"),
        ("cobas", {"routing": "hash"}, "routing is 'hash'; give one of random, selective"),
        ("cobas", {"search": "all"}, "search is 'all'; give one of greedy"),
        ("cobas", {"way": "best"}, "way is 'best'; give one of optimal"),
        ("cobas", {"kappa": -1}, "kappa is -1; give a number above 0, or 0 or inf for no limit"),
        ("cobas", {"upkeep": "much"}, "upkeep is 'much'; give a number of at least 0"),
        ("cobas", {"seed": -1}, "seed is -1"),
        ("hash", {"parts": 0}, "parts=0"),
        ("kd", {"work": 3}, "work=3"),
        ("selective", {"work": "t.parquet"}, "work='t.parquet'"),
    ],
)
def test_what_is_refused(name: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        scheme(name, **params)


def test_bad_input() -> None:
    schema, batch = ints({"a": range(9)})
    _, strangers = ints({"b": range(9)})
    made = compile_filters(schema, ["a > 3"]).subscriptions
    with pytest.raises(InputError, match="events have attributes"):
        CobasPartitioner().fit(made, strangers)
    with pytest.raises(InputError, match="SubscriptionSet"):
        CobasPartitioner().fit([1], batch)  # type: ignore[arg-type]
    parts = CobasPartitioner(parts=3).fit(made, batch)
    with pytest.raises(InputError, match="events have attributes"):
        parts.parts_of_events(strangers)
    assert parts != "something else"


def test_bad_tables() -> None:
    schema, batch = ints({"a": range(20), "b": range(20)})
    made = compile_filters(schema, ["a > 3 AND a < 9", "a > 2", "b < 7"] * 4).subscriptions
    parts = CobasPartitioner(parts=9, search="none", kappa=0.0).fit(made, batch)
    table = parts.to_arrow()
    assert table.column_names[:8] == ["part", "row", "lo", "hi", "attribute", "own_lo", "own_hi", "machine"]

    def put(name: str, values: Any) -> pa.Table:
        return table.set_column(table.column_names.index(name), name, pa.array(values))

    n = table.num_rows
    for bad in (
        table.slice(0, n - 1).append_column("more", pa.array([0] * (n - 1))).slice(1),
        put("row", [2] * n),
        put("attribute", [5] * n),
        put("own_hi", [7] * n),
        put("machine", [1] * n),
        put("lo", [[0, 0]] * n),
        table.drop_columns(["machine"]),
    ):
        with pytest.raises(TableError, match="not a table of parts"):
            RangeTrees.from_arrow(bad, schema)
    assert parts_of_table(table, schema) == parts
