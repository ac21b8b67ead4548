"""Types of Spark's columns in terms of the types of attributes and of Arrow, and the other way round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from narrowcast.errors import SchemaError, TableError
from narrowcast.model.schema import EVENT_ID, Schema
from narrowcast.model.types import DataType
from narrowcast.tables.values import carrier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType as SparkType


def spark_type(kind: DataType) -> SparkType:
    """Return Spark's type for the type of an attribute.

    Raises
    ------
    SchemaError
        For an opaque type: its name alone does not say what it holds.

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
        raise SchemaError(f"type {kind.name!r} does not say what it holds; leave the attribute out")
    return simple[kind.name]


def schema_of(frame: DataFrame) -> Schema:
    """Return the attributes of events in a table of Spark's; `event_id` is left out.

    A struct is an attribute, which can only be tested for null, and so is each of its fields under its
    dotted path.
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
    """Refuse a column of text that Spark compares by other rules than byte for byte, as filters do."""
    from pyspark.sql import types as st

    if isinstance(kind, st.StringType) and kind.collation != "UTF8_BINARY":
        raise TableError(
            f"column {name!r} of {where} has the collation {kind.collation}, and filters know only the "
            f"plain order of text; cast it first: CAST({name} AS STRING)"
        )
    if isinstance(kind, st.StructType):
        for part in kind.fields:
            refuse_collated(f"{name}.{part.name}", part.dataType, where)


def data_type(kind: SparkType) -> DataType:
    """Return the type in which a column of Spark's is compared."""
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
    """Return the Arrow type that carries a type of Spark's, None where there is none."""
    from pyspark.errors import PySparkException
    from pyspark.sql import types as st
    from pyspark.sql.pandas.types import to_arrow_type

    if isinstance(kind, st.CharType | st.VarcharType):
        return pa.string()
    if isinstance(kind, st.VariantType | st.DayTimeIntervalType):  # whose values no cast of ours knows
        return None
    try:
        return carrier(to_arrow_type(kind, timezone="UTC"))
    except (PySparkException, pa.ArrowException):
        return None


def column_type(kind: pa.DataType) -> SparkType:
    """Return Spark's type for an Arrow type of `carrier`."""
    from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(kind, prefer_timestamp_ntz=True)


def is_nested(kind: SparkType) -> bool:
    """Return whether a type is made of others."""
    from pyspark.sql import types as st

    return isinstance(kind, st.StructType | st.ArrayType | st.MapType)
