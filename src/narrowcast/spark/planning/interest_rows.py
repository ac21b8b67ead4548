"""The interest of each subscriber as one row of a Spark table, with flows as numbers."""

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

#: Number of equal ranges of hash values; a sample consists of the rows in some of them.
_PARTS = 1 << 20


def flows_of(frames: InterestFrames) -> tuple[Labels, Doubles]:
    """Return the labels of all flows in ascending order, and the rate of each."""
    # The rates of histories list exactly their flows, and are cheaper to read than the pairs.
    known = frames.interests if frames.histories is None else frames.rates
    wanted = labels_in(known.select("flow").distinct().toArrow(), "flow", "interests")
    no_pairs = pa.table({"subscriber": pa.array([], pa.int64()), "flow": wanted.slice(0, 0)})
    rated = Interest.from_tables(no_pairs, frames.rates.select("flow", "rate").toArrow())
    flows, [place, _] = encode("flow", rated.flows, wanted)
    rate = np.ones(len(flows))
    rate[place] = rated.rate
    return flows, rate


def interest_without_subscribers(plan: ChannelPlan, flows: Labels, rate: Doubles) -> Interest:
    """Return an interest with the plan's flows and their rates, but no subscribers.

    `flows` and `rate` are the labels and rates of all flows.
    """
    place = pc.index_in(plan.flows, value_set=flows).to_numpy()
    return Interest(np.zeros((0, len(place))), rate[place], flows=plan.flows)


def rows_of(frames: InterestFrames, flows: Broadcast[Labels], *, all_subscribers: bool = False) -> DataFrame:
    """Return the interest of each subscriber as one row.

    Its columns are `subscriber`, `flows` (ascending numbers of the wanted flows) and `hash` (of `flows`).

    Parameters
    ----------
    frames
        The interest as Spark tables.
    flows
        Labels of all flows; a flow's number is its position here.
    all_subscribers
        Whether to include subscribers without interest, if the frames list them.
    """
    from pyspark.sql import functions as sf

    if frames.histories is not None:
        packed = frames.histories.rows(flows)
        return packed if all_subscribers else packed.where(sf.size("flows") > 0)
    pairs = frames.interests.select("subscriber", "flow")
    kind = pairs.schema["subscriber"].dataType.simpleString()
    numbered = pairs.mapInArrow(partial(_number_flows, flows=flows), f"subscriber {kind}, flow int")
    lists = numbered.groupBy("subscriber").agg(sf.sort_array(sf.collect_list("flow")).alias("flows"))
    if all_subscribers and frames.subscribers is not None:
        empty = sf.array().cast("array<int>")
        lists = frames.subscribers.join(lists, "subscriber", "left")
        lists = lists.withColumn("flows", sf.coalesce("flows", empty))
    return lists.select("subscriber", "flows", sf.xxhash64("flows").alias("hash"))


def _number_flows(batches: Iterator[pa.RecordBatch], flows: Broadcast[Labels]) -> Iterator[pa.RecordBatch]:
    """Replace the flow labels of wanted pairs by flow numbers."""
    known = flows.value
    for table in chunks(batches):
        flow = pc.index_in(labels_in(table, "flow", "interests").cast(known.type), value_set=known)
        yield from pa.table({"subscriber": table["subscriber"], "flow": flow}).to_batches()


def size_of(rows: DataFrame) -> tuple[int, int]:
    """Return the number of subscribers in a table of `rows_of`, and of their wanted pairs."""
    from pyspark.sql import functions as sf

    [found] = rows.agg(sf.count("*").alias("n"), sf.sum(sf.size("flows")).alias("pairs")).collect()
    return found.n, found.pairs or 0


def sample_of(rows: DataFrame, share: float, rate: Doubles) -> Interest:
    """Collect approximately a share of the rows on the driver, chosen by hash and hence reproducible.

    Parameters
    ----------
    rows
        The result of `rows_of`.
    share
        Share of the rows, between 0 and 1.
    rate
        Rates of all flows.
    """
    from pyspark.sql import functions as sf

    parts = max(1, int(_PARTS * min(1.0, share)))
    sample = rows.where(sf.pmod("hash", sf.lit(_PARTS)) < parts)
    lists = sample.select("flows").toArrow()["flows"].combine_chunks()
    n = len(lists)
    row = np.repeat(np.arange(n), lists.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64))
    return Interest(relation_of(row, lists.flatten(), (n, len(rate))), rate)


def flows_in(table: pa.Table) -> pa.ChunkedArray:
    """Return the column `flows` of a table with the Arrow type that Spark requires of workers.

    Arrow's types of lists with and without nulls in them differ, and Spark refuses the wrong one.
    """
    return table["flows"].cast(pa.list_(pa.field("element", pa.int32())))


def wants_in(table: pa.Table, n_flows: int) -> Relation:
    """Return the column `flows` as a sparse boolean matrix of subscribers x flows."""
    start, index = lists_of(table)
    return relation(csr_array((np.ones(len(index), np.bool_), index, start), shape=(len(start) - 1, n_flows)))


def lists_of(table: pa.Table) -> tuple[Ints, NDArray[np.int32]]:
    """Return the column `flows` as arrays for kernels: the start of each list, and the lists concatenated."""
    lists = table["flows"].combine_chunks()
    start = lists.offsets.to_numpy().astype(np.int64)
    return start - start[0], np.array(lists.flatten().to_numpy(zero_copy_only=False), np.int32)
