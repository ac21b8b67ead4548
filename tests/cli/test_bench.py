"""The bench command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import narrowcast
from narrowcast.cli import bench
from narrowcast.cli.app import app
from narrowcast.errors import InputError, MissingError, ParameterError
from support.errors import refused

SCRIPT = """
import argparse, json, pathlib, sys
parser = argparse.ArgumentParser()
parser.add_argument("names", nargs="*")
parser.add_argument("--out", type=pathlib.Path)
parser.add_argument("--quick", action="store_true")
given = parser.parse_args()
print("not for the user")
if "broken" in given.names:
    sys.exit(3)
for name in given.names or ["filters", "matching"]:
    rows = [{"what": name, "quick": given.quick, "seen": None}]
    (given.out / f"{name}.json").write_text(json.dumps({"about": "something", "rows": rows}))
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone whose benchmarks take no time."""
    (tmp_path / "benchmarks").mkdir()
    for name in ("filters", "matching", "broken"):
        (tmp_path / "benchmarks" / f"{name}.py").write_text("X = 1\n\n\ndef run() -> None: ...\n")
    (tmp_path / "benchmarks" / "peers.py").write_text("def brute() -> None: ...\n")
    (tmp_path / "benchmarks" / "run.py").write_text(SCRIPT)
    monkeypatch.setattr(narrowcast, "__file__", str(tmp_path / "src" / "narrowcast" / "__init__.py"))
    return tmp_path


def test_results_are_printed_or_written_as_one_document(repository: Path) -> None:
    out = repository / "found.json"
    done = CliRunner().invoke(app, ["bench", "matching", "--quick", "--json", "--out", str(out)])
    assert done.exit_code == 0, done.output
    expected = {
        "matching": {"about": "something", "rows": [{"what": "matching", "quick": True, "seen": None}]}
    }
    assert json.loads(done.stdout) == expected == json.loads(out.read_text())
    assert [path.name for path in repository.iterdir() if path.is_file()] == ["found.json"]


def test_without_names_all_are_run_and_shown(repository: Path) -> None:
    done = CliRunner().invoke(app, ["bench"])
    assert done.exit_code == 0, done.output
    assert "filters: something" in done.stdout
    assert "matching: something" in done.stdout
    assert "not for the user" not in done.stdout


def test_what_cannot_be_run_is_told(repository: Path) -> None:
    with refused(ParameterError, "'speed'", "broken, filters, matching", parameter="names", value="speed"):
        bench.bench(["speed"])
    with refused(InputError, repository / "nowhere"):
        bench.bench(["filters"], out=repository / "nowhere" / "x.json")
    with refused(InputError, 3):
        bench.bench(["broken"], out=repository / "x.json")
    assert not (repository / "x.json").exists()
    (repository / "benchmarks" / "run.py").unlink()
    with refused(MissingError, "repository"):
        bench.bench()
