"""JSON lines: parsing of one object per line into columns."""

from __future__ import annotations

import json
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.tables.raw import RawRows, join_lines
from narrowcast.tables.values import is_nested, is_text, json_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NO_OBJECT = "is not a JSON object on one line; fix or drop it"
NO_UTF8 = "is not valid UTF-8; write the file in that encoding"
#: Numbers that Arrow accepts although JSON does not have them.
_NO_NUMBERS = (b"NaN", b"Inf")
#: A line that begins and ends like an object.
_CURLY = r"\A[ \t]*\{(?s:.*)\}[ \t\r]*\z"


def read_lines(content: pa.Array, fields: Sequence[tuple[str, pa.DataType, pa.DataType]]) -> RawRows:
    """Parse objects, one per line, into columns.

    A column has its target type if Arrow can read all lines with the target types; otherwise values are
    text, so that nothing is lost before they are checked.

    Parameters
    ----------
    content
        Lines as bytes.
    fields
        For each column its name, the type found in the data, and the target type.

    Examples
    --------
    >>> lines = pa.array([b'{"x": 1}', b'{"x": 1.5}', b"?"])
    >>> raw = read_lines(lines, [("x", pa.float64(), pa.int64())])
    >>> raw.columns[0].to_pylist(), raw.broken.to_pylist()[2]
    (['1', '1.5', None], 'is not a JSON object on one line; fix or drop it')
    """
    lines, wrong = decode_lines(content)
    if wrong is None and (columns := _read_with_arrow(lines, fields)) is not None:
        return RawRows(columns, None, lines)
    objects = parse(lines, wrong)
    broken = pa.array([NO_OBJECT if each is None else None for each in objects], pa.string())
    kinds = [raw_type(source_type, target) for _, source_type, target in fields]
    columns = [
        pa.array([None if each is None else _arrow_value(each.get(name), kind) for each in objects], kind)
        for (name, _, _), kind in zip(fields, kinds, strict=True)
    ]
    return RawRows(columns, broken if wrong is None else pc.coalesce(wrong, broken), lines)


def decode_lines(content: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    """Return lines as text without byte order marks, and the reason to reject each line of invalid UTF-8."""
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
    """Return the object in each line, or None for an invalid line."""
    fine = [True] * len(lines) if wrong is None else wrong.is_null().to_pylist()
    return [_parse(line) if good else None for line, good in zip(lines.to_pylist(), fine, strict=True)]


def _parse(line: str | None) -> dict[str, Any] | None:
    try:
        found = _decode(line or "")
        if "\\u" in (line or ""):  # refuse unpaired surrogates
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("object has a duplicate name")
    return found


def _refuse(token: str) -> None:
    raise ValueError(f"{token}: not valid in JSON")


_decode = json.JSONDecoder(object_pairs_hook=_members, parse_constant=_refuse).decode


def raw_type(source_type: pa.DataType, target: pa.DataType) -> pa.DataType:
    """Return a type that represents values as they were written, before they are checked."""
    if pa.types.is_struct(source_type) and pa.types.is_struct(target):
        old = {part.name: part.type for part in source_type}
        parts = [(part.name, raw_type(old.get(part.name, part.type), part.type)) for part in target]
        return pa.struct(parts)
    return source_type if is_nested(source_type) and is_nested(target) else pa.string()


def _arrow_value(value: Any, kind: pa.DataType) -> Any:
    """Convert a parsed JSON value to one that Arrow accepts for a type."""
    if value is None:
        return None
    if is_text(kind):
        return json_text(value)
    if pa.types.is_struct(kind):
        return {part.name: _arrow_value(value.get(part.name), part.type) for part in kind}
    if is_nested(kind):
        return [_arrow_value(each, kind.value_type) for each in value]
    return float(value) if pa.types.is_floating(kind) else value


def _read_with_arrow(
    lines: pa.Array, fields: Sequence[tuple[str, pa.DataType, pa.DataType]]
) -> list[pa.Array] | None:
    """Return the columns of objects if all values have the target types; otherwise None."""
    kinds = [_exact_type(source_type, target) for _, source_type, target in fields]
    if None in kinds or not len(lines):
        return None
    schema = pa.schema([(name, kind) for (name, _, _), kind in zip(fields, kinds, strict=True)])
    table = read_uniform(lines, schema)
    return None if table is None else [table[name].combine_chunks() for name, _, _ in fields]


def read_uniform(lines: pa.Array, schema: pa.Schema | None = None) -> pa.Table | None:
    """Read objects with Arrow.

    Returns None if a line is not an object, if the fields do not fit the schema, or if Arrow may accept
    something that JSON does not allow.
    """
    import pyarrow.json as pj

    if lines.null_count:
        return None
    content = join_lines(lines)
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
        return None  # nested objects have additional fields
    return table if table.num_rows == len(lines) else None


def _exact_type(source_type: pa.DataType, target: pa.DataType) -> pa.DataType | None:
    """Return the type with which Arrow reads only JSON values of the target's kind, or None."""
    t = pa.types
    if t.is_struct(source_type) and t.is_struct(target):
        old = {part.name: part.type for part in source_type}
        kinds = [_exact_type(old.get(part.name, part.type), part.type) for part in target]
        if None in kinds:
            return None
        return pa.struct([(part.name, kind) for part, kind in zip(target, kinds, strict=True)])
    if t.is_list(source_type) and t.is_list(target):
        inner = _exact_type(source_type.value_type, source_type.value_type)
        return source_type if inner == source_type.value_type else None
    if is_nested(source_type) or is_nested(target):
        return None
    if t.is_integer(target):
        return pa.int64()
    if t.is_floating(target) or t.is_boolean(target):
        return target
    return pa.string() if is_text(target) or t.is_date(target) or t.is_timestamp(target) else None


def types_of(content: pa.Array) -> pa.DataType:
    """Return the common type of the objects in lines: a struct, to be combined by `merge`."""
    lines, wrong = decode_lines(content)
    found = _types_with_arrow(lines) if wrong is None else None
    if found is not None:
        return found
    kind = pa.struct([])
    for each in parse(lines, wrong):
        if each is not None:
            kind = merge(kind, _type(each))
    return kind


def _types_with_arrow(lines: pa.Array) -> pa.DataType | None:
    """Return the type of objects as Arrow infers it, or None if Arrow cannot."""
    table = read_uniform(lines) if len(lines) else None
    if table is None or any(map(_may_be_huge, table.columns)):
        return None
    return _times_as_text(pa.struct(table.schema))


def _may_be_huge(column: pa.ChunkedArray) -> bool:
    """Return whether a column of doubles may contain integers of more than 64 bits."""
    if is_nested(column.type):
        return "double" in str(column.type)
    return bool(
        pa.types.is_floating(column.type) and pc.any(pc.greater_equal(pc.abs(column), 2.0**63)).as_py()
    )


def _times_as_text(kind: pa.DataType) -> pa.DataType:
    """Return a type with text in place of the timestamps that Arrow infers from text."""
    if pa.types.is_struct(kind):
        return pa.struct([(part.name, _times_as_text(part.type)) for part in kind])
    if pa.types.is_list(kind):
        return pa.list_(_times_as_text(kind.value_type))
    return pa.string() if pa.types.is_timestamp(kind) else kind


def _type(value: Any) -> pa.DataType:
    """Return the Arrow type of a parsed JSON value."""
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
    """Return the common type of two types: the wider one of two numbers, text for other mixtures.

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


def final_type(kind: pa.DataType) -> pa.DataType | None:
    """Return an inferred type with sorted fields and with text for nulls; None for an empty object."""
    if pa.types.is_struct(kind):
        parts = [(part.name, final_type(part.type)) for part in sorted(kind, key=lambda part: part.name)]
        present = [(name, inner) for name, inner in parts if inner is not None]
        return pa.struct(present) if present else None
    if pa.types.is_list(kind):
        inner = final_type(kind.value_type)
        return None if inner is None else pa.list_(inner)
    return pa.string() if pa.types.is_null(kind) else kind


def drop_blank(content: pa.Array) -> pa.Array:
    """Return the lines without blank ones."""
    return content.filter(pc.invert(pc.match_substring_regex(content, r"\A *\z")))


def merge_all(kinds: Iterable[pa.DataType]) -> pa.DataType | None:
    """Return the common type of all given types, or None without any."""
    return reduce(merge, kinds, pa.null()) if (kinds := list(kinds)) else None
