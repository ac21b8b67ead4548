"""What the pipeline's benchmark needs besides Spark: data, a look at its processes, and at its own log.

`Z10` is the workload of cobas2009 with ten attributes: values, middles of intervals, their lengths, and how
many attributes a subscription bounds, all by Zipf's law with exponent 0.95 over 1,000 shuffled cells.
It may not change, as those of `workloads.py` may not.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from benchmarks.workloads import Work
from numpy.typing import NDArray

from narrowcast.spark.stages.compile import pack

Ints = NDArray[np.int64]

CELLS, SKEW, WIDTH = 1000, 0.95, 10
#: Rows of a packed table, and of a row group of events: several for each core.
PACKED, GROUP = 65_536, 65_536


def z10(n: int, n_events: int, seed: int = 0) -> Work:
    """Return the workload; a larger one is another one."""
    rng = np.random.default_rng(seed)
    maps = [rng.permutation(CELLS) for _ in range(WIDTH)]

    def ranks(count: int, among: int) -> Ints:
        weight = np.cumsum(np.arange(1, among + 1) ** -SKEW)
        return np.minimum(np.searchsorted(weight / weight[-1], rng.random(count), side="right"), among - 1)

    def values(place: Ints, count: int) -> NDArray[np.float64]:
        return np.asarray((place[ranks(count, CELLS)] + rng.random(count)) / CELLS)

    points = np.column_stack([values(place, n_events) for place in maps])
    size = ranks(n, WIDTH) + 1
    race = rng.exponential(size=(n, WIDTH)) * np.arange(1, WIDTH + 1) ** SKEW
    bound = np.argsort(np.argsort(race, axis=1), axis=1) < size[:, None]
    lo, hi = np.full((n, WIDTH), -np.inf), np.full((n, WIDTH), np.inf)
    for a, place in enumerate(maps):
        rows = np.flatnonzero(bound[:, a])
        middle = values(place, len(rows))
        share = (ranks(len(rows), CELLS) + rng.random(len(rows))) / CELLS
        half = share * np.minimum(middle, 1 - middle)
        lo[rows, a], hi[rows, a] = middle - half, middle + half
    return Work("Z10", "float", tuple(f"a{i}" for i in range(WIDTH)), lo, hi, points)


def write_events(work: Work, path: Path) -> None:
    """Write the events of a workload so that several tasks can read them."""
    pq.write_table(work.table(), path, row_group_size=GROUP)


def write_packed(work: Work, path: Path) -> None:
    """Write the subscriptions of a workload as the pipeline has them once filters are compiled."""
    whole = work.subscriptions()
    starts = range(0, len(whole), PACKED)
    pieces = [whole.take(np.arange(start, min(start + PACKED, len(whole)))) for start in starts]
    table = pa.table(
        {
            "payload": pa.array([pack(piece) for piece in pieces], pa.binary()),
            "subscriptions": [len(piece) for piece in pieces],
            "boxes": [len(piece.boxes) for piece in pieces],
            "columns": [list(work.attributes)] * len(pieces),
        }
    )
    pq.write_table(table, path, row_group_size=1)


def filters_of(work: Work) -> pa.Array:
    """Return boxes as the filters that a user would write."""
    terms = []
    for i, name in enumerate(work.attributes):
        bound = np.isfinite(work.hi[:, i])
        ends = (np.where(bound, end[:, i], 0).astype(np.int64) for end in (work.lo, work.hi))
        low, high = (pa.array(end).cast(pa.string()) for end in ends)
        text = pc.binary_join_element_wise(f"{name} > ", low, f" AND {name} <= ", high, "")
        terms.append(pc.if_else(pa.array(bound), text, pa.scalar(None, pa.string())))
    return pc.binary_join_element_wise(*terms, " AND ", null_handling="skip")


def wide(work: Work) -> pa.Table:
    """Return the boxes as a join has them: two columns for each attribute, open ends filled."""
    columns: dict[str, Any] = {"subscription_id": np.arange(len(work.lo))}
    for i, name in enumerate(work.attributes):
        for side, ends, open_end in (("lo", work.lo, -(2**40)), ("hi", work.hi, 2**40)):
            values = np.where(np.isfinite(ends[:, i]), ends[:, i], open_end)
            columns[f"{name}_{side}"] = values.astype(work.dtype)
    return pa.table(columns)


class Watch:
    """The most memory that each Python worker below this process ever held, in bytes."""

    def __init__(self) -> None:
        self.peaks: dict[int, int] = {}
        self._stop = threading.Event()

    def _look(self) -> None:
        while not self._stop.wait(0.05):
            for pid in _descendants(os.getpid()):
                try:
                    if b"pyspark.daemon" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                        continue
                    status = Path(f"/proc/{pid}/status").read_text()
                except OSError:  # it has ended
                    continue
                held = next((line for line in status.splitlines() if line.startswith("VmHWM")), "VmHWM: 0")
                self.peaks[pid] = max(self.peaks.get(pid, 0), int(held.split()[1]) << 10)

    @property
    def peak_mb(self) -> float:
        """The worker that held most."""
        return round(max(self.peaks.values(), default=0) / 1e6, 1)


@contextmanager
def watched() -> Iterator[Watch]:
    """Watch the workers for the length of a block."""
    watch = Watch()
    thread = threading.Thread(target=watch._look, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch._stop.set()
        thread.join()


def _descendants(root: int) -> list[int]:
    """Return the processes below a process."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def logged(folder: Path) -> dict[str, int]:
    """Return what Spark's own log says in bytes: spilled to disk and from memory, written by shuffles."""
    sums = {"spilled_disk": 0, "spilled_memory": 0, "shuffled": 0, "peak_execution": 0}
    for path in folder.rglob("*"):
        if not path.is_file() or path.name.startswith("."):
            continue
        for line in path.read_text().splitlines():
            event = json.loads(line)
            metrics = event.get("Task Metrics") if event["Event"] == "SparkListenerTaskEnd" else None
            if metrics:
                sums["spilled_disk"] += metrics["Disk Bytes Spilled"]
                sums["spilled_memory"] += metrics["Memory Bytes Spilled"]
                sums["shuffled"] += metrics["Shuffle Write Metrics"]["Shuffle Bytes Written"]
                sums["peak_execution"] = max(sums["peak_execution"], metrics["Peak Execution Memory"])
    return sums
