"""Types: their names, and the Arrow types they are read from and carried in."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from narrowcast.errors import SchemaError
from narrowcast.model.types import MAX_PRECISION, DataType
from support.errors import refused

NAMES = [
    ("boolean", "boolean", "boolean"),
    ("BOOL", "boolean", "boolean"),
    ("byte", "tinyint", "integer"),
    ("tinyint", "tinyint", "integer"),
    ("Short", "smallint", "integer"),
    ("integer", "int", "integer"),
    (" int ", "int", "integer"),
    ("long", "bigint", "integer"),
    ("float", "float", "float"),
    ("double", "double", "float"),
    ("decimal", "decimal(10,0)", "decimal"),
    ("dec(7)", "decimal(7,0)", "decimal"),
    ("NUMERIC( 38 , 38 )", "decimal(38,38)", "decimal"),
    ("string", "string", "string"),
    ("date", "date", "date"),
    ("timestamp", "timestamp", "timestamp"),
    ("timestamp_ntz", "timestamp_ntz", "timestamp"),
    ("void", "void", "void"),
]


@pytest.mark.parametrize(("text", "name", "family"), NAMES)
def test_names_are_those_of_spark(text: str, name: str, family: str) -> None:
    dtype = DataType.parse(text)
    assert str(dtype) == name
    assert dtype.family == family
    assert DataType.parse(str(dtype)) == dtype


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("strin", ("strin", "bigint")),
        ("", ("''",)),
        ("array<int>", ("array<int>",)),
        ("decimal(5", ("decimal(5",)),
        ("decimal(-1,0)", ("decimal(-1,0)",)),
        ("decimal(0)", ("decimal(0)", str(MAX_PRECISION))),
        ("decimal(39,2)", ("decimal(39,2)", str(MAX_PRECISION))),
        ("decimal(2,3)", ("decimal(2,3)", "38")),
    ],
)
def test_an_unknown_name_is_refused_with_those_there_are(text: str, shown: tuple[str, ...]) -> None:
    with refused(SchemaError, *shown):
        DataType.parse(text)


ARROW = [
    (pa.bool_(), "boolean"),
    (pa.int8(), "tinyint"),
    (pa.int16(), "smallint"),
    (pa.int32(), "int"),
    (pa.int64(), "bigint"),
    (pa.uint8(), "smallint"),
    (pa.uint16(), "int"),
    (pa.uint32(), "bigint"),
    (pa.uint64(), "decimal(20,0)"),
    (pa.float16(), "float"),
    (pa.float32(), "float"),
    (pa.float64(), "double"),
    (pa.decimal32(5, 2), "decimal(5,2)"),
    (pa.decimal64(12, 0), "decimal(12,0)"),
    (pa.decimal128(38, 38), "decimal(38,38)"),
    (pa.decimal256(38, 10), "decimal(38,10)"),
    (pa.string(), "string"),
    (pa.large_string(), "string"),
    (pa.string_view(), "string"),
    (pa.dictionary(pa.int8(), pa.large_string()), "string"),
    (pa.dictionary(pa.int32(), pa.int16()), "smallint"),
    (pa.date32(), "date"),
    (pa.date64(), "date"),
    (pa.timestamp("s"), "timestamp_ntz"),
    (pa.timestamp("ns"), "timestamp_ntz"),
    (pa.timestamp("ms", tz="UTC"), "timestamp"),
    (pa.timestamp("us", tz="Europe/Paris"), "timestamp"),
    (pa.null(), "void"),
]


@pytest.mark.parametrize(("arrow", "name"), ARROW, ids=lambda value: str(value))
def test_arrow_types_are_compared_as_the_narrowest_type_that_holds_them(
    arrow: pa.DataType, name: str
) -> None:
    assert str(DataType.from_arrow(arrow)) == name


@pytest.mark.parametrize(
    "arrow",
    [
        pa.list_(pa.int32()),
        pa.map_(pa.string(), pa.int32()),
        pa.struct([("x", pa.int32())]),
        pa.binary(),
        pa.time64("us"),
        pa.duration("s"),
        pa.decimal256(39, 0),
        pa.decimal128(5, -2),
        pa.dictionary(pa.int8(), pa.binary()),
    ],
    ids=lambda value: str(value),
)
def test_what_filters_cannot_compare_is_opaque_and_has_no_column_form(arrow: pa.DataType) -> None:
    dtype = DataType.from_arrow(arrow)
    assert dtype.family == "opaque"
    with refused(SchemaError, dtype):
        dtype.to_arrow()


@pytest.mark.parametrize("text", [text for text, _, _ in NAMES])
def test_a_type_is_carried_in_an_arrow_type_that_reads_back_as_it(text: str) -> None:
    dtype = DataType.parse(text)
    assert DataType.from_arrow(dtype.to_arrow()) == dtype


def test_a_type_is_a_value() -> None:
    dtype = DataType.parse("decimal(10,2)")
    assert pickle.loads(pickle.dumps(dtype)) == dtype
    assert {dtype, DataType("decimal", 10, 2), DataType("decimal", 10, 3)} == {
        dtype,
        DataType("decimal", 10, 3),
    }


def test_integers_know_their_width() -> None:
    assert [DataType(name).bits for name in ("tinyint", "smallint", "int", "bigint")] == [8, 16, 32, 64]
