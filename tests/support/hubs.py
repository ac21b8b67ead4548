"""Trees on a few machines, for the tests of hubs."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from narrowcast.costs.line_positions import LineCharges
from narrowcast.lab.hubs import Stretches, lines_of
from narrowcast.planning.ranges.merging import AttributeLines, Merging


@st.composite
def hubs(draw: st.DrawFn, *, most: int = 12) -> AttributeLines:
    """Draw filters on one to three attributes, some of them free, and events."""
    d, n, many = draw(st.integers(1, 3)), draw(st.integers(1, most)), draw(st.integers(0, 12))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    ends = np.sort(rng.integers(0, n, (many, d, 2)), axis=2)
    first, last = ends[:, :, 0], ends[:, :, 1]
    free = rng.random((many, d)) < 0.3
    first, last = np.where(free, -1, first), np.where(free, -1, last)
    return AttributeLines(rng.random((d, n)) + 0.01, first, last, rng.integers(1, 4) if many else 1.0)


def stretched(some: AttributeLines, nodes: int, seed: int) -> tuple[Stretches, Merging]:
    """Return trees, divided and merged, on machines whose stretches are drawn by chance."""
    charges = LineCharges(message=1.0, segment=0.05, capacity=4.0)
    merging = Merging(charges=charges, seed=seed).fit(some)
    lines = lines_of(merging.trees_, some)
    rng = np.random.default_rng(seed)
    cuts, node = [], []
    for _ in lines:
        # Some are whole keys, and some are none.
        inner = rng.random(nodes - 1) * some.n_positions
        inner = np.where(rng.random(nodes - 1) < 0.5, np.floor(inner), inner)
        cuts.append(np.concatenate([[0.0], np.sort(inner), [float(some.n_positions)]]))
        node.append(rng.permutation(nodes))
    return Stretches(lines, cuts, node), merging
