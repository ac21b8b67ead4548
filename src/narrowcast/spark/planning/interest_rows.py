"""What each subscriber wants as one row of Spark's, with flows as numbers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import csr_array

from narrowcast.model.interest import Interest
from narrowcast.model.labels import encode, labels_in
from narrowcast.model.relation import relation, relation_of
from narrowcast.spark.arrow_batches import chunks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from pyspark import Broadcast
    from pyspark.sql import DataFrame

    from narrowcast.model.labels import Labels
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.model.relation import Relation
    from narrowcast.spark.stages.interest import InterestFrames

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]

#: Parts of all hashes, of which some are a sample.
_PARTS = 1 << 20


def flows_of(frames: InterestFrames) -> tuple[Labels, Doubles]:
    """Return all flows, in the order of their labels, and the rate of each."""
    # Histories know which flows they have, and so do the rates made from them.
    known = frames.interests if frames.histories is None else frames.rates
    wanted = labels_in(known.select("flow").distinct().toArrow(), "flow", "interests")
    nobody = pa.table({"subscriber": pa.array([], pa.int64()), "flow": wanted.slice(0, 0)})
    rated = Interest.from_tables(nobody, frames.rates.select("flow", "rate").toArrow())
    flows, [place, _] = encode("flow", rated.flows, wanted)
    rate = np.ones(len(flows))
    rate[place] = rated.rate
    return flows, rate


def rates_of(plan: ChannelPlan, flows: Labels, rate: Doubles) -> Interest:
    """Return a plan's flows with their rates, and no subscribers, given the rates of all flows."""
    place = pc.index_in(plan.flows, value_set=flows).to_numpy()
    return Interest(np.zeros((0, len(place))), rate[place], flows=plan.flows)


def rows_of(frames: InterestFrames, flows: Broadcast[Labels], *, everybody: bool = False) -> DataFrame:
    """Return `subscriber` and `flows`, the numbers of what they want, ascending, with a hash of these.

    Parameters
    ----------
    frames
        Who wants what.
    flows
        All flows, numbered by their places.
    everybody
        Whether those have a row, too, who want none of the flows, where the frames know of such.
    """
    from pyspark.sql import functions as sf

    if frames.histories is not None:
        packed = frames.histories.rows(flows)
        return packed if everybody else packed.where(sf.size("flows") > 0)
    pairs = frames.interests.select("subscriber", "flow")
    kind = pairs.schema["subscriber"].dataType.simpleString()
    numbered = pairs.mapInArrow(partial(_numbered, flows=flows), f"subscriber {kind}, flow int")
    lists = numbered.groupBy("subscriber").agg(sf.sort_array(sf.collect_list("flow")).alias("flows"))
    if everybody and frames.subscribers is not None:
        nothing = sf.array().cast("array<int>")
        lists = frames.subscribers.join(lists, "subscriber", "left")
        lists = lists.withColumn("flows", sf.coalesce("flows", nothing))
    return lists.select("subscriber", "flows", sf.xxhash64("flows").alias("hash"))


def _numbered(batches: Iterator[pa.RecordBatch], flows: Broadcast[Labels]) -> Iterator[pa.RecordBatch]:
    """Yield wanted pairs with the number of the flow."""
    known = flows.value
    for table in chunks(batches):
        flow = pc.index_in(labels_in(table, "flow", "interests").cast(known.type), value_set=known)
        yield from pa.table({"subscriber": table["subscriber"], "flow": flow}).to_batches()


def size_of(rows: DataFrame) -> tuple[int, int]:
    """Return how many rows and how many wanted pairs there are."""
    from pyspark.sql import functions as sf

    [found] = rows.agg(sf.count("*").alias("n"), sf.sum(sf.size("flows")).alias("pairs")).collect()
    return found.n, found.pairs or 0


def sample_of(rows: DataFrame, share: float, rate: Doubles) -> Interest:
    """Bring about a share of the rows to the driver, by the hash of what they want: the same again."""
    from pyspark.sql import functions as sf

    parts = max(1, int(_PARTS * min(1.0, share)))
    some = rows.where(sf.pmod("hash", sf.lit(_PARTS)) < parts)
    lists = some.select("flows").toArrow()["flows"].combine_chunks()
    n = len(lists)
    row = np.repeat(np.arange(n), lists.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64))
    return Interest(relation_of(row, lists.flatten(), (n, len(rate))), rate)


def flows_in(table: pa.Table) -> pa.ChunkedArray:
    """Return the column `flows` as workers hand it on: Spark tells lists that may have nulls from others."""
    return table["flows"].cast(pa.list_(pa.field("element", pa.int32())))


def wants_in(table: pa.Table, n_flows: int) -> Relation:
    """Return the column `flows` as rows x flows."""
    start, index = lists_of(table)
    return relation(csr_array((np.ones(len(index), np.bool_), index, start), shape=(len(start) - 1, n_flows)))


def lists_of(table: pa.Table) -> tuple[Ints, NDArray[np.int32]]:
    """Return the column `flows` as kernels take it: where each list begins, and all of them in one."""
    lists = table["flows"].combine_chunks()
    start = lists.offsets.to_numpy().astype(np.int64)
    return start - start[0], np.array(lists.flatten().to_numpy(zero_copy_only=False), np.int32)
