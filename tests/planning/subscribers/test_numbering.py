"""New clusters are numbered such that as few members as can be move."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.errors import ParameterError
from narrowcast.planning.subscribers.numbering import matched_labels, numbers_of
from support.errors import refused

LABELS = st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 3)), max_size=30)


def moved(old: Any, new: Any) -> int:
    old, new = np.asarray(old), np.asarray(new)
    return int(np.count_nonzero((old >= 0) & (new >= 0) & (old != new)))


def test_exact() -> None:
    assert matched_labels([0, 0, 1, 1], [1, 1, 0, 0]).tolist() == [0, 0, 1, 1]
    assert matched_labels([5, 5, 2], [0, 1, 1]).tolist() == [5, 2, 2]
    # Two new clusters share most with old cluster 0: the larger part stays.
    assert matched_labels([0, 0, 0, 0, 0], [7, 7, 7, 3, 3]).tolist() == [0, 0, 0, 1, 1]
    assert matched_labels([-1, -1], [1, 0]).tolist() == [1, 0]
    assert matched_labels([], []).tolist() == []
    assert matched_labels([0, 1], [-1, -1]).tolist() == [-1, -1]


def test_empty_clusters_have_numbers_too() -> None:
    assert numbers_of([0, 0, 2], [1, 1, 0], 4).tolist() == [2, 0, 1, 3]
    assert numbers_of([], [], 2).tolist() == [0, 1]


@given(LABELS)
def test_nobody_moves_without_need(both: list[tuple[int, int]]) -> None:
    old, new = (np.array([pair[i] for pair in both], np.int64) for i in (0, 1))
    found = matched_labels(old, new)
    assert moved(old, found) <= moved(old, new)
    assert ((found < 0) == (new < 0)).all()
    # The same clusters as before, by other numbers.
    for i in range(len(new)):
        assert ((new == new[i]) == (found == found[i])).all()
    least = min(
        moved(old, np.array([-1 if each < 0 else order[each] for each in new], np.int64))
        for order in permutations(range(6), 4)
    )
    assert moved(old, found) == least


@given(LABELS)
def test_what_stays_is_left_alone(both: list[tuple[int, int]]) -> None:
    old = np.array([one for one, _ in both], np.int64)
    assert matched_labels(old, old).tolist() == old.tolist()


@pytest.mark.parametrize(
    ("old", "new", "parameter", "shown"),
    [
        ([0, 1], [0], "new", ["1 labels", "2"]),
        ([0, -2], [0, 0], "old", ["-2", "member 1"]),
        ([0.5], [0], "old", ["float64"]),
        ([0], [[0]], "new", ["(1, 1)"]),
    ],
)
def test_invalid_labels(old: Any, new: Any, parameter: str, shown: list[str]) -> None:
    with refused(ParameterError, *shown, parameter=parameter):
        matched_labels(old, new)
