"""Filters to boxes as a Spark job, packed: one row of its result holds thousands of subscriptions.

Packed rows pass through Spark as bytes: nothing is taken apart and put together again value by value, and a
worker that needs subscriptions has them as columns at once.
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

#: The columns of a table of packed subscriptions. `payload` is null in a row that tells of a bad filter.
PACKED = (
    "payload binary, subscriptions bigint, boxes bigint, columns array<string>, reason string, row string"
)
#: Names that stand in a filter as they are; any other may be quoted and escaped there.
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*", re.IGNORECASE)


def compile_subscriptions(rows: DataFrame, schema: Schema) -> DataFrame:
    """Return packed subscriptions, and a row for each bad filter.

    Parameters
    ----------
    rows
        Subscriptions as `ingest` gives them.
    schema
        The attributes that filters may name.
    """

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield packed(pa.Table.from_batches([batch]), schema)

    # No other column travels: Spark does not see which of them are used there.
    return rows.select(*COLUMNS).mapInArrow(work, PACKED)


def packed(table: pa.Table, schema: Schema) -> pa.RecordBatch:
    """Return the packed row of a table of subscriptions, and a row for each that is bad."""
    done = compile_filters(schema, table.select(COLUMNS))
    good, bad = done.subscriptions, done.rejected
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
    """Return a row as Spark writes it."""
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"), default=str)


def pack(subscriptions: SubscriptionSet) -> bytes:
    """Return subscriptions as bytes, for `unpack`.

    Examples
    --------
    >>> from narrowcast.model.schema import Schema
    >>> schema = Schema.of({"price": "double"})
    >>> done = compile_filters(schema, ["price > 75", "price < 9"]).subscriptions
    >>> unpack(pack(done), schema).boxes.counts.tolist()
    [1, 1]
    """
    table = _compact(subscriptions).to_arrow()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack(payload: bytes | pa.Buffer, schema: Schema) -> SubscriptionSet:
    """Return the subscriptions that `pack` wrote."""
    with pa.ipc.open_stream(payload) as reader:
        return SubscriptionSet.from_arrow(reader.read_all(), schema)


def unpack_all(payloads: list[bytes] | list[pa.Buffer], schema: Schema) -> SubscriptionSet:
    """Return the subscriptions of several payloads, in the order of their ids."""
    sets = [unpack(payload, schema) for payload in payloads]
    if not sets:
        return compile_filters(schema, []).subscriptions
    whole = SubscriptionSet.slots(sets)
    ids = whole.subscription_id
    return whole if (ids[1:] > ids[:-1]).all() else whole.take(np.argsort(ids, kind="stable"))


def _compact(subscriptions: SubscriptionSet) -> SubscriptionSet:
    """Return subscriptions without the names of subscribers that have none of them."""
    used = np.unique(subscriptions.subscriber)
    if len(used) == subscriptions.n_subscribers:
        return subscriptions
    place = np.searchsorted(used, subscriptions.subscriber).astype(np.int32)
    return replace(subscriptions, subscriber=place, subscribers=subscriptions.subscribers.take(used))


def columns_of(subscriptions: SubscriptionSet) -> list[str]:
    """Return the columns of events that these subscriptions look at, perhaps with some that they do not."""
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
    """Return `subscription_id` and `subscriber` of all packed subscriptions."""
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
