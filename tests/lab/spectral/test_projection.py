from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from narrowcast.errors import ParameterError
from narrowcast.lab.spectral.projection import basis_change, cut_projection
from narrowcast.lab.spectral.similarity import Similarity
from support.errors import refused

GOLDEN: dict[str, Any] = {
    name: np.array(value)
    for name, value in json.loads(
        (Path(__file__).parents[2] / "golden" / "tariq2012_projections.json").read_text()
    ).items()
}
FORMS = {"rw": "B_rw", "sym": "B_sym", "group": "B_group_exact", "printed": "B_group_printed"}


def projected(
    form: Any, own: Any, above: Any, weight: Any, degree: Any = None, degree_above: Any = None
) -> Any:
    matrix = Similarity.of(csr_array(weight))
    return cut_projection(own, above, matrix, form, degree=degree, degree_above=degree_above)


def loss(b: Any, own: Any, above: Any, weight: Any, d: Any, e: Any) -> float:
    """Equation 4, term by term."""
    total = 0.0
    for j, x in enumerate(own):
        for i, y in enumerate(above):
            total += weight[j, i] * float(((y / e[i] ** 0.5 - x @ b / d[j] ** 0.5) ** 2).sum())
    return total


@pytest.mark.parametrize("form", list(FORMS))
def test_projections_of_the_vector(form: str) -> None:
    found = projected(form, *(GOLDEN[name] for name in ("X", "Y", "W", "dg", "dp")))
    np.testing.assert_allclose(found, GOLDEN[FORMS[form]], atol=1e-9)


def test_the_change_of_basis_of_the_vector() -> None:
    found = basis_change(GOLDEN["lsq_X"], GOLDEN["lsq_Y"])
    np.testing.assert_allclose(found, GOLDEN["lsq_B"], atol=1e-9)


@pytest.mark.parametrize("form", ["rw", "sym", "group"])
@given(seed=st.integers(0, 10**6), k=st.integers(1, 3), m=st.integers(1, 3))
def test_the_gradient_of_equation_4_vanishes_at_the_projection(form: str, seed: int, k: int, m: int) -> None:
    rng = np.random.default_rng(seed)
    own, above = rng.normal(size=(8, k)), rng.normal(size=(6, m))
    weight = rng.random((8, 6)) * (rng.random((8, 6)) < 0.6) + 0.01
    d, e = {
        "rw": (np.ones(8), np.ones(6)),
        "sym": (weight.sum(axis=1), weight.sum(axis=0)),
        "group": (rng.random(8) + 0.5, rng.random(6) + 0.5),
    }[form]
    found = projected(form, own, above, weight, d, e)
    step = 1e-4
    for place in np.ndindex(found.shape):
        there, here = found.copy(), found.copy()
        there[place] += step
        here[place] -= step
        slope = (loss(there, own, above, weight, d, e) - loss(here, own, above, weight, d, e)) / (2 * step)
        assert slope == pytest.approx(0, abs=1e-6)
        assert loss(there, own, above, weight, d, e) >= loss(found, own, above, weight, d, e)


def test_the_printed_formula_is_not_the_least_with_degrees_of_groups() -> None:
    own, above, weight, d, e = (GOLDEN[name] for name in ("X", "Y", "W", "dg", "dp"))
    exact, printed = (projected(form, own, above, weight, d, e) for form in ("group", "printed"))
    assert loss(exact, own, above, weight, d, e) < 0.999 * loss(printed, own, above, weight, d, e)


@pytest.mark.parametrize("form", list(FORMS))
def test_rows_without_weights_change_nothing(form: str) -> None:
    rng = np.random.default_rng(3)
    own, above, weight = rng.normal(size=(8, 2)), rng.normal(size=(5, 2)), rng.random((8, 5))
    d, e = weight.sum(axis=1), weight.sum(axis=0)
    before = projected(form, own, above, weight, d, e)
    more = np.pad(weight, ((0, 1), (0, 1)))
    own_more = np.concatenate([own, np.zeros((1, 2))])
    above_more = np.concatenate([above, [[9.0, 9.0]]])
    found = projected(form, own_more, above_more, more, np.append(d, 0.0), np.append(e, 0.0))
    assert found == pytest.approx(before)


def test_landmarks_fewer_than_dimensions_give_the_smallest_projection() -> None:
    own, above = np.array([[1.0, 1.0, 0.0]]), np.array([[2.0, 4.0]])
    found = basis_change(own, above)
    assert found == pytest.approx(np.array([[1, 2], [1, 2], [0, 0]]))
    assert own @ found == pytest.approx(above)
    assert basis_change(np.zeros((0, 3)), np.zeros((0, 2))).tolist() == np.zeros((3, 2)).tolist()
    assert projected("rw", np.zeros((4, 0)), np.ones((2, 1)), np.ones((4, 2))).shape == (0, 1)


def test_bad_input() -> None:
    one = np.ones((2, 1))
    with refused(ParameterError, parameter="form", value="lw"):
        projected("lw", one, one, np.ones((2, 2)))
    with refused(ParameterError, "group", parameter="degree", value=None):
        projected("group", one, one, np.ones((2, 2)))
