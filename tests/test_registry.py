from __future__ import annotations

import pytest

from narrowcast.costs import COSTS
from narrowcast.errors import ParameterError
from narrowcast.planning import PLANNERS
from narrowcast.registry import Registry
from narrowcast.routing import ROUTERS


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


def test_what_ships() -> None:
    assert {"broadcast", "hash", "per-flow", "unicast"} <= set(PLANNERS)
    assert "waste" in COSTS
    assert "channels" in ROUTERS
    with pytest.raises(ParameterError, match="unknown method 'brodcast'; did you mean 'broadcast'"):
        PLANNERS["brodcast"]
