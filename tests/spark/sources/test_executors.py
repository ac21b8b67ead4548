"""A table is the same read in this process and on Spark, in whatever partitions."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from narrowcast.model.schema import Schema
from narrowcast.spark.sources.tables import ingest
from narrowcast.tables import sources
from narrowcast.tables.reader import read
from narrowcast.tables.values import normal_type
from support.tables import parquet, write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

#: One in the default run.
SEEDS = [2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 1))]
SCHEMA = Schema.of(
    {"n": "int", "d": "decimal(6,2)", "day": "date", "side.k": "smallint", "side.more": "string"}
)


def rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def same(spark: SparkSession, table: str, path: Path, schema: Schema | None = None) -> None:
    """Check that both executors give the same good and bad rows, in batches of any size."""
    there = ingest(spark, table, path, schema=schema)
    good, bad = there.rows.toArrow(), there.rejected.toArrow()
    for size in (3, sources.ROWS):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sources, "ROWS", size)
            here = read(table, path, schema=schema)
        assert here.rows.schema.names == good.schema.names
        assert list(map(normal_type, here.rows.schema.types)) == list(map(normal_type, good.schema.types))
        assert rows(here.rows) == rows(good)
        assert rows(here.rejected) == rows(bad)
        assert here.rejected.num_rows
        assert here.rows.num_rows


def odd_cells(rng: random.Random) -> dict[str, Any]:
    """Return the cells of a row, some of which do not fit."""
    return {
        "event_id": rng.choice([1, 2, 3, 4.0, 5.5, "6", "x7", 2**63, 10, 11, 12, 13, 14, 15, 16, 17]),
        "n": rng.choice([1, "2", 2.5, 1e10, None, 7, 8]),
        "d": rng.choice([1.25, "1.255", 3, None, "1e2"]),
        "day": rng.choice(["2024-01-31", "2024-02-31", "2024-01-01T23:30:00-05:00", None]),
        "free": rng.choice([1, 2.5, "a", None, True]),
    }


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("schema", [None, SCHEMA], ids=["", "schema"])
def test_json(spark: SparkSession, tmp_path: Path, schema: Schema | None, seed: int) -> None:
    rng = random.Random(seed)
    for name in ("a", "b"):
        lines = []
        for _ in range(12):
            row = (
                odd_cells(rng)
                if schema
                else {"event_id": rng.randint(1, 20), "p": rng.choice([1, 2.5, None])}
            )
            side: dict[str, Any] | None = rng.choice(
                [None, {"k": 1}, {"k": "x", "more": 1.5}, {"k": 70000}, {"K": 1, "more": {"a": [1]}}]
            )
            if name == "a" and schema:
                side = rng.choice([None, {"k": "1"}, {"k": 2.0, "more": "m"}])
            extra = {"side": side} if schema and side != {"K": 1, "more": {"a": [1]}} else {}
            lines.append(json.dumps(row | extra))
        lines += [
            "not json",
            "",
            '{"event_id": 40, "n": 1, "n": 2}',
            '{"event_id": 41, "s": "\\ud800"}',
            "[1]",
        ]
        write(tmp_path / f"{name}.jsonl", "\n".join(lines) + "\n")
    same(spark, "events", tmp_path, schema)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("odd", [False, True], ids=["plain", "odd"])
def test_csv(spark: SparkSession, tmp_path: Path, odd: bool, seed: int) -> None:
    rng = random.Random(seed)
    schema = None if seed == 1 else Schema.of({"n": "int", "d": "decimal(6,2)", "day": "date"})
    for name in ("a", "b"):
        lines = ["event_id,n,d,day,free,label"]
        for i in range(12):
            cells = ["" if value is None else str(value) for value in odd_cells(rng).values()]
            lines.append(",".join([*cells, rng.choice(["x", '"say ""hi"", you"', "", '""', "007"])]))
            lines += ["1,2", "1,2,3,4,5,6,7", ""] if i == 5 else []
        if odd:
            lines += ['2,1,,,"d"x,y', '3,1,,,5","z" ', '9,1,,,"two\nlines",z']
            lines += ['21,1,,,"never closed', "22,1,,,a,b"]
        text = ("\r\n" if seed == 2 else "\n").join(lines) + "\n"
        write(tmp_path / f"{name}.csv", text)
        if odd:
            (tmp_path / f"{name}.csv").write_bytes(text.encode().replace(b"007", b"\xe9"))
    same(spark, "events", tmp_path, schema)


@pytest.mark.parametrize("kind", ["string", "typed"])
def test_parquet(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    rng = random.Random(7)
    for name in ("a", "b"):
        cells = [odd_cells(rng) for _ in range(20)]
        if kind == "string":
            table: dict[str, Any] = {
                key: [None if c[key] is None else str(c[key]) for c in cells] for key in cells[0]
            }
        else:
            floats = [[None, 1.0, 2.5, -3.0][rng.randrange(4)] for _ in cells]
            table = {
                "event_id": pa.array([None if i == 3 else rng.randrange(30) for i in range(20)], pa.int32()),
                "n": pa.array(floats),
                "d": pa.array([None if x is None else x * 1.01 for x in floats]),
                "day": pa.array([i * 86_400_000_000 - 5 for i in range(20)], pa.timestamp("us", "UTC")),
                "side": [{"k": i * 5000, "more": i} for i in range(20)],
                "tags": [["a", None, "é\n"]] * 20,
                "bytes": [b"\x00\xff"] * 20,
                "map": pa.array([[("a", 1.5)]] * 20, pa.map_(pa.string(), pa.float64())),
                "clock": pa.array(range(20), pa.timestamp("us")),
            }
        parquet(tmp_path / f"{name}.parquet", table)
    fields = {"n": "int", "d": "decimal(6,2)", "day": "date"} | (
        {"side.k": "smallint"} if kind == "typed" else {}
    )
    same(spark, "events", tmp_path, Schema.of(fields))
    same(spark, "events", tmp_path) if kind == "typed" else None


TABLES = {
    "rates": "flow,rate,time\na,1,\na,2,2024-01-01\na,3,2024-01-01\nb,-1,\nc,NaN,\nd,inf,\n"
    "e,x,\nf,,\ng,0,noon\nh,1e3,\n",
    "changes": "time,subscriber,flow,action\n2024-01-01T00:00:00Z,1,2,subscribe\n"
    "2024-01-01,1,2,Leave\n,1,2,unsubscribe\n",
    "topology": "a,b,cost\n1,3,1\n2,2,1\n1,2,-0.5\n1,2,\n",
    "locations": "subscriber,publisher,node\ns,,1\nt,,\n,,1\ns,,2\n,p,3\nu,u,3\n",
    "publishers": "event_id,node\n1,n\n1,m\nx,n\n",
    "subscriptions": 'subscription_id,subscriber,filter\n1,ann,"x > 1, y"\n1,bob,x\n2,,x\n2.0,a,\n3,c,z\n',
    "interests": "flow,subscriber,day\n1,a,2024-01-01\n2,7,2024-01-02\n,b,\n",
}


#: Formats, with one in the default run.
KINDS = ["csv", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("json", "parquet"))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TABLES)
def test_every_table(spark: SparkSession, tmp_path: Path, name: str, kind: str) -> None:
    import pyarrow.csv as pv

    path = write(tmp_path / "t" / "day_=5" / f"{name}.csv", TABLES[name])
    if kind != "csv":
        if kind == "parquet" and name in ("rates", "subscriptions"):
            kinds: Any = pv.ConvertOptions(
                null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
            )
        else:
            kinds = pv.ConvertOptions(null_values=[""], strings_can_be_null=True, timestamp_parsers=["none"])
        table = pv.read_csv(path, convert_options=kinds)
        path.unlink()
        if kind == "parquet":
            parquet(path.with_suffix(".parquet"), table)
        else:
            write(
                path.with_suffix(".json"),
                "".join(json.dumps(row, default=str) + "\n" for row in table.to_pylist()),
            )
    same(spark, name, tmp_path / "t")


def test_any_partitions(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(1)
    cells = [odd_cells(rng) for _ in range(40)]
    path = write(tmp_path / "e.jsonl", "".join(json.dumps(row) + "\n" for row in cells))
    here = read("events", path, schema=Schema.of({"n": "int", "d": "decimal(6,2)", "day": "date"}))
    for n in (1, 3, 7):
        folder = tmp_path / f"n{n}"
        spark.read.text(str(path)).repartition(n).write.text(str(folder))
        for part in folder.glob("*.txt"):
            part.rename(part.with_suffix(".jsonl"))
        done = ingest(
            spark, "events", folder, schema=Schema.of({"n": "int", "d": "decimal(6,2)", "day": "date"})
        )
        assert rows(here.rows) == rows(done.rows.toArrow())
        assert rows(here.rejected) == rows(done.rejected.toArrow())
