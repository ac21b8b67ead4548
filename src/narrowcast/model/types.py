"""Attribute types, with the names of Spark SQL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from narrowcast.errors import SchemaError

Family = Literal["boolean", "integer", "float", "decimal", "string", "date", "timestamp", "void", "opaque"]

_FAMILIES: dict[str, Family] = {
    "boolean": "boolean",
    "tinyint": "integer",
    "smallint": "integer",
    "int": "integer",
    "bigint": "integer",
    "float": "float",
    "double": "float",
    "decimal": "decimal",
    "string": "string",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp",
    "void": "void",
}
_ALIASES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "bool": "boolean"}
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_OPAQUE = ("array", "binary", "map", "struct")
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?")

#: Largest precision of a decimal, as in Spark.
MAX_PRECISION = 38


@dataclass(frozen=True, slots=True)
class DataType:
    """The type of one attribute.

    `timestamp` is an instant, `timestamp_ntz` a local time; both are stored in microseconds and compared as
    UTC. `void` is the type of an attribute that is always null. A type that filters cannot compare (an array,
    a map, a struct as a whole) is *opaque*: it can only be tested for null.

    Examples
    --------
    >>> DataType.parse("decimal(10, 2)")
    DataType(name='decimal', precision=10, scale=2)
    >>> str(DataType.parse("LONG"))
    'bigint'
    """

    name: str
    precision: int = 0
    scale: int = 0

    @classmethod
    def parse(cls, text: str) -> DataType:
        """Parse a Spark SQL type name."""
        name = text.strip().lower()
        name = _ALIASES.get(name, name)
        if found := _DECIMAL.fullmatch(name):
            precision, scale = int(found[1] or 10), int(found[2] or 0)
            if not 0 < precision <= MAX_PRECISION or scale > precision:
                raise SchemaError(
                    f"type {text!r}: must have 1 to {MAX_PRECISION} digits, and scale <= precision",
                    value=text,
                )
            return cls("decimal", precision, scale)
        if name in _OPAQUE:
            return cls(name)
        if name == "decimal" or name not in _FAMILIES:
            raise SchemaError(
                f"unknown type {text!r}: must be one of {', '.join(sorted(_FAMILIES))}", value=text
            )
        return cls(name)

    @classmethod
    def from_arrow(cls, arrow: pa.DataType) -> DataType:
        """Return the type in which a column of an Arrow type is compared."""
        t = pa.types
        if t.is_dictionary(arrow):
            return cls.from_arrow(arrow.value_type)
        if t.is_unsigned_integer(arrow):  # the next signed type that holds every value, as Spark reads it
            wider = {8: "smallint", 16: "int", 32: "bigint"}.get(arrow.bit_width)
            return cls(wider) if wider else cls("decimal", 20, 0)
        if t.is_decimal(arrow):
            if arrow.precision > MAX_PRECISION or not 0 <= arrow.scale <= arrow.precision:
                return cls(str(arrow))
            return cls("decimal", arrow.precision, arrow.scale)
        if t.is_timestamp(arrow):
            return cls("timestamp" if arrow.tz else "timestamp_ntz")
        if t.is_string(arrow) or t.is_large_string(arrow) or t.is_string_view(arrow):
            return cls("string")
        if t.is_float16(arrow):
            return cls("float")
        for test, name in ((t.is_struct, "struct"), (t.is_map, "map"), (_is_list, "array")):
            if test(arrow):
                return cls(name)
        simple = {
            pa.bool_(): "boolean",
            pa.int8(): "tinyint",
            pa.int16(): "smallint",
            pa.int32(): "int",
            pa.int64(): "bigint",
            pa.float32(): "float",
            pa.float64(): "double",
            pa.date32(): "date",
            pa.date64(): "date",
            pa.null(): "void",
        }
        return cls(simple.get(arrow, str(arrow)))

    def to_arrow(self) -> pa.DataType:
        """Return the Arrow type that represents every value of this type."""
        if self.name == "decimal":
            return pa.decimal128(self.precision, self.scale)
        simple: dict[str, pa.DataType] = {
            "boolean": pa.bool_(),
            "tinyint": pa.int8(),
            "smallint": pa.int16(),
            "int": pa.int32(),
            "bigint": pa.int64(),
            "float": pa.float32(),
            "double": pa.float64(),
            "string": pa.string(),
            "date": pa.date32(),
            "timestamp": pa.timestamp("us", tz="UTC"),
            "timestamp_ntz": pa.timestamp("us"),
            "void": pa.null(),
        }
        if self.name not in simple:
            raise SchemaError(
                f"type {self.name!r} has no column type: filters can only test it for null", value=self.name
            )
        return simple[self.name]

    @property
    def family(self) -> Family:
        """The kind of values of this type."""
        return _FAMILIES.get(self.name, "opaque")

    @property
    def bits(self) -> int:
        """Width of an integer type in bits."""
        return _BITS[self.name]

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})" if self.name == "decimal" else self.name


def _is_list(arrow: pa.DataType) -> bool:
    t = pa.types
    return bool(
        t.is_list(arrow)
        or t.is_large_list(arrow)
        or t.is_fixed_size_list(arrow)
        or t.is_list_view(arrow)
        or t.is_large_list_view(arrow)
    )
