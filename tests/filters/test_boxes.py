"""What filters become: how many boxes, exact or not, and what happens past the limits."""

from __future__ import annotations

import time

import pytest

from narrowcast import FilterLimits, Schema, compile_filters
from narrowcast.filters.compiler import FilterCompiler
from narrowcast.model.keys import NO_HIGH, NO_LOW, NULL
from narrowcast.model.subscriptions import SubscriptionSet

SCHEMA = Schema.of(
    {
        "price": "double",
        "volume": "bigint",
        "name": "string",
        "size": "tinyint",
        "wide": "decimal(30,5)",
        "flag": "boolean",
    }
)


def compiled(text: str, limits: FilterLimits | None = None) -> SubscriptionSet:
    return compile_filters(SCHEMA, [text], limits=limits, strict=True).subscriptions


def volumes(text: str) -> list[tuple[int, int]]:
    """The ranges of a filter on volume alone, as (lo, hi]."""
    boxes = compiled(text).boxes
    assert set(boxes.attribute.tolist()) <= {1}
    return sorted(zip(boxes.lo.tolist(), boxes.hi.tolist(), strict=True))


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("volume > 5", [(5, NO_HIGH)]),
        ("volume >= 5", [(4, NO_HIGH)]),
        ("volume < 5", [(NULL, 4)]),
        ("volume <= 5", [(NULL, 5)]),
        ("volume = 5", [(4, 5)]),
        ("volume <> 5", [(NULL, 4), (5, NO_HIGH)]),
        ("NOT volume > 5", [(NULL, 5)]),
        ("volume > 5.5", [(5, NO_HIGH)]),
        ("volume >= 5.5", [(5, NO_HIGH)]),
        ("volume = 5.5", []),
        ("volume <> 5.5", [(NULL, 5), (5, NO_HIGH)]),
        ("volume > 5e0", [(5, NO_HIGH)]),
        ("volume >= 9007199254740993e0", [(9007199254740991, NO_HIGH)]),
        ("volume = 9007199254740993", [(9007199254740992, 9007199254740993)]),
        ("volume BETWEEN 2 AND 4", [(1, 4)]),
        ("volume BETWEEN 4 AND 2", []),
        ("volume NOT BETWEEN 2 AND 4", [(NULL, 1), (4, NO_HIGH)]),
        ("volume IN (3, 1, 2, 9, 2)", [(0, 3), (8, 9)]),
        ("volume NOT IN (3, 1)", [(NULL, 0), (1, 2), (3, NO_HIGH)]),
        ("volume NOT IN (3, NULL)", []),
        ("volume IN (3, NULL)", [(2, 3)]),
        ("volume IS NULL", [(NO_LOW, NULL)]),
        ("volume IS NOT NULL", [(NULL, NO_HIGH)]),
        ("volume = volume", [(NULL, NO_HIGH)]),
        ("volume < volume", []),
        ("volume > CAST('NaN' AS DOUBLE)", []),
        ("volume < CAST('NaN' AS DOUBLE)", [(NULL, NO_HIGH)]),
        ("volume > 99999999999999999999", []),
        ("volume > 3 AND volume > 5 AND volume < 9", [(5, 8)]),
        ("volume = 1 OR volume = 2 OR volume = 7", [(0, 2), (6, 7)]),
        ("NOT (volume = 1 OR volume = 2)", [(NULL, 0), (2, NO_HIGH)]),
        ("volume = NULL", []),
        ("NULL", []),
        ("FALSE OR 2 < 1", []),
    ],
)
def test_ranges_of_one_attribute(text: str, ranges: list[tuple[int, int]]) -> None:
    assert [r for r in volumes(text) if r[0] < r[1]] == [r for r in ranges if r[0] < r[1]]


def test_a_filter_that_is_always_true_is_one_box_without_bounds() -> None:
    for text in ("TRUE", "1 = 1", "NOT FALSE", "volume > 1 OR TRUE", "'a' LIKE '_'"):
        boxes = compiled(text).boxes
        assert (len(boxes), len(boxes.attribute), boxes.exact.tolist()) == (1, 0, [True])


def test_a_type_bounds_its_attribute() -> None:
    assert len(compiled("size > 200").boxes) == 0
    assert len(compiled("size < -200").boxes) == 0
    assert compiled("size < 200").boxes.hi.tolist() == [127]


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        ("name = 'abcdefg'", True),
        ("name = 'abcdefgh'", False),
        ("name > 'abcdefgh'", False),
        ("name LIKE 'abcdefg%'", True),
        ("name LIKE 'abcdefgh%'", False),
        ("name LIKE 'a%b'", False),
        ("name LIKE '_'", False),
        ("name NOT LIKE 'a%'", True),
        ("name LIKE 'abc'", True),
        ("wide > 5", False),
        ("wide < 1e20", False),
        ("volume = -9223372036854775808", False),
        ("volume >= -9223372036854775808", True),
        ("price > volume", False),
        ("price > 0.1", True),
    ],
)
def test_what_keys_cannot_tell_is_flagged_for_a_check(text: str, exact: bool) -> None:
    subscriptions = compiled(text)
    assert subscriptions.boxes.exact.tolist() == [exact] * len(subscriptions.boxes)
    assert subscriptions.check.to_pylist() == [None if exact else text]


def lists(n: int, m: int) -> str:
    volumes, prices = (", ".join(str(2 * i) for i in range(size)) for size in (n, m))
    return f"volume IN ({volumes}) AND price IN ({prices})"


def test_alternatives_are_multiplied_out_while_that_is_cheap() -> None:
    subscriptions = compiled(lists(8, 8))
    assert len(subscriptions.boxes) == 64
    assert subscriptions.boxes.exact.all()


def test_past_that_one_side_stays_a_check_on_candidates() -> None:
    subscriptions = compiled(lists(100, 9))
    assert len(subscriptions.boxes) == 9
    assert not subscriptions.boxes.exact.any()
    assert subscriptions.check.null_count == 0
    assert sorted(set(subscriptions.boxes.lo[subscriptions.boxes.attribute == 1].tolist())) == [-1]
    assert set(subscriptions.boxes.hi[subscriptions.boxes.attribute == 1].tolist()) == {198}


def test_a_limit_can_be_raised() -> None:
    subscriptions = compiled(lists(100, 9), FilterLimits(expand=900))
    assert len(subscriptions.boxes) == 900
    assert subscriptions.boxes.exact.all()


def test_a_long_or_is_as_many_boxes_until_the_limit_then_one_hull() -> None:
    text = " OR ".join(f"(volume = {i} AND price = {i})" for i in range(1_024))
    assert len(compiled(text).boxes) == 1_024
    hull = compiled(text + " OR (volume = 9 AND price = 99)")
    assert len(hull.boxes) == 1
    assert hull.boxes.lo[1] == -1
    assert hull.boxes.hi[1] == 1_023


def test_an_or_that_nothing_bounds_is_refused_past_the_limit() -> None:
    text = " OR ".join(f"(volume = {i} AND flag) OR price > {i} AND flag = FALSE" for i in range(3))
    assert len(compiled(text).boxes) == 6
    unbounded = " OR ".join(f"(volume = {i} AND price = {i}) OR name = 'n{i}'" for i in range(600))
    (reason,) = (
        compile_filters(SCHEMA, [unbounded], limits=FilterLimits(boxes=500)).rejected["reason"].to_pylist()
    )
    assert reason == (
        "needs 1,200 boxes, over the limit of 500, and no attribute is bounded in all of its alternatives; "
        "split it into several subscriptions or raise the limit `boxes`"
    )
    with pytest.raises(AssertionError):
        assert len(compiled(unbounded, FilterLimits(boxes=1_200)).boxes) > 1_200


def test_an_exponential_normal_form_is_not_expanded() -> None:
    text = " AND ".join(f"(volume = {i} OR price = {i} OR name = '{i}')" for i in range(40))  # 3^40 boxes
    start = time.process_time()
    subscriptions = compiled(text)
    assert time.process_time() - start < 1
    assert 1 <= len(subscriptions.boxes) <= 64
    assert subscriptions.check.null_count == 0


def test_hulls_within_hulls_are_looked_at_once() -> None:
    depth = 90
    text = "(price > 1 OR volume > 2) AND (size > 1 OR " * depth + "size = 1" + ")" * depth
    start = time.process_time()
    subscriptions = compiled(text)
    assert time.process_time() - start < 2
    assert 1 <= len(subscriptions.boxes) <= 1_024
    many = " OR ".join(f"price = {i} AND volume = {i}" for i in range(300))
    more = " OR ".join(f"price = {i} AND size = 1" for i in range(1_100))
    start = time.process_time()
    assert len(compiled(f"({many}) AND ({more})").boxes) == 300
    assert time.process_time() - start < 2


def test_alternatives_are_multiplied_out_rather_than_left_without_bounds() -> None:
    names = [f"a{i}" for i in range(17)]
    schema = Schema.of(dict.fromkeys(names, "bigint"))
    first = " OR ".join(["1 = 1", *(f"{name} > 1" for name in names[:8])])
    text = f"({first}) AND ({' OR '.join(f'{name} > 2' for name in names[8:])})"
    boxes = compile_filters(schema, [text], strict=True).subscriptions.boxes
    assert len(boxes) == 81
    assert boxes.exact.all()


def test_shapes_past_the_memory_set_aside_give_the_same_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [" OR ".join(["volume > 1"] * (1 + i % 5)) + f" OR price = {i}" for i in range(60)] + ["price >"]
    whole = FilterCompiler(SCHEMA).compile(texts)
    monkeypatch.setattr("narrowcast.filters.compiler._TOKENS", 40)
    parts = FilterCompiler(SCHEMA).compile(texts)
    assert whole.errors == parts.errors == {60: "does not parse: something is missing at column 7"}
    for column in ("owner", "indptr", "attribute", "lo", "hi", "exact"):
        assert getattr(whole.boxes, column).tolist() == getattr(parts.boxes, column).tolist()


def test_the_cache_makes_it_at_least_three_times_as_fast() -> None:
    texts = [f"price > {i}.25 AND volume <= {i * 7} AND name = 'S{i % 100}'" for i in range(4_000)]

    def seconds(*, cache: bool) -> float:
        compiler = FilterCompiler(SCHEMA, cache=cache)
        start = time.process_time()
        compiler.compile(texts)
        return time.process_time() - start

    seconds(cache=True)
    assert min(seconds(cache=False) for _ in range(2)) > 3 * min(seconds(cache=True) for _ in range(2))
