"""Events reach workers whole and once, whether Spark reads their files or the workers do."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.errors import TableError
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.event_scan import FileRange, over_events, read_piece, shared
from narrowcast.spark.storage import read_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

GIVES = "event_id bigint, a bigint, text string"
PLAIN = {
    "event_id": pa.array(range(1000), pa.int64()),
    "a": pa.array([None if i % 7 == 0 else i * i for i in range(1000)], pa.int64()),
    "text": pa.array([f"<{i}>" for i in range(1000)]),
    "unused": pa.array([0.5] * 1000),
}


def as_they_are(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.select(["event_id", "a", "text"])


def rows(events: DataFrame) -> tuple[list[Any], bool]:
    """Return the events that workers get, in order, and whether they read them from files themselves."""
    frame = over_events(events, ["A", "text"], as_they_are, GIVES)
    straight = "Range (0" in frame._jdf.queryExecution().toString()
    return sorted(tuple(row) for row in frame.collect()), straight


def expected(table: pa.Table) -> list[Any]:
    return sorted(tuple(row.values()) for row in table.select(["event_id", "a", "text"]).to_pylist())


@given(
    st.dictionaries(st.text("ab", max_size=3), st.integers(0, 50 << 20), max_size=6),
    st.integers(1, 20),
    st.integers(1, 1 << 27),
)
def test_every_byte_is_in_one_share(sizes: dict[str, int], cores: int, largest: int) -> None:
    found = shared(sizes, cores, max(largest, 1 << 16))
    reached = dict.fromkeys(sizes, 0)
    for piece in (piece for share in found for piece in share):
        assert piece.start == reached[piece.path] < piece.stop
        reached[piece.path] = piece.stop
    assert reached == sizes
    held = [sum(piece.stop - piece.start for piece in share) for share in found]
    assert max(held, default=0) <= max(largest, 1 << 16)
    assert len(set(held[:-1])) <= 1
    if sum(sizes.values()) > cores << 20:
        assert len(found) >= cores
    if largest > 100 << 20:
        assert len(found) <= 4 * cores + 1


@given(data=st.data())
def test_every_row_is_in_one_piece(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    n = data.draw(st.integers(0, 60))
    path = tmp_path_factory.mktemp("piece") / "t.parquet"
    table = pa.table({"event_id": pa.array(range(n), pa.int64()), "a": pa.array(["x" * i for i in range(n)])})
    pq.write_table(table, path, row_group_size=data.draw(st.integers(1, 20)))
    size = path.stat().st_size
    ends = [0, *sorted(data.draw(st.sets(st.integers(1, size - 1), max_size=5))), size]
    types = {"event_id": pa.int64(), "a": pa.string()}
    pieces = [FileRange(str(path), start, stop) for start, stop in pairwise(ends)]
    found = [batch for piece in pieces for batch in read_piece(piece, types)]
    assert pa.Table.from_batches(found, table.schema) == table


@pytest.mark.spark
class TestRoutes:
    """Which way events take, and that it makes no difference."""

    @pytest.mark.parametrize("name", ["e.parquet", "a b%20c#d?é.parquet", "{x}[0-9]*.parquet"])
    def test_files_are_read_by_the_workers(self, spark: SparkSession, tmp_path: Path, name: str) -> None:
        table = pa.table(PLAIN)
        (tmp_path / name).mkdir()
        for i in range(3):
            part = table.slice(i * 300, 300 if i < 2 else None)
            pq.write_table(part, tmp_path / name / f"part {i}.parquet", row_group_size=37)
        assert rows(read_back(spark, tmp_path / name)) == (expected(table), True)

    @pytest.mark.parametrize(
        "change",
        [
            lambda frame: frame.where("event_id >= 0"),
            lambda frame: frame.repartition(3),
            lambda frame: frame.union(frame.limit(0)),
            lambda frame: frame.persist(),
            lambda frame: frame.withColumn("a", frame["a"] + 0),
        ],
        ids=["where", "repartition", "union", "persist", "column"],
    )
    def test_what_is_no_longer_a_file_goes_through_spark(
        self, spark: SparkSession, tmp_path: Path, change: Callable[[DataFrame], DataFrame]
    ) -> None:
        table = pa.table(PLAIN)
        pq.write_table(table, tmp_path / "e.parquet")
        frame = change(read_back(spark, tmp_path / "e.parquet"))
        assert rows(frame) == (expected(table), False)
        frame.unpersist()

    def test_other_formats_options_and_settings_go_through_spark(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        table = pa.table(PLAIN)
        path = str(tmp_path / "e.parquet")
        pq.write_table(table, path)
        merged = spark.read.option("mergeSchema", "true").parquet(path)
        assert rows(merged) == (expected(table), False)
        merged.write.json(str(tmp_path / "e.json"))
        assert rows(spark.read.json(str(tmp_path / "e.json"))) == (expected(table), False)
        spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
        try:
            assert rows(spark.read.parquet(path)) == (expected(table), False)
        finally:
            spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
        merged.write.partitionBy("unused").parquet(str(tmp_path / "parted"))
        assert rows(spark.read.parquet(str(tmp_path / "parted"))) == (expected(table), False)

    def test_times_go_through_spark(self, spark: SparkSession, tmp_path: Path) -> None:
        times = pc.cast(pa.array(range(1000)), pa.timestamp("us"))
        table = pa.table({**PLAIN, "text": times})
        pq.write_table(table, tmp_path / "e.parquet")
        frame = over_events(spark.read.parquet(str(tmp_path / "e.parquet")), ["a", "text"], widened, GIVES)
        assert "Range (0" not in frame._jdf.queryExecution().toString()
        words = table["text"].cast(pa.timestamp("us")).cast(pa.string())
        assert sorted(tuple(row) for row in frame.collect()) == expected(table.set_column(2, "text", words))

    def test_a_time_that_nobody_looks_at_is_left_where_it_is(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        table = pa.table({**PLAIN, "unused": pc.cast(pa.array(range(1000)), pa.timestamp("us"))})
        pq.write_table(table, tmp_path / "e.parquet")
        assert rows(spark.read.parquet(str(tmp_path / "e.parquet"))) == (expected(table), True)

    @pytest.mark.parametrize(
        "kind", [pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32(), pa.duration("us")]
    )
    def test_types_are_read_as_spark_reads_them(
        self, spark: SparkSession, tmp_path: Path, kind: pa.DataType
    ) -> None:
        values = pa.array([None, *range(99)] * 10, pa.int64())
        words = pa.array([f"{i % 5}" for i in range(1000)]).dictionary_encode()
        table = pa.table({**PLAIN, "a": values, "text": words})
        pq.write_table(table.set_column(1, "a", values.cast(kind)), tmp_path / "e.parquet")
        frame = spark.read.parquet(str(tmp_path / "e.parquet"))
        found = over_events(frame, ["a", "text"], widened, GIVES)
        assert "Range (0" in found._jdf.queryExecution().toString()
        assert sorted(tuple(row) for row in found.collect()) == expected(table)

    def test_a_file_that_lacks_a_column_or_has_a_narrower_one(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        table = pa.table(PLAIN).slice(1, 99)
        folder = tmp_path / "e"
        folder.mkdir()
        pq.write_table(table, folder / "a.parquet")
        less = pa.table({"TEXT": ["x"], "a": pa.array([5], pa.int32()), "event_id": pa.array([2000])})
        pq.write_table(less, folder / "b.parquet")
        pq.write_table(pa.table({"event_id": [3000]}), folder / "c.parquet")
        frame = spark.read.schema("event_id bigint, a bigint, text string").parquet(str(folder))
        found, straight = rows(frame)
        assert straight
        assert found == [*expected(table), (2000, 5, "x"), (3000, None, None)]
        assert found == sorted(tuple(row) for row in frame.collect())

    def test_nothing(self, spark: SparkSession, tmp_path: Path) -> None:
        pq.write_table(pa.table(PLAIN).slice(0, 0), tmp_path / "e.parquet")
        assert rows(spark.read.parquet(str(tmp_path / "e.parquet")))[0] == []

    @pytest.mark.slow
    def test_a_damaged_file_is_named(self, spark: SparkSession, tmp_path: Path) -> None:
        pq.write_table(pa.table(PLAIN), tmp_path / "e.parquet")
        found = over_events(
            spark.read.parquet(str(tmp_path / "e.parquet")), ["a", "text"], as_they_are, GIVES
        )
        (tmp_path / "e.parquet").write_bytes(b"PAR1 and nothing more PAR1")
        with pytest.raises(TableError, match=r"cannot read .*e\.parquet: .*; write it again"), plainly("see"):
            found.collect()


def widened(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in as_they_are(batches):
        yield batch.cast(pa.schema([("event_id", pa.int64()), ("a", pa.int64()), ("text", pa.string())]))
