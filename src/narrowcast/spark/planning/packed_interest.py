"""A packed interest: flows with equal sets of users are merged into kinds of flows.

The driver numbers subscribers by label. Spark aggregates pairs to a sorted list of users for each flow, and
flows with equal lists to a kind. The lists themselves are compared, not only their hashes. Kinds are numbered
in the order of a hash of their lists, so that the number of a kind does not depend on how tables are
partitioned, and any range of numbers is a random sample of all kinds.
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
from narrowcast.spark.stages.interest import current_rates

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

#: Approximate number of kinds in a bucket, the unit of sorting when kinds are numbered.
_BUCKET = 256
#: Rates are added up as integers of at most this many bits, so that the order of addition does not matter.
_BITS = 62


@dataclass(frozen=True, slots=True)
class PackedInterest:
    """Kinds of flows: distinct sets of users, each with the total rate of its flows.

    Parameters
    ----------
    subscribers
        Labels of the users, in the order of their numbers.
    kinds
        `bucket` and `rank` int, `users` array<int> ascending, `rate` double: one row for each kind.
    sets
        `flow`, `rate`, `users` and `hash`: one row for each flow with at least one user.
    first
        The number of the first kind of each bucket, followed by the number of all kinds.
    rate, size
        The rate of each kind, and its number of users.
    """

    subscribers: Labels
    kinds: DataFrame
    sets: DataFrame
    first: Ints
    rate: Doubles
    size: Ints

    def __len__(self) -> int:
        """Return the number of kinds of flows."""
        return len(self.rate)

    @property
    def n_users(self) -> int:
        """Number of users: the subscribers of the interest."""
        return len(self.subscribers)

    @property
    def entries(self) -> int:
        """The total number of users of all kinds: pairs of a kind and a user."""
        return int(self.size.sum())

    def between(self, low: int, high: int) -> DataFrame:
        """Return the rows of the buckets that contain the kinds from `low` up to, but excluding, `high`."""
        from pyspark.sql import functions as sf

        ends = np.searchsorted(self.first, [low, max(low, high - 1)], side="right") - 1
        return self.kinds.where(sf.col("bucket").between(*ends.tolist()))

    def part(self, low: int, high: int) -> Points:
        """Collect the kinds from `low` up to, but excluding, `high` on the driver, as arrays for kernels."""
        with plainly("collect kinds of flows"):
            table = self.between(low, high).select("bucket", "rank", "users", "rate").toArrow()
        number = self.first[table["bucket"].to_numpy()] + table["rank"].to_numpy()
        order = np.argsort(number)
        return points_of(table.take(order[np.searchsorted(number[order], np.arange(low, high))]))

    def flows(self) -> pa.Table:
        """Return `flow`, `rate` and `kind`, the number of its kind, for each flow with at least one user."""
        kinds = self.kinds.select("bucket", "rank", "users", _hash())
        # By the hash, which is fast to compare, and by the users, because hashes can collide.
        found = self.sets.join(kinds, ["hash", "users"]).select("flow", "rate", "bucket", "rank")
        with plainly("collect the kind of each flow"):
            table = found.toArrow()
        kind = self.first[table["bucket"].to_numpy()] + table["rank"].to_numpy()
        return table.select(["flow", "rate"]).append_column("kind", pa.array(kind)).sort_by("flow")


@contextmanager
def pack_interest(frames: InterestFrames) -> Iterator[PackedInterest]:
    """Pack an interest; the result's tables are persisted, and valid inside the `with` statement.

    A task holds the users of one flow at a time, and the rates of a kind are added up before the shuffle:
    neither a flow that all subscribers want nor a kind of very many flows overloads a task.

    Parameters
    ----------
    frames
        The interest as Spark tables. A flow without a rate has rate 1.

    Raises
    ------
    TableError
        When flows are numbers in one table and text in the other. An invalid rate fails the Spark job.
    """
    from pyspark import StorageLevel

    with plainly("pack the interest"):
        interests = frames.interests.select("subscriber", "flow")
        column = labels_in(interests.select("subscriber").distinct().toArrow(), "subscriber", "interests")
        subscribers, _ = encode("subscriber", column)
    labels = interests.sparkSession.sparkContext.broadcast(subscribers)
    persisted: list[DataFrame] = []
    try:
        with plainly("pack the interest"):
            persisted.append(_sets(interests, frames.rates, labels).persist(StorageLevel.DISK_ONLY))
            persisted.append(_kinds(persisted[0]).persist(StorageLevel.MEMORY_AND_DISK))
            found = _packed(subscribers, persisted[1], persisted[0])
        yield found
    finally:
        for frame in persisted:
            frame.unpersist()
        labels.destroy()


def points_of(table: pa.Table) -> Points:
    """Return `users` and `rate` as arrays for kernels: the start of each list, the lists, and the rates."""
    if table.num_rows == 0:
        return np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0)
    users = table["users"].combine_chunks() if isinstance(table, pa.Table) else table.column("users")
    rate = np.array(table["rate"].to_numpy(), np.float64)
    # The values of a slice contain earlier lists, too; its offsets point to its own lists.
    return users.offsets.to_numpy().astype(np.int64), users.values.to_numpy(zero_copy_only=False), rate


def _sets(interests: DataFrame, rates: DataFrame, subscribers: Broadcast[Labels]) -> DataFrame:
    """Return `flow`, `rate`, `users` and `hash` of each flow with at least one user."""
    from pyspark.sql import functions as sf

    ours, theirs = (frame.schema["flow"].dataType.simpleString() for frame in (interests, rates))
    if (ours == "string") != (theirs == "string"):
        raise TableError(
            f"column 'flow' is {ours} in interests and {theirs} in rates: must have the same type in both, "
            "because labels are compared with their type",
            parameter="flow",
        )
    numbered = interests.mapInArrow(partial(_number_users, subscribers=subscribers), f"flow {ours}, user int")
    # A union instead of a join: the users of a popular flow are not shuffled a second time.
    rows = numbered.unionByName(current_rates(rates.select("flow", "rate")), allowMissingColumns=True)
    users, rate = sf.sort_array(sf.collect_list("user")), sf.coalesce(sf.max("rate"), sf.lit(1.0))
    found = rows.groupBy("flow").agg(rate.alias("rate"), users.alias("users")).where(sf.size("users") > 0)
    return found.select("flow", "rate", "users", _hash())


def _hash() -> Column:
    """Return a column with a hash of the column `users`."""
    from pyspark.sql import functions as sf

    return sf.xxhash64("users").alias("hash")


def _kinds(sets: DataFrame) -> DataFrame:
    """Return `bucket`, `rank`, `users` and `rate` of each kind, from the users and rate of each flow."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    [found] = sets.agg(sf.count("*").alias("flows"), sf.max("rate").alias("most")).collect()
    # Scaling by a power of two is exact, except for the bits that do not fit into the integer.
    bits = math.floor(_BITS - math.log2(found.flows) - math.log2(found.most)) if found.most else 0
    scale = 2.0 ** min(1000, max(-1000, bits))
    whole = sf.sum(sf.rint(sf.col("rate") * scale).cast("bigint"))
    merged = sets.groupBy("hash", "users").agg((whole / scale).alias("rate"))
    bits = max(1, (found.flows // _BUCKET).bit_length())
    bucket = sf.shiftright("hash", 64 - bits) + (1 << (bits - 1))
    place = sf.row_number().over(Window.partitionBy("bucket").orderBy("hash", "users")) - 1
    numbered = merged.withColumn("bucket", bucket.cast("int")).withColumn("rank", place)
    return numbered.select("bucket", "rank", "users", "rate")


def _packed(subscribers: Labels, kinds: DataFrame, sets: DataFrame) -> PackedInterest:
    """Collect the rate and size of each kind on the driver, and return the packed interest."""
    from pyspark.sql import functions as sf

    table = kinds.select("bucket", "rank", "rate", sf.size("users").alias("size")).toArrow()
    bucket, rank = table["bucket"].to_numpy(), table["rank"].to_numpy()
    order = np.lexsort((rank, bucket))
    first = np.append(0, np.cumsum(np.bincount(bucket, minlength=1)))
    rate, size = table["rate"].to_numpy()[order], table["size"].to_numpy()[order]
    return PackedInterest(subscribers, kinds, sets, first, rate, size.astype(np.int64))


def _number_users(
    batches: Iterator[pa.RecordBatch], subscribers: Broadcast[Labels]
) -> Iterator[pa.RecordBatch]:
    """Replace the subscriber labels of wanted pairs by subscriber numbers."""
    known = subscribers.value
    for table in chunks(batches):
        user = pc.index_in(labels_in(table, "subscriber", "interests").cast(known.type), value_set=known)
        yield from pa.table({"flow": table["flow"], "user": user}).to_batches()
