"""Attribute values of one event, from Python or JSON, converted to the types of a schema."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from narrowcast.errors import FilterError, InputError
from narrowcast.files import first_line
from narrowcast.filters.literals import days, microseconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narrowcast.model.schema import Schema
    from narrowcast.model.types import DataType

#: Numbers that JSON cannot express.
_WORDS = ("nan", "infinity", "+infinity", "-infinity", "inf", "-inf")


def event_values(event: Mapping[str, Any], schema: Schema) -> list[Any]:
    """Return an event's values by position, converted to the types of the schema."""
    flat = _flatten(event, "")
    return [
        _read(flat.get(name.lower()), t, name) for name, t in zip(schema.names, schema.types, strict=True)
    ]


def _flatten(event: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    spelt: dict[str, str] = {}
    for name, value in event.items():
        path = f"{prefix}{name}"
        inner = {path.lower(): value} | (_flatten(value, f"{path}.") if isinstance(value, dict) else {})
        for key in inner:
            if key in flat:
                raise InputError(
                    f"names {spelt.get(key, key)!r} and {path!r} collide (names ignore case); rename one",
                    value=path,
                )
            spelt[key] = path
        flat |= inner
    return flat


def _read(value: Any, dtype: DataType, name: str) -> Any:
    """Convert a value to a type; JSON has no dates, timestamps or decimals."""
    if value is None or dtype.family in ("opaque", "void"):
        return value
    given = value
    try:
        if isinstance(value, bool) and dtype.family != "boolean":
            raise TypeError("a boolean is not convertible")
        if isinstance(value, str) and dtype.family == "date":
            value = date(1970, 1, 1) + timedelta(days(value))
        elif isinstance(value, str) and dtype.family == "timestamp":
            zone = UTC if dtype.name == "timestamp" else None
            value = datetime(1970, 1, 1, tzinfo=zone) + timedelta(
                microseconds=microseconds(value, zoned=zone is not None)
            )
        elif isinstance(value, str) and dtype.family == "float" and value.lower() in _WORDS:
            value = float(value)
        elif isinstance(value, (int, float, str)) and dtype.family == "decimal":
            value = Decimal(str(value))
        elif isinstance(value, float) and dtype.family == "integer" and value != int(value):
            raise ValueError("it has a fraction")
        read = pa.array([value], dtype.to_arrow())[0].as_py()
        if dtype.name == "float" and math.isinf(read) and not math.isinf(value):
            raise ValueError("it is too large")
        return read.replace(tzinfo=UTC) if isinstance(read, datetime) and read.tzinfo else read
    except (pa.ArrowException, TypeError, ValueError, OverflowError, ArithmeticError, FilterError) as error:
        value = given
        raise InputError(
            f"attribute {name!r}={value!r}: must be {dtype}: {first_line(error)}", parameter=name, value=value
        ) from error
