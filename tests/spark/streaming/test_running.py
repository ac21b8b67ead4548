"""A stream that runs can be watched, and ended."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING

import pytest

from narrowcast.errors import ParameterError, TableError
from narrowcast.spark.streaming.backlog import Backlog, Lag
from narrowcast.spark.streaming.micro_batch import MicroBatch
from support.errors import refused
from support.stream import FILTERS, expected

if TYPE_CHECKING:
    from support.stream import Place

pytestmark = pytest.mark.spark


def test_files_that_wait(place: Place) -> None:
    for start in range(0, 500, 100):
        place.events(start, start + 100)
    lags: list[Lag] = []
    stream = place.stream(limit=2)
    stream.start(once=True)
    stream.wait(lags.append)
    stream.close()
    assert (lags[-1].waiting, lags[-1].unit) == (0, "files")
    assert [lag.waiting for lag in lags] == sorted((lag.waiting or 0 for lag in lags), reverse=True)
    (place.folder / "events" / "0.parquet").unlink()
    place.events(900, 901)
    backlog = Backlog(place.spark, stream._source, stream._query_checkpoint)
    assert backlog._files(str(place.folder / "events")) == 1


def test_it_ends_after_the_current_batch(place: Place) -> None:
    tables = [place.events(start, start + 100) for start in range(0, 300, 100)]
    begun = threading.Event()

    def on_batch(_: MicroBatch) -> None:
        begun.set()
        time.sleep(1)

    stream = place.stream(limit=1, on_batch=on_batch)
    query = stream.start()
    assert begun.wait(60)
    stream.stop()
    assert not query.isActive
    stream.close()
    assert [path.name for path in sorted((place.folder / "out").glob("batch=*"))] == ["batch=00000000"]
    assert len(place.run(limit=1)) == 2
    assert place.found() == {k: v for table in tables for k, v in expected(FILTERS, table).items()}


def test_a_stream_that_was_not_started(place: Place) -> None:
    stream = place.stream(kind="parquet")
    stream.stop()
    stream.wait()
    stream.close()


def test_a_folder_that_is_empty(place: Place) -> None:
    with refused(TableError, place.folder / "events", "schema", "kind"):
        place.stream()
    with refused(ParameterError, "json or parquet", parameter="kind", value="csv"):
        place.stream(kind="csv")
    stream = place.stream(kind="json")
    query = stream.start()
    try:
        line = {"event_id": 5, "price": 80.0, "name": "x"}
        (place.folder / "events" / "1.jsonl").write_text(json.dumps(line))
        query.processAllAvailable()
    finally:
        stream.stop()
        stream.close()
    assert list(place.found()) == [5]
