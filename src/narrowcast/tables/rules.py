"""The rules of a table: raw rows become typed ones, or are set aside with a reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import ParameterError, TableError
from narrowcast.model.schema import EVENT_ID
from narrowcast.tables import text
from narrowcast.tables.attributes import Attribute, attributes_of, wanted_type
from narrowcast.tables.raw import collision
from narrowcast.tables.shapes import ACTIONS, CONTENTS, TABLES, Kind, TableShape
from narrowcast.tables.text import INSTANT, NOTHING
from narrowcast.tables.values import (
    SHOWN,
    cast,
    first,
    fit,
    is_binary,
    is_nested,
    is_number,
    is_text,
    shown,
    type_name,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from narrowcast.model.schema import Schema
    from narrowcast.tables.raw import Raw, Source

#: Columns of checked rows behind their values: the text of a row, and the reason against it.
ROW, REASON = "row", "reason"


@dataclass(frozen=True, slots=True)
class Column:
    """A column that a table will have.

    Parameters
    ----------
    name
        Its name.
    held
        The type that its values were found to be of.
    wanted
        The type that they get.
    kind
        What the table wants of it, None for others than the table's own.
    seen
        Whether all values were looked at before, so that they are known to fit.
    """

    name: str
    held: pa.DataType
    wanted: pa.DataType
    kind: Kind | None = None
    seen: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """What becomes of the rows of a table: types, and reasons against rows.

    The rules of a row depend on nothing but the row, so they can be applied to any batches of a table.

    Parameters
    ----------
    table
        One of `TABLES`.
    columns
        The columns to be, in order.
    source_kind
        `parquet`, `csv`, `json` or `frame`.
    """

    table: str
    columns: tuple[Column, ...]
    source_kind: str

    @property
    def shape(self) -> TableShape:
        """What the table must hold."""
        return TABLES[self.table]

    @property
    def keys(self) -> list[int]:
        """The positions of the columns that together name a row."""
        names = [column.name for column in self.columns]
        return [names.index(name) for name in self.shape.unique if name in names]

    @property
    def schema(self) -> pa.Schema:
        """The names and types of good rows."""
        return pa.schema([(column.name, column.wanted) for column in self.columns])

    @property
    def checked_schema(self) -> pa.Schema:
        """The columns of checked rows: `v0`, `v1`, ..., `row` and `reason`."""
        values = [(f"v{i}", column.wanted) for i, column in enumerate(self.columns)]
        return pa.schema([*values, (ROW, pa.string()), (REASON, pa.string())])

    def check(self, raw: Raw) -> pa.RecordBatch:
        """Return typed values, and the reason against each row: null for good ones.

        The text of a row is there for rows with a reason, and for all rows that came as text of their own.
        """
        shape, literal = self.shape, self.source_kind in ("csv", "json")
        before = list(raw.columns)
        if self.source_kind == "csv":
            before = [nulled(array, each.wanted) for each, array in zip(self.columns, before, strict=True)]
        values: list[pa.Array] = []
        unfit: dict[str, pa.Array | None] = {}
        for column, array in zip(self.columns, before, strict=True):
            why: pa.Array | None = None
            if column.kind in ("id", "label") and pa.types.is_int64(column.wanted):
                value, why = whole(array, column.name, literal=literal)
            elif column.seen:
                value = cast(array, column.wanted)
            else:
                value, why = fit(array, column.wanted, column.name, literal=literal)
            if column.name in shape.columns and array.null_count:
                why = first(_said(array.is_null(), f"{column.name} is null"), why)
            values.append(value)
            unfit[column.name] = why
        own = [name for name in shape.kinds if name in unfit]
        why = raw.broken
        for name in (*own, *(name for name in unfit if name not in own)):
            why = first(why, unfit[name])
        misfit = why
        for other in (*self._beyond(values), *self._across(values)):
            why = first(why, other)
        n = len(values[0])
        reason = pa.nulls(n, pa.string()) if why is None else why
        row = self._rows(raw, before, values, misfit, reason)
        return pa.RecordBatch.from_arrays([*values, row, reason], schema=self.checked_schema)

    def repeated(self, values: Sequence[pa.Array]) -> tuple[list[str], list[str]]:
        """Return typed rows as JSON, and the reason against each if another row has its key.

        Of the rows with one key the first in the order of their JSON stays.
        """
        parts = []
        for i in self.keys:
            name, key = self.columns[i].name, values[i]
            parts.append([f"{name} {shown(value)}" if value.is_valid else "" for value in key])
        reasons = [
            ", ".join(filter(None, row)) + " is used by another row; give each its own"
            for row in zip(*parts, strict=True)
        ]
        return self._as_json(values), reasons

    def _rows(
        self,
        raw: Raw,
        before: list[pa.Array],
        values: list[pa.Array],
        misfit: pa.Array | None,
        reason: pa.Array,
    ) -> pa.Array:
        """Return the text of rows: as they came, else as JSON, typed if all their values fit."""
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

    def _beyond(self, values: list[pa.Array]) -> list[pa.Array | None]:
        """Return the reasons against values of the right type that the table cannot use."""
        found = []
        for column, value in zip(self.columns, values, strict=True):
            name = column.name
            if column.kind == "action":
                wrong = pc.invert(pc.is_in(value, pa.array(ACTIONS)))
                neither = f"{name} '{{}}' is neither {' nor '.join(ACTIONS)}"
                found.append(
                    _each(value, wrong, lambda text_, neither=neither: neither.format(text_[:SHOWN]))
                )
            elif column.kind == "amount":
                fine = pc.and_(pc.greater_equal(value, 0.0), pc.less(value, float("inf")))
                no = f"{name} {{}} is no finite number of 0 or more"
                found.append(
                    _each(value, pc.invert(fine), lambda number, no=no: no.format(text.java_double(number)))
                )
        return found

    def _across(self, values: list[pa.Array]) -> list[pa.Array | None]:
        """Return the reasons against rows that lie in several columns together."""
        by_name = {column.name: value for column, value in zip(self.columns, values, strict=True)}
        if self.table == "topology":
            one = by_name["a"]
            quote = "" if is_number(one.type) else "'"
            said = f"a and b are both {quote}{{}}{quote}; a link joins two nodes"
            return [_each(one, pc.equal(one, by_name["b"]), lambda node: said.format(_cut(str(node))))]
        there = [name for name in self.shape.either if name in by_name]
        if not there:
            return []
        count = sum((np.asarray(by_name[name].is_valid(), np.int64) for name in there), np.int64(0))
        none = " and ".join(there) + (" are null" if len(there) > 1 else " is null")
        both = f"{' and '.join(there)} are both given; write two rows"
        return [_said(pa.array(count == 0), none), _said(pa.array(count > 1), both)]


def nulled(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return values of CSV with null for an empty text where no text is wanted."""
    if is_text(wanted) or not is_text(array.type):
        return array
    return pc.if_else(pc.equal(array, ""), NOTHING, array)


def _cut(shown_text: str) -> str:
    return shown_text if len(shown_text) <= SHOWN else f"{shown_text[:SHOWN]}..."


def _said(where: pa.Array, reason: str) -> pa.Array | None:
    """Return a reason where a condition holds, None where it holds nowhere."""
    if not pc.any(where).as_py():
        return None
    return pc.if_else(where, pa.scalar(reason), NOTHING)


def _each(values: pa.Array, bad: pa.Array, say: Callable[..., str]) -> pa.Array | None:
    """Return the reasons against values that are bad and not null."""
    bad = pc.and_(bad, values.is_valid()).fill_null(False)
    if not pc.any(bad).as_py():
        return None
    some = [
        say(value) if wrong else None
        for value, wrong in zip(pc.if_else(bad, values, None).to_pylist(), bad.to_pylist(), strict=True)
    ]
    return pa.array(some, pa.string())


def rules_of(table: str, source: Source, schema: Schema | None = None) -> Rules:
    """Return the rules for a table that was found.

    Parameters
    ----------
    table
        One of `TABLES`.
    source
        What was found.
    schema
        The types of the attributes of events.

    Raises
    ------
    TableError
        When columns are missing, collide, or cannot become what the table wants.
    """
    kinds = shape_of(table).kinds
    names = [name.lower() if name.lower() in kinds else name for name in source.names]
    _check_names(table, source, names)
    attributes = attributes_of(schema, names) if table == "events" else {}
    attributes.pop(EVENT_ID, None)
    loose = [
        i
        for i, name in enumerate(names)
        if kinds.get(name, "label") == "label" and _settled(attributes.get(name.lower())) is None
    ]
    held = source.held(loose, [i for i in loose if kinds.get(names[i]) == "label"])
    columns = []
    for name, found in zip(names, held, strict=True):
        if name in kinds:
            columns.append(Column(name, found, _key_type(name, kinds[name], found, source), kinds[name]))
        elif (known := attributes.get(name.lower())) is not None:
            columns.append(Column(name, found, wanted_type(found, known, absent=source.kind == "json")))
        elif table == "events" and name.lower() == "time" and source.is_text and _may_be_time(found):
            columns.append(Column(name, found, INSTANT))
        else:
            columns.append(Column(name, found, found, seen=source.kind == "csv"))
    there = {name.lower() for name in names}
    absent = [attribute for name, attribute in attributes.items() if name not in there]
    if absent and source.kind != "json":
        raise TableError(
            _missing(source, [attribute.name for attribute in absent]) + ", but the schema has it"
        )
    if not names:  # a JSON file without a line
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
    """Return what a table must hold."""
    if table not in TABLES:
        raise ParameterError(f"unknown table {table!r}; there are: {', '.join(TABLES)}")
    return TABLES[table]


def _settled(attribute: Attribute | None) -> pa.DataType | None:
    """Return the type that a schema gives a column, None when it leaves that to the values."""
    return None if attribute is None else attribute.as_column()


def _may_be_time(kind: pa.DataType) -> bool:
    return is_text(kind) or bool(pa.types.is_date(kind))


def _check_names(table: str, source: Source, names: list[str]) -> None:
    """Refuse a source in which columns collide or are missing."""
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
    """Return which columns a source lacks, and which it has."""
    there = ", ".join(repr(name[:40]) for name in source.names[:12])
    there += ", ..." if len(source.names) > 12 else ""
    return f"{source.where} has no column {', '.join(map(repr, names))}: it has {there or 'no columns'}"


def _key_type(name: str, kind: Kind, held: pa.DataType, source: Source) -> pa.DataType:
    """Return the type of a column that the table defines, or raise for one that cannot become it."""
    t = pa.types
    plain = is_text(held) or t.is_null(held)
    wrong = f"column {name!r} of {source.where} is of type {type_name(held)}; use "
    if kind == "label":
        if source.kind == "csv" and not (t.is_int32(held) or t.is_int64(held)):
            return pa.string()
        if t.is_integer(held) or (t.is_decimal(held) and held.scale == 0):
            return pa.int64()
        if plain:
            return pa.string()
        raise TableError(wrong + CONTENTS[kind])
    if is_nested(held) or is_binary(held):
        raise TableError(
            wrong + {"id": "integers", "amount": "numbers", "time": "timestamps"}.get(kind, "strings")
        )
    if kind == "amount" and not (plain or is_number(held)) and source.kind != "csv":
        raise TableError(f"{wrong}numbers")
    if kind == "time" and not (plain or t.is_date(held) or t.is_timestamp(held)):
        raise TableError(f"{wrong}timestamps")
    wanted: dict[Kind, pa.DataType] = {"id": pa.int64(), "amount": pa.float64(), "time": INSTANT}
    return wanted.get(kind, pa.string())


def _same_nodes(columns: list[Column], source: Source) -> list[Column]:
    """Give both ends of links one type: CSV does not tell a name of digits from a number."""
    ends = {column.name: column for column in columns if column.name in ("a", "b")}
    if len({end.wanted for end in ends.values()}) == 1:
        return columns
    if source.kind != "csv":
        said = " and ".join(f"{name!r} {type_name(end.wanted)}" for name, end in ends.items())
        raise TableError(f"columns of {source.where} name nodes in two types, {said}; use one")
    return [
        Column(each.name, each.held, pa.string(), each.kind) if each.name in ends else each
        for each in columns
    ]
