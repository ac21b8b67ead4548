from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from narrowcast.errors import ParameterError, TableError
from narrowcast.model.interest import Interest
from narrowcast.model.labels import encode, positions
from narrowcast.model.relation import expand, holds, relation_of
from support.errors import refused

labels = st.one_of(
    st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=6, unique=True),
    st.lists(st.text(max_size=4), min_size=1, max_size=6, unique=True),
)


def table(**columns: Any) -> pa.Table:
    return pa.table(columns)


@given(labels, labels, st.data())
def test_tables_come_back_whatever_the_order_of_rows(
    subscribers: list[Any], flows: list[Any], data: Any
) -> None:
    pairs = data.draw(st.lists(st.tuples(st.sampled_from(subscribers), st.sampled_from(flows)), max_size=20))
    rates = dict.fromkeys(flows, 1.0) | data.draw(st.dictionaries(st.sampled_from(flows), st.floats(0, 1e9)))

    def build(rows: list[tuple[Any, Any]]) -> Interest:
        kind = type(subscribers[0]), type(flows[0])
        subscriber, flow = (
            pa.array([r[i] for r in rows], pa.int64() if kind[i] is int else pa.string()) for i in (0, 1)
        )
        return Interest.from_tables(
            table(subscriber=subscriber, flow=flow), table(flow=list(rates), rate=rates.values())
        )

    interest = build(pairs)
    assert interest == build(pairs[::-1]) == Interest.from_tables(*interest.to_tables())
    found, rate = (part.to_pylist() for part in interest.to_tables())
    assert {(row["subscriber"], row["flow"]) for row in found} == set(pairs)
    assert len(found) == len(set(pairs))
    assert {row["flow"]: row["rate"] for row in rate} == rates
    assert interest.flows.to_pylist() == sorted(flows, key=lambda x: x.encode() if isinstance(x, str) else x)
    for flow, audience in zip(interest.flows.to_pylist(), interest.audience(), strict=True):
        assert audience == len({s for s, f in set(pairs) if f == flow})


def test_wants_are_canonical_and_cannot_change() -> None:
    mine = csr_array((np.array([1, 0, 1, 1]), np.array([2, 0, 1, 1]), np.array([0, 2, 4])), shape=(2, 3))
    interest = Interest(mine)
    assert interest.wants.dtype == np.bool_
    assert interest.wants.indices.tolist() == [2, 1]
    assert interest.wants.indptr.tolist() == [0, 1, 2]
    assert interest.rate.tolist() == [1, 1, 1]
    assert interest.flows.to_pylist() == [0, 1, 2]
    with pytest.raises(ValueError, match="read-only"):
        interest.wants.data[0] = False
    with pytest.raises(ValueError, match="read-only"):
        interest.rate[0] = 2
    mine.data[0] = 5  # what was given stays the caller's own
    assert pickle.loads(pickle.dumps(interest)) == interest
    assert interest != Interest(interest.wants, [1, 1, 2])


def test_label_types_are_kept() -> None:
    interests = table(subscriber=pa.array([3, 1], pa.uint16()), flow=pa.array(["b", "a"]).dictionary_encode())
    interest = Interest.from_tables(interests)
    assert interest.subscribers.equals(pa.array([1, 3], pa.uint16()))
    assert interest.flows.equals(pa.array(["a", "b"]))
    again, rates = interest.to_tables()
    assert [again.schema.field(name).type for name in ("subscriber", "flow")] == [pa.uint16(), pa.string()]
    assert rates.to_pydict() == {"flow": ["a", "b"], "rate": [1.0, 1.0]}


def test_rates_of_another_width_meet_by_value() -> None:
    interests = table(subscriber=["x"], flow=pa.array([7], pa.int32()))
    narrow = Interest.from_tables(interests, table(flow=pa.array([7]), rate=[2]))
    assert narrow.flows.equals(pa.array([7], pa.int32()))
    assert narrow.rate.tolist() == [2.0]
    wide = Interest.from_tables(interests, table(flow=pa.array([2**40]), rate=[2]))
    assert wide.flows.equals(pa.array([7, 2**40]))


@pytest.mark.parametrize("kind", [pa.null(), pa.int32(), pa.string()])
def test_an_interest_without_wants(kind: pa.DataType) -> None:
    empty = table(subscriber=pa.array([], kind), flow=pa.array([], kind))
    interest = Interest.from_tables(empty)
    assert (interest.n_subscribers, interest.n_flows, interest.n_wants) == (0, 0, 0)
    rated = Interest.from_tables(empty, table(flow=["a"], rate=[2.5]))
    assert (rated.flows.to_pylist(), rated.rate.tolist(), rated.audience().tolist()) == (["a"], [2.5], [0])


ONE = {"subscriber": ["s"], "flow": ["f"]}


@pytest.mark.parametrize(
    ("interests", "rates", "shown"),
    [
        ({"subscriber": ["s"]}, None, ("flow", "subscriber")),
        (
            {"subscriber": ["s", None], "flow": ["f", "g"]},
            None,
            ("subscriber", "1"),
        ),
        (
            {"subscriber": ["s"], "flow": [0.5]},
            None,
            ("flow", "double"),
        ),
        (ONE, {"flow": ["f"]}, ("rate",)),
        (ONE, {"flow": ["f"], "rate": [-1.0]}, ("f", "-1.0")),
        (ONE, {"flow": ["g"], "rate": [float("nan")]}, ("g", "nan")),
        (ONE, {"flow": ["g"], "rate": [float("inf")]}, ("g", "inf")),
        (ONE, {"flow": ["f"], "rate": ["fast"]}, ("rate", "string")),
        (ONE, {"flow": ["f", "g"], "rate": [1.0, None]}, ("rate", "1")),
        (ONE, {"flow": ["f", "f"], "rate": [1.0, 1.0]}, ("f",)),
        (ONE, {"flow": [1], "rate": [1.0]}, ("int64", "string")),
    ],
)
def test_bad_tables(interests: dict[str, Any], rates: dict[str, Any] | None, shown: tuple[str, ...]) -> None:
    with refused(TableError, *shown):
        Interest.from_tables(pa.table(interests), None if rates is None else pa.table(rates))


def test_bad_parameters() -> None:
    with refused(ParameterError, "b", "-2.0", parameter="rate"):
        Interest([[1, 1]], [1, -2], flows=["a", "b"])
    with refused(ParameterError, parameter="rate"):
        Interest([[1, 1]], [1])
    with refused(ParameterError, "1", "2", value=1):
        Interest([[1, 1]], flows=["a"])
    with refused(ParameterError, "4", value=4):
        Interest([[1], [1]], subscribers=[4, 4])
    with refused(TableError, "flow"):
        Interest([[1, 1]], flows=["a", 1])
    with refused(ParameterError, "1", value=1):
        Interest(np.ones(3))


pair_lists = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=25)


@given(pair_lists, pair_lists)
def test_holds_and_expand_against_a_set(stored: list[tuple[int, int]], asked: list[tuple[int, int]]) -> None:
    matrix = relation_of([r for r, _ in stored], [c for _, c in stored], (5, 7))
    rows, columns = (np.array([pair[i] for pair in asked], np.int64) for i in (0, 1))
    assert holds(matrix, rows, columns).tolist() == [pair in set(stored) for pair in asked]
    owner, column = expand(matrix, rows)
    expected = [(i, c) for i, r in enumerate(rows) for c in sorted({c for q, c in stored if q == r})]
    assert list(zip(owner.tolist(), column.tolist(), strict=True)) == expected


@given(labels, labels)
def test_positions_by_label(wanted: list[Any], known: list[Any]) -> None:
    if type(wanted[0]) is not type(known[0]):
        with refused(TableError, "int64", "string"):
            positions("flow", pa.array(wanted), pa.array(known))
        return
    found = positions("flow", pa.array(wanted), pa.array(known))
    assert found.tolist() == [known.index(label) if label in known else -1 for label in wanted]


def test_integers_without_a_common_type() -> None:
    with refused(TableError, "flow"):
        encode("flow", pa.array([-1], pa.int8()), pa.array([2**63], pa.uint64()))
