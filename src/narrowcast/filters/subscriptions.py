"""A table of filters to a set of subscriptions, and the rows that cannot be one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import FilterError, TableError
from narrowcast.files import first_line
from narrowcast.filters.compiler import FilterCompiler
from narrowcast.model.labels import encode
from narrowcast.model.subscriptions import SubscriptionSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narrowcast.filters.limits import FilterLimits
    from narrowcast.model.schema import Schema

COLUMNS = ("subscription_id", "subscriber", "filter")


@dataclass(frozen=True, slots=True, eq=False)
class CompiledTable:
    """Subscriptions, and the rows set aside: the columns given, and a `reason`."""

    subscriptions: SubscriptionSet
    rejected: pa.Table


def compile_filters(
    schema: Schema,
    filters: pa.Table | Sequence[str],
    *,
    limits: FilterLimits | None = None,
    strict: bool = False,
    compiler: FilterCompiler | None = None,
) -> CompiledTable:
    """Turn filters into subscriptions.

    Parameters
    ----------
    schema
        The attributes that filters may name.
    filters
        A table with `subscription_id`, `subscriber` and `filter`, or just a list of filters, which are then
        numbered from 0 and belong to subscribers named by their number.
    limits
        Bounds on one filter.
    strict
        Make the first bad row an error instead of setting it aside.
    compiler
        One of the same schema that has seen such filters before, in place of a new one.

    Examples
    --------
    >>> from narrowcast.model.schema import Schema
    >>> done = compile_filters(Schema.of({"price": "double"}), ["price > 75", "price >", "price IS NULL"])
    >>> done.subscriptions.subscription_id.tolist()
    [0, 2]
    >>> done.rejected["reason"].to_pylist()
    ['does not parse: something is missing at column 7']
    """
    unreadable: dict[int, str] = {}
    if not isinstance(filters, pa.Table):
        filters, unreadable = _texts(filters)
        numbers = np.arange(len(filters))
        names = pc.cast(pa.array(numbers), pa.string())
        try:
            filters = pa.table(
                [pa.array(numbers), names, pa.array(filters, pa.string())], names=list(COLUMNS)
            )
        except UnicodeEncodeError as error:
            raise TableError(f"filter {error.object[:60]!r} is not valid Unicode; mend or drop it") from None
    ids, names, texts = (_column(filters, name) for name in COLUMNS)
    reasons = _key_reasons(ids, names, texts)
    for i, reason in unreadable.items():
        reasons[i] = reason
    rows = np.flatnonzero([reason is None for reason in reasons]) if len(reasons) else np.empty(0, np.int64)
    compiled = (compiler or FilterCompiler(schema, limits)).compile(texts.take(pa.array(rows)).to_pylist())
    for i, reason in compiled.errors.items():
        reasons[rows[i]] = reason
    if (
        strict
        and (bad := next((i for i, reason in enumerate(reasons) if reason is not None), None)) is not None
    ):
        raise FilterError(f"row {bad + 1}, subscription_id {ids[bad].as_py()}: {reasons[bad]}")
    good = np.setdiff1d(np.arange(len(rows)), list(compiled.errors))
    kept = pa.array(rows[good])
    boxes = compiled.boxes.take(good)
    unsure = np.bincount(boxes.owner[~boxes.exact], minlength=len(good)) > 0
    subscribers, [codes] = encode("subscriber", names.take(kept))
    check = pc.if_else(pa.array(unsure), texts.take(kept), pa.scalar(None, pa.string()))
    subscriptions = SubscriptionSet(
        schema, np.asarray(ids.take(kept)), codes.astype(np.int32), subscribers, boxes, check
    )
    bad_rows = pa.array([i for i, reason in enumerate(reasons) if reason is not None], pa.int64())
    rejected = filters.take(bad_rows).append_column("reason", pa.array(reasons, pa.string()).take(bad_rows))
    return CompiledTable(subscriptions, rejected)


def _texts(filters: Sequence[str]) -> tuple[list[str | None], dict[int, str]]:
    """Return filters as Arrow can hold them, and the reasons against those that it cannot."""
    if isinstance(filters, str):
        raise TableError(f"filters is one text, {filters!r:.60}; give a list of filters or a table")
    found: list[str | None] = list(filters)
    reasons: dict[int, str] = {}
    for i, text in enumerate(found):
        if text is not None and not (isinstance(text, str) and (text.isascii() or _is_unicode(text))):
            reasons[i] = f"{text!r:.60} is not text" if not isinstance(text, str) else "is not valid Unicode"
            found[i] = None
    return found, reasons


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _column(table: pa.Table, name: str) -> pa.Array:
    """Return a column as one array of the type it must have; an id that is no integer becomes null."""
    if name not in table.column_names:
        raise TableError(
            f"subscriptions have no column {name!r}; they have {', '.join(table.column_names) or 'none'}"
        )
    column = table[name]
    array: pa.Array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    try:
        return array.cast(pa.int64() if name == "subscription_id" else pa.string())
    except pa.ArrowException as error:
        raise TableError(f"column {name!r} of type {array.type}: {first_line(error)}") from error


def _key_reasons(ids: pa.Array, names: pa.Array, texts: pa.Array) -> list[Any]:
    """Return for each row why its keys rule it out, or None."""
    reasons = np.full(len(ids), None, object)
    for column, name in ((texts, "filter"), (names, "subscriber"), (ids, "subscription_id")):
        reasons[np.asarray(column.is_null(), bool)] = f"{name} is null"
    filled = np.asarray(ids.fill_null(0))
    order = np.argsort(filled, kind="stable")
    again = order[1:][filled[order[1:]] == filled[order[:-1]]]
    for i in again:
        if reasons[i] is None:
            reasons[i] = f"subscription_id {filled[i]} is used by an earlier row; give each its own"
    return list(reasons)
