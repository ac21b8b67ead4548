"""Who wants which flow, and how often each sends, as Spark tables: from topics, or from matched events.

Pairs of subscriber and flow are made distinct by a hash of the whole pair, so that neither a flow that
everyone wants nor a subscriber who wants everything weighs on one task. Nothing is run here but where a
function says so, and nothing large comes to the driver.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from narrowcast.errors import ParameterError, TableError
from narrowcast.spark.spark_errors import plainly

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from narrowcast.spark.stages.histories import Histories

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_TIMES = ("timestamp", "timestamp_ntz", "date")
_NUMBERS = (*_INTEGERS, "float", "double")


@dataclass(frozen=True, slots=True)
class InterestFrames:
    """An interest that may be too large for one process.

    Parameters
    ----------
    interests
        `subscriber`, `flow`: the pairs that are wanted, each once.
    rates
        `flow`, `rate` double: one row for each flow, those that nobody wants included.
    flow_space
        What flows are: `topics`, `cells` of the event space, or `events` seen before.
    cells
        For cells: `flow`, `lo` and `hi`, the ends of each cell along each attribute of its grid.
    subscribers
        `subscriber`: everybody, where some may want none of the flows and others that are yet to come.
    boxes
        The box around all that each of them asks for, where filters are known: see `boxes_of`.
    owners
        `subscription_id` and `subscriber`, where subscriptions stand in for subscribers in all of these.
    histories
        The same pairs packed, where they are, so that nobody needs to gather them by subscriber.
    """

    interests: DataFrame
    rates: DataFrame
    flow_space: Literal["topics", "cells", "events"]
    cells: DataFrame | None = None
    subscribers: DataFrame | None = None
    boxes: DataFrame | None = None
    owners: DataFrame | None = None
    histories: Histories | None = None

    @property
    def rows(self) -> Literal["subscriber", "subscription"]:
        """What the column `subscriber` names."""
        return "subscriber" if self.owners is None else "subscription"

    @property
    def text(self) -> bool:
        """Whether subscribers are named by text, not by numbers."""
        return self.interests.schema["subscriber"].dataType.simpleString() == "string"


def from_topics(
    interests: DataFrame, rates: DataFrame | None = None, *, at: datetime | float | None = None
) -> InterestFrames:
    """Return the interest in topics.

    Parameters
    ----------
    interests
        `subscriber` and `flow`, integers or strings, which keep their type; a repeated pair counts once.
    rates
        `flow` and `rate`. A flow without a row has rate 1, and one that nobody wants is kept with its rate.
        Where there is a `time`, a rate holds from then on; one without a time holds from the beginning.
    at
        When the rates are to be in force, by default the latest time; an instant without a zone is in UTC.
        Of two rates from the same time the greater holds, and one that is yet to come is as if not given.

    Raises
    ------
    TableError
        When a column is missing or of a type that cannot be used. A null, a rate that is negative or not
        finite, and two rates of one flow without times end the job that meets them.
    """
    from pyspark.sql import functions as sf

    pairs = interests.select(
        label(interests, "subscriber", "interests"), label(interests, "flow", "interests")
    )
    wanted = pairs.select("flow", sf.lit(None).cast("double").alias("rate"))
    if rates is not None:
        given = in_force(rates, at)
        ours, theirs = (frame.schema["flow"].dataType.simpleString() for frame in (pairs, given))
        if (ours == "string") != (theirs == "string"):
            raise TableError(
                f"flow is {ours} in interests and {theirs} in rates; labels are compared with their type, so "
                "read both as the same"
            )
        if ours != theirs:
            pairs = pairs.withColumn("flow", sf.col("flow").cast("bigint"))
        wanted = wanted.unionByName(given)  # of two widths, the flow takes the wider
        wanted = wanted.withColumn("flow", sf.col("flow").cast(pairs.schema["flow"].dataType))
    # One pass over the flows: only a column of theirs is read, and each task sends a flow on but once.
    each = wanted.groupBy("flow").agg(sf.coalesce(sf.max("rate"), sf.lit(1.0)).alias("rate"))
    return InterestFrames(pairs.distinct(), each, "topics")


def in_force(rates: DataFrame, at: datetime | float | None = None, where: str = "rates") -> DataFrame:
    """Return one row `flow`, `rate` for each flow of a table of rates: the last that holds at a time."""
    from pyspark.sql import functions as sf

    require(rates, where, "rate", of=(*_NUMBERS, "decimal"))
    value = sf.col("rate").cast("double")
    bad = sf.concat(
        sf.lit("a flow has rate "),
        sf.coalesce(value.cast("string"), sf.lit("null")),
        sf.lit("; a rate is a finite number of events per second, at least 0"),
    )
    fine = sf.coalesce((value >= 0) & (value < math.inf), sf.lit(False))
    rate = sf.when(fine, value).otherwise(sf.raise_error(bad)).alias("rate")
    flow = label(rates, "flow", where)
    if not has(rates, "time"):
        if at is not None:
            raise ParameterError(f"at is {at!r} and {where} has no column 'time'; leave `at` out, or add it")
        twice = sf.lit(f"a flow has two rows or more in {where}; keep one rate for each, or give their times")
        one = sf.when(sf.count("rate") > 1, sf.raise_error(twice)).otherwise(sf.max("rate")).alias("rate")
        return rates.select(flow, rate).groupBy("flow").agg(one)
    timed = rates.select(flow, rate, microseconds(rates, where))
    if at is not None:
        timed = timed.where(sf.col("time").isNull() | (sf.col("time") <= _instant(at)))
    return timed.groupBy("flow").agg(sf.max(sf.struct("time", "rate"))["rate"].alias("rate"))


def rates_of(events: DataFrame, flow: Column | str) -> DataFrame:
    """Return `flow`, `rate`: the events per second of each flow over the span of `time`.

    The span is from the earliest to the latest of all events, and is found at once. Events without a flow
    are of none; those without a time count, but say nothing of the span.

    Parameters
    ----------
    events
        Events with a `time`.
    flow
        The flow of an event: a column's name, or an expression.

    Raises
    ------
    TableError
        When events have no `time`, or all the same: then there is no telling how often they come. Give the
        rates as a table instead, or leave them out for a rate of 1 each.
    """
    from pyspark.sql import functions as sf

    fix = "give a table of rates, or none for a rate of 1 each"
    if not has(events, "time"):
        raise TableError(f"events have no column 'time' to take rates from; {fix}")
    flows = events.select((sf.col(flow) if isinstance(flow, str) else flow).alias("flow"))
    require(flows, "events", "flow", of=(*_INTEGERS, "string"))
    n_events, seconds = extent(events)
    if n_events and not seconds:
        raise TableError(f"no time passes between the first and the last of {n_events} events; {fix}")
    counts = flows.where("flow IS NOT NULL").groupBy("flow").count()
    return counts.select("flow", (sf.col("count") / (seconds or 1.0)).alias("rate"))


def from_matches(
    matches: DataFrame,
    subscriptions: DataFrame,
    events: DataFrame | None = None,
    *,
    last: int | None = None,
    window: float | None = None,
    recent: int | None = None,
    by: Literal["subscriber", "subscription"] = "subscriber",
) -> InterestFrames:
    """Return the interest in events that were seen, each a flow of rate 1 (tariq2012).

    An event that nobody wants is no flow. Later means later by `time` where events have one, and by
    `event_id` among those of one time or of none, which come before all others. `window` and `recent` choose
    among the events, and `last` among those that are left.

    Parameters
    ----------
    matches
        `event_id` and `subscription_ids`, one row for each event.
    subscriptions
        `subscription_id` and `subscriber`; a match of a subscription that is not there counts for nobody.
    events
        `event_id` and perhaps `time`.
    last
        How many events to keep for each subscription: the last that it matches.
    window
        Keep the events of the last so many seconds before the latest of all events, the start left out.
    recent
        How many events to keep in all: the last that match anything.
    by
        Whether it is the interest of subscribers, or of each of their subscriptions: then these stand in for
        them, by their ids.

    Raises
    ------
    TableError
        When a column is missing, among them `time` where there is a window.
    ParameterError
        When `last`, `window` or `recent` is not positive.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    for name, count in (("last", last), ("recent", recent)):
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise ParameterError(f"{name} is {count!r}; give a whole number of at least 1")
    require(matches, "matches", "event_id", of=_INTEGERS)
    require(matches, "matches", "subscription_ids", of=tuple(f"array<{kind}>" for kind in _INTEGERS))
    require(subscriptions, "subscriptions", "subscription_id", of=_INTEGERS)
    people = subscriptions.select("subscription_id", label(subscriptions, "subscriber", "subscriptions"))
    seen = matches.select("event_id", "subscription_ids").where(sf.size("subscription_ids") > 0)
    seen = seen.withColumn("time", sf.lit(None).cast("bigint"))
    if events is not None:
        require(events, "events", "event_id", of=_INTEGERS)
    if window is not None:
        seen = seen.drop("time").join(_within(events, window), "event_id")
    elif events is not None and has(events, "time") and (last or recent):
        times = events.select("event_id", microseconds(events, "events"))
        seen = seen.drop("time").join(times, "event_id", "left")
    later = [sf.col("time").desc_nulls_last(), sf.col("event_id").desc()]
    if recent is not None:
        newest = seen.select("event_id", "time").orderBy(*later).limit(recent).select("event_id")
        seen = seen.join(newest, "event_id", "left_semi")
    pairs = seen.select("event_id", "time", sf.explode("subscription_ids").alias("subscription_id"))
    flows = seen.select("event_id")
    if last is not None:
        # Each task keeps no more than `last` rows of a subscription before it sends any on.
        rank = sf.row_number().over(Window.partitionBy("subscription_id").orderBy(*later))
        pairs = pairs.withColumn("rank", rank).where(sf.col("rank") <= last)
        flows = pairs.select("event_id").distinct()
    owned = pairs.join(people, "subscription_id")
    row = sf.col("subscription_id" if by == "subscription" else "subscriber").alias("subscriber")
    interests = owned.select(row, sf.col("event_id").alias("flow"))
    rates = flows.select(sf.col("event_id").alias("flow"), sf.lit(1.0).alias("rate"))
    everybody = people.select(row).distinct()
    owners = people if by == "subscription" else None
    return InterestFrames(interests.distinct(), rates, "events", subscribers=everybody, owners=owners)


def extent(events: DataFrame) -> tuple[int, float]:
    """Return how many events there are and the seconds from first to last, 0 where times do not say."""
    from pyspark.sql import functions as sf

    time = microseconds(events, "events") if has(events, "time") else sf.lit(None).cast("bigint")
    with plainly("count the events"):
        times = events.select(time.alias("time"))
        [found] = times.agg(sf.count("*"), sf.max("time") - sf.min("time")).collect()
    return found[0], (found[1] or 0) / 1e6


def _within(events: DataFrame | None, window: float) -> DataFrame:
    """Return `event_id` and `time` of the events in the last so many seconds."""
    from pyspark.sql import functions as sf

    if not 0 < window < math.inf:
        raise ParameterError(f"window is {window!r}; give a positive number of seconds")
    if events is None or not has(events, "time"):
        raise TableError("a window needs events with a column 'time'; add it, or use last or recent instead")
    times = events.select("event_id", microseconds(events, "events"))
    start = times.agg(sf.max("time") - round(window * 1e6)).scalar()
    return times.where(sf.col("time") > start)


def has(frame: DataFrame, name: str) -> bool:
    """Return whether a table has a column, whatever the case of its letters."""
    return name.lower() in (column.lower() for column in frame.columns)


def require(frame: DataFrame, where: str, name: str, *, of: tuple[str, ...]) -> str:
    """Return the type of a column; one that is missing, or of none of some types, is an error."""
    if not has(frame, name):
        found = ", ".join(map(repr, frame.columns)) or "none"
        raise TableError(f"{where} has no column {name!r}; its columns: {found}")
    kind: str = frame.select(name).schema[0].dataType.simpleString()
    if kind.partition("(")[0] not in of:
        raise TableError(
            f"column {name!r} of {where} is {kind}; it has to be one of {', '.join(of)}; cast it first"
        )
    return kind


def check_time(events: DataFrame, where: str) -> None:
    """Refuse events whose `time` is none, before any work is done with them."""
    if has(events, "time"):
        microseconds(events, where)


def label(frame: DataFrame, name: str, where: str) -> Column:
    """Return a column of labels: integers or strings, of which a null ends the job."""
    from pyspark.sql import functions as sf

    require(frame, where, name, of=(*_INTEGERS, "string"))
    null = sf.raise_error(sf.lit(f"column {name!r} of {where} has a null; remove such rows"))
    return sf.coalesce(sf.col(name), null).alias(name)


def microseconds(frame: DataFrame, where: str) -> Column:
    """Return the column `time` in microseconds from 1970; a number stands for seconds."""
    from pyspark.sql import functions as sf

    kind = require(frame, where, "time", of=(*_TIMES, *_NUMBERS))
    if kind in _TIMES:
        return sf.unix_micros(sf.col("time").cast("timestamp")).alias("time")
    return sf.round(sf.col("time") * 1e6).cast("bigint").alias("time")


def _instant(at: datetime | float) -> int:
    """Return a time in microseconds from 1970."""
    if isinstance(at, datetime):
        at = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    return round(at * 1e6)
