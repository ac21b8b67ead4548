"""An interest with the users of each flow as one set, and flows of the same users as one: kinds of flows.

Subscribers are numbered by label, on the driver. All else is aggregation: pairs to a sorted list of users for
each flow, flows of equal lists to a kind. Lists are compared themselves, not their hashes. Kinds are numbered
in the order of a hash of their lists, so that the number of a kind does not hang on how tables are cut, and
kinds with numbers between two others are a random sample of all.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import TableError
from narrowcast.model.labels import encode, labels_in
from narrowcast.spark.arrow_batches import chunks
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.interest import in_force

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from pyspark import Broadcast
    from pyspark.sql import Column, DataFrame

    from narrowcast.kernels.sessions import Points
    from narrowcast.model.labels import Labels
    from narrowcast.spark.stages.interest import InterestFrames

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]

#: Kinds in a bucket, about: what is sorted in one go to number them.
_BUCKET = 256
#: Rates are added up as whole numbers of so many bits, so that the order does not matter.
_BITS = 62


@dataclass(frozen=True, slots=True)
class PackedInterest:
    """Kinds of flows: sets of users, no two the same, each with the rate of all its flows.

    Parameters
    ----------
    subscribers
        Labels of the users, in the order of their numbers.
    kinds
        `bucket` and `rank` int, `users` array<int> ascending, `rate` double: one row for each kind.
    sets
        `flow`, `rate`, `users` and `hash`: one row for each flow that somebody wants.
    first
        The number of the first kind of each bucket, and behind them how many kinds there are.
    rate, size
        The rate of each kind, and how many users it has.
    """

    subscribers: Labels
    kinds: DataFrame
    sets: DataFrame
    first: Ints
    rate: Doubles
    size: Ints

    def __len__(self) -> int:
        """How many kinds there are."""
        return len(self.rate)

    @property
    def n_users(self) -> int:
        """How many users there are."""
        return len(self.subscribers)

    @property
    def entries(self) -> int:
        """How many users all kinds have together."""
        return int(self.size.sum())

    def between(self, low: int, high: int) -> DataFrame:
        """Return the rows of kinds from one number up to another, and perhaps of a few around them."""
        from pyspark.sql import functions as sf

        ends = np.searchsorted(self.first, [low, max(low, high - 1)], side="right") - 1
        return self.kinds.where(sf.col("bucket").between(*ends.tolist()))

    def part(self, low: int, high: int) -> Points:
        """Bring kinds from one number up to another to the driver, for kernels."""
        with plainly("bring kinds of flows to the driver"):
            table = self.between(low, high).select("bucket", "rank", "users", "rate").toArrow()
        number = self.first[table["bucket"].to_numpy()] + table["rank"].to_numpy()
        order = np.argsort(number)
        return points_of(table.take(order[np.searchsorted(number[order], np.arange(low, high))]))

    def flows(self) -> pa.Table:
        """Return `flow`, `rate` and the number of its `kind` for each flow that somebody wants."""
        kinds = self.kinds.select("bucket", "rank", "users", _hash())
        # By hash first, which is quickly compared; by users, so that it does not matter what it hides.
        found = self.sets.join(kinds, ["hash", "users"]).select("flow", "rate", "bucket", "rank")
        with plainly("bring the kind of each flow to the driver"):
            table = found.toArrow()
        kind = self.first[table["bucket"].to_numpy()] + table["rank"].to_numpy()
        return table.select(["flow", "rate"]).append_column("kind", pa.array(kind)).sort_by("flow")


@contextmanager
def packed(frames: InterestFrames) -> Iterator[PackedInterest]:
    """Pack an interest, for the length of a block: its tables are kept as long.

    A task holds no more than the users of one flow at a time, and the rates of a kind are added up where
    they are: neither a flow that everyone wants nor a kind of very many flows weighs on one task.

    Parameters
    ----------
    frames
        Who wants what, and the rates. A flow without a rate has rate 1.

    Raises
    ------
    TableError
        When flows are numbers in one table and text in the other. A rate that is none ends the job.
    """
    from pyspark import StorageLevel

    with plainly("pack the interest"):
        interests = frames.interests.select("subscriber", "flow")
        column = labels_in(interests.select("subscriber").distinct().toArrow(), "subscriber", "interests")
        subscribers, _ = encode("subscriber", column)
    shipped = interests.sparkSession.sparkContext.broadcast(subscribers)
    kept: list[DataFrame] = []
    try:
        with plainly("pack the interest"):
            kept.append(_sets(interests, frames.rates, shipped).persist(StorageLevel.DISK_ONLY))
            kept.append(_kinds(kept[0]).persist(StorageLevel.MEMORY_AND_DISK))
            found = _counted(subscribers, kept[1], kept[0])
        yield found
    finally:
        for frame in kept:
            frame.unpersist()
        shipped.destroy()


def points_of(table: pa.Table) -> Points:
    """Return rows of `users` and `rate` as kernels read them: where each starts, who, and the rates."""
    if table.num_rows == 0:
        return np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0)
    users = table["users"].combine_chunks() if isinstance(table, pa.Table) else table.column("users")
    rate = np.array(table["rate"].to_numpy(), np.float64)
    # Of a slice, lists begin where its offsets say: what is before is never looked at.
    return users.offsets.to_numpy().astype(np.int64), users.values.to_numpy(zero_copy_only=False), rate


def _sets(interests: DataFrame, rates: DataFrame, subscribers: Broadcast[Labels]) -> DataFrame:
    """Return `flow`, `rate`, `users` and `hash` of each flow that somebody wants."""
    from pyspark.sql import functions as sf

    ours, theirs = (frame.schema["flow"].dataType.simpleString() for frame in (interests, rates))
    if (ours == "string") != (theirs == "string"):
        raise TableError(
            f"flow is {ours} in interests and {theirs} in rates; labels are compared with their type, so "
            "read both as the same"
        )
    numbered = interests.mapInArrow(partial(_numbered, subscribers=subscribers), f"flow {ours}, user int")
    # Side by side and not joined: so a flow that everyone wants is put together where its users are.
    rows = numbered.unionByName(in_force(rates.select("flow", "rate")), allowMissingColumns=True)
    users, rate = sf.sort_array(sf.collect_list("user")), sf.coalesce(sf.max("rate"), sf.lit(1.0))
    found = rows.groupBy("flow").agg(rate.alias("rate"), users.alias("users")).where(sf.size("users") > 0)
    return found.select("flow", "rate", "users", _hash())


def _hash() -> Column:
    """Return a hash of the users."""
    from pyspark.sql import functions as sf

    return sf.xxhash64("users").alias("hash")


def _kinds(sets: DataFrame) -> DataFrame:
    """Return `bucket`, `rank`, `users` and `rate` of each kind."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    [found] = sets.agg(sf.count("*").alias("flows"), sf.max("rate").alias("most")).collect()
    # Powers of two, so that nothing but what is too small to matter is rounded off.
    bits = math.floor(_BITS - math.log2(found.flows) - math.log2(found.most)) if found.most else 0
    scale = 2.0 ** min(1000, max(-1000, bits))
    whole = sf.sum(sf.rint(sf.col("rate") * scale).cast("bigint"))
    each = sets.groupBy("hash", "users").agg((whole / scale).alias("rate"))
    bits = max(1, (found.flows // _BUCKET).bit_length())
    bucket = sf.shiftright("hash", 64 - bits) + (1 << (bits - 1))
    place = sf.row_number().over(Window.partitionBy("bucket").orderBy("hash", "users")) - 1
    placed = each.withColumn("bucket", bucket.cast("int")).withColumn("rank", place)
    return placed.select("bucket", "rank", "users", "rate")


def _counted(subscribers: Labels, kinds: DataFrame, sets: DataFrame) -> PackedInterest:
    """Return what the driver holds of each kind."""
    from pyspark.sql import functions as sf

    table = kinds.select("bucket", "rank", "rate", sf.size("users").alias("size")).toArrow()
    bucket, rank = table["bucket"].to_numpy(), table["rank"].to_numpy()
    order = np.lexsort((rank, bucket))
    first = np.append(0, np.cumsum(np.bincount(bucket, minlength=1)))
    rate, size = table["rate"].to_numpy()[order], table["size"].to_numpy()[order]
    return PackedInterest(subscribers, kinds, sets, first, rate, size.astype(np.int64))


def _numbered(batches: Iterator[pa.RecordBatch], subscribers: Broadcast[Labels]) -> Iterator[pa.RecordBatch]:
    """Yield wanted pairs with the number of the subscriber."""
    known = subscribers.value
    for table in chunks(batches):
        user = pc.index_in(labels_in(table, "subscriber", "interests").cast(known.type), value_set=known)
        yield from pa.table({"flow": table["flow"], "user": user}).to_batches()
