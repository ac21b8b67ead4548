"""Parameter sweeps as Spark tasks, with the same result as `Sweep.run`."""

from __future__ import annotations

import uuid
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from narrowcast.lab.sweep import SavedPoints, SetupCache, SweepPoint, describe_point, swept
from narrowcast.spark.spark_errors import plainly

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from pyspark import Broadcast
    from pyspark.sql import SparkSession

    from narrowcast.lab.sweep import Record, Sweep, Swept, Tell

#: Columns that a task returns: the number of a point, and the point with its result.
_FOUND = "number bigint, point binary"
#: Tasks per core, so that a long task does not leave other cores idle.
_SHARE = 2
#: Setups that a worker caches: that of the current points, and one more for points out of order.
_SETUPS = 2


def run_sweep(
    spark: SparkSession, sweep: Sweep, *, done: str | Path | None = None, tell: Tell | None = None
) -> Swept:
    """Run every trial of a sweep in Spark's workers, and return the same as `Sweep.run`.

    Points that share a setup are one task, unless there would be fewer tasks than cores. Each task is a job
    of its own, so that its rows are returned, and saved, as soon as it ends. A task uses one core. Functions
    and fixed values are sent to the workers once.

    Parameters
    ----------
    spark
        The session to run in.
    sweep
        The sweep.
    done
        A folder on the driver in which finished points are saved, as for `Sweep.run`: a sweep that was
        interrupted in one place can be continued in the other.
    tell
        Called after each point with its coordinates in words, the number of points done and of all points.

    Raises
    ------
    JobError
        If a trial raises another exception than a `NarrowcastError`, or Spark fails.
    ParameterError
        If every point fails.

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
    saved = None if done is None else SavedPoints(done, sweep)
    found: dict[int, SweepPoint] = {}
    if saved is not None:
        found = {i: point for i, at in enumerate(points) if (point := saved.get(at)) is not None}
    missing = [i for i in range(len(points)) if i not in found]
    with closing(_finished_points(spark, sweep, missing)) as results:
        for number, point in results:
            found[number] = point
            if saved is not None:
                saved.put(point)
            if tell is not None:
                tell(describe_point(point.at), len(found), len(points))
    return swept([found[i] for i in range(len(points))])


def _finished_points(
    spark: SparkSession, sweep: Sweep, numbers: list[int]
) -> Generator[tuple[int, SweepPoint], None, None]:
    """Yield the number and the result of each point as its task ends."""
    if not numbers:
        return
    from pyspark import cloudpickle

    context = spark.sparkContext
    waiting = pieces(sweep, numbers, _SHARE * context.defaultParallelism)
    tag = f"narrowcast-sweep-{uuid.uuid4().hex}"
    # As bytes, since Spark's own pickling finds functions by their module only.
    shipped = context.broadcast((tag, cloudpickle.dumps(sweep)))  # type: ignore[no-untyped-call]
    running: set[Future[pa.Table]] = set()
    with ThreadPoolExecutor(len(waiting), "narrowcast-sweep") as pool:
        try:
            while waiting or running:
                # Read each time, as a cluster may grow with the number of waiting tasks.
                while waiting and len(running) < _SHARE * context.defaultParallelism:
                    running.add(pool.submit(_job, spark, tag, waiting.pop(0), shipped))
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    with plainly("run a sweep"):
                        numbers, found = map(pa.ChunkedArray.to_pylist, future.result().columns)
                    for number, point in zip(numbers, found, strict=True):
                        yield number, msgspec.msgpack.decode(point, type=SweepPoint)
        finally:
            with suppress(Exception):  # if Spark itself has ended, so have its jobs
                while running:  # repeatedly, as a job may be about to start
                    context.cancelJobsWithTag(tag)
                    running = wait(running, timeout=0.2).not_done
                shipped.destroy()


def pieces(sweep: Sweep, numbers: list[int], least: int) -> list[list[int]]:
    """Return points as tasks: points that share a setup are together, but split if there are too few tasks.

    Parameters
    ----------
    sweep
        The sweep of the points.
    numbers
        Numbers of points, ascending.
    least
        Intended least number of tasks.

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
        together.setdefault(sweep.setup_key(points[number]), []).append(number)
    parts = -(-least // len(together))
    found = []
    for some in together.values():
        size = -(-len(some) // parts)
        found += [some[start : start + size] for start in range(0, len(some), size)]
    return found


def _job(spark: SparkSession, tag: str, numbers: list[int], shipped: Broadcast[Any]) -> pa.Table:
    """Run some points as one task and return their results; runs in a thread of the driver."""
    spark.sparkContext.addJobTag(tag)
    one = spark.range(0, len(numbers), 1, 1)
    return one.mapInArrow(partial(_work, numbers=numbers, shipped=shipped), _FOUND).toArrow()


def _work(
    batches: Iterator[pa.RecordBatch], numbers: list[int], shipped: Broadcast[Any]
) -> Iterator[pa.RecordBatch]:
    """Run the points of a task, in a worker."""
    sweep, points, made = _loaded(*shipped.value)
    for batch in batches:
        for place in batch.column(0).to_pylist():
            number = numbers[place]
            point = msgspec.msgpack.encode(sweep.run_point(points[number], made))
            yield pa.RecordBatch.from_pydict({"number": [number], "point": [point]})


#: The current sweep of this worker, by the run's name; its setups are reused by the following tasks.
_current: dict[str, tuple[Sweep, list[Record], SetupCache]] = {}


def _loaded(tag: str, pickled: bytes) -> tuple[Sweep, list[Record], SetupCache]:
    """Return a sweep with its points and the setups made so far, unpickled once per worker."""
    if tag not in _current:
        from pyspark import cloudpickle

        _current.clear()
        sweep: Sweep = cloudpickle.loads(pickled)
        _current[tag] = sweep, sweep.points(), SetupCache(_SETUPS)
    return _current[tag]
