"""Bringing an interest to the driver, up to a limit."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import ParameterError
from narrowcast.model.interest import Interest
from narrowcast.model.labels import encode, labels_in
from narrowcast.model.relation import relation_of
from narrowcast.spark.arrow_batches import chunks
from narrowcast.spark.spark_errors import plainly

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark import Broadcast

    from narrowcast.model.labels import Labels
    from narrowcast.spark.stages.interest import InterestFrames

#: Wanted pairs that the driver takes. Its Python process grew by 31 to 33 bytes a pair at most, measured
#: with 3 and 9 million, which makes about 1.6 GB here; what a planner needs for itself comes on top.
LIMIT = 50_000_000


def to_interest(frames: InterestFrames, *, limit: int = LIMIT, everybody: bool = False) -> Interest:
    """Bring an interest to the driver.

    Labels travel once and pairs as two numbers of four bytes each, so that neither Spark's limit on
    results nor the driver's memory is met early. However the tables are cut, the same interest comes out.

    Parameters
    ----------
    frames
        Who wants what, and the rates.
    limit
        The most wanted pairs, and the most flows, to take.
    everybody
        Whether those who want none of the flows are in it as well, as far as the frames know them.

    Raises
    ------
    ParameterError
        When there are more, before any is brought over.
    """
    if over := excess(frames, limit):
        raise ParameterError(f"{over}, or raise the limit on a driver with more memory")
    return collected(frames, everybody=everybody)


def collected(frames: InterestFrames, *, everybody: bool = False) -> Interest:
    """Return the interest, however large it is, with those who want none of the flows where asked."""
    with plainly("bring the interest to the driver"):
        interests = frames.interests.select("subscriber", "flow")
        rates = frames.rates.select("flow", "rate").toArrow()
        people = interests.select("subscriber").distinct()
        if everybody and frames.subscribers is not None:
            people = frames.subscribers.select("subscriber")
        column = labels_in(people.toArrow(), "subscriber", "interests")
        wanted = labels_in(interests.select("flow").distinct().toArrow(), "flow", "interests")
        subscribers, _ = encode("subscriber", column)
        # Nobody's interest yet: it checks the rates, and numbers the flows as every interest does.
        empty = pa.table({"subscriber": column.slice(0, 0), "flow": wanted.slice(0, 0)})
        rated = Interest.from_tables(empty, rates)
        flows, [known, _] = encode("flow", rated.flows, wanted)
        rate = np.ones(len(flows))
        rate[known] = rated.rate
        shipped = interests.sparkSession.sparkContext.broadcast((subscribers, flows))
        try:
            codes = interests.mapInArrow(partial(_coded, labels=shipped), "row int, column int").toArrow()
        finally:
            shipped.destroy()
    row, place = codes["row"].to_numpy(), codes["column"].to_numpy()
    return Interest(relation_of(row, place, (len(subscribers), len(flows))), rate, subscribers, flows)


def excess(frames: InterestFrames, limit: int) -> str:
    """Return what is too much for the driver, and what to do about it; nothing where all is within."""
    from pyspark.sql import functions as sf

    with plainly("count the interest"):
        pairs = frames.interests.agg(sf.count("*").alias("pairs"))
        [counts] = pairs.crossJoin(frames.rates.agg(sf.count("*").alias("flows"))).collect()
    for what, count in (("wanted pairs", counts.pairs), ("flows", counts.flows)):
        if count > limit:
            return too_much(count, what, limit)
    return ""


def too_much(count: int, what: str, limit: int) -> str:
    """Return what is too much for the driver, and what to do about it."""
    return (
        f"the interest has {count:,} {what} and the driver takes {limit:,}; "
        "keep fewer flows (the heaviest cells, the last events)"
    )


def _coded(
    batches: Iterator[pa.RecordBatch], labels: Broadcast[tuple[Labels, Labels]]
) -> Iterator[pa.RecordBatch]:
    """Yield wanted pairs as positions among all subscribers and all flows."""
    subscribers, flows = labels.value
    for table in chunks(batches):
        row, column = (
            pc.index_in(labels_in(table, name, "interests").cast(known.type), value_set=known)
            for name, known in (("subscriber", subscribers), ("flow", flows))
        )
        yield pa.RecordBatch.from_arrays([row, column], names=["row", "column"])
