"""Type conversion with Spark SQL's semantics, with a reason for each value that would lose information."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import SchemaError
from narrowcast.model.types import DataType
from narrowcast.tables import text
from narrowcast.tables.text import INSTANT

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

#: Maximum characters of a value in a reason.
SHOWN = 60
_CLOCK = pa.timestamp("us")
_ONE = 1_000_000


def type_name(kind: pa.DataType) -> str:
    """Return the Spark SQL name of a type.

    >>> type_name(pa.int64()), type_name(pa.list_(pa.struct({"a": pa.float64()})))
    ('bigint', 'array<struct<a:double>>')
    """
    t = pa.types
    if t.is_struct(kind):
        return f"struct<{','.join(f'{part.name}:{type_name(part.type)}' for part in kind)}>"
    if t.is_map(kind):
        return f"map<{type_name(kind.key_type)},{type_name(kind.item_type)}>"
    if is_list(kind):
        return f"array<{type_name(kind.value_type)}>"
    return "binary" if is_binary(kind) else str(DataType.from_arrow(kind))


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is a string type."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Return whether a type is a binary type."""
    t = pa.types
    tests = (t.is_binary, t.is_large_binary, t.is_binary_view, t.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is a list type."""
    return DataType.from_arrow(kind).name == "array"


def is_nested(kind: pa.DataType) -> bool:
    """Return whether a type is a struct, list or map."""
    return bool(pa.types.is_nested(kind))


def is_number(kind: pa.DataType) -> bool:
    """Return whether a type is an integer, floating-point or decimal type."""
    t = pa.types
    return bool(t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind))


def normal_type(kind: pa.DataType) -> pa.DataType:
    """Return the Spark-compatible type that represents values of a type.

    >>> normal_type(pa.uint32()), normal_type(pa.dictionary(pa.int32(), pa.large_string()))
    (DataType(int64), DataType(string))
    """
    t = pa.types
    if t.is_struct(kind):
        return pa.struct([part.with_type(normal_type(part.type)).with_nullable(True) for part in kind])
    if t.is_map(kind):
        return pa.map_(normal_type(kind.key_type), normal_type(kind.item_type))
    if is_list(kind):
        return pa.list_(normal_type(kind.value_type))
    if is_binary(kind):
        return pa.binary()
    try:
        return DataType.from_arrow(kind).to_arrow()
    except SchemaError:
        return kind


def normalize(array: pa.Array) -> pa.Array:
    """Convert values to the type returned by `normal_type`, rounding times down to microseconds."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind, target = array.type, normal_type(array.type)
    if kind.equals(target):
        return array
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        nanos = array.cast(pa.int64())
        micros = pa.array(np.asarray(nanos.fill_null(0)) // 1000, mask=np.asarray(array.is_null()))
        return micros.cast(target)
    return array.cast(target)


def display(value: pa.Scalar, *, literal: bool = False) -> str:
    """Format a value for a reason: shortened, and in quotes unless it is a number.

    Parameters
    ----------
    value
        The value.
    literal
        Whether numbers are quoted too, because the format stores them as text.
    """
    one = pa.array([value.as_py()] if pa.types.is_string(value.type) else [value], value.type)
    exact = pa.types.is_decimal(value.type)  # written without an exponent
    written = f"{value.as_py():f}" if exact else text.as_text(one)[0].as_py()
    cut = written if len(written) <= SHOWN else f"{written[:SHOWN]}..."
    return cut if is_number(value.type) and not literal else f"'{cut}'"


def reasons(
    array: pa.Array, bad: pa.Array, reason_of: Callable[[str], str], *, literal: bool = False
) -> pa.Array | None:
    """Return a reason for each bad value and null for the other values; None without bad values.

    `reason_of` makes a reason from the displayed value.
    """
    positions = np.flatnonzero(np.asarray(bad.fill_null(False))).tolist()
    if not positions:
        return None
    found = np.full(len(array), None, object)
    for i in positions:
        found[i] = reason_of(display(array[i], literal=literal))
    return pa.array(found, pa.string())


def first_reason(one: pa.Array | None, other: pa.Array | None) -> pa.Array | None:
    """Return for each row the first of two reasons; None if neither has reasons."""
    if one is None or other is None:
        return other if one is None else one
    return pc.coalesce(one, other)


def to_int64(array: pa.Array, name: str, *, literal: bool = False) -> tuple[pa.Array, pa.Array | None]:
    """Convert values to 64-bit integers, and return the reasons to reject the other values.

    A number whose fraction is zero is accepted. A floating-point number is accepted only in the range in
    which consecutive integers are distinct (up to 2^24 for `float`, 2^53 for `double`).

    Examples
    --------
    >>> to_int64(pa.array(["7", "8.0", "x", None]), "event_id")[0].to_pylist()
    [7, 8, None, None]
    >>> to_int64(pa.array([1.0, 1.5]), "event_id")[1].to_pylist()
    [None, 'event_id 1.5 is not a 64-bit integer']
    """
    kind = array.type
    if pa.types.is_signed_integer(kind):
        return array.cast(pa.int64()), None
    if pa.types.is_floating(kind):
        exact = 2.0**24 if pa.types.is_float32(kind) else 2.0**53
        near = pc.less_equal(pc.abs(array.cast(pa.float64())), exact)
        found = cast(pc.if_else(near.fill_null(False), array, pa.scalar(None, kind)), pa.int64())
    elif pa.types.is_decimal(kind):
        found = cast(array, pa.int64())
    else:
        found = text.integers(text.as_text(array))
    bad = pc.and_(pc.is_valid(array), pc.is_null(found))
    reason = f"{name} {{}} is not a 64-bit integer".format
    return found, reasons(array, bad, lambda value: reason(value), literal=literal)


def fit(
    array: pa.Array, target: pa.DataType, name: str, *, literal: bool = False
) -> tuple[pa.Array, pa.Array | None]:
    """Convert values to a type, and return the reasons to reject the values that do not fit.

    Values are cast with Spark's semantics, except that every loss is a reason: a value that cannot be
    converted, a fraction for an integer type, and too many digits for a decimal type. A time with a zone is
    converted to UTC. Text that contains a JSON object can be converted to a struct.

    Parameters
    ----------
    array
        Values, of a type that `normal_type` returns.
    target
        Type to convert to.
    name
        Name of the column in reasons.
    literal
        Whether reasons show numbers in quotes, because the format stores them as text.

    Examples
    --------
    >>> fit(pa.array(["2.0", "2.5"]), pa.int32(), "n")[1].to_pylist()
    [None, "n '2.5' is not a valid int; give another value"]
    """
    if array.type.equals(target):
        return array, None
    reason = f"{name} {{}} is not a valid {DataType.from_arrow(target)}; give another value".format
    if pa.types.is_struct(target) and (pa.types.is_struct(array.type) or is_text(array.type)):
        return _fit_struct(array, target, name, reason, literal=literal)
    found = cast(array, target)
    bad = pc.and_(pc.is_valid(array), pc.is_null(found))
    return found, reasons(array, bad, lambda value: reason(value), literal=literal)


def _fit_struct(
    array: pa.Array, target: pa.DataType, name: str, reason_of: Callable[[str], str], *, literal: bool
) -> tuple[pa.Array, pa.Array | None]:
    """Convert structs, or JSON objects in text, to a struct type field by field."""
    why: pa.Array | None = None
    present = pc.is_valid(array)
    inner: list[tuple[pa.Array, pa.Array | None]]
    if is_text(array.type):
        objects = [None if value is None else _object(value) for value in array.to_pylist()]
        present = pa.array([each is not None for each in objects], pa.bool_())
        why = reasons(array, pc.and_(pc.is_valid(array), pc.invert(present)), reason_of)
        inner = [_field_values(objects, part.name, f"{name}.{part.name}") for part in target]
    else:
        inner = [(pc.struct_field(array, [array.type.get_field_index(part.name)]), None) for part in target]
    parts = []
    for part, (values, duplicates) in zip(target, inner, strict=True):
        found, misfits = fit(values, part.type, f"{name}.{part.name}", literal=literal)
        why = first_reason(first_reason(why, duplicates), misfits)
        parts.append(found)
    return pa.StructArray.from_arrays(parts, fields=list(target), mask=pc.invert(present)), why


def _object(value: str) -> dict[str, Any] | None:
    """Parse a JSON object, or return None for other text."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _field_values(
    objects: list[dict[str, Any] | None], name: str, path: str
) -> tuple[pa.Array, pa.Array | None]:
    """Return a field of objects as text, ignoring case, and the reasons to reject duplicate spellings."""
    low = name.lower()
    same = [[value for key, value in (each or {}).items() if key.lower() == low] for each in objects]
    values = pa.array([json_text(some[0]) if some else None for some in same], pa.string())
    if max(map(len, same), default=0) < 2:
        return values, None
    reason = f"{path} occurs in several spellings: names ignore case; rename one"
    return values, pa.array([reason if len(some) > 1 else None for some in same], pa.string())


def json_text(value: Any) -> str | None:
    """Return a JSON string unchanged, and any other value as JSON with numbers in Java's format."""
    return value if value is None or isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    match value:
        case float():
            number = text.java_double(value)
            return number if number[-1].isdigit() else f'"{number}"'
        case dict():
            return "{" + ",".join(f"{text.quoted(key)}:{_json(each)}" for key, each in value.items()) + "}"
        case list():
            return "[" + ",".join(map(_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def castable(found: pa.DataType, target: pa.DataType) -> bool:
    """Return whether Spark can cast one type to another.

    Examples
    --------
    >>> castable(pa.date32(), INSTANT), castable(pa.date32(), pa.int64())
    (True, False)
    """
    t = pa.types
    if is_nested(found) or is_nested(target):
        return False
    if is_text(found) or is_text(target) or t.is_null(found):
        return True
    casts: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], bool]]] = [
        (is_number, lambda kind: is_number(kind) or t.is_boolean(kind) or kind == INSTANT),
        (t.is_boolean, lambda kind: t.is_boolean(kind) or is_number(kind)),
        (t.is_date, lambda kind: t.is_date(kind) or t.is_timestamp(kind)),
        (INSTANT.equals, lambda kind: t.is_timestamp(kind) or t.is_date(kind) or is_number(kind)),
        (_CLOCK.equals, lambda kind: t.is_timestamp(kind) or t.is_date(kind)),
    ]
    return any(is_source(found) and is_target(target) for is_source, is_target in casts)


def cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert values to another type, with null for values that cannot be converted without loss."""
    kind, t = array.type, pa.types
    if kind.equals(target):
        return array
    if is_text(target):
        return text.as_text(array)
    if not castable(kind, target) or t.is_null(kind):
        return pa.nulls(len(array), target)
    if is_text(kind):
        return _from_text(array, target)
    if t.is_boolean(target):
        return pc.not_equal(array, pa.scalar(Decimal(0) if t.is_decimal(kind) else 0, kind))
    if t.is_timestamp(kind) and is_number(target):
        micros = array.cast(pa.int64())
        seconds = pc.divide(micros.cast(pa.float64(), safe=False), float(_ONE))
        if t.is_integer(target):
            return _to_integers(pc.floor(seconds), target)
        return _to_number(seconds, target)
    if is_number(kind) and t.is_timestamp(target):
        return _to_instants(array)
    if is_number(kind) and is_number(target):
        return _to_number(array, target)
    if t.is_boolean(kind):
        return _to_number(array.cast(pa.int8()), target)
    if t.is_date(target):  # the day in UTC, also before 1970
        micros = np.asarray(array.cast(pa.int64()).fill_null(0))
        return pa.array((micros // 86_400_000_000).astype(np.int32), mask=np.asarray(array.is_null())).cast(
            target
        )
    return array.cast(_CLOCK).cast(target)


def _from_text(array: pa.Array, target: pa.DataType) -> pa.Array:
    t = pa.types
    if t.is_boolean(target):
        return text.booleans(array)
    if t.is_integer(target):
        return _to_integers(text.integers(array), target)
    if t.is_floating(target):
        return text.floats(array, target)
    if t.is_decimal(target):
        return text.decimals(array, target)
    if t.is_date(target):
        return text.dates(array)
    if t.is_timestamp(target):
        return text.timestamps(array).cast(target)
    return pa.nulls(len(array), target)


def _to_number(array: pa.Array, target: pa.DataType) -> pa.Array:
    t = pa.types
    if t.is_integer(target):
        return _to_integers(array, target)
    if t.is_decimal(target):
        return _to_decimals(array, target)
    if t.is_decimal(array.type):  # via text, so that the value is rounded only once
        return array.cast(pa.string()).cast(target)
    return array.cast(target, safe=False)


def _to_integers(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert numbers to integers, with null for a fraction or an integer out of range."""
    edge, kind = 1 << (target.bit_width - 1), array.type
    if pa.types.is_integer(kind):
        if kind.bit_width <= target.bit_width:
            return array.cast(target)
        fine = pc.and_(pc.greater_equal(array, -edge), pc.less_equal(array, edge - 1))
    elif pa.types.is_floating(kind):
        array = array.cast(pa.float64())
        inside = pc.and_(pc.greater_equal(array, float(-edge)), pc.less(array, float(edge)))
        fine = pc.and_(inside, pc.equal(pc.trunc(array), array))
    else:
        fine = pc.equal(pc.trunc(array), array)
        if edge < 10 ** (kind.precision - kind.scale):  # else all its values are in range
            low, high = (pa.scalar(Decimal(limit), kind) for limit in (-edge, edge - 1))
            fine = pc.and_(fine, pc.and_(pc.greater_equal(array, low), pc.less_equal(array, high)))
    return pc.if_else(fine.fill_null(False), array, pa.scalar(None, array.type)).cast(target)


def _to_decimals(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert numbers to decimals, with null for numbers with too many digits."""
    if pa.types.is_float32(array.type):
        found = text.rounded(array, target)
    else:
        found = text.decimals(array.cast(pa.string()), target)
    if pa.types.is_floating(array.type):  # keep only decimals that convert back to the same number
        same = pc.equal(found.cast(pa.string()).cast(array.type), array)
        found = pc.if_else(same.fill_null(False), found, pa.scalar(None, target))
    return found


def _to_instants(array: pa.Array) -> pa.Array:
    """Convert seconds since 1970 to timestamps, with null for those out of range."""
    if pa.types.is_decimal(array.type):
        array = array.cast(pa.string()).cast(pa.float64())
    values: NDArray[Any] = np.asarray(array.fill_null(0))
    if values.dtype.kind == "f":
        micros = np.trunc(values * _ONE)
        fine = np.abs(micros) < 2.0**63
        values = np.where(fine, micros, 0).astype(np.int64)
    else:
        fine = np.abs(values.astype(np.float64)) < 2.0**63 / _ONE
        values = np.where(fine, values, 0).astype(np.int64) * _ONE
    return pa.array(values, mask=~fine | np.asarray(array.is_null())).cast(INSTANT)
