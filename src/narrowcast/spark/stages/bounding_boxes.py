"""Bounding boxes of subscribers or subscriptions: ranges of numeric attributes that contain their filters."""

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
    """Return the bounding box of each subscriber's filters as a table.

    Its columns are `subscriber`, and `lo0`, `hi0`, `lo1`, ... for the numeric attributes in schema order.

    Parameters
    ----------
    compiled
        Packed subscriptions: see `compile_subscriptions`.
    schema
        The attributes of events.
    by
        `subscriber` for one box for each subscriber, `subscription` for one for each subscription, with its
        id in the column `subscriber`.

    Raises
    ------
    ParameterError
        When the schema has no numeric attribute.
    """
    from pyspark.sql import functions as sf

    numbers = [i for i, kind in enumerate(schema.types) if kind.family in NUMBERS]
    if not numbers:
        raise ParameterError(
            "the events have no numeric attribute, so filters have no bounding boxes; use method direct",
            parameter="schema",
            value=schema.names,
        )
    names = [f"{end}{i}" for i in range(len(numbers)) for end in ("lo", "hi")]
    shape = "subscriber string, " + ", ".join(f"{name} double" for name in names)
    work = partial(_bounds, schema=schema, numbers=numbers, by=by)
    parts = compiled.where("payload IS NOT NULL").select("payload").mapInArrow(work, shape)
    return parts.groupBy("subscriber").agg(
        *((sf.min if name.startswith("lo") else sf.max)(name).alias(name) for name in names)
    )


def _bounds(
    batches: Iterator[pa.RecordBatch], schema: Schema, numbers: list[int], by: str
) -> Iterator[pa.RecordBatch]:
    """Yield the bounding boxes of the subscribers in each packed row; one may have boxes in several rows."""
    for payload in (each for batch in batches for each in batch.column("payload")):
        subscriptions = unpack(payload.as_buffer(), schema)
        if by == "subscription":
            number = np.arange(len(subscriptions), dtype=np.int32)
            ids = pa.array(subscriptions.subscription_id)
            subscriptions = replace(subscriptions, subscriber=number, subscribers=ids)
        lo, hi = bounds_of(subscriptions, numbers)
        columns = {"subscriber": subscriptions.subscribers.cast(pa.string())}
        for i in range(len(numbers)):
            columns |= {f"lo{i}": pa.array(lo[:, i]), f"hi{i}": pa.array(hi[:, i])}
        yield pa.RecordBatch.from_pydict(columns)


def bounds_of(subscriptions: SubscriptionSet, numbers: list[int]) -> tuple[Doubles, Doubles]:
    """Return the ends (lo, hi] of each subscriber's bounding box, as arrays of subscribers x attributes.

    A subscriber whose filters cannot match any event gets an infinite box.

    Parameters
    ----------
    subscriptions
        Compiled subscriptions: boxes over integer keys.
    numbers
        Positions of the numeric attributes in the schema; other attributes are ignored.

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
    subscriber = subscriptions.subscriber[boxes.owner]
    shape = (subscriptions.n_subscribers, len(numbers))
    lo, hi = np.full(shape, np.inf), np.full(shape, -np.inf)
    for i, number in enumerate(numbers):
        bounded = boxes.attribute == number
        low, high = np.full(len(boxes), -np.inf), np.full(len(boxes), np.inf)
        low[boxes.box[bounded]] = values_of(boxes.lo[bounded], schema.types[number])
        high[boxes.box[bounded]] = values_of(boxes.hi[bounded], schema.types[number])
        np.minimum.at(lo[:, i], subscriber, low)
        np.maximum.at(hi[:, i], subscriber, high)
    empty = lo > hi  # the filters of this subscriber match nothing: any box is correct
    lo[empty], hi[empty] = -np.inf, np.inf
    return lo, hi


def load_boxes(loaded: LoadedInterest, subscribers: Labels) -> tuple[Doubles, Doubles]:
    """Return the ends of subscribers' bounding boxes, collected on the driver, for any kind of flows.

    Parameters
    ----------
    loaded
        An interest made from filters and events.
    subscribers
        The subscribers; the rows of the result are in this order.

    Raises
    ------
    ParameterError
        When the interest was not made from filters.
    """
    boxes = loaded.frames.boxes
    if boxes is None:
        if loaded.content is None:
            raise ParameterError(
                "the interest has no filters, so subscribers have no bounding boxes; "
                "give subscriptions and events",
                parameter="subscriptions",
                value=None,
            )
        boxes = boxes_of(loaded.content.compiled, loaded.content.schema)
    return bring_boxes(boxes, subscribers)


def bring_boxes(boxes: DataFrame, subscribers: Labels) -> tuple[Doubles, Doubles]:
    """Collect a table of `boxes_of` on the driver, with one row for each of `subscribers`, in this order.

    Raises
    ------
    PlanError
        When a subscriber has no box.
    """
    with plainly("collect the bounding boxes"):
        table = boxes.toArrow()
    place = pc.index_in(subscribers.cast(pa.string()), value_set=table["subscriber"].combine_chunks())
    if place.null_count:
        missing = subscribers.filter(pc.is_null(place))[0].as_py()
        raise PlanError(
            f"subscriber {missing!r} has no subscription; give the subscriptions that the events were "
            "matched with",
            parameter="subscriber",
            value=missing,
        )
    rows = place.to_numpy()
    lo, hi = (
        np.stack([table[name].to_numpy() for name in table.column_names if name.startswith(end)], axis=1)
        for end in ("lo", "hi")
    )
    return lo[rows], hi[rows]
