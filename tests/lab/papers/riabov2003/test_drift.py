"""Planning again recovers what is lost when the peaks of the events move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from narrowcast.errors import ParameterError
from narrowcast.lab.papers import PAPERS, Study
from narrowcast.lab.papers.riabov2003.drift import METHODS, _Setting, decayed
from support.command import document
from support.errors import refused

if TYPE_CHECKING:
    from pathlib import Path

    from narrowcast.lab.papers import ResultRow

SMALL = {
    "subscriptions": "400",
    "learn": "2000",
    "events": "600",
    "modes": "1",
    "groups": "8",
    "steps": "2",
    "drift": "0.4",
    "per_step": "1500",
    "half_life": "1000",
}
EXPERIMENT = PAPERS["riabov2003"]["drift"]


def by_place(rows: list[ResultRow]) -> dict[tuple[str, str, float | None], float]:
    return {(row.series, row.metric, row.x): row.measured for row in rows}


def test_planning_again_recovers(tmp_path: Path) -> None:
    # Three half-lives a step: by then nearly all that counts is new.
    outcome = EXPERIMENT.run(Study((3,), EXPERIMENT.settings("paper", SMALL | {"per_step": "3000"})))
    value = by_place(outcome.rows)
    for method in METHODS:
        series = f"{method}/1/8"
        worth = {
            plan: [value[f"{series}/{plan}", "improvement_pct", x] for x in (0.0, 0.2, 0.4)]
            for plan in ("static", "replanned", "scratch")
        }
        assert worth["static"][0] == worth["scratch"][0]
        # The old plan gets worse and worse; the new one keeps up with one from scratch.
        assert worth["static"][2] < worth["static"][0] - 10
        assert worth["static"][2] < worth["replanned"][2] - 5
        for x, new, best in zip((0.0, 0.2, 0.4), worth["replanned"], worth["scratch"], strict=True):
            assert new >= 0.9 * best
            assert value[series, "replanned_of_scratch_pct", x] == pytest.approx(100 * new / best)
        won = (worth["replanned"][2] - worth["static"][2]) / (worth["scratch"][2] - worth["static"][2])
        assert value[series, "recovered_pct", 0.4] == pytest.approx(100 * won)
        assert (series, "recovered_pct", 0.0) not in value  # there is nothing to recover
        for plan in worth:
            assert max(worth[plan]) <= 100
    assert len(outcome.charts["riabov2003-drift"][0]) == 2 * 3 * 3
    assert len(outcome.notes) == 3


def setting(**given: Any) -> _Setting:
    params = {**EXPERIMENT.settings("paper", SMALL), **given}
    modes = params.pop("modes")[0]
    return _Setting(seed=3, modes=modes, **params)


def test_no_plan_sees_the_events_that_it_is_measured_on() -> None:
    made = setting()
    points = made.moved(0).points()
    n = len(points)
    assert n == 3 * 1500 + 2000 + 600
    cell, replay = made.replay(0)
    last = made.drawn(0, n - 600, 600)
    assert (cell == last[0]).all()
    assert replay.interested == last[1]
    # Those of the stream, and those of a plan from scratch, come before.
    for step in range(3):
        assert made.seen(step)[1] == made.drawn(step, 1500 * step, 1500)[1]


def test_replanned_from_past_events() -> None:
    # With all seen events counting alike and none forgotten, rates are plain counts of the last `learn`.
    made = setting(half_life=1e30, learn=2000)
    cells = np.concatenate([made.seen(1)[0], made.seen(2)[0]])[-2000:]
    plain = made._pairwise(8, np.bincount(cells, minlength=made.grid.n_cells).astype(float))
    assert made.replanned("pairwise", 8, 2) == plain
    # With a short memory, only the last few events count.
    brief = setting(half_life=1.0)
    cells = brief.seen(2)[0][-19:]
    rate = np.bincount(cells, decayed(19, 1.0), brief.grid.n_cells).astype(float)
    assert brief.replanned("pairwise", 8, 2) == brief._pairwise(8, rate)


def test_decay() -> None:
    weight = decayed(100, 10)
    assert weight[-1] == 1
    assert weight[-11] == pytest.approx(0.5)
    assert (np.diff(weight) > 0).all()
    assert (decayed(100, 1)[:70] == 0).all()


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({"half_life": 0.0}, 0.0),
        ({"steps": 0}, 0),
        ({"per_step": -1}, -1),
        ({"modes": [2]}, 2),
        ({"drift": float("inf")}, ""),  # shown as nan or inf
    ],
)
def test_bad_parameters(given: dict[str, Any], value: Any) -> None:
    params = {**EXPERIMENT.settings("paper", SMALL), **given}
    with refused(ParameterError, next(iter(given)), value):
        EXPERIMENT.run(Study((0,), params))


@pytest.mark.slow
@pytest.mark.paper
def test_at_the_papers_size() -> None:
    outcome = EXPERIMENT.run(Study((0, 1, 2, 3, 4), EXPERIMENT.settings("paper", {})))
    for row in outcome.rows:
        if row.metric == "replanned_of_scratch_pct":
            assert row.measured >= 90, row


def test_the_command(tmp_path: Path) -> None:
    words = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    words += ["--set", "steps=1", "--seeds", "1"]
    result, _ = document(
        "reproduce", "riabov2003", "--experiment", "drift", *words, "--out", tmp_path / "out"
    )
    metrics = {row["metric"] for row in result["experiments"]["drift"]["rows"]}
    assert metrics == {"improvement_pct", "replanned_of_scratch_pct", "recovered_pct"}
    assert (tmp_path / "out" / "riabov2003-drift.svg").exists()
