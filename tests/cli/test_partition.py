"""Parts as a command: a plan that matching uses, follows the load, and that other commands refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from narrowcast.cli.partition import _changes
from narrowcast.matching.partition import AdaptedParts, read_partitions
from support.command import call, document, refusal, shows, table_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

N = 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of subscriptions, some of them bad, and of events: first as they were, then as they drifted."""
    place, rng = tmp_path_factory.mktemp("parts"), np.random.default_rng(0)
    low = rng.random((N, 2)).round(3)
    texts = [
        f"x > {a} AND x <= {a + 0.1:.3f}" if i % 2 else f"y >= {b} OR z = {i % 5}"
        for i, (a, b) in enumerate(low)
    ]
    texts[7] = "w > 1"
    table = {"subscription_id": np.arange(N) * 3, "subscriber": ["s"] * N, "filter": texts}
    pq.write_table(pa.table(table), place / "s.parquet")
    for name, power in (("e", 1), ("late", 5)):
        columns = {"x": rng.random(2000) ** power, "y": rng.random(2000), "z": rng.integers(0, 5, 2000)}
        pq.write_table(pa.table({"event_id": np.arange(2000), **columns}), place / f"{name}.parquet")
    return place


@pytest.fixture
def given(spark: SparkSession, folder: Path) -> list[str]:
    return ["--subscriptions", str(folder / "s.parquet"), "--events", str(folder / "e.parquet")]


def matched(path: Path) -> dict[int, list[int]]:
    return {row["event_id"]: row["subscription_ids"] for row in pq.read_table(path).to_pylist()}


@pytest.mark.slow
def test_from_end_to_end(given: list[str], folder: Path, tmp_path: Path) -> None:
    plan, out = tmp_path / "plan", tmp_path / "m"
    facts, _ = document(
        "partition", *given, "--parts", "8", "--copies", "2", "--scheme", "selective", "--out", plan
    )
    assert (facts["command"], facts["scheme"], facts["parts"], facts["copies"]) == (
        "partition",
        "selective",
        8,
        2,
    )
    assert (facts["subscriptions"], facts["events"], facts["rejected"]) == (N - 1, 2000, 1)
    parts, info = read_partitions(plan)
    assert parts.parts == info.channels == 8
    assert info.costs == {
        name: facts[name] for name in ("copies", "replication", "work_max_over_mean", "work")
    }
    assert sorted(info.inputs) == ["events", "subscriptions"]
    assert info.params["copies"] == 2

    # Matching uses it, and finds what it finds otherwise; what parts took is written beside.
    document("match", *given, "--strategy", "broadcast", "--out", tmp_path / "b")
    done = call("match", *given, "--strategy", "partitioned", "--partitions", plan, "--measured",
                tmp_path / "took.parquet", "--out", out)  # fmt: skip
    assert done.exit_code == 0, done.exception
    assert "-> partitioned: 2.0 copies of an event" in done.stderr
    assert matched(out) == matched(tmp_path / "b")
    took = pq.read_table(tmp_path / "took.parquet")
    assert took.column_names == ["part", "slice", "events", "subscriptions", "matches", "seconds"]
    assert sum(took["events"].to_pylist()) == 2 * 2000
    assert sum(took["matches"].to_pylist()) == sum(map(len, matched(out).values()))
    assert min(took["seconds"].to_pylist()) > 0

    # When events have changed, parts follow, by what was measured.
    late = [*given[:2], "--events", str(folder / "late.parquet")]
    done = call("partition", *late, "--from", plan, "--measured", tmp_path / "took.parquet",
                "--set", "threshold=1.1", "--out", tmp_path / "next")  # fmt: skip
    assert done.exit_code == 0, done.exception
    rows = dict(row for row in table_of(done.stdout) if len(row) == 2)
    costs = json.loads((tmp_path / "next" / "plan.json").read_text())["costs"]
    assert 0 < costs["moved"] == pytest.approx(float(rows["share of new places"]), abs=1e-4)
    assert read_partitions(tmp_path / "next")[1].method == "selective"
    # Balance is told by the work that was measured too, and before and after.
    assert costs["measured_work_max_over_mean"] == pytest.approx(float(rows["by measured work"]), abs=1e-4)
    before, after = (float(rows[name]) for name in ("heaviest part / mean before, sampled", "after"))
    assert before > max(1.1, after)
    assert rows["change"] in ("parts made anew", "some branches cut anew")
    assert rows["at most 1.1 times the mean"] == ("yes" if after <= 1.1 else "no: not reachable")
    odd = refusal(
        "match", *late, "--out", tmp_path / "x", "--partitions", plan, "--schema", _schema(tmp_path)
    )
    assert shows(odd, "'x' double decimal(10,3)")


def test_changes_are_told() -> None:
    parts: Any = None
    told = _changes(AdaptedParts(parts, 0, 1.1, 1.1, 0.0))
    assert (told["before"], told["after"], told["even"], told["fresh"]) == (1.1, 1.1, True, None)
    assert told["done"] == "nothing"
    told = _changes(AdaptedParts(parts, 2, 3.0, 1.3, 0.2, moved_from_scratch=0.4))
    assert (told["done"], told["anew"], told["even"]) == ("some branches cut anew", False, False)
    told = _changes(AdaptedParts(parts, 1, 3.0, 1.2, 0.4, moved_from_scratch=0.4, from_scratch=True))
    assert (told["done"], told["anew"], told["even"]) == ("parts made anew", True, True)


def test_a_bad_table_of_work_is_named(tmp_path: Path) -> None:
    path = tmp_path / "took.csv"
    path.write_text("events,subscriptions,matches,seconds\n1,2,3,0\n")
    said = refusal("partition", "--subscriptions", "s", "--events", "e", "--out", "p", "--measured", path)
    assert shows(said, f"{path} 0")


def _schema(folder: Path) -> str:
    (folder / "types.json").write_text('{"x": "decimal(10,3)", "y": "double", "z": "bigint"}')
    return str(folder / "types.json")


@pytest.mark.slow
def test_cobas_and_what_other_commands_say(given: list[str], tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    document("partition", *given, "--scheme", "cobas", "--parts", "12", "--set", "kappa=2", "--out", plan)
    assert json.loads((plan / "plan.json").read_text())["params"]["kappa"] == 2
    document(
        "match",
        *given,
        "--strategy",
        "partitioned",
        "--partitions",
        plan,
        "--counts",
        "--out",
        tmp_path / "m",
    )
    document("match", *given, "--strategy", "broadcast", "--counts", "--out", tmp_path / "b")
    one, other = (pq.read_table(tmp_path / name).sort_by("event_id").to_pylist() for name in ("m", "b"))
    assert one == other
    others: list[list[str | Path]] = [
        ["evaluate", plan, *given],
        ["explain", plan, "--channel", "0"],
        ["export", plan, "--to", "csv", "--out", tmp_path / "x"],
        ["diff", plan, plan],
    ]
    for words in others:
        assert str(plan) in refusal(*words)
    assert "'cobas'" in refusal("partition", *given, "--from", plan, "--out", tmp_path / "next")


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--scheme", "kdd"], "scheme kdd"),
        (["--parts", "0"], "parts 0"),
        (["--parts", "7", "--copies", "2"], "copies 2 7 parts"),
        (["--scheme", "hash", "--copies", "2"], "scheme hash copies"),
        (["--set", "kappa=2"], "kappa kd"),
        (["--set", "work=2"], "set work"),
        (["--set", "threshold=2"], "threshold"),
        (["--from", "nothing"], "nothing"),
        (["--from", "nothing", "--parts", "4"], "from parts"),
        (["--measured", "nothing.parquet"], "nothing.parquet"),
        (["--conf", "x"], "conf x"),
    ],
)
def test_what_is_refused(given: list[str], words: list[str], shown: str, tmp_path: Path) -> None:
    assert shows(refusal("partition", *given, "--out", tmp_path / "p", *words), shown)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--strategy", "broadcast", "--partitions", "p"], "partitions strategy"),
        (["--partitions", "p", "--parts", "4"], "partitions parts"),
        (["--partitions", "p"], "p"),
        (["--measured", "m.parquet"], "measured"),
        (["--strategy", "partitioned", "--measured", "m.txt"], "m.txt txt"),
        (["--scheme", "best"], "scheme best"),
        (["--scheme", "cobas", "--copies", "2"], "copies scheme cobas"),
    ],
)
def test_what_matching_refuses(given: list[str], words: list[str], shown: str, tmp_path: Path) -> None:
    assert shows(refusal("match", *given, "--out", tmp_path / "m", *words), shown)
