"""Logs of changes on Spark, against the same in memory, whatever the order of rows."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from narrowcast import Interest
from narrowcast.errors import JobError, ParameterError, TableError
from narrowcast.planning.replanner import changed
from narrowcast.spark.sources.tables import ingest
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.changes import from_changes, instant_of
from narrowcast.spark.stages.interest_collection import to_interest
from narrowcast.workloads.feeds import Feeds
from support.errors import refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from narrowcast.spark.stages.interest import InterestFrames

START = datetime(2026, 1, 1, tzinfo=UTC)
spark_only = pytest.mark.spark


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> Callable[[pa.Table], DataFrame]:
    """Make a Spark table."""
    return lambda table: spark.createDataFrame(table)


def log(*rows: tuple[float, Any, Any, str]) -> pa.Table:
    """Changes, with times in seconds after the start; + and - for actions."""
    time, subscriber, flow, action = zip(*rows, strict=True)
    return pa.table(
        {
            "time": pa.array([START + timedelta(seconds=each) for each in time], pa.timestamp("us", "UTC")),
            "subscriber": subscriber,
            "flow": flow,
            "action": [{"+": "subscribe", "-": "unsubscribe"}.get(each, each) for each in action],
        }
    )


def pairs(found: InterestFrames) -> list[tuple[Any, ...]]:
    """The wanted pairs in order; a repeated one shows."""
    assert found.interests.columns == ["subscriber", "flow"]
    return sorted(map(tuple, found.interests.collect()))


def rates(found: InterestFrames) -> dict[Any, float]:
    rows = [tuple(row) for row in found.rates.select("flow", "rate").collect()]
    assert len({flow for flow, _ in rows}) == len(rows)
    return dict(rows)


# ------------------------------------------------------------------------------------------- the last counts


@spark_only
def test_the_last_action_of_each_pair_counts(frame: Callable[[pa.Table], DataFrame]) -> None:
    changes = frame(
        log((3, "ann", "x", "-"), (1, "ann", "x", "+"), (2, "bob", "x", "+"), (5, "eve", "y", "-"))
    )
    before = frame(pa.table({"subscriber": ["eve", "eve", "cid", "cid"], "flow": ["y", "z", "z", "z"]}))
    assert pairs(from_changes(changes)) == [("bob", "x")]
    found = from_changes(changes, before)
    assert found.flow_space == "topics"
    assert pairs(found) == [("bob", "x"), ("cid", "z"), ("eve", "z")]
    assert rates(found) == {"x": 1.0, "y": 1.0, "z": 1.0}
    early = from_changes(changes, before, until=START + timedelta(seconds=2))
    assert pairs(early) == [("ann", "x"), ("bob", "x"), ("cid", "z"), ("eve", "y"), ("eve", "z")]
    none = from_changes(changes, before, until=START - timedelta(seconds=1))
    assert pairs(none) == [("cid", "z"), ("eve", "y"), ("eve", "z")]
    assert rates(none) == {"y": 1.0, "z": 1.0}


@spark_only
def test_at_the_same_time_a_subscription_holds(frame: Callable[[pa.Table], DataFrame]) -> None:
    rows = [(1, 7, 1, "-"), (1, 7, 1, "+"), (1, 7, 2, "+"), (1, 7, 2, "-"), (0, 7, 3, "+"), (0, 7, 3, "-")]
    for order in (rows, rows[::-1]):
        assert pairs(from_changes(frame(log(*order)))) == [(7, 1), (7, 2), (7, 3)]
    # At times before 1970, and of another pair, nothing else holds.
    old = log((-2e9, 7, 1, "+"), (-2e9 + 1, 7, 1, "-"), (-2e9 + 1, 8, 1, "+"))
    assert pairs(from_changes(frame(old))) == [(8, 1)]


@pytest.mark.slow
@spark_only
@pytest.mark.parametrize("seed", range(3))
def test_the_same_as_in_memory_in_any_order_and_said_twice(
    frame: Callable[[pa.Table], DataFrame], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    n, names = 400, [f"s{i}" for i in range(9)]
    times = rng.permutation(n)
    log_ = log(
        *(
            (int(t), names[s], int(f), "+-"[a])
            for t, s, f, a in zip(
                times, rng.integers(0, 9, n), rng.integers(0, 12, n), rng.integers(0, 2, n), strict=True
            )
        )
    )
    before = Interest(rng.random((9, 8)) < 0.4, rng.random(8), subscribers=names, flows=np.arange(8))
    interests, given = before.to_tables()
    twice = pa.concat_tables([log_, log_.take(rng.integers(0, n, 50))]).take(rng.permutation(n + 50))
    for until in (None, START + timedelta(seconds=n // 3)):
        counted = log_ if until is None else log_.filter(pc.less_equal(log_["time"], pa.scalar(until)))
        wanted = changed(before, counted)
        found = from_changes(frame(twice).repartition(3), frame(interests), frame(given), until=until)
        got = to_interest(found)
        people, flows = got.subscribers.to_pylist(), got.flows.to_pylist()
        at = [wanted.subscribers.to_pylist().index(name) for name in people]
        assert np.array_equal(got.wants.toarray(), wanted.wants.toarray()[at])
        assert flows == wanted.flows.to_pylist()
        assert got.rate.tolist() == wanted.rate.tolist()
        # Who is missing wants nothing any more.
        assert wanted.n_wants == got.n_wants


@pytest.mark.slow
@spark_only
def test_a_workload_that_shifts(frame: Callable[[pa.Table], DataFrame]) -> None:
    feeds = Feeds(n_subscribers=40, shift="clustered", rates_shift=True, seed=3)
    tables = {name: frame(table) for name, table in feeds.tables().items()}
    found = to_interest(from_changes(tables["changes"], tables["interests"], tables["rates"]))
    later = feeds.later()
    assert np.array_equal(found.wants.toarray(), later.wants.toarray())
    assert np.allclose(found.rate, later.rate)
    first = to_interest(
        from_changes(tables["changes"], tables["interests"], tables["rates"], until=datetime(1969, 12, 31))
    )
    assert np.array_equal(first.wants.toarray(), feeds.interest().wants.toarray())
    assert (first.rate == 1).all(), "the rates of the beginning are from 1970 on"


@spark_only
def test_rates_by_time_and_flows_of_several_widths(frame: Callable[[pa.Table], DataFrame]) -> None:
    changes = frame(log((1, 1, 10, "+"), (9, 2, 20, "+"), (10, 2, 20, "-")))
    narrow = frame(pa.table({"subscriber": pa.array([3], pa.int16()), "flow": pa.array([30], pa.int32())}))
    stamps = pa.array([None, START + timedelta(seconds=5), START], pa.timestamp("us", "UTC"))
    given = frame(pa.table({"flow": [10, 10, 2**40], "rate": [0.5, 0.25, 3.0], "time": stamps}))
    found = from_changes(changes, narrow, given)
    assert dict(found.interests.dtypes) == {"subscriber": "bigint", "flow": "bigint"}
    assert pairs(found) == [(1, 10), (3, 30)]
    assert rates(found) == {10: 0.25, 20: 1.0, 30: 1.0, 2**40: 3.0}
    early = from_changes(changes, narrow, given, until=START + timedelta(seconds=4))
    assert rates(early) == {10: 0.5, 30: 1.0, 2**40: 3.0}
    timeless = from_changes(changes, rates=given.drop("time").where("rate > 0.3"), until=START)
    assert rates(timeless) == {10: 0.5, 2**40: 3.0}


@spark_only
def test_times_as_numbers(frame: Callable[[pa.Table], DataFrame]) -> None:
    rows = {"time": [1.5, 2.5], "subscriber": [1, 1], "flow": [1, 1], "action": ["subscribe", "unsubscribe"]}
    assert pairs(from_changes(frame(pa.table(rows)))) == []
    assert pairs(from_changes(frame(pa.table(rows)), until=2.4)) == [(1, 1)]


@spark_only
def test_a_pair_that_changes_all_the_time_is_sent_on_once(spark: SparkSession) -> None:
    action = "CASE WHEN id % 2 = 0 THEN 'subscribe' ELSE 'unsubscribe' END AS action"
    changes = spark.range(0, 200_001, 1, 4).selectExpr("id AS time", "7 AS subscriber", "7 AS flow", action)
    found = from_changes(changes)
    assert pairs(found) == [(7, 7)]
    plan = found.interests._jdf.queryExecution().executedPlan().toString()
    assert plan.count("HashAggregate") >= 2
    assert "SortAggregate" not in plan


# ------------------------------------------------------------------------------------------- what is wrong


@spark_only
def test_bad_rows_are_set_aside_by_ingest(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(
        "time,subscriber,flow,action\n"
        "2026-01-01T00:00:00,ann,x,subscribe\n"
        "2026-01-01T00:00:01,ann,,subscribe\n"
        "2026-01-01T00:00:02,,x,subscribe\n"
        "2026-01-01T00:00:03,ann,x,leave\n"
        "soon,ann,x,unsubscribe\n"
        ",ann,x,unsubscribe\n"
    )
    done = ingest(spark, "changes", str(tmp_path / "c.csv"))
    assert pairs(from_changes(done.rows)) == [("ann", "x")]
    assert sorted(row.reason for row in done.rejected.collect()) == [
        "action 'leave' is neither subscribe nor unsubscribe",
        "flow is null",
        "subscriber is null",
        "time 'soon' is not a valid timestamp; give another value",
        "time is null",
    ]
    (tmp_path / "r.csv").write_text("flow,rate\nx,-1\ny,inf\nz,NaN\nu,2\n")
    read = ingest(spark, "rates", str(tmp_path / "r.csv"))
    assert read.rejected.count() == 3
    assert rates(from_changes(done.rows, rates=read.rows)) == {"x": 1.0, "u": 2.0}


@spark_only
@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ((1, "ann", "x", "leave"), ("leave", "changes")),
        ((1, None, "x", "+"), ("subscriber", "changes", "null")),
        ((1, "ann", None, "+"), ("flow", "changes", "null")),
    ],
)
def test_bad_rows_that_were_not_rejected_fail_the_job(
    frame: Callable[[pa.Table], DataFrame], row: tuple[Any, ...], shown: tuple[str, ...]
) -> None:
    found = from_changes(frame(log((0, "bob", "y", "+"), row)))
    with refused(JobError, *shown), plainly("count"):
        found.interests.count()


@spark_only
def test_tables_that_do_not_fit(frame: Callable[[pa.Table], DataFrame]) -> None:
    changes = frame(log((0, "bob", "y", "+")))
    with refused(TableError, "string in changes", "bigint in interests", parameter="subscriber"):
        from_changes(changes, frame(pa.table({"subscriber": [1], "flow": ["y"]})))
    with refused(TableError, "string in changes", "bigint in rates", parameter="flow"):
        from_changes(changes, rates=frame(pa.table({"flow": [1], "rate": [1.0]})))
    with refused(TableError, "changes", "'time', ", parameter="action"):
        from_changes(changes.drop("action"))
    null = frame(log((0, "bob", "y", "+")).set_column(0, "time", pa.nulls(1, pa.timestamp("us", "UTC"))))
    with refused(JobError, "time", "changes", "null"), plainly("count"):
        from_changes(null).interests.count()


def test_moments() -> None:
    wanted = datetime(2026, 11, 16, 8, tzinfo=UTC)
    for text in ("2026-11-16T08:00:00", "2026-11-16 08:00Z", "2026-11-16T09:00:00+01:00", "1794816000"):
        assert instant_of(text) == wanted
    assert instant_of(wanted.replace(tzinfo=None)) == instant_of(wanted.timestamp()) == wanted
    assert instant_of("2026-11-16") == instant_of(date(2026, 11, 16)) == wanted - timedelta(hours=8)
    for wrong in ("noon", "2026-13-01", ""):
        with refused(ParameterError, parameter="until", value=wrong):
            instant_of(wrong)
    for beyond in (1e12, float("nan"), float("inf")):
        with refused(ParameterError, beyond, parameter="until"):
            instant_of(beyond)
