"""A CobasTree of plain objects, slow and literal: what the fast one is compared with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

Row = tuple[float, float, bool, bool]
#: A value and where a place lies beside it: before, at or behind. Places compare as they lie on the line.
Place = tuple[float, int]


def lower(row: Row) -> Place:
    return (row[0], 0 if row[2] else 1)


def upper(row: Row) -> Place:
    return (row[1], 0 if row[3] else -1)


def covers(row: Row, value: float) -> bool:
    """The literal comparison."""
    low, high, low_closed, high_closed = row
    return (low <= value if low_closed else low < value) and (value <= high if high_closed else value < high)


@dataclass
class Node:
    """A key and the segments (interval, row) that lie at it."""

    key: float
    left: Node | None = None
    right: Node | None = None
    items: list[tuple[int, Row]] = field(default_factory=list)


def height(node: Node | None) -> int:
    return 0 if node is None else 1 + max(height(node.left), height(node.right))


def walk(node: Node | None) -> Iterator[Node]:
    if node is not None:
        yield from walk(node.left)
        yield node
        yield from walk(node.right)


def balanced(keys: list[float]) -> Node | None:
    if not keys:
        return None
    middle = (len(keys) - 1) // 2
    return Node(keys[middle], balanced(keys[:middle]), balanced(keys[middle + 1 :]))


def right_up(node: Node) -> Node:
    """Rotate the right child over a node."""
    child = node.right
    assert child is not None
    node.right, child.left = child.left, node
    return child


def left_up(node: Node) -> Node:
    """Rotate the left child over a node."""
    child = node.left
    assert child is not None
    node.left, child.right = child.right, node
    return child


def fixed(node: Node) -> Node:
    """Rotate as long as one subtree is less than half as high as the other and a rotation gains anything."""
    while True:
        left, right = height(node.left), height(node.right)
        small, big = sorted((left, right))
        if not (small < big / 2 and big >= small + 2):
            return node
        if left > right:
            assert node.left is not None
            if height(node.left.left) < height(node.left.right):
                node.left = right_up(node.left)
            node = left_up(node)
        else:
            assert node.right is not None
            if height(node.right.right) < height(node.right.left):
                node.right = left_up(node.right)
            node = right_up(node)
        node.left = node.left and fixed(node.left)
        node.right = node.right and fixed(node.right)


def all_fixed(node: Node | None) -> Node | None:
    if node is None:
        return None
    node.left, node.right = all_fixed(node.left), all_fixed(node.right)
    return fixed(node)


def with_key(node: Node | None, key: float) -> Node:
    if node is None:
        return Node(key)
    if key < node.key:
        node.left = with_key(node.left, key)
    else:
        node.right = with_key(node.right, key)
    return fixed(node)


class LiteralTree:
    """The tree of cobas2009, word by word, with the errata corrected."""

    def __init__(self, rows: list[Row], keys: list[float]) -> None:
        self.root = balanced(sorted(set(keys)))
        for number, row in enumerate(rows):
            self.put(number, row)

    def put(self, number: int, row: Row) -> None:
        """Store a segment at the first node on the way down whose key it covers."""
        node = self.root
        while node is not None and not covers(row, node.key):
            node = node.left if upper(row) < (node.key, 0) else node.right
        assert node is not None, f"{row} covers no key"
        node.items.append((number, row))

    def put_all(self) -> None:
        """Store every segment anew, as keys have moved."""
        items = [item for node in walk(self.root) for item in node.items]
        for node in walk(self.root):
            node.items = []
        for item in items:
            self.put(*item)

    def insert(self, number: int, row: Row, key: float | None) -> None:
        """Store an interval, with a key of its own where one is given."""
        if key is not None:
            self.root = with_key(self.root, key)
            self.put_all()
        self.put(number, row)

    def delete(self, number: int) -> None:
        for node in walk(self.root):
            node.items = [item for item in node.items if item[0] != number]

    def rebalance(self) -> None:
        self.root = all_fixed(self.root)
        self.put_all()

    def push(self, key: float, side: str) -> None:
        node = next(node for node in walk(self.root) if node.key == key)
        below = [n.key for n in walk(node.left if side == "left" else node.right)]
        kept = []
        for number, (low, high, low_closed, high_closed) in node.items:
            if side == "left":
                part, rest = (low, key, low_closed, False), (key, high, True, high_closed)
            else:
                part, rest = (key, high, False, high_closed), (low, key, low_closed, True)
            if any(covers(part, k) for k in below):
                kept.append((number, rest))
                self.put(number, part)
            else:
                kept.append((number, (low, high, low_closed, high_closed)))
        node.items = kept

    def undo(self, key: float, side: str) -> None:
        ends = ((key, -1), (key, 0)) if side == "left" else ((key, 0), (key, 1))
        items = [item for node in walk(self.root) for item in node.items]
        for number in {number for number, _ in items}:
            own = [row for n, row in items if n == number]
            for a in own:
                for b in own:
                    if (upper(a), lower(b)) == ends:
                        for node in walk(self.root):
                            node.items = [
                                item for item in node.items if item not in ((number, a), (number, b))
                            ]
                        self.put(number, (a[0], b[1], a[2], b[3]))

    def shape(self) -> list[tuple[float, float | None, float | None]]:
        """Return each key with those of its children."""
        return [
            (n.key, n.left.key if n.left else None, n.right.key if n.right else None) for n in walk(self.root)
        ]

    def segments(self) -> list[tuple[int, Row, float]]:
        """Return every segment: its interval, its ends and its key."""
        found = [(number, row, node.key) for node in walk(self.root) for number, row in node.items]
        return sorted(found, key=lambda item: (item[0], lower(item[1])))

    @staticmethod
    def bounding(node: Node) -> Row | None:
        """Return the bounding interval of a node: its least lower end and its greatest upper end."""
        if not node.items:
            return None
        low = min((row for _, row in node.items), key=lower)
        high = max((row for _, row in node.items), key=upper)
        return (low[0], high[1], low[2], high[3])

    def way(self, value: float, how: str) -> list[Node]:
        """Return the nodes that a value comes to, in order."""
        if self.root is None or math.isnan(value):
            return []
        path = [self.root]
        while (node := path[-1]).key != value and (below := node.left if value < node.key else node.right):
            path.append(below)
        if how == "topdown":
            return path
        while below := path[-1].left or path[-1].right:
            path.append(below)
        leaf, *above = reversed(path)
        if how == "sequential":
            return [leaf, *above]
        bounds = [(node, self.bounding(node)) for node in above]
        return [leaf, *(node for node, bound in bounds if bound and covers(bound, value))]

    def forward(self, value: float, how: str) -> tuple[list[float], int, int, list[int]]:
        """Return the keys that a value comes to, its messages, its hops and what it matches, as often."""
        nodes = self.way(value, how)
        messages = max(0, len(nodes) - 1)
        matched = [number for node in nodes for number, row in node.items if covers(row, value)]
        hops = min(1, messages) if how == "selective" else messages
        return [node.key for node in nodes], messages, hops, sorted(matched)
