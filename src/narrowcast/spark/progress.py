"""A progress bar of Spark jobs, updated from Spark's own count of finished tasks."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession
    from rich.progress import Progress, TaskID

#: Seconds between two updates.
_EVERY = 0.2


@contextmanager
def watched(spark: SparkSession, progress: Progress, name: str) -> Iterator[Callable[[str], None]]:
    """Show the Spark jobs of a block as one line of progress: a name, and finished of known tasks.

    Yields a function that sets a text to show after the name.

    Parameters
    ----------
    spark
        The session whose jobs are shown.
    progress
        The display; a disabled one costs nothing.
    name
        The name on the line.
    """
    task = progress.add_task(name, total=None)
    stop = threading.Event()
    poller = threading.Thread(target=_poll, args=(spark, progress, task, stop), daemon=True)
    if not progress.disable:
        poller.start()
    try:
        yield lambda text: progress.update(task, description=f"{name}: {text}")
    finally:
        stop.set()
        if poller.is_alive():
            poller.join(timeout=2)
    progress.update(task, total=1, completed=1)


def _poll(spark: SparkSession, progress: Progress, task: TaskID, stop: threading.Event) -> None:
    """Show the sum of tasks over all stages seen so far, until `stop` is set."""
    tracker = spark.sparkContext.statusTracker()
    seen: dict[int, tuple[int, int]] = {}
    while not stop.wait(_EVERY):
        for stage in {*seen, *tracker.getActiveStageIds()}:
            info = tracker.getStageInfo(stage)
            if info is not None:
                seen[stage] = (info.numCompletedTasks, info.numTasks)
        if seen:
            done, known = map(sum, zip(*seen.values(), strict=True))
            # When all known tasks are finished, more may follow: the bar shows no total until then.
            progress.update(task, completed=done, total=known if done < known else None)
