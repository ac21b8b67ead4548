"""The channel of each subscription."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.errors import NarrowcastError, PlanError
from narrowcast.model.placement import Placement
from support.errors import refused


def test_ids_are_kept_in_order() -> None:
    placement = Placement([9, 2, 5], [1, 0, 1])
    assert placement.to_table().to_pydict() == {"subscription_id": [2, 5, 9], "channel": [0, 1, 1]}
    assert placement.to_table().schema.types == [pa.int64(), pa.int32()]
    assert placement == Placement([2, 5, 9], [0, 1, 1]) == pickle.loads(pickle.dumps(placement))
    assert placement != Placement([2, 5, 9], [0, 1, 0])
    assert placement != "another kind"
    with pytest.raises(ValueError, match="read-only"):
        placement.channel[0] = 3


@given(st.dictionaries(st.integers(-9, 9), st.integers(0, 3)), st.lists(st.integers(-10, 10)))
def test_channels_are_found_by_id(channel: dict[int, int], wanted: list[int]) -> None:
    placement = Placement(list(channel), list(channel.values()))
    assert placement.channel_of(wanted).tolist() == [channel.get(each, -1) for each in wanted]
    assert Placement.from_table(placement.to_table()) == placement
    assert len(placement) == len(channel)


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        ({"subscription_id": [1, 1], "channel": [0, 1]}, ("1",)),
        ({"subscription_id": [1], "channel": [-2]}, ("-2", "0")),
        ({"subscription_id": ["a"], "channel": [0]}, ("subscription_id", "string")),
        ({"subscription_id": [1], "channel": [0.5]}, ("channel", "double")),
        ({"subscription_id": [None], "channel": [0]}, ("subscription_id", "1")),
        ({"subscription_id": [1]}, ("channel",)),
    ],
)
def test_bad_tables(columns: dict[str, Any], shown: tuple[str, ...]) -> None:
    table = pa.table(columns)
    if table["subscription_id"].null_count:
        table = pa.table({**columns, "subscription_id": pa.array([None], pa.int64())})
    with refused(NarrowcastError, *shown):
        Placement.from_table(table)


def test_bad_arrays() -> None:
    with refused(PlanError, "2", "1"):
        Placement([1, 2], [0])
    with refused(PlanError, "5", "2", "0", parameter="channel", value=5):
        Placement([1, 2], [4, 5]).check(5)
    with refused(PlanError, "0", "1", parameter="channel", value=0):
        Placement([1], np.zeros(1)).check(0)
