from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from narrowcast.errors import ParameterError
from narrowcast.lab.spectral import kmeans as module
from narrowcast.lab.spectral.kmeans import Means, kmeans, nearest
from support.errors import refused

Doubles = NDArray[np.float64]


def draws(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def blobs(n_points: int, n_blobs: int, *, seed: int = 0, dimension: int = 3, width: float = 0.1) -> Doubles:
    rng = draws(seed)
    centre = rng.normal(size=(n_blobs, dimension))
    return centre[rng.integers(0, n_blobs, n_points)] + width * rng.normal(size=(n_points, dimension))


def squares(points: Doubles, centre: Doubles) -> Doubles:
    found: Doubles = ((points[:, None] - centre) ** 2).sum(axis=2)
    return found


def plain(points: Doubles, weight: Doubles, start: Doubles, passes: int) -> tuple[list[int], Doubles]:
    """A reference of Lloyd's passes, point by point."""
    centre, label = start.copy(), np.zeros(len(points), int)
    mass: NDArray[Any] = np.zeros(len(start))
    for _ in range(passes):
        label = squares(points, centre).argmin(axis=1)  # the first of equals
        before, mass = centre.copy(), np.bincount(label, weight, len(centre))
        for k in np.flatnonzero(mass):
            centre[k] = (points * weight[:, None])[label == k].sum(axis=0) / mass[k]
        away = squares(points, centre[mass > 0]).min(axis=1) * (weight > 0)
        for k in np.flatnonzero(mass == 0):
            if away.max() > 1e-20:
                centre[k] = points[away.argmax()]
                away = np.minimum(away, squares(points, centre[[k]])[:, 0])
        if (centre == before).all():
            break
    kept = np.flatnonzero(mass)
    number = {int(k): n for n, k in enumerate(kept)}
    near = squares(points, centre[kept]).argmin(axis=1)
    return [number.get(int(k), int(near[i])) for i, k in enumerate(label)], centre[kept]


@given(st.data(), st.integers(1, 12), st.integers(0, 3), st.integers(1, 6), st.integers(1, 5))
def test_bounds_change_nothing(
    data: st.DataObject, n_points: int, dimension: int, n_clusters: int, passes: int
) -> None:
    whole = st.integers(-4, 4).map(float)
    points = data.draw(arrays(np.float64, (n_points, dimension), elements=whole))
    start = data.draw(arrays(np.float64, (n_clusters, dimension), elements=whole))
    weight = data.draw(arrays(np.float64, n_points, elements=st.integers(0, 2).map(float)))
    weight[0] = 1
    found = kmeans(points, n_clusters, rng=draws(), weight=weight, start=start, passes=passes)
    label, centre = plain(points, weight, start, passes)
    assert found.label.tolist() == label
    assert found.centre.tolist() == centre.tolist()
    spread = (squares(points, centre)[np.arange(n_points), label] * weight).sum()
    assert found.spread == pytest.approx(spread, abs=1e-12)


def test_bounds_change_nothing_among_many() -> None:
    points = blobs(3000, 9, width=0.5, dimension=4)
    start = points[:20]
    found = kmeans(points, 20, rng=draws(), start=start, passes=300)
    label, centre = plain(points, np.ones(len(points)), start, 300)
    assert found.label.tolist() == label
    assert found.centre == pytest.approx(centre, abs=1e-9)


@given(st.data(), st.integers(0, 15), st.integers(1, 20), st.integers(0, 5))
def test_every_cluster_has_points_around_its_mean(
    data: st.DataObject, n_points: int, n_clusters: int, seed: int
) -> None:
    points = data.draw(arrays(np.float64, (n_points, 2), elements=st.sampled_from([0.0, 0.1, 0.3, 5.0])))
    found = kmeans(points, n_clusters, rng=draws(seed), passes=1000)
    assert len(found.centre) == min(n_clusters, len({tuple(point) for point in points}))
    assert found.size.min(initial=1) >= 1
    for k, centre in enumerate(found.centre):
        assert centre == pytest.approx(points[found.label == k].mean(axis=0))
    if n_points:
        away = squares(points, found.centre)
        assert away[np.arange(n_points), found.label] == pytest.approx(away.min(axis=1), abs=1e-12)
    again = kmeans(points, n_clusters, rng=draws(seed), passes=1000)
    assert (again.label.tolist(), again.centre.tolist()) == (found.label.tolist(), found.centre.tolist())


def test_blobs_are_found() -> None:
    points = blobs(400, 8, width=0.01)
    found = kmeans(points, 8, rng=draws(), restarts=3)
    assert found.spread == pytest.approx(400 * 3 * 0.01**2, rel=0.2)


def test_more_restarts_spread_no_wider() -> None:
    points = blobs(300, 30, width=0.3)
    spread = [kmeans(points, 10, rng=draws(), restarts=n).spread for n in (1, 4, 16)]
    assert spread[0] > spread[1] >= spread[2]


def test_a_weight_is_as_good_as_copies() -> None:
    points, weight = blobs(60, 4), np.arange(60) % 4 + 1
    start = points[:5]
    found = kmeans(points, 5, rng=draws(), weight=weight, start=start)
    copies = kmeans(np.repeat(points, weight, axis=0), 5, rng=draws(), start=start)
    assert np.repeat(found.label, weight).tolist() == copies.label.tolist()
    assert found.centre == pytest.approx(copies.centre)
    assert found.spread == pytest.approx(copies.spread)


def test_what_weighs_nothing_is_never_a_centre() -> None:
    found = kmeans([[0.0], [1.0], [100.0]], 3, rng=draws(), weight=[1, 1, 0])
    assert sorted(found.centre.ravel().tolist()) == [0.0, 1.0]
    assert found.label[2] == found.label[1]


def test_a_centre_without_points_goes_to_the_farthest() -> None:
    points = [[0.0], [1.0], [2.0], [9.0]]
    found = kmeans(points, 2, rng=draws(), start=[[1.0], [-50.0]])
    assert found.label.tolist() == [0, 0, 0, 1]
    assert found.centre.tolist() == [[1.0], [9.0]]


def test_points_in_the_middle_go_to_the_first_centre() -> None:
    found = kmeans([[0.0], [1.0], [2.0]], 2, rng=draws(), start=[[2.0], [0.0]], passes=1)
    assert found.label.tolist() == [1, 0, 0]
    assert nearest([[1.0]], [[2.0], [0.0], [2.0]]).tolist() == [0]


def test_starts_are_drawn_from_a_sample_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SAMPLE", 50)
    monkeypatch.setattr(module, "_EACH", 2)
    points = blobs(5000, 6, width=0.01)
    assert kmeans(points, 6, rng=draws(), restarts=5).spread == pytest.approx(5000 * 3 * 0.01**2, rel=0.1)
    few = np.zeros((5000, 1))
    few[[17, 4000]] = [[1.0], [3.0]]  # a sample of fifty hardly has them
    found = kmeans(few, 3, rng=draws())
    assert sorted(found.centre.ravel().tolist()) == [0.0, 1.0, 3.0]
    weight = np.zeros(5000)
    weight[[3, 17]] = 1
    assert sorted(kmeans(few, 2, rng=draws(), weight=weight).centre.ravel().tolist()) == [0.0, 1.0]


def test_no_points_and_no_coordinates() -> None:
    nothing = kmeans(np.zeros((0, 4)), 3, rng=draws())
    assert (nothing.label.tolist(), nothing.centre.shape, nothing.spread) == ([], (0, 4), 0.0)
    flat = kmeans(np.zeros((3, 0)), 2, rng=draws())
    assert (flat.label.tolist(), flat.centre.shape, flat.spread) == ([0, 0, 0], (1, 0), 0.0)
    assert isinstance(flat, Means)


@pytest.mark.parametrize(
    ("points", "given", "shown", "parameter"),
    [
        ([0.0, 1.0], {}, ["(2,)"], "points"),
        ([[0.0], [np.nan]], {}, ["point 1", "[nan]"], "points"),
        ([[0.0]], {"n_clusters": 0}, [0], "n_clusters"),
        ([[0.0]], {"passes": 0}, [0], "passes"),
        ([[0.0]], {"restarts": 1.5}, [1.5], "restarts"),
        ([[0.0]], {"weight": [1, 2]}, ["(2,)", 1], "weight"),
        ([[0.0], [1.0]], {"weight": [1, -1]}, ["point 1", "-1.0"], "weight"),
        ([[0.0]], {"weight": [0]}, [0, "1 points"], "weight"),
        ([[0.0]], {"start": [[0.0, 1.0]] * 2}, ["(2, 2)", "dimension 1"], "centre"),
        ([[0.0]], {"start": [[0.0]]}, ["(1, 1)", 2], "centre"),
    ],
)
def test_bad_input(points: Any, given: dict[str, Any], shown: list[Any], parameter: str) -> None:
    with refused(ParameterError, *shown, parameter=parameter):
        kmeans(points, **dict[str, Any]({"n_clusters": 2, "rng": draws()}) | given)


def test_nearest_needs_a_centre() -> None:
    with refused(ParameterError, "dimension 1", parameter="centre", value=(0, 1)):
        nearest([[0.0]], np.zeros((0, 1)))
