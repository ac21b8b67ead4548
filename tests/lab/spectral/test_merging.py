from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from narrowcast.errors import ParameterError
from narrowcast.lab.spectral.kmeans import kmeans, nearest
from narrowcast.lab.spectral.merging import (
    GroupMeans,
    MergeStart,
    MergeTraffic,
    group_means,
    hierarchical,
    hp2pc,
    merge_centres,
    sampled,
)
from support.errors import refused

Doubles = NDArray[np.float64]
METHODS = [sampled, hierarchical, hp2pc]


def draws(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def hierarchy(counts: list[int], *, seed: int = 0, n_points: int = 480, share: float = 0.5) -> Any:
    """Groups of points of 12 blobs, and of a share of them at each level above."""
    rng = draws(seed)
    points = rng.normal(size=(12, 3))[rng.integers(0, 12, n_points)] + 0.05 * rng.normal(size=(n_points, 3))
    levels = [[points[g :: counts[0]] for g in range(counts[0])]]
    parents = []
    for below, above in pairwise(counts):
        parents.append([g * above // below for g in range(below)])
        landmarks = [each[: int(share * len(each))] for each in levels[-1]]
        levels.append(
            [
                np.concatenate([some for some, p in zip(landmarks, parents[-1], strict=True) if p == g])
                for g in range(above)
            ]
        )
    return levels, parents


def spread(levels: list[list[Doubles]], found: GroupMeans) -> float:
    away = (points - found.centre[label] for points, label in zip(levels[0], found.label, strict=True))
    return float(sum((each**2).sum() for each in away))


@pytest.mark.parametrize("method", METHODS)
def test_one_group_finds_what_one_place_finds(method: Any) -> None:
    points = hierarchy([1])[0][0][0]
    found = method([[points]], [], 12, rng=draws(3))
    alone = kmeans(points, 12, rng=draws(3))
    assert found.centre == pytest.approx(alone.centre)
    assert found.label[0].tolist() == alone.label.tolist()
    assert found.traffic == MergeTraffic(to_members=len(points))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("counts", [[8, 1], [8, 3, 1], [8, 4, 2, 1]])
def test_everybody_goes_to_the_nearest_centre(method: Any, counts: list[int]) -> None:
    levels, parents = hierarchy(counts)
    found = method(levels, parents, 12, rng=draws(), restarts=4)
    assert found.centre.shape == (12, 3)
    for points, label in zip(levels[0], found.label, strict=True):
        assert label.tolist() == nearest(points, found.centre).tolist()
    whole = kmeans(np.concatenate(levels[0]), 12, rng=draws(), restarts=20).spread
    assert spread(levels, found) < 1.5 * whole
    again = method(levels, parents, 12, rng=draws(), restarts=4)
    assert again.centre.tolist() == found.centre.tolist()
    assert again.traffic == found.traffic


@pytest.mark.parametrize("method", [hierarchical, hp2pc])
def test_groups_may_work_in_any_order(method: Any) -> None:
    """Each has its own source of draws, so that they may as well work at the same time, elsewhere."""
    levels, parents = hierarchy([8, 3, 1])

    def work(depth: int, starts: list[MergeStart]) -> list[tuple[Doubles, Doubles]]:
        pairs = list(zip(levels[depth], starts, strict=True))
        return [group_means(points, start, 12, 4) for points, start in reversed(pairs)][::-1]

    root, selection = levels[-1][0], method is hierarchical
    centre, traffic = merge_centres(work, root, parents, 12, rng=draws(), restarts=4, selection=selection)
    found = method(levels, parents, 12, rng=draws(), restarts=4)
    assert centre.tolist() == found.centre.tolist()
    assert (traffic.up, traffic.values_up) == (found.traffic.up, found.traffic.values_up)


def test_what_is_sent() -> None:
    levels, parents = hierarchy([8, 2, 1])
    k, d = 5, 3
    down = {"down": 10, "values_down": 10 * k * d, "to_members": 480}
    assert sampled(levels, parents, k, rng=draws()).traffic == MergeTraffic(**down)
    up = {"up": 10, "values_up": 10 * k * (d + 1)}
    assert hp2pc(levels, parents, k, rng=draws()).traffic == MergeTraffic(**down, **up)
    twice = {"down": 20, "values_down": 20 * k * d, "to_members": 480}
    found = hierarchical(levels, parents, k, rng=draws()).traffic
    assert found == MergeTraffic(**twice, **up)
    assert found.messages == 10 + 20 + 480


def test_a_merge_weighs_centres_by_their_members() -> None:
    """Two groups of one cluster each: the centre of all is their mean, not that of the two centres."""
    members = [[[0.0]] * 9, [[10.0]]]
    for method in (hierarchical, hp2pc):
        found = method([members, [[[0.0], [10.0]]]], [[0, 0]], 1, rng=draws())
        assert found.centre.tolist() == [[1.0]]
    three = [[*members, [[2.0]] * 6], [[[0.0]], [[2.0]]], [[[0.0]]]]
    assert hp2pc(three, [[0, 0, 1], [0, 0]], 1, rng=draws()).centre.tolist() == [[(10 + 12) / 16]]


def test_a_selection_starts_from_the_centres_of_the_parent() -> None:
    """A root with points at 0 and 9 makes groups begin there: 4 goes with 0, and so do the three of 1."""
    members = [[[0.0], [4.0], [9.0]], [[1.0], [1.0], [1.0]]]
    found = hierarchical([members, [[[0.0], [9.0]]]], [[0, 0]], 2, rng=draws())
    assert sorted(found.centre.ravel().tolist()) == [7 / 5, 9.0]
    assert found.traffic.values_up == 3 * 2  # the second group has one cluster: its points are equal


def test_groups_without_enough_points() -> None:
    members: list[Any] = [[[0.0], [1.0]], np.zeros((0, 1)), [[5.0]] * 3]
    for method in METHODS:
        found = method([members, [[[0.0], [5.0]]]], [[0, 0, 0]], 4, rng=draws())
        assert [len(label) for label in found.label] == [2, 0, 3]
        assert len(set(found.label[2].tolist())) == 1
    between: list[Any] = [[[[0.0], [9.0], [10.0]]], [np.zeros((0, 1))], [[[0.0], [9.0]]]]
    found = hierarchical(between, [[0], [0]], 2, rng=draws())
    assert sorted(found.centre.ravel().tolist()) == [0.0, 9.5], "an empty group hands on what it got"
    assert found.traffic.values_down == 2 + 2 + 4
    nothing = [np.zeros((0, 2)), np.zeros((0, 2))]
    for method in METHODS:
        found = method([nothing, [np.zeros((0, 2))]], [[0, 0]], 3, rng=draws())
        assert found.centre.shape == (0, 2)
        assert [len(label) for label in found.label] == [0, 0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("levels", "parents", "shown"),
    [
        ([], [], ["[]", 0]),
        ([[[[0.0]], [[1.0]]]], [], ["[2]", 0]),
        (
            [[[[0.0]], [[1.0]]], [[[0.0]]]],
            [[0]],
            ["2 groups", "level 0", "[0]"],
        ),
        ([[[[0.0]], [[1.0]]], [[[0.0]]]], [[0, 1]], ["[0, 1]", "1 groups"]),
        ([[[[0.0]]], [[[0.0]], [[0.0]]], [[[0.0]]]], [[0], [0, 0]], ["[0]", "2 groups"]),
        ([[[[0.0, 1.0]]], [[[0.0]]]], [[0]], ["[1, 2]"]),
        ([[[[0.0]]], [np.zeros((0, 1))]], [[0]], ["root"]),
    ],
)
def test_bad_input(method: Any, levels: Any, parents: Any, shown: list[Any]) -> None:
    with refused(ParameterError, *shown):
        method(levels, parents, 2, rng=draws())
