"""Sweeps as tasks of Spark's: the points that `Sweep.run` tries one by one, many at a time."""

from __future__ import annotations

import uuid
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from narrowcast.lab.sweep import FinishedTrials, KeptTrials, SweepPoint, swept, words_of
from narrowcast.spark.spark_errors import plainly

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from pyspark import Broadcast
    from pyspark.sql import SparkSession

    from narrowcast.lab.sweep import Record, Sweep, Swept, Tell

#: What a task returns: the number of a point, and the point with what came of it.
_FOUND = "number bigint, point binary"
#: Tasks for each core, so that one that takes long does not leave the other cores idle.
_SHARE = 2
#: Setups that a worker keeps: that of the points it is at, and one more for points that come out of order.
_SETUPS = 2


def run_sweep(
    spark: SparkSession, sweep: Sweep, *, done: str | Path | None = None, tell: Tell | None = None
) -> Swept:
    """Try every point of a sweep in Spark's workers, and return what `Sweep.run` would.

    Points that share a setup go together in a task, unless there are fewer such tasks than cores to do them.
    Each task is a job by itself, so that its rows come here, and are kept, as soon as it ends. A task uses
    one core. Functions and fixed values are sent to the workers once.

    Parameters
    ----------
    spark
        Where it runs.
    sweep
        What is tried.
    done
        A folder on the driver in which points are kept as they are finished, as for `Sweep.run`: a sweep
        that was begun in either place can be gone on with in the other.
    tell
        Told after each point which it was, how many are done and how many there are.

    Raises
    ------
    JobError
        When a trial raises what is no error of Narrowcast's, or Spark fails.
    ParameterError
        When every point fails.

    Examples
    --------
    >>> from narrowcast.spark import session
    >>> from narrowcast.lab.sweep import Sweep
    >>> def squared(*, x, seed):
    ...     return {"y": x * x + seed}
    >>> with session("local[1]") as spark:
    ...     run_sweep(spark, Sweep(squared, {"x": [2, 3]}, seeds=[0, 1])).rows[-1]
    {'seed': 1, 'x': 3, 'y': 10}
    """
    points = sweep.points()
    kept = None if done is None else KeptTrials(done, sweep)
    found: dict[int, SweepPoint] = {}
    if kept is not None:
        found = {i: point for i, at in enumerate(points) if (point := kept.get(at)) is not None}
    missing = [i for i in range(len(points)) if i not in found]
    with closing(_tried(spark, sweep, missing)) as tried:
        for number, point in tried:
            found[number] = point
            if kept is not None:
                kept.put(point)
            if tell is not None:
                tell(words_of(point.at), len(found), len(points))
    return swept([found[i] for i in range(len(points))])


def _tried(
    spark: SparkSession, sweep: Sweep, numbers: list[int]
) -> Generator[tuple[int, SweepPoint], None, None]:
    """Yield points as they come out."""
    if not numbers:
        return
    from pyspark import cloudpickle

    context = spark.sparkContext
    waiting = pieces(sweep, numbers, _SHARE * context.defaultParallelism)
    tag = f"narrowcast-sweep-{uuid.uuid4().hex}"
    # As bytes: Spark's own way of sending objects finds functions by their module only.
    shipped = context.broadcast((tag, cloudpickle.dumps(sweep)))  # type: ignore[no-untyped-call]
    running: set[Future[pa.Table]] = set()
    with ThreadPoolExecutor(len(waiting), "narrowcast-sweep") as pool:
        try:
            while waiting or running:
                # Asked for each time: a cluster may grow with what waits.
                while waiting and len(running) < _SHARE * context.defaultParallelism:
                    running.add(pool.submit(_job, spark, tag, waiting.pop(0), shipped))
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    with plainly("run a sweep"):
                        numbers, found = map(pa.ChunkedArray.to_pylist, future.result().columns)
                    for number, point in zip(numbers, found, strict=True):
                        yield number, msgspec.msgpack.decode(point, type=SweepPoint)
        finally:
            with suppress(Exception):  # when Spark itself has gone, nothing is left to end
                while running:  # again and again: a job may be about to start
                    context.cancelJobsWithTag(tag)
                    running = wait(running, timeout=0.2).not_done
                shipped.destroy()


def pieces(sweep: Sweep, numbers: list[int], least: int) -> list[list[int]]:
    """Return points as tasks: those that share a setup together, and these in parts where tasks are few.

    Parameters
    ----------
    sweep
        Whose points.
    numbers
        Which of them, ascending.
    least
        How many tasks there should be.

    Examples
    --------
    >>> from narrowcast.lab.sweep import Sweep
    >>> sweep = Sweep(print, {"x": [1, 2, 3, 4]}, seeds=[0, 1])
    >>> pieces(sweep, [0, 1, 2, 3, 5, 6, 7], 2)
    [[0, 1, 2, 3], [5, 6, 7]]
    >>> pieces(sweep, [0, 1, 2, 3, 5, 6, 7], 4)
    [[0, 1], [2, 3], [5, 6], [7]]
    """
    points = sweep.points()
    together: dict[Any, list[int]] = {}
    for number in numbers:
        together.setdefault(sweep.shared(points[number]), []).append(number)
    parts = -(-least // len(together))
    found = []
    for some in together.values():
        size = -(-len(some) // parts)
        found += [some[start : start + size] for start in range(0, len(some), size)]
    return found


def _job(spark: SparkSession, tag: str, numbers: list[int], shipped: Broadcast[Any]) -> pa.Table:
    """Try some points as one task, and return what came of them; runs in a thread of the driver."""
    spark.sparkContext.addJobTag(tag)
    one = spark.range(0, len(numbers), 1, 1)
    return one.mapInArrow(partial(_work, numbers=numbers, shipped=shipped), _FOUND).toArrow()


def _work(
    batches: Iterator[pa.RecordBatch], numbers: list[int], shipped: Broadcast[Any]
) -> Iterator[pa.RecordBatch]:
    """Try the points of a task: what runs in a worker."""
    sweep, points, made = _loaded(*shipped.value)
    for batch in batches:
        for place in batch.column(0).to_pylist():
            number = numbers[place]
            point = msgspec.msgpack.encode(sweep.tried(points[number], made))
            yield pa.RecordBatch.from_pydict({"number": [number], "point": [point]})


#: The sweep that this worker is at, by the run's name: what was set up serves the tasks that come next.
_at_work: dict[str, tuple[Sweep, list[Record], FinishedTrials]] = {}


def _loaded(tag: str, pickled: bytes) -> tuple[Sweep, list[Record], FinishedTrials]:
    """Return a sweep as it was sent, with its points and what has been set up for them."""
    if tag not in _at_work:
        from pyspark import cloudpickle

        _at_work.clear()
        sweep: Sweep = cloudpickle.loads(pickled)
        _at_work[tag] = sweep, sweep.points(), FinishedTrials(_SETUPS)
    return _at_work[tag]
