from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner, Result

import narrowcast
from narrowcast.cli.generate import generate
from narrowcast.errors import NarrowcastError, ParameterError, TableError
from narrowcast.workloads import Stocks
from support.command import shows

app = typer.Typer(rich_markup_mode="markdown")
app.command()(generate)


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def test_tables_are_those_of_the_workload(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "quotes"
    found = call("stocks", "--out", out, "--seed", "7", "--set", "n_subscriptions=20", "--set", "modes=4")
    assert found.exit_code == 0
    assert found.stderr == ""
    tables = Stocks(n_subscriptions=20, modes=4, seed=7).tables()
    made = "Stocks(n_subscriptions=20, n_events=10000, modes=4, edges='levels', drift=0.0, nodes=600, seed=7)"
    assert found.stdout.splitlines() == [
        f"{out}/subscriptions.parquet: 20 rows",
        f"{out}/events.parquet: 10,000 rows",
        f"{out}/topology.parquet: {tables['topology'].num_rows:,} rows",
        f"{out}/locations.parquet: {tables['locations'].num_rows:,} rows",
        f"{out}/workload.json: {made}",
    ]
    assert {file.name for file in out.iterdir()} == {
        "subscriptions.parquet",
        "events.parquet",
        "topology.parquet",
        "locations.parquet",
        "workload.json",
    }
    for name, table in tables.items():
        assert pq.read_table(out / f"{name}.parquet").equals(table)


def test_json_is_what_the_file_says(tmp_path: Path) -> None:
    found = call("stocks", "--out", tmp_path / "w", "--set", "n_events=0", "--json")
    assert json.loads(found.stdout) == {
        "name": "stocks",
        "parameters": {
            "n_subscriptions": 1000,
            "n_events": 0,
            "modes": 1,
            "edges": "levels",
            "drift": 0.0,
            "nodes": 600,
        },
        "seed": 0,
        "version": narrowcast.__version__,
        "rows": {name: table.num_rows for name, table in Stocks(n_events=0).tables().items()},
    }
    assert (tmp_path / "w" / "workload.json").read_text() == found.stdout


def test_same_seed_same_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        call("stocks", "--out", tmp_path / name, "--set", "n_events=10")
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


def test_what_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    found = call("stocks", "--out", tmp_path)
    assert isinstance(found.exception, TableError)
    assert str(found.exception) == f"{tmp_path} exists already; name another folder or remove it"
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["shares"], "shares"),
        (["stocks", "--set", "modes=2"], "modes 2"),
        (["stocks", "--set", "colour=red"], "stocks colour"),
        (["stocks", "--set", "modes"], "modes"),
        (["stocks", "--seed", "-1"], "seed -1"),
    ],
)
def test_bad_input_leaves_nothing(arguments: list[str], shown: str, tmp_path: Path) -> None:
    found = call(*arguments, "--out", tmp_path / "out")
    assert isinstance(found.exception, ParameterError)
    assert shows(str(found.exception), shown)
    assert "\n" not in str(found.exception)
    assert found.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Stocks) -> None:
        raise NarrowcastError("on purpose")

    monkeypatch.setattr(Stocks, "tables", fail)
    assert str(call("stocks", "--out", tmp_path / "out").exception) == "on purpose"
    assert list(tmp_path.iterdir()) == []


def test_usage() -> None:
    found = call("--help")
    assert found.exit_code == 0
    assert "narrowcast generate stocks --out quotes" in found.stdout
    assert call("stocks").exit_code == 2
    assert call("stocks", "--out", "x", "--seed", "one").exit_code == 2
