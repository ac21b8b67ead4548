"""Labels: the integers or strings that name subscribers and flows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import ParameterError, TableError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.relation import Positions

#: Integers or strings that name the rows or columns of a relation.
Labels: TypeAlias = "pa.Array"


def labels_of(values: Any, what: str) -> Labels:
    """Convert labels to one Arrow array of integers or strings; refuse nulls and other types."""
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    try:
        found: Labels = values if isinstance(values, pa.Array) else pa.array(values)
    except pa.ArrowException as error:
        raise TableError(f"{what} has mixed types: must be integers or strings: {error}") from error
    if isinstance(found, pa.DictionaryArray):
        found = found.dictionary_decode()
    if pa.types.is_null(found.type) and len(found) == 0:
        found = found.cast(pa.int64())
    if pa.types.is_string_view(found.type):
        found = found.cast(pa.large_string())
    if found.null_count:
        row = pc.index(found.is_null(), True).as_py()
        raise TableError(f"{what} has {found.null_count} nulls, the first in row {row}; remove those rows")
    if not (pa.types.is_integer(found.type) or _is_text(found.type)):
        raise TableError(f"{what} has type {found.type}: must be integers or strings")
    return found


def names_of(values: Any, what: str, count: int) -> Labels:
    """Return `count` distinct labels (default: 0, 1, 2, ...); refuse another number of labels and repeats."""
    if values is None:
        return pa.array(np.arange(count))
    found = labels_of(values, what)
    if len(found) != count:
        raise ParameterError(
            f"{len(found)} {what} labels: must be {count}, one each", value=len(found), limit=str(count)
        )
    coded = found.dictionary_encode()
    if len(coded.dictionary) != count:
        twice = coded.dictionary[int(np.bincount(coded.indices.to_numpy()).argmax())].as_py()
        raise ParameterError(f"{what} label {twice!r} occurs more than once: labels must differ", value=twice)
    return found


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def encode(what: str, *columns: Labels) -> tuple[Labels, list[Positions]]:
    """Return the sorted distinct labels of all columns, and each column as positions in them.

    Sorting makes the numbering independent of the order of rows. If all columns have one type, it is
    preserved; integers or strings of different widths take the first column's type if all values fit it,
    otherwise the widest type.
    """
    kinds = [column.type for column in columns if len(column)] or [columns[0].type]
    if len({_is_text(kind) for kind in kinds}) > 1:
        raise TableError(
            f"{what} has types {' and '.join(sorted({str(kind) for kind in kinds}))}: must be one type "
            "in all tables, since labels are compared with their type"
        )
    parts = [column if len(column) else pa.array([], kinds[0]) for column in columns]
    widest = pa.large_string() if _is_text(kinds[0]) else pa.int64()
    try:
        parts = [part.cast(kinds[0]) for part in parts]
    except pa.ArrowInvalid:
        try:
            parts = [part.cast(widest) for part in parts]
        except pa.ArrowInvalid as error:
            raise TableError(f"{what} has integer types without a common type: {error}") from error
    encoded = pa.concat_arrays(parts).dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    codes = rank[encoded.indices.to_numpy()]
    return encoded.dictionary.take(order), np.split(codes, np.cumsum([len(part) for part in parts])[:-1])


def positions(what: str, wanted: Labels, known: Labels) -> Positions:
    """Return the position of each wanted label among the known ones, -1 if it is not there."""
    if wanted.equals(known):
        return np.arange(len(wanted))
    labels, (wanted_code, known_code) = encode(what, wanted, known)
    place = np.full(len(labels), -1)
    place[known_code] = np.arange(len(known))
    return place[wanted_code]


def column_of(table: pa.Table, name: str, where: str) -> pa.ChunkedArray:
    """Return a column; refuse a missing one with the names of the existing columns."""
    if name not in table.column_names:
        found = ", ".join(map(repr, table.column_names)) or "none"
        raise TableError(f"{where} has no column {name!r}; its columns: {found}", parameter=name)
    return table.column(name)


def numbers_in(table: pa.Table, name: str, where: str) -> NDArray[np.float64]:
    """Return a column as doubles; refuse nulls and types that are not numeric."""
    values = column_of(table, name, where)
    if values.null_count:
        raise TableError(f"column {name!r} of {where} has {values.null_count} nulls; remove those rows")
    try:
        return np.asarray(values.cast(pa.float64()).to_numpy(), np.float64)
    except pa.ArrowException as error:
        raise TableError(f"column {name!r} of {where} has type {values.type}: must be numbers") from error


def labels_in(table: pa.Table, name: str, where: str) -> Labels:
    """Return a column of labels; refuse nulls and types other than integers and strings."""
    return labels_of(column_of(table, name, where), f"column {name!r} of {where}")
