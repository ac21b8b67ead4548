"""Subscriptions that come and go: always what all of them, compiled at once, would give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import narrowcast as nc
from narrowcast.broker import SubscriptionIndex
from narrowcast.errors import InputError

FILTERS = ["price > 10", "price BETWEEN 3 AND 12", "name = 'IBM'", "name LIKE 'S%' OR price < 2", "size = 4"]
EVENTS = [
    {"price": p, "name": n, "size": s} for p in (1.5, 5, 11) for n in ("IBM", "SAP", None) for s in (4, 5)
]

steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"), st.sampled_from("abc"), st.lists(st.sampled_from(FILTERS), min_size=1, max_size=3)
        ),
        st.tuples(st.just("remove"), st.integers(0, 10)),
    ),
    max_size=12,
)


@settings(max_examples=40)
@given(steps)
def test_as_if_compiled_at_once(script: list[tuple[object, ...]]) -> None:
    interests, held = SubscriptionIndex(), {}
    for step in script:
        if step[0] == "add":
            _, who, texts = step
            for number, text in zip(interests.add(str(who), list(texts)), texts, strict=True):  # type: ignore[call-overload]
                held[number] = (str(who), text)
        elif step[1] in held:
            interests.remove(held.pop(step[1])[0], [int(str(step[1]))])
    events = nc.EventBatch.from_rows(EVENTS, interests.schema)
    found = interests.matcher.match(events)
    ids = interests.matcher.subscriptions_.subscription_id
    made = nc.compile_filters(interests.schema, [text for _, text in held.values()]).subscriptions
    expected = nc.Scan().fit(made).match(events)
    keys = np.array(list(held), np.int64)
    for got, want in zip(found, expected, strict=True):
        assert sorted(ids[got].tolist()) == sorted(keys[want].tolist())
    assert len(interests) == len(held)
    for who in "abc":
        assert interests.of(who) == {n: text for n, (owner, text) in held.items() if owner == who}


def test_types_are_learned_once() -> None:
    interests = SubscriptionIndex()
    interests.add("ann", ["price > 75"])
    interests.add("bob", ["day >= DATE '2024-01-01' AND price IS NOT NULL"])
    assert interests.schema.to_dict() == {"price": "double", "day": "date"}
    with pytest.raises(InputError, match=r"filter \"price = 'dear'\" cannot be used: .*price"):
        interests.add("bob", ["price < 3", "price = 'dear'"])
    assert interests.of("bob") == {1: "day >= DATE '2024-01-01' AND price IS NOT NULL"}
    assert interests.version("eve") == SubscriptionIndex().version("bob") != interests.version("bob")


def test_a_filter_that_is_refused_teaches_nothing() -> None:
    interests = SubscriptionIndex()
    interests.add("ann", ["price > 75"])
    with pytest.raises(InputError, match="cannot be used"):
        interests.add("ann", ["colour = 'red' AND price = 'dear'"])
    assert interests.schema.to_dict() == {"price": "double"}
    assert interests.add("ann", ["colour > 5"]) == [1]


def test_a_schema_that_is_given_stays() -> None:
    interests = SubscriptionIndex(nc.Schema.of({"price": "bigint"}))
    with pytest.raises(InputError, match="name"):
        interests.add("ann", ["name = 'IBM'"])
    assert len(interests) == 0


def test_only_ones_own_are_removed() -> None:
    interests = SubscriptionIndex()
    [number] = interests.add("ann", ["price > 75"])
    with pytest.raises(InputError, match=f"subscription_id {number} is none of 'bob'; nothing was removed"):
        interests.remove("bob", [number])
    interests.remove("ann", [number, number])
    assert interests.add("ann", ["price > 75"]) == [number + 1]


def test_many_at_once() -> None:
    interests = SubscriptionIndex()
    bad = interests.load(["a", "b", "c"], ["price > 1", "price >", "name = 'x'"])
    assert bad == ["b: price >: does not parse: something is missing at column 7"]
    assert (interests.of("a"), interests.of("b"), interests.of("c")) == (
        {0: "price > 1"},
        {},
        {2: "name = 'x'"},
    )
    assert interests.load(["d"], ["price < 0"]) == []
    assert interests.add("a", ["price = 5"]) == [4]
    assert interests.matcher.count(nc.EventBatch.from_rows([{"price": 5}], interests.schema)).tolist() == [2]
