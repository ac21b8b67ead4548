"""Files of changes, read without Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from narrowcast.errors import TableError
from narrowcast.spark.streaming.changelog import ChangeBatch, read_changes
from support.errors import refused

if TYPE_CHECKING:
    from pathlib import Path

UNKNOWN: dict[str, pa.DataType | None] = {"subscriber": None, "flow": None}
ROWS = [(1, "ann", 7, "subscribe"), (2, "bob", 8, "unsubscribe"), (3, "ann", 8, "subscribe")]
HEAD = "time,subscriber,flow,action\n"


def read(*files: Path, size: int = 1000, **kinds: pa.DataType) -> list[ChangeBatch]:
    return list(read_changes([(file.name, str(file)) for file in files], UNKNOWN | kinds, size=size))


def rows(piece: ChangeBatch) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in piece.rows.to_pylist()]


def reasons(piece: ChangeBatch) -> list[str]:
    found: list[str] = piece.rejected["reason"].to_pylist()
    return found


def at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    names = ("Time", "subscriber", "flow", "action")
    columns = dict(zip(names, map(list, zip(*ROWS, strict=True)), strict=True))
    pq.write_table(pa.table(columns).append_column("note", [["x"] * 3]), tmp_path / "a.parquet")
    return tmp_path / "a.parquet"


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    lines = (",".join(map(str, row)) + "\n" for row in ROWS)
    (tmp_path / "a.CSV").write_text("\ufeff" + HEAD + "".join(lines))
    return tmp_path / "a.CSV"


@pytest.fixture
def json(tmp_path: Path) -> Path:
    lines = (
        f'{{"time":{t},"subscriber":"{s}","flow":{f},"action":"{a}","more":[1]}}\n\n' for t, s, f, a in ROWS
    )
    (tmp_path / "a.jsonl").write_text("".join(lines))
    return tmp_path / "a.jsonl"


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_all_formats_say_the_same(kind: str, request: pytest.FixtureRequest) -> None:
    [piece] = read(request.getfixturevalue(kind))
    assert rows(piece) == [(at(t), s, f, a) for t, s, f, a in ROWS]
    assert piece.rejected.num_rows == 0
    assert piece.rows.schema.field("flow").type == pa.int64()


def test_files_are_put_together_up_to_a_size(parquet: Path, csv: Path, json: Path) -> None:
    assert [piece.rows.num_rows for piece in read(parquet, csv, json, size=6)] == [6, 3]
    assert [piece.rows.num_rows for piece in read(parquet, csv, json, size=2)] == [2, 1, 2, 1, 2, 1]
    whole = read(parquet, csv, json, size=100)
    assert [rows(piece) for piece in whole] == [[(at(t), s, f, a) for t, s, f, a in ROWS] * 3]


def test_labels_are_as_the_others_are(json: Path, tmp_path: Path) -> None:
    [piece] = read(json, flow=pa.string())
    assert piece.rows["flow"].to_pylist() == ["7", "8", "8"]
    (tmp_path / "b.csv").write_text(
        f"{HEAD}1,ann,007,subscribe\n1,ann,99999999999999999999,subscribe\n1,ann,-4,subscribe\n"
        "1,ann,9999999999999999999,subscribe\n"
    )
    [piece] = read(tmp_path / "b.csv", flow=pa.int64())
    assert piece.rows["flow"].to_pylist() == [-4]
    assert reasons(piece)[0] == "flow '007' is not a 64-bit integer like the other labels"
    assert len(reasons(piece)) == 3
    # One that is no number makes text of all that come first, whichever file it is in.
    [piece] = read(json, tmp_path / "b.csv")
    assert piece.rows["flow"].to_pylist()[:5] == ["7", "8", "8", "007", "9" * 20]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("no json", "is not a JSON object on one line; fix or drop it"),
        ("[1]", "is not a JSON object on one line; fix or drop it"),
        ('{"subscriber":"a","flow":1,"action":"subscribe"}', "time is null"),
        (
            '{"time":"noon","subscriber":"a","flow":1,"action":"subscribe"}',
            'time "noon" is invalid; write it',
        ),
        ('{"time":true,"subscriber":"a","flow":1,"action":"subscribe"}', "time true is invalid; write it"),
        ('{"time":NaN,"subscriber":"a","flow":1,"action":"subscribe"}', "time NaN is invalid; write it"),
        ('{"time":1,"subscriber":null,"flow":1,"action":"subscribe"}', "subscriber is null"),
        ('{"time":1,"subscriber":"a","flow":1.5,"action":"subscribe"}', "flow 1.5 is neither a whole number"),
        ('{"time":1,"subscriber":"a","flow":1,"action":"join"}', "action 'join' is neither subscribe nor"),
        ('{"time":1,"subscriber":"a","flow":1}', "action is null"),
        (
            '{"time":4100000000,"subscriber":"a","flow":1,"action":"subscribe"}',
            "time is more than a day from",
        ),
    ],
)
def test_bad_rows_are_set_aside(line: str, reason: str, json: Path) -> None:
    json.write_text(line + "\n" + json.read_text())
    [piece] = read(json)
    assert piece.rows.num_rows == 3
    [row] = piece.rejected.to_pylist()
    assert row["reason"].startswith(reason)
    assert (row["table"], row["row"]) == ("changes", line)


def test_bad_rows_of_csv_and_parquet(csv: Path, parquet: Path) -> None:
    csv.write_text(csv.read_text() + "1,ann,7\n,ann,7,subscribe\n2026-01-01T00:00:00+01:00,ann,7,subscribe\n")
    [piece] = read(csv)
    assert sorted(reasons(piece)) == ["has 3 fields, where 4 are expected; fix or drop it", "time is null"]
    assert rows(piece)[-1][0] == datetime(2025, 12, 31, 23, tzinfo=UTC)
    table = pq.read_table(parquet).set_column(3, "action", [["subscribe", None, "x"]])
    pq.write_table(table, parquet)
    [piece] = read(parquet)
    assert reasons(piece) == ["action is null", "action 'x' is neither subscribe nor unsubscribe"]
    assert '"flow":8' in piece.rejected["row"][0].as_py()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("b.parquet", b"PAR1 and no more", "the file, or the rest of it, is not a table of changes: "),
        ("b.csv", b"", "there is no column 'time', 'subscriber', 'flow', 'action'; it has none"),
        (
            "b.csv",
            b"time,subscriber,topic,action\n",
            "there is no column 'flow'; it has 'time', 'subscriber'",
        ),
        ("b.csv", b"time,Time,subscriber,flow,action\n", "columns 'time' and 'Time' collide"),
    ],
)
def test_what_is_no_table_is_set_aside_whole(
    name: str, content: bytes, reason: str, json: Path, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    [piece] = read(tmp_path / name, json)
    assert piece.rows.num_rows == 3
    [row] = piece.rejected.to_pylist()
    assert reason in row["reason"]
    assert row["row"] == name


def test_types_that_cannot_be_used(parquet: Path) -> None:
    table = pq.read_table(parquet)
    for name, kind in (("flow", pa.float64()), ("Time", pa.bool_())):
        i = table.column_names.index(name)
        pq.write_table(table.set_column(i, name, table[name].cast(kind)), parquet)
        [piece] = read(parquet)
        assert f"column {name.lower()!r} is of type {kind}; use" in reasons(piece)[0]


def test_a_file_that_is_gone_ends_the_work(tmp_path: Path) -> None:
    for name in ("a.csv", "a.jsonl", "a.parquet"):
        with refused(TableError, name):
            read(tmp_path / name)


def test_nothing_is_no_piece(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(HEAD)
    (tmp_path / "a.json").write_text("\n")
    assert read(tmp_path / "a.csv", tmp_path / "a.json") == []
