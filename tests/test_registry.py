from __future__ import annotations

import inspect
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

from narrowcast.costs import COSTS
from narrowcast.errors import ParameterError
from narrowcast.matching import MATCHERS
from narrowcast.planning import PLANNERS
from narrowcast.registry import Registry
from narrowcast.routing import ROUTERS
from narrowcast.spark.planning.large_planner import LARGE_PLANNERS
from narrowcast.workloads import WORKLOADS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def colours() -> Registry[int]:
    found: Registry[int] = Registry("colour")
    for number, name in enumerate(["red", "green", "blue"]):
        found.register(name)(number)
    return found


def test_it_is_a_mapping_in_the_order_of_names(colours: Registry[int]) -> None:
    assert list(colours.items()) == [("blue", 2), ("green", 1), ("red", 0)]
    assert len(colours) == 3
    assert "red" in colours
    assert "black" not in colours
    assert colours.get("black") is None
    assert colours.get("black", 7) == colours.get("none", 7) == 7


def test_an_unknown_name_lists_the_known(colours: Registry[int]) -> None:
    with pytest.raises(ParameterError) as caught:
        colours["gren"]
    assert str(caught.value) == "unknown colour 'gren'; did you mean 'green'? known: blue, green, red"
    with pytest.raises(ParameterError) as caught:
        colours["xyz"]
    assert str(caught.value) == "unknown colour 'xyz'; known: blue, green, red"


def test_a_name_is_used_once(colours: Registry[int]) -> None:
    with pytest.raises(ParameterError, match="colour 'red' is registered already"):
        colours.register("red")(9)
    assert colours["red"] == 0


def test_register_gives_back_what_it_was_given() -> None:
    found: Registry[type] = Registry("thing")

    @found.register("this")
    class This:
        pass

    assert found["this"] is This


def test_packages_add_theirs_by_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "own-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[narrowcast.shapes]\npair = fractions:Fraction\n")
    monkeypatch.syspath_prepend(tmp_path)
    shapes: Registry[type] = Registry("shape", {"one": "builtins:int"}, group="narrowcast.shapes")
    assert list(shapes.items()) == [("one", int), ("pair", Fraction)]
    with pytest.raises(ParameterError, match="shape 'pair' is registered already, and fractions:Fraction"):
        list(Registry("shape", {"pair": "builtins:tuple"}, group="narrowcast.shapes"))


@pytest.mark.parametrize("registry", [PLANNERS, COSTS, ROUTERS, MATCHERS, WORKLOADS, LARGE_PLANNERS])
def test_what_is_in_it_is_listed(registry: Registry[Any]) -> None:
    names = list(registry)
    assert names == sorted(names) == [name for name, _ in registry.items()]
    assert len(registry) == len(names) == len(registry.values())
    assert all(name in registry for name in names)
    assert all(registry[name] is not None for name in names)


def test_every_large_planner_is_of_a_planner() -> None:
    for name, large in LARGE_PLANNERS.items():
        assert set(large.parameters) <= set(inspect.signature(PLANNERS[name]).parameters)


def test_what_ships() -> None:
    assert {"broadcast", "hash", "per-flow", "unicast"} <= set(PLANNERS)
    assert "waste" in COSTS
    assert "channels" in ROUTERS
    with pytest.raises(ParameterError, match="unknown method 'brodcast'; did you mean 'broadcast'"):
        PLANNERS["brodcast"]
