"""Lookups round the circle: as a slow walk does them, with and without what publishers recall."""

from __future__ import annotations

import math
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast.errors import ParameterError
from narrowcast.lab.hubs import Links, drawn
from support.errors import refused


def slow(links: Links, source: int, target: int, recalled: list[int] | None = None) -> int:
    """Walk one hop at a time, by a look at all that are known."""
    n, at, hops = links.n_nodes, source, 0
    while at != target:
        left = (target - at) % n
        known = [1, *links.away[at].tolist()]
        if hops == 0:
            known += [(place - at) % n for place in recalled or []]
        at = (at + max(step for step in known if step <= left)) % n
        hops += 1
    return hops


def test_fingers_by_hand() -> None:
    """8 machines know those 1, 2 and 4 on: a way has as many hops as its length has binary ones."""
    links = Links(8, kind="fingers")
    assert links.away.tolist() == [[1, 2, 4]] * 8
    source = np.repeat(np.arange(8), 8)
    target = np.tile(np.arange(8), 8)
    ones = [((t - s) % 8).bit_count() for s, t in zip(source.tolist(), target.tolist(), strict=True)]
    assert links.hops(source, target).tolist() == ones


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 60), seed=st.integers(0, 5), room=st.integers(0, 4), data=st.data())
def test_as_a_slow_walk(n: int, seed: int, room: int, data: st.DataObject) -> None:
    links = Links(n, seed=seed)
    places = st.lists(st.integers(0, n - 1), min_size=12, max_size=12)
    source, target = data.draw(places), data.draw(places)
    assert links.hops(source, target).tolist() == [
        slow(links, s, t) for s, t in zip(source, target, strict=True)
    ]
    caches: dict[int, OrderedDict[int, None]] = {}
    hops = []
    for s, t in zip(source, target, strict=True):
        mine = caches.setdefault(s, OrderedDict())
        hops.append(slow(links, s, t, list(mine)))
        if s != t and room:
            mine.pop(t, None)
            mine[t] = None
            if len(mine) > room:
                mine.popitem(last=False)
    assert links.recalled(source, target, room=room).tolist() == hops


def test_hops_grow_with_the_logarithm() -> None:
    rng = np.random.default_rng(0)
    for n in (64, 1024, 16_384):
        links = Links(n, seed=1)
        assert links.per_node == math.log2(n)
        mean = links.hops(*rng.integers(0, n, (2, 4000))).mean()
        assert 0.4 * math.log2(n) < mean < math.log2(n)


def test_distances_are_harmonic() -> None:
    """As many links go one to two machines on as 100 to 200, nearly."""
    away = Links(10_000, seed=3).away
    near, far = (((away >= low) & (away < 2 * low)).sum() for low in (16, 1024))
    assert near == pytest.approx(far, rel=0.05)
    assert away.min() == 1
    assert away.max() < 10_000
    assert (np.diff(away, axis=1) >= 0).all()


def test_recalling_saves_hops() -> None:
    links, rng = Links(2000, seed=2), np.random.default_rng(0)
    popular = drawn(np.array([rank**-1.2 for rank in range(1, 2001)]), 5000, rng)
    source = rng.integers(0, 10, 5000)
    plain, few, many = (links.recalled(source, popular, room=room).mean() for room in (0, 10, 200))
    assert plain == links.hops(source, popular).mean() > few > many


def test_named_counts_links() -> None:
    links = Links(50, seed=4)
    count = np.zeros(50, int)
    for at, row in enumerate(links.away.tolist()):
        for step in row:
            count[(at + step) % 50] += 1
    assert links.named().tolist() == count.tolist()


def test_one_machine_has_no_links() -> None:
    links = Links(1)
    assert links.per_node == 0
    assert links.hops([0, 0], [0, 0]).tolist() == [0, 0]
    assert links.hops([], []).tolist() == []


def test_drawn_follows_the_density() -> None:
    found = np.bincount(drawn(np.array([0.2, 0.0, 0.8]), 10_000, np.random.default_rng(0)), minlength=3)
    assert found[1] == 0
    assert found[2] / 10_000 == pytest.approx(0.8, abs=0.02)


def test_invalid_parameters() -> None:
    with refused(ParameterError, parameter="n_nodes", value=0):
        Links(0)
    with refused(ParameterError, parameter="seed", value=-1):
        Links(2, seed=-1)
    with refused(ParameterError, "harmonic", "fingers", parameter="kind", value="all"):
        Links(4, kind="all")  # type: ignore[arg-type]
    links = Links(4)
    with refused(ParameterError, 3, parameter="target", value=4):
        links.hops([0], [4])
    with refused(ParameterError, 1, parameter="target", value=2):
        links.hops([0], [1, 2])
    with refused(ParameterError, "float64", parameter="source"):
        links.hops([0.5], [1])
    with refused(ParameterError, parameter="room", value=-1):
        links.recalled([0], [1], room=-1)
