"""Boxes in columns say the same as boxes in a list."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast.errors import InputError
from narrowcast.model import keys
from narrowcast.model.boxes import Boxes
from support.errors import refused

#: One box: who owns it, its (attribute, lo, hi) by ascending attribute, and whether it is exact.
Box = tuple[int, tuple[tuple[int, int, int], ...], bool]

ends = st.sampled_from([keys.NO_LOW, keys.NULL, keys.FIRST, keys.NO_HIGH]) | st.integers(-5, 5)
bounds = st.dictionaries(st.integers(0, 4), st.tuples(ends, ends), max_size=3).map(
    lambda found: tuple((a, *found[a]) for a in sorted(found))
)


def boxes(n_owners: int) -> st.SearchStrategy[list[Box]]:
    one = st.tuples(st.integers(0, n_owners - 1), bounds, st.booleans())
    return st.lists(one, max_size=8) if n_owners else st.just([])


def build(n_owners: int, found: list[Box]) -> Boxes:
    entries = [entry for _, box, _ in found for entry in box]
    attribute, lo, hi = np.array(entries, np.int64).reshape(-1, 3).T
    owner = np.array([owner for owner, _, _ in found], np.int64)
    width = np.array([len(box) for _, box, _ in found], np.int64)
    return Boxes.build(n_owners, owner, width, attribute, lo, hi, np.array([e for *_, e in found], bool))


def listed(columns: Boxes) -> list[Box]:
    entries = list(zip(columns.attribute.tolist(), columns.lo.tolist(), columns.hi.tolist(), strict=True))
    starts = columns.indptr.tolist()
    return [
        (owner, tuple(entries[starts[i] : starts[i + 1]]), exact)
        for i, (owner, exact) in enumerate(zip(columns.owner.tolist(), columns.exact.tolist(), strict=True))
    ]


@settings(max_examples=200)
@given(st.data())
def test_build_orders_boxes_by_owner_and_keeps_their_order_otherwise(data: Any) -> None:
    n = data.draw(st.integers(0, 5))
    found = data.draw(boxes(n))
    columns = build(n, found)
    assert listed(columns) == sorted(found, key=lambda box: box[0])
    assert len(columns) == len(found)
    assert columns.counts.tolist() == [sum(box[0] == owner for box in found) for owner in range(n)]
    assert columns.box.tolist() == [i for i, (_, box, _) in enumerate(listed(columns)) for _ in box]
    assert columns.attribute.dtype == np.int16
    assert columns.nbytes == 17 * len(found) + 8 + 18 * len(columns.attribute)


@settings(max_examples=200)
@given(st.data())
def test_take_keeps_the_boxes_of_some_owners_and_renumbers_them(data: Any) -> None:
    n = data.draw(st.integers(0, 5))
    found = data.draw(boxes(n))
    owners = data.draw(st.permutations(range(n)).flatmap(lambda p: st.integers(0, n).map(lambda k: p[:k])))
    taken = build(n, found).take(np.array(owners, np.int64))
    assert taken.n_owners == len(owners)
    assert listed(taken) == [
        (number, box, exact)
        for number, owner in enumerate(owners)
        for who, box, exact in found
        if who == owner
    ]


def test_columns_cannot_be_written_and_those_of_the_caller_still_can() -> None:
    owner, lo = np.zeros(1, np.int64), np.zeros(1, np.int64)
    mine = Boxes(1, owner, np.array([0, 1]), np.zeros(1, np.int16), lo, lo + 1, np.ones(1, bool))
    for name in ("owner", "indptr", "attribute", "lo", "hi", "exact"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(mine, name)[0] = 0
    owner[0] = lo[0] = 0


def test_an_attribute_past_the_limit_is_refused() -> None:
    assert build(1, [(0, ((2**15 - 1, 0, 1),), True)]).attribute.tolist() == [2**15 - 1]
    with refused(InputError, 2**15, value=2**15):
        build(1, [(0, ((2**15, 0, 1),), True)])
