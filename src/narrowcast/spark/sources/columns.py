"""Conversion between Spark's column types, Arrow types and the types of attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from narrowcast.errors import SchemaError, TableError
from narrowcast.model.schema import EVENT_ID, Schema
from narrowcast.model.types import DataType
from narrowcast.tables.values import normal_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType as SparkType


def spark_type(kind: DataType) -> SparkType:
    """Return the Spark type for the type of an attribute.

    Raises
    ------
    SchemaError
        If the type is opaque, because its name does not determine its content.

    Examples
    --------
    >>> spark_type(DataType.parse("long")), spark_type(DataType.parse("decimal(10, 2)"))
    (LongType(), DecimalType(10,2))
    """
    from pyspark.sql import types as st

    if kind.name == "decimal":
        return st.DecimalType(kind.precision, kind.scale)
    simple: dict[str, SparkType] = {
        "boolean": st.BooleanType(),
        "tinyint": st.ByteType(),
        "smallint": st.ShortType(),
        "int": st.IntegerType(),
        "bigint": st.LongType(),
        "float": st.FloatType(),
        "double": st.DoubleType(),
        "string": st.StringType(),
        "date": st.DateType(),
        "timestamp": st.TimestampType(),
        "timestamp_ntz": st.TimestampNTZType(),
        "void": st.NullType(),
    }
    if kind.name not in simple:
        raise SchemaError(
            f"type {kind.name!r}: must be a type that can be read from its name; leave the attribute out",
            value=kind.name,
        )
    return simple[kind.name]


def schema_of(frame: DataFrame) -> Schema:
    """Return the event attributes of a Spark table: all columns except `event_id`.

    A struct is an attribute that filters can only test for null. Each of its fields is an attribute too,
    named by its dotted path.
    """
    flat = [
        pair
        for column in frame.schema.fields
        if column.name.lower() != EVENT_ID
        for pair in _flatten(column.name, column.dataType)
    ]
    return Schema(tuple(name for name, _ in flat), tuple(kind for _, kind in flat))


def _flatten(name: str, kind: SparkType) -> Iterator[tuple[str, DataType]]:
    """Yield a column and, below a struct, each of its fields under its dotted path."""
    from pyspark.sql.types import StructType

    refuse_collated(name, kind)
    yield name, data_type(kind)
    if isinstance(kind, StructType):
        for part in kind.fields:
            yield from _flatten(f"{name}.{part.name}", part.dataType)


def refuse_collated(name: str, kind: SparkType, where: str = "the events") -> None:
    """Refuse a text column with a collation, because filters compare text byte by byte."""
    from pyspark.sql import types as st

    if isinstance(kind, st.StringType) and kind.collation != "UTF8_BINARY":
        raise TableError(
            f"column {name!r} of {where} has the collation {kind.collation}: must be UTF8_BINARY, because "
            f"filters compare text byte by byte; cast it first: CAST({name} AS STRING)"
        )
    if isinstance(kind, st.StructType):
        for part in kind.fields:
            refuse_collated(f"{name}.{part.name}", part.dataType, where)


def data_type(kind: SparkType) -> DataType:
    """Return the attribute type with which filters compare a Spark column."""
    from pyspark.sql import types as st

    if isinstance(kind, st.DecimalType):
        return DataType("decimal", kind.precision, kind.scale)
    if isinstance(kind, st.StringType | st.CharType | st.VarcharType):
        return DataType("string")
    for nested in (st.StructType, st.ArrayType, st.MapType):
        if isinstance(kind, nested):
            return DataType(nested.typeName())
    return DataType(kind.simpleString())


def arrow_type(kind: SparkType) -> pa.DataType | None:
    """Return the Arrow type for a Spark type, or None if the type is not supported."""
    from pyspark.errors import PySparkException
    from pyspark.sql import types as st
    from pyspark.sql.pandas.types import to_arrow_type

    if isinstance(kind, st.CharType | st.VarcharType):
        return pa.string()
    if isinstance(kind, st.VariantType | st.DayTimeIntervalType):  # `tables.values` has no cast for them
        return None
    try:
        return normal_type(to_arrow_type(kind, timezone="UTC"))
    except (PySparkException, pa.ArrowException):
        return None


def column_type(kind: pa.DataType) -> SparkType:
    """Return the Spark type for an Arrow type that `normal_type` returns."""
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(kind, prefer_timestamp_ntz=True)


def is_nested(kind: SparkType) -> bool:
    """Return whether a type is a struct, array or map."""
    from pyspark.sql import types as st

    return isinstance(kind, st.StructType | st.ArrayType | st.MapType)
