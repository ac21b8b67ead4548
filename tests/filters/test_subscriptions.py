"""Rows of a table of filters: the good become subscriptions, the bad are set aside and counted."""

from __future__ import annotations

import pyarrow as pa
import pytest

from narrowcast import EventBatch, Scan, Schema, compile_filters
from narrowcast.errors import FilterError, TableError
from narrowcast.filters.compiler import FilterCompiler

SCHEMA = Schema.of({"price": "double"})


def table(ids: list[int | None], who: list[str | None], filters: list[str | None]) -> pa.Table:
    columns = [pa.array(ids, pa.int64()), pa.array(who, pa.string()), pa.array(filters, pa.string())]
    return pa.table(columns, names=["subscription_id", "subscriber", "filter"])


def test_bad_rows_are_kept_with_their_reason_and_the_rest_goes_on() -> None:
    given = table(
        [7, 8, 7, None, 9, 10],
        ["a", "b", "c", "d", None, "a"],
        ["price > 1", "price >", "TRUE", "TRUE", "TRUE", None],
    )
    done = compile_filters(SCHEMA, given.append_column("note", pa.array(list("uvwxyz"))))
    assert done.subscriptions.subscription_id.tolist() == [7]
    assert done.rejected.select(["subscription_id", "note", "reason"]).to_pylist() == [
        {"subscription_id": 8, "note": "v", "reason": "does not parse: something is missing at column 7"},
        {
            "subscription_id": 7,
            "note": "w",
            "reason": "subscription_id 7 is used by an earlier row; give each its own",
        },
        {"subscription_id": None, "note": "x", "reason": "subscription_id is null"},
        {"subscription_id": 9, "note": "y", "reason": "subscriber is null"},
        {"subscription_id": 10, "note": "z", "reason": "filter is null"},
    ]


def test_strict_makes_the_first_bad_row_an_error() -> None:
    with pytest.raises(FilterError, match="row 2, subscription_id 8: does not parse"):
        compile_filters(SCHEMA, table([7, 8], ["a", "b"], ["TRUE", "price >"]), strict=True)


def test_subscribers_are_numbered_by_name_whatever_the_order_of_rows() -> None:
    done = compile_filters(SCHEMA, table([1, 2, 3], ["b", "a", "b"], ["TRUE"] * 3)).subscriptions
    assert done.subscribers.to_pylist() == ["a", "b"]
    assert done.subscriber.tolist() == [1, 0, 1]


def test_no_filters_and_only_bad_filters() -> None:
    for filters in ([], ["price >"]):
        done = compile_filters(SCHEMA, filters)
        assert len(done.subscriptions) == 0
        assert done.rejected.num_rows == len(filters)
        events = EventBatch.from_arrow(pa.table({"price": [1.0, 2.0]}))
        assert Scan().fit(done.subscriptions).match(events).counts().tolist() == [0, 0]


def test_a_table_without_a_column_or_with_ids_that_are_no_integers() -> None:
    with pytest.raises(TableError, match="no column 'filter'; they have subscription_id, subscriber"):
        compile_filters(SCHEMA, table([1], ["a"], ["TRUE"]).drop_columns("filter"))
    with pytest.raises(TableError, match="column 'subscription_id' of type string"):
        compile_filters(SCHEMA, pa.table({"subscription_id": ["x"], "subscriber": ["a"], "filter": ["TRUE"]}))


def test_two_hundred_attributes() -> None:
    schema = Schema.of({f"a{i}": "double" for i in range(200)})
    text = " AND ".join(f"a{i} > {i}" for i in range(200))
    done = compile_filters(schema, [text, "a199 < 5"], strict=True).subscriptions
    assert done.boxes.indptr.tolist() == [0, 200, 201]
    events = EventBatch.from_arrow(pa.table({f"a{i}": [i + 1.0, 1.0] for i in range(200)}))
    assert [m.tolist() for m in Scan().fit(done).match(events)] == [[0], [1]]


def test_a_compiler_alone_leaves_out_the_boxes_of_bad_filters() -> None:
    days = Schema.of({"day": "date"})
    compiled = FilterCompiler(days).compile(
        ["day > 'soon'", "day > '2024-01-01'", "day > '2024-99-01'", "day <>"]
    )
    assert compiled.boxes.owner.tolist() == [1]
    assert compiled.boxes.n_owners == 4
    assert sorted(compiled.errors) == [0, 2, 3]
