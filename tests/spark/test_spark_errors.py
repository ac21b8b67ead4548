"""What goes wrong inside Spark becomes one line; what goes wrong elsewhere stays what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from narrowcast.errors import FilterError, JobError, TableError
from narrowcast.spark.spark_errors import plainly, told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


class SparkError(Exception):
    """An error that says it is Spark's."""


SparkError.__module__ = "pyspark.errors"

CHAIN = """An error occurred while calling o7.parquet.
: org.apache.spark.SparkException: Job aborted.
\tat org.apache.spark.Some.where(Some.scala:1)
Caused by: java.lang.RuntimeException: wrapped
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""
WORKER = """Job aborted due to stage failure: org.apache.spark.api.python.PythonException: Traceback:
  File "worker.py", line 9, in work
narrowcast.errors.FilterError: cannot read this; mend it
\tat org.apache.spark.Some.where(Some.scala:1)
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            CHAIN,
            "cannot write: IOException: No space left on device; free some space, or set",
        ),
        ("a\nb", "cannot write: a"),
        ("", "cannot write: SparkError"),
        (
            "Python worker:\nTraceback (most recent call last):\n  File 'a.py', line 1\nValueError: odd",
            "cannot write: ValueError: odd",
        ),
        (
            "x\njava.lang.OutOfMemoryError: Java heap space",
            "Java heap space; give Spark more",
        ),
        (
            "x\nCaused by: java.io.IOException: Permission denied",
            "Permission denied; ask for access",
        ),
        ("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)", "see --memory"),
    ],
)
def test_one_line_with_the_cause_and_what_mends_it(text: str, message: str) -> None:
    with pytest.raises(JobError) as error, plainly("write"):
        raise SparkError(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert isinstance(error.value.__cause__, SparkError)


def test_an_error_of_ours_in_a_worker_comes_through() -> None:
    found = told(SparkError(WORKER), "match")
    assert type(found) is FilterError
    assert str(found) == "cannot read this; mend it"
    unknown = told(SparkError(WORKER.replace("FilterError", "OtherError")), "match")
    assert (type(unknown), str(unknown)) == (JobError, "cannot read this; mend it")


def test_what_is_not_sparks_passes() -> None:
    for error in (ValueError("mine"), KeyboardInterrupt(), TableError("ours")):
        with pytest.raises(type(error)) as found, plainly("read"):
            raise error
        assert found.value is error


@pytest.mark.spark
def test_in_a_real_worker(spark: SparkSession) -> None:
    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from narrowcast.errors import FilterError

        for batch in batches:
            raise FilterError(f"a batch of {batch.num_rows}; on purpose")
        yield from ()

    with pytest.raises(FilterError) as error, plainly("match"):
        spark.range(3, numPartitions=1).mapInArrow(fail, "x bigint").collect()
    assert str(error.value) == "a batch of 3; on purpose"
    with pytest.raises(JobError, match=r"^cannot read: .*nowhere") as job, plainly("read"):
        spark.read.parquet("/nowhere/at/all")
    assert "\n" not in str(job.value)


HEADER = """Job aborted.
Caused by: org.apache.spark.SparkIllegalArgumentException: CSV header does not conform to the schema.
 Header: x, event_id
 Schema: event_id, x
Expected: event_id but found: x
CSV file: file:///data/b c.csv
\tat org.apache.spark.Some.where(Some.scala:1)
"""
WIDTH = """[FAILED_READ_FILE.NO_HINT] Encountered error while reading file
Caused by: x: Number of column in CSV header is not equal to number of fields in the schema:
 Header length: 1, schema size: 2
CSV file: file:///data/b.csv
"""
KEYS = """[CONFLICTING_PARTITION_COLUMN_NAMES] Conflicting partition column names detected:

\tPartition column name list #0: day, hour
\tPartition column name list #1: day

For partitioned table directories, data files should only live in leaf directories.
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            HEADER,
            "the header of file:///data/b c.csv is x, event_id, where event_id, x is expected; give all",
        ),
        (WIDTH, "the header of file:///data/b.csv has 1 columns, where 2 are expected; give all files the"),
        (KEYS, "some files are below folders that name day, hour, others below day; put every file below"),
    ],
)
def test_what_takes_spark_several_lines(text: str, said: str) -> None:
    message = str(told(SparkError(text), "read"))
    assert message.startswith(f"cannot read: {said}")
    assert "\n" not in message
    assert "damaged" not in message
