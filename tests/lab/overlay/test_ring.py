"""Rings: routes against Pastry's rules written out, their length, and nodes that come and go."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowcast.errors import ParameterError
from narrowcast.lab.overlay import Ring, channel_keys
from support.errors import refused

WHOLE = 2**64
ODD = 0xD6E8FEB86659FD93
KEYS = st.integers(0, WHOLE - 1)


# --------------------------------------------------------------------------------- the rules, written out


def mixed(value: int) -> int:
    value ^= value >> 30
    value = value * 0xBF58476D1CE4E5B9 % WHOLE
    value ^= value >> 27
    value = value * 0x9E3779B97F4A7C15 % WHOLE
    return value ^ (value >> 31)


@dataclass
class Slow:
    """The same ring, one node and one digit at a time."""

    ids: list[int]
    salt: int
    bits: int
    leaves: int

    def digits(self, value: int) -> list[int]:
        return [(value >> (64 - self.bits * (i + 1))) % 2**self.bits for i in range(64 // self.bits)]

    def shared(self, a: int, b: int) -> int:
        same = [x == y for x, y in zip(self.digits(a), self.digits(b), strict=True)]
        return same.index(False) if False in same else len(same)

    def apart(self, a: int, b: int) -> int:
        return min((a - b) % WHOLE, (b - a) % WHOLE)

    def closest(self, key: int, among: list[int]) -> int:
        return min(among, key=lambda each: (self.apart(each, key), each))

    def sides(self, own: int) -> tuple[list[int], list[int]]:
        """Return the leaves after a node and those before it, the next one first."""
        others = [each for each in self.ids if each != own]
        after = sorted(others, key=lambda each: (each - own) % WHOLE)[: self.leaves // 2]
        before = sorted(others, key=lambda each: (own - each) % WHOLE)[: self.leaves // 2]
        return after, before

    def table(self, own: int) -> dict[tuple[int, int], int]:
        """Return the entries of a routing table by row and digit."""
        qualified: dict[tuple[int, int], list[int]] = {}
        for each in sorted(self.ids):
            if each != own:
                row = self.shared(own, each)
                qualified.setdefault((row, self.digits(each)[row]), []).append(each)
        return {at: min(some, key=lambda each: self.drawn(own, each)) for at, some in qualified.items()}

    def drawn(self, own: int, other: int) -> int:
        """Return how far another node is, as far as routing tables are concerned."""
        return (other ^ mixed(own ^ self.salt)) * ODD % WHOLE

    def hop(self, own: int, key: int) -> int | None:
        if own == self.closest(key, self.ids):
            return None
        after, before = self.sides(own)
        leaves = set(after) | set(before)
        # As many as there are: every key is in range.
        if len(leaves) == len(self.ids) - 1 or (key - before[-1]) % WHOLE <= (after[-1] - before[-1]) % WHOLE:
            return self.closest(key, [own, *leaves])
        row, table = self.shared(own, key), self.table(own)
        if (row, self.digits(key)[row]) in table:
            return table[row, self.digits(key)[row]]
        known = leaves | set(table.values())
        return self.closest(
            key,
            [
                each
                for each in known
                if self.shared(each, key) >= row and self.apart(each, key) < self.apart(own, key)
            ],
        )

    def route(self, own: int, key: int) -> list[int]:
        found = [own]
        while (after := self.hop(found[-1], key)) is not None:
            found.append(after)
        return found


def slow(ring: Ring) -> Slow:
    return Slow(ring.ids[ring.alive].tolist(), int(ring.tables[1]), ring.digit_bits, ring.leaves)


@st.composite
def crowded(draw: st.DrawFn) -> list[int]:
    """Return ids many of which share digits, so that tables have holes beyond the leaves."""
    heads = draw(st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=4))
    shifts = st.sampled_from([0, 20, 40])
    few = st.builds(lambda head, tail, shift: (head << 48) + (tail << shift),
        st.sampled_from(heads), st.integers(0, 2**8 - 1), shifts)  # fmt: skip
    return draw(st.lists(st.one_of(few, KEYS), min_size=1, max_size=60, unique=True))


@given(crowded(), KEYS, st.sampled_from([1, 2, 4, 8]), st.sampled_from([2, 4, 16]), st.integers(0, 3))
def test_routes_follow_the_rules(ids: list[int], other: int, bits: int, leaves: int, seed: int) -> None:
    ring = Ring.from_ids(ids, seed=seed, digit_bits=bits, leaves=leaves)
    reference = slow(ring)
    near = ids[seed % len(ids)]
    for key in (other, near, (near + 1) % WHOLE, near ^ (1 << 45)):
        source = np.arange(len(ids))
        routes = ring.routes(source, np.full(len(ids), key, np.uint64))
        parents = ring.parents(key)
        for i in range(0, len(ids), 7):
            found = routes.node[routes.indptr[i] : routes.indptr[i + 1]]
            assert ring.ids[found].tolist() == reference.route(ids[i], key)
            assert found[1:].tolist() == parents[found[:-1]].tolist()
        ends = routes.node[routes.indptr[1:] - 1]
        assert set(ends.tolist()) == {int(ring.closest(key))}
        assert ids[ends[0]] == reference.closest(key, ids)


def test_the_closest_known_is_taken_where_the_table_has_a_hole() -> None:
    ids = [each << 56 for each in (0x10, 0x11, 0x12, 0x0F, 0x0E, 0x90, 0x1F)]
    ring = Ring.from_ids(ids, leaves=2)
    # No id begins with 16, and 10 has but 0F and 11 for leaves; its table has 12.
    assert ring.routes([0], [0x16 << 56]).node.tolist() == [0, 2]
    # From 90, whose leaves are 1F and 0E, the first hop is to any id that begins with 1.
    assert ring.routes([5], [0x16 << 56]).node.tolist()[-1] == 2


@pytest.mark.parametrize(
    ("ids", "key", "route"),
    [
        # The key is the last leaf itself: no other node is asked, although the table has more such entries.
        ([0x1000, 0x2100, *range(0x2200, 0x3000, 0x10), 0x9000], 0x2100, [0, 1]),
        # 2000 is a leaf of 1000 and closer than 1200, but shares no digit.
        ([0x1000, 0x1100, 0x1200, 0x2000], 0x1E00, [0, 2, 3]),
        # The range of ids that begin with F ends where the ring begins anew.
        ([0x2000, 0x1000, 0x3000, 0xF800, 0x9000], 0xF810, [0, 3]),
        # 1450 and 17B0 are as close: the lower one, which is in a later row.
        ([0x1410, 0x1420, 0x1450, 0x17B0, 0x1400], 0x1600, [0, 2]),
    ],
)
def test_one_rule_at_a_time(ids: list[int], key: int, route: list[int]) -> None:
    ring = Ring.from_ids([each << 48 for each in ids], leaves=2)
    assert ring.routes([0], [key << 48]).node.tolist() == route
    assert [ids[node] << 48 for node in route] == slow(ring).route(ids[0] << 48, key << 48)


def test_a_key_between_two_goes_to_the_lower_id() -> None:
    ring = Ring.from_ids([100, 200, 2**64 - 100])
    assert ring.closest([150, 0, 151, 149]).tolist() == [0, 0, 1, 0]
    assert ring.closest(2**64 - 1) == 2


@pytest.mark.parametrize(("n_nodes", "mean"), [(100, 1.69), (1000, 2.46), (10_000, 3.21)])
def test_routes_are_short(n_nodes: int, mean: float) -> None:
    rng = np.random.default_rng(5)
    ring = Ring(n_nodes, seed=5)
    hops = ring.routes(rng.integers(n_nodes, size=4000), channel_keys(4000, seed=5)).hops()
    assert hops.mean() == pytest.approx(mean, abs=0.1)
    assert hops.mean() < np.log(n_nodes) / np.log(16) + 0.1
    assert hops.max() <= np.ceil(np.log(n_nodes) / np.log(16)) + 2


def test_one_node_and_as_many_as_leaves() -> None:
    alone = Ring(1, seed=3)
    assert alone.routes([0], [77]).node.tolist() == [0]
    assert alone.parents(77).tolist() == [-1]
    assert alone.named().tolist() == [0]
    ring = Ring(17, seed=3)
    assert set(ring.routes(np.arange(17), channel_keys(17)).hops().tolist()) <= {0, 1}


@given(st.integers(1, 60), st.integers(0, 5), st.sampled_from([1, 2, 4]))
def test_how_often_tables_name_a_node(n_nodes: int, seed: int, bits: int) -> None:
    ring = Ring(n_nodes, seed=seed, digit_bits=bits, leaves=4)
    asked = np.random.default_rng(seed).random(n_nodes) < 0.5
    reference = slow(ring)
    wanted = [each for own in ring.ids[asked].tolist() for each in reference.table(own).values()]
    assert ring.named(asked).tolist() == [wanted.count(each) for each in ring.ids.tolist()]
    for some in ([seed % n_nodes], np.arange(n_nodes)):  # looked for one by one, and all at once
        assert ring.named(asked, of=some).tolist() == ring.named(asked)[some].tolist()


def test_parents_along_the_routes_of_some() -> None:
    ring = Ring(300, seed=2)
    key = channel_keys(1, seed=2)[0]
    every, some = ring.parents(key), ring.parents(key, [4, 9])
    on = set(ring.routes([4, 9], [key, key]).node.tolist())
    assert {int(node) for node in np.flatnonzero(some != -2)} == on
    assert (some[list(on)] == every[list(on)]).all()
    assert (every == -1).sum() == 1
    assert (every == -2).sum() == 0


def test_the_same_seed_is_the_same_ring() -> None:
    one, two, other = Ring(200, seed=4), Ring(200, seed=4), Ring(200, seed=5)
    assert (one.ids == two.ids).all()
    assert (one.parents(99) == two.parents(99)).all()
    assert not (one.ids == other.ids).any()
    tables = Ring.from_ids(one.ids, seed=5)
    assert (tables.ids == one.ids).all()
    assert (tables.parents(99) != one.parents(99)).any()
    assert len(np.unique(Ring(5000, seed=0).ids)) == 5000


def test_a_number_says_nothing_about_the_id() -> None:
    ring = Ring(2000, seed=0)
    assert abs(np.corrcoef(np.arange(2000), ring.ids.astype(float))[0, 1]) < 0.1


@given(st.integers(20, 80), st.integers(0, 5), st.data())
def test_nodes_go_and_come(n_nodes: int, seed: int, data: st.DataObject) -> None:
    ring = Ring(n_nodes, seed=seed, leaves=4)
    gone = data.draw(st.lists(st.integers(0, n_nodes - 1), max_size=15, unique=True))
    new = ring.without(gone).joined(5)
    assert ring.n_nodes == n_nodes
    assert new.n_nodes == n_nodes - len(gone) + 5
    assert new.nodes.tolist() == [i for i in range(n_nodes + 5) if i not in gone]
    assert (new.ids[:n_nodes] == ring.ids).all()
    assert len(np.unique(new.ids)) == n_nodes + 5
    key = int(channel_keys(1, seed=seed)[0])
    parents = new.parents(key)
    assert (parents[gone] == -2).all()
    reference = slow(new)
    for node in new.nodes[::9].tolist():
        after = reference.hop(int(new.ids[node]), key)
        assert parents[node] == (-1 if after is None else np.flatnonzero(new.ids == after)[0])


def test_new_nodes_take_over_numbers() -> None:
    ring = Ring(50, seed=2)
    new, again, other = (ring.renewed([3, 40], seed=seed) for seed in (1, 1, 2))
    assert np.flatnonzero(new.ids != ring.ids).tolist() == [3, 40]
    assert (new.ids == again.ids).all()
    assert (new.ids[[3, 40]] != other.ids[[3, 40]]).all()
    assert new.n_nodes == 50
    assert new.alive.all()
    # Neither the ids of nodes that join, nor those of the next who fail.
    assert not set(new.ids[[3, 40]].tolist()) & set(ring.joined(2).ids.tolist())
    assert not set(new.ids[[3, 40]].tolist()) & set(new.renewed([3, 40], seed=1).ids.tolist())
    assert (ring.renewed([]).ids == ring.ids).all()


def test_few_routes_change_with_one_node() -> None:
    ring = Ring(3000, seed=1)
    key = channel_keys(1, seed=8)[0]
    before = ring.parents(key)
    for new in (ring.without([17]), ring.joined(1)):
        both = np.flatnonzero(new.alive[:3000])
        assert (new.parents(key)[both] != before[both]).sum() < 30


def test_nothing_can_be_changed() -> None:
    ring = Ring(10)
    for array in (ring.ids, ring.alive, ring.by_place, *ring.tables[:1]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    assert repr(ring) == "Ring(10 nodes, digits of 4 bits, 16 leaves)"


# ---------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"n_nodes": 0}, "n_nodes"),
        ({"n_nodes": 2.5}, "n_nodes"),
        ({"n_nodes": 9, "seed": -1}, "seed"),
        ({"n_nodes": 9, "digit_bits": 3}, "digit_bits"),
        ({"n_nodes": 9, "leaves": 0}, "leaves"),
        ({"n_nodes": 9, "leaves": 5}, "leaves"),
    ],
)
def test_invalid_rings(values: dict[str, int], name: str) -> None:
    with refused(ParameterError, parameter=name, value=values[name]):
        Ring(**values)


def test_nodes_and_keys_that_are_none() -> None:
    ring = Ring(10).without([3])
    with refused(ParameterError, 9, parameter="sources", value=10):
        ring.routes([0, 10], [1, 1])
    with refused(ParameterError, parameter="sources", value=-1):
        ring.parents(1, [-1])
    with refused(ParameterError, 3, parameter="sources", value=3):
        ring.routes([3], [1])
    with refused(ParameterError, "float64", parameter="sources"):
        ring.routes([0.5], [1])
    with refused(ParameterError, 2, parameter="keys", value=1):
        ring.routes([0, 1], [1])
    with refused(ParameterError, -4, parameter="keys", value=-4):
        ring.closest(-4)
    with refused(ParameterError, 2**64, parameter="keys", value=2**64):
        ring.closest([5, 2**64])
    with refused(ParameterError, 0.5, parameter="keys", value=0.5):
        ring.closest(np.array([0.5]))
    with refused(ParameterError, -2, parameter="keys", value=-2):
        ring.closest(np.array([3, -2]))
    with refused(ParameterError, 2, parameter="key", value=2):
        ring.parents([1, 2])  # type: ignore[arg-type]


def test_invalid_changes_of_nodes() -> None:
    with refused(ParameterError, 3, parameter="nodes", value=3):
        Ring(10).without([3, 4, 3])
    with refused(ParameterError, 3, parameter="nodes", value=3):
        Ring(3).without([0, 1, 2])
    with refused(ParameterError, parameter="n_nodes", value=-1):
        Ring(3).joined(-1)
    with refused(ParameterError, 2, parameter="nodes", value=2):
        Ring(3).renewed([2, 0, 2])
    with refused(ParameterError, parameter="nodes", value=3):
        Ring(3).renewed([3])
    with refused(ParameterError, 1, parameter="nodes", value=1):
        Ring(3).without([1]).renewed([1])
    with refused(ParameterError, parameter="seed", value=-1):
        Ring(3).renewed([1], seed=-1)
    with refused(ParameterError, 7, parameter="ids", value=7):
        Ring.from_ids([7, 8, 7])
    with refused(ParameterError, parameter="number of ids", value=0):
        Ring.from_ids([])
