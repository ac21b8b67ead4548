"""What positions hold and what comes to them, against a literal count; and input that is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.costs.line_positions import LineCharges, LinePositions, hold
from narrowcast.errors import InputError, ParameterError
from support.positions import charged, lines, literal, literal_cost


@given(lines(), charged, st.data())
def test_equals_a_literal_count(line: LinePositions, charges: LineCharges, data: st.DataObject) -> None:
    push = data.draw(
        st.lists(st.tuples(st.booleans(), st.booleans()), min_size=len(line), max_size=len(line))
    )
    found = hold(line, charges, push)
    messages, segments, total = literal_cost(line, charges, push)
    cost = found.cost(charges)
    assert cost.terms["segments"] == segments
    assert cost.terms["messages"] == pytest.approx(messages, abs=1e-9)
    assert cost.total == pytest.approx(total, abs=1e-9)
    assert (found.messages >= -1e-12).all()
    for x, pieces in literal(line, push).items():
        assert found.segments[x] == sum(w for _, _, w in pieces)
        assert found.first[x] == min(s for s, _, _ in pieces)
        assert found.last[x] == max(t for _, t, _ in pieces)


@given(lines())
def test_popularity_is_how_many_cover_a_position(line: LinePositions) -> None:
    for v, found in enumerate(line.popularity()):
        assert found == line.weight[(line.first <= v) & (v <= line.last)].sum()


def test_no_limit_means_one_machine_and_no_message_of_its_own() -> None:
    line = LinePositions([1.0, 2.0], [0] * 5, [0] * 5)
    for capacity, messages in ((math.inf, 0.0), (5.0, 0.0), (4.0, 1.0), (1.0, 4.0)):
        held = hold(line, LineCharges(capacity=capacity))
        assert held.messages.tolist() == [messages, 0.0]
    # A sum of tenths that is a little above a whole number fills no further machine.
    assert LineCharges(capacity=0.3).machines(0.1 + 0.2) == 1


def test_one_position() -> None:
    held = hold(LinePositions([1.0], [0, 0, 0], [0, 0, 0]), LineCharges(capacity=2))
    assert (held.segments.tolist(), held.machines.tolist(), held.messages.tolist()) == ([3.0], [2.0], [1.0])


def test_no_interval_at_all() -> None:
    held = hold(LinePositions([1.0, 2.0, 3.0], [], []), LineCharges())
    assert held.messages.tolist() == [0, 0, 0]
    assert held.first.tolist() == held.last.tolist() == [0, 1, 2]


def test_the_papers_charges() -> None:
    charges = LineCharges.of()
    assert (charges.message, charges.segment, charges.capacity) == (2.56e9, 12.8, math.inf)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (([1.0], [0], [1]), "interval 0 goes from 0 to 1; give positions from 0 to 0"),
        (([1.0, 1.0], [0, 1], [1, 0]), "interval 1 goes from 1 to 0 and is empty"),
        (([1.0], [-1], [0]), "interval 0 goes from -1 to 0"),
        (([], [], []), "density has shape"),
        (([[1.0]], [], []), "density has shape"),
        (([1.0, -1.0], [], []), "density is -1.0 at position 1"),
        (([1.0, np.nan], [], []), "density is nan at position 1"),
        (([1.0], [0.5], [0.5]), "first is float64"),
        (([1.0], [0], [0, 0]), "there are 1 first and 2 last positions"),
        (([1.0], [0], [0], [0.0]), "interval 0 weighs 0.0; give a finite number above 0"),
        (([1.0], [0], [0], [np.inf]), "interval 0 weighs inf"),
    ],
)
def test_bad_positions(given: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        LinePositions(*given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"message": -1}, "message is -1; give a finite number of at least 0"),
        ({"segment": math.inf}, "segment is inf"),
        ({"segment": True}, "segment is True"),
        ({"capacity": 0}, "capacity is 0; give a number above 0, infinity for no limit"),
        ({"capacity": math.nan}, "capacity is nan"),
    ],
)
def test_bad_charges(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        LineCharges(**given)


def test_pushes_of_another_length_are_refused() -> None:
    with pytest.raises(InputError, match=r"push has shape \(1, 2\); give \(2, 2\)"):
        hold(LinePositions([1.0, 1.0], [], []), LineCharges(), [[0, 0]])
