from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from narrowcast.costs import COSTS
from narrowcast.errors import ParameterError
from narrowcast.lab.boxes import BoxOverlap, Centroid, RTree
from narrowcast.lab.boxes import overlap as overlap_module
from narrowcast.lab.boxes.base import bounding, finite
from narrowcast.lab.boxes.overlap import overlaps
from narrowcast.lab.boxes.rtree import packed
from narrowcast.lab.spectral.kmeans import kmeans
from narrowcast.lab.spectral.quality import balance, received
from narrowcast.model.interest import Interest
from narrowcast.planning.base import PLANNERS, planners
from support.errors import refused

FOLDER = Path(__file__).parents[2] / "golden"
GOLDEN = json.loads((FOLDER / "tariq2012_metrics.json").read_text())
BOXES = json.loads((FOLDER / "tariq2012_histories_sims.json").read_text())

Doubles = NDArray[np.float64]
by_boxes = pytest.mark.parametrize("method", ["box-overlap", "centroid", "r-tree"])


def random_boxes(n_boxes: int, *, seed: int = 0, dimension: int = 3) -> tuple[Doubles, Doubles]:
    """Boxes in the unit cube, of which an event matches a few percent."""
    rng = np.random.default_rng(seed)
    centre, half = rng.random((n_boxes, dimension)), rng.uniform(0.1, 0.3, (n_boxes, dimension))
    return np.maximum(centre - half, 0), np.minimum(centre + half, 1)


def inside(points: Doubles, lo: Doubles, hi: Doubles) -> NDArray[np.bool_]:
    return np.asarray(((points[:, None] > lo) & (points[:, None] <= hi)).all(axis=2))


def test_they_are_found_by_name_and_need_boxes() -> None:
    assert PLANNERS["centroid"] is Centroid
    assert PLANNERS["box-overlap"] is BoxOverlap
    assert PLANNERS["r-tree"] is RTree
    assert planners(boxes=True) == ["box-overlap", "centroid", "r-tree"]
    assert set(PLANNERS) == {*planners(boxes=True), *planners(boxes=False)}
    assert "centroid" in PLANNERS
    with refused(ParameterError, "centroyd", "centroid"):
        PLANNERS["centroyd"]


@by_boxes
def test_without_boxes_they_say_so(method: str) -> None:
    planner = PLANNERS[method](channels=2)
    with refused(ParameterError, method, parameter="boxes", value=None):
        planner.fit(Interest([[1]]))


@by_boxes
@settings(max_examples=50)
@given(data=st.data(), n_subscribers=st.integers(0, 7), channels=st.integers(1, 9), seed=st.integers(0, 3))
def test_they_are_planners(
    method: str, data: st.DataObject, n_subscribers: int, channels: int, seed: int
) -> None:
    """What tests/planning/test_conformance.py asks of planners that do without boxes."""
    wants = data.draw(arrays(np.bool_, (n_subscribers, 4)))
    sides = st.sampled_from([-np.inf, 0.0, 1.0, 2.5])
    lo = data.draw(arrays(np.float64, (n_subscribers, 2), elements=sides))
    width = st.sampled_from([0.0, 1.0, np.inf])
    hi = np.where(np.isinf(lo), 3.0, lo) + data.draw(arrays(np.float64, lo.shape, elements=width))
    interest = Interest(wants, rate=[0, 0.5, 1, 3])
    planner = PLANNERS[method](channels=channels, seed=seed, boxes=(lo, hi))
    assert not hasattr(planner, "plan_")
    assert planner.fit(interest) is planner
    plan = planner.plan_
    plan.validate(interest)
    assert plan.n_channels <= channels
    again: Any = PLANNERS[method](channels=channels, seed=seed, boxes=(lo, hi)).fit(interest)
    assert again.plan_ == plan
    assert set(again.label_.tolist()) == set(range(plan.n_channels)), "no cluster is empty"
    order = data.draw(st.permutations(range(n_subscribers)))
    shuffled = Interest(wants[list(order)].reshape(wants.shape), interest.rate)
    boxes = tuple(each[list(order)].reshape(each.shape) for each in (lo, hi))
    other = PLANNERS[method](channels=channels, seed=seed, boxes=boxes).fit(shuffled).plan_
    for model in COSTS.made().values():
        found, same = model.score(interest, plan), model.score(shuffled, other)
        assert found.total == pytest.approx(same.total), "the numbers of subscribers do not matter"


@by_boxes
@pytest.mark.parametrize(
    ("wrong", "shown", "parameter"),
    [
        ({"channels": None}, [], "channels"),
        ({"channels": 0}, [0], "channels"),
        ({"seed": -1}, [-1], "seed"),
        ({"boxes": ([[0.0]], [[1.0]])}, [1, 2], "boxes"),
        (
            {"boxes": ([[0.0]], [[1.0, 2.0]])},
            ["(1, 1)", "(1, 2)"],
            "boxes",
        ),
        ({"boxes": ([[0.0], [2.0]], [[1.0], [1.0]])}, ["box 1", "2.0", "1.0", "attribute 0"], "boxes"),
        ({"boxes": ([[0.0], [np.nan]], [[1.0], [1.0]])}, ["box 1", "nan", "1.0", "attribute 0"], "boxes"),
        ({"boxes": ([[np.inf], [0.0]], [[np.inf], [1.0]])}, ["box 0", "inf", "attribute 0"], "boxes"),
    ],
)
def test_bad_input(method: str, wrong: dict[str, Any], shown: list[Any], parameter: str) -> None:
    given: dict[str, Any] = {"channels": 2, "boxes": ([[0.0], [1.0]], [[1.0], [2.0]])}
    planner = PLANNERS[method](**given | wrong)
    with refused(ParameterError, *shown, parameter=parameter):
        planner.fit(Interest([[1], [1]]))


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        ("centroid", {"restarts": 0}),
        ("box-overlap", {"restarts": 0}),
        ("box-overlap", {"landmarks": 0}),
        ("r-tree", {"packing": "hilbert"}),
        ("box-overlap", {"measure": "volume"}),
    ],
)
def test_bad_parameters(method: str, wrong: dict[str, Any]) -> None:
    [(name, value)] = wrong.items()
    with refused(ParameterError, value, parameter=name, value=value):
        PLANNERS[method](channels=2, boxes=([[0.0]], [[1.0]]), **wrong).fit(Interest([[1]]))


def test_infinite_sides_end_beyond_what_is_finite() -> None:
    inf = np.inf
    lo, hi = finite([[-inf, -inf, 3.0], [0.0, -inf, -inf]], [[10.0, inf, 3.0], [inf, inf, inf]])
    assert lo.tolist() == [[-1.0, 0.0, 3.0], [0.0, 0.0, 2.0]]
    assert hi.tolist() == [[10.0, 1.0, 3.0], [11.0, 1.0, 4.0]]
    given = np.array([[-inf]])
    finite(given, [[inf]])
    assert given[0, 0] == -inf, "what was given stays as it is"


def test_a_box_around_several() -> None:
    lo, hi = bounding(
        [1, 0, 1], [[0.0, 5.0], [2.0, 2.0], [-1.0, 6.0]], [[1.0, 6.0], [3.0, 3.0], [0.0, 9.0]], 2
    )
    assert lo.tolist() == [[2.0, 2.0], [-1.0, 5.0]]
    assert hi.tolist() == [[3.0, 3.0], [1.0, 9.0]]
    with refused(ParameterError, 2, parameter="owner", value=2):
        bounding([2], [[0.0]], [[1.0]], 2)
    with refused(ParameterError, "(2,)", "(1, 1)", parameter="owner"):
        bounding([0, 1], [[0.0]], [[1.0]], 2)


def test_golden_overlaps() -> None:
    """Closed boxes of whole numbers, whose volumes are numbers of cells."""
    lo, hi = np.array(BOXES["lo"], float) - 1, np.array(BOXES["hi"], float)
    assert overlaps(lo, hi, lo, hi, "relative") == pytest.approx(np.array(GOLDEN["ov_iou"]), abs=1e-8)
    cells = np.indices((31, 31, 31)).reshape(3, -1).T
    covered = inside(cells.astype(float), lo, hi).astype(int)
    assert overlaps(lo, hi, lo, hi, "absolute").tolist() == (covered.T @ covered).tolist()


def test_boxes_without_volume_overlap_by_nothing() -> None:
    lo, hi = np.array([[0.0], [0.0]]), np.array([[0.0], [1.0]])
    assert overlaps(lo, hi, lo, hi, "relative").tolist() == [[0.0, 0.0], [0.0, 1.0]]


def test_near_centres_and_common_overlaps() -> None:
    """Two wide boxes that overlap nearly the same, and a small one near the centre of the first."""
    lo, hi = np.array([[0.0], [2.0], [4.9]]), np.array([[10.0], [12.0], [5.1]])
    wants = Interest([[1], [1], [1]])
    centroid = Centroid(channels=2, boxes=(lo, hi)).fit(wants).label_
    assert centroid[0] == centroid[2] != centroid[1]
    for measure in ("absolute", "relative"):
        common = BoxOverlap(channels=2, boxes=(lo, hi), measure=measure).fit(wants).label_
        assert common[0] == common[1] != common[2]


def test_centroid_is_k_means_of_centres() -> None:
    lo, hi = random_boxes(200)
    order = np.lexsort(np.hstack([lo, hi]).T[::-1])  # as the planner takes them
    lo, hi = lo[order], hi[order]
    found = Centroid(channels=9, seed=4, boxes=(lo, hi)).fit(Interest(np.ones((200, 1)))).label_
    assert found.tolist() == kmeans(lo + (hi - lo) / 2, 9, rng=np.random.default_rng(4)).label.tolist()


def test_a_sample_of_boxes_does_nearly_as_well_as_all(monkeypatch: pytest.MonkeyPatch) -> None:
    lo, hi = random_boxes(600)
    events = np.random.default_rng(1).random((300, 3))
    matches = inside(events, lo, hi)
    interest = Interest(matches.T)

    def false_positives(**given: Any) -> int:
        planner = BoxOverlap(channels=20, boxes=(lo, hi), restarts=3, **given).fit(interest)
        return received(matches, planner.label_).false_positives

    whole, some = false_positives(), false_positives(landmarks=400)
    assert some < 1.15 * whole < 0.5 * received(matches, np.zeros(600, int)).false_positives
    monkeypatch.setattr(overlap_module, "_BLOCK", 1000)
    assert false_positives(landmarks=400) == some, "blocks change nothing"
    monkeypatch.setattr(overlap_module, "_MOST", 600 * 400)
    assert false_positives() == some, "no more columns than there is room for"


@given(st.data(), st.integers(1, 40), st.integers(0, 3), st.integers(1, 40))
def test_leaves_are_even(data: st.DataObject, n_points: int, dimension: int, n_leaves: int) -> None:
    n_leaves = min(n_leaves, n_points)
    centre = data.draw(arrays(np.float64, (n_points, dimension), elements=st.integers(0, 9).map(float)))
    label = packed(centre, n_leaves)
    size = np.bincount(label, minlength=n_leaves)
    assert len(size) == n_leaves
    assert size.max() - size.min() <= 1


def test_leaves_tile_a_square() -> None:
    grid = np.array([(x, y) for x in range(6) for y in range(6)], float)
    label = packed(grid, 9)
    tiles = {tuple(sorted(map(tuple, grid[label == leaf].tolist()))) for leaf in range(9)}
    want = {((x, y), (x, y + 1), (x + 1, y), (x + 1, y + 1)) for x in (0, 2, 4) for y in (0, 2, 4)}
    assert tiles == want
    cube = np.indices((4, 4, 4)).reshape(3, -1).T.astype(float)
    assert [np.ptp(cube[packed(cube, 8) == leaf], axis=0).tolist() for leaf in range(8)] == [[1, 1, 1]] * 8


@pytest.mark.parametrize(("packing", "most"), [("str", 1.0), ("inserted", 1.6)])
def test_an_r_tree_is_even_and_better_than_chance(packing: Any, most: float) -> None:
    lo, hi = random_boxes(1000)
    matches = inside(np.random.default_rng(1).random((300, 3)), lo, hi)
    found = RTree(channels=40, boxes=(lo, hi), packing=packing).fit(Interest(matches.T))
    assert 35 <= found.plan_.n_channels <= 40
    assert balance(found.label_, 40) <= most
    drawn = np.random.default_rng(2).permutation(found.label_)
    assert received(matches, found.label_).false_positives < 0.6 * received(matches, drawn).false_positives
