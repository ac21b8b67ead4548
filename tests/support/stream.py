"""A folder with what a stream needs, and what should come out of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import narrowcast as nc
from narrowcast.spark.streaming.micro_batch import MicroBatch
from narrowcast.spark.streaming.stream import Stream

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SCHEMA = nc.Schema.of({"price": "double", "name": "string"})
FILTERS = {1: "price > 50", 2: "price > 150", 3: "price <= 20 AND name = 'x'"}


class Place:
    """A folder with subscriptions and events, and streams over them."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.heard: list[MicroBatch] = []
        for name in ("events", "changes"):
            (folder / name).mkdir()
        self.subscribe(FILTERS)

    def subscribe(self, filters: dict[int, str], name: str = "a") -> None:
        (self.folder / "subscriptions").mkdir(exist_ok=True)
        rows = {
            "subscription_id": list(filters),
            "subscriber": [f"s{i}" for i in filters],
            "filter": list(filters.values()),
        }
        pq.write_table(pa.table(rows), self.folder / "subscriptions" / f"{name}.parquet")

    def change(self, name: str, *rows: tuple[str, int, str | None]) -> None:
        table = [
            {"action": action, "subscription_id": i, "subscriber": f"s{i}", "filter": text}
            for action, i, text in rows
        ]
        (self.folder / "changes" / f"{name}.json").write_text("\n".join(map(json.dumps, table)))

    def events(self, start: int, stop: int, **more: Any) -> pa.Table:
        ids = np.arange(start, stop)
        table = pa.table({"event_id": ids, "price": ids.astype(float), "name": ["xy"[i % 2] for i in ids]})
        for name, values in more.items():
            table = table.append_column(name, [values])
        pq.write_table(table, self.folder / "events" / f"{start}.parquet")
        return table

    def stream(self, **options: Any) -> Stream:
        given = {
            "source": str(self.folder / "events"),
            "sink": str(self.folder / "out"),
            "changes": str(self.folder / "changes"),
            "heard": self.heard.append,
            "schema": SCHEMA,
            **options,
        }
        return Stream(self.spark, str(self.folder / "subscriptions"), **given)

    def run(self, **options: Any) -> list[MicroBatch]:
        """Take what is there, and return the batches of it."""
        before, stream = len(self.heard), self.stream(**options)
        try:
            stream.start(once=True)
            stream.wait()
        finally:
            stream.close()
        return self.heard[before:]

    def out(self, name: str = "out") -> list[dict[str, Any]]:
        frame = self.spark.read.parquet(str(self.folder / name))
        return [row.asDict() for row in frame.collect()]

    def found(self) -> dict[int, list[int]]:
        """Return what is in the sink by event, each of them once."""
        rows = self.out()
        assert len({row["event_id"] for row in rows}) == len(rows)
        return {row["event_id"]: row["subscription_ids"] for row in rows}


def expected(filters: dict[int, str], events: pa.Table) -> dict[int, list[int]]:
    """Return what the slowest matcher finds."""
    rows = {"subscription_id": list(filters), "subscriber": ["s"] * len(filters)}
    table = pa.table({**rows, "filter": list(filters.values())})
    batch = nc.EventBatch.from_arrow(events, SCHEMA)
    good = nc.compile_filters(SCHEMA, table).subscriptions
    found = nc.Scan().fit(good).match(batch)
    ids = {
        int(e): sorted(good.subscription_id[m].tolist()) for e, m in zip(batch.event_id, found, strict=True)
    }
    return {event: each for event, each in ids.items() if each}
