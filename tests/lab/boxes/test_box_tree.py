"""The R-tree that peers keep: as an obvious one has it, and with every message counted."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from narrowcast.errors import ParameterError
from narrowcast.lab.boxes.tree import BoxTree, grown
from narrowcast.lab.kernels.rtree import cut
from support.errors import refused

Doubles = NDArray[np.float64]
Box = tuple[tuple[float, ...], tuple[float, ...]]


class Node:
    """A node of the obvious tree."""

    def __init__(self, level: int) -> None:
        self.level = level
        self.entries: list[Any] = []
        self.above: Node | None = None


class Obvious:
    """The same R-tree, without anything that is fast; boxes are found from all below each time."""

    def __init__(self, boxes: list[Box], capacity: int) -> None:
        self.boxes, self.capacity, self.least = boxes, capacity, max(int(0.4 * capacity), 1)
        self.root, self.leaf = Node(0), dict[int, Node]()
        self.told = dict.fromkeys(("join", "leave", "split", "merge", "update"), 0)

    def items(self, entry: Any) -> list[int]:
        return [entry] if isinstance(entry, int) else [i for each in entry.entries for i in self.items(each)]

    def box(self, entry: Any) -> Box:
        return around([self.boxes[i] for i in self.items(entry)])

    def head(self, entry: Any) -> int:
        if isinstance(entry, int):
            return entry
        return self.head(entry.entries[0]) if entry.entries else -1

    def put(self, node: Node, entry: Any) -> None:
        node.entries.append(entry)
        if isinstance(entry, int):
            self.leaf[entry] = node
        else:
            entry.above = node

    def insert(self, entry: Any, level: int = 0, kind: str = "join") -> None:
        node, box = self.root, self.box(entry)
        self.told[kind] += 2
        while node.level > level:
            boxes = [self.box(each) for each in node.entries]
            grows = [
                (volume(both) - volume(each), margin(both) - margin(each), volume(each))
                for each in boxes
                for both in [around([each, box])]
            ]
            child = node.entries[grows.index(min(grows))]
            self.told[kind] += self.head(child) != self.head(node)
            node = child
        self.put(node, entry)
        while len(node.entries) > self.capacity:
            node = self.split(node)

    def split(self, node: Node) -> Node:
        entries = list(node.entries)
        stay = halves([self.box(each) for each in entries], self.least)
        other, above = Node(node.level), node.above
        if above is None:
            above = self.root = Node(node.level + 1)
            self.put(above, node)
        node.entries = []
        for number, each in enumerate(entries):
            self.put(node if number in stay else other, each)
        self.told["split"] += len(other.entries) + (self.head(node) != self.head(above))
        self.put(above, other)
        return above

    def remove(self, item: int) -> None:
        leaf = self.leaf.pop(item)
        node: Node | None = leaf
        if self.head(leaf) != item:
            self.told["leave"] += 1
        while node is not None and self.head(node) == item:
            self.told["leave"] += len(node.entries) - 1
            node = node.above
            if node is not None and self.head(node) != item:
                self.told["leave"] += 1
        path: list[Node] = [leaf]
        while path[-1].above is not None:
            path.append(path[-1].above)
        before = {node: self.box(node) for node in path}
        leaf.entries.remove(item)
        orphans: list[tuple[Any, int]] = []
        for node, above in pairwise(path):
            if len(node.entries) < self.least:
                self.told["merge"] += self.head(node) != self.head(above)
                orphans += [(each, node.level) for each in node.entries]
                above.entries.remove(node)
            elif self.box(node) != before[node]:
                self.told["update"] += self.head(node) != self.head(above)
        for entry, level in sorted(orphans, key=lambda each: -each[1]):
            self.insert(entry, level, "merge")
        while self.root.level > 0 and len(self.root.entries) == 1:
            self.root = self.root.entries[0]
            self.root.above = None

    def nodes(self) -> list[Node]:
        found = [self.root]
        for node in found:
            found += [each for each in node.entries if isinstance(each, Node)]
        return found


def around(boxes: list[Box]) -> Box:
    if not boxes:
        return (), ()
    lo, hi = zip(*boxes, strict=True)
    return tuple(map(min, zip(*lo, strict=True))), tuple(map(max, zip(*hi, strict=True)))


def volume(box: Box) -> float:
    return float(np.prod([b - a for a, b in zip(*box, strict=True)]))


def margin(box: Box) -> float:
    return sum(b - a for a, b in zip(*box, strict=True))


def shared(one: Box, other: Box) -> float:
    sides = [min(b, d) - max(a, c) for a, b, c, d in zip(*one, *other, strict=True)]
    return float(np.prod([max(side, 0) for side in sides]))


def halves(boxes: list[Box], least: int) -> set[int]:
    """Return the places of those that stay, the first among them."""
    cuts: list[list[tuple[list[Box], list[Box], set[int]]]] = []
    for axis in range(len(boxes[0][0])):
        cuts.append([])
        for end in (0, 1):
            order = sorted(range(len(boxes)), key=lambda i: (boxes[i][end][axis], boxes[i][1 - end][axis]))
            for at in range(least, len(boxes) - least + 1):
                cuts[-1].append(
                    ([boxes[i] for i in order[:at]], [boxes[i] for i in order[at:]], set(order[:at]))
                )
    if not cuts:
        return set(range(len(boxes) // 2))
    along = min(cuts, key=lambda each: sum(margin(around(a)) + margin(around(b)) for a, b, _ in each))
    one, other, stay = min(
        along,
        key=lambda each: (
            shared(around(each[0]), around(each[1])),
            volume(around(each[0])) + volume(around(each[1])),
        ),
    )
    assert min(len(one), len(other)) >= least
    return stay if 0 in stay else set(range(len(boxes))) - stay


def boxes_of(seed: int, n: int, d: int) -> tuple[Doubles, Doubles]:
    """Boxes of whole numbers, many of them alike, so that nothing is rounded and much is equal."""
    rng = np.random.default_rng(seed)
    lo = rng.integers(0, 12, (n, d)).astype(float)
    return lo, lo + rng.integers(0, 5, (n, d))


def same(tree: BoxTree, obvious: Obvious) -> None:
    """Both have the same nodes, led by the same, and have sent as many messages."""
    found, nodes = tree.branches(), obvious.nodes()
    place = {id(node): number for number, node in enumerate(nodes)}
    want = {obvious.head(node): [] for node in nodes}  # type: ignore[var-annotated]
    for node in nodes:
        above = -1 if node.above is None else obvious.head(node.above)
        want[obvious.head(node)].append((node.level, above))
    got = {head: [] for head in found.head.tolist()}  # type: ignore[var-annotated]
    for level, above, head in zip(
        found.level.tolist(), found.above.tolist(), found.head.tolist(), strict=True
    ):
        got[head].append((level, -1 if above < 0 else int(found.head[above])))
    assert {head: sorted(each) for head, each in got.items()} == {h: sorted(e) for h, e in want.items()}
    leaves: dict[int, set[int]] = {}
    for item, number in enumerate(tree.leaf.tolist()):
        if number >= 0:
            leaves.setdefault(number, set()).add(item)
    assert {frozenset(each) for each in leaves.values()} == {
        frozenset(node.entries) for node in nodes if node.level == 0 and node.entries
    }
    assert tree.told == obvious.told
    assert tree.n_led == sum(max(len(node.entries) - 1, 0) for node in nodes)
    assert len(place) == len(found.level)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    d=st.integers(0, 3),
    capacity=st.integers(2, 7),
    changes=st.lists(st.integers(0, 39), max_size=120),
)
def test_it_is_the_obvious_tree(seed: int, d: int, capacity: int, changes: list[int]) -> None:
    lo, hi = boxes_of(seed, 40, d)
    ends = [(tuple(a), tuple(b)) for a, b in zip(lo.tolist(), hi.tolist(), strict=True)]
    tree, obvious = BoxTree(lo, hi, capacity=capacity), Obvious(ends, capacity)
    tree.insert(range(20))
    for each in range(20):
        obvious.insert(each)
    same(tree, obvious)
    for each in changes:  # who is there leaves, who is not comes
        if tree.leaf[each] >= 0:
            tree.remove([each])
            obvious.remove(each)
        else:
            tree.insert([each])
            obvious.insert(each)
    same(tree, obvious)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 9), st.integers(1, 300))
def test_nodes_keep_their_sizes(seed: int, capacity: int, n: int) -> None:
    lo, hi = boxes_of(seed, n, 2)
    rng = np.random.default_rng(seed)
    tree = BoxTree(lo, hi, capacity=capacity)
    tree.insert(rng.permutation(n))
    for _ in range(2):
        found = tree.branches()
        size = np.bincount(found.above[:-1], minlength=len(found.level))
        size += np.bincount(found.leaf[found.leaf >= 0], minlength=len(size))
        assert size[:-1].min(initial=capacity) >= tree.least
        assert size.max() <= capacity
        assert found.level[-1] == found.level.max() == tree.height - 1
        assert (found.level[found.above[:-1]] == found.level[:-1] + 1).all(), "all leaves are as deep"
        there = np.flatnonzero(tree.leaf >= 0)
        tree.remove(rng.permutation(there)[: len(there) // 2])
    tree.remove(np.flatnonzero(tree.leaf >= 0))
    assert (tree.n_leaves, tree.height, tree.n_led) == (0, 1, 0)
    tree.insert([0])
    assert tree.n_leaves == 1


def test_messages_of_a_small_one() -> None:
    lo = np.array([[0.0], [10.0], [1.0], [11.0], [2.0]])
    tree = BoxTree(lo, lo + 1, capacity=2)
    tree.insert([0, 1])
    assert tree.told == {"join": 4, "leave": 0, "split": 0, "merge": 0, "update": 0}
    # The third makes a leaf of 1 and one of 0 and 2; 1 is handed its own leaf. There is no parent to inform.
    tree.insert([2])
    assert (tree.told["join"], tree.told["split"]) == (6, 1)
    tree.insert([3])  # goes by 0, who leads the root, to 1
    assert tree.told["join"] == 9
    assert tree.leaf[3] == tree.leaf[1]
    # 0 leads its leaf and the root: 2 hears that it leads both now, and tells 1; the box is smaller, of which
    # the root, led by 2 itself, need not be told.
    tree.remove([0])
    assert (tree.told["leave"], tree.told["update"]) == (2, 0)
    # 3 tells 1, who tells the root that the box is smaller.
    tree.remove([3])
    assert (tree.told["leave"], tree.told["update"]) == (3, 1)
    # 1 leaves an empty leaf and tells the root, once that it goes and once that there is no leaf.
    tree.remove([1])
    assert (tree.told["leave"], tree.told["merge"], tree.height) == (4, 1, 1)


def test_a_cut_is_where_boxes_overlap_least() -> None:
    lo = np.array([[0.0, 0.0], [9.0, 1.0], [1.0, 2.0], [8.0, 3.0]])
    assert cut(lo, lo + 1, 1).tolist() == [False, True, False, True]
    assert cut(lo[::-1].copy(), lo[::-1] + 1, 1).tolist() == [False, True, False, True], "the first stays"


def test_leaves_are_as_many_as_asked_for_or_a_little_fewer() -> None:
    rng = np.random.default_rng(0)
    for n, most in ((1000, 50), (1000, 3), (300, 120), (40, 1), (5, 4)):
        lo = rng.random((n, 3))
        tree = grown(lo, lo + 0.2, range(n), most)
        assert 0.7 * most <= tree.n_leaves <= most
        assert (tree.leaf >= 0).all()
        again = grown(lo, lo + 0.2, range(n), most)
        assert again.leaf.tolist() == tree.leaf.tolist()
        assert again.told == tree.told
    none = grown(np.zeros((3, 1)), np.ones((3, 1)), [], 2)
    assert (none.n_leaves, none.leaf.tolist()) == (0, [-1] * 3)


def test_infinite_sides() -> None:
    inf = np.inf
    lo, hi = np.array([[-inf], [-inf], [5.0], [6.0]]), np.array([[1.0], [2.0], [inf], [inf]])
    tree = BoxTree(lo, hi, capacity=2)
    tree.insert(range(4))
    assert tree.leaf[0] == tree.leaf[1] != tree.leaf[2] == tree.leaf[3]


@pytest.mark.parametrize(
    ("make", "fields"),
    [
        (lambda: BoxTree([[0.0]], [[1.0]], capacity=1), {"parameter": "capacity", "value": 1}),
        (lambda: BoxTree([[2.0]], [[1.0]], capacity=2), {"parameter": "boxes", "value": (2.0, 1.0)}),
        (lambda: grown([[0.0]], [[1.0]], [0], 0), {"parameter": "most", "value": 0}),
        (lambda: grown([[0.0]], [[1.0]], [0, 0], 1), {"parameter": "which", "value": 0}),
        (lambda: grown([[0.0]], [[1.0]], [0], 1).insert([0]), {"parameter": "which", "value": 0}),
        (lambda: grown([[0.0]], [[1.0]], [], 1).remove([0]), {"parameter": "which", "value": 0}),
        (lambda: grown([[0.0]], [[1.0]], [1], 1), {"parameter": "which", "value": 1}),
        (lambda: grown([[0.0]], [[1.0]], [0], 1).remove([-1]), {"parameter": "which", "value": -1}),
    ],
)
def test_bad_input(make: Any, fields: dict[str, Any]) -> None:
    with refused(ParameterError, **fields):
        make()
