from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.errors import ParameterError
from narrowcast.model.interest import Interest
from narrowcast.planning.baselines.simple import Broadcast, Hash, PerFlow, Unicast, stable_hash
from support.errors import refused

WANTS = [[1, 1, 0, 0], [0, 1, 1, 0]]
INTEREST = Interest(WANTS, rate=[5, 1, 2, 9], flows=["a", "b", "c", "nobody's"])


def test_unicast() -> None:
    plan = Unicast().fit(INTEREST).plan_
    assert plan.n_channels == 0
    assert plan.unicast.toarray().astype(int).tolist() == WANTS


def test_broadcast() -> None:
    plan = Broadcast(channels=5).fit(INTEREST).plan_
    assert (plan.n_channels, plan.unicast.nnz) == (1, 0)
    assert plan.carries.toarray().all()
    assert plan.listens.toarray().all()


def test_per_flow() -> None:
    plan = PerFlow().fit(INTEREST).plan_
    assert plan.carries.toarray().astype(int).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]
    assert plan.listens.toarray().astype(int).tolist() == [[1, 1, 0], [0, 1, 1]]
    assert plan.unicast.nnz == 0


def test_per_flow_gives_the_heaviest_a_channel_and_ties_to_the_first() -> None:
    # rate x audience: a 5, b 2, c 2, nobody's 0.
    plan = PerFlow(channels=2).fit(INTEREST).plan_
    assert plan.carries.toarray().astype(int).tolist() == [[1, 0], [0, 1], [0, 0], [0, 0]]
    assert plan.unicast.toarray().astype(int).tolist() == [[0, 0, 0, 0], [0, 0, 1, 0]]


def test_hash_spreads_flows_and_listening_follows() -> None:
    interest = Interest(np.ones((1, 10_000)))
    plan = Hash(channels=16).fit(interest).plan_
    assert plan.n_channels == 16
    assert np.diff(plan.carries.indptr).tolist() == [1] * 10_000
    load = np.bincount(plan.carries.indices, minlength=16)
    assert abs(load - 625).max() < 100  # four standard deviations
    one = Hash(channels=1000).fit(Interest([[1, 0]], flows=["a", "b"])).plan_
    assert one.listens.indices.tolist() == [one.carries.indices[0]]
    assert one.carries.indices.tolist() == [0x82A2A958A9BECE5B % 1000, 0x6E673288764AD2D0 % 1000]


def test_hash_needs_channels() -> None:
    with refused(ParameterError, "hash", parameter="channels", value=None):
        Hash().fit(INTEREST)


def literal_hash(label: Any) -> int:
    h = 0xCBF29CE484222325
    for byte in str(label).encode():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    h = (h ^ h >> 33) * 0xFF51AFD7ED558CCD % 2**64
    h = (h ^ h >> 33) * 0xC4CEB9FE1A85EC53 % 2**64
    return h ^ h >> 33


@given(
    st.one_of(
        st.tuples(st.just(pa.int64()), st.lists(st.integers(-(2**63), 2**63 - 1))),
        st.tuples(st.just(pa.uint64()), st.lists(st.integers(0, 2**64 - 1))),
        st.tuples(st.just(pa.string()), st.lists(st.text())),
        st.tuples(st.just(pa.large_string()), st.lists(st.text(max_size=3))),
    ),
    st.integers(0, 3),
)
def test_the_hash_is_the_documented_one(case: tuple[Any, list[Any]], skipped: int) -> None:
    kind, labels = case
    # A slice shares its buffers with the whole and starts inside them.
    assert stable_hash(pa.array(labels, kind).slice(skipped)).tolist() == [
        literal_hash(x) for x in labels[skipped:]
    ]


@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_hash_is_the_same_in_every_process(seed: str) -> None:
    code = (
        "import pyarrow as pa; from narrowcast.planning.baselines.simple import stable_hash\n"
        "print(*stable_hash(pa.array(['x', 'y'])))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == [str(literal_hash(label)) for label in ("x", "y")]


def test_the_order_of_rows_does_not_matter() -> None:
    rows = pa.table({"subscriber": ["s", "t", "s"], "flow": ["x", "y", "z"]})
    one, other = (
        Hash(channels=4).fit(Interest.from_tables(rows.take(order))).plan_ for order in ([0, 1, 2], [2, 1, 0])
    )
    assert one == other
