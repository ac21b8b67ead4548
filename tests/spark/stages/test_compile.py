"""Filters are packed with what a worker needs of them, and bad ones come with their reasons."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast import EventBatch, Scan, Schema, SubscriptionSet, compile_filters
from narrowcast.spark.stages.compile import compile_subscriptions, owners, pack, packed, unpack, unpack_all
from narrowcast.spark.stages.event_scan import needed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = Schema.of(
    {
        "price": "double",
        "Volume": "bigint",
        "name": "string",
        "side": "struct",
        "side.name": "string",
        "a.b": "int",
        "the day": "date",
    }
)


def table(*texts: str | None, ids: list[int] | None = None) -> pa.Table:
    return pa.table(
        {
            "subscription_id": pa.array(ids or range(len(texts)), pa.int64()),
            "subscriber": [f"s{i % 3}" for i in range(len(texts))],
            "filter": pa.array(texts, pa.string()),
        }
    )


def columns(*texts: str) -> list[str]:
    found: list[str] = packed(table(*texts), SCHEMA)["columns"][0].as_py()
    return found


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("PRICE > 1", {"price"}),
        ("volume IS NULL OR price < 2", {"price", "Volume"}),
        ("side.name = 'x'", {"side"}),
        ("side IS NOT NULL", {"side"}),
        ("`a.b` = 1", {"a"}),
        ("`the day` = '2024-01-01'", {"the day"}),
        ("TRUE", set()),
        ("price > 1 AND FALSE", set()),
    ],
)
def test_columns_of_boxes(text: str, used: set[str]) -> None:
    assert set(columns(text)) == used


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("name LIKE '%x%'", {"name"}),
        ("pRiCe > VOLUME", {"price", "Volume"}),
        ("Side.Name LIKE '%x_'", {"side"}),
        ("`a.b` = volume", {"a", "Volume"}),
        ("`price` > `Volume`", {"price", "Volume"}),
    ],
)
def test_columns_of_checks(text: str, used: set[str]) -> None:
    """A check may look at what no box bounds; of names that must be quoted some more may be sent."""
    found = set(columns(text, "price > 1 AND price < 0"))
    assert used <= found
    assert found <= used | {"a", "the day", "side", "name"}
    assert columns("TRUE") == []


def test_a_row_for_all_good_ones_and_one_for_each_bad_one() -> None:
    rows = packed(
        table("price > 1 OR price < 0", "prize > 1", "price >", "price = 7", None), SCHEMA
    ).to_pylist()
    assert (rows[0]["subscriptions"], rows[0]["boxes"]) == (2, 3)
    assert (rows[0]["reason"], rows[0]["row"]) == (None, None)
    assert [row["reason"] for row in rows[1:]] == [
        "unknown attribute 'prize'; there are: price, Volume, name, side, side.name, a.b, the day",
        "does not parse: something is missing at column 7",
        "filter is null",
    ]
    assert all(row["payload"] is None and row["subscriptions"] is None for row in rows[1:])
    assert json.loads(rows[1]["row"]) == {"subscription_id": 1, "subscriber": "s1", "filter": "prize > 1"}


def test_bad_rows_are_written_as_spark_writes_them() -> None:
    [_, bad] = packed(table("naïve > 'é'"), SCHEMA).to_pylist()
    assert bad["row"] == """{"subscription_id":0,"subscriber":"s0","filter":"naïve > 'é'"}"""


def test_all_bad_and_none_at_all() -> None:
    rows = packed(table("x", "y"), SCHEMA).to_pylist()
    assert [row["subscriptions"] for row in rows] == [0, None, None]
    assert len(unpack(rows[0]["payload"], SCHEMA)) == 0
    [row] = packed(table(), SCHEMA).to_pylist()
    assert (row["subscriptions"], row["boxes"], row["columns"]) == (0, 0, [])
    assert len(unpack_all([], SCHEMA)) == 0


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(-9, 9), unique=True, max_size=4), max_size=4))
def test_payloads_put_together_match_as_one_set(groups: list[list[int]]) -> None:
    taken: set[int] = set()
    parts = []
    for group in groups:
        ids = [i for i in group if i not in taken]
        taken.update(ids)
        texts = [f"price > {i} OR name LIKE '%{i}'" for i in ids]
        parts.append(compile_filters(SCHEMA, table(*texts, ids=ids), strict=True).subscriptions)
    whole = unpack_all([pack(part) for part in parts], SCHEMA)
    assert whole.subscription_id.tolist() == sorted(taken)
    rows: list[dict[str, Any]] = [{"price": float(x), "name": f"n{x}"} for x in range(-10, 10)]
    for row, matched in zip(rows, Scan().fit(whole).match(EventBatch.from_rows(rows, SCHEMA)), strict=True):
        expected = [i for i in sorted(taken) if row["price"] > i or str(row["name"]).endswith(str(i))]
        assert whole.subscription_id[matched].tolist() == expected
    assert names(whole) == {i: name for part in parts for i, name in names(part).items()}


def names(subscriptions: SubscriptionSet) -> dict[int, str]:
    who = subscriptions.subscribers.take(pa.array(subscriptions.subscriber)).to_pylist()
    return dict(zip(subscriptions.subscription_id.tolist(), who, strict=True))


def test_a_part_does_not_carry_the_names_of_others() -> None:
    whole = compile_filters(SCHEMA, table(*["price > 1"] * 3), strict=True).subscriptions
    assert unpack(pack(whole.take(np.array([1]))), SCHEMA).subscribers.to_pylist() == ["s1"]


@pytest.mark.spark
def test_on_spark(spark: SparkSession) -> None:
    given = spark.createDataFrame(table("price > 1", "prize > 1", "name LIKE '%a'", "price >"))
    given = given.selectExpr("filter", "upper(filter) AS other", "subscriber", "subscription_id")
    done = compile_subscriptions(given, SCHEMA).persist()
    assert done.where("payload IS NOT NULL").selectExpr("sum(subscriptions)", "sum(boxes)").first() == (2, 2)
    reasons = done.where("reason IS NOT NULL").collect()
    bad = {json.loads(row.row)["subscription_id"]: row.reason for row in reasons}
    assert set(bad) == {1, 3}
    assert "unknown attribute 'prize'" in bad[1]
    people = owners(done, SCHEMA)
    assert people.schema.simpleString() == "struct<subscription_id:bigint,subscriber:string>"
    assert sorted(people.collect()) == [(0, "s0"), (2, "s2")]


@pytest.mark.spark
def test_only_needed_columns_are_sent(spark: SparkSession) -> None:
    events: Any = spark.createDataFrame(
        pa.table(
            {"event_id": [1], "Price": [1.0], "a.b": [2], "ti`ck": [3], "other": [4], "side": [{"name": "x"}]}
        )
    )
    sent, names = needed(events, ["price", "A"])
    assert names == ["event_id", "Price", "a.b"]
    assert sent.columns == ["c0", "c1", "c2"]
    assert sent.first() == (1, 1.0, 2)
    sent, names = needed(events, ["ti`ck", "side.name"])
    assert names == ["event_id", "ti`ck", "side"]
    assert sent.select("c0", "c1").first() == (1, 3)
    assert needed(events, [])[1] == ["event_id"]
