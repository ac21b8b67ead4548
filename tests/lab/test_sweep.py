"""Sweeps in one process: order, rows, problems, what is made once, and going on after an interruption."""

from __future__ import annotations

import math
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast import Interest, Pairwise, Waste
from narrowcast.errors import ParameterError, TableError
from narrowcast.lab.sweep import (
    Record,
    SavedPoints,
    SetupCache,
    Sweep,
    SweepPoint,
    Swept,
    describe_point,
    swept,
)
from support.errors import refused


def added(*, x: int, y: float = 0.0, seed: int, **_: Any) -> dict[str, float]:
    return {"sum": x + y + seed}


def several(*, x: int, seed: int) -> list[dict[str, Any]]:
    return [{"n": n, "square": np.float64(n * n), "name": "even" if n % 2 == 0 else None} for n in range(x)]


def picky(*, x: int, seed: int) -> dict[str, int]:
    if x == 2:
        raise ParameterError("x is 2;\n give another")
    return {"y": x}


def logged(*, x: int, seed: int, log: str, fail: int = -1) -> dict[str, int]:
    """A trial that leaves a line, and stops the sweep at one place while it is asked to."""
    with Path(log).open("a") as file:
        file.write(f"{x} {seed}\n")
    if x == fail and Path(f"{log}.stop").exists():
        raise KeyboardInterrupt
    return {"y": 10 * x + seed}


# ------------------------------------------------------------------------------------------ points and rows


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True),
    st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True),
    st.sets(st.sampled_from(["x", "name"])),
)
def test_points_in_order(xs: list[int], names: list[str], seeds: list[int], by: set[str]) -> None:
    sweep = Sweep(added, {"x": xs, "name": names}, seeds, by=tuple(by), setup=print)
    points = sweep.points()
    assert len(points) == len(xs) * len(names) * len(seeds)
    assert {tuple(sorted(at.items(), key=str)) for at in points} == {
        tuple(sorted({"x": x, "name": name, "seed": seed}.items(), key=str))
        for x, name, seed in product(xs, names, seeds)
    }
    # Each setup is needed once.
    changes = [sweep.setup_key(at) for at in points]
    assert sum(a != b for a, b in pairwise(changes)) == len(set(changes)) - 1


def test_the_order_is_that_of_the_grid() -> None:
    sweep = Sweep(added, {"x": [1, 2], "y": [3, 4]}, [0, 1])
    assert [tuple(at.values()) for at in sweep.points()[:5]] == [
        (0, 1, 3), (0, 1, 4), (0, 2, 3), (0, 2, 4), (1, 1, 3)
    ]  # fmt: skip
    sweep = Sweep(added, {"x": [1, 2], "y": [3, 4]}, [0, 1], setup=print, by=["y"])
    assert sweep.points()[0] == {"y": 3, "seed": 0, "x": 1}
    assert sweep.points()[4] == {"y": 4, "seed": 0, "x": 1}


def test_rows_and_what_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    found = Sweep(added, {"x": [1, 2]}, [0, 5], {"y": 0.5}).run(tell=lambda *said: told.append(said))
    assert found.rows == [
        {"seed": 0, "x": 1, "sum": 1.5},
        {"seed": 0, "x": 2, "sum": 2.5},
        {"seed": 5, "x": 1, "sum": 6.5},
        {"seed": 5, "x": 2, "sum": 7.5},
    ]
    assert told[1] == ("seed 0, x 2", 1, 4)
    assert found.whole() is found
    assert found.to_table().column("sum").to_pylist() == [1.5, 2.5, 6.5, 7.5]


def test_several_rows_of_a_point() -> None:
    found = Sweep(several, {"x": [0, 3]}).run()
    assert [len(point.rows) for point in found.points] == [0, 3]
    assert found.points[1].rows[2] == {"n": 2, "square": 4.0, "name": "even"}
    assert type(found.points[1].rows[2]["square"]) is float
    assert found.to_table().to_pylist()[1] == {"seed": 0, "x": 3, "n": 1, "square": 1.0, "name": None}


def test_a_table_of_nothing() -> None:
    assert Sweep(several, {"x": [0]}).run().to_table().num_rows == 0
    assert Sweep(added, {}, [3], {"x": 1}).run().rows == [{"seed": 3, "sum": 4.0}]


# ----------------------------------------------------------------------------------------------- problems


def test_a_point_that_fails_leaves_the_others() -> None:
    found = Sweep(picky, {"x": [1, 2, 3]}).run()
    assert [row["y"] for row in found.rows] == [1, 3]
    assert found.problems == [SweepPoint({"seed": 0, "x": 2}, problem="x is 2; give another")]
    with refused(ParameterError, "1 of 3", "seed 0, x 2", "x is 2"):
        found.whole()


def test_all_points_that_fail() -> None:
    with refused(ParameterError, "x is 2; give another"):
        Sweep(picky, {"x": [2]}, [0, 1]).run()
    points = [SweepPoint({"seed": 0}, problem="one"), SweepPoint({"seed": 1}, problem="two")]
    with refused(ParameterError, "2 of 2", "seed 0", "one"):
        swept(points)
    assert swept([]) == Swept([])


def test_other_errors_end_a_sweep() -> None:
    with pytest.raises(TypeError):
        Sweep(added, {"x": ["text"]}).run()


@pytest.mark.parametrize(
    ("row", "shown"),
    [({"y": [1]}, ["y", "list"]), ({"y": 2**63}, ["y", 2**63]), ({"x": 1}, ["'x'"]), ([1], ["int"])],
)
def test_invalid_rows_are_refused(row: Any, shown: list[Any]) -> None:
    with refused(ParameterError, *shown):
        Sweep(lambda **_: row, {"x": [1]}).run()


@pytest.mark.parametrize(
    ("given", "shown", "parameter"),
    [
        ({"grid": {"x": []}}, ["[]"], "x"),
        ({"grid": {"x": [1, 1]}}, ["[1, 1]"], "x"),
        ({"grid": {"x": [[1]]}}, ["list"], "x"),
        ({"grid": {"seed": [1]}}, [], "seed"),
        ({"grid": {"x": [1]}, "fixed": {"x": 2}}, [], "x"),
        ({"grid": {"x": [1]}, "seeds": []}, ["[]"], "seed"),
        ({"grid": {"x": [1]}, "seeds": [-1]}, [-1], "seed"),
        ({"grid": {"x": [1]}, "by": ["y"], "setup": print}, ["'y'", "x"], "by"),
    ],
)
def test_bad_sweeps(given: Any, shown: list[Any], parameter: str) -> None:
    with refused(ParameterError, *shown, parameter=parameter):
        Sweep(added, **given)


def test_values_that_are_alike_but_differ() -> None:
    assert len(Sweep(added, {"x": [1, True, 1.0, np.int64(2)]}).points()) == 4


# ----------------------------------------------------------------------------------- what is made only once


def test_a_setup_serves_all_its_points() -> None:
    made: list[tuple[int, int]] = []

    def set_up(*, seed: int, modes: int, base: int) -> int:
        made.append((modes, seed))
        if modes == 2:
            raise ParameterError("two modes are none")
        return base + 100 * modes + seed

    def trial(setting: int, *, x: int, **_: Any) -> dict[str, int]:
        return {"y": setting + x}

    grid = {"x": [1, 2, 3], "modes": [1, 2, 3]}
    found = Sweep(trial, grid, [0, 1], {"base": 1000}, setup=set_up, by=["modes"]).run()
    assert made == [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]
    assert [row["y"] for row in found.rows][:4] == [1101, 1102, 1103, 1102]
    assert len(found.problems) == 6


def test_made_keeps_the_last() -> None:
    calls: list[str] = []
    made = SetupCache(2)
    for key in "aabbacab":
        made.get(key, lambda key=key: calls.append(key))  # type: ignore[misc]
    assert "".join(calls) == "abcab"  # c drives a out, then a drives b out


# ------------------------------------------------------------------------------------------- interruptions


def test_a_sweep_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    fixed = {"log": str(log), "fail": 3}
    sweep = Sweep(logged, {"x": [1, 2, 3, 4]}, [0, 1], fixed)
    (tmp_path / "log.stop").touch()
    with pytest.raises(KeyboardInterrupt):
        sweep.run(done=tmp_path / "done")
    assert len(list((tmp_path / "done").iterdir())) == 2
    (tmp_path / "log.stop").unlink()
    log.unlink()
    found = sweep.run(done=tmp_path / "done")
    assert len(log.read_text().split("\n")) == 6 + 1
    assert found == sweep.run(done=tmp_path / "done")
    assert len(log.read_text().split("\n")) == 6 + 1
    assert found == sweep.run()
    # A larger grid and other seeds find what there is; another fixed value does not.
    log.unlink()
    Sweep(logged, {"x": [4, 5]}, [1, 2], fixed).run(done=tmp_path / "done")
    assert log.read_text().splitlines() == ["5 1", "4 2", "5 2"]
    Sweep(logged, {"x": [4]}, [1], {**fixed, "fail": 99}).run(done=tmp_path / "done")
    assert log.read_text().splitlines()[3:] == ["4 1"]


def test_files_that_are_damaged_or_cannot_be_written(tmp_path: Path) -> None:
    sweep = Sweep(added, {"x": [1, 2]})
    found = sweep.run(done=tmp_path / "done")
    for file in (tmp_path / "done").iterdir():
        file.write_bytes(file.read_bytes()[:-3])
    assert sweep.run(done=tmp_path / "done") == found
    (tmp_path / "file").touch()
    with refused(TableError, "file"):
        sweep.run(done=tmp_path / "file" / "done")


def test_failed_points_are_not_saved(tmp_path: Path) -> None:
    Sweep(picky, {"x": [1, 2]}).run(done=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_what_is_kept_comes_back_as_it_was(tmp_path: Path) -> None:
    row: Record = {"i": -(2**63), "f": 0.1 + 0.2, "inf": math.inf, "s": "ü", "none": None, "b": True}
    saved = SavedPoints(tmp_path, Sweep(added, {"x": [1]}))
    at: Record = {"seed": 0, "x": 1}
    saved.put(SweepPoint(at, [row, {"nan": math.nan}]))
    found = saved.get(at)
    assert found is not None
    assert found.rows[0] == row
    assert [type(value) for value in found.rows[0].values()] == [type(value) for value in row.values()]
    assert math.isnan(found.rows[1]["nan"])  # type: ignore[arg-type]
    assert saved.get({"seed": 0, "x": 1.0}) is None


def test_digests_tell_sweeps_apart() -> None:
    interest = Interest([[1, 0], [1, 1]])
    sweeps = [
        Sweep(added, {"x": [1]}),
        Sweep(picky, {"x": [1]}),
        Sweep(added, {"x": [1]}, setup=several),
        Sweep(added, {"x": [1]}, fixed={"y": 1}),
        Sweep(added, {"x": [1]}, fixed={"y": 1.0}),
        Sweep(added, {"x": [1]}, fixed={"y": "1"}),
        Sweep(added, {"x": [1]}, fixed={"y": [1, "a"]}),
        Sweep(added, {"x": [1]}, fixed={"y": {"a": 1}}),
        Sweep(added, {"x": [1]}, fixed={"y": interest}),
        Sweep(added, {"x": [1]}, fixed={"y": Interest([[1, 0], [1, 1]], rate=[1, 2])}),
        Sweep(lambda **_: {"a": 1}, {"x": [1]}),
        Sweep(lambda **_: {"a": 2}, {"x": [1]}),
        Sweep(lambda **given: {"a": given["x"] in {"p", "q"}}, {"x": [1]}),
        Sweep(lambda **given: {"a": [n * n for n in range(given["x"])]}, {"x": [1]}),
    ]
    assert len({sweep.digest() for sweep in sweeps}) == len(sweeps)
    again = Sweep(added, {"x": [2]}, [4], fixed={"y": Interest([[1, 0], [1, 1]])})
    assert again.digest() == sweeps[8].digest()
    nan = [Sweep(added, {"x": [1]}, fixed={"y": float("nan")}).digest() for _ in range(2)]
    assert nan[0] == nan[1]


def test_functions_that_cannot_be_identified(tmp_path: Path) -> None:
    outside = 3
    sweep = Sweep(lambda **_: {"y": outside}, {"x": [1]})
    assert sweep.run().rows == [{"seed": 0, "x": 1, "y": 3}]
    with refused(ParameterError, "<lambda>", parameter="trial"):
        sweep.run(done=tmp_path)
    with refused(ParameterError, "generator", parameter="fixed"):
        Sweep(added, {"x": [1]}, fixed={"y": (i for i in "ab")}).run(done=tmp_path)


def test_words() -> None:
    assert describe_point({"method": "mst", "seed": 2}) == "method mst, seed 2"


def planned(interest: Interest, *, channels: int, seed: int) -> dict[str, float]:
    return {"waste": Waste().score(interest, Pairwise(channels=channels).fit(interest).plan_).total}


def drawn(*, seed: int) -> Interest:
    return Interest(np.random.default_rng(seed).random((30, 20)) < 0.3)


def test_a_sweep_of_plans() -> None:
    rows = Sweep(planned, {"channels": [1, 5, 20]}, [1, 2], setup=drawn).run().rows
    for seed in (1, 2):
        waste: list[Any] = [row["waste"] for row in rows if row["seed"] == seed]
        assert waste == sorted(waste, reverse=True)
        assert waste[-1] == 0
