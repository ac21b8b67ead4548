"""Events counted by flow: the same rates whether they come at once or bit by bit, in whatever order."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.errors import ParameterError, TableError
from narrowcast.model.interest import Interest
from narrowcast.planning.replanner import observed
from narrowcast.spark.streaming import tally as module
from narrowcast.spark.streaming.subscription_update import REJECTED
from narrowcast.spark.streaming.tally import Span, Tally, _counted, _Sums, shape_of, tally
from support.errors import refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

Log = list[tuple[int, int, int]]  # microseconds, the flow, how many
FLOWS = pa.array(["x", "y"])


def rates_by(log: Log, rate: Sequence[float], half_life: float) -> list[float]:
    """Return the rates after a log, event by event: each has its weight, and so has what was believed."""
    began, until = min(t for t, _, _ in log), max(t for t, _, _ in log)
    found = [each * 2 ** -((until - began) / 1e6 / half_life) for each in rate]
    for moment, flow, n in log:
        if moment > began and flow < len(rate):
            found[flow] += n * math.log(2) / half_life * 2 ** -((until - moment) / 1e6 / half_life)
    return found


def summed(log: Log, before: Span | None, half_life: float, *, cuts: int = 1) -> Tally:
    """Return what a task comes to that is given a log in several parts."""
    sums = _Sums(len(FLOWS), half_life * 1e6, None if before is None else before.began)
    for part in np.array_split(np.array(log, np.int64).reshape(-1, 3), cuts):
        sums.add(part[:, 1], part[:, 0], part[:, 2].astype(float))
    assert sums.low is not None
    span = Span(sums.low, sums.high) if before is None else Span(before.began, max(before.until, sums.high))
    weight = sums.weight[:-1] * 2 ** ((sums.high - span.until) / 1e6 / half_life)
    return Tally(weight, span, 0, 0, REJECTED.empty_table(), 0)


EVENT = st.tuples(st.integers(-(10**8), 10**8), st.integers(0, len(FLOWS)), st.integers(0, 9))


@given(
    st.lists(st.lists(EVENT, min_size=1, max_size=8), min_size=1, max_size=5),
    st.sampled_from([0.5, 7.0, 3 * 86_400.0]),
    st.integers(1, 3),
)
def test_a_log_at_once_or_in_many_parts(batches: list[Log], half_life: float, cuts: int) -> None:
    # The first micro-batch has the first event of all: counting begins there.
    first = min(event for batch in batches for event in batch)
    batches[0].insert(len(batches[0]) // 2, first)
    interest, span = Interest([[1, 1]], [2.0, 0.25], flows=FLOWS), None
    for batch in batches:
        found = summed(batch, span, half_life, cuts=cuts)
        told = found.counts(FLOWS, span, half_life)
        interest = interest if told is None else observed(interest, *told, half_life=half_life)
        span = found.span
    log = [event for batch in batches for event in batch]
    wanted = rates_by(log, [2.0, 0.25], half_life)
    assert interest.rate.tolist() == pytest.approx(wanted, rel=1e-9, abs=1e-11)


def test_what_there_is_nothing_to_tell_of() -> None:
    nothing = REJECTED.empty_table()
    none = np.zeros(2)
    assert Tally(none, None, 0, 0, nothing, 0).counts(FLOWS, None, 60.0) is None
    # One moment is no stretch of time; and where time stands still nothing is learned either.
    assert Tally(none, Span(5, 5), 3, 0, nothing, 0).counts(FLOWS, None, 60.0) is None
    assert Tally(none, Span(5, 9), 3, 3, nothing, 0).counts(FLOWS, Span(5, 9), 60.0) is None
    assert Tally(none[:0], Span(5, 9), 3, 3, nothing, 0).counts(FLOWS[:0], None, 60.0) is None
    # Time that passes without events of any flow that is known tells that there were none.
    told = Tally(none, Span(0, 2_000_000), 3, 3, nothing, 0).counts(FLOWS, None, 60.0)
    assert told is not None
    assert (told[0].to_pydict(), told[1]) == ({"flow": ["x", "y"], "events": [0.0, 0.0]}, 2.0)


def counted(*files: Path | tuple[str, bytes], last: int | None = None) -> tuple[dict[int, Any], list[Any]]:
    """Return what a task says of files: the sums of each flow, and rows that were set aside."""
    rows = [(str(each), None) if isinstance(each, Path) else each for each in files]
    table = pa.table(
        {"path": [row[0] for row in rows], "content": pa.array([row[1] for row in rows], pa.binary())}
    )
    last = time.time_ns() // 1000 if last is None else last
    how: Any = {"shape": shape_of("flow"), "known": FLOWS, "half": 1e6, "began": None, "last": last}
    said = pa.Table.from_batches(list(_counted(iter(table.to_batches()), **how))).to_pylist()
    sums = {row["flow"]: row for row in said if row["flow"] is not None}
    return sums, [(row["reason"], int(row["events"]), row["row"]) for row in said if row["reason"]]


def test_a_task(tmp_path: Path) -> None:
    pq.write_table(pa.table({"time": [3, 9, 8], "flow": ["x", "x", "z"]}), tmp_path / "a.parquet")
    sums, aside = counted(
        tmp_path / "a.parquet", ("s3a://b/c.csv", b'time,flow,events\n8,y,4\n2,y,1\n\n9,"",2\n7,y\n')
    )
    assert {flow: (row["weight"], row["first"], row["events"]) for flow, row in sums.items()} == {
        0: (1.0 + 2.0**-6, 0.0, 2.0),
        1: (2.0, 1.0, 5.0),
        2: (2.5, 0.0, 3.0),  # of a flow that nobody knows; its name may be empty
    }
    assert {(row["low"], row["high"]) for row in sums.values()} == {(2_000_000, 9_000_000)}
    assert aside == [("has 2 fields, where 3 are expected; fix or drop it", 1, "7,y")]


def test_files_with_much_that_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 2)
    monkeypatch.setattr(module, "ROWS", 2)
    pq.write_table(
        pa.table({"time": [1, 2, 3, 4, 5], "flow": [None, "x", None, None, None]}), tmp_path / "a.parquet"
    )
    (tmp_path / "b.csv").write_text("when,flow\n1,x\n")
    (tmp_path / "c.csv").write_text("time,flow\n1,x\n20,x\n")
    sums, aside = counted(*sorted(tmp_path.iterdir()), last=10_000_000)
    lacking = "there is no column 'time'; it has 'when', 'flow'"
    assert [(reason, n) for reason, n, _ in aside] == [
        ("flow is null", 1),
        ("flow is null", 1),
        ("2 more rows of this file cannot be used", 2),
        (f"the file, or the rest of it, is not a table of events: {lacking}", 1),
        ("time is more than a day from now; correct it, or the clock", 1),
    ]
    assert [row.rsplit("/", 1)[-1] for _, n, row in aside if n > 1] == ["a.parquet"]
    assert sums[0]["events"] == 2
    with refused(TableError, "none.csv", "No such file"):
        counted(tmp_path / "none.csv")


def test_columns_that_are_others() -> None:
    with refused(ParameterError, parameter="flow", value="Events"):
        shape_of("Events")


@pytest.mark.spark
def test_many_tasks_and_files_that_are_far(spark: SparkSession, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    log = [
        (int(t) * 1000, int(f), 1)
        for t, f in zip(rng.integers(0, 9000, 60), rng.integers(0, 3, 60), strict=True)
    ]
    names = np.array(["1", "2", "7"])
    paths = []
    for i, part in enumerate(np.array_split(np.array(log), 6)):
        table = pa.table({"time": part[:, 0] / 1e6, "flow": names[part[:, 1]]})
        path = tmp_path / f"{i} of [6].parquet"
        pq.write_table(table, path)
        paths.append(str(path) if i % 2 else f"file:{path}")
    found = tally(spark, paths, pa.array([1, 2]), None, 2.0)
    assert (found.events, found.unknown, found.bad) == (60, sum(f == 2 for _, f, _ in log), 0)
    assert found.span == Span(min(log)[0], max(log)[0])
    told = found.counts(FLOWS, None, 2.0)
    assert told is not None
    rate = observed(Interest([[1, 1]], [1.0, 1.0], flows=FLOWS), *told, half_life=2.0).rate
    assert rate.tolist() == pytest.approx(rates_by(log, [1.0, 1.0], 2.0), rel=1e-12)
    assert tally(spark, [], FLOWS, Span(1, 2), 2.0).span == Span(1, 2)
