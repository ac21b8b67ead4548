"""What matchers are measured against, frozen: a brute force, DuckDB, Polars and an R-tree, one thread each.

Each is given what it can have before the clock starts: tables loaded, boxes coded, the tree built; the brute
force has even the events coded. Each gives pairs of event and subscription.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
import pyarrow as pa
from benchmarks.workloads import Work
from numpy.typing import NDArray

from narrowcast import Matches

HERE = Path(__file__).parent
#: Boxes that the brute force compares in one go.
LANES = 64

T = TypeVar("T")


@dataclass
class Times:
    """Seconds of some runs: by the clock, and of the processor."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def add(self, work: Callable[[], T]) -> T:
        """Run something once more and return what it returns."""
        wall, cpu = time.perf_counter(), time.process_time()
        found = work()
        self.cpu.append(time.process_time() - cpu)
        self.wall.append(time.perf_counter() - wall)
        return found

    @property
    def median(self) -> float:
        """The middle run by the clock."""
        return statistics.median(self.wall)

    @property
    def spread_pct(self) -> float:
        """How far the slowest and the fastest run are apart."""
        return round(100 * (max(self.wall) - min(self.wall)) / self.median, 1)


def check(found: Matches, expected: Matches, label: str) -> None:
    """Stop when the first events do not match what they should."""
    n = min(found.n_events, expected.n_events)
    first = Matches(found.indptr[: n + 1], found.index[: found.indptr[n]])
    if first != Matches(expected.indptr[: n + 1], expected.index[: expected.indptr[n]]):
        raise RuntimeError(f"{label} does not find what the brute force finds")


def child(module: str, *words: str, **environment: str) -> dict[str, Any]:
    """Run a task of a module in a process of its own, and return what it prints as JSON."""
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(
        command,
        cwd=HERE.parent,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{module} {' '.join(words)} failed: {done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def memory_mb(what: str) -> float:
    """Return the memory of this process: now (VmRSS) or at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) * 1024 / 1e6


@dataclass
class Outcome:
    """What a peer did with the first events of a workload."""

    times: Times
    matches: Matches
    build_s: float


# -------------------------------------------------------------------------------------------- brute force


@numba.njit(nogil=True, boundscheck=False)
def _brute(lo: Any, hi: Any, codes: Any, counts: Any, out: Any) -> int:
    """Compare each event with each block of boxes, attribute by attribute while any lane is alive."""
    ok = np.empty(LANES, np.uint16)
    k = 0
    for e in range(codes.shape[1]):
        before = k
        for b in range(lo.shape[0]):
            x = codes[0, e]
            low, high = lo[b, 0], hi[b, 0]
            for i in range(LANES):
                ok[i] = (low[i] < x) & (x <= high[i])
            alive = True
            for a in range(1, lo.shape[1]):
                x = codes[a, e]
                low, high = lo[b, a], hi[b, a]
                some = np.uint16(0)
                for i in range(LANES):
                    v = np.uint16(ok[i] & ((low[i] < x) & (x <= high[i])))
                    ok[i] = v
                    some |= v
                if some == 0:
                    alive = False
                    break
            if alive:
                for i in range(LANES):
                    if ok[i]:
                        if k < out.size:
                            out[k] = b * LANES + i
                        k += 1
        counts[e] = k - before
    return k


class Brute:
    """Every event against every box, on codes of 16 bits (32 where the ends are too many)."""

    def __init__(self, work: Work, n_events: int) -> None:
        n, d = work.lo.shape
        points = work.points[:n_events]
        lo, hi = np.zeros((d, n), np.uint32), np.zeros((d, n), np.uint32)
        codes = np.empty((d, len(points)), np.uint32)
        most = 0
        for a in range(d):
            ends = np.concatenate([work.lo[:, a], work.hi[:, a]])
            ends = np.unique(ends[np.isfinite(ends)])
            most = max(most, len(ends) + 1)
            low, high = work.lo[:, a], work.hi[:, a]
            lo[a] = np.where(np.isfinite(low), np.searchsorted(ends, low) + 1, 0)
            hi[a] = np.searchsorted(ends, high) + 1
            codes[a] = np.searchsorted(ends, points[:, a]) + 1
        self.dtype = np.uint16 if most < 2**16 else np.uint32
        # Lanes behind the last box hold nothing.
        self._lo = self._blocks(lo, int(np.iinfo(self.dtype).max))
        self._hi = self._blocks(hi, 0)
        self._codes = codes.astype(self.dtype)
        self._counts = np.zeros(len(points), np.int64)
        self._out = np.empty(0, np.int32)
        self._out = np.empty(self.run(), np.int32)

    def _blocks(self, ends: NDArray[np.uint32], fill: int) -> NDArray[Any]:
        d, n = ends.shape
        n_blocks = -(-n // LANES)
        padded = np.full((d, n_blocks * LANES), fill, self.dtype)
        padded[:, :n] = ends
        return np.ascontiguousarray(padded.reshape(d, n_blocks, LANES).transpose(1, 0, 2))

    def run(self) -> int:
        """Match all events and return how many pairs there are."""
        return int(_brute(self._lo, self._hi, self._codes, self._counts, self._out))

    def matches(self) -> Matches:
        """Return what the last run found."""
        return Matches(np.concatenate([[0], np.cumsum(self._counts)]), self._out)


# ------------------------------------------------------------------------------------------------- tables


def tables(work: Work, n_events: int) -> tuple[pa.Table, pa.Table]:
    """Return events and subscriptions for a join; a side without bound has an extreme value."""
    none = np.inf if work.form == "float" else 2.0**62
    n = len(work.lo)
    points = work.points[:n_events].astype(work.dtype)
    events: dict[str, NDArray[Any]] = {"event": np.arange(len(points), dtype=np.int32)}
    subscriptions: dict[str, NDArray[Any]] = {"subscription": np.arange(n, dtype=np.int32)}
    for i, name in enumerate(work.attributes):
        events[name] = np.ascontiguousarray(points[:, i])
        if i == 0 and work.category:
            subscriptions[f"{name}_is"] = work.hi[:, 0].astype(work.dtype)
        else:
            subscriptions[f"{name}_lo"] = np.clip(work.lo[:, i], -none, none).astype(work.dtype)
            subscriptions[f"{name}_hi"] = np.clip(work.hi[:, i], -none, none).astype(work.dtype)
    return pa.table(events), pa.table(subscriptions)


def write_arrow(table: pa.Table, path: Path) -> None:
    """Write a table for another process."""
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table)


def read_arrow(path: Path) -> pa.Table:
    """Read a table that another process wrote."""
    with path.open("rb") as file:
        return pa.ipc.open_file(file.read()).read_all()


def _pairs(found: pa.Table, n_events: int) -> Matches:
    event, subscription = found["event"].to_numpy(), found["subscription"].to_numpy()
    return Matches.from_pairs(event, subscription, n_events)


def duckdb_join(work: Work, n_events: int, runs: int) -> Outcome:
    """Match by a join in DuckDB, the category by equality; the result comes as Arrow."""
    import duckdb

    events, subscriptions = tables(work, n_events)
    build = Times()
    with duckdb.connect(config={"threads": 1}) as base:

        def load() -> None:
            for name, table in (("events", events), ("subscriptions", subscriptions)):
                base.register("given", table)
                base.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
                base.unregister("given")

        build.add(load)
        terms = [
            f"e.{name} = s.{name}_is"
            if i == 0 and work.category
            else f"e.{name} > s.{name}_lo AND e.{name} <= s.{name}_hi"
            for i, name in enumerate(work.attributes)
        ]
        query = "SELECT e.event, s.subscription FROM events e JOIN subscriptions s ON " + " AND ".join(terms)
        times = Times()
        for _ in range(runs):
            found = times.add(lambda: base.sql(query).to_arrow_table())
    return Outcome(times, _pairs(found, n_events), build.median)


def polars_join(work: Work, n_events: int, runs: int) -> Outcome:
    """Match by `join_where` in Polars, in a process of its own: its threads are set before it is imported."""
    with tempfile.TemporaryDirectory() as folder:
        for name, table in zip(("events", "subscriptions"), tables(work, n_events), strict=True):
            write_arrow(table, Path(folder, f"{name}.arrow"))
        times = Times(**child("benchmarks.peers", folder, str(runs), POLARS_MAX_THREADS="1"))
        found = read_arrow(Path(folder, "pairs.arrow"))
    return Outcome(times, _pairs(found, n_events), 0.0)


def _polars(folder: Path, runs: int) -> Times:
    """Join the tables of a folder and leave the pairs there."""
    import polars as pl

    if pl.thread_pool_size() != 1:
        raise RuntimeError(f"Polars has {pl.thread_pool_size()} threads; set POLARS_MAX_THREADS=1")
    events, subscriptions = (
        pl.DataFrame(read_arrow(folder / f"{name}.arrow")) for name in ("events", "subscriptions")
    )
    terms = []
    for name in events.columns[1:]:
        if f"{name}_is" in subscriptions.columns:
            terms.append(pl.col(name) == pl.col(f"{name}_is"))
        else:
            terms += [pl.col(name) > pl.col(f"{name}_lo"), pl.col(name) <= pl.col(f"{name}_hi")]
    join = events.lazy().join_where(subscriptions.lazy(), *terms).select("event", "subscription")
    times = Times()
    for _ in range(runs):
        found = times.add(join.collect)
    write_arrow(found.to_arrow(), folder / "pairs.arrow")
    return times


# ------------------------------------------------------------------------------------------------- R-tree


def rtree_search(work: Work, n_events: int, runs: int) -> Outcome:
    """Match by points in an R-tree over closed boxes, loaded in bulk and asked for many points at once."""
    from rtree.index import Index, Property

    points = work.points[:n_events]
    values = np.concatenate([work.lo.ravel(), work.hi.ravel(), work.points.ravel()])
    values = values[np.isfinite(values)]
    least, most = values.min() - 1, values.max() + 1
    # The least value above an open end makes it a closed one.
    above = work.lo + 1 if work.form == "int" else np.nextafter(work.lo, np.inf)
    lo, hi = np.clip(above, least, most), np.clip(work.hi, least, most)
    build, times = Times(), Times()
    properties = Property(dimension=len(work.attributes))
    tree: Any = build.add(lambda: Index((np.arange(len(lo)), lo, hi), properties=properties))
    for _ in range(runs):
        index, counts = times.add(lambda: tree.intersection_v(points, points))
    event = np.repeat(np.arange(n_events), counts.astype(np.int64))
    return Outcome(times, Matches.from_pairs(event, index, n_events), build.median)


# ------------------------------------------------------------------------------------------------- memory


def bandwidth(n_bytes: int, runs: int = 7) -> dict[str, float]:
    """Return how fast one core reads and writes memory at best, in GB/s."""
    room = np.zeros(max(1, n_bytes // 8), np.int64)
    read, write = Times(), Times()
    for i in range(runs):
        write.add(partial(room.view(np.uint8).fill, i))
        read.add(room.max)
    return {name: round(room.nbytes / min(t.wall) / 1e9, 2) for name, t in (("read", read), ("write", write))}


@numba.njit(nogil=True, cache=True)
def _spin(n: int) -> float:
    """Do arithmetic that needs no memory."""
    total = 0.0
    for i in range(n):
        total += np.sin(i)
    return total


def two_cores(n: int, runs: int = 5) -> float:
    """Return how many times as fast two threads are as one where nothing but the machine holds them back."""
    _spin(1)
    one, two = Times(), Times()
    with ThreadPoolExecutor(2) as pool:
        for _ in range(runs):
            one.add(partial(_spin, n))
            two.add(lambda: list(pool.map(_spin, [n // 2] * 2)))
    return round(one.median / two.median, 2)


PEERS: dict[str, Callable[[Work, int, int], Outcome]] = {
    "duckdb": duckdb_join,
    "polars": polars_join,
    "rtree": rtree_search,
}

if __name__ == "__main__":
    print(json.dumps(vars(_polars(Path(sys.argv[1]), int(sys.argv[2])))))
