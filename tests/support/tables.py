"""Small tables in files, and what came of reading them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from narrowcast.spark.sources.tables import Ingested


def rows(done: Ingested) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in done.rows.collect()), key=repr)


def reasons(done: Ingested) -> list[str]:
    return sorted(row["reason"] for row in done.rejected.collect())


def types(done: Ingested) -> dict[str, str]:
    return dict(done.rows.dtypes)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def lines(path: Path, *objects: Any) -> Path:
    return write(path, "".join((o if isinstance(o, str) else json.dumps(o)) + "\n" for o in objects))


def parquet(path: Path, table: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(table), path)
    return path
