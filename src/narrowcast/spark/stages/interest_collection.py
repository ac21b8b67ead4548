"""Collection of an interest on the driver, up to a limit."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.deprecation import renamed_parameters
from narrowcast.errors import ParameterError
from narrowcast.model.interest import Interest
from narrowcast.model.labels import encode, labels_in
from narrowcast.model.relation import relation_of
from narrowcast.spark.arrow_batches import chunks
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.broadcast_variable import broadcast_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark import Broadcast

    from narrowcast.model.labels import Labels
    from narrowcast.spark.stages.interest import InterestFrames

#: Maximum number of wanted pairs on the driver. Its Python process grew by at most 31 to 33 bytes for each,
#: measured with 3 and 9 million pairs: about 1.6 GB at this limit, plus the memory of the planner.
LIMIT = 50_000_000


@renamed_parameters(everybody="all_subscribers")  # words: allow
def to_interest(frames: InterestFrames, *, limit: int = LIMIT, all_subscribers: bool = False) -> Interest:
    """Collect an interest on the driver.

    Labels are transferred once, and pairs as two numbers of four bytes each, which saves memory on the driver
    and stays far from Spark's limit on results. The result does not depend on how the tables are partitioned.

    Parameters
    ----------
    frames
        The interest as Spark tables.
    limit
        Maximum number of wanted pairs, and of flows.
    all_subscribers
        Whether to include subscribers without interest, if the frames list them.

    Raises
    ------
    ParameterError
        When the interest exceeds the limit; this is checked before anything is collected.
    """
    if over := excess(frames, limit):
        raise ParameterError(
            f"{over}, or raise the limit on a driver with more memory", parameter="limit", value=limit
        )
    return collect_interest(frames, all_subscribers=all_subscribers)


def collect_interest(frames: InterestFrames, *, all_subscribers: bool = False) -> Interest:
    """Collect the interest in Spark tables on the driver, however large it is."""
    with plainly("collect the interest"):
        interests = frames.interests.select("subscriber", "flow")
        rates = frames.rates.select("flow", "rate").toArrow()
        included = interests.select("subscriber").distinct()
        if all_subscribers and frames.subscribers is not None:
            included = frames.subscribers.select("subscriber")
        column = labels_in(included.toArrow(), "subscriber", "interests")
        wanted = labels_in(interests.select("flow").distinct().toArrow(), "flow", "interests")
        subscribers, _ = encode("subscriber", column)
        # An interest without pairs checks the rates, and orders the flows like any interest.
        empty = pa.table({"subscriber": column.slice(0, 0), "flow": wanted.slice(0, 0)})
        rated = Interest.from_tables(empty, rates)
        flows, [known, _] = encode("flow", rated.flows, wanted)
        rate = np.ones(len(flows))
        rate[known] = rated.rate
        with broadcast_value(interests.sparkSession, (subscribers, flows)) as labels:
            work = partial(_to_positions, labels=labels)
            codes = interests.mapInArrow(work, "row int, column int").toArrow()
    row, place = codes["row"].to_numpy(), codes["column"].to_numpy()
    return Interest(relation_of(row, place, (len(subscribers), len(flows))), rate, subscribers, flows)


def excess(frames: InterestFrames, limit: int) -> str:
    """Return an error message if an interest exceeds the driver's limit, otherwise an empty string."""
    from pyspark.sql import functions as sf

    with plainly("count the interest"):
        pairs = frames.interests.agg(sf.count("*").alias("pairs"))
        [counts] = pairs.crossJoin(frames.rates.agg(sf.count("*").alias("flows"))).collect()
    for what, count in (("wanted pairs", counts.pairs), ("flows", counts.flows)):
        if count > limit:
            return excess_message(count, what, limit)
    return ""


def excess_message(count: int, what: str, limit: int) -> str:
    """Return the error message for an interest with too many pairs or flows, which `what` names."""
    return (
        f"the interest has {count:,} {what}: the driver's limit is {limit:,}; "
        "keep fewer flows (the heaviest cells, the last events)"
    )


def _to_positions(
    batches: Iterator[pa.RecordBatch], labels: Broadcast[tuple[Labels, Labels]]
) -> Iterator[pa.RecordBatch]:
    """Replace the labels of wanted pairs by positions among all subscribers and all flows."""
    subscribers, flows = labels.value
    for table in chunks(batches):
        row, column = (
            pc.index_in(labels_in(table, name, "interests").cast(known.type), value_set=known)
            for name, known in (("subscriber", subscribers), ("flow", flows))
        )
        yield pa.RecordBatch.from_arrays([row, column], names=["row", "column"])
