"""Lines of positions, and what they cost by a literal count: several tests share them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from narrowcast.costs.line_positions import LineCharges, LinePositions


@st.composite
def lines(draw: st.DrawFn, most: int = 9, least: int = 1) -> LinePositions:
    """A few positions with events, and intervals of any weight."""
    n = draw(st.integers(least, most))
    ends = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=12))
    density = draw(st.lists(st.sampled_from([0.0, 0.125, 0.5, 1.0, 3.0]), min_size=n, max_size=n))
    weight = draw(st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=len(ends), max_size=len(ends)))
    first, last = ([f(pair) for pair in ends] for f in (min, max))
    return LinePositions(density, np.array(first, np.int64), np.array(last, np.int64), np.array(weight))


charged = st.builds(
    LineCharges,
    message=st.sampled_from([0.0, 1.0, 7.0]),
    segment=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    capacity=st.sampled_from([1.0, 2.0, 3.5, math.inf]),
)


def literal(line: LinePositions, push: Any) -> dict[int, list[tuple[int, int, float]]]:
    """By position the pieces it holds, found by handing them down one by one."""
    held: dict[int, list[tuple[int, int, float]]] = {}

    def put(s: int, t: int, w: float, a: int, b: int) -> None:
        x = (a + b) // 2
        if t < x:
            put(s, t, w, a, x - 1)
        elif s > x:
            put(s, t, w, x + 1, b)
        else:
            if push[x][0] and s < x:
                put(s, x - 1, w, a, x - 1)
                s = x
            if push[x][1] and t > x:
                put(x + 1, t, w, x + 1, b)
                t = x
            held.setdefault(x, []).append((s, t, w))

    for s, t, w in zip(line.first.tolist(), line.last.tolist(), line.weight.tolist(), strict=True):
        put(s, t, w, 0, len(line) - 1)
    return held


def literal_cost(line: LinePositions, charges: LineCharges, push: Any) -> tuple[float, float, float]:
    """Messages, segments and what both cost: every event is sent to every machine that may want it."""
    messages = segments = 0.0
    for x, pieces in literal(line, push).items():
        count = sum(w for _, _, w in pieces)
        machines = 1 if math.isinf(charges.capacity) else max(1, math.ceil(count / charges.capacity))
        segments += count
        for v, events in enumerate(line.density):
            if min(s for s, _, _ in pieces) <= v <= max(t for _, t, _ in pieces):
                messages += events * (machines - (v == x))
    return messages, segments, charges.message * messages + charges.segment * segments
