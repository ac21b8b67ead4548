"""Subscriptions on disk are those that were acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import narrowcast as nc
from narrowcast.broker import SubscriptionIndex, SubscriptionStore
from narrowcast.errors import InputError, TransportError

if TYPE_CHECKING:
    from pathlib import Path


def test_they_are_there_again(tmp_path: Path) -> None:
    interests = SubscriptionIndex(store=SubscriptionStore(tmp_path / "db"))
    interests.add("ann", ["price > 75", "name = 'IBM'"])
    interests.add("bob", ["price < 10"])
    interests.remove("ann", [1])
    with pytest.raises(InputError, match="cannot be used"):
        interests.add("bob", ["price < 20", "price = 'dear'"])
    again = SubscriptionIndex(store=SubscriptionStore(tmp_path / "db"))
    assert again.of("ann") == {0: "price > 75"}
    assert again.of("bob") == {2: "price < 10"}
    assert again.refused == []
    assert again.add("eve", ["price = 7"]) == [3]
    events = nc.EventBatch.from_rows([{"price": 80}, {"price": 7}], again.schema)
    assert again.matcher.count(events).tolist() == [1, 2]


def test_an_id_does_not_come_again(tmp_path: Path) -> None:
    interests = SubscriptionIndex(store=SubscriptionStore(tmp_path / "db"))
    interests.remove("ann", interests.add("ann", ["price > 75"]))
    assert SubscriptionIndex(store=SubscriptionStore(tmp_path / "db")).add("ann", ["price > 75"]) == [1]


def test_a_table_is_loaded_once(tmp_path: Path) -> None:
    for _ in range(2):
        interests = SubscriptionIndex(store=SubscriptionStore(tmp_path / "db"))
        bad = interests.load(["a", "b"], ["price > 1", "price >"], [7, 9])
        assert bad == ["b: price >: does not parse: something is missing at column 7"]
        assert interests.of("a") == {7: "price > 1"}
    assert interests.load(["a"], ["price > 2"], [7]) == [
        "a: subscription_id 7 is there already with another filter"
    ]
    assert interests.add("c", ["price = 1"]) == [10]


def test_filters_that_no_longer_fit(tmp_path: Path) -> None:
    SubscriptionIndex(store=SubscriptionStore(tmp_path / "db")).add("ann", ["price > 75", "name = 'IBM'"])
    again = SubscriptionIndex(nc.Schema.of({"price": "double"}), store=SubscriptionStore(tmp_path / "db"))
    assert again.of("ann") == {0: "price > 75"}
    assert len(again.refused) == 1
    assert again.refused[0].startswith("ann: name = 'IBM': ")


def test_what_cannot_be_written_does_not_hold(tmp_path: Path) -> None:
    store = SubscriptionStore(tmp_path / "db")
    interests = SubscriptionIndex(store=store)
    interests.add("ann", ["price > 75"])
    store.close()
    with pytest.raises(TransportError, match=r"cannot write the subscriptions in .*db: "):
        interests.add("ann", ["price > 80"])
    with pytest.raises(TransportError, match="cannot write"):
        interests.remove("ann", [0])
    assert interests.of("ann") == {0: "price > 75"}
    (tmp_path / "text").write_text("no database at all, " * 100)
    with pytest.raises(TransportError, match="cannot open the subscriptions"):
        SubscriptionStore(tmp_path / "text")
