"""The CobasTree: the shared vectors, and a literal tree of plain objects at every step."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowcast.errors import InputError, ParameterError
from narrowcast.lab.cobas import CobasTree, IntervalColumns
from narrowcast.lab.cobas.forwarding import How
from narrowcast.lab.cobas.pushing import Side
from support.cobas import LiteralTree, Row, covers, walk
from support.errors import refused

GOLDEN = Path(__file__).parents[2] / "golden"
TREES: list[dict[str, Any]] = json.loads((GOLDEN / "cobas2009_trees_open_closed.json").read_text())
PAPER: dict[str, Any] = json.loads((GOLDEN / "cobas2009_paper_tree_b.json").read_text())
HOWS: tuple[How, ...] = get_args(How)
SIDES: dict[str, Side] = {"L": "left", "R": "right"}

#: Every value at which anything can change in trees over the ends below, and values between those.
VALUES = [-math.inf, *(v / 4 for v in range(-2, 35)), math.inf, math.nan]


def columns(rows: list[Row]) -> IntervalColumns:
    return (
        IntervalColumns(*(list(column) for column in zip(*rows, strict=True)))
        if rows
        else IntervalColumns([], [])
    )


@st.composite
def one_row(draw: st.DrawFn) -> Row:
    """An interval over a few ends, infinite ones among them, that holds a number."""
    end = st.sampled_from([-math.inf, *(float(v) for v in range(9)), math.inf])
    low, high = sorted((draw(end), draw(end)))
    closed = draw(st.tuples(st.booleans(), st.booleans()))
    return (low, high, *(closed if low < high else (True, True)))


rows_of = st.lists(one_row(), max_size=12)
some_keys = st.lists(st.sampled_from([v / 2 for v in range(17)]), max_size=12)


def fast_and_literal(rows: list[Row], keys: list[float]) -> tuple[CobasTree, LiteralTree]:
    tree = CobasTree(columns(rows), keys)
    return tree, LiteralTree(rows, tree.keys.tolist())


def require_lists(tree: CobasTree) -> None:
    """Both lists of a node have its segments, by lower ends ascending and by upper ends descending."""
    store = tree._store
    for node in range(store.n_nodes):
        at = store.span(node)
        lower, upper = store.lower[at], store.upper[at]
        assert sorted(lower.tolist()) == sorted(upper.tolist())
        assert store.lower_end[at].tolist() == sorted(store.first[lower].tolist())
        assert store.upper_end[at].tolist() == sorted(store.last[upper].tolist(), reverse=True)
        assert (store.first[lower] == store.lower_end[at]).all()
        assert (store.last[upper] == store.upper_end[at]).all()
        assert (store.node[lower] == node).all()


def require_alike(tree: CobasTree, literal: LiteralTree, rows: dict[int, Row]) -> None:
    """Compare all that can be seen of a tree with the literal one, and what matches with brute force."""
    require_lists(tree)
    shape = tree.shape()
    key = [*shape.key.tolist(), None]  # -1 is no node
    links = [(key[i], key[a], key[b]) for i, (a, b) in enumerate(zip(shape.left, shape.right, strict=True))]
    assert links == literal.shape()
    for i, parent in enumerate(shape.parent.tolist()):
        assert parent < 0 or i in (shape.left[parent], shape.right[parent])
    segments = tree.segments()
    found = zip(segments.interval.tolist(), segments.ends.rows(), segments.key.tolist(), strict=True)
    assert list(found) == literal.segments()
    nodes = list(walk(literal.root))
    assert shape.size.tolist() == [len(node.items) for node in nodes]
    assert tree.bounding().rows() == [bound for node in nodes if (bound := literal.bounding(node))]
    brute = [sorted(i for i, row in rows.items() if covers(row, v)) for v in VALUES]
    assert [row.tolist() for row in tree.stab(VALUES)] == brute
    for how in HOWS:
        sent = tree.forward(VALUES, how)
        wanted = [literal.forward(v, how) for v in VALUES]
        assert [w[3] for w in wanted] == brute  # each once
        assert [row.tolist() for row in sent.matches] == brute
        assert list(zip(sent.messages.tolist(), sent.hops.tolist(), strict=True)) == [w[1:3] for w in wanted]
        for v, w in zip(VALUES, wanted, strict=True):
            assert tree.trace(v, how) == w[:3]


@pytest.mark.parametrize("number", range(len(TREES)))
def test_golden_trees(number: int) -> None:
    golden = TREES[number]
    tree = CobasTree(columns(golden["intervals"]), golden["keys"])
    assert tree.keys.tolist() == sorted(golden["keys"])
    assert tree.segments().key.tolist() == golden["stored_key"]

    def check(queries: list[tuple[float, int, int, list[int]]]) -> None:
        values, messages, hops, matched = zip(*queries, strict=True)
        sent = tree.forward(values)
        assert (sent.messages.tolist(), sent.hops.tolist()) == (list(messages), list(hops))
        for how in HOWS:
            assert [row.tolist() for row in tree.forward(values, how).matches] == list(matched)
        assert [row.tolist() for row in tree.stab(values)] == list(matched)

    check(golden["queries_v_messages_hops_matched"])
    for key, side in golden["pushes_in_order"]:
        tree.push(key, SIDES[side])
    assert tree.stats()["segments"] == golden["segments_after"]
    check(golden["after"])
    for key, side in reversed(golden["pushes_in_order"]):
        tree.undo(key, SIDES[side])
    assert tree.segments().key.tolist() == golden["stored_key"]
    check(golden["queries_v_messages_hops_matched"])


def test_golden_tree_of_the_paper() -> None:
    names = list(PAPER["intervals"])
    tree = CobasTree(columns(list(PAPER["intervals"].values())), PAPER["keys"])
    assert dict(zip(names, tree.segments().key.tolist(), strict=True)) == PAPER["stored"]
    assert tree.bounding([3.0]).rows() == [tuple(PAPER["bounding_3"])]
    for query in PAPER["queries"]:
        for how in HOWS:
            sent, journey, wanted = tree.forward([query["v"]], how), tree.trace(query["v"], how), query[how]
            assert [names[i] for i in sent.matches[0]] == wanted["matched"]
            assert journey == (wanted["nodes"], wanted["messages"], wanted["hops"])
            assert (sent.messages[0], sent.hops[0]) == (wanted["messages"], wanted["hops"])


@settings(max_examples=150)
@given(rows=rows_of, keys=some_keys)
def test_a_tree_is_built_as_the_literal_one(rows: list[Row], keys: list[float]) -> None:
    tree, literal = fast_and_literal(rows, keys)
    assert set(keys) <= set(tree.keys.tolist())
    require_alike(tree, literal, dict(enumerate(rows)))


@settings(max_examples=150)
@given(rows=rows_of, keys=some_keys, data=st.data())
def test_lemma_1(rows: list[Row], keys: list[float], data: st.DataObject) -> None:
    """A value in the bounding interval of a node is in one of its segments, whatever was done before."""
    tree = CobasTree(columns(rows), keys)
    for _ in range(data.draw(st.integers(0, 4))):
        if len(tree.keys):
            tree.push(
                data.draw(st.sampled_from(tree.keys.tolist())), data.draw(st.sampled_from(get_args(Side)))
            )
        tree.insert(columns([data.draw(one_row())]), balance=data.draw(st.booleans()))
    tree.rebalance()
    segments = tree.segments()
    held: dict[float, list[Row]] = {}
    for key, row in zip(segments.key.tolist(), segments.ends.rows(), strict=True):
        assert covers(row, key)
        held.setdefault(key, []).append(row)
    for key, bound in zip(sorted(held), tree.bounding().rows(), strict=True):
        for value in VALUES:
            assert covers(bound, value) == any(covers(row, value) for row in held[key])


@settings(max_examples=200)
@given(rows=rows_of, keys=some_keys, data=st.data())
def test_every_change_is_that_of_the_literal_tree(
    rows: list[Row], keys: list[float], data: st.DataObject
) -> None:
    tree, literal = fast_and_literal(rows, keys)
    there = dict(enumerate(rows))
    for _ in range(data.draw(st.integers(1, 8))):
        match data.draw(st.sampled_from(["insert", "insert", "delete", "push", "push", "undo", "rebalance"])):
            case "insert":
                row, before = data.draw(one_row()), set(tree.keys.tolist())
                (number,) = tree.insert(columns([row])).tolist()
                new = set(tree.keys.tolist()) - before
                assert len(new) == (not any(covers(row, key) for key in before))
                literal.insert(number, row, next(iter(new), None))
                there[number] = row
            case "delete" if there:
                number = data.draw(st.sampled_from(sorted(there)))
                tree.delete([number])
                literal.delete(number)
                del there[number]
            case ("push" | "undo") as what if len(tree.keys):
                key = data.draw(st.sampled_from(tree.keys.tolist()))
                side = data.draw(st.sampled_from(get_args(Side)))
                getattr(tree, what)(key, side)
                getattr(literal, what)(key, side)
            case "rebalance":
                tree.rebalance()
                literal.rebalance()
    require_alike(tree, literal, there)


@settings(max_examples=60)
@given(rows=rows_of, more=rows_of, keys=some_keys)
def test_a_batch_needs_no_more_keys_than_one_by_one(
    rows: list[Row], more: list[Row], keys: list[float]
) -> None:
    tree = CobasTree(columns(rows), keys)
    one_by_one = CobasTree(columns(rows), keys)
    assert tree.insert(columns(more)).tolist() == list(range(len(rows), len(rows) + len(more)))
    for row in more:
        one_by_one.insert(columns([row]))
    assert len(tree.keys) <= len(one_by_one.keys)
    whole = [*rows, *more]
    brute = [[i for i, row in enumerate(whole) if covers(row, v)] for v in VALUES]
    for how in HOWS:
        assert [row.tolist() for row in tree.forward(VALUES, how).matches] == brute
    assert tree.intervals(np.arange(len(whole))) == columns(whole)


@settings(max_examples=100)
@given(rows=rows_of, keys=some_keys, data=st.data())
def test_undo_restores_what_was_before(rows: list[Row], keys: list[float], data: st.DataObject) -> None:
    tree = CobasTree(columns(rows), keys)
    if len(tree.keys) == 0:
        return
    at = st.tuples(st.sampled_from(tree.keys.tolist()), st.sampled_from(get_args(Side)))
    key, side = data.draw(at)
    for earlier in data.draw(st.lists(at.filter(lambda there: there != (key, side)), max_size=4)):
        tree.push(*earlier)
    before = tree.segments()
    n = tree.push(key, side)
    assert tree.stats()["segments"] == len(before.key) + n
    assert tree.undo(key, side) == n
    after = tree.segments()
    assert (after.key.tolist(), after.ends) == (before.key.tolist(), before.ends)


def test_undo_right_after_a_push_restores_everything() -> None:
    tree = CobasTree(IntervalColumns([0, 2, 3, 1], [4, 8, 5, 7], [True, True, False, False]), keys=range(9))
    before = tree.segments()
    assert tree.push(4, "left") == 3  # what (3, 5] has to the left covers no key
    assert tree.segments().ends.texts()[:2] == ["[0, 4)", "[4, 4]"]
    assert tree.push(4, "left") == 0
    assert tree.undo(4, "left") == 3
    after = tree.segments()
    assert (after.key.tolist(), after.ends) == (before.key.tolist(), before.ends)
    assert tree.undo(4, "left") == tree.undo(4, "right") == 0


def test_a_cut_is_half_open() -> None:
    """The seed's own example, figure 3: its [0, 2] and [2, 4] would deliver 2 twice."""
    tree = CobasTree(IntervalColumns([0], [4]), keys=[0, 1, 2, 3, 4])
    assert tree.push(2, "left") == 1
    assert tree.segments().ends.texts() == ["[0, 2)", "[2, 4]"]
    assert tree.push(2, "right") == 1
    assert tree.segments().ends.texts() == ["[0, 2)", "[2, 2]", "(2, 4]"]
    for how in HOWS:
        assert (
            tree.forward([2.0, np.nextafter(2, 0), np.nextafter(2, 3)], how).matches.index.tolist() == [0] * 3
        )


def test_a_part_that_covers_no_key_stays() -> None:
    tree = CobasTree(IntervalColumns([1.5], [4]), keys=[1, 2, 3])
    assert tree.push(2, "left") == 0
    assert tree.push(2, "right") == 1
    assert tree.segments().ends.texts() == ["[1.5, 2]", "(2, 4]"]


def test_the_closest_leaf_would_miss() -> None:
    """Keys 1, 5, 6: of value 4 the leaf with the closest key is 6, and [1, 4] is not above it."""
    tree = CobasTree(IntervalColumns([1], [4]), keys=[1, 5, 6])
    assert tree.trace(4, "sequential").keys == [1, 5]
    for how in HOWS:
        assert tree.forward([4.0], how).matches.index.tolist() == [0]


def test_a_chain_is_rotated_into_balance() -> None:
    """Keys inserted in order make a chain if no rotation is allowed."""
    chain, tree = CobasTree(), CobasTree()
    points = np.arange(200.0)
    for point in points.tolist():
        chain.insert(IntervalColumns([point], [point]), balance=False)
        tree.insert(IntervalColumns([point], [point]))
    chain.insert(IntervalColumns(points - 0.5, points + 30))
    assert (chain.stats()["height"], len(chain.keys)) == (200, 200)
    assert tree.stats()["height"] <= 20
    assert chain.rebalance() > 100
    assert chain.stats()["height"] <= 20
    shape = chain.shape()
    heights = np.append(shape.height, 0)
    small, big = np.sort([heights[shape.left], heights[shape.right]], axis=0)
    assert ((2 * small >= big) | (big - small < 2)).all()
    assert chain.rebalance() == 0
    rows = [*((p, p, True, True) for p in points.tolist()), *((p - 0.5, p + 30, True, True) for p in points)]
    brute = [[i for i, row in enumerate(rows) if covers(row, p)] for p in points.tolist()]
    for how in HOWS:
        assert [row.tolist() for row in chain.forward(points, how).matches] == brute


@pytest.mark.parametrize("order", ["ascending", "descending", "outside in", "any"])
def test_many_keys_rotate_as_in_the_literal_tree(order: str) -> None:
    """Enough of them for subtrees of two and four levels, which stay as they are."""
    points = np.arange(80.0)
    if order == "descending":
        points = points[::-1]
    elif order == "outside in":
        points = np.stack([points[:40], points[:39:-1]], axis=1).ravel()
    elif order == "any":
        points = np.random.default_rng(0).permutation(points)
    tree, literal = CobasTree(), LiteralTree([], [])
    for i, point in enumerate(points.tolist()):
        row = (point, point + 0.25, True, True)
        tree.insert(columns([row]))
        literal.insert(i, row, point + 0.125)
    shape = tree.shape()
    links = [[None if i < 0 else shape.key[i] for i in side] for side in (shape.left, shape.right)]
    assert list(zip(shape.key.tolist(), *links, strict=True)) == literal.shape()
    heights = np.append(shape.height, 0)
    assert (abs(heights[shape.left] - heights[shape.right]) > 1).any()


def test_many_intervals_in_one_batch() -> None:
    """Enough for the paths that a handful does not take: long lists, much output, lists that move."""
    rng = np.random.default_rng(7)
    low = rng.random(5000)
    tree = CobasTree(IntervalColumns(low, low + rng.exponential(0.3, 5000)), keys=rng.random(50))
    more = rng.random(3000)
    tree.insert(IntervalColumns(more, more + rng.exponential(0.001, 3000), False))
    gone = rng.choice(8000, 2000, replace=False)
    tree.delete(gone)
    for key in tree.keys[::7].tolist():
        tree.push(key, "left")
        tree.push(key, "right")
    require_lists(tree)
    values = np.concatenate([rng.random(200) * 2, low[:50], more[:50]])
    intervals = tree.intervals(tree.interval_id)
    assert len(tree) == 6000
    assert not np.isin(gone, tree.interval_id).any()
    brute = [tree.interval_id[intervals.covers(v)].tolist() for v in values]
    assert max(map(len, brute)) > 1000
    assert [row.tolist() for row in tree.stab(values)] == brute
    for how in HOWS:
        assert [row.tolist() for row in tree.forward(values, how).matches] == brute


def test_freed_segments_are_used_again() -> None:
    tree = CobasTree(IntervalColumns([0], [4]), keys=range(5))
    held = tree.stats()["bytes"]
    for _ in range(100):
        tree.push(2, "left")
        tree.undo(2, "left")
    assert tree.stats()["bytes"] <= held + 500


def test_no_intervals_one_node_and_all_alike() -> None:
    empty = CobasTree()
    assert [row.tolist() for row in empty.stab([1.0, math.nan])] == [[], []]
    assert empty.trace(1.0) == ([], 0, 0)
    assert (empty.rebalance(), len(empty), empty.stats()["height"], len(empty.bounding())) == (0, 0, 0, 0)
    assert empty.stab([]).n_events == 0
    one = CobasTree(IntervalColumns([2], [3], False, False))
    assert one.keys.tolist() == [2.5]
    for how in HOWS:
        assert one.forward([2.0, 2.5, 3.0], how).messages.tolist() == [0, 0, 0]
    assert [row.tolist() for row in one.stab([2.0, 2.1, 3.0, math.inf])] == [[], [0], [], []]
    assert one.push(2.5, "left") == one.undo(2.5, "left") == 0
    alike = CobasTree(IntervalColumns([1.0] * 1000, [2.0] * 1000))
    assert alike.keys.tolist() == [1.5]
    assert alike.stab([2.0]).index.tolist() == list(range(1000))
    assert alike.delete(np.arange(999)).stab([2.0]).index.tolist() == [999]


def test_endless_intervals_have_keys_within_sight() -> None:
    inf = math.inf
    keys = [
        CobasTree(columns([row])).keys.tolist() for row in ((-inf, 5.0, False, True), (5.0, inf, True, True))
    ]
    assert keys == [[0.0], [10.0]]
    assert CobasTree(columns([(-inf, inf, False, False)])).keys.tolist() == [0.0]
    assert CobasTree(columns([(inf, inf, True, True)])).stab([inf, 0.0]).counts().tolist() == [1, 0]
    huge = np.finfo(np.float64).max
    wide = CobasTree(IntervalColumns([-huge / 2], [huge]), keys=[-huge])
    assert wide.stab([-huge, 0.0, huge]).counts().tolist() == [0, 1, 1]


def test_a_missing_value_goes_nowhere() -> None:
    tree = CobasTree(IntervalColumns([-math.inf], [math.inf]), keys=[1, 2, 3])
    for how in HOWS:
        sent = tree.forward([math.nan, 1.0], how)
        assert sent.matches.counts().tolist() == [0, 1]
        assert sent.messages[0] == sent.hops[0] == 0


@pytest.mark.parametrize(
    ("given", "shown", "parameter"),
    [
        (([5.0], [2.0]), ["interval 0", "[5, 2]"], "low"),
        (
            ([0, 2], [1, 2], True, False),
            ["interval 1", "[2, 2)"],
            "low",
        ),
        (([math.inf], [math.inf], False), ["interval 0", "(inf, inf]"], "low"),
        (
            ([1.0], [np.nextafter(1, 2)], False, False),
            ["interval 0", "(1, 1.0000000000000002)"],
            "low",
        ),
        (([0, math.nan], [1, 2]), ["interval 1", "nan"], "low"),
        (([0, 1], [1, math.nan]), ["interval 1", "nan"], "high"),
        (([0, 1], [1]), [2, 1], "high"),
        (
            ([2**53 + 1], [2**53 + 3]),
            [2**53 + 1, 2**53],
            "low",
        ),
        ((["a"], ["b"]), ["<U1"], "low"),
        (([[1.0]], [[2.0]]), [2], "low"),
        (([1.0], [2.0], [True, False]), ["(2,)", 1], "low_closed"),
        (([1.0], [2.0], 1), ["int64"], "low_closed"),
    ],
)
def test_invalid_intervals_are_refused(given: tuple[Any, ...], shown: list[Any], parameter: str) -> None:
    with refused(InputError, *shown, parameter=parameter):
        IntervalColumns(*given)


def test_misuse_is_refused() -> None:
    tree = CobasTree(IntervalColumns([1], [2]), keys=[1.5, 4])
    with refused(InputError, parameter="interval", value=3):
        tree.delete([0, 3])
    assert len(tree) == 1
    tree.delete([0])
    for gone in ([0], [-1]):
        with refused(InputError, gone[0], parameter="interval", value=gone[0]):
            tree.delete(gone)
    with refused(InputError, parameter="interval", value="float64"):
        tree.delete([0.5])
    with refused(InputError, "nearest is 4", parameter="key", value=3):
        tree.push(3, "left")
    with refused(InputError, "nan", parameter="key"):
        tree.push(math.nan, "left")
    with refused(InputError, parameter="keys", value=4):
        tree.bounding([4])
    with refused(ParameterError, parameter="side", value="L"):
        tree.push(4, "L")  # type: ignore[arg-type]
    with refused(ParameterError, parameter="how", value="flood"):
        tree.forward([1.0], "flood")  # type: ignore[arg-type]
    with refused(InputError, "nan", parameter="keys"):
        CobasTree(keys=[1.0, math.nan])
    with refused(InputError, "list", parameter="intervals"):
        CobasTree([(1, 2)])  # type: ignore[arg-type]
