from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ortho_group

from narrowcast.errors import ParameterError
from narrowcast.lab.spectral.deviation import deviation
from narrowcast.lab.spectral.kmeans import kmeans
from narrowcast.lab.spectral.space import Association
from narrowcast.model.relation import relation
from support.errors import refused


@given(seed=st.integers(0, 1000), k=st.integers(2, 6), width=st.integers(2, 5))
def test_a_turned_basis_and_other_numbers_are_no_change(seed: int, k: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    centre, landmarks = rng.normal(size=(k, width)), rng.normal(size=(20, width))
    turn, order = ortho_group.rvs(width, random_state=rng), rng.permutation(k)
    found = deviation(centre, (centre @ turn)[order], landmarks, landmarks @ turn)
    assert found.share == pytest.approx(0, abs=1e-9)
    assert found.match.tolist() == order.tolist()
    assert not found.installs(1e-6)


def test_the_share_by_hand() -> None:
    old = np.array([[3.0, 0.0], [-3.0, 0.0]])
    landmarks = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    found = deviation(old, np.array([[-3.0, 0.0], [3.0, 1.5]]), landmarks, landmarks)
    assert found.share == pytest.approx((0 + 1.5) / 2 / 3)
    assert found.match.tolist() == [1, 0]
    assert found.installs(0.2)
    assert not found.installs(0.25)


def test_dimensions_and_numbers_of_centres_may_differ() -> None:
    old, landmarks = np.array([[1.0, 0.0], [-1.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 1.0]])
    new = np.array([[1.0, 0, 0], [5.0, 5, 5], [-1.0, 0, 0]])
    found = deviation(old, new, landmarks, np.pad(landmarks, ((0, 0), (0, 1))))
    assert found.share == pytest.approx(0)
    assert found.match.tolist() == [0, -1, 1]


def test_centres_at_one_place() -> None:
    same = np.zeros((2, 1))
    assert deviation(same, same, same, same).share == 0
    assert deviation(same, same + 1, same, same).share == np.inf
    nothing = np.zeros((0, 2))
    assert deviation(nothing, nothing, nothing, nothing).share == 0


def test_the_same_events_again_are_not_worth_installing_and_others_are() -> None:
    rng = np.random.default_rng(3)
    place, events = rng.random(300) * 10, rng.random(400) * 10
    matched = np.abs(place[:, None] - events) < 0.8
    elsewhere = np.abs(rng.permutation(place)[:, None] - events) < 0.8
    space, start = Association(dimensions=5), np.random.default_rng(0)
    old = space.frame(relation(matched[:, :200])).own
    centre = kmeans(old, 8, rng=start, restarts=5).centre
    shares = []
    for wants in (matched[:, 200:], elsewhere[:, :200]):
        new = space.frame(relation(wants)).own
        shares.append(deviation(centre, kmeans(new, 8, rng=start, restarts=5).centre, old, new).share)
    assert shares[0] < 0.6 * shares[1]


def test_bad_input() -> None:
    with refused(ParameterError, 2, 3, parameter="new_landmarks", value=3):
        deviation(np.ones((1, 1)), np.ones((1, 1)), np.ones((2, 1)), np.ones((3, 1)))
