"""The same histories have the same coordinates, and are in the same cluster, however many there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast.lab.spectral import Ncut, Rassoc, decomposition
from narrowcast.lab.spectral.ncut import ncut, weights
from narrowcast.lab.spectral.similarity import SIMILARITIES, similarity
from narrowcast.lab.spectral.space import Association, SpaceCut
from narrowcast.model.interest import Interest
from narrowcast.model.relation import relation

kinds = pytest.mark.parametrize("kind", list(SIMILARITIES))
both = pytest.mark.parametrize("method", [Rassoc, Ncut])
#: Some histories, and how often each is there: none of them empty, as planners leave these out.
histories = arrays(np.bool_, st.tuples(st.integers(1, 6), st.integers(1, 5))).filter(
    lambda wants: bool(wants.any(axis=1).all())
)
counts = st.lists(st.integers(1, 4), min_size=6, max_size=6)


def same(label: Any, wants: Any) -> bool:
    """Whether rows of one kind have one label, or one point."""
    first, kind = np.unique(wants, axis=0, return_index=True, return_inverse=True)[1:]
    return bool((label == label[first[kind.ravel()]]).all())


@kinds
@pytest.mark.parametrize("kernel", ["distance", "printed", "none"])
@settings(max_examples=40)
@given(wants=histories, times=counts, k=st.integers(1, 8))
@example(wants=np.ones((1, 1), np.bool_), times=[4] * 6, k=3)  # one event only
@example(wants=np.ones((1, 3), np.bool_), times=[4] * 6, k=2)  # all histories equal
@example(wants=np.eye(3, dtype=np.bool_), times=[2] * 6, k=4)  # parts that are alike
def test_equal_histories_have_equal_coordinates(
    kind: str, kernel: Any, wants: Any, times: list[int], k: int
) -> None:
    whole = np.repeat(wants, times[: len(wants)], axis=0)
    whole = whole[np.random.default_rng(0).permutation(len(whole))]
    for space in (
        Association(dimensions=k, similarity=kind),
        SpaceCut(dimensions=k, similarity=kind, kernel=kernel, square=0.3),
    ):
        frame = space.frame(relation(whole))
        assert same(frame.own.round(9), whole)
        assert frame.own.shape[1] <= len(np.unique(whole, axis=0))


@kinds
@settings(max_examples=40)
@given(wants=histories, times=counts, k=st.integers(1, 20))
def test_counted_rows_solve_the_problem_of_all(kind: str, wants: Any, times: list[int], k: int) -> None:
    """(D - W) q = v D q holds for all rows, with q' D q = 1, and no other solution is the same for equals."""
    wants = np.unique(wants, axis=0)
    count = np.array(times[: len(wants)])
    number = np.repeat(np.arange(len(wants)), count)
    modes = ncut(weights(similarity(relation(wants), kind=kind), square=0.3), k, count)
    weight = weights(similarity(relation(wants[number]), kind=kind), square=0.3).toarray()
    np.fill_diagonal(weight, 0.0)
    degree, q = weight.sum(axis=1), modes.vectors[number]
    assert modes.degree[number] == pytest.approx(degree, abs=1e-12)
    assert degree[:, None] * q - weight @ q == pytest.approx(degree[:, None] * q * modes.values, abs=1e-9)
    assert q.T @ (degree[:, None] * q) == pytest.approx(np.eye(q.shape[1]), abs=1e-9)
    linked = degree[np.unique(number, return_index=True)[1]] > 0
    parts = len(np.unique(similarity(relation(wants[linked]), kind=kind).components()))
    if kind != "simple-matching":  # by which others that share nothing hang together as well
        assert q.shape[1] == min(k, int(linked.sum()) - parts)


def test_products_find_what_the_array_has(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    wants = np.unique(rng.random((120, 30)) < 0.2, axis=0)
    weight, count = weights(similarity(relation(wants))), rng.integers(1, 5, len(wants))
    dense = ncut(weight, 6, count)
    monkeypatch.setattr(decomposition, "DENSE", 30)
    found = ncut(weight, 6, count)
    assert found.values == pytest.approx(dense.values)
    assert found.vectors == pytest.approx(dense.vectors, abs=1e-6)


@both
@settings(max_examples=40)
@given(wants=histories, times=counts, channels=st.integers(1, 6), dimensions=st.integers(1, 6))
@example(wants=np.ones((1, 1), np.bool_), times=[4] * 6, channels=3, dimensions=3)
@example(wants=np.eye(3, dtype=np.bool_), times=[2] * 6, channels=2, dimensions=4)
def test_equal_histories_are_in_one_cluster(
    method: Any, wants: Any, times: list[int], channels: int, dimensions: int
) -> None:
    whole = np.repeat(wants, times[: len(wants)], axis=0)
    planner = method(channels=channels, dimensions=dimensions).fit(Interest(whole))
    assert same(planner.plan_.listens.indices, whole)
