"""A bar is shown where there is one to show, and costs nothing where there is none."""

from __future__ import annotations

import io
import threading
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from rich.progress import Progress

from narrowcast.cli.options import spark_at
from narrowcast.spark.progress import watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_tasks_are_counted(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("narrowcast.spark.progress._EVERY", 0.02)
    console = Console(file=io.StringIO(), force_terminal=True)
    with Progress(console=console, auto_refresh=False) as progress:
        seen: list[tuple[int, int | None]] = []
        update = progress.update

        def note(task: object, **values: int) -> None:
            seen.append((values["completed"], values["total"]))
            update(task, **values)  # type: ignore[arg-type]

        monkeypatch.setattr(progress, "update", note)
        with watched(spark, progress, "count"):
            sleep = "java_method('java.lang.Thread', 'sleep', 150L)"
            slow = spark.range(0, 4, numPartitions=4).selectExpr(sleep)
            slow.write.format("noop").mode("append").save()
        task = progress.tasks[0]
    assert (task.description, task.finished) == ("count", True)
    assert any(total == 4 for _, total in seen)
    assert all(total is None or done <= total for done, total in seen)  # None while no more tasks are known
    assert seen.pop() == (1, 1)
    assert all(not thread.name.endswith("(_poll)") for thread in threading.enumerate())


def test_a_failure_passes_and_the_watch_ends(spark: SparkSession) -> None:
    with Progress(console=Console(file=io.StringIO(), force_terminal=True)) as progress:
        with pytest.raises(KeyError), watched(spark, progress, "fail"):
            raise KeyError
        assert not progress.tasks[0].finished
    assert all(not thread.name.endswith("(_poll)") for thread in threading.enumerate())


def test_nothing_is_shown_without_a_terminal(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    with spark_at("local[2,4]", None, ui=False) as at:
        assert at.spark is spark
        assert at.progress.disable
        before = threading.active_count()
        with watched(at.spark, at.progress, "count"):
            assert threading.active_count() == before
            at.spark.range(3).count()
    assert capsys.readouterr() == ("", "")
