"""`narrowcast check`, by what a user sees of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from support.command import outcome, shows

FILTERS = ["price > 75 AND name = 'IBM'", "price BETWEEN 9 AND 3", "name LIKE '%x'", "price >", "price > 'x'"]


def narrowcast(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does, in a process of its own with next to no environment."""
    command = [sys.executable, "-c", "from narrowcast.cli.main import main; main()", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={"COLUMNS": "120", "PATH": ""}
    )


def document(*words: str | Path) -> dict[str, Any]:
    done = outcome(*words, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "subscriptions.parquet"
    ids = pa.array(range(10, 10 + len(FILTERS)))
    pq.write_table(
        pa.table({"subscription_id": ids, "subscriber": ["s"] * len(FILTERS), "filter": FILTERS}), path
    )
    return path


@pytest.fixture
def events(tmp_path: Path) -> Path:
    path = tmp_path / "events.csv"
    pc.write_csv(
        pa.table(
            {"event_id": [1, 2, 3, 4], "price": [80.5, 90.5, 1.5, 2.5], "name": ["IBM", "x", "x", "ax"]}
        ),
        path,
    )
    return path


def test_reasons_boxes_and_selectivity(table: Path, events: Path) -> None:
    found = document("check", table, "--events", events)
    assert {k: found[k] for k in ("filters", "good", "bad", "never_true", "checked", "boxes")} == {
        "filters": 5,
        "good": 3,
        "bad": 2,
        "never_true": 1,
        "checked": 1,
        "boxes": 2,
    }
    assert found["schema"] == {"price": "double", "name": "string"}
    assert [(row["subscription_id"], row["reason"]) for row in found["rows"][:2]] == [
        (13, "does not parse: something is missing at column 7"),
        (14, "compares price (double) with a string literal: must be comparable types"),
    ]
    assert [(row["subscription_id"], row["boxes"], row["selectivity"]) for row in found["rows"][2:]] == [
        (10, 1, 0.25),
        (11, 0, 0.0),
        (12, 1, 0.75),
    ]


def test_one_event_is_explained(table: Path) -> None:
    found = document("check", table, "--event", '{"price": 80, "name": "ax"}')
    (first, *_, last) = found["rows"][2:]
    assert first["explanation"]["holds"] is False
    assert [(p["text"], p["holds"], p["values"]) for p in first["explanation"]["parts"]] == [
        ("price > 75", True, {"price": 80}),
        ("name = 'IBM'", False, {"name": "ax"}),
    ]
    assert last["explanation"]["holds"] is True


def test_an_event_has_the_types_of_its_own_values_where_none_are_given(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text("price > 3\nname = 'é'\n", "utf-8")
    (row, other) = document("check", tmp_path / "f.txt", "--event", '{"price": 80.5, "name": "é"}')["rows"]
    assert row["explanation"]["holds"] is other["explanation"]["holds"] is True


def test_selectivity_is_of_a_sample_drawn_from_all_events(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text("v = 1\n")
    pq.write_table(
        pa.table({"event_id": range(5_000), "v": [0] * 1_000 + [1] * 4_000}), tmp_path / "e.parquet"
    )
    (row,) = document("check", tmp_path / "f.txt", "--events", tmp_path / "e.parquet")["rows"]
    assert 0.75 < row["selectivity"] < 0.85


def test_a_text_file_and_a_schema_file(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text("day > '2024-01-01'\n\nside.name = 'B'\n")
    (tmp_path / "schema.json").write_text('{"day": "date", "side": {"name": "string"}}')
    found = document("check", tmp_path / "f.txt", "--schema", tmp_path / "schema.json")
    assert (found["good"], found["bad"], found["boxes"]) == (2, 0, 2)


def test_the_table_for_people(table: Path, events: Path) -> None:
    done = outcome("check", table, "--events", events, "--rows", "3")
    assert done.returncode == 0
    head = "5 filters: 3 good, 2 bad; 2 boxes in total, 1 to be checked on candidates, 1 can never be true"
    assert done.stdout.splitlines()[0] == head
    assert "1 x does not parse: something is missing at column 7" in done.stdout
    assert "... and 2 more" in done.stdout


def test_strict_exits_with_2_and_one_line(table: Path) -> None:
    done, own = outcome("check", table, "--strict"), narrowcast("check", table, "--strict")
    assert done == (own.returncode, own.stdout, own.stderr)
    assert done.returncode == 2
    assert done.stderr == (
        "narrowcast: 2 of 5 filters are bad; the first has subscription_id 13: "
        "does not parse: something is missing at column 7\n"
    )


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["nope.parquet"], "nope.parquet"),
        (["TABLE", "--event", "{"], "--event {"),
        (
            ["TABLE", "--event", '{"price": "high"}'],
            "event",
        ),
        (["TABLE", "--schema", "nope.json"], "schema nope.json"),
        (["TABLE", "--schema", "TABLE", "--events", "TABLE"], "schema events"),
        (["TABLE", "--limit-boxes", "0"], "boxes=0"),
        (["TABLE", "--rows", "0"], "--rows"),
        (["TABLE", "--nonsense"], "nonsense"),
        ([], "FILE"),
        (["EVENTS"], "filter event_id price name"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(words: list[str], shown: str, table: Path, events: Path) -> None:
    done = outcome("check", *({"TABLE": table, "EVENTS": events}.get(word, word) for word in words))
    assert done.returncode == 2
    assert done.stdout == ""
    assert shows(done.stderr, shown)
    assert done.stderr.count("\n") == 1


def test_no_filters_at_all(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text("\n")
    assert document("check", tmp_path / "f.txt")["filters"] == 0
