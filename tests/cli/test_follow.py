"""`narrowcast follow`, and a stream that takes up its plans."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import narrowcast as nc
from narrowcast.cli.follow import line_of
from narrowcast.spark.streaming.follow import FollowProgress
from support.command import call, refusal
from support.stream import Place

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def put(folder: Path, name: str, *rows: tuple[int, str, str, str]) -> None:
    folder.mkdir(exist_ok=True)
    names = ("time", "subscriber", "flow", "action")
    lines = (json.dumps(dict(zip(names, row, strict=True))) for row in rows)
    (folder / name).write_text("\n".join(lines))


@pytest.fixture
def given(tmp_path: Path) -> list[str | Path]:
    """Write changes, and return the options that name them and the plan."""
    put(tmp_path / "log", "a.jsonl", (1, "ann", "x", "subscribe"), (2, "bob", "x", "subscribe"))
    return ["--changes", tmp_path / "log", "--plan", tmp_path / "plan"]


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_line_for_each_micro_batch(given: list[str | Path], tmp_path: Path) -> None:
    put(tmp_path / "log", "b.jsonl", (3, "ann", "x", "subscribe"), (4, "ann", "y", "join"))
    shown = call("follow", *given, "--once")
    assert shown.exit_code == 0, shown.exception
    [line] = shown.stdout.splitlines()
    assert line == (
        "batch 0: 3 changes, 1 ignored, 1 set aside; 1 channels, overall cost 1,082; rows +3 -0; "
        "messages: base 2"
    )
    put(tmp_path / "log", "c.jsonl", (5, "bob", "x", "unsubscribe"))
    put(tmp_path / "log", "d.jsonl", (6, "bob", "y", "subscribe"))
    words = ["--method", "hash", "--channels", "1", "--set", "interval=1", "--limit", "1", "--once", "--json"]
    shown = call("follow", *given, *words)
    assert shown.exit_code == 0, shown.exception
    found = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [(each["batch"], each["changes"], each["channels"], each["messages"]) for each in found] == [
        (1, 1, 1, {}),
        (2, 1, 1, {}),
    ]
    plan, info = nc.read_plan(tmp_path / "plan")
    assert (info.method, info.params["channels"], info.params["batch"]) == ("hash", 1, 2)
    assert found[-1]["cost"] == info.costs["overall"]
    assert plan.members().tolist() == [2]
    assert call("follow", *given, "--once", "--json").stdout == ""


@pytest.mark.spark
def test_a_stream_takes_the_plan_up(given: list[str | Path], spark: SparkSession, tmp_path: Path) -> None:
    call("follow", *given, "--once")
    (tmp_path / "live").mkdir()
    place = Place(spark, tmp_path / "live")
    place.subscribe({1: "name = 'x'", 2: "name = 'x'"})
    rows = {"subscription_id": [1, 2], "subscriber": ["ann", "bob"], "filter": ["name = 'x'"] * 2}
    pq.write_table(pa.table(rows), place.folder / "subscriptions" / "a.parquet")
    place.events(0, 2)
    stream = place.stream(plan=tmp_path / "plan", flow="name")
    query = stream.start()
    try:
        query.processAllAvailable()
        put(tmp_path / "log", "b.jsonl", (3, "bob", "x", "unsubscribe"))
        assert call("follow", *given, "--once").exit_code == 0
        place.events(10, 12)
        query.processAllAvailable()
    finally:
        stream.stop()
        stream.close()
    sent = {row.event_id: row for row in spark.read.parquet(str(place.folder / "out")).collect()}
    assert (sent[0].channels, sent[0].unicast) == ([0], [])
    # Whom the plan no longer has and who still wants it is sent to directly.
    assert (sent[10].channels, sent[10].unicast) == ([0], ["bob"])
    assert sent[0].plan != sent[10].plan


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--every", "-1"], "--every is -1.0; give seconds"),
        (["--every", "5", "--once"], "--once ends when all is taken up, and --every goes on; leave one out"),
        (["--limit", "0"], "--limit is 0; let a micro-batch take at least 1"),
        (["--rows", "0"], "--rows is 0; let a micro-batch take at least 1"),
        (["--method", "tamra"], "unknown method 'tamra'"),
        (["--method", "hash"], "channels is None; hash needs a whole number"),
        (["--set", "start=plan"], "start is the plan that is in PLAN; put it there"),
        (["--set", "cost_m=cubic"], "cost_m is 'cubic'"),
        (["--set", "half_life=0"], "half_life is 0; give a number above 0"),
        (["--method", "per-flow", "--set", "half_life=x"], "half_life is 'x'; give a number above 0"),
        (["--set", "perod=9"], "nobody has a parameter 'perod'"),
    ],
)
def test_bad_options(words: list[str], message: str, given: list[str | Path], tmp_path: Path) -> None:
    assert message in refusal("follow", *given, *words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log"]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_rates_shift_and_the_plan_goes_along(tmp_path: Path) -> None:
    for name in ("log", "events"):
        (tmp_path / name).mkdir()
    people = [f"{name},{topic}" for name in ("ann", "bob", "cid", "dot") for topic in ("news", "sport")]
    (tmp_path / "i.csv").write_text("\n".join(["subscriber,flow", *people]))
    (tmp_path / "r.csv").write_text("flow,rate\nnews,0.0001\nsport,0.0001\n")
    words: list[str | Path] = ["--changes", tmp_path / "log", "--plan", tmp_path / "plan", "--once"]
    words += ["--interests", tmp_path / "i.csv", "--rates", tmp_path / "r.csv"]
    words += ["--events", tmp_path / "events", "--flow", "topic"]
    # Hours in which both are as rare as was said: they share a channel.
    rare = [f"{3600 * hour},{topic},{hour % 3 == 1:d}" for hour in range(24) for topic in ("news", "sport")]
    (tmp_path / "events" / "a.csv").write_text("\n".join(["time,topic,events", *rare]))
    shown = call("follow", *words, "--json")
    assert shown.exit_code == 0, shown.exception
    first = json.loads(shown.stdout)
    assert (first["changes"], first["events"], first["channels"], first["removed"]) == (0, 16, 1, 0)
    # Then one has an event every second; nobody says so, and nobody wants anything else than before.
    busy = [f"{3600 * hour},sport,3600" for hour in range(24, 48)] + ["9000,chess,5"]
    (tmp_path / "events" / "b.csv").write_text("\n".join(["time,topic,events", *busy]))
    shown = call("follow", *words)
    assert shown.exit_code == 0, shown.exception
    assert shown.stdout.startswith(
        "batch 1: 0 changes, 0 ignored; 86,405 events, 5 of unknown flows, 2 rates moved; 2 channels, "
    )
    plan, _ = nc.read_plan(tmp_path / "plan")
    assert sorted(plan.carries.sum(axis=0).tolist(), reverse=True)[:3] == [1, 1, 0]
    rates = pq.read_table(tmp_path / "plan" / "rates.parquet").to_pydict()
    assert dict(zip(rates["flow"], rates["rate"], strict=True))["sport"] == pytest.approx(0.207, abs=0.001)
    deltas = pq.read_table(tmp_path / "plan.deltas" / "batch=00000001", partitioning=None).to_pylist()
    assert ("carries", "remove") in {(row["table"], row["action"]) for row in deltas}


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    words: list[str | Path] = ["--changes", tmp_path / "none", "--plan", tmp_path / "plan", "--once"]
    assert "which is not there; make the folder first" in refusal("follow", *words)
    assert list(tmp_path.iterdir()) == []


def test_a_line_has_what_there_is() -> None:
    done = FollowProgress(7, 1200, 0, 0, 3, 123456.7, 0, 0, {}, 0.1)
    assert line_of(done) == "batch 7: 1,200 changes, 0 ignored; 3 channels, overall cost 123,457; rows +0 -0"
