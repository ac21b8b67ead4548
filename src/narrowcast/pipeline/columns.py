"""Columns of Spark and the types of attributes: one in terms of the other, and values made to fit a type."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from narrowcast.errors import SchemaError
from narrowcast.model.schema import EVENT_ID, Schema
from narrowcast.model.types import DataType

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType as SparkType

#: How much of a value a reason shows.
SHOWN = 60

#: A time of day alone would be read as a time of today.
_HAS_DATE = r"^\s*[+-]?\d{4,7}(-|\s*$)"


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

    yield name, data_type(kind)
    if isinstance(kind, StructType):
        for part in kind.fields:
            yield from _flatten(f"{name}.{part.name}", part.dataType)


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


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute that a schema names, or the struct that its dotted path leads through."""

    name: str
    kind: DataType | None = None
    fields: dict[str, Attribute] = field(default_factory=dict)

    def as_struct(self) -> SparkType | None:
        """Return the type of a column of this attribute, None where the schema does not say."""
        from pyspark.sql import types as st

        if not self.fields:
            return None if self.kind is None or is_opaque(self.kind) else spark_type(self.kind)
        parts = [(part.name, part.as_struct() or st.StringType()) for part in self.fields.values()]
        return st.StructType([st.StructField(name, kind) for name, kind in parts])


def attributes_of(schema: Schema | None, columns: Collection[str]) -> dict[str, Attribute]:
    """Return what a schema names at the top, in lower case; a column with dots in its name comes first."""
    literal = {name.lower() for name in columns}
    top = Attribute("")
    for name, kind in zip(schema.names, schema.types, strict=True) if schema else ():
        parts = [name] if name.lower() in literal else name.split(".")
        here = top
        for part in parts[:-1]:
            here = here.fields.setdefault(part.lower(), Attribute(part))
        old = here.fields.get(parts[-1].lower())
        here.fields[parts[-1].lower()] = Attribute(parts[-1], kind, old.fields if old else {})
    return top.fields


def is_opaque(kind: DataType) -> bool:
    """Return whether a type cannot be asked of a column: it is kept as it was found."""
    return kind.family in ("opaque", "void")


def wanted_type(held: SparkType, attribute: Attribute, *, absent: bool) -> SparkType:
    """Return the type that a schema asks of a column.

    Parameters
    ----------
    held
        What the column holds.
    attribute
        What the schema says of it.
    absent
        Whether fields of a struct that are not there come out as nulls, as in JSON.
    """
    from pyspark.sql import types as st

    if not isinstance(held, st.StructType) or not attribute.fields:
        return attribute.as_struct() or held
    parts = []
    for part in held.fields:
        known = attribute.fields.get(part.name.lower())
        kind = part.dataType if known is None else wanted_type(part.dataType, known, absent=absent)
        parts.append(st.StructField(part.name, kind))
    there = {part.name.lower() for part in held.fields}
    for name, known in attribute.fields.items():
        if absent and name not in there:
            parts.append(st.StructField(known.name, known.as_struct() or st.StringType()))
    return st.StructType(parts)


def is_nested(kind: SparkType) -> bool:
    """Return whether a type is made of others."""
    from pyspark.sql import types as st

    return isinstance(kind, st.StructType | st.ArrayType | st.MapType)


def texts(held: SparkType, wanted: SparkType) -> SparkType:
    """Return the type in which values of JSON are read so that none is lost before it is checked."""
    from pyspark.sql import types as st

    if isinstance(held, st.StructType) and isinstance(wanted, st.StructType):
        old = {part.name: part.dataType for part in held.fields}
        return st.StructType(
            [st.StructField(p.name, texts(old.get(p.name, p.dataType), p.dataType)) for p in wanted.fields]
        )
    return held if is_nested(held) and is_nested(wanted) else st.StringType()


def shown(value: Column, kind: SparkType) -> Column:
    """Return a value as a reason shows it: quoted unless it is a number, and not too long."""
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    text = sf.to_json(sf.struct(value)) if is_nested(kind) else value.cast("string")
    cut = sf.when(sf.length(text) > SHOWN, sf.concat(sf.left(text, sf.lit(SHOWN)), sf.lit("..."))).otherwise(
        text
    )
    return cut if isinstance(kind, st.NumericType) else sf.concat(sf.lit("'"), cut, sf.lit("'"))


def fit(
    frame: DataFrame, value: Column, found: SparkType, wanted: SparkType, name: str
) -> tuple[Column, Column | None]:
    """Return a value in the type that is wanted, and the reason against it: null where it fits.

    Values are cast as Spark casts them, and what does not fit is never turned into null in silence. A
    number with a fraction fits no integer type.
    """
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    if _same(found, wanted):
        return value, None
    if isinstance(found, st.StructType) and isinstance(wanted, st.StructType):
        parts, reasons = [], []
        old = {part.name: part.dataType for part in found.fields}
        for part in wanted.fields:
            cast, reason = fit(
                frame, value.getField(part.name), old[part.name], part.dataType, f"{name}.{part.name}"
            )
            parts.append(cast.alias(part.name))
            reasons += [] if reason is None else [reason]
        return sf.when(value.isNotNull(), sf.struct(*parts)), sf.coalesce(*reasons) if reasons else None
    cast = _cast(frame, value, found, wanted)
    reason = sf.concat(
        sf.lit(f"{name} "), shown(value, found), sf.lit(f" is no {data_type(wanted)}; give another value")
    )
    return cast, sf.when(value.isNotNull() & cast.isNull(), reason)


def _same(one: SparkType, other: SparkType) -> bool:
    """Return whether two types hold the same values, wherever nulls may be."""
    return one.simpleString() == other.simpleString()


def _cast(frame: DataFrame, value: Column, found: SparkType, wanted: SparkType) -> Column:
    """Return a value cast to a type, null where that cannot be."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    if is_nested(found) and isinstance(wanted, st.StringType):
        return sf.to_json(value)
    cast = value.try_cast(wanted)
    try:
        frame.select(cast)
    except AnalysisException:  # Spark knows no way from the one type to the other
        return sf.lit(None).cast(wanted)
    if isinstance(found, st.FractionalType) and isinstance(wanted, st.IntegralType):
        return sf.when(cast.cast(found) == value, cast)
    if isinstance(found, st.StringType) and isinstance(wanted, st.DatetimeType):
        return sf.when(value.rlike(_HAS_DATE), cast)
    return cast
