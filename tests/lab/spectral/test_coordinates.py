"""Coordinates of all rows: ratio association, normalised cut, and what they are found by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.linalg import eigh
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist

from narrowcast.errors import ParameterError
from narrowcast.lab.spectral import decomposition
from narrowcast.lab.spectral import rassoc as linear
from narrowcast.lab.spectral.cosine import Cosine
from narrowcast.lab.spectral.decomposition import largest, signed
from narrowcast.lab.spectral.ncut import ncut, weights
from narrowcast.lab.spectral.rassoc import rassoc
from narrowcast.lab.spectral.similarity import SIMILARITIES, Similarity, similarity
from narrowcast.model.relation import Relation, relation
from support.errors import refused

GOLDENS = Path(__file__).parents[2] / "golden"
HISTORIES = json.loads((GOLDENS / "tariq2012_histories_sims.json").read_text())
GOLDEN = json.loads((GOLDENS / "tariq2012_embeddings.json").read_text())
kinds = pytest.mark.parametrize("kind", list(SIMILARITIES))


def golden_rows() -> Relation:
    wants = np.zeros((24, 120), np.bool_)
    for row, events in zip(wants, HISTORIES["histories"], strict=True):
        row[events] = True
    return relation(wants)


def many(n: int = 150, events: int = 60, seed: int = 0) -> Relation:
    """Rows around some centres, some of them alone."""
    rng = np.random.default_rng(seed)
    centre = rng.integers(0, events - 12, n)
    wants = np.abs(np.arange(events) - centre[:, None]) < rng.integers(1, 6, n)[:, None]
    wants &= rng.random(wants.shape) < 0.7
    return relation(wants)


def test_ratio_association_of_the_vector() -> None:
    found = similarity(golden_rows())
    axes = rassoc(found, 6)
    np.testing.assert_allclose(axes.values, GOLDEN["rassoc_singular_values"], rtol=1e-7)
    points = rassoc(found, GOLDEN["k"]).place(found)
    np.testing.assert_allclose(cdist(points, points), GOLDEN["rassoc_pdist"], atol=1e-6)


def test_normalised_cut_of_the_vector() -> None:
    weight = weights(similarity(golden_rows()), square=0.1)
    assert len(np.unique(weight.components())) == GOLDEN["ncut_components"]
    modes = ncut(weight, GOLDEN["k"])
    np.testing.assert_allclose(modes.values, GOLDEN["ncut_lambda"], rtol=1e-6)
    np.testing.assert_allclose(cdist(modes.vectors, modes.vectors), GOLDEN["ncut_pdist"], atol=1e-5)
    # q' D q = 1, and one q is at a right angle to another by D.
    assert (modes.vectors.T * modes.degree) @ modes.vectors == pytest.approx(np.eye(4), abs=1e-9)


@kinds
def test_the_mean_column_is_taken_off(kind: str) -> None:
    found = similarity(golden_rows(), kind=kind)
    whole = found.toarray()
    _, value, right = np.linalg.svd(whole - whole.mean(axis=1, keepdims=True))
    axes = rassoc(found, 5)
    assert axes.values == pytest.approx(value[:5])
    points = axes.place(found)
    assert np.abs(points) == pytest.approx(np.abs((value[:5, None] * right[:5]).T), abs=1e-9)
    assert points.mean(axis=0) == pytest.approx(np.zeros(5), abs=1e-9)


@kinds
def test_ratio_association_by_products_equals_that_of_the_array(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = similarity(many(), kind=kind)
    dense = rassoc(found, 5)
    monkeypatch.setattr(linear, "DENSE", 30)
    monkeypatch.setattr(decomposition, "DENSE", 30)
    sparse = rassoc(found, 5)
    assert sparse.values == pytest.approx(dense.values)
    assert np.abs(sparse.vectors) == pytest.approx(np.abs(dense.vectors), abs=1e-6)


def test_ratio_association_in_the_space_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = many(300, 40)
    made = rassoc(similarity(rows, kind="cosine"), 6)
    for pays in (True, False):
        monkeypatch.setattr(linear, "_pays", lambda _, pays=pays: pays)
        kept = rassoc(Cosine.of(rows), 6)
        assert kept.values == pytest.approx(made.values)
        assert kept.vectors == pytest.approx(made.vectors, abs=1e-7)
        assert kept.place(Cosine.of(rows)) == pytest.approx(
            made.place(similarity(rows, kind="cosine")), abs=1e-5
        )


def reference(weight: Any, k: int) -> tuple[Any, Any]:
    """The smallest eigenvalues above 0 of (D - W) q = v D q, by the array, for rows that have weights."""
    np.fill_diagonal(weight, 0.0)
    weight[np.abs(weight) < 1e-14] = 0.0
    linked = weight.sum(axis=1) > 0
    some = weight[np.ix_(linked, linked)]
    if not len(some):
        return np.zeros(0), np.zeros((len(weight), 0))
    degree = np.diag(some.sum(axis=1))
    value, vector = eigh(degree - some, degree)
    kept = np.flatnonzero(value > 1e-9)[:k]
    whole = np.zeros((len(weight), len(kept)))
    whole[linked] = vector[:, kept]
    return value[kept], whole


@kinds
@pytest.mark.parametrize("kernel", ["distance", "printed", "none"])
@settings(max_examples=30)
@given(wants=arrays(np.bool_, st.tuples(st.integers(0, 9), st.integers(1, 6))), k=st.integers(1, 10))
def test_normalised_cut_equals_the_general_problem(kernel: Any, kind: str, wants: Any, k: int) -> None:
    weight = weights(similarity(relation(wants), kind=kind), kernel=kernel, square=0.3)
    modes = ncut(weight, k)
    value, vector = reference(weight.toarray(), k)
    assert modes.values == pytest.approx(value, abs=1e-9)
    assert modes.vectors.shape == vector.shape
    # Vectors of equal values may be turned: what they span is compared where the next value is another one.
    whole, _ = reference(weight.toarray(), 100)
    if len(value) == len(whole) or (len(value) and whole[len(value)] - value[-1] > 1e-6):
        assert modes.vectors @ modes.vectors.T == pytest.approx(vector @ vector.T, abs=1e-6)


@pytest.mark.parametrize("kernel", ["distance", "none"])
@pytest.mark.parametrize("kind", ["jaccard", "simple-matching", "cosine"])
def test_normalised_cut_by_products_equals_that_of_the_array(
    kind: str, kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = weights(similarity(many(), kind=kind), kernel=kernel)
    dense = ncut(weight, 6)
    monkeypatch.setattr(decomposition, "DENSE", 30)
    sparse = ncut(weight, 6)
    assert sparse.values == pytest.approx(dense.values)
    assert sparse.vectors == pytest.approx(dense.vectors, abs=1e-6)
    if kind == "cosine" and kernel == "none":
        assert ncut(Cosine.of(many()), 6).vectors == pytest.approx(dense.vectors, abs=1e-6)


def test_every_part_has_a_mode_that_is_left_out() -> None:
    """Three paths, a pair and one alone: nothing that is left tells a part from another by a constant."""
    path = np.diag(np.ones(4), 1)
    blocks = [path[:5, :5], path[:4, :4], path[:3, :3], path[:2, :2], np.zeros((1, 1))]
    n = sum(len(each) for each in blocks)
    whole, at = np.zeros((n, n)), 0
    for each in blocks:
        whole[at : at + len(each), at : at + len(each)] = each + each.T
        at += len(each)
    modes = ncut(Similarity.of(csr_array(whole)), 100)
    assert modes.vectors.shape == (n, n - 5)
    assert modes.values.min() > 0.1
    assert not modes.vectors[-1].any()
    still = modes.degree @ modes.vectors
    assert still == pytest.approx(np.zeros(n - 5), abs=1e-9)


@pytest.mark.parametrize("square", [3e-4, 1e-3])
def test_weights_of_any_size_are_weights(square: float) -> None:
    """A kernel that leaves next to nothing still leaves a graph: here a path of three."""
    rows = relation(np.ones((3, 10)) - np.eye(10)[[0, 1, 1]] - np.eye(10)[[1, 0, 2]] * [[0], [1], [0]])
    found = similarity(rows).toarray()
    assert found[0, 1] == found[1, 2] == 8 / 9 > found[0, 2]
    assert ncut(weights(similarity(rows), square=square), 2).values == pytest.approx([1, 2])
    assert ncut(weights(similarity(rows), square=1e-6), 2).vectors.shape == (3, 0)


def test_kernels() -> None:
    found = similarity(relation([[1, 1, 0], [0, 1, 1], [1, 1, 1]]))
    s = found.toarray()
    there = s > 0
    assert weights(found).toarray() == pytest.approx(np.where(there, np.exp(-(1 - s) / 0.1), 0))
    assert weights(found, kernel="printed", square=0.5).toarray() == pytest.approx(np.exp(-s / 0.5))
    assert weights(found, kernel="none") is found


@given(wants=arrays(np.bool_, st.tuples(st.integers(1, 12), st.integers(1, 6))), k=st.integers(1, 4))
def test_rows_are_where_they_would_be_placed(wants: Any, k: int) -> None:
    rows = relation(wants)
    found = similarity(rows)
    axes = rassoc(found, k)
    assert axes.place(similarity(rows, rows[:1])) == pytest.approx(axes.place(found)[:1], abs=1e-9)
    weight = weights(found)
    modes = ncut(weight, k)
    again = modes.place(weight.apart())
    gone = np.abs(1 - modes.values) <= 1e-9
    assert again[:, ~gone] == pytest.approx(modes.vectors[:, ~gone], abs=1e-6)
    assert not again[:, gone].any()
    unweighted = modes.place(Similarity.of(csr_array((len(wants), 2))))
    assert unweighted.tolist() == np.zeros((2, len(modes.values))).tolist()


@pytest.mark.parametrize("n", [1, 3, 500])
def test_all_histories_equal_or_of_one_event(n: int) -> None:
    for rows in (relation(np.ones((n, 4))), relation(np.ones((n, 1)))):
        for likeness in (similarity(rows), Cosine.of(rows)):
            axes = rassoc(likeness, 3)
            assert axes.vectors.shape == (n, 0)
            modes = ncut(likeness, 3)
            assert modes.vectors.shape == (n, min(n - 1, 3))
            assert np.isfinite(modes.vectors).all()


def test_largest_of_a_matrix_that_is_0_or_of_low_rank() -> None:
    assert largest(lambda x: 0 * x, 1000, 3)[1].shape == (1000, 0)
    vector = np.random.default_rng(0).random((1000, 2))
    found, _ = largest(lambda x: vector @ (vector.T @ x), 1000, 4)
    assert found[:2] == pytest.approx(np.linalg.eigvalsh(vector.T @ vector)[::-1])
    assert found[2:] == pytest.approx([0, 0], abs=1e-8)


def test_what_does_not_get_there_is_taken_from_the_array(monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.sparse.linalg import ArpackNoConvergence

    def stopped(*_: Any, **__: Any) -> Any:
        raise ArpackNoConvergence("stopped: %s", np.array([9.0]), np.ones((500, 1)))

    monkeypatch.setattr(decomposition, "eigsh", stopped)
    scale = np.arange(500.0)
    value, vector = largest(lambda x: (x.T * scale).T, 500, 2)
    assert value == pytest.approx([499, 498])
    assert np.abs(vector).argmax(axis=0).tolist() == [499, 498]
    monkeypatch.setattr(decomposition, "_WHOLE", 450)
    value, vector = largest(lambda x: (x.T * scale).T, 500, 2)
    assert value.tolist() == [9.0]
    assert vector.shape == (500, 1)


def test_signs_are_fixed() -> None:
    vectors = np.array([[1.0, -2.0, 0.0], [-3.0, 2.0, 0.0]])
    assert signed(vectors).tolist() == signed(-vectors).tolist() == [[-1, 2, 0], [3, -2, 0]]


@pytest.mark.parametrize(
    ("given_", "parameter"),
    [({"kernel": "gauss"}, "kernel"), ({"square": 0.0}, "sigma"), ({"square": float("nan")}, "sigma")],
)
def test_bad_input(given_: dict[str, Any], parameter: str) -> None:
    with refused(ParameterError, *given_.values(), parameter=parameter):
        weights(similarity(relation([[1]])), **given_)
