"""Lists as bytes: what comes back is what went in, in the form that takes less."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.spark.stages import packed_lists as module
from narrowcast.spark.stages.packed_lists import pack_lists, relation_in, unpack_lists

HEAD = 40


@given(width=st.sampled_from([1, 7, 8, 9, 255, 256, 257, 65_536, 65_537]), data=st.data())
def test_what_comes_back_is_what_went_in(width: int, data: st.DataObject) -> None:
    each = st.sets(st.integers(0, width - 1), max_size=12).map(sorted)
    given_ = data.draw(st.lists(each, max_size=6))
    length = np.array([len(one) for one in given_], np.int64)
    number = np.array([value for one in given_ for value in one], np.int32)
    packed = pack_lists(length, number, width)
    found = unpack_lists(packed)
    assert [part.tolist() for part in found] == [length.tolist(), number.tolist()]
    assert relation_in(packed).shape == (len(given_), width)
    np.testing.assert_array_equal(relation_in(packed).indices, number)


def test_the_form_that_takes_less() -> None:
    half = np.arange(0, 1024, 2, dtype=np.int32)
    assert len(pack_lists(np.array([512]), half, 1024)) == HEAD + 128
    assert len(pack_lists(np.array([3]), half[:3], 1024)) == HEAD + 1 + 3 * 2
    assert len(pack_lists(np.array([3]), half[:3], 256)) == HEAD + 1 + 3
    assert len(pack_lists(np.array([3]), half[:3], 1 << 17)) == HEAD + 1 + 3 * 4


def test_flags_in_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = np.random.default_rng(1).random((50, 30)) < 0.6
    length, number = flags.sum(axis=1), np.nonzero(flags)[1].astype(np.int32)
    whole = pack_lists(length, number, 30)
    monkeypatch.setattr(module, "_CELLS", 100)
    assert pack_lists(length, number, 30) == whole
    np.testing.assert_array_equal(relation_in(whole).toarray(), flags)


def test_nothing() -> None:
    for length in (np.zeros(0, np.int64), np.zeros(3, np.int64)):
        packed = pack_lists(length, np.zeros(0, np.int32), 0)
        assert [part.tolist() for part in unpack_lists(packed)] == [length.tolist(), []]
        assert relation_in(packed).shape == (len(length), 0)


def test_a_number_that_is_there_twice() -> None:
    number = np.array([1, 1, 0, 2, 2], np.int32)
    length, found = unpack_lists(pack_lists(np.array([3, 2]), number, 4))
    assert (length.tolist(), found.tolist()) == ([2, 1], [0, 1, 2])
