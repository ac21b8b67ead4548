"""Rules of a table: conversion of raw rows to typed rows, with a reason for each rejected row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import TableError
from narrowcast.model.schema import EVENT_ID
from narrowcast.tables import text
from narrowcast.tables.attributes import NestedAttribute, attributes_of, target_type
from narrowcast.tables.raw import collision
from narrowcast.tables.shapes import ACTIONS, CONTENTS, TABLES, Kind, TableShape
from narrowcast.tables.text import INSTANT, NOTHING
from narrowcast.tables.values import (
    SHOWN,
    cast,
    display,
    first_reason,
    fit,
    is_binary,
    is_nested,
    is_number,
    is_text,
    to_int64,
    type_name,
)
from narrowcast.validation import check_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from narrowcast.model.schema import Schema
    from narrowcast.tables.raw import RawRows, Source

#: Columns that follow the values of checked rows: the text of a row, and the reason to reject it.
ROW, REASON = "row", "reason"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a typed table.

    Parameters
    ----------
    name
        Name of the column.
    source_type
        Type of its values in the source.
    target
        Type that its values are converted to.
    kind
        Kind of content that the table requires; None for columns that the table does not define.
    inferred
        Whether the target type was inferred from all values, so that each of them can be converted.
    """

    name: str
    source_type: pa.DataType
    target: pa.DataType
    kind: Kind | None = None
    inferred: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """Target types of a table's columns, and checks of its rows.

    The result for a row depends only on that row, so the rules can be applied to any batches of a table.

    Parameters
    ----------
    table
        Name of the table, one of `TABLES`.
    columns
        Columns of the typed table, in order.
    source_kind
        Format of the source: `parquet`, `csv`, `json` or `frame`.
    """

    table: str
    columns: tuple[Column, ...]
    source_kind: str

    @property
    def shape(self) -> TableShape:
        """Required and optional columns of the table."""
        return TABLES[self.table]

    @property
    def keys(self) -> list[int]:
        """Positions of the columns that together must be unique."""
        names = [column.name for column in self.columns]
        return [names.index(name) for name in self.shape.unique if name in names]

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns of valid rows."""
        return pa.schema([(column.name, column.target) for column in self.columns])

    @property
    def checked_schema(self) -> pa.Schema:
        """Columns of checked rows: `v0`, `v1`, ..., `row` and `reason`."""
        values = [(f"v{i}", column.target) for i, column in enumerate(self.columns)]
        return pa.schema([*values, (ROW, pa.string()), (REASON, pa.string())])

    def check(self, raw: RawRows) -> pa.RecordBatch:
        """Return typed values and the reason to reject each row, null for valid rows.

        The text of a row is present for rejected rows, and for all rows of JSON lines.
        """
        shape, literal = self.shape, self.source_kind in ("csv", "json")
        before = list(raw.columns)
        if self.source_kind == "csv":
            before = [
                empty_to_null(array, each.target) for each, array in zip(self.columns, before, strict=True)
            ]
        values: list[pa.Array] = []
        unfit: dict[str, pa.Array | None] = {}
        for column, array in zip(self.columns, before, strict=True):
            why: pa.Array | None = None
            if column.kind in ("id", "label") and pa.types.is_int64(column.target):
                value, why = to_int64(array, column.name, literal=literal)
            elif column.inferred:
                value = cast(array, column.target)
            else:
                value, why = fit(array, column.target, column.name, literal=literal)
            if column.name in shape.columns and array.null_count:
                why = first_reason(_reason_where(array.is_null(), f"{column.name} is null"), why)
            values.append(value)
            unfit[column.name] = why
        own = [name for name in shape.kinds if name in unfit]
        why = raw.broken
        for name in (*own, *(name for name in unfit if name not in own)):
            why = first_reason(why, unfit[name])
        misfit = why
        for other in (*self._value_reasons(values), *self._row_reasons(values)):
            why = first_reason(why, other)
        n = len(values[0])
        reason = pa.nulls(n, pa.string()) if why is None else why
        row = self._rows(raw, before, values, misfit, reason)
        return pa.RecordBatch.from_arrays([*values, row, reason], schema=self.checked_schema)

    def duplicates(self, values: Sequence[pa.Array]) -> tuple[list[str], list[str]]:
        """Return rows with duplicate keys as JSON, and for each the reason to reject it.

        Of the rows with one key, the caller keeps the one whose JSON sorts first.
        """
        parts = []
        for i in self.keys:
            name, key = self.columns[i].name, values[i]
            parts.append([f"{name} {display(value)}" if value.is_valid else "" for value in key])
        reasons = [
            ", ".join(filter(None, row)) + " is used by another row; give each its own"
            for row in zip(*parts, strict=True)
        ]
        return self._as_json(values), reasons

    def _rows(
        self,
        raw: RawRows,
        before: list[pa.Array],
        values: list[pa.Array],
        misfit: pa.Array | None,
        reason: pa.Array,
    ) -> pa.Array:
        """Return the text of rows: the original if there is one, else JSON, of typed values if all fit."""
        if self.source_kind == "json" and raw.line is not None:
            return raw.line
        found = np.full(len(reason), None, object)
        bad = np.flatnonzero(np.asarray(reason.is_valid()))
        if len(bad):
            at = pa.array(bad)
            typed = self._as_json([value.take(at) for value in values])
            plain = typed
            if misfit is not None:
                plain = self._as_json([value.take(at) for value in before])
            unfit = [False] * len(bad) if misfit is None else misfit.take(at).is_valid().to_pylist()
            lines = [None] * len(bad) if raw.line is None else raw.line.take(at).to_pylist()
            for i, *cells, is_unfit, line in zip(bad.tolist(), typed, plain, unfit, lines, strict=True):
                found[i] = line if line is not None else cells[is_unfit]
        return pa.array(found, pa.string())

    def _as_json(self, values: Sequence[pa.Array]) -> list[str]:
        names = [text.quoted(column.name) for column in self.columns]
        cells = zip(*(text.json_cells(value) for value in values), strict=True)
        return ["{" + ",".join(map("{}:{}".format, names, row)) + "}" for row in cells]

    def _value_reasons(self, values: list[pa.Array]) -> list[pa.Array | None]:
        """Return the reasons to reject values that have the right type but are out of range."""
        found = []
        for column, value in zip(self.columns, values, strict=True):
            name = column.name
            if column.kind == "action":
                wrong = pc.invert(pc.is_in(value, pa.array(ACTIONS)))
                neither = f"{name} '{{}}' is neither {' nor '.join(ACTIONS)}"
                found.append(
                    _reasons_for(value, wrong, lambda text_, neither=neither: neither.format(text_[:SHOWN]))
                )
            elif column.kind == "amount":
                fine = pc.and_(pc.greater_equal(value, 0.0), pc.less(value, float("inf")))
                no = f"{name} {{}} is not a finite number of at least 0"
                found.append(
                    _reasons_for(
                        value, pc.invert(fine), lambda number, no=no: no.format(text.java_double(number))
                    )
                )
        return found

    def _row_reasons(self, values: list[pa.Array]) -> list[pa.Array | None]:
        """Return the reasons to reject rows because of a combination of columns."""
        by_name = {column.name: value for column, value in zip(self.columns, values, strict=True)}
        if self.table == "topology":
            one = by_name["a"]
            quote = "" if is_number(one.type) else "'"
            reason = f"a and b are both {quote}{{}}{quote}; a link joins two nodes"
            same = pc.equal(one, by_name["b"])
            return [_reasons_for(one, same, lambda node: reason.format(_shortened(str(node))))]
        names = [name for name in self.shape.either if name in by_name]
        if not names:
            return []
        count = sum((np.asarray(by_name[name].is_valid(), np.int64) for name in names), np.int64(0))
        none = " and ".join(names) + (" are null" if len(names) > 1 else " is null")
        both = f"{' and '.join(names)} are both given; write two rows"
        return [_reason_where(pa.array(count == 0), none), _reason_where(pa.array(count > 1), both)]


def empty_to_null(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Replace empty CSV values by null unless the target type is text."""
    if is_text(target) or not is_text(array.type):
        return array
    return pc.if_else(pc.equal(array, ""), NOTHING, array)


def _shortened(value: str) -> str:
    return value if len(value) <= SHOWN else f"{value[:SHOWN]}..."


def _reason_where(where: pa.Array, reason: str) -> pa.Array | None:
    """Return a reason for the rows where a condition is true, or None if it is true for no row."""
    if not pc.any(where).as_py():
        return None
    return pc.if_else(where, pa.scalar(reason), NOTHING)


def _reasons_for(values: pa.Array, bad: pa.Array, reason_of: Callable[..., str]) -> pa.Array | None:
    """Return the reasons to reject values that are bad and not null, or None without such values."""
    bad = pc.and_(bad, values.is_valid()).fill_null(False)
    if not pc.any(bad).as_py():
        return None
    some = [
        reason_of(value) if wrong else None
        for value, wrong in zip(pc.if_else(bad, values, None).to_pylist(), bad.to_pylist(), strict=True)
    ]
    return pa.array(some, pa.string())


def rules_of(table: str, source: Source, schema: Schema | None = None) -> Rules:
    """Derive the rules of a table from the columns of its source.

    Parameters
    ----------
    table
        Name of the table, one of `TABLES`.
    source
        The source of the table.
    schema
        Types of the event attributes; used only for `events`.

    Raises
    ------
    TableError
        If columns are missing, collide, or have a type that cannot be converted.
    """
    kinds = shape_of(table).kinds
    names = [name.lower() if name.lower() in kinds else name for name in source.names]
    _check_names(table, source, names)
    attributes = attributes_of(schema, names) if table == "events" else {}
    attributes.pop(EVENT_ID, None)
    # The types of these columns depend on the data.
    untyped = [
        i
        for i, name in enumerate(names)
        if kinds.get(name, "label") == "label" and _schema_type(attributes.get(name.lower())) is None
    ]
    types = source.column_types(untyped, [i for i in untyped if kinds.get(names[i]) == "label"])
    columns = []
    for name, found in zip(names, types, strict=True):
        if name in kinds:
            columns.append(Column(name, found, _key_type(name, kinds[name], found, source), kinds[name]))
        elif (known := attributes.get(name.lower())) is not None:
            columns.append(Column(name, found, target_type(found, known, absent=source.kind == "json")))
        elif table == "events" and name.lower() == "time" and source.is_text and _may_be_time(found):
            columns.append(Column(name, found, INSTANT))
        else:
            columns.append(Column(name, found, found, inferred=source.kind == "csv"))
    present = {name.lower() for name in names}
    absent = [attribute for name, attribute in attributes.items() if name not in present]
    if absent and source.kind != "json":
        raise TableError(
            _missing(source, [attribute.name for attribute in absent]) + ", but the schema has it"
        )
    if not names:  # an empty JSON file
        needed = TABLES[table].columns.items()
        columns += [
            Column(name, pa.string(), _key_type(name, kind, pa.string(), source), kind)
            for name, kind in needed
        ]
    for attribute in absent:
        kind = attribute.as_column() or pa.string()
        columns.append(Column(attribute.name, kind, kind))
    if table == "topology":
        columns = _same_nodes(columns, source)
    return Rules(table, tuple(columns), source.kind)


def shape_of(table: str) -> TableShape:
    """Return the required and optional columns of a table."""
    check_choice("table", table, TABLES)
    return TABLES[table]


def _schema_type(attribute: NestedAttribute | None) -> pa.DataType | None:
    """Return the type of a column in the schema, or None to keep the type found in the data."""
    return None if attribute is None else attribute.as_column()


def _may_be_time(kind: pa.DataType) -> bool:
    return is_text(kind) or bool(pa.types.is_date(kind))


def _check_names(table: str, source: Source, names: list[str]) -> None:
    """Refuse a source whose column names collide or are incomplete."""
    if both := collision(source.names):
        raise TableError(
            f"columns {both[0]!r} and {both[1]!r} of {source.where} collide: names ignore case; rename one"
        )
    if not names and source.kind == "json":
        return
    shape = TABLES[table]
    missing = [name for name in shape.columns if name not in names]
    if shape.either and not set(shape.either) & set(names):
        missing.append(shape.either[0])
    if missing:
        raise TableError(f"{_missing(source, missing)}; {table} need them")


def _missing(source: Source, names: Sequence[str]) -> str:
    """Return a message that names the missing and the existing columns of a source."""
    existing = ", ".join(repr(name[:40]) for name in source.names[:12])
    existing += ", ..." if len(source.names) > 12 else ""
    return f"{source.where} has no column {', '.join(map(repr, names))}: it has {existing or 'no columns'}"


def _key_type(name: str, kind: Kind, source_type: pa.DataType, source: Source) -> pa.DataType:
    """Return the target type of a column that the table defines; refuse types that cannot be converted."""
    t = pa.types
    plain = is_text(source_type) or t.is_null(source_type)
    wrong = f"column {name!r} of {source.where} is of type {type_name(source_type)}; use "
    if kind == "label":
        if source.kind == "csv" and not (t.is_int32(source_type) or t.is_int64(source_type)):
            return pa.string()
        if t.is_integer(source_type) or (t.is_decimal(source_type) and source_type.scale == 0):
            return pa.int64()
        if plain:
            return pa.string()
        raise TableError(wrong + CONTENTS[kind])
    if is_nested(source_type) or is_binary(source_type):
        raise TableError(
            wrong + {"id": "integers", "amount": "numbers", "time": "timestamps"}.get(kind, "strings")
        )
    if kind == "amount" and not (plain or is_number(source_type)) and source.kind != "csv":
        raise TableError(f"{wrong}numbers")
    if kind == "time" and not (plain or t.is_date(source_type) or t.is_timestamp(source_type)):
        raise TableError(f"{wrong}timestamps")
    targets: dict[Kind, pa.DataType] = {"id": pa.int64(), "amount": pa.float64(), "time": INSTANT}
    return targets.get(kind, pa.string())


def _same_nodes(columns: list[Column], source: Source) -> list[Column]:
    """Give both ends of links the same type, as CSV does not distinguish labels of digits from numbers."""
    ends = {column.name: column for column in columns if column.name in ("a", "b")}
    if len({end.target for end in ends.values()}) == 1:
        return columns
    if source.kind != "csv":
        types = " and ".join(f"{name!r} {type_name(end.target)}" for name, end in ends.items())
        raise TableError(f"columns of {source.where} name nodes in two types, {types}; use one")
    return [
        Column(column.name, column.source_type, pa.string(), column.kind) if column.name in ends else column
        for column in columns
    ]
