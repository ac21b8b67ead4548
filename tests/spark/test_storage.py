"""Tables are whole at their place or not there, whatever the place is called."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from narrowcast.errors import NarrowcastError, TableError
from narrowcast.spark.storage import (
    exists,
    fetched,
    listed,
    place_of,
    read_back,
    read_bytes,
    size_of,
    write_bytes,
    write_table,
)
from support.errors import refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    "uri", ["s3a://b/x", "hdfs:///x", "file:/x y", "file:///x", "dbfs:/x", "abfss://c@a/x"]
)
def test_a_uri_stays_as_it_is(uri: str) -> None:
    assert place_of(uri) == uri


def test_a_path_starts_at_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert place_of("a b/../c") == place_of(Path("c")) == str(tmp_path / "c")
    assert place_of("~/x") == str(tmp_path / "home" / "x")
    assert place_of("12:30/x") == str(tmp_path / "12:30" / "x")


@pytest.mark.spark
@pytest.mark.parametrize("name", ["t.parquet", "a b", "t [1] {x,y}*?", "é=1", "10% #"])
def test_written_and_read_back(spark: SparkSession, tmp_path: Path, name: str) -> None:
    path = tmp_path / "deep" / name
    frame = spark.range(5)
    write_table(frame, path, doing="write it", options={"compression": "none"})
    assert sorted(row.id for row in read_back(spark, path).collect()) == [0, 1, 2, 3, 4]
    assert [each.name for each in path.parent.iterdir()] == [name]
    assert exists(spark, path)
    data = [file for file in path.iterdir() if file.suffix == ".parquet"]
    assert data
    sizes = (file.stat().st_size for file in path.iterdir() if file.suffix != ".crc")
    assert size_of(spark, path) == sum(sizes) > 0
    with refused(TableError, path, parameter="path", value=str(path)):
        write_table(frame, path, doing="write it")


@pytest.mark.spark
def test_a_place_where_nothing_can_be_made(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refused(NarrowcastError, "cannot write"):
        write_table(spark.range(5), tmp_path / "file" / "t", doing="write it")


@pytest.mark.spark
def test_a_failure_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    bad = spark.range(5).selectExpr("raise_error('on purpose') AS x")
    with refused(NarrowcastError, "cannot write it", "on purpose"):
        write_table(bad, tmp_path / "t", doing="write it")
    assert list(tmp_path.iterdir()) == []
    assert not exists(spark, tmp_path / "t")
    assert size_of(spark, tmp_path / "t") == 0


@pytest.mark.spark
def test_a_file_system_that_is_none(spark: SparkSession) -> None:
    with refused(NarrowcastError, "s4://bucket/x"):
        exists(spark, "s4://bucket/x")


@pytest.mark.spark
@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_small_files_are_replaced_whole(spark: SparkSession, tmp_path: Path, scheme: str) -> None:
    path = f"{scheme}{tmp_path}/deep/about.json"
    assert read_bytes(spark, path) is None
    for content in (b"one", b"", b"\x00\xff" * 999):
        write_bytes(spark, path, content)
        assert read_bytes(spark, path) == content
    kept = [each.name for each in (tmp_path / "deep").iterdir() if not each.name.endswith(".crc")]
    assert kept == ["about.json"]


@pytest.mark.spark
@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_files_that_are_there(spark: SparkSession, tmp_path: Path, scheme: str) -> None:
    top = tmp_path / "_top" / "t"
    assert listed(spark, f"{scheme}{top}") == {}
    for name in ("a.csv", "deep/b c.csv", "_x/c.csv", ".d.csv", "deep/.e/f.csv"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(name)
    found = listed(spark, f"{scheme}{top}")
    assert {Path(name).name: each.size for name, each in found.items()} == {"a.csv": 5, "b c.csv": 12}
    assert all(each.written > 1e12 for each in found.values())
    for name in found:
        with fetched(spark, name) as local:
            assert Path(local).read_text() == name.removeprefix(f"{scheme}").rpartition("/t/")[2]
    assert [each.size for each in listed(spark, f"{scheme}{top}/a.csv").values()] == [5]
