"""JSON lines: one object a line, taken apart into columns."""

from __future__ import annotations

import json
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.tables.raw import Raw, joined
from narrowcast.tables.values import is_nested, is_text, json_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NO_OBJECT = "is no JSON object of its own line; mend or drop it"
NO_UTF8 = "is no UTF-8; write the file in that encoding"
#: Numbers that JSON does not have, and Arrow reads.
_NO_NUMBERS = (b"NaN", b"Inf")
#: A line that begins and ends as an object does.
_CURLY = r"\A[ \t]*\{(?s:.*)\}[ \t\r]*\z"


def read_lines(content: pa.Array, fields: Sequence[tuple[str, pa.DataType, pa.DataType]]) -> Raw:
    """Return the objects in lines as columns.

    Numbers and texts come in a type in which none is lost: as they are, or all as text.

    Parameters
    ----------
    content
        Lines as bytes.
    fields
        The name of each column, the type that its values hold, and the one that is wanted.

    Examples
    --------
    >>> lines = pa.array([b'{"x": 1}', b'{"x": 1.5}', b"?"])
    >>> raw = read_lines(lines, [("x", pa.float64(), pa.int64())])
    >>> raw.columns[0].to_pylist(), raw.broken.to_pylist()[2]
    (['1', '1.5', None], 'is no JSON object of its own line; mend or drop it')
    """
    lines, wrong = as_lines(content)
    if wrong is None and (columns := _together(lines, fields)) is not None:
        return Raw(columns, None, lines)
    objects = parse(lines, wrong)
    said = [NO_OBJECT if each is None else None for each in objects]
    broken = pa.array(said, pa.string())
    kinds = [raw_type(held, wanted) for _, held, wanted in fields]
    columns = [
        pa.array([None if each is None else _as(each.get(name), kind) for each in objects], kind)
        for (name, _, _), kind in zip(fields, kinds, strict=True)
    ]
    return Raw(columns, broken if wrong is None else pc.coalesce(wrong, broken), lines)


def as_lines(content: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    """Return lines as text without a byte order mark, and the reason against those that are no UTF-8."""
    wrong = None
    try:
        lines = content.cast(pa.string())
    except pa.ArrowInvalid:
        good = [_is_utf8(line) for line in content.to_pylist()]
        wrong = pa.array([None if fine else NO_UTF8 for fine in good], pa.string())
        lines = pa.array(
            [line and line.decode("utf-8", "replace") for line in content.to_pylist()], pa.string()
        )
    if pc.any(pc.starts_with(lines, "\ufeff")).as_py():
        lines = pc.replace_substring_regex(lines, "\\A\ufeff", "")
    return lines, wrong


def _is_utf8(line: bytes | None) -> bool:
    try:
        (line or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def parse(lines: pa.Array, wrong: pa.Array | None = None) -> list[dict[str, Any] | None]:
    """Return the object of each line, None where there is none."""
    fine = [True] * len(lines) if wrong is None else wrong.is_null().to_pylist()
    return [_parse(line) if good else None for line, good in zip(lines.to_pylist(), fine, strict=True)]


def _parse(line: str | None) -> dict[str, Any] | None:
    try:
        found = _decode(line or "")
        if "\\u" in (line or ""):  # half of a letter that is written as two
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def _refuse(token: str) -> None:
    raise ValueError(f"{token} is no JSON")


_decode = json.JSONDecoder(object_pairs_hook=_members, parse_constant=_refuse).decode


def raw_type(held: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """Return the type in which values are read so that none is lost before it is checked."""
    if pa.types.is_struct(held) and pa.types.is_struct(wanted):
        old = {part.name: part.type for part in held}
        parts = [(part.name, raw_type(old.get(part.name, part.type), part.type)) for part in wanted]
        return pa.struct(parts)
    return held if is_nested(held) and is_nested(wanted) else pa.string()


def _as(value: Any, kind: pa.DataType) -> Any:
    """Return a value of JSON as Arrow takes it for a type."""
    if value is None:
        return None
    if is_text(kind):
        return json_text(value)
    if pa.types.is_struct(kind):
        return {part.name: _as(value.get(part.name), part.type) for part in kind}
    if is_nested(kind):
        return [_as(each, kind.value_type) for each in value]
    return float(value) if pa.types.is_floating(kind) else value


def _together(
    lines: pa.Array, fields: Sequence[tuple[str, pa.DataType, pa.DataType]]
) -> list[pa.Array] | None:
    """Return the fields of objects that all fit the types that are wanted; None where some do not."""
    kinds = [_plain(held, wanted) for _, held, wanted in fields]
    if None in kinds or not len(lines):
        return None
    schema = pa.schema([(name, kind) for (name, _, _), kind in zip(fields, kinds, strict=True)])
    table = read_alike(lines, schema)
    return None if table is None else [table[name].combine_chunks() for name, _, _ in fields]


def read_alike(lines: pa.Array, schema: pa.Schema | None = None) -> pa.Table | None:
    """Return the objects that Arrow reads, None where a line is none or Arrow is less strict than JSON."""
    import pyarrow.json as pj

    if lines.null_count:
        return None
    content = joined(lines)
    if not pc.all(pc.match_substring_regex(lines, _CURLY)).as_py() or any(
        map(content.__contains__, _NO_NUMBERS)
    ):
        return None
    try:
        table = pj.read_json(
            pa.BufferReader(content),
            pj.ReadOptions(use_threads=False, block_size=len(content) + 1),
            pj.ParseOptions(explicit_schema=schema, newlines_in_values=True),
        )
    except pa.ArrowException:
        return None
    if schema is not None and any(not table.field(part.name).type.equals(part.type) for part in schema):
        return None  # objects within have fields that nobody asked for
    return table if table.num_rows == len(lines) else None


def _plain(held: pa.DataType, wanted: pa.DataType) -> pa.DataType | None:
    """Return the type in which Arrow reads just the values that are written as this type is."""
    t = pa.types
    if t.is_struct(held) and t.is_struct(wanted):
        old = {part.name: part.type for part in held}
        kinds = [_plain(old.get(part.name, part.type), part.type) for part in wanted]
        if None in kinds:
            return None
        return pa.struct([(part.name, kind) for part, kind in zip(wanted, kinds, strict=True)])
    if t.is_list(held) and t.is_list(wanted):
        inner = _plain(held.value_type, held.value_type)
        return held if inner == held.value_type else None
    if is_nested(held) or is_nested(wanted):
        return None
    if t.is_integer(wanted):
        return pa.int64()
    if t.is_floating(wanted) or t.is_boolean(wanted):
        return wanted
    return pa.string() if is_text(wanted) or t.is_date(wanted) or t.is_timestamp(wanted) else None


def types_of(content: pa.Array) -> pa.DataType:
    """Return the type of the objects in lines: a struct, which `merge` joins with others."""
    lines, wrong = as_lines(content)
    found = _types_together(lines) if wrong is None else None
    if found is not None:
        return found
    kind = pa.struct([])
    for each in parse(lines, wrong):
        if each is not None:
            kind = merge(kind, _type(each))
    return kind


def _types_together(lines: pa.Array) -> pa.DataType | None:
    """Return the type of objects of which Arrow finds one, None where it does not."""
    table = read_alike(lines) if len(lines) else None
    if table is None or any(map(_may_be_huge, table.columns)):
        return None
    return _as_written(pa.struct(table.schema))


def _may_be_huge(column: pa.ChunkedArray) -> bool:
    """Return whether doubles may have been written as integers of more than 64 bits."""
    if is_nested(column.type):
        return "double" in str(column.type)
    return bool(
        pa.types.is_floating(column.type) and pc.any(pc.greater_equal(pc.abs(column), 2.0**63)).as_py()
    )


def _as_written(kind: pa.DataType) -> pa.DataType:
    """Return a type with text where Arrow saw a time in a text."""
    if pa.types.is_struct(kind):
        return pa.struct([(part.name, _as_written(part.type)) for part in kind])
    if pa.types.is_list(kind):
        return pa.list_(_as_written(kind.value_type))
    return pa.string() if pa.types.is_timestamp(kind) else kind


def _type(value: Any) -> pa.DataType:
    """Return the type of a value of JSON."""
    match value:
        case None:
            return pa.null()
        case bool():
            return pa.bool_()
        case int():
            digits = len(str(abs(value)))
            if -(2**63) <= value < 2**63:
                return pa.int64()
            return pa.decimal128(digits, 0) if digits <= 38 else pa.float64()
        case float():
            return pa.float64()
        case dict():
            return pa.struct([(name, _type(each)) for name, each in value.items()])
        case list():
            inner = pa.null()
            for each in value:
                inner = merge(inner, _type(each))
            return pa.list_(inner)
    return pa.string()


def merge(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type that holds the values of two: numbers the wider one, a mixture of others text.

    >>> merge(pa.int64(), pa.float64()), merge(pa.int64(), pa.bool_())
    (DataType(double), DataType(string))
    """
    t = pa.types
    if one.equals(other) or t.is_null(other):
        return one
    if t.is_null(one):
        return other
    if t.is_struct(one) and t.is_struct(other):
        parts = {part.name: part.type for part in one}
        for part in other:
            parts[part.name] = merge(parts.get(part.name, pa.null()), part.type)
        return pa.struct(list(parts.items()))
    if t.is_list(one) and t.is_list(other):
        return pa.list_(merge(one.value_type, other.value_type))
    numbers = [t.is_int64(kind) or t.is_float64(kind) or t.is_decimal(kind) for kind in (one, other)]
    if not all(numbers):
        return pa.string()
    if t.is_float64(one) or t.is_float64(other):
        return pa.float64()
    return pa.decimal128(max(20 if t.is_int64(kind) else kind.precision for kind in (one, other)), 0)


def settled(kind: pa.DataType) -> pa.DataType | None:
    """Return a type that was found with its fields in order: nulls as text, None for an empty object."""
    if pa.types.is_struct(kind):
        parts = [(part.name, settled(part.type)) for part in sorted(kind, key=lambda part: part.name)]
        there = [(name, inner) for name, inner in parts if inner is not None]
        return pa.struct(there) if there else None
    if pa.types.is_list(kind):
        inner = settled(kind.value_type)
        return None if inner is None else pa.list_(inner)
    return pa.string() if pa.types.is_null(kind) else kind


def not_blank(content: pa.Array) -> pa.Array:
    """Return the lines that have anything in them."""
    return content.filter(pc.invert(pc.match_substring_regex(content, r"\A *\z")))


def merged(kinds: Iterable[pa.DataType]) -> pa.DataType | None:
    """Return the type that holds the objects of all types, None where there are none."""
    return reduce(merge, kinds, pa.null()) if (kinds := list(kinds)) else None
