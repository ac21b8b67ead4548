from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist

from narrowcast.errors import ParameterError
from narrowcast.lab.spectral import fidelity as module
from narrowcast.lab.spectral.fidelity import Stress, apart, between, neighbourhood, stress
from support.errors import refused

FOLDER = Path(__file__).parents[2] / "golden"
METRICS = json.loads((FOLDER / "tariq2012_metrics.json").read_text())
EMBEDDINGS = json.loads((FOLDER / "tariq2012_embeddings.json").read_text())
HISTORIES = json.loads((FOLDER / "tariq2012_histories_sims.json").read_text())["histories"]

Doubles = NDArray[np.float64]


def jaccard() -> Doubles:
    sets = [set(history) for history in HISTORIES]
    return np.array([[len(a & b) / len(a | b) for b in sets] for a in sets])


def rassoc(similarity: Doubles, dimension: int) -> Doubles:
    """The rows of a similarity, less their mean, along the first directions (the page of tariq2012)."""
    centred = similarity - similarity.mean(axis=1, keepdims=True)
    return np.asarray(centred.T @ np.linalg.svd(centred)[0][:, :dimension])


def given_as(distance: Doubles) -> Any:
    return lambda start, stop: distance[start:stop]


def test_golden_stress() -> None:
    embedded = rassoc(jaccard(), EMBEDDINGS["k"])
    assert between(embedded)(0, 24) == pytest.approx(np.array(EMBEDDINGS["rassoc_pdist"]), abs=2e-8)
    found = stress(jaccard(), embedded)
    assert found.plain == pytest.approx(EMBEDDINGS["rassoc_stress"], rel=1e-9)
    assert found.printed == pytest.approx(EMBEDDINGS["stress_printed"], rel=1e-9)


def test_golden_neighbourhood() -> None:
    points = np.array(METRICS["tc_X1"])
    found = neighbourhood(points, points[:, :2], METRICS["tc_kappa"])
    assert found.trustworthiness == pytest.approx(METRICS["trust"], abs=1e-12)
    assert found.continuity == pytest.approx(METRICS["cont"], abs=1e-12)
    assert found.hscore == pytest.approx(METRICS["hscore"], abs=1e-12)
    swapped = neighbourhood(points[:, :2], points, METRICS["tc_kappa"])
    assert (swapped.trustworthiness, swapped.continuity) == (found.continuity, found.trustworthiness)


def literal(original: Doubles, embedded: Doubles, kappa: int) -> float:
    """Trustworthiness from ranks by distance and number, item by item."""
    n, total = len(original), 0
    for i in range(n):
        others = [j for j in range(n) if j != i]
        here = sorted(others, key=lambda j: (original[i, j], j))
        there = sorted(others, key=lambda j: (embedded[i, j], j))
        total += sum(here.index(j) + 1 - kappa for j in there[:kappa] if j not in here[:kappa])
    return 1 - 2 / (n * kappa * (2 * n - 3 * kappa - 1)) * total


@given(st.data(), st.integers(3, 11))
def test_neighbourhoods_equal_their_literal_loops(data: st.DataObject, n_items: int) -> None:
    whole = st.integers(0, 3).map(float)  # ties abound
    original, embedded = (data.draw(arrays(np.float64, (n_items, n_items), elements=whole)) for _ in range(2))
    kappa = data.draw(st.integers(1, (n_items - 1) // 2))
    found = neighbourhood(given_as(original), given_as(embedded), kappa)
    assert found.trustworthiness == pytest.approx(literal(original, embedded, kappa), abs=1e-12)
    assert found.continuity == pytest.approx(literal(embedded, original, kappa), abs=1e-12)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.random.default_rng(0).random((60, 4))
    whole = neighbourhood(points, points[:, :1], 5), stress(points, points[:, :1])
    monkeypatch.setattr(module, "_BLOCK", 200)
    assert neighbourhood(points, points[:, :1], 5) == whole[0]
    assert stress(points, points[:, :1]) == pytest.approx(whole[1])


def test_a_scale_is_found() -> None:
    points = np.random.default_rng(0).random((30, 3))
    found = stress(points, 5 * points)
    assert found.plain == pytest.approx(16)
    assert found.scaled == pytest.approx(0, abs=1e-12)
    assert found.printed == pytest.approx(30 * 29 * 0.8**2)
    flat = stress(points, points[:, :2])
    best = min(stress(points, scale * points[:, :2]).plain for scale in np.linspace(0.5, 3, 2501))
    assert flat.scaled == pytest.approx(best, rel=1e-4)


def test_points_that_coincide() -> None:
    same, apart_ = np.zeros((3, 2)), np.array([[0.0], [1.0], [2.0]])
    assert stress(same, same) == Stress(0.0, 0.0, 0.0)
    assert stress(same, apart_).plain == math.inf
    assert stress(apart_, same) == pytest.approx((1.0, 1.0, 12e12))


@pytest.mark.parametrize("dimension", [3, 200])
def test_wide_points_are_as_far_as_narrow_ones(dimension: int) -> None:
    points = np.random.default_rng(0).random((40, dimension))
    points[7] = points[3]
    found = between(points)(2, 30)
    assert found == pytest.approx(cdist(points, points)[2:30], abs=1e-9)
    assert found[1, 7] == found[5, 3] == found[0, 2] == 0


def test_a_sparse_similarity_is_as_good_as_a_dense_one() -> None:
    similarity = jaccard()
    dense, sparse = apart(similarity), apart(csr_array(similarity))
    assert dense(3, 9).tolist() == sparse(3, 9).tolist() == (1 - similarity[3:9]).tolist()
    far = given_as(np.array(EMBEDDINGS["ncut_pdist"]))
    assert neighbourhood(sparse, far, 5) == neighbourhood(dense, far, 5)


@pytest.mark.parametrize(
    ("call", "shown", "parameter"),
    [
        (lambda: neighbourhood(np.zeros((6, 1)), np.zeros((6, 1)), 3), [3, 6], "kappa"),
        (
            lambda: neighbourhood(np.zeros((0, 1)), np.zeros((0, 1)), 3),
            [3, 0],
            "kappa",
        ),
        (lambda: neighbourhood([[0.0]], [[0.0]], 0), [0], "kappa"),
        (lambda: stress(np.zeros((2, 1)), np.zeros((3, 1))), ["(1, 2)", "(1, 3)", 0], "embedded"),
        (lambda: apart(np.zeros((2, 3))), ["(2, 3)"], "similarity"),
        (lambda: between([1.0]), ["(1,)"], "points"),
    ],
)
def test_bad_input(call: Any, shown: list[Any], parameter: str) -> None:
    with refused(ParameterError, *shown, parameter=parameter):
        call()
