"""Events in columns: what is missing is null, what is extra is left out, what does not fit is an error."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from narrowcast.errors import InputError, SchemaError, TableError
from narrowcast.model import keys
from narrowcast.model.events import EventBatch
from narrowcast.model.schema import Schema
from support.errors import refused
from support.filters import events, schemas

DEEP = pa.struct([("x", pa.int32()), ("in", pa.struct([("y", pa.string()), ("z", pa.float64())]))])


def rows(batch: EventBatch) -> list[dict[str, Any]]:
    return [batch.row(i) for i in range(len(batch))]


def test_a_missing_attribute_is_null_and_an_extra_column_is_left_out() -> None:
    schema = Schema.of({"Price": "double", "name": "string", "day": "date"})
    batch = EventBatch.from_arrow(pa.table({"volume": [1, 2], "PRICE": [1.5, None]}), schema)
    assert rows(batch) == [
        {"Price": 1.5, "name": None, "day": None},
        {"Price": None, "name": None, "day": None},
    ]
    assert [batch.keys(i)[1] for i in range(3)] == [keys.NULL] * 3
    assert batch.to_arrow().schema == pa.schema([("event_id", pa.int64()), *schema.to_arrow()])


@pytest.mark.parametrize(
    ("table", "name"),
    [
        (pa.table({"price": [1], "Price": [2]}), "Price"),
        (pa.table({"a": [1], "x": [1], "X": [2]}), "X"),
        (pa.table({"event_id": [1], "Event_ID": [2]}), "Event_ID"),
        (pa.table({"s": pa.array([{"x": 1}]), "S.X": [2]}), "S.X"),
        (pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), "a"),
        (pa.table([pa.array([1]), pa.array([2])], names=["event_id", "event_id"]), "event_id"),
        (pa.record_batch([pa.array([1]), pa.array([2])], names=["a", "a"]), "a"),
    ],
)
def test_names_that_collide_are_refused(table: Any, name: str) -> None:
    with refused(TableError, name):
        EventBatch.from_arrow(table, Schema.of({"a": "int", "price": "int"}))
    with refused(InputError, name):
        EventBatch.from_arrow(table)


@pytest.mark.parametrize("chunked", [True, False])
def test_a_null_struct_has_null_fields_two_deep(chunked: bool) -> None:
    inner: list[Any] = [
        {"x": 1, "in": {"y": "a", "z": 0.5}},
        {"x": 2, "in": None},
        {"x": None, "in": {"y": None, "z": -0.0}},
        None,
    ]
    array = pa.array(inner, DEEP)
    column = pa.chunked_array([array.slice(0, 1), array.slice(1, 0), array.slice(1)]) if chunked else array
    batch = EventBatch.from_arrow(pa.table({"s": column}))
    assert batch.schema.names == ("s", "s.x", "s.in", "s.in.y", "s.in.z")
    got = {name: [row[name] for row in rows(batch)] for name in batch.schema.names}
    assert got["s.x"] == [1, 2, None, None]
    assert got["s.in"] == [{"y": "a", "z": 0.5}, None, {"y": None, "z": -0.0}, None]
    assert got["s.in.y"] == ["a", None, None, None]
    assert got["s.in.z"] == [0.5, None, 0.0, None]
    assert batch.keys(0).tolist() == [0, 0, 0, keys.NULL]
    assert batch.keys(2).tolist() == [0, keys.NULL, 0, keys.NULL]


def test_fields_that_a_mask_hides_are_null() -> None:
    hidden = pa.StructArray.from_arrays([pa.array([7, 8])], ["x"], mask=pa.array([True, False]))
    batch = EventBatch.from_arrow(pa.table({"s": hidden}))
    assert batch.row(0) == {"s": None, "s.x": None}
    assert batch.keys(1).tolist() == [keys.NULL, 8]


def test_sliced_tables_and_record_batches_are_read_where_they_start() -> None:
    table = pa.table(
        {
            "event_id": [10, 11, 12, 13],
            "a": ["w", "x", None, "zzzzzzzzz"],
            "s": pa.array([{"x": 1, "in": None}, None, {"x": 3, "in": {"y": "q", "z": 1.0}}, None], DEEP),
            "d": pa.array(["m", "n", "m", None]).dictionary_encode(),
            "n": pa.array([Decimal("1.5"), None, Decimal("2.5"), Decimal("3.5")]),
        }
    )
    whole = EventBatch.from_arrow(table)
    for part in (table.slice(1, 2), table.to_batches()[0].slice(1, 2)):
        batch = EventBatch.from_arrow(part)
        assert batch.event_id.tolist() == [11, 12]
        assert rows(batch) == rows(whole)[1:3]
        for i in range(len(whole.schema)):
            assert batch.keys(i).tolist() == whole.keys(i)[1:3].tolist()


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_slice_is_the_events_in_it(data: Any) -> None:
    schema = data.draw(schemas())
    batch = EventBatch.from_arrow(data.draw(events(schema, size=6)), schema)
    start, stop = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 9))
    if data.draw(st.booleans()):
        batch.keys(0)
    part = batch.slice(start, stop)
    assert part.event_id.tolist() == batch.event_id[start:stop].tolist()
    for i in range(len(schema)):
        assert part.keys(i).tolist() == batch.keys(i)[start:stop].tolist()
        assert len(part.columns[i]) == len(part)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_events_go_to_arrow_and_back(data: Any) -> None:
    schema = data.draw(schemas())
    batch = EventBatch.from_arrow(data.draw(events(schema, size=4)), schema)
    again = EventBatch.from_arrow(batch.to_arrow(), schema)
    assert again.event_id.tolist() == batch.event_id.tolist()
    for i in range(len(schema)):
        assert again.keys(i).tolist() == batch.keys(i).tolist()


def test_flat_events_go_to_arrow_and_back_without_a_schema() -> None:
    table = pa.table({"event_id": [5], "a.b": ["x"], "c": [1.5]})
    assert EventBatch.from_arrow(table).to_arrow() == table


EMPTY = [
    pa.table({}),
    pa.table({"a": pa.array([], pa.int64()), "s": pa.array([], DEEP)}),
    pa.table({"a": pa.chunked_array([], pa.int64()), "s": pa.chunked_array([], DEEP)}),
    pa.table({"event_id": pa.array([], pa.int64()), "a": pa.array([], pa.null())}),
    pa.table({"event_id": pa.chunked_array([], pa.string())}),
    pa.table({"a": [1, 2]}).slice(0, 0),
    pa.record_batch({"a": pa.array([], pa.int64())}),
]


@pytest.mark.parametrize("table", EMPTY)
def test_no_events_are_a_batch_of_none(table: Any) -> None:
    schema = Schema.of({"a": "int", "s.in.y": "string", "t": "timestamp"})
    for batch in (EventBatch.from_arrow(table, schema), EventBatch.from_arrow(table)):
        assert len(batch) == 0
        assert batch.event_id.dtype == np.int64
        assert [batch.keys(i).tolist() for i in range(len(batch.schema))] == [[]] * len(batch.schema)
        assert batch.to_arrow().num_rows == 0
    assert EventBatch.from_arrow(table, schema).schema == schema


def test_a_schema_without_attributes_is_kept() -> None:
    batch = EventBatch.from_arrow(pa.table({"event_id": [7, 8], "a": [1, 2]}), Schema.of({}))
    assert batch.schema == Schema.of({})
    assert batch.event_id.tolist() == [7, 8]
    assert batch.slice(1, 2).event_id.tolist() == [8]
    assert batch.to_arrow().num_rows == 2


def test_two_hundred_attributes() -> None:
    table = pa.table({f"a{i}": [float(i), None] for i in range(200)})
    batch = EventBatch.from_arrow(table)
    assert len(batch.schema) == 200
    assert batch.keys(199).tolist() == [*keys.float_keys(np.array([199.0])).tolist(), keys.NULL]
    assert batch.row(0)["a123"] == 123.0


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (None, [0, 1]),
        (pa.array([7, -(2**63)]), [7, -(2**63)]),
        (pa.array([7, 2**63 - 1], pa.uint64()), [7, 2**63 - 1]),
        (pa.array([7, 8], pa.int8()), [7, 8]),
        (pa.array([7, 7]), [7, 7]),
        (pa.chunked_array([[7], [8]]), [7, 8]),
        (pa.array([7, 8]).dictionary_encode(), [7, 8]),
    ],
)
def test_events_are_named_by_their_id_or_else_numbered(ids: Any, expected: list[int]) -> None:
    table = pa.table({"a": [1, 2]})
    batch = EventBatch.from_arrow(table if ids is None else table.append_column("Event_Id", ids))
    assert batch.event_id.tolist() == expected
    assert batch.event_id.dtype == np.int64
    assert batch.schema.names == ("a",)


@pytest.mark.parametrize(
    ("ids", "shown"),
    [
        (pa.array([7, None, None]), ("event_id", "2", "bigint")),
        (pa.array(["7", "x", "9"]), ("event_id", "string", "bigint", "x")),
        (pa.array([1, 2**63, 3], pa.uint64()), ("event_id", "uint64", "bigint", str(2**63))),
        (pa.array([1.0, 2.5, 3.0]), ("event_id", "double", "bigint", "2.5")),
        (pa.array([{"x": 1}] * 3), ("event_id", "int64", "bigint")),
    ],
)
def test_an_invalid_id_is_refused(ids: pa.Array, shown: tuple[str, ...]) -> None:
    with refused(TableError, *shown):
        EventBatch.from_arrow(pa.table({"event_id": ids}), Schema.of({}))
    with refused(TableError, *shown):
        EventBatch.from_arrow(pa.table({"event_id": ids, "a": [1, 2, 3]}))


@pytest.mark.parametrize(
    ("column", "dtype", "value"),
    [
        ([1, 300], "tinyint", "300"),
        ([1.0, 2.5], "bigint", "2.5"),
        ([2**53 + 1, 1], "double", str(2**53 + 1)),
        (["1", "one"], "double", "'one'"),
        (["2024-01-01", "soon"], "date", "'soon'"),
        ([{"x": 1}], "int", "struct"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_with_column_and_value(
    column: list[Any], dtype: str, value: str
) -> None:
    with refused(TableError, "Price", dtype, value, parameter="Price"):
        EventBatch.from_arrow(pa.table({"price": column}), Schema.of({"Price": dtype}))


def test_columns_must_be_as_many_and_as_long_as_the_events() -> None:
    schema, ids = Schema.of({"a": "int"}), np.arange(2)
    with refused(TableError, "2", "1", "0"):
        EventBatch(schema, (), ids)
    with refused(TableError, "1", "3"):
        EventBatch(schema, (pa.array([1, 2, 3], pa.int32()),), ids)


def test_keys_are_made_once_and_no_column_can_be_written() -> None:
    batch = EventBatch.from_arrow(pa.table({"a": [1, 2]}))
    assert batch.keys(0) is batch.keys(0)
    for column in (batch.keys(0), batch.event_id):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 5


# Rows


def test_rows_may_have_different_attributes() -> None:
    schema = Schema.of({"a": "int", "b": "string", "s.x": "double"})
    found = EventBatch.from_rows([{"a": 1}, {"b": "x", "a": 2}, {}, {"s": {"x": 0.5}, "extra": [1]}], schema)
    assert rows(found) == [
        {"a": 1, "b": None, "s.x": None},
        {"a": 2, "b": "x", "s.x": None},
        {"a": None, "b": None, "s.x": None},
        {"a": None, "b": None, "s.x": 0.5},
    ]


def test_rows_without_a_schema_have_the_attributes_of_all_of_them() -> None:
    batch = EventBatch.from_rows([{"a": 1}, {"a": 2, "b": "x"}])
    assert batch.schema.to_dict() == {"a": "bigint", "b": "string"}
    assert rows(batch) == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]


@pytest.mark.parametrize("n", [0, 1, 2])
def test_rows_without_any_attribute_are_events_all_the_same(n: int) -> None:
    batch = EventBatch.from_rows([{}] * n, Schema.of({"a": "int"}))
    assert rows(batch) == [{"a": None}] * n


def test_rows_carry_ids_and_every_type() -> None:
    schema = Schema.of(
        {"i": "tinyint", "f": "float", "n": "decimal(20,0)", "d": "date", "t": "timestamp", "b": "boolean"}
    )
    when = datetime(2024, 3, 1, 12, tzinfo=UTC)
    row = {"i": 5, "f": 0.5, "n": Decimal(2**64), "d": date(2024, 3, 1), "t": when, "b": True}
    batch = EventBatch.from_rows([{"event_id": 9, **row}], schema)
    assert batch.event_id.tolist() == [9]
    assert rows(batch) == [row]


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("decimal(20,0)", 2**63, Decimal(2**63)),
        ("decimal(5,2)", 7, Decimal("7.00")),
        ("decimal(5,2)", 1.24, Decimal("1.24")),
        ("decimal(5,2)", "1.24", Decimal("1.24")),
        ("float", 0.1, float(np.float32(0.1))),
        ("double", 3, 3.0),
        ("date", "2024-03-01", date(2024, 3, 1)),
        ("timestamp_ntz", "2024-03-01 12:30:00", datetime(2024, 3, 1, 12, 30)),
        ("timestamp", "2024-03-01T12:30:00Z", datetime(2024, 3, 1, 12, 30, tzinfo=UTC)),
        ("timestamp", "2024-03-01 12:30:00", datetime(2024, 3, 1, 12, 30, tzinfo=UTC)),
    ],
)
def test_rows_may_come_from_json_which_has_fewer_types(dtype: str, value: Any, expected: Any) -> None:
    batch = EventBatch.from_rows([{"a": value}], Schema.of({"a": dtype}))
    assert rows(batch) == [{"a": expected}]


@pytest.mark.parametrize(
    "found",
    [
        [{"a": 1}, {"a": "x"}],
        [{"a": True}, {"a": 1}],
        [{"a": 2**70}],
        [{"a": object()}],
        [{"a": {"b": 1}}],
        [{"a": "\ud800"}],
        [{"a": 1, "A": 2}],
    ],
)
def test_rows_that_do_not_fit_are_an_error_that_names_the_attribute(found: list[dict[str, Any]]) -> None:
    with pytest.raises((SchemaError, TableError), match=r"'[aA]'"):
        EventBatch.from_rows(found, Schema.of({"a": "int"}))


def test_a_row_shows_what_python_makes_of_the_values() -> None:
    batch = EventBatch.from_arrow(
        pa.table({"x": [math.nan], "t": pa.array([0]).view(pa.timestamp("s", "UTC"))})
    )
    row = batch.row(0)
    assert math.isnan(row["x"])
    assert row["t"] == datetime(1970, 1, 1, tzinfo=UTC)
