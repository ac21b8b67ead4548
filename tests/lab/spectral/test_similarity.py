from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from narrowcast.errors import ParameterError
from narrowcast.lab.spectral import similarity as module
from narrowcast.lab.spectral.cosine import Cosine
from narrowcast.lab.spectral.similarity import SIMILARITIES, n_events, similarity
from narrowcast.model.relation import recent, relation
from support.errors import refused

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "tariq2012_histories_sims.json").read_text())
low, high, points = (np.array(GOLDEN[name]) for name in ("lo", "hi", "events"))
MATCHED = relation(((low[:, None] <= points) & (points <= high[:, None])).all(axis=2))
NAMES = {"russell-rao": "russell", "simple-matching": "smc"}
kinds = pytest.mark.parametrize("kind", list(SIMILARITIES))


@st.composite
def tables(draw: st.DrawFn) -> tuple[Any, Any]:
    events = draw(st.integers(0, 7))
    one, other = (draw(arrays(np.bool_, (draw(st.integers(0, 6)), events))) for _ in range(2))
    return one, other


def literal(kind: str, one: Any, other: Any, events: int) -> float:
    """The similarity of two sets, by their definition."""
    x, y = set(np.flatnonzero(one)), set(np.flatnonzero(other))
    if not x or not y:
        return 0.0
    both = len(x & y)
    found: dict[str, float] = {
        "jaccard": both / len(x | y),
        "dice": 2 * both / (len(x) + len(y)),
        "simpson": both / min(len(x), len(y)),
        "cosine": both / (len(x) * len(y)) ** 0.5,
        "russell-rao": both / events,
        "simple-matching": (both + events - len(x | y)) / events,
    }
    return found[kind]


def test_histories_of_the_vector() -> None:
    found = recent(MATCHED, GOLDEN["m"])
    assert [np.flatnonzero(row).tolist() for row in found.toarray()] == GOLDEN["histories"]


@pytest.mark.parametrize("kind", ["jaccard", "dice", "simpson", "russell-rao", "simple-matching"])
def test_similarities_of_the_vector(kind: str) -> None:
    found = similarity(recent(MATCHED, GOLDEN["m"]), kind=kind).toarray()
    np.testing.assert_allclose(found, GOLDEN["sims"][NAMES.get(kind, kind)], atol=5.001e-7)


@given(given_=tables(), last=st.integers(1, 5))
def test_the_last_events_of_each_row(given_: tuple[Any, Any], last: int) -> None:
    wants = given_[0]
    found = recent(relation(wants), last).toarray()
    for row, kept in zip(wants, found, strict=True):
        assert np.flatnonzero(kept).tolist() == np.flatnonzero(row)[-last:].tolist()


@kinds
@given(given_=tables())
def test_similarities_equal_a_double_loop(kind: str, given_: tuple[Any, Any]) -> None:
    one, other = given_
    events = max(int(other.any(axis=0).sum()), 1)
    found = similarity(relation(one), relation(other), kind=kind)
    expected = np.array([[literal(kind, x, y, events) for y in other] for x in one]).reshape(found.shape)
    assert found.toarray() == pytest.approx(expected)
    assert found.T.toarray() == pytest.approx(expected.T)
    vectors = np.random.default_rng(0).random((found.shape[1], 2))
    assert found @ vectors == pytest.approx(expected @ vectors)


@kinds
@given(given_=tables())
def test_of_each_with_each(kind: str, given_: tuple[Any, Any]) -> None:
    rows = relation(given_[0])
    own, both = similarity(rows, kind=kind), similarity(rows, rows, kind=kind)
    assert own.toarray() == pytest.approx(both.toarray())
    assert own.diagonal() == pytest.approx(np.diagonal(own.toarray()))
    apart = own.apart().toarray()
    np.fill_diagonal(expected := own.toarray(), 0.0)
    assert apart == pytest.approx(expected)


@given(given_=tables())
def test_cosine_in_the_space_of_events(given_: tuple[Any, Any]) -> None:
    one, other = (relation(each) for each in given_)
    made, kept = similarity(one, other, kind="cosine"), Cosine.of(one, other)
    assert kept.shape == made.shape
    assert kept.toarray() == pytest.approx(made.toarray())
    vectors = np.random.default_rng(0).random((other.shape[0], 2))
    assert kept @ vectors == pytest.approx(made @ vectors)
    assert kept.T.toarray() == pytest.approx(made.toarray().T)
    own = Cosine.of(one)
    assert own.diagonal() == pytest.approx((np.diff(one.indptr) > 0).astype(float))
    assert same_parts(own.components(), similarity(one).components())


def same_parts(one: Any, other: Any) -> bool:
    """Whether two ways to number parts tell the same rows apart."""
    return bool(((one[:, None] == one) == (other[:, None] == other)).all())


def test_all_that_have_a_history_are_connected_by_simple_matching() -> None:
    rows = relation([[1, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 1]])
    assert same_parts(similarity(rows, kind="simple-matching").components(), np.array([0, 0, 1, 0]))
    assert same_parts(similarity(rows).components(), np.array([0, 1, 2, 3]))


@kinds
def test_blocks_do_not_matter(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = relation(np.random.default_rng(1).random((40, 30)) < 0.2)
    whole = similarity(rows, kind=kind).toarray()
    for bound in (1, 100, 500):
        monkeypatch.setattr(module, "_BLOCK", bound)
        assert np.array_equal(similarity(rows, kind=kind).toarray(), whole)


def test_no_pair_is_stored_that_shares_nothing() -> None:
    rows = relation(np.eye(50))
    for kind in SIMILARITIES:
        assert similarity(rows, kind=kind).shared.nnz == 50


def test_events_are_those_of_some_history() -> None:
    rows = relation([[1, 0, 1, 0], [0, 0, 1, 0]])
    assert n_events(rows) == 2
    assert n_events(rows, relation([[0, 0, 0, 1]])) == 3
    assert similarity(rows, kind="russell-rao", events=4).toarray().tolist() == [[0.5, 0.25], [0.25, 0.25]]


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        (lambda: similarity(relation([[1]]), kind="jacard"), ["jacard", "jaccard"]),
        (lambda: similarity(relation([[1]]), relation([[1, 0]])), [1, 2]),
        (lambda: recent(relation([[1]]), 0), ["history", 0]),
        (lambda: recent(relation([[1]]), True), ["history", True]),
        (
            lambda: similarity(relation(np.ones((100, 1))), most=12 * 9_999),
            [100, "GB", "cosine"],
        ),
    ],
)
def test_bad_input(call: Any, shown: list[Any]) -> None:
    with refused(ParameterError, *shown):
        call()
