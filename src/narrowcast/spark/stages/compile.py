"""Compilation of filters into boxes on Spark. The result is packed: one row has thousands of subscriptions.

The subscriptions of a packed row are bytes, its payload. So Spark does not convert them value by value, and a
worker reads them as Arrow columns.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.filters.subscriptions import COLUMNS, compile_filters
from narrowcast.model.subscriptions import SubscriptionSet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from narrowcast.model.schema import Schema

#: The columns of a table of packed subscriptions. A row with null `payload` describes a bad filter.
PACKED = (
    "payload binary, subscriptions bigint, boxes bigint, columns array<string>, reason string, row string"
)
#: Names that are never quoted in a filter; other names may be quoted and escaped.
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*", re.IGNORECASE)


def compile_subscriptions(rows: DataFrame, schema: Schema) -> DataFrame:
    """Compile filters into boxes, and return packed subscriptions and a row for each bad filter.

    Parameters
    ----------
    rows
        Subscriptions: the rows of `ingest`.
    schema
        The attributes that filters may use.
    """

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield packed(pa.Table.from_batches([batch]), schema)

    # Select the columns explicitly: Spark cannot see which ones the Python function uses.
    return rows.select(*COLUMNS).mapInArrow(work, PACKED)


def packed(table: pa.Table, schema: Schema) -> pa.RecordBatch:
    """Return one row with all valid subscriptions of a table as a payload, and a row for each bad filter."""
    result = compile_filters(schema, table.select(COLUMNS))
    good, bad = result.subscriptions, result.rejected
    texts = [json_of(row) for row in bad.drop_columns("reason").to_pylist()]
    nulls = [None] * bad.num_rows
    columns = {
        "payload": pa.array([pack(good), *nulls], pa.binary()),
        "subscriptions": pa.array([len(good), *nulls], pa.int64()),
        "boxes": pa.array([len(good.boxes), *nulls], pa.int64()),
        "columns": pa.array([columns_of(good), *nulls], pa.list_(pa.string())),
        "reason": pa.array([None, *bad["reason"].to_pylist()], pa.string()),
        "row": pa.array([None, *texts], pa.string()),
    }
    return pa.RecordBatch.from_pydict(columns)


def json_of(row: dict[str, object]) -> str:
    """Return a row as JSON in the form that Spark writes: no spaces, and no escapes of Unicode."""
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"), default=str)


def pack(subscriptions: SubscriptionSet) -> bytes:
    """Serialize subscriptions to bytes, for `unpack`.

    Examples
    --------
    >>> from narrowcast.model.schema import Schema
    >>> schema = Schema.of({"price": "double"})
    >>> compiled = compile_filters(schema, ["price > 75", "price < 9"]).subscriptions
    >>> unpack(pack(compiled), schema).boxes.counts.tolist()
    [1, 1]
    """
    table = _compact(subscriptions).to_arrow()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack(payload: bytes | pa.Buffer, schema: Schema) -> SubscriptionSet:
    """Deserialize the subscriptions in a payload of `pack`."""
    with pa.ipc.open_stream(payload) as reader:
        return SubscriptionSet.from_arrow(reader.read_all(), schema)


def unpack_all(payloads: list[bytes] | list[pa.Buffer], schema: Schema) -> SubscriptionSet:
    """Return the subscriptions of several payloads as one set, ordered by id."""
    sets = [unpack(payload, schema) for payload in payloads]
    if not sets:
        return compile_filters(schema, []).subscriptions
    whole = SubscriptionSet.slots(sets)
    ids = whole.subscription_id
    return whole if (ids[1:] > ids[:-1]).all() else whole.take(np.argsort(ids, kind="stable"))


def _compact(subscriptions: SubscriptionSet) -> SubscriptionSet:
    """Return the subscriptions without the names of subscribers that have none of them."""
    used = np.unique(subscriptions.subscriber)
    if len(used) == subscriptions.n_subscribers:
        return subscriptions
    place = np.searchsorted(used, subscriptions.subscriber).astype(np.int32)
    return replace(subscriptions, subscriber=place, subscribers=subscriptions.subscribers.take(used))


def columns_of(subscriptions: SubscriptionSet) -> list[str]:
    """Return the columns of events that the filters need; it may include some that they do not."""
    schema, checks = subscriptions.schema, subscriptions.check.drop_null()
    used = set(np.unique(subscriptions.boxes.attribute).tolist())
    roots = {name.partition(".")[0] for i, name in enumerate(schema.names) if i in used}
    if len(checks):
        for name in dict.fromkeys(name.partition(".")[0] for name in schema.names):
            if (
                not _PLAIN.fullmatch(name)
                or pc.any(pc.match_substring(checks, name, ignore_case=True)).as_py()
            ):
                roots.add(name)
    return sorted(roots)


def owners(compiled: DataFrame, schema: Schema) -> DataFrame:
    """Return the owner of each packed subscription: `subscription_id` and `subscriber`."""
    from pyspark.sql import functions as sf

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for payload in (each for batch in batches for each in batch.column("payload")):
            found = unpack(payload.as_buffer(), schema)
            names = found.subscribers.take(pa.array(found.subscriber)).cast(pa.string())
            yield pa.RecordBatch.from_arrays(
                [pa.array(found.subscription_id), names], names=["subscription_id", "subscriber"]
            )

    packed = compiled.where(sf.col("payload").isNotNull()).select("payload")
    return packed.mapInArrow(work, "subscription_id bigint, subscriber string")
