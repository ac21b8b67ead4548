"""How far Spark is, shown as a bar that Spark's own stages feed."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession
    from rich.progress import Progress, TaskID

#: Seconds between two looks.
_EVERY = 0.2


@contextmanager
def watched(spark: SparkSession, progress: Progress, name: str) -> Iterator[Callable[[str], None]]:
    """Show what runs within a block as one line: its name, and how many tasks are done of those known.

    What is yielded says something behind the name.

    Parameters
    ----------
    spark
        What runs.
    progress
        Where to show it; one that is disabled costs nothing.
    name
        What the line says.
    """
    task = progress.add_task(name, total=None)
    stop = threading.Event()
    looker = threading.Thread(target=_look, args=(spark, progress, task, stop), daemon=True)
    if not progress.disable:
        looker.start()
    try:
        yield lambda text: progress.update(task, description=f"{name}: {text}")
    finally:
        stop.set()
        if looker.is_alive():
            looker.join(timeout=2)
    progress.update(task, total=1, completed=1)


def _look(spark: SparkSession, progress: Progress, task: TaskID, stop: threading.Event) -> None:
    """Add up the tasks of all stages that have been seen, until told to stop."""
    tracker = spark.sparkContext.statusTracker()
    seen: dict[int, tuple[int, int]] = {}
    while not stop.wait(_EVERY):
        for stage in {*seen, *tracker.getActiveStageIds()}:
            info = tracker.getStageInfo(stage)
            if info is not None:
                seen[stage] = (info.numCompletedTasks, info.numTasks)
        if seen:
            done, known = map(sum, zip(*seen.values(), strict=True))
            # Where all known tasks are done there may be more, and work besides: the clock goes on.
            progress.update(task, completed=done, total=known if done < known else None)
