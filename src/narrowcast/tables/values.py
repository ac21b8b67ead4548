"""Values made to fit a type: cast as Spark SQL casts them, with a reason where something would be lost."""

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

#: Characters of a value that a reason shows.
SHOWN = 60
_CLOCK = pa.timestamp("us")
_ONE = 1_000_000


def type_name(kind: pa.DataType) -> str:
    """Return the name that Spark SQL has for a type.

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
    """Return whether a type holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Return whether a type holds bytes."""
    t = pa.types
    tests = (t.is_binary, t.is_large_binary, t.is_binary_view, t.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is one of lists."""
    return DataType.from_arrow(kind).name == "array"


def is_nested(kind: pa.DataType) -> bool:
    """Return whether a type is made of others."""
    return bool(pa.types.is_nested(kind))


def is_number(kind: pa.DataType) -> bool:
    """Return whether a type is one of numbers."""
    t = pa.types
    return bool(t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind))


def carrier(kind: pa.DataType) -> pa.DataType:
    """Return the type in which values of a type are carried, of those that Spark has.

    >>> carrier(pa.uint32()), carrier(pa.dictionary(pa.int32(), pa.large_string()))
    (DataType(int64), DataType(string))
    """
    t = pa.types
    if t.is_struct(kind):
        return pa.struct([part.with_type(carrier(part.type)).with_nullable(True) for part in kind])
    if t.is_map(kind):
        return pa.map_(carrier(kind.key_type), carrier(kind.item_type))
    if is_list(kind):
        return pa.list_(carrier(kind.value_type))
    if is_binary(kind):
        return pa.binary()
    try:
        return DataType.from_arrow(kind).to_arrow()
    except SchemaError:
        return kind


def carried(array: pa.Array) -> pa.Array:
    """Return values in the type that carries them; what is finer than a microsecond is dropped downwards."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind, target = array.type, carrier(array.type)
    if kind.equals(target):
        return array
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        nanos = array.cast(pa.int64())
        micros = pa.array(np.asarray(nanos.fill_null(0)) // 1000, mask=np.asarray(array.is_null()))
        return micros.cast(target)
    return array.cast(target)


def shown(value: pa.Scalar, *, literal: bool = False) -> str:
    """Return a value as a reason shows it: quoted unless it is a number, and not too long.

    Parameters
    ----------
    value
        The value.
    literal
        Whether numbers are quoted as well, because they come from text.
    """
    one = pa.array([value.as_py()] if pa.types.is_string(value.type) else [value], value.type)
    exact = pa.types.is_decimal(value.type)  # never with an exponent
    written = f"{value.as_py():f}" if exact else text.as_text(one)[0].as_py()
    cut = written if len(written) <= SHOWN else f"{written[:SHOWN]}..."
    return cut if is_number(value.type) and not literal else f"'{cut}'"


def reasons(
    array: pa.Array, bad: pa.Array, say: Callable[[str], str], *, literal: bool = False
) -> pa.Array | None:
    """Return what `say` makes of the values that are bad, null beside the others; None where none is bad."""
    at = np.flatnonzero(np.asarray(bad.fill_null(False))).tolist()
    if not at:
        return None
    found = np.full(len(array), None, object)
    for i in at:
        found[i] = say(shown(array[i], literal=literal))
    return pa.array(found, pa.string())


def first(one: pa.Array | None, other: pa.Array | None) -> pa.Array | None:
    """Return the first reason of each row, None where there is none at all."""
    if one is None or other is None:
        return other if one is None else one
    return pc.coalesce(one, other)


def whole(array: pa.Array, name: str, *, literal: bool = False) -> tuple[pa.Array, pa.Array | None]:
    """Return values as integers of 64 bits, and the reasons against those that are none.

    A number with a point is fine when nothing stands behind it, and one of floating point up to where it
    still tells neighbours apart.

    Examples
    --------
    >>> whole(pa.array(["7", "8.0", "x", None]), "event_id")[0].to_pylist()
    [7, 8, None, None]
    >>> whole(pa.array([1.0, 1.5]), "event_id")[1].to_pylist()
    [None, 'event_id 1.5 is no whole number of 64 bits']
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
    say = f"{name} {{}} is no whole number of 64 bits".format
    return found, reasons(array, bad, lambda value: say(value), literal=literal)


def fit(
    array: pa.Array, wanted: pa.DataType, name: str, *, literal: bool = False
) -> tuple[pa.Array, pa.Array | None]:
    """Return values in the type that is wanted, and the reasons against those that do not fit.

    Values are cast as Spark casts them, but nothing is lost in silence: what does not fit is no null, a
    number with a fraction fits no integer type, one with more digits no decimal, and a time with a zone
    means what it means in UTC. An object of JSON in a text fits a struct.

    Parameters
    ----------
    array
        Values, in a type that `carrier` returns.
    wanted
        Their type to be.
    name
        How reasons call the values.
    literal
        Whether reasons quote numbers, because they come from text.

    Examples
    --------
    >>> fit(pa.array(["2.0", "2.5"]), pa.int32(), "n")[1].to_pylist()
    [None, "n '2.5' is no int; give another value"]
    """
    if array.type.equals(wanted):
        return array, None
    no = f"{name} {{}} is no {DataType.from_arrow(wanted)}; give another value".format
    if pa.types.is_struct(wanted) and (pa.types.is_struct(array.type) or is_text(array.type)):
        return _fit_struct(array, wanted, name, no, literal=literal)
    found = cast(array, wanted)
    bad = pc.and_(pc.is_valid(array), pc.is_null(found))
    return found, reasons(array, bad, lambda value: no(value), literal=literal)


def _fit_struct(
    array: pa.Array, wanted: pa.DataType, name: str, no: Callable[[str], str], *, literal: bool
) -> tuple[pa.Array, pa.Array | None]:
    """Make each field of structs, or of objects in texts, fit."""
    why: pa.Array | None = None
    there = pc.is_valid(array)
    inner: list[tuple[pa.Array, pa.Array | None]]
    if is_text(array.type):
        objects = [None if value is None else _object(value) for value in array.to_pylist()]
        there = pa.array([each is not None for each in objects], pa.bool_())
        why = reasons(array, pc.and_(pc.is_valid(array), pc.invert(there)), no)
        inner = [_spelled(objects, part.name, f"{name}.{part.name}") for part in wanted]
    else:
        inner = [(pc.struct_field(array, [array.type.get_field_index(part.name)]), None) for part in wanted]
    parts = []
    for part, (values, twice) in zip(wanted, inner, strict=True):
        found, against = fit(values, part.type, f"{name}.{part.name}", literal=literal)
        why = first(first(why, twice), against)
        parts.append(found)
    return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=pc.invert(there)), why


def _object(value: str) -> dict[str, Any] | None:
    """Return the object of JSON in a text, None where there is none."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _spelled(objects: list[dict[str, Any] | None], name: str, path: str) -> tuple[pa.Array, pa.Array | None]:
    """Return a field of objects however it is spelled, as text, and the reasons against two of them."""
    low = name.lower()
    same = [[value for key, value in (each or {}).items() if key.lower() == low] for each in objects]
    values = pa.array([json_text(some[0]) if some else None for some in same], pa.string())
    if max(map(len, same), default=0) < 2:
        return values, None
    said = f"{path} is there in several spellings: names ignore case; rename one"
    return values, pa.array([said if len(some) > 1 else None for some in same], pa.string())


def json_text(value: Any) -> str | None:
    """Return a value of JSON as text: a text as it is, all else as JSON with numbers as Java writes them."""
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


def castable(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether Spark knows a way from one type to another.

    Examples
    --------
    >>> castable(pa.date32(), INSTANT), castable(pa.date32(), pa.int64())
    (True, False)
    """
    t = pa.types
    if is_nested(found) or is_nested(wanted):
        return False
    if is_text(found) or is_text(wanted) or t.is_null(found):
        return True
    ways: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], bool]]] = [
        (is_number, lambda kind: is_number(kind) or t.is_boolean(kind) or kind == INSTANT),
        (t.is_boolean, lambda kind: t.is_boolean(kind) or is_number(kind)),
        (t.is_date, lambda kind: t.is_date(kind) or t.is_timestamp(kind)),
        (INSTANT.equals, lambda kind: t.is_timestamp(kind) or t.is_date(kind) or is_number(kind)),
        (_CLOCK.equals, lambda kind: t.is_timestamp(kind) or t.is_date(kind)),
    ]
    return any(has(found) and to(wanted) for has, to in ways)


def cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return values in another type, null where that cannot be or would lose something."""
    kind, t = array.type, pa.types
    if kind.equals(wanted):
        return array
    if is_text(wanted):
        return text.as_text(array)
    if not castable(kind, wanted) or t.is_null(kind):
        return pa.nulls(len(array), wanted)
    if is_text(kind):
        return _of_text(array, wanted)
    if t.is_boolean(wanted):
        return pc.not_equal(array, pa.scalar(Decimal(0) if t.is_decimal(kind) else 0, kind))
    if t.is_timestamp(kind) and is_number(wanted):
        micros = array.cast(pa.int64())
        seconds = pc.divide(micros.cast(pa.float64(), safe=False), float(_ONE))
        if t.is_integer(wanted):
            return _to_integers(pc.floor(seconds), wanted)
        return _to_number(seconds, wanted)
    if is_number(kind) and t.is_timestamp(wanted):
        return _to_instants(array)
    if is_number(kind) and is_number(wanted):
        return _to_number(array, wanted)
    if t.is_boolean(kind):
        return _to_number(array.cast(pa.int8()), wanted)
    if t.is_date(wanted):  # the day in UTC, also before 1970
        micros = np.asarray(array.cast(pa.int64()).fill_null(0))
        return pa.array((micros // 86_400_000_000).astype(np.int32), mask=np.asarray(array.is_null())).cast(
            wanted
        )
    return array.cast(_CLOCK).cast(wanted)


def _of_text(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    t = pa.types
    if t.is_boolean(wanted):
        return text.booleans(array)
    if t.is_integer(wanted):
        return _to_integers(text.integers(array), wanted)
    if t.is_floating(wanted):
        return text.floats(array, wanted)
    if t.is_decimal(wanted):
        return text.decimals(array, wanted)
    if t.is_date(wanted):
        return text.dates(array)
    if t.is_timestamp(wanted):
        return text.timestamps(array).cast(wanted)
    return pa.nulls(len(array), wanted)


def _to_number(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    t = pa.types
    if t.is_integer(wanted):
        return _to_integers(array, wanted)
    if t.is_decimal(wanted):
        return _to_decimals(array, wanted)
    if t.is_decimal(array.type):  # rounded once, and rightly
        return array.cast(pa.string()).cast(wanted)
    return array.cast(wanted, safe=False)


def _to_integers(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return numbers as integers, null for those with a fraction or out of range."""
    edge, kind = 1 << (wanted.bit_width - 1), array.type
    if pa.types.is_integer(kind):
        if kind.bit_width <= wanted.bit_width:
            return array.cast(wanted)
        fine = pc.and_(pc.greater_equal(array, -edge), pc.less_equal(array, edge - 1))
    elif pa.types.is_floating(kind):
        array = array.cast(pa.float64())
        inside = pc.and_(pc.greater_equal(array, float(-edge)), pc.less(array, float(edge)))
        fine = pc.and_(inside, pc.equal(pc.trunc(array), array))
    else:
        fine = pc.equal(pc.trunc(array), array)
        if edge < 10 ** (kind.precision - kind.scale):  # or it holds no number out of range
            low, high = (pa.scalar(Decimal(limit), kind) for limit in (-edge, edge - 1))
            fine = pc.and_(fine, pc.and_(pc.greater_equal(array, low), pc.less_equal(array, high)))
    return pc.if_else(fine.fill_null(False), array, pa.scalar(None, array.type)).cast(wanted)


def _to_decimals(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return numbers as decimals, null for those that have more digits."""
    if pa.types.is_float32(array.type):
        found = text.rounded(array, wanted)
    else:
        found = text.decimals(array.cast(pa.string()), wanted)
    if pa.types.is_floating(array.type):  # not every one has a decimal that is the same number
        same = pc.equal(found.cast(pa.string()).cast(array.type), array)
        found = pc.if_else(same.fill_null(False), found, pa.scalar(None, wanted))
    return found


def _to_instants(array: pa.Array) -> pa.Array:
    """Return seconds from 1970 as instants, null for those of no time that there is."""
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
