"""Parts as a plan artefact: they read back equal, and what is no such folder is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from narrowcast.errors import PlanError, TableError
from narrowcast.matching.partition import Partitioner, Partitioning, read_partitions, write_partitions
from narrowcast.model.artefact import read_plan
from support.errors import refused
from support.partition import cobas


@pytest.fixture
def made() -> Partitioning:
    subscriptions, sample, _ = cobas(200, 300, 0)
    return Partitioner(parts=8, copies=2, routing="selective").fit(subscriptions, sample)


def test_reads_back_equal(made: Partitioning, tmp_path: Path) -> None:
    told = {
        "method": "selective",
        "params": {"parts": 8},
        "costs": {"copies": 2.0},
        "inputs": {"events": "x"},
    }
    info = write_partitions(made, tmp_path / "p", seed=3, **told)  # type: ignore[arg-type]
    parts, again = read_partitions(tmp_path / "p")
    assert parts == made
    assert again == info
    said = json.loads((tmp_path / "p" / "plan.json").read_text())
    assert (said["format"], said["flow_space"], said["channels"], said["seed"]) == (1, "ranges", 8, 3)
    assert said["params"] == {"parts": 8, "schema": made.schema.to_dict()}
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == ["partitions.parquet", "plan.json"]
    with refused(TableError, tmp_path / "p"):
        write_partitions(made, tmp_path / "p", method="kd")
    with refused(PlanError, tmp_path / "p"):
        read_plan(tmp_path / "p")


def test_what_is_refused(made: Partitioning, tmp_path: Path) -> None:
    with refused(PlanError, tmp_path / "nothing"):
        read_partitions(tmp_path / "nothing")
    write_partitions(made, tmp_path / "p", method="selective")
    path, text = tmp_path / "p" / "plan.json", (tmp_path / "p" / "plan.json").read_text()
    path.write_text(text.replace('"schema"', '"scheme"'))
    with refused(PlanError, "schema"):
        read_partitions(tmp_path / "p")
    path.write_text(text.replace('"channels": 8', '"channels": 9'))
    with refused(PlanError, "9", "partitions.parquet", "8"):
        read_partitions(tmp_path / "p")
    path.write_text(text)
    pq.write_table(made.to_arrow().slice(1), tmp_path / "p" / "partitions.parquet")
    with refused(PlanError, "partitions.parquet"):
        read_partitions(tmp_path / "p")
    (tmp_path / "p" / "partitions.parquet").unlink()
    with refused(PlanError, "partitions.parquet", parameter="flow_space", value="ranges"):
        read_partitions(tmp_path / "p")
