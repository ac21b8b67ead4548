"""All strategies give what the filter language says, whatever the data are called and however they lie."""

from __future__ import annotations

import sys
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from narrowcast import EventBatch, Scan, Schema, compile_filters
from narrowcast.errors import ParameterError
from narrowcast.matching.partition import Partitioner
from narrowcast.spark.session import bytes_of
from narrowcast.spark.sources.tables import ingest, schema_of
from narrowcast.spark.stages.compile import compile_subscriptions
from narrowcast.spark.stages.estimate import estimate
from narrowcast.spark.stages.match import match, worker_memory
from narrowcast.spark.stages.slice_metrics import SliceMetrics
from support.filters import events, filters, schemas

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from narrowcast.spark.stages.estimate import Estimate

pytestmark = pytest.mark.spark

Found = dict[int, list[int]]
RELAXED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
# Shrinking would start hundreds of jobs more.
PHASES = [Phase.explicit, Phase.generate]


class Case:
    """Subscriptions and events in Spark, and what they should match."""

    def __init__(self, spark: SparkSession, subscriptions: dict[int, str], table: pa.Table, folder: Path):
        self.spark = spark
        self.folder = folder
        self.filters = subscriptions
        pq.write_table(table, folder / "events.parquet")
        self.events = ingest(spark, "events", str(folder / "events.parquet")).rows
        self.schema = schema_of(self.events)
        rows = pa.table(
            {
                "subscription_id": pa.array(list(subscriptions), pa.int64()),
                "subscriber": [f"s{i % 7}" for i in subscriptions],
                "filter": pa.array(list(subscriptions.values()), pa.string()),
            }
        )
        pq.write_table(rows, folder / "subscriptions.parquet", row_group_size=11)
        compiled = compile_subscriptions(
            spark.read.parquet(str(folder / "subscriptions.parquet")), self.schema
        )
        compiled.write.mode("overwrite").parquet(str(folder / "compiled.parquet"))
        self.compiled = spark.read.parquet(str(folder / "compiled.parquet"))
        self.expected = self.scanned(rows, table)

    def scanned(self, rows: pa.Table, table: pa.Table) -> Found:
        """The matches that the slowest matcher finds, ids ascending, events without any left out."""
        good = compile_filters(self.schema, rows).subscriptions
        batch = EventBatch.from_arrow(table, self.schema)
        found = {
            int(event): sorted(good.subscription_id[matched].tolist())
            for event, matched in zip(batch.event_id, Scan().fit(good).match(batch), strict=True)
        }
        return {event: ids for event, ids in found.items() if ids}

    def where(self) -> Found:
        """The matches by Spark's own WHERE."""
        self.spark.read.parquet(str(self.folder / "events.parquet")).createOrReplaceTempView("events")
        parts = (f"SELECT {i} AS id, event_id FROM events WHERE {text}" for i, text in self.filters.items())
        found: Found = {}
        for row in sorted(self.spark.sql(" UNION ALL ".join(parts)).collect()):
            found.setdefault(row.event_id, []).append(row.id)
        return found

    def match(self, **options: Any) -> DataFrame:
        return match(self.events, self.compiled, self.schema, **options)

    def found(self, **options: Any) -> Found:
        rows = self.match(**options).collect()
        found = {row.event_id: row.subscription_ids for row in rows}
        assert len(found) == len(rows), "an event has two rows"
        return found

    def counted(self, **options: Any) -> dict[int, int]:
        rows = self.match(counts=True, **options).collect()
        found = {row.event_id: row.matches for row in rows}
        assert len(found) == len(rows), "an event has two rows"
        return found

    @property
    def sizes(self) -> dict[int, int]:
        return {event: len(ids) for event, ids in self.expected.items()}


@st.composite
def cases(draw: st.DrawFn) -> tuple[pa.Table, dict[int, str]]:
    schema = draw(schemas())
    texts = draw(st.lists(filters(schema, in_range=True), min_size=25, max_size=25))
    ids = draw(st.permutations(range(-5, 20)))
    return draw(events(schema, size=30)), {7 * i: text for i, text in zip(ids, texts, strict=True)}


@settings(max_examples=3, suppress_health_check=RELAXED, phases=PHASES)
@given(case=cases(), parts=st.sampled_from([(1, 1), (6, 3), (7, 1), (64, 8)]))
def test_all_strategies_equal_the_slowest_matcher(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    case: tuple[pa.Table, dict[int, str]],
    parts: tuple[int, int],
) -> None:
    table, texts = case
    made = Case(spark, texts, table, tmp_path_factory.mktemp("case"))
    assert made.found(strategy="broadcast") == made.expected
    assert made.found(strategy="partitioned", parts=parts[0], copies=parts[1]) == made.expected
    assert made.counted(strategy="partitioned", parts=parts[0], copies=parts[1]) == made.sizes


# Names that must be quoted, values beyond a key, nulls, structs; several boxes, and checks beyond boxes.
N = 60
TABLE = pa.table(
    {
        "event_id": pa.array([(i * 8) - 40 for i in range(N)], pa.int64()),
        "a.b": pa.array([i % 5 + 0.5 if i % 6 else None for i in range(N)]),
        "the name": pa.array([f"abcdefgh{i % 9}" if i % 4 else None for i in range(N)]),
        "ti`ck": pa.array([i % 11 for i in range(N)], pa.int32()),
        "Cap": pa.array([i % 7 if i % 5 else None for i in range(N)], pa.int64()),
        "amount": pa.array([Decimal(i) / 4 for i in range(N)], pa.decimal128(18, 4)),
        "day": pa.array([date(2024, 2, 1 + i % 28) for i in range(N)]),
        "time": pa.array(
            [datetime(2024, 3, 1, i % 24, 0, 0, i) for i in range(N)], pa.timestamp("us", "UTC")
        ),
        "side": pa.array(
            [{"name": "abcdefghij"[: i % 10], "deep": {"x": i % 3}} if i % 8 else None for i in range(N)],
            pa.struct([("name", pa.string()), ("deep", pa.struct([("x", pa.int64())]))]),
        ),
        "unused": pa.array(range(N)),
    }
)
TEXTS = [
    "`a.b` > 2",
    "`the name` >= 'abcdefgh3' AND `the name` < 'abcdefgh7'",
    "`the name` LIKE '%gh_' AND NOT `the name` LIKE '%h2'",
    "`ti``ck` = cap",
    "CAP IS NULL OR `ti``ck` > 9",
    "cap IN (1, 3, 5) OR `a.b` < 1 OR `ti``ck` BETWEEN 2 AND 3",
    "amount BETWEEN 2.25 AND 7.5",
    "day >= '2024-02-10' AND day <> DATE '2024-02-12'",
    "time < TIMESTAMP '2024-03-01 05:00:00.000010'",
    "side.name LIKE '%cd%'",
    "SIDE.deep.X = 2 AND NOT cap = 3",
    "side IS NULL",
    "side.name > 'abcdefgh'",
    "TRUE",
    "cap = 1 AND cap = 2",
]


@pytest.fixture(scope="module")
def odd(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Case:
    ids = (37, 5, 101, -3, 88, 64, 0, 19, 2, 55, 7, 41, 13, 90, 23)
    return Case(spark, dict(zip(ids, TEXTS, strict=True)), TABLE, tmp_path_factory.mktemp("odd"))


def test_the_reference_is_what_spark_keeps(odd: Case) -> None:
    assert odd.expected == odd.where()
    assert {i for ids in odd.expected.values() for i in ids} == set(odd.filters) - {23}


@pytest.mark.parametrize("strategy", ["auto", "broadcast"])
def test_odd_names_and_values(odd: Case, strategy: str) -> None:
    assert odd.found(strategy=strategy) == odd.expected
    assert odd.counted(strategy=strategy) == odd.sizes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "copies"), [(1, 1), (7, 7), (64, 1), (64, 4), (None, 3), (7, None), (None, None)]
)
def test_odd_names_and_values_in_parts(odd: Case, parts: int | None, copies: int | None) -> None:
    assert odd.found(strategy="partitioned", parts=parts, copies=copies) == odd.expected


@pytest.mark.parametrize(
    "options",
    [
        {"scheme": "selective", "parts": 10, "copies": 3},
        {"scheme": "cobas", "parts": 9},
        {"scheme": "hash", "parts": 4},
    ],
    ids=lambda options: options["scheme"],
)
def test_odd_names_and_values_by_any_scheme(odd: Case, options: dict[str, Any]) -> None:
    took = SliceMetrics(odd.spark.sparkContext)
    assert took.table().num_rows == 0
    assert odd.found(strategy="partitioned", took=took, **options) == odd.expected
    assert took.slices is not None
    seen, parts = took.table(), took.slices.partitioning
    assert sum(seen["matches"].to_pylist()) == sum(map(len, odd.expected.values()))
    assert set(seen["part"].to_pylist()) <= set(range(parts.parts))
    batch = EventBatch.from_arrow(odd.events.toArrow(), odd.schema)
    assert sum(seen["events"].to_pylist()) == len(parts.parts_of_events(batch)[0])


def test_columns_of_the_answer(odd: Case) -> None:
    for strategy in ("broadcast", "partitioned"):
        ids = odd.match(strategy=strategy)
        assert ids.schema.simpleString() == "struct<event_id:bigint,subscription_ids:array<bigint>>"
        sizes = odd.match(strategy=strategy, counts=True)
        assert sizes.schema.simpleString() == "struct<event_id:bigint,matches:bigint>"


@pytest.fixture
def conf(spark: SparkSession) -> Iterator[Any]:
    before: dict[str, str | None] = {}

    def change(key: str, value: str) -> None:
        before[key] = spark.conf.get(key, None)
        spark.conf.set(key, value)

    yield change
    for key, value in before.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value"),
    [("maxRecordsPerBatch", "3"), ("maxRecordsPerBatch", "0"), ("useLargeVarTypes", "true")],
)
def test_a_session_with_other_arrow_batches(
    odd: Case, conf: Any, key: str, value: str, tmp_path: Path
) -> None:
    conf(f"spark.sql.execution.arrow.{key}", value)
    again = Case(odd.spark, odd.filters, TABLE, tmp_path)  # compiled in such batches too
    assert again.found(strategy="broadcast") == odd.expected
    assert again.found(strategy="partitioned", parts=6, copies=2) == odd.expected


def test_a_session_in_another_time_zone_is_refused(odd: Case, conf: Any) -> None:
    conf("spark.sql.session.timeZone", "Asia/Tokyo")
    with pytest.raises(ParameterError, match=r"time zone is 'Asia/Tokyo' and has to be UTC, or timestamps"):
        odd.found()


# -------------------------------------------------------------------------------------- how the data lie


def plain(spark: SparkSession, folder: Path, subscriptions: dict[int, str], prices: list[int]) -> Case:
    ids = pa.array([16 * i for i in range(len(prices))], pa.int64())
    table = pa.table({"event_id": ids, "price": pa.array(prices, pa.int64()), "other": ids})
    return Case(spark, subscriptions, table, folder)


RANGES = {i: f"price >= {i % 50} AND price < {i % 50 + 10} OR price = {3 * i}" for i in range(200)}


def test_events_that_are_all_alike(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One cell has them all, and is cut into slices; ids with the same last bits still fill every slice."""
    case = plain(spark, tmp_path, RANGES, [9] * 300)
    told: list[Estimate] = []
    monkeypatch.setattr(sys.modules[estimate.__module__], "_LEAST", 16384)
    found = case.found(strategy="partitioned", parts=16, copies=1, memory=1, tell=lambda e, _: told.append(e))
    assert found == case.expected
    slices = told[0].forecasts["partitioned"].slices
    assert slices is not None
    batch = EventBatch.from_arrow(case.events.toArrow(), case.schema)
    _, number = slices.of_events(batch)
    assert len(set(number.tolist())) > 0.8 * slices.cuts.max() > 5


@pytest.mark.slow
@pytest.mark.parametrize("copies", [1, 4])
def test_parts_cut_into_slices(
    spark: SparkSession, tmp_path: Path, copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So little room that every part is cut.
    monkeypatch.setattr(sys.modules[estimate.__module__], "_LEAST", 8192)
    case = plain(spark, tmp_path, RANGES, [(7 * i) % 60 for i in range(240)])
    told: list[Estimate] = []
    options: dict[str, Any] = {"strategy": "partitioned", "parts": 8, "copies": copies, "memory": 1}
    assert case.found(**options, tell=lambda e, _: told.append(e)) == case.expected
    slices = told[0].forecasts["partitioned"].slices
    assert slices is not None
    assert slices.cuts.min() > 1
    assert case.counted(**options) == case.sizes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("subscriptions", "prices", "n"),
    [
        ({}, [1, 2, 3], 0),
        ({1: "price > 1", 2: "price < 9"}, [], 0),
        ({1: "price > 100", 2: "price < -9"}, [1, 2, 3], 0),
        ({1: "prize > 100", 2: "price <"}, [1, 2, 3], 0),
        ({}, [], 0),
        ({4: "price = 2 OR TRUE", 3: "prize > 1"}, [1, 2, 3], 3),
    ],
    ids=["no subscriptions", "no events", "no match", "bad filters", "nothing", "one good"],
)
def test_little(
    spark: SparkSession, tmp_path: Path, subscriptions: dict[int, str], prices: list[int], n: int
) -> None:
    case = plain(spark, tmp_path, subscriptions, prices)
    assert len(case.expected) == n
    assert case.found(strategy="auto") == case.found(strategy="broadcast") == case.expected
    assert case.found(strategy="partitioned") == case.expected
    assert case.counted(strategy="broadcast") == case.counted(strategy="partitioned") == case.sizes


# ------------------------------------------------------------------------------------------- bad options


SOME = Partitioner(parts=1).fit(
    compile_filters(Schema.of({"a": "bigint"}), []).subscriptions,
    EventBatch.from_rows([], Schema.of({"a": "bigint"})),
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "fast"}, "strategy is 'fast'; use one of auto, broadcast, partitioned"),
        ({"memory": 0}, "memory is 0 bytes"),
        ({"parts": 0}, "parts is 0; give a whole number from 1 to 65536"),
        ({"parts": -3}, "parts is -3"),
        ({"copies": 0}, "copies is 0"),
        ({"parts": 7, "copies": 2}, "copies is 2, which does not divide 7 parts"),
        ({"parts": 4, "copies": 5}, "copies is 5; give a whole number from 1 to 4"),
        ({"scheme": "kdd"}, "unknown scheme 'kdd'; did you mean 'kd'"),
        ({"scheme": "cobas", "copies": 2}, "scheme 'cobas' has no parameter 'copies'"),
        (
            {"partitions": SOME},
            "the parts are over other attributes than the events: 'a' is bigint there and none",
        ),
    ],
)
def test_bad_options(odd: Case, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        odd.match(**options)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512m", 512 << 20),
        ("1g", 1 << 30),
        ("2GB", 2 << 30),
        (" 7k ", 7 << 10),
        ("3", 3 << 20),
        ("1t", 1 << 40),
        ("9b", 9),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert bytes_of(text) == expected


@pytest.mark.parametrize("text", ["m", "1.5g", "-1g", "much", "²m", "1 g x", "gb"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ParameterError, match="is none; write it as 512m or 2g"):
        bytes_of(text)


def test_a_worker_may_take_what_spark_was_told(spark: SparkSession) -> None:
    assert worker_memory(spark) == 1 << 30


def test_schema_is_that_of_the_events(odd: Case) -> None:
    assert odd.schema == Schema.from_arrow(TABLE.schema)
