"""What tests share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

#: Memory for a process that runs tests: itself, its Spark, and another one that a command starts.
ROOM = 6 << 30

# What one process has compiled others need not: those beside it, and the commands and workers they start. It
# has to be said before numba is imported.
TESTS = Path(__file__).parent

os.environ.setdefault("NUMBA_CACHE_DIR", str(TESTS.parent / ".cache" / "numba" / "shared"))

# How long one example takes says more about who else uses the machine than about the code.
settings.register_profile("here", deadline=None)
settings.load_profile("here")


@pytest.hookimpl(optionalhook=True)  # called by xdist only
def pytest_xdist_auto_num_workers() -> int:
    """Return how many processes run tests side by side with `-n auto`: what cores and memory permit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(cores, memory // ROOM))


#: Files that take long begin first, so that no process is left alone with one of them in the end.
LONG = ("tests/cli/", "tests/test_docs", "tests/spark/", "tests/filters/", "tests/matching/")

#: Tests below these folders are the lab's, and so are the examples of these pages.
LAB = ("tests/lab/", "src/narrowcast/lab/", "[docs/overlay.md]", "[docs/clusters.md]", "[docs/reproduce.md]")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--share`, by which a run takes only a part of the files."""
    parser.addoption("--share", metavar="K/N", help="run the K-th of N shares of the test files, such as 2/3")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the lab's tests, keep the share that is asked for, and put the files that take long first."""
    for item in items:
        if any(name in item.nodeid for name in LAB):
            item.add_marker("lab")
    if share := config.getoption("--share"):
        k, n = (int(number) for number in share.split("/"))
        kept = [item for item in items if crc32(item.nodeid.partition("::")[0].encode()) % n == k - 1]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept
    items.sort(key=lambda item: next((i for i, name in enumerate(LONG) if name in item.nodeid), len(LONG)))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Give the one Spark of a process that runs tests: starting it costs seconds."""
    from narrowcast.spark import session

    folder = tmp_path_factory.mktemp("spark")
    conf = {
        # Functions of tests are found by their modules, also by a Spark that was started in another folder.
        "spark.executorEnv.PYTHONPATH": os.pathsep.join((str(TESTS.parent), str(TESTS))),
        # The last two: nothing is collected only to find room for classes, which come to 200 MB.
        "spark.driver.extraJavaOptions": (
            "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms1g -XX:MetaspaceSize=256m"
        ),
        "spark.driver.memory": "2g",
        "spark.local.dir": str(folder / "local"),
        # Tests repeat their queries: what was compiled for them is kept, and not only the last 100.
        "spark.sql.codegen.cache.maxEntries": "2000",
        # With pushdown Spark loses rows for comparisons with NaN and infinity.
        "spark.sql.parquet.filterPushdown": "false",
        "spark.sql.shuffle.partitions": "2",
        # How Spark's own pages would describe a query, which is written for each.
        "spark.sql.ui.explainMode": "simple",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    with session("local[2,4]", conf, "narrowcast-tests") as started:
        yield started
