"""Matching as a command: the table, the bad rows, and what is refused before any work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.cluster import SHORT
from support.command import call, document, refusal, shows, table_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

GOOD = {9: "price > 10", 4: "price > 20", 2: "price > 5 OR name = 'x'"}
EXPECTED = {5: [2, 4, 9], 8: [2, 9]}


@pytest.fixture
def given(spark: SparkSession, tmp_path: Path) -> list[str]:
    """Options that name tables with a bad filter and a bad row."""
    rows = [f'{i},ann,"{text}"' for i, text in {**GOOD, 7: "prize > 1"}.items()]
    (tmp_path / "s.csv").write_text("\n".join(["subscription_id,subscriber,filter", *rows, "x,eve,TRUE"]))
    events = {"event_id": [5, 6, 8], "price": [30.0, 1.0, 12.0], "name": ["x", "y", None], "more": [1, 2, 3]}
    pq.write_table(pa.table(events), tmp_path / "e.parquet")
    return ["match", "--subscriptions", str(tmp_path / "s.csv"), "--events", str(tmp_path / "e.parquet")]


def found(path: Path) -> dict[int, list[int]]:
    return {row["event_id"]: row["subscription_ids"] for row in pq.read_table(path).to_pylist()}


def test_matches_and_bad_rows(given: list[str], tmp_path: Path) -> None:
    out = tmp_path / "deep" / "m [1].parquet"
    facts, said = document(*given, "--out", out)
    assert found(out) == EXPECTED
    assert facts.pop("seconds") > 0
    assert facts.pop("reasons") == {
        "subscriptions: subscription_id 'x' is not a 64-bit integer": 1,
        "subscriptions: unknown attribute 'prize'; known: price, name, more": 1,
    }
    beside = tmp_path / "deep" / "m [1]-rejected.parquet"
    assert facts == {
        "command": "match",
        "out": str(out),
        "subscriptions": 3,
        "boxes": 4,
        "events": 3,
        "rejected": 2,
        "rejected_table": str(beside),
        "matches": 5,
        "matched": 2,
        "unmatched": 1,
    }
    assert len(said.splitlines()) == 3
    assert said.startswith("3 events against 3 subscriptions: about 5 matches, 0 MB of ids\n-> broadcast: ")
    aside = pq.read_table(beside).sort_by("reason").to_pylist()
    assert [row["table"] for row in aside] == ["subscriptions"] * 2
    assert aside[1]["row"] == '{"subscription_id":7,"subscriber":"ann","filter":"prize > 1"}'
    assert sorted(path.name for path in out.parent.iterdir()) == [beside.name, out.name]


def test_counts_under_a_uri_and_rejected_elsewhere(given: list[str], tmp_path: Path) -> None:
    out, aside = tmp_path / "sizes", tmp_path / "aside"
    words = ["--out", f"file://{out}", "--counts", "--strategy", "partitioned"]
    words += ["--parts", "6", "--copies", "2"]
    done = call(*given, *words, "--rejected", f"file://{aside}")
    assert done.exit_code == 0, done.exception
    sizes = pq.read_table(out)
    assert sizes.schema.names == ["event_id", "matches"]
    assert {row["event_id"]: row["matches"] for row in sizes.to_pylist()} == {5: 3, 8: 2}
    assert pq.read_table(aside).num_rows == 2
    rows = table_of(done.stdout)
    assert ["matches", "5"] in rows
    assert ["rejected", "2"] in rows
    assert ["subscriptions: subscription_id 'x' is not a 64-bit integer", "1"] in rows
    assert ["events without a match", "1"] in rows
    assert "-> partitioned: 2.0 copies of an event" in done.stderr


@pytest.mark.slow
def test_histories_beside_the_matches(given: list[str], tmp_path: Path) -> None:
    out, beside = tmp_path / "m", tmp_path / "h"
    facts, _ = document(*given, "--out", out, "--histories", beside, "--last", "1")
    assert found(out) == EXPECTED
    table = pq.read_table(beside)
    assert table.schema.names == ["subscription_id", "history"]
    rows = {row["subscription_id"]: row["history"] for row in table.to_pylist()}
    assert rows == {2: [8], 4: [5], 9: [8]}
    assert [facts[name] for name in ("histories", "empty", "histories_table")] == [3, 0, str(beside)]
    done = call(*given, "--out", tmp_path / "n", "--histories", tmp_path / "g", "--recent", "1")
    assert done.exit_code == 0, done.exception
    lines = table_of(done.stdout)
    assert ["histories", "3"] in lines
    assert ["empty ones", "1"] in lines
    assert sorted(map(len, pq.read_table(tmp_path / "g")["history"])) == [0, 1, 1]


def test_strict_writes_nothing(given: list[str], tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    said = refusal(*given, "--out", tmp_path / "m", "--strict")
    assert "2 bad rows" in said
    assert "subscriptions" in said
    assert sorted(tmp_path.iterdir()) == before


def test_what_is_there_stays(given: list[str], tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    assert str(tmp_path / "m") in refusal(*given, "--out", tmp_path / "m")
    assert list((tmp_path / "m").iterdir()) == []
    (tmp_path / "n-rejected").write_text("mine")
    assert "n-rejected" in refusal(*given, "--out", tmp_path / "n")
    assert (tmp_path / "n-rejected").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--strategy", "fast"], "strategy fast"),
        (["--memory", "1.5g"], "1.5g"),
        (["--schema", "nothing.json"], "schema nothing.json"),
        (["--rejected", "OUT"], "rejected"),
        (["--parts", "7", "--copies", "2"], "copies 2 7 parts"),
        (["--parts", "0"], "parts 0"),
        (["--last", "3"], "last"),
        (["--histories", "h", "--last", "0"], "last 0"),
        (["--histories", "h", "--window", "-1"], "window -1"),
        (["--histories", "h", "--counts"], "counts histories"),
        (["--histories", "OUT"], "histories"),
        (["--histories", "OUT/h"], "--histories m/h"),
        (["--rejected", "OUT/../m/r"], "m"),
        (["--histories", "h", "--rejected", "h/r"], "rejected h/r histories h"),
        (["--strategy", "partitioned", "--measured", "OUT/t.parquet"], "t.parquet"),
        (["--conf", "x"], "conf x"),
    ],
)
def test_bad_options(given: list[str], words: list[str], shown: str, tmp_path: Path) -> None:
    out = str(tmp_path / "m")
    assert shows(refusal(*given, "--out", out, *(word.replace("OUT", out) for word in words)), shown)
    assert not Path(out).exists()


def test_missing_tables(given: list[str], tmp_path: Path) -> None:
    for place in (4, 2):
        given[place] = str(tmp_path / "nothing.parquet")
        assert "nothing.parquet" in refusal(*given, "--out", tmp_path / "m")
    given[4] = "s4://bucket/events"
    assert "s4" in refusal(*given, "--out", tmp_path / "m")


@pytest.mark.slow
def test_as_a_command_of_its_own(given: list[str], tmp_path: Path) -> None:
    """One line and exit code 2; what Java says before any setting is read cannot be helped."""
    code = "import sys; sys.argv[0] = 'narrowcast'; from narrowcast.cli.main import main; main()"
    words = [*given, "--out", str(tmp_path / "m"), "--strict", "--master", "local[1,4]"]
    words += ["--conf", f"spark.driver.extraJavaOptions={SHORT}"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("WARNING: ")]
    assert (done.returncode, done.stdout, len(lines)) == (2, "", 1), done.stderr
    assert lines[0].startswith("narrowcast: ")
    assert "2 bad rows" in lines[0]
    assert not (tmp_path / "m").exists()
