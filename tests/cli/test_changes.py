"""A log of changes as what plans are made from: plan, evaluate, compare, and an earlier plan that is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import narrowcast as nc
from narrowcast.planning.base import delta_between
from narrowcast.planning.replanner import changed
from narrowcast.workloads.feeds import Feeds
from support.command import call, document, refusal, shows, table_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FEEDS = Feeds(n_subscribers=60, n_flows=30, groups=3, home=1, wanted=8, shift="clustered", seed=1)
TABLES = FEEDS.tables()
#: Two thirds of the changes.
UNTIL = "1970-02-10T12:00:00"


@pytest.fixture(scope="module")
def data(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("changes")
    for name, table in TABLES.items():
        pq.write_table(table, folder / f"{name}.parquet")
    return folder


def inputs(data: Path, *names: str) -> list[str]:
    return [word for name in names for word in (f"--{name}", str(data / f"{name}.parquet"))]


def at(until: str) -> nc.Interest:
    moment = pa.scalar(f"{until}Z").cast(pa.timestamp("us", "UTC"))
    counted = TABLES["changes"].filter(pc.less_equal(TABLES["changes"]["time"], moment))
    return changed(FEEDS.interest(), counted)


@pytest.mark.slow
def test_plan_evaluate_and_keep(data: Path, tmp_path: Path) -> None:
    words = inputs(data, "interests", "rates", "changes")
    out = tmp_path / "plan"
    how = ("--method", "kmeans", "--set", "clusters=3")
    facts, said = document("plan", *words, "--until", UNTIL, *how, "--out", out)
    assert said == ""
    interest = at(UNTIL)
    plan, info = nc.read_plan(out)
    plan.validate(interest)
    assert 0 < facts["changes"] < TABLES["changes"].num_rows
    assert (facts["wants"], facts["flows"]) == (interest.n_wants, 30)
    assert info.params == {"channels": None, "clusters": 3, "until": "1970-02-10T12:00:00+00:00"}
    assert set(info.inputs) == {"interests", "rates", "changes"}
    assert info.costs["overall"] == pytest.approx(nc.Overall().score(interest, plan).total)

    # The same moment is the same input, also of a log that has gone on; another is not.
    found, said = document("evaluate", out, *words, "--until", UNTIL)
    assert said == ""
    assert found["methods"]["kmeans"]["costs"]["overall"]["total"] == pytest.approx(info.costs["overall"])
    assert f" of {FEEDS.later().n_wants} wanted pairs are not served: " in refusal("evaluate", out, *words)

    # Of the plan kept, channels carry what they carried; who listens is as things are at the end.
    later = tmp_path / "later"
    facts, said = document("plan", *words, "--method", "static", "--from", out, "--out", later)
    kept, info = nc.read_plan(later)
    end = FEEDS.later()
    kept.validate(end)
    assert delta_between(kept, nc.Static(start=plan).fit(end).plan_).n_changes == 0
    assert facts["migration"].keys() >= {"join", "leave"}
    assert "moves" not in facts
    assert (later / "migration.parquet").exists()
    assert not (later / "moves.png").exists()
    assert info.params["from"] == str(out)
    shown = call("plan", *words, "--method", "static", "--from", out, "--out", tmp_path / "shown")
    assert "Migration from the earlier plan" in shown.stdout
    assert "Moves" not in shown.stdout


@pytest.mark.slow
def test_from_nothing_with_rows_that_cannot_be_used(data: Path, tmp_path: Path) -> None:
    log = [
        {"time": "2026-01-01T00:00:00Z", "subscriber": "ann", "flow": "x", "action": "subscribe"},
        {"time": "2026-01-03T00:00:00Z", "subscriber": "ann", "flow": "x", "action": "unsubscribe"},
        {"time": "2026-01-02T00:00:00Z", "subscriber": "bob", "flow": "x", "action": "subscribe"},
        {"time": "2026-01-02T00:00:00Z", "subscriber": "bob", "flow": "y", "action": "subscribe"},
        {"time": "2026-01-02T00:00:00Z", "subscriber": "bob", "flow": "z", "action": "begin"},
        {"time": None, "subscriber": "bob", "flow": "z", "action": "subscribe"},
    ]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    words = ["--changes", str(tmp_path / "c.jsonl"), "--method", "per-flow"]
    facts, _ = document("plan", *words, "--rejected", tmp_path / "bad.parquet", "--out", tmp_path / "plan")
    assert (facts["rejected"], facts["changes"], facts["wants"], facts["flows"]) == (2, 4, 2, 2)
    assert facts["reasons"] == {
        "changes: action 'begin' is neither subscribe nor unsubscribe": 1,
        "changes: time is null": 1,
    }
    plan, info = nc.read_plan(tmp_path / "plan")
    assert plan.subscribers.to_pylist() == ["bob"]
    assert set(info.inputs) == {"changes"}
    said = refusal("plan", *words, "--strict", "--out", tmp_path / "no")
    assert "2 bad rows" in said
    assert "changes" in said

    out = tmp_path / "compared"
    how = ("--channels", "2", "--methods", "giant,static", "--until", "2026-01-02")
    facts, _ = document("compare", *words[:2], *how, "--out", out)
    assert (facts["wants"], facts["changes"]) == (3, 3)
    assert {row["method"] for row in facts["rows"]} >= {"giant", "static", "ideal"}
    table = call("evaluate", tmp_path / "plan", *words[:2], "--cost", "waste")
    assert "per-flow" in {row[0] for row in table_of(table.stdout)}


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--interests", "i", "--until", "2026-01-01"], "--until"),
        (["--changes", "c", "--until", "noon"], "until noon"),
        (["--changes", "c", "--events", "e"], "--changes subscriptions events"),
        (["--changes", "c", "--recent", "3"], "--recent subscriptions events"),
        (["--changes", "c", "--state", "s"], "--changes state"),
        (["--changes", "c", "--method", "static"], "--from"),
    ],
)
def test_what_does_not_go_together(words: list[str], shown: str, tmp_path: Path) -> None:
    method = [] if "--method" in words else ["--method", "per-flow"]
    assert shows(refusal("plan", *words, *method, "--out", tmp_path / "out"), shown)
