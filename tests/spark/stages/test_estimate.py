"""What matching will cost is told beforehand, and the choice follows from it."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from narrowcast import EventBatch, Scan, Schema, compile_filters
from narrowcast.spark.stages.compile import compile_subscriptions
from narrowcast.spark.stages.estimate import Estimate, Forecast, estimate, sample_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MB = 1 << 20
MODULE = sys.modules[estimate.__module__]


def forecast(strategy: str, memory: int, seconds: float) -> Forecast:
    return Forecast(strategy, 2.0, 3.5, memory, 7_000_000, seconds)


def told(limit: int, *forecasts: Forecast) -> Estimate:
    return Estimate(1_000_000, 2_000, 1_234_567.8, limit, ("x",), {each.strategy: each for each in forecasts})


def test_the_fastest_that_fits_is_best() -> None:
    slow, fast = forecast("broadcast", 300, 9.0), forecast("partitioned", 700, 2.0)
    assert told(1000, slow, fast).best is fast
    assert told(700, slow, fast).best is fast
    assert told(699, slow, fast).best is slow
    assert told(100, slow, fast).best is slow, "none fits: the smallest"
    assert told(100, replace(slow, memory=800), fast).best is fast


def test_the_lines() -> None:
    lines = told(500_000_000, forecast("broadcast", 600_000_000, 2), forecast("partitioned", 9_000_000, 3))
    first, *others = lines.lines("partitioned")
    assert first == "1,000,000 events against 2,000 subscriptions: about 1,234,568 matches, 10 MB of ids"
    copies = "2.0 copies of an event, 3.5 of a subscription"
    over = "600 MB in a worker (over the limit of 500 MB)"
    assert others == [
        f"   broadcast: {copies}, {over}, 7 MB shuffled, about 2.0 s",
        f"-> partitioned: {copies}, 9 MB in a worker, 7 MB shuffled, about 3.0 s",
    ]


SCHEMA = Schema.of({"x": "double", "y": "double"})
RNG = np.random.default_rng(5)
EVENTS = pa.table({"event_id": np.arange(3000), "x": RNG.random(3000), "y": RNG.random(3000)})


def subscriptions(n: int) -> pa.Table:
    ends = np.random.default_rng(n).random((n, 2)).tolist()
    texts = [f"x > {a:.6f} AND x <= {a + 0.1:.6f} AND y < {b:.6f}" for a, b in ends]
    return pa.table({"subscription_id": np.arange(n) * 64, "subscriber": ["s"] * n, "filter": texts})


def frames(spark: SparkSession, n: int) -> tuple[DataFrame, DataFrame, int]:
    """Events and compiled subscriptions, and how many matches there really are."""
    table = subscriptions(n)
    compiled = compile_subscriptions(spark.createDataFrame(table), SCHEMA).persist()
    done = compile_filters(SCHEMA, table).subscriptions
    return (
        spark.createDataFrame(EVENTS),
        compiled,
        Scan().fit(done).match(EventBatch.from_arrow(EVENTS)).n_pairs,
    )


@pytest.mark.spark
def test_numbers_make_sense(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    events, compiled, pairs = frames(spark, 4000)
    whole = estimate(events, compiled, SCHEMA, memory=1024 * MB)
    assert (whole.events, whole.subscriptions, whole.columns) == (3000, 4000, ("x", "y"))
    assert whole.matches == pytest.approx(pairs)  # few enough to look at all
    monkeypatch.setattr(MODULE, "SAMPLE", (800, 600))
    sampled = estimate(events, compiled, SCHEMA, memory=1024 * MB)
    assert sampled.matches == pytest.approx(pairs, rel=0.25)
    assert (sampled.events, sampled.subscriptions) == (3000, 4000)
    for name in ("broadcast", "partitioned"):
        mine, theirs = whole.forecasts[name], sampled.forecasts[name]
        assert mine.memory - 320 * MB == pytest.approx(theirs.memory - 320 * MB, rel=0.5)
    spread, everywhere = whole.forecasts["partitioned"], whole.forecasts["broadcast"]
    assert everywhere.copies == 1
    assert everywhere.replication == spark.sparkContext.defaultParallelism
    assert everywhere.shuffled == 0 < spread.shuffled
    assert spread.slices is not None
    assert spread.copies == spread.slices.partitioning.copies
    assert whole.best is everywhere  # so few go everywhere


@pytest.mark.slow
@pytest.mark.spark
def test_memory_grows_with_subscriptions_and_parts_with_memory(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, few, _ = frames(spark, 300)
    _, many, _ = frames(spark, 9000)
    small = estimate(events, few, SCHEMA, memory=1024 * MB).forecasts["broadcast"]
    large = estimate(events, many, SCHEMA, memory=1024 * MB)
    assert 5 < (large.forecasts["broadcast"].memory - 320 * MB) / (small.memory - 320 * MB) < 40
    # A limit that the whole index is over: it is spread over as many parts as fit.
    monkeypatch.setattr(MODULE, "_LEAST", 0)
    limit = 320 * MB + (large.forecasts["broadcast"].memory - 320 * MB) // 2
    tight = estimate(events, many, SCHEMA, memory=limit)
    assert tight.forecasts["broadcast"].memory > limit >= tight.forecasts["partitioned"].memory
    assert tight.best.strategy == "partitioned"
    assert "(over the limit of" in tight.lines("partitioned")[1]
    # Cut into more slices, and where that does not do, spread over more parts.
    tighter = estimate(events, many, SCHEMA, memory=320 * MB + (limit - 320 * MB) // 4)
    shapes = []
    for each in (large, tight, tighter):
        slices = each.forecasts["partitioned"].slices
        assert slices is not None
        shapes.append((slices.partitioning.parts, int(slices.cuts.sum())))
    assert shapes[0] < shapes[1] < shapes[2]
    assert shapes[2][0] > shapes[0][0] == 8
    assert tighter.forecasts["partitioned"].memory <= tighter.memory


@pytest.mark.spark
def test_so_little_memory_that_nothing_fits_is_told_soon(spark: SparkSession) -> None:
    events, compiled, _ = frames(spark, 2000)
    found = estimate(events, compiled, SCHEMA, memory=1)
    slices = found.forecasts["partitioned"].slices
    assert slices is not None
    assert slices.partitioning.parts <= 16
    assert all("over the limit of 0" in line for line in found.lines("broadcast")[1:])


@pytest.mark.spark
def test_samples_are_of_all_events_whatever_they_are_called(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULE, "SAMPLE", (800, 500))
    table = pa.table({"event_id": np.arange(2000), "a.b": np.arange(2000.0), "c": np.arange(2000)})
    events = spark.createDataFrame(table).repartitionByRange(4, "event_id")
    schema = Schema.from_arrow(table.schema)
    some = sample_events(events, 2000, schema, 0)
    assert 400 < len(some) < 600
    for start in range(0, 2000, 500):  # the last are among them as well as the first
        assert 85 < ((some.event_id >= start) & (some.event_id < start + 500)).sum() < 165
    assert some.columns[0].to_pylist() == some.event_id.tolist()
    assert len(sample_events(events, 500, schema, 0)) == 2000  # told that they are few
    one = sample_events(events, 2000, schema, 0, ["c"])
    assert one.columns[0].null_count == len(one)
    assert one.columns[1].to_pylist() == one.event_id.tolist()
