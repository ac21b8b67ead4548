"""Matches as compressed rows say the same as a set of pairs."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast.errors import ParameterError
from narrowcast.model.matches import Matches
from support.errors import refused


@settings(max_examples=150)
@given(
    st.integers(0, 6), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**31 - 1) | st.integers(0, 4)))
)
def test_pairs_in_any_order_become_ascending_rows(n: int, pairs: list[tuple[int, int]]) -> None:
    pairs = [pair for pair in pairs if pair[0] < n]
    matches = Matches.from_pairs([e for e, _ in pairs], [i for _, i in pairs], n)
    rows = [sorted({i for e, i in pairs if e == event}) for event in range(n)]
    assert [row.tolist() for row in matches] == rows
    assert [matches[event].tolist() for event in range(n)] == rows
    assert matches.n_events == len(matches) == n
    assert matches.n_pairs == sum(map(len, rows))
    assert matches.counts().tolist() == list(map(len, rows))
    assert matches.rows().tolist() == [event for event, row in enumerate(rows) for _ in row]
    assert matches == Matches(matches.indptr, matches.index)
    assert matches.index.dtype == np.int32


def test_equality_is_by_value_and_there_is_no_hash() -> None:
    one = Matches.from_pairs([0, 1], [1, 0], 2)
    assert one == Matches.from_pairs([1, 0], [0, 1], 2)
    assert one != Matches.from_pairs([0, 1], [1, 0], 3)
    assert one != Matches.from_pairs([0, 1], [1, 1], 2)
    assert one != "matches"
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)
    assert repr(one) == "Matches(2 events, 2 matches)"


def test_columns_cannot_be_written_and_those_of_the_caller_still_can() -> None:
    indptr, index = np.array([0, 1]), np.array([3], np.int32)
    matches = Matches(indptr, index)
    with pytest.raises(ValueError, match="read-only"):
        matches.index[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        matches.indptr[0] = 1
    indptr[0], index[0] = 0, 3


@pytest.mark.parametrize(
    ("indptr", "index", "shown"),
    [
        ([], [], ("indptr",)),
        ([[0, 1]], [0], ("indptr",)),
        ([1, 1], [0], ("0", "1")),
        ([0, 2], [0], ("0", "2")),
        ([0, 2, 1, 3], [0, 1, 2], ("0", "3")),
        ([0, 1], [-1], ("-1", "0")),
        ([0, 2], [1, 1], ("1",)),
        ([0, 1, 3], [5, 2, 1], ("1", "2")),
        ([0, 1], np.array([2**31]), ("2147483648",)),
        ([0, 1], np.array([2**32 + 5]), ("4294967301",)),
    ],
)
def test_invalid_rows_are_refused(indptr: list[int], index: list[int], shown: tuple[str, ...]) -> None:
    with refused(ParameterError, *shown):
        Matches(np.array(indptr, np.int64), np.asarray(index))


@pytest.mark.parametrize(
    ("event", "index", "n_events", "shown"),
    [
        ([0, 1], [0], 2, ("2", "1")),
        ([2], [0], 2, ("2", "0", "1")),
        ([-1, 0], [0, 0], 2, ("-1", "0", "1")),
        ([0], [-1], 1, ("-1", "0", "2147483647")),
        ([0], [2**31], 1, ("2147483648",)),
    ],
)
def test_invalid_pairs_are_refused(
    event: list[int], index: list[int], n_events: int, shown: tuple[str, ...]
) -> None:
    with refused(ParameterError, *shown):
        Matches.from_pairs(event, index, n_events)


def test_an_event_that_is_not_there_is_an_index_error() -> None:
    matches = Matches.from_pairs([], [], 2)
    for event in (-1, 2):
        with pytest.raises(IndexError, match=f"event={event}"):
            matches[event]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3))), st.permutations([-5, 7, 2**62, 3]))
def test_the_table_has_ids_ascending_and_no_row_without_any(
    pairs: list[tuple[int, int]], ids: list[int]
) -> None:
    matches = Matches.from_pairs([e for e, _ in pairs], [i for _, i in pairs], 4)
    table = matches.to_arrow(np.array([40, 30, 20, 10]), np.array(ids))
    expected = [
        {"event_id": 40 - 10 * e, "subscription_ids": sorted({ids[i] for event, i in pairs if event == e})}
        for e in range(4)
        if any(event == e for event, _ in pairs)
    ]
    assert table.to_pylist() == expected
    assert table.schema == pa.schema([("event_id", pa.int64()), ("subscription_ids", pa.list_(pa.int64()))])


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5))))
def test_ids_that_ascend_and_those_that_do_not_give_one_table(pairs: list[tuple[int, int]]) -> None:
    """Where ids ascend with positions nothing is sorted; turned round, the same subscriptions are."""
    ids = np.array([-7, -7 + 2**40, 2**41, 2**62, 2**62 + 1, 2**63 - 1])
    plain = Matches.from_pairs([e for e, _ in pairs], [i for _, i in pairs], 4)
    turned = Matches.from_pairs([e for e, _ in pairs], [5 - i for _, i in pairs], 4)
    events = np.array([3, 1, 2, 0])
    table = plain.to_arrow(events, ids)
    assert table.equals(turned.to_arrow(events, ids[::-1].copy()))
    for row in table.to_pylist():
        assert row["subscription_ids"] == sorted(row["subscription_ids"])


@given(st.lists(st.sets(st.integers(0, 6), max_size=4).map(sorted), max_size=12), st.data())
def test_distinct_sets_and_chosen_events(rows: list[list[int]], data: st.DataObject) -> None:
    event = [i for i, row in enumerate(rows) for _ in row]
    matches = Matches.from_pairs(event, [value for row in rows for value in row], len(rows))
    first, number = matches.distinct()
    slow = matches._distinct_exactly()
    assert first.tolist() == slow[0].tolist()
    assert number.tolist() == slow[1].tolist()
    assert [rows[i] for i in first[number]] == rows
    some = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=5)) if rows else []
    taken = matches.take(np.array(some, np.int64))
    assert [row.tolist() for row in taken] == [rows[i] for i in some]
