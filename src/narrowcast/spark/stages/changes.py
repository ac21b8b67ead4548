"""A log of changes of any length as the interest that it leads to: what a planner starts from."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from narrowcast.errors import ParameterError, TableError
from narrowcast.planning.replanner import ACTIONS
from narrowcast.spark.stages.interest import InterestFrames, has, in_force, label, microseconds, require

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Before any time that a change can have.
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

    Of each subscriber and flow the last action by `time` counts. On Spark rows have no order: of several at
    the same time a subscription holds, so that rather somebody too many is served than one too few. Hence
    neither the order of rows nor a row that comes twice changes anything. Subscribing to what is wanted
    already changes nothing, and neither does unsubscribing from what is not.

    Nothing is run here. For each pair two times are kept, and each task sends on a pair but once, however
    often it changes; neither a flow that all want nor a subscriber who wants all weighs on one task.

    Parameters
    ----------
    changes
        `time`, `subscriber`, `flow` and `action`, which is `subscribe` or `unsubscribe`. A time that is a
        number counts seconds.
    interests
        `subscriber` and `flow`: what was wanted before all changes; nothing where left out.
    rates
        `flow` and `rate`, and perhaps `time`: the last rate of each flow counts; see `from_topics`. A flow
        without one has rate 1; one that nobody wants, any more or at all, is kept.
    until
        The last moment that counts, of changes and of rates; an instant without a zone is in UTC, a number
        counts seconds from 1970. All of them where left out.

    Raises
    ------
    TableError
        When a column is missing or of a type that cannot be used. A null, an action that is neither and a
        rate that is none end the job that meets them: `ingest` sets such rows aside.

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
        log = before.unionByName(log)  # of two widths, labels take the wider
    time, subscribes = sf.col("time"), sf.col("subscribes")
    # Two greatest numbers can be kept in place, a greatest pair could not; and equal times need no order.
    last = log.groupBy("subscriber", "flow").agg(
        sf.max(sf.when(subscribes, time)).alias("joined"), sf.max(sf.when(~subscribes, time)).alias("left")
    )
    wanted = last.where("joined >= left OR (left IS NULL AND joined IS NOT NULL)")
    flows = log.select("flow", sf.lit(None).cast("double").alias("rate"))
    if rates is not None:
        given = in_force(rates, at if has(rates, "time") else None)
        _check_alike("flow", changes=log, rates=given)
        flows = flows.unionByName(given)
    # Only the flows are read once more, and each task sends one on but once.
    each = flows.groupBy("flow").agg(sf.coalesce(sf.max("rate"), sf.lit(1.0)).alias("rate"))
    pairs = wanted.select("subscriber", sf.col("flow").cast(each.schema["flow"].dataType).alias("flow"))
    return InterestFrames(pairs, each, "topics")


def up_to(frame: DataFrame, until: datetime | None, where: str) -> DataFrame:
    """Return the rows of a table that count at a moment: those up to it, and those without a time.

    Parameters
    ----------
    frame
        Where it has no `time`, all of its rows count.
    until
        All rows count where it is None.
    where
        What to call the table.
    """
    if until is None or not has(frame, "time"):
        return frame
    from pyspark.sql import functions as sf

    time = microseconds(frame, where)
    return frame.where(sf.coalesce(time <= (until - _START) // timedelta(microseconds=1), sf.lit(True)))


def instant_of(given: datetime | date | float | str) -> datetime:
    """Return a moment in UTC.

    Parameters
    ----------
    given
        A time, one without a zone being in UTC; a day, which begins then; seconds from 1970; or any of these
        as text.

    Examples
    --------
    >>> instant_of("2026-11-16T09:00:00+01:00").isoformat(), instant_of(60).isoformat()
    ('2026-11-16T08:00:00+00:00', '1970-01-01T00:01:00+00:00')
    >>> instant_of("noon")
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: until is 'noon'; give a time such as 2026-11-16T09:00:00, in UTC, or ...
    """
    if isinstance(given, str):
        return instant_of(_parsed(given))
    if isinstance(given, datetime):
        return (given if given.tzinfo else given.replace(tzinfo=UTC)).astimezone(UTC)
    if isinstance(given, date):
        return datetime(given.year, given.month, given.day, tzinfo=UTC)
    try:
        return _START + timedelta(microseconds=round(given * 1e6))
    except (OverflowError, ValueError):
        raise ParameterError(f"until is {given!r}; give a time within the years 1 to 9999") from None


def _parsed(text: str) -> datetime | float:
    """Return the time that a text says."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        raise ParameterError(
            f"until is {text!r}; give a time such as 2026-11-16T09:00:00, in UTC, or with its zone"
        ) from None


def _time(changes: DataFrame) -> Column:
    """Return when changes were made; a null ends the job."""
    from pyspark.sql import functions as sf

    null = sf.raise_error(sf.lit("column 'time' of changes has a null; remove such rows"))
    return sf.coalesce(microseconds(changes, "changes"), null).alias("time")


def _subscribes(changes: DataFrame) -> Column:
    """Return whether changes subscribe; what is neither that nor the other ends the job."""
    from pyspark.sql import functions as sf

    require(changes, "changes", "action", of=("string",))
    action = sf.col("action")
    said = sf.concat(
        sf.lit("an action of changes is "),
        sf.coalesce(action, sf.lit("null")),
        sf.lit(f"; use {' or '.join(ACTIONS)}"),
    )
    known = sf.coalesce(action.isin(*ACTIONS), sf.lit(False))
    return sf.when(known, action == ACTIONS[0]).otherwise(sf.raise_error(said)).alias("subscribes")


def _check_alike(name: str, **tables: DataFrame) -> None:
    """Refuse tables of which one names by text and the other by numbers."""
    kinds = {where: frame.schema[name].dataType.simpleString() for where, frame in tables.items()}
    if len({kind == "string" for kind in kinds.values()}) > 1:
        said = " and ".join(f"{kind} in {where}" for where, kind in kinds.items())
        raise TableError(f"{name} is {said}; labels are compared with their type, so read both as the same")
