"""Files of changes: every row joins, leaves or is set aside with a reason, whatever types the file has."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.errors import TableError
from narrowcast.spark.streaming.subscription_update import SubscriptionUpdate

if TYPE_CHECKING:
    from pathlib import Path

IDS = st.one_of(
    st.none(),
    st.integers(-(2**70), 2**70).map(str),
    st.integers(-99, 99).map(lambda i: f" {i:+05d} "),
    st.integers(-99, 99).map(lambda i: f"{i}.00"),
    st.sampled_from([str(2**63 - 1), str(2**63), "", "x", "1.5", "1e3", "0", "-0", "\u0661"]),
)


def written(folder: Path, columns: dict[str, Any]) -> str:
    path = folder / "new.parquet"
    pq.write_table(pa.table(columns), path)
    return str(path)


def number(text: str | None) -> int | None:
    """Return the whole number of 64 bits in a text, by the letter."""
    try:
        found = Decimal((text or "").strip())
    except ArithmeticError:
        return None
    plain = (text or "").isascii() and "e" not in (text or "")
    return int(found) if plain and found == int(found) and abs(found) < 2**63 else None


@given(st.lists(st.tuples(IDS, st.sampled_from(["subscribe", "unsubscribe", "join", None])), max_size=9))
def test_every_row_goes_somewhere(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str | None, str | None]]
) -> None:
    path = written(
        tmp_path_factory.mktemp("update"),
        {
            "subscription_id": pa.array([row[0] for row in rows], pa.string()),
            "action": pa.array([row[1] for row in rows], pa.string()),
            "subscriber": pa.array(["ann"] * len(rows), pa.string()),
            "filter": pa.array(["true"] * len(rows), pa.string()),
        },
    )
    update = SubscriptionUpdate.read(path, actions=True)
    last: dict[int, str] = {}
    bad = 0
    for text, action in rows:
        if (found := number(text)) is None or action not in ("subscribe", "unsubscribe"):
            bad += 1
        else:
            last[found] = action
    assert sorted(update.joins["subscription_id"].to_pylist()) == sorted(
        i for i, action in last.items() if action == "subscribe"
    )
    assert sorted(update.leaves.tolist()) == sorted(
        i for i, action in last.items() if action == "unsubscribe"
    )
    assert update.rejected.num_rows == bad
    assert all(update.rejected["reason"].to_pylist())


@pytest.mark.parametrize(
    ("ids", "joins", "reasons"),
    [
        (pa.array([1.0, 2.5, float("nan"), 2.0**60]), [1], ["2.5", "nan", "e+18"]),
        (pa.array([1, 2**63, None], pa.uint64()), [1], ["9223372036854775808", "is null"]),
        (pa.array([Decimal("7.00"), Decimal("7.50")]), [7], ["7.50"]),
        (pa.array([None, None], pa.null()), [], ["is null", "is null"]),
        (pa.array(["5", "x"]).dictionary_encode(), [5], ["'x'"]),
        (pa.array([datetime.date(2026, 1, 1)]), [], ["2026-01-01"]),
        (pa.array([True]), [], ["true"]),
    ],
    ids=["floats", "unsigned", "decimals", "nulls", "dictionary", "dates", "booleans"],
)
def test_ids_of_any_type(tmp_path: Path, ids: pa.Array, joins: list[int], reasons: list[str]) -> None:
    rows = {"subscription_id": ids, "subscriber": pa.array([3] * len(ids)), "filter": ["true"] * len(ids)}
    update = SubscriptionUpdate.read(written(tmp_path, rows), actions=False)
    assert update.joins["subscription_id"].to_pylist() == joins
    assert update.joins["subscriber"].to_pylist() == ["3"] * len(joins)
    found = update.rejected["reason"].to_pylist()
    assert len(found) == len(reasons)
    assert all(part in reason for part, reason in zip(reasons, found, strict=True)), found
    assert all("filter" in json.loads(row) for row in update.rejected["row"].to_pylist())


def test_who_leaves_needs_no_filter(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"subscription_id": 4, "action": "unsubscribe"}\n')
    assert SubscriptionUpdate.read(str(path), actions=True).leaves.tolist() == [4]
    path.write_text('{"subscription_id": 4, "action": null}\n')
    assert SubscriptionUpdate.read(str(path), actions=True).rejected["reason"].to_pylist() == [
        "action null is neither subscribe nor unsubscribe"
    ]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "subscription_id,subscriber\n1,ann\n", "no column 'filter'"),
        ("a.parquet", "no parquet", "cannot read"),
        ("a.jsonl", '{"subscription_id": 1, "subsc', "cannot read"),
        ("a.jsonl", '{"subscription_id": {"a": 1}, "subscriber": "a", "filter": "true"}', "subscription_id"),
        ("a.jsonl", '{"subscription_id": 1, "subscriber": ["a"], "filter": "true"}', "subscriber"),
        ("a.csv", "", "cannot read"),
    ],
)
def test_what_is_no_table(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TableError, match=said):
        SubscriptionUpdate.read(str(tmp_path / name), actions=False)
