from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from narrowcast import Interest, Matches, Schema, SubscriptionSet
from narrowcast.errors import JobError, ParameterError, TableError
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.interest import InterestFrames, from_matches, from_topics, rates_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> Callable[..., DataFrame]:
    """Make a Spark table of columns."""
    return lambda **columns: spark.createDataFrame(pa.table(columns))


def pairs(frames: InterestFrames) -> list[tuple[Any, Any]]:
    """Return the wanted pairs in order: a list, so that a repeated one shows."""
    assert frames.interests.columns == ["subscriber", "flow"]
    return sorted(map(tuple, frames.interests.collect()))


def rates(found: InterestFrames | DataFrame) -> dict[Any, float]:
    """Return the rates by flow; a flow with two rows shows."""
    table = found.rates if isinstance(found, InterestFrames) else found
    assert table.dtypes[1] == ("rate", "double")
    rows = [tuple(row) for row in table.collect()]
    assert len({flow for flow, _ in rows}) == len(rows)
    return dict(rows)


def types(table: DataFrame) -> dict[str, str]:
    return dict(table.dtypes)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_topics(frame: Callable[..., DataFrame]) -> None:
    interests = frame(subscriber=["ann", "bob", "bob", "ann"], flow=["x", "y", "x", "x"], note=[1, 2, 3, 4])
    found = from_topics(interests, frame(flow=["y", "z"], rate=[0.5, 2.0]))
    assert found.flow_space == "topics"
    assert found.cells is None
    assert pairs(found) == [("ann", "x"), ("bob", "x"), ("bob", "y")]
    assert rates(found) == {"x": 1.0, "y": 0.5, "z": 2.0}
    table = Interest.from_tables(found.interests.toArrow(), found.rates.toArrow())
    assert table.audience().tolist() == [2, 1, 0]


def test_labels_keep_their_type(frame: Callable[..., DataFrame]) -> None:
    narrow = frame(subscriber=pa.array([1, 2], pa.int16()), flow=pa.array([7, 9], pa.int32()))
    found = from_topics(narrow)
    assert types(found.interests) == {"subscriber": "smallint", "flow": "int"}
    assert types(found.rates) == {"flow": "int", "rate": "double"}
    assert (pairs(found), rates(found)) == ([(1, 7), (2, 9)], {7: 1.0, 9: 1.0})
    same = from_topics(narrow, frame(flow=pa.array([9], pa.int32()), rate=pa.array([3], pa.int64())))
    assert types(same.interests)["flow"] == types(same.rates)["flow"] == "int"
    assert rates(same) == {7: 1.0, 9: 3.0}
    wider = from_topics(narrow, frame(flow=[2**40], rate=[0.0]))
    assert types(wider.interests)["flow"] == types(wider.rates)["flow"] == "bigint"
    assert (pairs(wider), rates(wider)) == ([(1, 7), (2, 9)], {7: 1.0, 9: 1.0, 2**40: 0.0})
    digits = from_topics(frame(subscriber=["1", "01"], flow=["7", "07"]))
    assert pairs(digits) == [("01", "07"), ("1", "7")]


def test_rates_in_force(frame: Callable[..., DataFrame]) -> None:
    interests = frame(subscriber=[1, 1, 1, 1], flow=["a", "b", "c", "d"])
    given = frame(
        flow=["a", "a", "a", "b", "b", "c", "e", "f"],
        rate=[1.0, 2.0, 3.0, 5.0, 4.0, 6.0, 7.0, 8.0],
        time=[at(0), at(10), at(5), None, at(5), at(20), at(20), at(0)],
    )
    assert rates(from_topics(interests, given)) == {"a": 2, "b": 4, "c": 6, "d": 1, "e": 7, "f": 8}
    now = rates(from_topics(interests, given, at=at(5)))
    assert now == {"a": 3, "b": 4, "c": 1, "d": 1, "f": 8}  # a rate yet to come is as if not given
    assert rates(from_topics(interests, given, at=at(4.999999)))["b"] == 5
    assert rates(from_topics(interests, given, at=at(10).replace(tzinfo=None))) == {**now, "a": 2}
    assert rates(from_topics(interests, given, at=at(10).timestamp())) == {**now, "a": 2}
    twice = frame(flow=["a", "a"], rate=[2.0, 1.0], time=[3, 3])  # seconds as numbers; the greater holds
    assert rates(from_topics(interests, twice, at=3))["a"] == 2
    assert rates(from_topics(interests, twice, at=2.5))["a"] == 1


def test_empty_tables(frame: Callable[..., DataFrame]) -> None:
    text, numbers, doubles = pa.array([], pa.string()), pa.array([], pa.int64()), pa.array([], pa.float64())
    nobody = frame(subscriber=text, flow=text)
    assert (pairs(from_topics(nobody)), rates(from_topics(nobody))) == ([], {})
    assert rates(from_topics(nobody, frame(flow=["x"], rate=[2.0]))) == {"x": 2.0}
    some = frame(subscriber=["ann"], flow=["x"])
    assert rates(from_topics(some, frame(flow=text, rate=doubles))) == {"x": 1.0}
    no_matches = frame(event_id=numbers, subscription_ids=pa.array([], pa.list_(pa.int64())))
    people = frame(subscription_id=[1], subscriber=["ann"])
    no_events = frame(event_id=numbers, time=pa.array([], pa.timestamp("us", "UTC")))
    found = from_matches(no_matches, people, no_events, last=2, window=5.0, recent=3)
    assert (pairs(found), rates(found)) == ([], {})
    assert rates(rates_of(no_events, "event_id")) == {}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"flow": ["x", None], "rate": [1.0, 1.0]}, "column 'flow' of rates has a null; remove such rows"),
        ({"flow": ["x"], "rate": [-1.0]}, "a flow has rate -1.0; a rate is a finite number"),
        ({"flow": ["x"], "rate": [math.nan]}, "a flow has rate NaN"),
        ({"flow": ["x"], "rate": [math.inf]}, "a flow has rate Infinity"),
        ({"flow": ["x"], "rate": pa.array([None], pa.float64())}, "a flow has rate null"),
        ({"flow": ["x", "x"], "rate": [1.0, 1.0]}, "a flow has two rows or more in rates; keep one rate"),
    ],
)
def test_bad_rates_end_the_job(
    frame: Callable[..., DataFrame], columns: dict[str, Any], message: str
) -> None:
    interests = frame(subscriber=["ann"], flow=["x"])
    with pytest.raises(JobError, match=message), plainly("find the interest"):
        from_topics(interests, frame(**columns)).rates.collect()


def test_a_null_in_interests_ends_the_job(frame: Callable[..., DataFrame]) -> None:
    with pytest.raises(JobError, match="column 'subscriber' of interests has a null"), plainly("find"):
        from_topics(frame(subscriber=["ann", None], flow=["x", "x"])).interests.collect()


def test_unusable_columns(frame: Callable[..., DataFrame]) -> None:
    good = frame(subscriber=["ann"], flow=["x"])
    with pytest.raises(TableError, match="interests has no column 'flow'; its columns: 'subscriber'"):
        from_topics(good.drop("flow"))
    with pytest.raises(TableError, match="column 'flow' of interests is double; it has to be one of"):
        from_topics(frame(subscriber=["ann"], flow=[1.5]))
    with pytest.raises(TableError, match="rates has no column 'rate'"):
        from_topics(good, frame(flow=["x"]))
    with pytest.raises(TableError, match="column 'rate' of rates is string"):
        from_topics(good, frame(flow=["x"], rate=["fast"]))
    with pytest.raises(TableError, match="flow is string in interests and bigint in rates"):
        from_topics(good, frame(flow=[1], rate=[1.0]))
    with pytest.raises(TableError, match="column 'time' of rates is string"):
        from_topics(good, frame(flow=["x"], rate=[1.0], time=["noon"]))
    with pytest.raises(ParameterError, match="at is 3 and rates has no column 'time'"):
        from_topics(good, frame(flow=["x"], rate=[1.0]), at=3)


def test_rates_of_events(frame: Callable[..., DataFrame]) -> None:
    from pyspark.sql import functions as sf

    topic = ["a", "b", "a", None, "a", "b"]
    events = frame(topic=topic, time=[at(0), at(2), at(4), at(8), None, at(1)])
    assert rates(rates_of(events, "topic")) == {"a": 3 / 8, "b": 2 / 8}
    assert rates(rates_of(events, sf.upper("topic"))) == {"A": 3 / 8, "B": 2 / 8}
    seconds = frame(topic=[1, 1, 2], time=[0.5, 1.0, 2.5])
    assert rates(rates_of(seconds, "topic")) == {1: 1.0, 2: 0.5}
    clock = frame(topic=[1, 2], time=[datetime(2026, 1, 1), datetime(2026, 1, 1, 0, 0, 4)])
    assert rates(rates_of(clock, "topic")) == {1: 0.25, 2: 0.25}
    days = frame(topic=[1, 2], time=[date(2026, 1, 1), date(2026, 1, 3)])
    assert rates(rates_of(days, "topic")) == {1: 1 / 172800, 2: 1 / 172800}


def test_rates_need_time_to_pass(frame: Callable[..., DataFrame]) -> None:
    fix = "give a table of rates, or none for a rate of 1 each"
    with pytest.raises(TableError, match=f"no column 'time' to take rates from; {fix}"):
        rates_of(frame(topic=["a"]), "topic")
    for times in ([at(3), at(3)], pa.array([None, None], pa.timestamp("us", "UTC"))):
        with pytest.raises(TableError, match=f"no time passes .* 2 events; {fix}"):
            rates_of(frame(topic=["a", "b"], time=times), "topic")
    with pytest.raises(TableError, match="column 'flow' of events is double"):
        rates_of(frame(topic=[1.0], time=[1.0]), "topic")


#: Subscription 1 and 2 are ann's, 3 is bob's, and 4 is not in the table.
MATCHES = {
    "event_id": [10, 11, 12, 13, 14],
    "subscription_ids": [[1, 2], [1, 3], [1], [2, 3, 4], []],
}
PEOPLE = {"subscription_id": [1, 2, 3], "subscriber": ["ann", "ann", "bob"]}
#: Event 15 is wanted by nobody; 12 is the oldest and 13 has no time.
EVENTS = {"event_id": [10, 11, 12, 13, 15], "time": [at(4), at(6), at(1), None, at(9)]}


def test_events(frame: Callable[..., DataFrame]) -> None:
    matches, people = frame(**MATCHES), frame(**PEOPLE)
    found = from_matches(matches, people)
    assert found.flow_space == "events"
    assert found.cells is None
    assert pairs(found) == [("ann", 10), ("ann", 11), ("ann", 12), ("ann", 13), ("bob", 11), ("bob", 13)]
    assert rates(found) == dict.fromkeys([10, 11, 12, 13], 1.0)
    numbers = from_matches(matches, frame(subscription_id=[1, 2, 3], subscriber=[5, 5, 6]), recent=1)
    assert pairs(numbers) == [(5, 13), (6, 13)]


def test_last_events_of_each_subscription(frame: Callable[..., DataFrame]) -> None:
    matches, people, events = frame(**MATCHES), frame(**PEOPLE), frame(**EVENTS)
    by_id = from_matches(matches, people, last=1)
    assert (pairs(by_id), set(rates(by_id))) == ([("ann", 12), ("ann", 13), ("bob", 13)], {12, 13})
    by_time = from_matches(matches, people, events, last=1)
    assert (pairs(by_time), set(rates(by_time))) == ([("ann", 10), ("ann", 11), ("bob", 11)], {10, 11, 13})
    assert set(rates(from_matches(matches, people, events.drop("time"), last=1))) == {12, 13}


@pytest.mark.slow
def test_window_and_recent_events(frame: Callable[..., DataFrame]) -> None:
    matches, people, events = frame(**MATCHES), frame(**PEOPLE), frame(**EVENTS)
    # The window ends at the latest of all events, second 9, and its start is left out.
    assert set(rates(from_matches(matches, people, events, window=5.0))) == {11}
    assert set(rates(from_matches(matches, people, events, window=5.000001))) == {10, 11}
    assert pairs(from_matches(matches, people, events, window=3600.0, last=1)) == [
        ("ann", 10), ("ann", 11), ("bob", 11),
    ]  # fmt: skip
    assert set(rates(from_matches(matches, people, recent=3))) == {11, 12, 13}
    assert set(rates(from_matches(matches, people, events, recent=3))) == {10, 11, 12}
    assert set(rates(from_matches(matches, people, events, recent=2, window=3600.0))) == {10, 11}
    assert set(rates(from_matches(matches, people, events, recent=3, last=1))) == {10, 11}


def test_recent_events_are_those_of_the_model(frame: Callable[..., DataFrame]) -> None:
    schema = Schema.of({"price": "double"})
    lo, hi = [[0.0], [5.0], [3.0]], [[6.0], [9.0], [4.0]]
    subscriptions = SubscriptionSet.from_boxes(schema, ["ann", "ann", "bob"], lo, hi, [1, 2, 3])
    matches = Matches.from_pairs([0, 2, 2, 3, 4], [0, 0, 1, 2, 1], n_events=6)
    event_id = np.arange(20, 26)
    model = Interest.of_events(matches, event_id, subscriptions, last=3)
    table = matches.to_arrow(event_id, subscriptions.subscription_id)
    found = from_matches(frame(**{c: table[c] for c in table.column_names}), frame(**PEOPLE), recent=3)
    assert Interest.from_tables(found.interests.toArrow(), found.rates.toArrow()) == model


def by_hand(
    matches: dict[int, list[int]],
    people: dict[int, str],
    times: dict[int, int | None] | None,
    last: int | None,
    window: float | None,
    recent: int | None,
) -> tuple[list[tuple[str, int]], set[int]]:
    """The pairs and the flows, by lists and loops."""

    def age(event: int) -> tuple[float, int]:
        time = (times or {}).get(event)
        return (-math.inf if time is None else time), event

    chosen = sorted((event for event, ids in matches.items() if ids), key=age)
    if window is not None and times is not None:
        end = max((t for t in times.values() if t is not None), default=0)
        chosen = [e for e in chosen if age(e)[0] > end - window]
    chosen = chosen[-recent:] if recent else chosen
    kept: set[tuple[int, int]] = set()
    for subscription in {s for event in chosen for s in matches[event]}:
        mine = [event for event in chosen if subscription in matches[event]]
        kept |= {(subscription, event) for event in (mine[-last:] if last else mine)}
    return sorted({(people[s], e) for s, e in kept if s in people}), {e for _, e in kept}


@settings(
    max_examples=8,
    phases=[Phase.explicit, Phase.generate],
)
@given(
    matches=st.dictionaries(st.integers(0, 15), st.lists(st.integers(0, 5), unique=True), min_size=4),
    times=st.none() | st.dictionaries(st.integers(0, 17), st.none() | st.integers(0, 6), min_size=6),
    last=st.none() | st.integers(1, 3),
    window=st.none() | st.sampled_from([0.5, 1.0, 3.0, 10.0]),
    recent=st.none() | st.integers(1, 6),
)
def test_matched_events_equal_the_loops(
    frame: Callable[..., DataFrame],
    matches: dict[int, list[int]],
    times: dict[int, int | None] | None,
    last: int | None,
    window: float | None,
    recent: int | None,
) -> None:
    people = {0: "ann", 1: "bob", 2: "ann", 3: "cem", 4: "bob"}
    window = window if times else None
    events = times and frame(
        event_id=pa.array(times.keys(), pa.int64()),
        time=pa.array([None if t is None else at(t) for t in times.values()], pa.timestamp("us", "UTC")),
    )
    table = frame(
        event_id=pa.array(matches.keys(), pa.int64()),
        subscription_ids=pa.array(matches.values(), pa.list_(pa.int64())),
    )
    found = from_matches(
        table.repartition(3, "event_id"),
        frame(subscription_id=list(people), subscriber=list(people.values())),
        events or None,
        last=last,
        window=window,
        recent=recent,
    )
    expected = by_hand(matches, people, times, last, window, recent)
    assert (pairs(found), set(rates(found))) == expected


def test_a_subscription_that_matches_everything_is_cut_before_it_travels(
    spark: SparkSession, frame: Callable[..., DataFrame]
) -> None:
    from pyspark.sql import functions as sf

    matches = spark.range(20_000, numPartitions=4).select(
        sf.col("id").alias("event_id"), sf.array(sf.lit(1), sf.col("id") % 50 + 2).alias("subscription_ids")
    )
    people = spark.range(1, 60).select(
        sf.col("id").alias("subscription_id"), (sf.col("id") % 7).alias("subscriber")
    )
    found = from_matches(matches, people, last=3)
    plan = found.interests._jdf.queryExecution().executedPlan().toString()
    assert plan.count("WindowGroupLimit") == 2  # before and after the exchange
    kept = {(1, e) for e in (19_999, 19_998, 19_997)}
    kept |= {(r + 2, 19_950 - 50 * i + r) for r in range(50) for i in range(3)}
    assert pairs(found) == sorted({(s % 7, e) for s, e in kept})


def test_unusable_matches(frame: Callable[..., DataFrame]) -> None:
    matches, people, events = frame(**MATCHES), frame(**PEOPLE), frame(**EVENTS)
    with pytest.raises(TableError, match="matches has no column 'subscription_ids'"):
        from_matches(matches.drop("subscription_ids"), people)
    with pytest.raises(TableError, match="column 'subscription_ids' of matches is bigint"):
        from_matches(frame(event_id=[1], subscription_ids=[1]), people)
    with pytest.raises(TableError, match="subscriptions has no column 'subscriber'"):
        from_matches(matches, people.drop("subscriber"))
    with pytest.raises(TableError, match="events has no column 'event_id'"):
        from_matches(matches, people, events.drop("event_id"))
    for without in (None, events.drop("time")):
        with pytest.raises(TableError, match="a window needs events with a column 'time'"):
            from_matches(matches, people, without, window=1.0)
    for window in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ParameterError, match=r"window is .*; give a positive number of seconds"):
            from_matches(matches, people, events, window=window)
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(ParameterError, match=f"last is {wrong}; give a whole number of at least 1"):
            from_matches(matches, people, last=wrong)  # type: ignore[arg-type]
        with pytest.raises(ParameterError, match=f"recent is {wrong}"):
            from_matches(matches, people, recent=wrong)  # type: ignore[arg-type]
