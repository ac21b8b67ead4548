"""Figure 3 (a) to (j) of tariq2012: coordinates of groups, and k-means by groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from narrowcast.errors import ParameterError
from narrowcast.lab.papers import Study
from narrowcast.lab.papers.tariq2012.embedding import CLUSTERINGS, FIGURE_3, WAYS, _embed, settings
from narrowcast.lab.papers.tariq2012.histories import FALSE, PAPER, SPECTRAL, SeedHistories, space_of
from narrowcast.lab.spectral.fidelity import apart, neighbourhood
from narrowcast.lab.spectral.similarity import similarity
from support.errors import refused

TINY = {
    "subscriptions": "90",
    "learn": "300",
    "events": "60",
    "dimensions": "3",
    "kappa": "8",
    "groups": "2,8",
    "landmarks": "0.6",
    "levels": "1,2",
    "clusters": "6",
    "ideal": "3",
    "workloads": "m1",
}


@pytest.fixture(scope="module")
def outcome() -> Any:
    return FIGURE_3.run(Study((0,), FIGURE_3.settings("small", TINY)))


def test_every_way_along_every_axis(outcome: Any) -> None:
    rows = {(row.series, row.x, row.metric): row for row in (*outcome.rows, *outcome.beside)}
    axes = {"groups": (2, 8), "landmarks": (0.6,), "landmarks/3": (0.6,), "levels": (1, 2)}
    scores = {key[:2] for key in rows if key[2] == "hscore"}
    assert scores == {
        (f"{method}/{way}/m1/{axis}", x)
        for method in ("rassoc", "ncut")
        for way in WAYS
        for axis, places in axes.items()
        for x in places
    }
    assert all(0 < rows[*key, "hscore"].measured <= 1 for key in scores)
    # With one level there are no groups, and so no ways.
    for method in ("rassoc", "ncut"):
        one, other = (rows[f"{method}/{way}/m1/levels", 1, "hscore"].measured for way in WAYS)
        assert one == other
    # Stress is of the linear one.
    assert {series.split("/")[0] for series, _, metric in rows if metric == "stress_scaled"} == {"rassoc"}
    for workload, metric in (("zipf", FALSE), ("m1", "entropy"), ("m2", "accuracy")):
        found = {series for series, _, name in rows if name == metric}
        expected = {
            f"{method}/{clustering}/{workload}/{axis}"
            for method in SPECTRAL
            for clustering in CLUSTERINGS
            for axis in ("landmarks", "levels")
        }
        assert {each for each in found if workload in each} == {*expected, f"direct/{workload}"}
    assert all(row.paper is None for row in rows.values())
    records, caption = outcome.charts["tariq2012-figure-3"]
    assert {each["axis"] for each in records} == set(axes)
    assert caption.endswith(", 1 seed")


def test_coordinates_are_measured_against_similarities() -> None:
    given: Any = {"seed": 3, "history": 20, "dimensions": 4, "kappa": 9}
    histories = SeedHistories.make(
        workload="m1", **(PAPER | {"subscriptions": 80, "learn": 300} | {"seed": 3})
    )
    found = _embed(histories, method="ncut", way="faithful", groups=[], landmarks=[], levels=[1], **given)
    rows = histories.rows(20)
    frame = space_of("ncut/plain", 4).frame(rows)
    near = neighbourhood(apart(similarity(rows).toarray()), frame.own, 9)
    assert found == [
        {"axis": "levels", "x": 1, "hscore": near.hscore, "trustworthiness": near.trustworthiness,
         "continuity": near.continuity}
    ]  # fmt: skip


def test_places_along_axes() -> None:
    found = list(settings({"groups": [4], "landmarks": [0.5], "levels": [1, 3]}))
    assert [(axis, x) for axis, x, _ in found] == [
        ("groups", 4), ("landmarks", 0.5), ("landmarks/3", 0.5), ("levels", 1), ("levels", 3)
    ]  # fmt: skip
    assert found[0][2] == {"groups": 4, "landmarks": 0.3, "levels": 2}
    assert found[2][2] == {"groups": 8, "landmarks": 0.5, "levels": 3}


@pytest.mark.parametrize(
    ("given", "value"),
    [({"kappa": "45"}, 45), ({"workloads": "m3"}, "m3"), ({"landmarks": "1.5"}, 1.5)],
)
def test_bad_settings(given: dict[str, str], value: Any) -> None:
    with refused(ParameterError, next(iter(given)), value):
        FIGURE_3.run(Study((0,), FIGURE_3.settings("small", TINY | given)))


# ---------------------------------------------------------------------------------------------- the targets


@pytest.mark.slow
@pytest.mark.paper
@pytest.mark.parametrize(
    ("workload", "method", "least", "least_table"),
    [
        ("uniform", "rassoc", 0.78, 0.90),
        ("uniform", "ncut", 0.85, 0.90),
        ("zipf", "rassoc", 0.70, 0),
        ("zipf", "ncut", 0.78, 0),
    ],
)
def test_neighbours_are_kept(workload: str, method: str, least: float, least_table: float) -> None:
    score: dict[str, list[float]] = {way: [] for way in WAYS}
    for seed in (221, 222, 223, 224, 225):
        histories = SeedHistories.make(seed=seed, workload=workload, **PAPER)
        for way, values in score.items():
            row: Any = _embed(
                histories, method=method, way=way, seed=seed, history=20, dimensions=20, kappa=50, groups=[8],
                landmarks=[], levels=[]
            )[0]  # fmt: skip
            values.append(row["hscore"])
    faithful, table = (float(np.mean(values)) for values in score.values())
    assert faithful >= least
    assert table >= max(least_table, faithful)
