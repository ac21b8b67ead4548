"""`narrowcast stream`, and a plan made from what it has counted."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import narrowcast as nc
from narrowcast.errors import ParameterError
from narrowcast.spark.streaming.backlog import Lag
from narrowcast.spark.streaming.metrics import StreamMetrics
from narrowcast.spark.streaming.micro_batch import MicroBatch
from support.command import call, document, refusal

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture
def given(tmp_path: Path) -> list[str | Path]:
    """Write subscriptions and events, and return the options that name them."""
    rows = {"subscription_id": [1, 2, 3], "subscriber": ["ann", "bob", "cid"]}
    rows["filter"] = ["topic = 'a'", "topic IN ('a', 'b')", "topic = 'c' AND price > 50"]
    pq.write_table(pa.table(rows), tmp_path / "s.parquet")
    (tmp_path / "events").mkdir()
    for i in range(2):
        lines = [{"event_id": 100 * i + k, "topic": "abcd"[k % 4], "price": k} for k in range(100)]
        text = "\n".join(map(json.dumps, lines)) + ("\noops" if i else "")
        (tmp_path / "events" / f"{i}.jsonl").write_text(text)
    return ["--subscriptions", tmp_path / "s.parquet", "--source", tmp_path / "events", "--once"]


@pytest.mark.slow
@pytest.mark.spark
def test_matches_rates_and_a_plan_of_them(
    given: list[str | Path], spark: SparkSession, tmp_path: Path
) -> None:
    state, out = tmp_path / "state", tmp_path / "out"
    words = [*given, "--sink", out, "--flow", "topic", "--state", state, "--limit", "1"]
    facts, _ = document("stream", *words)
    assert facts["batches"] == 2
    assert (facts["events"], facts["rejected"], facts["matched"], facts["matches"]) == (201, 1, 124, 174)
    rows = spark.read.parquet(str(out)).collect()
    assert len(rows) == len({row.event_id for row in rows}) == 124
    assert document("stream", *words)[0]["batches"] == 0
    plan, _ = document(
        "plan", "--state", state, "--method", "hash", "--channels", "2", "--out", tmp_path / "plan"
    )
    assert (plan["flows"], plan["wants"]) == (4, 4)
    made, info = nc.read_plan(tmp_path / "plan")
    assert info.flow_space == "topics"
    assert made.subscribers.to_pylist() == ["ann", "bob", "cid"]
    (tmp_path / "events" / "2.jsonl").write_text(json.dumps({"event_id": 900, "topic": "a", "price": 1}))
    routed = [*given, "--sink", tmp_path / "routed", "--flow", "topic", "--plan", tmp_path / "plan"]
    shown = call("stream", *routed)
    assert shown.exit_code == 0, shown.exception
    assert "202" in shown.stdout
    assert {row.method for row in spark.read.parquet(str(tmp_path / "routed")).collect()} == {"channel"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--every", "-1"], "--every is -1.0; give seconds"),
        (["--limit", "0"], "--limit is 0; let a micro-batch take at least 1"),
        (["--half-life", "0"], "--half-life is 0.0; give a positive number"),
        (["--metrics", "here"], "--metrics is 'here'; write it as localhost:9400"),
        (["--format", "yaml"], "--format is 'yaml' and must be json"),
        (["--schema", "nowhere.json"], "cannot read a schema from nowhere.json"),
    ],
)
def test_bad_options(words: list[str], message: str, given: list[str | Path], tmp_path: Path) -> None:
    assert message in refusal("stream", *given, "--sink", tmp_path / "out", *words)
    assert not (tmp_path / "out").exists()


def test_metrics_are_served() -> None:
    with StreamMetrics.serve("localhost:0") as metrics:
        metrics.add(MicroBatch(0, 1000, 1, 400, 2500, 3, None, 0.5))
        metrics.see(Lag(7, "messages", 2, 12.5))
        metrics.add(MicroBatch(1, 500, 0, 100, 300, 4, None, 0.25))
        with urllib.request.urlopen(f"http://localhost:{metrics.port}/metrics") as answer:
            text = answer.read().decode()
    for line in ("events_total 1500.0", "rejected_total 1.0", "matches_total 2800.0", "batches_total 2.0"):
        assert f"narrowcast_{line}" in text
    for line in (
        "batch_seconds 0.25",
        "snapshot 4.0",
        "waiting 7.0",
        "missing 2.0",
        "arriving 12.5",
        "batch_events 500.0",
    ):
        assert f"narrowcast_{line}" in text
    with pytest.raises(ParameterError, match="name another port"), StreamMetrics.serve("nowhere.invalid:1"):
        pass
