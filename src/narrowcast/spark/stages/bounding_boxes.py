"""The box around all that a subscriber asks for, from packed subscriptions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import ParameterError, PlanError
from narrowcast.model.cells import NUMBERS, values_of
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.compile import unpack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

    from narrowcast.model.labels import Labels
    from narrowcast.model.schema import Schema
    from narrowcast.model.subscriptions import SubscriptionSet
    from narrowcast.spark.stages.plan_inputs import LoadedInterest

    Doubles = NDArray[np.float64]


def boxes_of(
    compiled: DataFrame, schema: Schema, *, by: Literal["subscriber", "subscription"] = "subscriber"
) -> DataFrame:
    """Return `subscriber` and two columns for each attribute that is a number: `lo0`, `hi0`, `lo1`, ...

    Parameters
    ----------
    compiled
        Packed subscriptions.
    schema
        What events have.
    by
        Whether there is a box for each subscriber, or for each subscription, under its id.

    Raises
    ------
    ParameterError
        When no attribute is a number.
    """
    from pyspark.sql import functions as sf

    numbers = [i for i, kind in enumerate(schema.types) if kind.family in NUMBERS]
    if not numbers:
        raise ParameterError("no attribute of the events is a number, so filters are no boxes; use direct")
    names = [f"{end}{i}" for i in range(len(numbers)) for end in ("lo", "hi")]
    shape = "subscriber string, " + ", ".join(f"{name} double" for name in names)
    work = partial(_around, schema=schema, numbers=numbers, by=by)
    parts = compiled.where("payload IS NOT NULL").select("payload").mapInArrow(work, shape)
    return parts.groupBy("subscriber").agg(
        *((sf.min if name.startswith("lo") else sf.max)(name).alias(name) for name in names)
    )


def _around(
    batches: Iterator[pa.RecordBatch], schema: Schema, numbers: list[int], by: str
) -> Iterator[pa.RecordBatch]:
    """Yield the box around the subscriptions of each subscriber of a payload, or around each of them."""
    for payload in (each for batch in batches for each in batch.column("payload")):
        subscriptions = unpack(payload.as_buffer(), schema)
        if by == "subscription":
            each = np.arange(len(subscriptions), dtype=np.int32)
            ids = pa.array(subscriptions.subscription_id)
            subscriptions = replace(subscriptions, subscriber=each, subscribers=ids)
        lo, hi = bounds_of(subscriptions, numbers)
        columns = {"subscriber": subscriptions.subscribers.cast(pa.string())}
        for i in range(len(numbers)):
            columns |= {f"lo{i}": pa.array(lo[:, i]), f"hi{i}": pa.array(hi[:, i])}
        yield pa.RecordBatch.from_pydict(columns)


def bounds_of(subscriptions: SubscriptionSet, numbers: list[int]) -> tuple[Doubles, Doubles]:
    """Return the ends (lo, hi] of the box around all that each subscriber asks for.

    Parameters
    ----------
    subscriptions
        Boxes over keys.
    numbers
        The attributes that are numbers, by their places in the schema; others do not count.

    Examples
    --------
    >>> from narrowcast.model.schema import Schema
    >>> from narrowcast.filters.subscriptions import compile_filters
    >>> schema = Schema.of({"name": "string", "price": "double", "size": "bigint"})
    >>> filters = ["price > 1 AND price <= 5 AND size <= 9 OR price > 7 AND price <= 8 AND size <= 4"]
    >>> lo, hi = bounds_of(compile_filters(schema, filters).subscriptions, [1, 2])
    >>> lo.tolist(), hi.tolist()
    ([[1.0, -inf]], [[8.0, 9.0]])
    """
    boxes, schema = subscriptions.boxes, subscriptions.schema
    who = subscriptions.subscriber[boxes.owner]
    shape = (subscriptions.n_subscribers, len(numbers))
    lo, hi = np.full(shape, np.inf), np.full(shape, -np.inf)
    for i, number in enumerate(numbers):
        mine = boxes.attribute == number
        low, high = np.full(len(boxes), -np.inf), np.full(len(boxes), np.inf)
        low[boxes.box[mine]] = values_of(boxes.lo[mine], schema.types[number])
        high[boxes.box[mine]] = values_of(boxes.hi[mine], schema.types[number])
        np.minimum.at(lo[:, i], who, low)
        np.maximum.at(hi[:, i], who, high)
    nothing = lo > hi  # who asks for nothing that could be has no box: anywhere will do
    lo[nothing], hi[nothing] = -np.inf, np.inf
    return lo, hi


def boxes_taken(taken: LoadedInterest, subscribers: Labels) -> tuple[Doubles, Doubles]:
    """Bring the boxes of the filters that an interest was made from, whatever its flows are.

    Parameters
    ----------
    taken
        The interest, made of filters and events.
    subscribers
        Whose boxes, a row for each.
    """
    boxes = taken.frames.boxes
    if boxes is None:
        if taken.content is None:
            raise ParameterError("there are no filters, and so no boxes; give --subscriptions and --events")
        boxes = boxes_of(taken.content.compiled, taken.content.schema)
    return bring_boxes(boxes, subscribers)


def bring_boxes(boxes: DataFrame, subscribers: Labels) -> tuple[Doubles, Doubles]:
    """Bring boxes to the driver, a row for each of some subscribers."""
    with plainly("bring the boxes to the driver"):
        table = boxes.toArrow()
    place = pc.index_in(subscribers.cast(pa.string()), value_set=table["subscriber"].combine_chunks())
    if place.null_count:
        who = subscribers.filter(pc.is_null(place))[0].as_py()
        raise PlanError(f"subscriber {who!r} has no subscription; give those that the events were matched by")
    rows = place.to_numpy()
    lo, hi = (
        np.stack([table[name].to_numpy() for name in table.column_names if name.startswith(end)], axis=1)
        for end in ("lo", "hi")
    )
    return lo[rows], hi[rows]
