"""Streams: a micro-batch beside one that only passes its events on, changes of subscriptions, a backlog.

Events of S10 lie in files of 10,000, one for each micro-batch; deliveries go nowhere. The two streams take
turns, some batches each, so that whatever else the machine does meets both. Batches are timed by Spark
itself, from the start of a trigger to its end.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.peers import child
from benchmarks.sparks import filters_of
from benchmarks.workloads import Work, make

from narrowcast.spark.session import session
from narrowcast.spark.streaming.interest_state import InterestState
from narrowcast.spark.streaming.micro_batch import MicroBatch
from narrowcast.spark.streaming.stream import Stream

HERE = Path(__file__).parent
SUBSCRIPTIONS, EVENTS, BATCHES, TURNS, WARM = 100_000, 10_000, 120, 4, 10
CHANGES, CHANGED, FLOWS = 1_000, 10, 1_000


def sink(frame: Any, _: int) -> None:
    """Compute all rows and keep none."""
    frame.write.format("noop").mode("overwrite").save()


def tables(work: Work, place: Path, n: int, batches: int, *, flows: int = 0) -> None:
    """Write subscriptions as text, and events in files; with flows, the more often the lower their number."""
    (place / "subscriptions").mkdir()
    rows = {"subscription_id": np.arange(len(work.lo)), "filter": filters_of(work)}
    people = pa.array(np.arange(len(work.lo)) % 1_000).cast(pa.string())
    pq.write_table(pa.table({**rows, "subscriber": people}), place / "subscriptions" / "a.parquet")
    events = work.table()
    if flows:
        topics = np.random.default_rng(0).zipf(1.3, len(events)) % flows
        events = events.append_column("topic", pa.array(topics).cast(pa.string()))
    (place / "events").mkdir()
    for i in range(batches):
        part = events.slice(i * n % len(events), n)
        part = part.set_column(0, "event_id", pa.array(np.arange(i * n, i * n + n)))
        pq.write_table(part, place / "events" / f"{i:05d}.parquet")


def opened(
    spark: Any,
    place: Path,
    work: Work,
    *,
    on_batch: Callable[[MicroBatch], None],
    limit: int = 1,
    **more: Any,
) -> Stream:
    """Return a stream over what `tables` wrote, deliveries into nothing."""
    given = {
        "schema": work.schema,
        "source": str(place / "events"),
        "checkpoint": str(place / "check"),
        **more,
    }
    return Stream(spark, str(place / "subscriptions"), sink=sink, limit=limit, on_batch=on_batch, **given)


def timed(query: Any) -> list[float]:
    """Return the seconds of each micro-batch that had events."""
    return [p["durationMs"]["triggerExecution"] / 1e3 for p in query.recentProgress if p["numInputRows"]]


def spread(seconds: list[float]) -> dict[str, float]:
    """Return the middle and the slow end of some times."""
    ordered = sorted(seconds)
    return {
        "batches": len(ordered),
        "p50_s": round(statistics.median(ordered), 4),
        "p95_s": round(ordered[int(0.95 * (len(ordered) - 1))], 4),
    }


def batches(scale: float) -> dict[str, Any]:
    """Time micro-batches of a stream that matches, and of one that passes events on."""
    n, per = max(100, int(EVENTS * scale)), max(4, int(BATCHES * min(1, 4 * scale)) // TURNS)
    count = per * TURNS + WARM
    work = make("S10", "int", max(100, int(SUBSCRIPTIONS * scale)), 10 * n)
    with (
        tempfile.TemporaryDirectory() as folder,
        session(conf={"spark.sql.streaming.numRecentProgressUpdates": "1000"}) as spark,
    ):
        place = Path(folder)
        tables(work, place, n, 2 * count)
        shape = spark.read.parquet(str(place / "events")).schema
        seen: list[MicroBatch] = []
        stream = opened(spark, place, work, on_batch=seen.append)

        def passing() -> Any:
            def same(frame: Any, number: int) -> None:
                sink(frame.mapInArrow(lambda found: found, shape), number)

            reader = spark.readStream.schema(shape).option("maxFilesPerTrigger", "1")
            writer = reader.parquet(str(place / "events")).writeStream.foreachBatch(same)
            return writer.option("checkpointLocation", str(place / "other")).trigger(
                processingTime="0 seconds"
            )

        # Each turn continues from its checkpoint until it has processed `wanted` more files.
        ours: list[float] = []
        theirs: list[float] = []
        for turn in range(TURNS + 1):
            wanted = WARM if turn == 0 else per
            for start, times in ((lambda: stream.start(), ours), (lambda: passing().start(), theirs)):
                query = start()
                while len(timed(query)) < wanted:
                    time.sleep(0.05)
                query.stop()
                if turn:
                    times += timed(query)[:wanted]
        stream.close()
        matches = sum(batch.matches for batch in seen) / sum(batch.events for batch in seen)
    own, other = spread(ours), spread(theirs)
    return {
        "subscriptions": len(work.lo),
        "events": n,
        "matches_per_event": round(matches, 1),
        "ours": own,
        "identity": other,
        "p50_ratio": round(own["p50_s"] / other["p50_s"], 3),
        "p95_ratio": round(own["p95_s"] / other["p95_s"], 3),
        "events_per_s": round(n / own["p50_s"]),
    }


def changes(scale: float) -> dict[str, Any]:
    """Time the micro-batch that takes up a thousand changes, beside those before it."""
    n, changed = max(100, int(EVENTS * scale)), max(10, int(CHANGES * scale))
    work = make("S10", "int", max(100, int(SUBSCRIPTIONS * scale)), 10 * n)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder, session() as spark:
        place = Path(folder)
        tables(work, place, n, 4 * CHANGED + WARM)
        texts = filters_of(work)
        seen: list[MicroBatch] = []

        def on_batch(batch: MicroBatch) -> None:
            seen.append(batch)
            if batch.number >= WARM and batch.number % 4 == 0:
                ids = rng.choice(len(work.lo), changed, replace=False)
                gone = rng.random(changed) < 0.5
                rows = {
                    "action": np.where(gone, "unsubscribe", "subscribe"),
                    "subscription_id": ids,
                    "subscriber": pa.array(ids % 1_000).cast(pa.string()),
                    "filter": texts.take(pa.array(rng.permutation(ids))),
                }
                aside = place / "aside.parquet"
                pq.write_table(pa.table(rows), aside)
                aside.rename(place / "changes" / f"{batch.number:05d}.parquet")

        (place / "changes").mkdir()
        stream = opened(spark, place, work, on_batch=on_batch, changes=str(place / "changes"))
        stream.start(once=True)
        stream.wait()
        stream.close()
    pairs = [pair for pair in pairwise(seen) if pair[1].number > WARM]
    steady = [now.seconds for before, now in pairs if now.snapshot == before.snapshot]
    after = [now.seconds for before, now in pairs if now.snapshot != before.snapshot]
    middle = statistics.median(steady)
    return {
        "subscriptions": len(work.lo),
        "changes": changed,
        "times": len(after),
        "batch_s": round(middle, 4),
        "batch_with_changes_s": round(statistics.median(after), 4),
        "delay_in_batches": round((statistics.median(after) - middle) / middle, 3),
        "worst_delay_in_batches": round((max(after) - middle) / middle, 3),
    }


def state(scale: float) -> dict[str, Any]:
    """Time micro-batches that count rates and interests, among them those while the counts are folded."""
    n, count = max(100, int(EVENTS * scale)), BATCHES + WARM
    work = make("S10", "int", max(100, int(SUBSCRIPTIONS * scale)), 10 * n)
    with tempfile.TemporaryDirectory() as folder, session() as spark:
        place = Path(folder)
        tables(work, place, n, count, flows=FLOWS)
        seen: list[MicroBatch] = []
        kept: dict[str, Any] = {"flow": "topic", "state": str(place / "state")}
        stream = opened(spark, place, work, on_batch=seen.append, schema=None, **kept)
        stream.start(once=True)
        stream.wait()
        stream.close()
        begin = time.perf_counter()
        wants = InterestState.read(spark, str(place / "state")).frames().interests.count()
        reading = time.perf_counter() - begin
    times = [batch.seconds for batch in seen[WARM:]]
    found = spread(times)
    return {
        "flows": FLOWS,
        "pairs": wants,
        **found,
        # Counts are folded beside the work: batches of that time share the cores with it.
        "worst_in_batches": round(max(times) / found["p50_s"], 2),
        "read_s": round(reading, 2),
    }


def backlog(scale: float) -> dict[str, Any]:
    """Take a backlog of JSON messages from JetStream in steps, and see how the lag falls."""
    sys.path.insert(0, str(HERE.parent / "tests"))
    from support.nats import nats_server

    total, limit = max(1_000, int(200_000 * scale)), max(100, int(20_000 * scale))
    work = make("S10", "int", max(100, int(SUBSCRIPTIONS * scale)), total)
    names = work.table().column_names
    columns = [work.table()[name].to_pylist() for name in names]
    lines = [json.dumps(dict(zip(names, row, strict=True))).encode() for row in zip(*columns, strict=True)]
    with (
        tempfile.TemporaryDirectory() as folder,
        session() as spark,
        nats_server(Path(folder) / "nats") as server,
    ):
        place = Path(folder)
        tables(work, place, 100, 1)
        server.make_stream("TICKS")
        for start in range(0, total, 10_000):
            server.fill("TICKS.all", lines[start : start + 10_000])
        seen: list[tuple[MicroBatch, float]] = []
        source = f"{server.url}/TICKS"

        def on_batch(batch: MicroBatch) -> None:
            seen.append((batch, time.perf_counter()))

        stream = opened(spark, place, work, on_batch=on_batch, source=source, limit=limit)
        begin = time.perf_counter()
        stream.start(once=True)
        stream.wait()
        seconds = time.perf_counter() - begin
        stream.close()
    left = total
    lag = []
    for batch, at in seen:
        left -= batch.events
        lag.append({"seconds": round(at - begin, 2), "waiting": left})
    warm = [batch.seconds for batch, _ in seen[2:]]
    return {
        "messages": total,
        "limit": limit,
        "seconds": round(seconds, 2),
        "events_per_s": round(total / seconds),
        "events_per_s_warm": round(limit / statistics.median(warm)) if warm else None,
        "lag": lag,
    }


TASKS: dict[str, Callable[[float], Any]] = {
    "batches": batches,
    "changes": changes,
    "state": state,
    "backlog": backlog,
}


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure everything; quickly, all sizes are a hundredth and the numbers mean nothing."""
    start = time.perf_counter()
    found = {name: child("benchmarks.streaming", name, "0.01" if quick else "1")["result"] for name in TASKS}
    asked = (
        ("micro-batch, p50 to identity", "<= 1.3", found["batches"]["p50_ratio"], 1.3),
        ("micro-batch, p95 to identity", "<= 1.3", found["batches"]["p95_ratio"], 1.3),
        ("1,000 changes: delay in batches", "< 1", found["changes"]["delay_in_batches"], 1.0),
    )
    return {
        "unit": "seconds of a micro-batch by Spark's own clock",
        "quick": quick,
        "targets": [
            {"target": what, "asked": said, "seen": seen, "met": seen <= limit}
            for what, said, seen, limit in asked
        ],
        **found,
        "took_s": round(time.perf_counter() - start),
    }


if __name__ == "__main__":
    print(json.dumps({"result": TASKS[sys.argv[1]](float(sys.argv[2]))}))
