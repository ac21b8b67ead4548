"""The state of a stream is that of one computation over all its events, however they were cut in batches."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from narrowcast import Schema
from narrowcast.errors import JobError, ParameterError, TableError
from narrowcast.model.cells import CellGrid
from narrowcast.spark.stages.interest_collection import to_interest
from narrowcast.spark.streaming import interest_state as module
from narrowcast.spark.streaming.interest_state import LIMIT, InterestState
from support.errors import refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from narrowcast.spark.stages.interest import InterestFrames

pytestmark = pytest.mark.spark

START = datetime(2024, 2, 29, 23, 59, 58, 123457, UTC)
HALF = 10.0


class Event(NamedTuple):
    """An event: its flow, the seconds from the start, and who wants it."""

    flow: str | None
    seconds: float
    people: tuple[str, ...] = ()


def table(spark: SparkSession, events: list[Event]) -> DataFrame:
    columns = {
        "flow": pa.array([event.flow for event in events], pa.string()),
        "subscribers": pa.array([list(event.people) for event in events], pa.list_(pa.string())),
        "time": pa.array(
            [START + timedelta(seconds=event.seconds) for event in events], pa.timestamp("us", "UTC")
        ),
    }
    return spark.createDataFrame(pa.table(columns))


def rates(frames: InterestFrames) -> dict[Any, float]:
    found = frames.rates.collect()
    assert len({row.flow for row in found}) == len(found)
    return {row.flow: row.rate for row in found}


def pairs(frames: InterestFrames) -> list[tuple[str, Any]]:
    return sorted((row.subscriber, row.flow) for row in frames.interests.collect())


def reference(events: list[Event], half: float = HALF) -> tuple[dict[str, float], list[tuple[str, str]]]:
    """Rates at the last event and interests, in plain Python."""
    counted = [event for event in events if event.flow is not None]
    last = max((event.seconds for event in counted), default=0.0)
    weights: dict[str, float] = defaultdict(float)
    wanted: dict[tuple[str, str], float] = defaultdict(float)
    for flow, seconds, people in counted:
        assert flow is not None
        weight = 2.0 ** ((seconds - last) / half)
        weights[flow] += weight
        for who in people:
            wanted[who, flow] += weight
    each = {flow: weight * math.log(2) / half for flow, weight in weights.items() if weight >= LIMIT}
    return each, sorted(pair for pair, weight in wanted.items() if weight >= LIMIT)


EVENTS = st.builds(
    Event,
    st.sampled_from(["a", "b", "b/c", "", None]),
    st.integers(0, 12 * 64).map(lambda n: n / 64 * HALF),  # nothing of it is forgotten
    st.lists(st.sampled_from(["ann", "bob", "eve", "7"]), unique=True).map(tuple),
)


@pytest.mark.slow
@settings(
    max_examples=12,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    batches=st.lists(st.tuples(st.lists(EVENTS, max_size=6), st.integers(1, 3), st.booleans()), max_size=6),
    every=st.integers(1, 4),
    background=st.booleans(),
)
def test_any_batches(
    spark: SparkSession, batches: list[tuple[list[Event], int, bool]], every: int, *, background: bool
) -> None:
    """Numbers rise with gaps, the last batch comes again, and the process may begin anew at any time."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:

        def begin() -> InterestState:
            stack.close()  # what is being folded is folded
            pool = stack.enter_context(ThreadPoolExecutor(1)) if background else None
            return InterestState(spark, folder, half_life=HALF, every=every, executor=pool)

        state, number = begin(), -1
        for events, step, anew in batches:
            number += step
            state.add(table(spark, events), number)
            if anew:
                state = begin()
                state.add(table(spark, events), number)
        frames = InterestState.read(spark, folder).frames()
        expected, wanted = reference([event for events, *_ in batches for event in events])
        assert rates(frames) == pytest.approx(expected, rel=1e-9)
        assert pairs(frames) == wanted


@pytest.mark.slow
def test_a_steady_stream_has_its_rate(spark: SparkSession, tmp_path: Path) -> None:
    state = InterestState(spark, str(tmp_path / "state"), half_life=2, every=3)
    for number in range(8):  # 5 a second for 16 half-lives
        events = [Event("a", number * 4 + i / 5, ("ann",) if i == 3 else ()) for i in range(20)]
        state.add(table(spark, events), number)
    frames = state.frames()
    assert rates(frames) == {"a": pytest.approx(5, rel=0.05)}
    assert pairs(frames) == [("ann", "a")]
    assert rates(state.frames(START + timedelta(seconds=33.8)))["a"] == pytest.approx(rates(frames)["a"] / 2)


# ---------------------------------------------------------------------------------------------- micro-batches


def test_counts_and_odd_rows(spark: SparkSession, tmp_path: Path) -> None:
    state = InterestState(spark, str(tmp_path / "state"), half_life=HALF)
    assert rates(state.frames()) == {}
    assert state.counts().collect() == []
    events = [Event("a", 10, ("ann", "bob")), Event("a", 0, ("ann",)), Event(None, 90, ("eve",))]
    state.add(table(spark, events), 4)
    state.add(table(spark, []), 5)
    odd = spark.createDataFrame(
        [("b", None, START), ("b", [None, "ann"], START)],
        "flow string, subscribers array<string>, time timestamp",
    )
    state.add(odd, 7)
    found = {(row.subscriber, row.flow): (row.events, row.weight) for row in state.counts().collect()}
    assert set(found) == {("ann", "a"), ("bob", "a"), ("ann", "b")}
    assert found["ann", "a"] == (2, pytest.approx(1.5))
    assert found["bob", "a"] == (1, pytest.approx(1.0))
    assert found["ann", "b"] == (1, pytest.approx(0.5))
    frames = state.frames()
    assert rates(frames) == pytest.approx(
        {name: x * math.log(2) / HALF for name, x in (("a", 1.5), ("b", 1))}
    )
    assert frames.flow_space == "topics"
    assert frames.cells is None
    assert frames.interests.dtypes == [("subscriber", "string"), ("flow", "string")]


def test_the_moment_of_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    """Without a time, with none of its own, or with one that is yet to come, it is now."""
    state = InterestState(spark, str(tmp_path / "state"), half_life=1e6)
    before = datetime.now(UTC)
    later = before + timedelta(days=4000)
    state.add(spark.createDataFrame([("a", ["ann"])], "flow string, subscribers array<string>"), 0)
    rows = [("b", ["ann"], None), ("c", ["ann"], later)]
    state.add(spark.createDataFrame(rows, "flow string, subscribers array<string>, time timestamp"), 1)
    after = datetime.now(UTC)
    found = {row.flow: row.latest for row in state.totals().where("subscriber IS NULL").collect()}
    assert set(found) == {"a", "b", "c"}
    assert found["a"] <= found["b"] == found["c"]
    assert all(before.timestamp() <= each / 1e6 <= after.timestamp() for each in found.values())


@pytest.mark.slow
def test_late_events_and_those_before_1970(spark: SparkSession, tmp_path: Path) -> None:
    state = InterestState(spark, str(tmp_path / "state"), half_life=HALF, every=2)
    long = -60 * 365.25 * 86400
    events = [[Event("a", 0)], [Event("a", -25), Event("b", -1e3)], [Event("a", 5), Event("c", long)]]
    for number, each in enumerate(events):
        state.add(table(spark, each), number)
    assert rates(state.frames()) == pytest.approx(reference([*chain(*events)])[0], rel=1e-9)
    assert set(rates(state.frames())) == {"a"}
    old = InterestState(spark, str(tmp_path / "old"), half_life=HALF)
    events = [[Event("a", long), Event("a", long + 3.25)], [Event("a", long + 17), Event("b", long - 1)]]
    for number, each in enumerate(events):
        old.add(table(spark, each), number)
    assert rates(old.frames()) == pytest.approx(reference([*chain(*events)])[0], rel=1e-9)


def test_cuts_do_not_matter_to_the_last_bit(spark: SparkSession, tmp_path: Path) -> None:
    events = [Event("ab"[i % 7 == 0], i * i % 97 / 7, ("ann",)) for i in range(60)]
    seen = set()
    for parts in (1, 3, 7):
        state = InterestState(spark, str(tmp_path / f"{parts}"), half_life=HALF)
        state.add(table(spark, events).repartition(parts), 0)
        state.add(table(spark, events[::-1]).repartition(8 - parts), 1)
        seen.add(tuple(sorted(rates(state.frames()).items())))
    assert len(seen) == 1


def test_bad_batches(spark: SparkSession, tmp_path: Path) -> None:
    state = InterestState(spark, str(tmp_path / "state"))
    with pytest.raises(TableError, match="'subscribers'"):
        state.add(spark.createDataFrame([("a",)], "flow string"), 0)
    with pytest.raises(TableError, match=r"'flow' of deliveries .* double"):
        state.add(spark.createDataFrame([(0.5, [])], "flow double, subscribers array<string>"), 0)
    state.add(table(spark, [Event("a", 0)]), 3)
    with refused(ParameterError, 2, 3, parameter="state", value=str(tmp_path / "state")):
        InterestState(spark, str(tmp_path / "state")).add(table(spark, [Event("a", 0)]), 2)
    early = datetime(2024, 2, 29, 23, 59, 58)
    with refused(ParameterError, early, parameter="at", value=early):
        state.frames(early)
    assert rates(state.frames(datetime(2024, 3, 1)))


@pytest.mark.slow
def test_within_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    """Spark itself calls it, and comes again with a batch whose end it has not seen."""
    source, checkpoint, folder = tmp_path / "source", tmp_path / "checkpoint", str(tmp_path / "state")
    events = [Event("ab"[i % 2], i * 3, ("ann", "bob")[: i % 3]) for i in range(10)]
    table(spark, events[:1]).write.parquet(str(source))
    kinds = spark.read.parquet(str(source)).schema
    jobs = []

    def go_on() -> None:
        state = InterestState(spark, folder, half_life=HALF, every=3)

        def batch(rows: DataFrame, number: int) -> None:
            spark.sparkContext.setJobGroup(f"batch {number}", "")
            state.add(rows, number)
            tracker = spark.sparkContext.statusTracker()
            jobs.append(len(tracker.getJobIdsForGroup(f"batch {number}")))

        rows = spark.readStream.schema(kinds).option("maxFilesPerTrigger", 1).parquet(str(source))
        writer = rows.writeStream.foreachBatch(batch).option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    for start in (1, 4, 7):
        table(spark, events[start : start + 3]).coalesce(1).write.mode("append").parquet(str(source))
        go_on()
        last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink()
        go_on()
    frames = InterestState.read(spark, folder).frames()
    expected, wanted = reference(events)
    assert rates(frames) == pytest.approx(expected, rel=1e-9)
    assert pairs(frames) == wanted
    assert jobs[0] <= 2  # one query: where shuffles adapt, Spark counts that of a query as a job too


# -------------------------------------------------------------------------------------------------- folding


def tables(folder: Path) -> list[str]:
    return sorted(path.name for kind in ("upto", "batch") for path in folder.glob(f"{kind}/*"))


def test_an_error_in_the_background_is_raised_by_the_next_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise TableError("no space")

    with ThreadPoolExecutor(1) as pool:
        state = InterestState(spark, str(tmp_path), half_life=HALF, every=2, executor=pool)
        one = table(spark, [Event("a", 1, ("ann",))])
        state.add(one, 0)
        with monkeypatch.context() as patch:
            patch.setattr(InterestState, "_merge", full)
            state.add(one, 1)
        pool.submit(lambda: None).result()
        with pytest.raises(TableError, match="no space"):
            state.add(one, 2)
    assert [row.events for row in InterestState.read(spark, str(tmp_path)).counts().collect()] == [2]


@pytest.mark.slow
def test_folding_keeps_tables_that_readers_use(spark: SparkSession, tmp_path: Path) -> None:
    state = InterestState(spark, str(tmp_path), half_life=HALF, every=2)
    for number in range(7):
        state.add(table(spark, [Event("a", number, ("ann",))]), number)
    assert tables(tmp_path) == [
        *(f"batch=0000000{number}" for number in (4, 5, 6)),
        "upto=00000003",
        "upto=00000005",
    ]
    assert [row.events for row in state.counts().collect()] == [7]
    assert list(tmp_path.glob("*/.*")) == []


@pytest.mark.slow
def test_a_crash_before_old_tables_are_deleted(spark: SparkSession, tmp_path: Path) -> None:
    folder, kept = tmp_path / "state", tmp_path / "kept"
    state = InterestState(spark, str(folder), half_life=HALF, every=100)
    for number in range(4):
        state.add(table(spark, [Event("a", number, ("ann",))]), number)
        if number == 1:
            state.fold()
    shutil.copytree(folder, kept)
    state.fold()
    shutil.copytree(kept, folder, dirs_exist_ok=True)  # as if none of them had gone
    for _ in range(2):
        state = InterestState(spark, str(folder), half_life=HALF, every=100)
        assert [row.events for row in state.counts().collect()] == [4]
        state.add(table(spark, [Event("a", 3, ("ann",))]), 3)
        state.fold()
        assert [row.events for row in state.counts().collect()] == [4]
    state.add(table(spark, []), 4)
    state.fold()
    assert tables(folder) == ["batch=00000004", "upto=00000003", "upto=00000004"]


@pytest.mark.slow
def test_negligible_rows_are_deleted(spark: SparkSession, tmp_path: Path) -> None:
    state = InterestState(spark, str(tmp_path), half_life=HALF, every=2)
    state.add(table(spark, [Event("old", 0, ("ann",)), Event("a", 0, ("bob",))]), 0)
    state.add(table(spark, [Event("a", 19.9 * HALF, ("ann",))]), 1)
    assert set(rates(state.frames())) == {"old", "a"}  # 2^-19.9 is just above a millionth
    assert pairs(state.frames()) == [("ann", "a"), ("ann", "old"), ("bob", "a")]
    assert set(rates(state.frames(START + timedelta(seconds=20 * HALF)))) == {"a"}
    state.add(table(spark, [Event("a", 20 * HALF)]), 2)
    assert set(rates(state.frames())) == {"a"}
    state.add(table(spark, []), 3)
    rows = spark.read.parquet(str(tmp_path / "upto" / "upto=00000003")).collect()
    assert {(row.flow, row.subscriber, row.events) for row in rows} == {("a", None, 3), ("a", "ann", 1)}


@pytest.mark.slow
def test_a_reader_retries_when_tables_were_deleted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = InterestState(spark, str(tmp_path), half_life=HALF, every=2)
    for number in range(3):
        writer.add(table(spark, [Event("a", number, ("ann",))]), number)
    reader = InterestState.read(spark, str(tmp_path))
    looks: list[int] = []

    def newest(rows: DataFrame) -> tuple[int, int]:
        """Between the listing and the reading, the writer goes on."""
        found = real(rows)
        looks.append(len(looks))
        if len(looks) == 1:
            monkeypatch.setattr(module, "_newest", real)
            for number in range(3, 8):
                writer.add(table(spark, [Event("a", number, ("ann",))]), number)
            monkeypatch.setattr(module, "_newest", newest)
        return found

    real = module._newest
    monkeypatch.setattr(module, "_newest", newest)
    assert [row.events for row in reader.counts().collect()] == [8]
    assert len(looks) == 2


def test_a_table_that_is_damaged(spark: SparkSession, tmp_path: Path) -> None:
    state = InterestState(spark, str(tmp_path), half_life=HALF)
    state.add(table(spark, [Event("a", 0)]), 0)
    for file in tmp_path.glob("batch/*/*.parquet"):
        file.write_bytes(b"PAR1 nothing PAR1")
    for file in tmp_path.glob("batch/*/.*.crc"):
        file.unlink()
    with pytest.raises(JobError, match=r"cannot read the state in .*damaged"):
        state.frames()


# ---------------------------------------------------------------------------------------------- the folder


@pytest.mark.slow
def test_cells(spark: SparkSession, tmp_path: Path) -> None:
    schema = Schema.of({"x": "double", "n": "int"})
    grid = CellGrid.equal(schema, {"x": (0, 3, 3), "n": (0, 4, 2)})
    edges = {name: each.tolist() for name, each in zip(grid.attributes, grid.edges, strict=True)}
    events = [Event("1", 0, ("ann",)), Event("4", 0), Event("1", 0, ("bob",))]
    for name, types in (("typed", schema), ("plain", None)):
        state = InterestState(
            spark, str(tmp_path / name), space="cells", grid=edges, half_life=HALF, schema=types
        )
        state.add(table(spark, events), 0)
        frames = InterestState.read(spark, str(tmp_path / name)).frames()
        assert frames.flow_space == "cells"
        assert frames.interests.dtypes == [("subscriber", "string"), ("flow", "bigint")]
        assert pairs(frames) == [("ann", 1), ("bob", 1)]
        assert rates(frames) == pytest.approx({1: 0.2 * math.log(2), 4: 0.1 * math.log(2)})
        assert to_interest(frames).flows.to_pylist() == [1, 4]
        if types is None:
            assert frames.cells is None
        else:
            assert frames.cells is not None
            lo, hi = grid.bounds([1, 4])
            found = {row.flow: (row.lo, row.hi) for row in frames.cells.collect()}
            assert found == {1: (lo[0].tolist(), hi[0].tolist()), 4: (lo[1].tolist(), hi[1].tolist())}
    InterestState(spark, str(tmp_path / "typed"), space="cells", grid=edges, half_life=HALF)
    with refused(ParameterError, parameter="types"):
        InterestState(
            spark,
            str(tmp_path / "typed"),
            space="cells",
            grid=edges,
            half_life=HALF,
            schema=Schema.of({"x": "double", "n": "bigint"}),
        )


def test_settings_that_differ_from_the_stored_ones(spark: SparkSession, tmp_path: Path) -> None:
    folder = str(tmp_path / "state")
    InterestState(spark, folder, half_life=60)
    with refused(ParameterError, "60.0", folder, parameter="half_life", value=3600.0):
        InterestState(spark, folder)
    with refused(ParameterError, "'topics'", folder, parameter="space", value="cells"):
        InterestState(spark, folder, half_life=60, space="cells", grid={"x": [1]})
    InterestState(spark, f"file://{folder}/", half_life=60)
    cells = str(tmp_path / "cells")
    InterestState(spark, cells, space="cells", grid={"x": [1, 2]})
    with refused(ParameterError, {"x": [1, 2]}, cells, parameter="grid", value={"x": [1]}):
        InterestState(spark, cells, space="cells", grid={"x": [1]})
    with refused(TableError, parameter="state", value=str(tmp_path)):
        InterestState.read(spark, str(tmp_path))
    about = Path(folder, "state.json")
    about.write_text(about.read_text().replace('"version": 1', '"version": 9'))
    with refused(TableError, about, 9, 1, parameter="state"):
        InterestState.read(spark, folder)
    about.write_text("{")
    with refused(TableError, about, parameter="state"):
        InterestState(spark, folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a b[1]", "{x,y}*?", "back\\\\slash"])
def test_names_that_look_like_patterns(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """As a path and as a URI: each table counts once."""
    state = InterestState(spark, f"{tmp_path}/{name}", half_life=HALF, every=2)
    for number in range(5):
        state.add(table(spark, [Event("a", number, ("ann",))]), number)
    assert [row.events for row in InterestState.read(spark, f"{tmp_path}/{name}").counts().collect()] == [5]
    if "\\" not in name:
        uri = InterestState.read(spark, f"file://{tmp_path}/{name}")
        assert [row.events for row in uri.counts().collect()] == [5]
        uri.add(table(spark, [Event("a", 5, ("ann",))]), 5)
        assert [row.events for row in uri.counts().collect()] == [6]


@pytest.mark.parametrize(
    ("options", "parameter", "shown"),
    [
        ({"space": "events"}, "space", ["'events'", "topics", "cells"]),
        ({"space": "cells"}, "grid", [None]),
        ({"grid": {"x": [1]}}, "grid", [{"x": [1]}]),
        ({"half_life": 0}, "half_life", [0, 0.001]),
        ({"half_life": math.nan}, "half_life", ["nan"]),
        ({"every": 0}, "every", [0, 1]),
    ],
)
def test_bad_options(
    spark: SparkSession, tmp_path: Path, options: dict[str, object], parameter: str, shown: list[Any]
) -> None:
    with refused(ParameterError, *shown, parameter=parameter):
        InterestState(spark, str(tmp_path / "state"), **options)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
