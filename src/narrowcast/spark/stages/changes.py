"""The interest that results from a log of subscribe and unsubscribe actions."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from narrowcast.errors import ParameterError, TableError
from narrowcast.planning.replanner import ACTIONS
from narrowcast.spark.stages.interest import InterestFrames, current_rates, has, label, microseconds, require

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: A time before any possible time of a change, in microseconds.
_BEFORE = -(2**63)
_START = datetime(1970, 1, 1, tzinfo=UTC)


def from_changes(
    changes: DataFrame,
    interests: DataFrame | None = None,
    rates: DataFrame | None = None,
    *,
    until: datetime | date | float | None = None,
) -> InterestFrames:
    """Return the interest in topics after a log of changes.

    The last action by `time` of each subscriber and flow counts. Of simultaneous actions `subscribe` wins,
    because serving an unwanted message is better than losing a wanted one. The result therefore depends
    neither on the order of rows nor on repeated rows. Subscribing twice, or unsubscribing without a
    subscription, has no effect.

    No Spark job runs here. The aggregation keeps two times for each pair, and each task sends a pair once;
    a flow that all subscribers want, or a subscriber of all flows, does not overload a task.

    Parameters
    ----------
    changes
        `time`, `subscriber`, `flow` and `action`, which is `subscribe` or `unsubscribe`. A numeric time is
        in seconds since 1970.
    interests
        `subscriber` and `flow`: the interest before all changes. Default: empty.
    rates
        `flow`, `rate` and optionally `time`: the last rate of each flow counts; see `from_topics`. A flow
        without a rate has rate 1; a flow without subscribers is kept.
    until
        Ignore changes and rates after this time. A time without a zone is in UTC, a number is in seconds
        since 1970. Default: use all of them.

    Raises
    ------
    TableError
        When a column is missing or has an unusable type. A null, an unknown action or an invalid rate fails
        the Spark job that reads it; `ingest` sets such rows aside beforehand.

    Examples
    --------
    >>> from narrowcast.spark import session
    >>> with session("local[2,4]") as spark:
    ...     log = [(1, "ann", "x", "subscribe"), (3, "ann", "x", "unsubscribe"), (2, "bob", "x", "subscribe")]
    ...     changes = spark.createDataFrame(log, "time int, subscriber string, flow string, action string")
    ...     print(from_changes(changes).interests.collect())
    ...     print(from_changes(changes, until=2).interests.count())
    [Row(subscriber='bob', flow='x')]
    2
    """
    from pyspark.sql import functions as sf

    at = None if until is None else instant_of(until)
    log = up_to(changes, at, "changes").select(
        label(changes, "subscriber", "changes"),
        label(changes, "flow", "changes"),
        _time(changes),
        _subscribes(changes),
    )
    if interests is not None:
        before = interests.select(
            label(interests, "subscriber", "interests"),
            label(interests, "flow", "interests"),
            sf.lit(_BEFORE).cast("bigint").alias("time"),
            sf.lit(True).alias("subscribes"),
        )
        for name in ("subscriber", "flow"):
            _check_alike(name, changes=log, interests=before)
        log = before.unionByName(log)  # labels of two integer types get the wider type
    time, subscribes = sf.col("time"), sf.col("subscribes")
    # Spark aggregates two maximum numbers in place, but not a maximum pair; equal times need no tie-break.
    last = log.groupBy("subscriber", "flow").agg(
        sf.max(sf.when(subscribes, time)).alias("joined"), sf.max(sf.when(~subscribes, time)).alias("left")
    )
    wanted = last.where("joined >= left OR (left IS NULL AND joined IS NOT NULL)")
    flows = log.select("flow", sf.lit(None).cast("double").alias("rate"))
    if rates is not None:
        given = current_rates(rates, at if has(rates, "time") else None)
        _check_alike("flow", changes=log, rates=given)
        flows = flows.unionByName(given)
    # Only the column of flows is read again, and each task sends a flow once.
    each = flows.groupBy("flow").agg(sf.coalesce(sf.max("rate"), sf.lit(1.0)).alias("rate"))
    pairs = wanted.select("subscriber", sf.col("flow").cast(each.schema["flow"].dataType).alias("flow"))
    return InterestFrames(pairs, each, "topics")


def up_to(frame: DataFrame, until: datetime | None, where: str) -> DataFrame:
    """Return the rows of a table up to and including a time, and those whose time is null.

    Parameters
    ----------
    frame
        The table; without a column `time`, all of its rows are returned.
    until
        The time; None for all rows.
    where
        Name of the table in errors.
    """
    if until is None or not has(frame, "time"):
        return frame
    from pyspark.sql import functions as sf

    time = microseconds(frame, where)
    return frame.where(sf.coalesce(time <= (until - _START) // timedelta(microseconds=1), sf.lit(True)))


def instant_of(given: datetime | date | float | str) -> datetime:
    """Convert a time to UTC.

    Parameters
    ----------
    given
        A time, in UTC when it has no zone; a date, for its midnight in UTC; seconds since 1970; or any of
        these as text.

    Raises
    ------
    ParameterError
        When a text is not a time, or the time is outside the years 1 to 9999.

    Examples
    --------
    >>> instant_of("2026-11-16T09:00:00+01:00").isoformat(), instant_of(60).isoformat()
    ('2026-11-16T08:00:00+00:00', '1970-01-01T00:01:00+00:00')
    >>> instant_of("noon")
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: until='noon': must be a time such as 2026-11-16T09:00:00, in UTC or ...
    """
    if isinstance(given, str):
        return instant_of(_parse(given))
    if isinstance(given, datetime):
        return (given if given.tzinfo else given.replace(tzinfo=UTC)).astimezone(UTC)
    if isinstance(given, date):
        return datetime(given.year, given.month, given.day, tzinfo=UTC)
    try:
        return _START + timedelta(microseconds=round(given * 1e6))
    except (OverflowError, ValueError):
        raise ParameterError(
            parameter="until", value=given, limit="a time within the years 1 to 9999"
        ) from None


def _parse(text: str) -> datetime | float:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        raise ParameterError(
            parameter="until",
            value=text,
            limit="a time such as 2026-11-16T09:00:00, in UTC or with a zone",
        ) from None


def _time(changes: DataFrame) -> Column:
    """Return the column of times in microseconds; a null fails the job."""
    from pyspark.sql import functions as sf

    null = sf.raise_error(sf.lit("column 'time' of changes: must not be null; remove such rows"))
    return sf.coalesce(microseconds(changes, "changes"), null).alias("time")


def _subscribes(changes: DataFrame) -> Column:
    """Return a boolean column, true for `subscribe`; an unknown action fails the job."""
    from pyspark.sql import functions as sf

    require(changes, "changes", "action", of=("string",))
    action = sf.col("action")
    message = sf.concat(
        sf.lit("action="),
        sf.coalesce(action, sf.lit("null")),
        sf.lit(f" in changes: must be {' or '.join(ACTIONS)}"),
    )
    known = sf.coalesce(action.isin(*ACTIONS), sf.lit(False))
    return sf.when(known, action == ACTIONS[0]).otherwise(sf.raise_error(message)).alias("subscribes")


def _check_alike(name: str, **tables: DataFrame) -> None:
    """Check that a label column is text in all tables, or a number in all tables."""
    kinds = {where: frame.schema[name].dataType.simpleString() for where, frame in tables.items()}
    if len({kind == "string" for kind in kinds.values()}) > 1:
        types = " and ".join(f"{kind} in {where}" for where, kind in kinds.items())
        raise TableError(
            f"column {name!r} is {types}: must have the same type in both, because labels are compared with "
            "their type",
            parameter=name,
        )
