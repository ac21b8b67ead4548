"""Interest as Spark tables: the flows that subscribers want and their rates, from topics or matched events.

Duplicate pairs of subscriber and flow are removed by a hash of the whole pair, so that neither a flow that
all subscribers want nor a subscriber of all flows overloads a task. No Spark job runs here unless a function
says so, and nothing large is collected on the driver.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from narrowcast.errors import ParameterError, TableError
from narrowcast.spark.spark_errors import plainly
from narrowcast.validation import check_whole

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from narrowcast.spark.stages.histories import Histories

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_TIMES = ("timestamp", "timestamp_ntz", "date")
_NUMBERS = (*_INTEGERS, "float", "double")


@dataclass(frozen=True, slots=True)
class InterestFrames:
    """An interest as Spark tables, which may be too large for one process.

    Parameters
    ----------
    interests
        `subscriber`, `flow`: the wanted pairs, each once.
    rates
        `flow`, `rate` double: one row for each flow, including flows without subscribers.
    flow_space
        Kind of flows: `topics`, `cells` of the event space, or recent `events`.
    cells
        For cells: `flow`, `lo` and `hi`, the ends of each cell along each attribute of its grid.
    subscribers
        `subscriber`: all subscribers, including those without interest. None when only those in `interests`
        are known.
    boxes
        The subscribers' bounding boxes, if filters are known: see `boxes_of`.
    owners
        `subscription_id` and `subscriber`: given when the other tables are by subscription, with its id in
        the column `subscriber`.
    histories
        The same pairs in packed form, if available, which saves grouping them by subscriber.
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
        """The entity that the column `subscriber` identifies."""
        return "subscriber" if self.owners is None else "subscription"

    @property
    def text(self) -> bool:
        """Whether subscribers are identified by text rather than numbers."""
        return self.interests.schema["subscriber"].dataType.simpleString() == "string"


def from_topics(
    interests: DataFrame, rates: DataFrame | None = None, *, at: datetime | float | None = None
) -> InterestFrames:
    """Return the interest in topics, from tables of wanted topics and of their rates.

    Parameters
    ----------
    interests
        `subscriber` and `flow`, integers or strings, which keep their type; a repeated pair counts once.
    rates
        `flow`, `rate` in events per second, and optionally `time`, from which the rate is valid; a null time
        means always. A flow without a row has rate 1; a flow without subscribers is kept.
    at
        The time to take the rates at; rates from a later time are ignored. Of two rates with the same time
        the larger counts. A time without a zone is in UTC, a number is in seconds since 1970. Default: the
        latest rates.

    Raises
    ------
    TableError
        When a column is missing or has an unusable type. A null, a negative or infinite rate, and two rates
        of a flow in a table without times fail the Spark job that reads them.
    """
    from pyspark.sql import functions as sf

    pairs = interests.select(
        label(interests, "subscriber", "interests"), label(interests, "flow", "interests")
    )
    wanted = pairs.select("flow", sf.lit(None).cast("double").alias("rate"))
    if rates is not None:
        given = current_rates(rates, at)
        ours, theirs = (frame.schema["flow"].dataType.simpleString() for frame in (pairs, given))
        if (ours == "string") != (theirs == "string"):
            raise TableError(
                f"column 'flow' is {ours} in interests and {theirs} in rates: must have the same type in "
                "both, because labels are compared with their type",
                parameter="flow",
            )
        if ours != theirs:
            pairs = pairs.withColumn("flow", sf.col("flow").cast("bigint"))
        wanted = wanted.unionByName(given)  # flows of two integer types get the wider type
        wanted = wanted.withColumn("flow", sf.col("flow").cast(pairs.schema["flow"].dataType))
    # One pass over the flows: only this column is read, and each task sends a flow once.
    each = wanted.groupBy("flow").agg(sf.coalesce(sf.max("rate"), sf.lit(1.0)).alias("rate"))
    return InterestFrames(pairs.distinct(), each, "topics")


def current_rates(rates: DataFrame, at: datetime | float | None = None, where: str = "rates") -> DataFrame:
    """Return `flow`, `rate`: the rate of each flow that is valid at a time, by default the latest.

    `where` is the name of the table in errors.
    """
    from pyspark.sql import functions as sf

    require(rates, where, "rate", of=(*_NUMBERS, "decimal"))
    value = sf.col("rate").cast("double")
    bad = sf.concat(
        sf.lit("rate="),
        sf.coalesce(value.cast("string"), sf.lit("null")),
        sf.lit(f" in {where}: must be a finite number of events per second, at least 0"),
    )
    fine = sf.coalesce((value >= 0) & (value < math.inf), sf.lit(False))
    rate = sf.when(fine, value).otherwise(sf.raise_error(bad)).alias("rate")
    flow = label(rates, "flow", where)
    if not has(rates, "time"):
        if at is not None:
            raise ParameterError(
                f"at={at!r}: needs a column 'time' in {where}; leave `at` out, or add this column",
                parameter="at",
                value=at,
            )
        twice = sf.lit(
            f"a flow has several rows in {where}; give one rate for each flow, or add a column 'time'"
        )
        one = sf.when(sf.count("rate") > 1, sf.raise_error(twice)).otherwise(sf.max("rate")).alias("rate")
        return rates.select(flow, rate).groupBy("flow").agg(one)
    timed = rates.select(flow, rate, microseconds(rates, where))
    if at is not None:
        timed = timed.where(sf.col("time").isNull() | (sf.col("time") <= _instant(at)))
    return timed.groupBy("flow").agg(sf.max(sf.struct("time", "rate"))["rate"].alias("rate"))


def rates_of(events: DataFrame, flow: Column | str) -> DataFrame:
    """Return `flow`, `rate`: the events per second of each flow.

    The period is from the earliest to the latest `time` of all events; a Spark job finds it immediately.
    Events whose flow is null are ignored; those without a time count for their flow but not for the period.

    Parameters
    ----------
    events
        Events with a column `time`.
    flow
        The flow of an event: the name of a column, or an expression.

    Raises
    ------
    TableError
        When events have no column `time`, or all have the same time. Give a table of rates instead, or none
        for a rate of 1 for each flow.
    """
    from pyspark.sql import functions as sf

    fix = "give a table of rates, or none for a rate of 1 for each flow"
    if not has(events, "time"):
        raise TableError(
            f"column 'time' is missing in events, so their rates are unknown; {fix}", parameter="time"
        )
    flows = events.select((sf.col(flow) if isinstance(flow, str) else flow).alias("flow"))
    require(flows, "events", "flow", of=(*_INTEGERS, "string"))
    n_events, seconds = extent(events)
    if n_events and not seconds:
        raise TableError(
            f"all of {n_events} events have the same time, so their rates are unknown; {fix}",
            parameter="time",
            value=n_events,
        )
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
    """Return the interest in past events, each a flow of rate 1 (tariq2012).

    An event that no subscription matches is not a flow. Events are ordered by `time`, then by `event_id`;
    events without a time come first. `window` and `recent` select among all events, then `last` among the
    matches of each subscription.

    Parameters
    ----------
    matches
        `event_id` and `subscription_ids`, one row for each event.
    subscriptions
        `subscription_id` and `subscriber`. Matches of a subscription that is missing here are ignored.
    events
        `event_id` and optionally `time`; required for `window`.
    last
        Number of events for each subscription: the last that it matches. Default: all.
    window
        Select events at most this many seconds older than the latest event, excluding the start of the
        window. Default: all.
    recent
        Number of events to select: the last that match at least one subscription. Default: all.
    by
        `subscriber` for the interest of subscribers, `subscription` for that of each subscription, whose id
        is then in the column `subscriber`.

    Raises
    ------
    TableError
        When a column is missing; `time` is required with `window`.
    ParameterError
        When `last`, `window` or `recent` is not positive.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    for name, count in (("last", last), ("recent", recent)):
        if count is not None:
            check_whole(name, count)
    require(matches, "matches", "event_id", of=_INTEGERS)
    require(matches, "matches", "subscription_ids", of=tuple(f"array<{kind}>" for kind in _INTEGERS))
    require(subscriptions, "subscriptions", "subscription_id", of=_INTEGERS)
    owner_of = subscriptions.select("subscription_id", label(subscriptions, "subscriber", "subscriptions"))
    matched = matches.select("event_id", "subscription_ids").where(sf.size("subscription_ids") > 0)
    matched = matched.withColumn("time", sf.lit(None).cast("bigint"))
    if events is not None:
        require(events, "events", "event_id", of=_INTEGERS)
    if window is not None:
        matched = matched.drop("time").join(_within(events, window), "event_id")
    elif events is not None and has(events, "time") and (last or recent):
        times = events.select("event_id", microseconds(events, "events"))
        matched = matched.drop("time").join(times, "event_id", "left")
    latest_first = [sf.col("time").desc_nulls_last(), sf.col("event_id").desc()]
    if recent is not None:
        newest = matched.select("event_id", "time").orderBy(*latest_first).limit(recent).select("event_id")
        matched = matched.join(newest, "event_id", "left_semi")
    pairs = matched.select("event_id", "time", sf.explode("subscription_ids").alias("subscription_id"))
    flows = matched.select("event_id")
    if last is not None:
        # Spark limits each task to `last` rows of a subscription before the shuffle.
        rank = sf.row_number().over(Window.partitionBy("subscription_id").orderBy(*latest_first))
        pairs = pairs.withColumn("rank", rank).where(sf.col("rank") <= last)
        flows = pairs.select("event_id").distinct()
    owned = pairs.join(owner_of, "subscription_id")
    row = sf.col("subscription_id" if by == "subscription" else "subscriber").alias("subscriber")
    interests = owned.select(row, sf.col("event_id").alias("flow"))
    rates = flows.select(sf.col("event_id").alias("flow"), sf.lit(1.0).alias("rate"))
    subscribers = owner_of.select(row).distinct()
    owners = owner_of if by == "subscription" else None
    return InterestFrames(interests.distinct(), rates, "events", subscribers=subscribers, owners=owners)


def extent(events: DataFrame) -> tuple[int, float]:
    """Return the number of events, and the seconds from the first to the last event, 0 without times."""
    from pyspark.sql import functions as sf

    time = microseconds(events, "events") if has(events, "time") else sf.lit(None).cast("bigint")
    with plainly("count the events"):
        times = events.select(time.alias("time"))
        [found] = times.agg(sf.count("*"), sf.max("time") - sf.min("time")).collect()
    return found[0], (found[1] or 0) / 1e6


def _within(events: DataFrame | None, window: float) -> DataFrame:
    """Return `event_id` and `time` of the events in the last `window` seconds."""
    from pyspark.sql import functions as sf

    check_window(window)
    if events is None or not has(events, "time"):
        raise TableError(
            f"window={window}: needs events with a column 'time'; add this column, or use last or recent",
            parameter="window",
            value=window,
        )
    times = events.select("event_id", microseconds(events, "events"))
    start = times.agg(sf.max("time") - round(window * 1e6)).scalar()
    return times.where(sf.col("time") > start)


def check_window(window: float | None) -> None:
    """Refuse a window that is not a positive, finite number of seconds; None means no window."""
    if window is not None and not 0 < window < math.inf:
        raise ParameterError(parameter="window", value=window, limit="a positive, finite number of seconds")


def has(frame: DataFrame, name: str) -> bool:
    """Return whether a table has a column; case is ignored."""
    return name.lower() in (column.lower() for column in frame.columns)


def require(frame: DataFrame, where: str, name: str, *, of: tuple[str, ...]) -> str:
    """Check that a table has a column of one of the types `of`, and return its type.

    `where` is the name of the table in errors.

    Raises
    ------
    TableError
        When the column is missing or has another type.
    """
    if not has(frame, name):
        found = ", ".join(map(repr, frame.columns)) or "none"
        raise TableError(
            f"column {name!r} is missing in {where}; its columns: {found}", parameter=name, value=None
        )
    kind: str = frame.select(name).schema[0].dataType.simpleString()
    if kind.partition("(")[0] not in of:
        raise TableError(
            f"column {name!r} of {where} has type {kind}: must be one of {', '.join(of)}; cast it first",
            parameter=name,
            value=kind,
            limit=f"one of {', '.join(of)}",
        )
    return kind


def check_time(events: DataFrame, where: str) -> None:
    """Refuse events whose column `time` has an unusable type."""
    if has(events, "time"):
        microseconds(events, where)


def label(frame: DataFrame, name: str, where: str) -> Column:
    """Return a column of labels, integers or strings; a null fails the job."""
    from pyspark.sql import functions as sf

    require(frame, where, name, of=(*_INTEGERS, "string"))
    null = sf.raise_error(sf.lit(f"column {name!r} of {where}: must not be null; remove such rows"))
    return sf.coalesce(sf.col(name), null).alias(name)


def microseconds(frame: DataFrame, where: str) -> Column:
    """Return the column `time` in microseconds since 1970; a numeric column is in seconds."""
    from pyspark.sql import functions as sf

    kind = require(frame, where, "time", of=(*_TIMES, *_NUMBERS))
    if kind in _TIMES:
        return sf.unix_micros(sf.col("time").cast("timestamp")).alias("time")
    return sf.round(sf.col("time") * 1e6).cast("bigint").alias("time")


def _instant(at: datetime | float) -> int:
    """Convert a time to microseconds since 1970; a number is in seconds, a time without a zone in UTC."""
    if isinstance(at, datetime):
        at = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    return round(at * 1e6)
