"""Schemas: names without case, dotted paths, and the files they are read from."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from narrowcast.errors import SchemaError, TableError
from narrowcast.model.schema import Schema
from narrowcast.model.types import DataType
from support.errors import refused

if TYPE_CHECKING:
    from pathlib import Path

NESTED = pa.schema(
    [
        ("event_id", pa.int64()),
        ("price", pa.float64()),
        ("Side", pa.struct([("name", pa.string()), ("at", pa.struct([("day", pa.date32())]))])),
        ("tags", pa.list_(pa.string())),
    ]
)


def test_names_ignore_case_and_keep_their_spelling() -> None:
    schema = Schema.of({"Price": "double", "side.Name": "string"})
    assert schema.index("pRICE") == 0
    assert schema["SIDE.NAME"] == DataType("string")
    assert "price" in schema
    assert "side" not in schema
    assert 3 not in schema
    assert list(schema) == ["Price", "side.Name"]
    assert len(schema) == 2
    assert schema.to_dict() == {"Price": "double", "side.Name": "string"}


def test_types_may_be_given_as_names_or_as_types() -> None:
    assert Schema.of({"a": DataType("int"), "b": "decimal(5,2)"}) == Schema.of(
        {"a": "INTEGER", "b": "dec(5,2)"}
    )


def test_equal_schemas_have_equal_hashes_and_order_and_types_count() -> None:
    one, same = Schema.of({"a": "int", "b": "string"}), Schema.of({"a": "int", "b": "string"})
    assert one == same
    assert hash(one) == hash(same)
    assert one != Schema.of({"b": "string", "a": "int"})
    assert one != Schema.of({"a": "bigint", "b": "string"})
    assert len({one, same, Schema.of({})}) == 2
    again = pickle.loads(pickle.dumps(one))
    assert again == one
    assert again.index("B") == 1


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (("price", "Price"), ("price", "Price")),
        (("a", "b", "a"), ("a",)),
        (("É", "é"), ("É", "é")),
    ],
)
def test_names_that_collide_are_refused(names: tuple[str, ...], shown: tuple[str, ...]) -> None:
    with refused(SchemaError, *shown):
        Schema(names, tuple(DataType("int") for _ in names))


def test_an_unknown_attribute_is_refused_with_those_there_are() -> None:
    with refused(SchemaError, "prize", parameter="attribute", value="prize"):
        Schema.of({"price": "double", "name": "string"}).index("prize")
    with refused(SchemaError, "x", parameter="attribute", value="x"):
        Schema.of({}).index("x")
    many = Schema.of({f"a{i}": "int" for i in range(200)})
    with refused(SchemaError, "0", "1", "11", parameter="attribute", value="x"):
        many.index("x")
    assert many.index("A199") == 199


def test_structs_become_dotted_paths_and_event_id_is_no_attribute() -> None:
    schema = Schema.from_arrow(NESTED)
    assert schema.names == ("price", "Side", "Side.name", "Side.at", "Side.at.day", "tags")
    assert [t.family for t in schema.types] == ["float", "opaque", "string", "opaque", "date", "opaque"]
    assert Schema.from_arrow(pa.schema([("EVENT_ID", pa.int64())])) == Schema.of({})


def test_a_field_that_collides_with_a_dotted_column_is_refused() -> None:
    arrow = pa.schema([("s", pa.struct([("x", pa.int32())])), ("S.X", pa.int32())])
    with refused(SchemaError, "s.x", "S.X", value="S.X"):
        Schema.from_arrow(arrow)
    with refused(SchemaError, value="a"):
        Schema.from_arrow(pa.schema([("a", pa.int32()), ("a", pa.int32())]))


def test_a_flat_schema_goes_to_arrow_and_back() -> None:
    types = ["boolean", "tinyint", "bigint", "float", "double", "decimal(38,10)", "string", "date", "void"]
    schema = Schema.of({f"a.{t}": t for t in types})
    assert Schema.from_arrow(schema.to_arrow()) == schema


def read(folder: Path, content: Any, name: str = "schema.json") -> Schema:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return Schema.read(path)


def test_a_json_file_may_nest(tmp_path: Path) -> None:
    schema = read(tmp_path, {"price": "double", "side": {"name": "string", "at": {"day": "date"}}}, "s.JSON")
    assert schema.names == ("price", "side", "side.name", "side.at", "side.at.day")
    assert str(schema["side.at.day"]) == "date"
    assert schema["side"].family == "opaque"
    assert read(tmp_path, "{}") == Schema.of({})


@pytest.mark.parametrize(
    "content", [{"a": "int"}, {"a": {"b": "int", "c": {"d": "decimal(5,2)"}}, "e": "void"}]
)
def test_what_to_dict_gives_is_what_a_schema_file_holds(tmp_path: Path, content: dict[str, Any]) -> None:
    schema = read(tmp_path, content)
    assert read(tmp_path, schema.to_dict()) == schema


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("", ("schema.json",)),
        ('{"a": "int"', ("schema.json",)),
        ("[1]", ("array",)),
        ('{"a": 1}\n{"a": 2}', ("byte 10",)),
        ({"a": "strin"}, ("strin",)),
        ({"a": {"b": "strin"}}, ("strin",)),
        ({"a": 5}, ("a", "5", "double")),
        ({"a": {"b": None}}, ("a.b",)),
        ({"a": "int", "A": "int"}, ("a", "A")),
        ({"a": {"b": "int"}, "A.b": "string"}, ("a.b", "A.b")),
        ({"a": {"b": "int"}, "a.b": "string"}, ("a.b",)),
    ],
)
def test_a_bad_json_file_is_refused_with_its_reason(
    tmp_path: Path, content: Any, shown: tuple[str, ...]
) -> None:
    with refused(SchemaError, *shown):
        read(tmp_path, content)


def test_a_table_has_the_schema_of_its_columns(tmp_path: Path) -> None:
    pq.write_table(NESTED.empty_table(), tmp_path / "events.parquet")
    found = Schema.read(tmp_path / "events.parquet")
    assert found.names == Schema.from_arrow(NESTED).names
    assert [t.family for t in found.types] == ["float", "opaque", "string", "opaque", "date", "opaque"]
    (tmp_path / "events.csv").write_text("event_id,price,day\n1,2.5,2024-03-01\n")
    assert Schema.read(tmp_path / "events.csv").to_dict() == {"price": "double", "day": "date"}
    (tmp_path / "events.jsonl").write_text('{"price": 2, "side": {"name": "x"}}\n')
    assert Schema.read(str(tmp_path / "events.jsonl")).names == ("price", "side", "side.name")


def test_what_arrow_calls_the_inside_of_a_list_does_not_make_schemas_differ(tmp_path: Path) -> None:
    table = pa.table({"tags": pa.array([["a"]], pa.list_(pa.field("item", pa.string())))})
    pq.write_table(table, tmp_path / "events.parquet")  # reads back as list<element: string>
    assert Schema.read(tmp_path / "events.parquet") == Schema.from_arrow(table.schema)


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with refused(SchemaError, "nope.json"):
        Schema.read(tmp_path / "nope.json")
    with refused(TableError, "nope.parquet"):
        Schema.read(tmp_path / "nope.parquet")
