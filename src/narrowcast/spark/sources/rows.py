"""Duplicate keys and fingerprints of Spark tables, by the content of their rows."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from narrowcast.spark.sources.columns import is_nested
from narrowcast.tables.rules import REASON, ROW
from narrowcast.tables.values import normalize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Column, DataFrame

    from narrowcast.tables.rules import Rules

#: Maximum number of duplicate keys that are broadcast to all workers, which avoids a shuffle of whole rows.
FEW = 10_000

#: Spark's options to write rows as JSON with nulls and with times in microseconds.
JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def drop_duplicates(good: DataFrame, rules: Rules) -> tuple[DataFrame, DataFrame | None]:
    """Return one row per key, and the other rows with the reason to reject them (None without duplicates).

    Only the keys are counted first; then only rows with duplicate keys are compared by their content.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    keys = [f"v{i}" for i in rules.keys]
    plain = [sf.col(key).alias(f"k{i}") for i, key in enumerate(keys)]
    repeated = good.select(*plain).groupBy(*(f"k{i}" for i in range(len(keys)))).count().where("count > 1")
    repeated = repeated.drop("count")
    some = repeated.limit(FEW + 1).collect()
    if not some:
        return good, None
    if len(some) <= FEW:
        repeated = sf.broadcast(good.sparkSession.createDataFrame(some, repeated.schema))
    same = [sf.col(key).eqNullSafe(sf.col(f"k{i}")) for i, key in enumerate(keys)]
    once = good.join(repeated, same, "left_anti")
    many = good.join(repeated, same, "left_semi").select(*(f"v{i}" for i in range(len(rules.columns))), ROW)
    more = [st.StructField(name, st.StringType()) for name in ("content", REASON)]
    many = many.mapInArrow(partial(_compared, rules=rules), st.StructType([*many.schema.fields, *more]))
    order = Window.partitionBy(*keys).orderBy("content", ROW)
    many = many.withColumn("rank", sf.row_number().over(order))
    rows = once.select(*many.columns[:-3]).unionByName(many.where("rank = 1").drop("content", REASON, "rank"))
    return rows, many.where("rank > 1").withColumn(ROW, sf.coalesce(ROW, "content"))


def _compared(batches: Iterator[pa.RecordBatch], *, rules: Rules) -> Iterator[pa.RecordBatch]:
    """Yield rows with their typed values as JSON and the reason to reject each as a duplicate."""
    for batch in batches:
        values = [normalize(column) for column in batch.columns[:-1]]
        content, reasons = rules.duplicates(values)
        texts = [pa.array(each, pa.string()) for each in (content, reasons)]
        names = [*batch.schema.names, "content", REASON]
        yield pa.RecordBatch.from_arrays([*values, batch.column(len(values)), *texts], names)


def fingerprint(frame: DataFrame) -> str:
    """Return a hash of a table's columns and rows that does not depend on their order or partitions."""
    return fingerprint_and_count(frame)[0]


def fingerprint_and_count(frame: DataFrame) -> tuple[str, int]:
    """Return the fingerprint of a table and its number of rows, in one Spark job.

    The fingerprint is a hash of the column names and types, the number of rows and the sums of two hashes of
    each row. It does not depend on files or on the time of writing.
    """
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    plain = frame.toDF(*(f"c{i}" for i in range(len(frame.columns))))
    parts: list[Column] = [sf.lit(0)]
    for i, part in enumerate(frame.schema.fields):
        value = sf.col(f"c{i}")
        if is_nested(part.dataType) or isinstance(part.dataType, st.VariantType):
            value = sf.to_json(
                sf.struct(value), JSON
            )  # Spark's hash does not support maps and skips nulls in arrays
        parts += [value.isNull(), value]  # the hash skips nulls, so add in which column each is
    hashes = [sf.xxhash64(sf.lit(salt), *parts).cast("decimal(20,0)") for salt in (1, 2)]
    counts = plain.agg(sf.count(sf.lit(1)), *(sf.sum(h) for h in hashes)).collect()[0]
    columns = [(part.name, part.dataType.simpleString()) for part in frame.schema.fields]
    return hashlib.sha256(repr((columns, *map(str, counts))).encode()).hexdigest()[:32], int(counts[0])
