"""Alpha and beta: solved for, fitted, kept in a file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.costs.calibration import (
    Calibration,
    CalibrationPoint,
    CostCurve,
    ReceiverReading,
    fitted,
    read_calibration,
    solved,
    write_calibration,
)
from narrowcast.costs.filtering import Filtering
from narrowcast.errors import InputError, ParameterError

PAIRS = [(1.0, 0.0), (0.0, 1.0), (0.5, 1.0), (3.0, 0.25)]
COSTS = st.floats(0.01, 100)
CALIBRATION = Calibration.of(
    [CalibrationPoint(h, 0.5 + 2 / h, 1 + 4 / h, 0.99, 10 * h, h) for h in (1, 2, 8)],
    seed=4,
    seconds=1.5,
    flows=8,
)


def readings(alpha: float, beta: float, scale: float, h: int = 8) -> list[ReceiverReading]:
    """Return what equation 9 says of some rates."""
    return [
        ReceiverReading(
            h, scale * one, scale * two, 1e-6 * scale * ((one + two) * alpha + one * beta), packets=7, lost=2
        )
        for one, two in PAIRS
    ]


@given(COSTS, COSTS, st.sampled_from([1.0, 1000.0, 1e6]))
def test_equation_9_gives_back_what_was_put_in(alpha: float, beta: float, scale: float) -> None:
    point = solved(readings(alpha, beta, scale))
    assert point.alpha == pytest.approx(alpha, rel=1e-6)
    assert point.beta == pytest.approx(beta, rel=1e-6, abs=1e-6 * alpha)
    assert point.r2 == pytest.approx(1, abs=1e-6)
    assert (point.h, point.packets, point.lost) == (8, 28, 8)


def test_equation_9_by_hand() -> None:
    # 30 % for 10,000 messages that are heard, 10 % for as many that are dropped, 25 % for half of each.
    # In ten thousands a second the normal equations are 3 a + 1.5 b = 0.65 and 1.5 a + 1.25 b = 0.425.
    point = solved(
        [ReceiverReading(1, 1e4, 0, 0.3), ReceiverReading(1, 0, 1e4, 0.1), ReceiverReading(1, 5e3, 5e3, 0.25)]
    )
    a, b = np.linalg.solve([[3, 1.5], [1.5, 1.25]], [0.65, 0.425])
    assert point.alpha == pytest.approx(100 * a)
    assert point.beta == pytest.approx(100 * b)
    assert 0.9 < point.r2 < 1


def test_a_cost_is_never_below_zero() -> None:
    # Dropping took more than hearing: by chance, and no reason for a flow filter that gains time.
    point = solved([ReceiverReading(1, 1e4, 0, 0.1), ReceiverReading(1, 0, 1e4, 0.2)])
    assert point.beta == 0
    assert point.alpha == pytest.approx(15)
    curve = fitted([1, 2, 4], [1.0, 2.0, 3.0])
    assert curve.c0 == pytest.approx(2)
    assert curve.c1 == 0


@given(st.floats(0, 10), st.floats(0, 10), st.lists(st.integers(1, 40), min_size=2, max_size=8, unique=True))
def test_the_fit_recovers_the_curve(c0: float, c1: float, h: list[int]) -> None:
    curve = fitted(h, [c0 + c1 / each for each in h])
    for each in (1, 7, 40):
        assert curve.at(each) == pytest.approx(c0 + c1 / each, rel=1e-6, abs=1e-6)
    assert curve.r2 == pytest.approx(1, abs=1e-3)  # of tiny differences a part is rounding


@given(st.lists(st.floats(0.1, 10), min_size=3, max_size=3))
def test_no_other_curve_is_nearer(costs: list[float]) -> None:
    h = np.array([1, 4, 40])
    best = fitted(h.tolist(), costs)

    def off(c0: float, c1: float) -> float:
        return float(((c0 + c1 / h - costs) ** 2).sum())

    for more in (-0.01, 0.01):
        assert off(best.c0, best.c1) <= off(max(0, best.c0 + more), best.c1) + 1e-12
        assert off(best.c0, best.c1) <= off(best.c0, max(0, best.c1 + more)) + 1e-12


def test_what_cannot_be_solved() -> None:
    with pytest.raises(ParameterError, match="solve those of one h at a time"):
        solved([])
    with pytest.raises(ParameterError, match="solve those of one h at a time"):
        solved([ReceiverReading(1, 1, 0, 1), ReceiverReading(2, 0, 1, 1)])
    with pytest.raises(ParameterError, match="at least two proportions of the two sessions"):
        solved([ReceiverReading(1, 1, 1, 1), ReceiverReading(1, 2, 2, 1)])
    with pytest.raises(ParameterError, match=r"a curve over h = \[8\] has no slope"):
        fitted([8, 8], [1, 1])


def test_a_calibration_is_a_cost_model() -> None:
    model = CALIBRATION.at(4)
    assert isinstance(model, Filtering)
    assert model.alpha == pytest.approx(1)
    assert model.beta == pytest.approx(2)
    assert (CALIBRATION.packets, CALIBRATION.lost) == (110, 11)
    with pytest.raises(ParameterError, match="h is 0; give how many messages a packet has"):
        CALIBRATION.at(0)


def test_it_is_the_same_when_read_again(tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    file.write_text("older")
    write_calibration(CALIBRATION, file)
    assert read_calibration(file) == CALIBRATION
    assert [path.name for path in tmp_path.iterdir()] == ["machine.json"]
    said = json.loads(file.read_text())
    assert said["points"][0] == {"h": 1, "alpha": 2.5, "beta": 5.0, "r2": 0.99, "packets": 10, "lost": 1}
    assert said["alpha"]["c1"] == pytest.approx(2)
    assert (said["seed"], said["unit"], said["format"]) == (4, "us per message", 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "is of format 2"),
        ({"unit": "s"}, "is of format 1 in 's'"),
        ({"alpha": {"c0": -1.0, "c1": 2.0, "r2": 1.0}}, "alpha is -1 + 2 / h; costs are at least 0"),
        ({"beta": None}, "is no calibration: Expected `object`, got `null`"),
        ({"points": "many"}, "is no calibration: Expected `array`"),
    ],
)
def test_files_that_are_none(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    write_calibration(CALIBRATION, file)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(InputError) as failure:
        read_calibration(file)
    assert message in str(failure.value)
    assert str(failure.value).endswith("make it with: narrowcast calibrate --out FILE")
    assert "\n" not in str(failure.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read the calibration .*No such file.*narrowcast calibrate"):
        read_calibration(tmp_path / "nowhere.json")
    (tmp_path / "bad.json").write_bytes(b"\xff\x00")
    with pytest.raises(InputError, match="is no calibration"):
        read_calibration(tmp_path / "bad.json")
    with pytest.raises(InputError, match="is a folder; name a file"):
        write_calibration(CALIBRATION, tmp_path)
    with pytest.raises(InputError, match="is in a folder that does not exist"):
        write_calibration(CALIBRATION, tmp_path / "no" / "such.json")


def test_r2_of_what_does_not_differ() -> None:
    for costs in ([3.0, 3.0, 3.0], [0.0, 0.0, 0.0]):
        assert math.isfinite(fitted([1, 2, 4], costs).r2)
    assert fitted([1, 2], [0.0, 0.0]) == CostCurve(0, 0, 1)
