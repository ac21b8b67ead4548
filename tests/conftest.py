"""What tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from narrowcast.pipeline import session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Give the one Spark of a test run: starting it costs seconds."""
    folder = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.local.dir": str(folder / "local"),
        # With pushdown Spark loses rows for comparisons with NaN and infinity.
        "spark.sql.parquet.filterPushdown": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    with session("local[2,4]", conf, "narrowcast-tests") as started:
        yield started
