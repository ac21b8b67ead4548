"""Store of subscriptions: it contains exactly the acknowledged ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import narrowcast as nc
from narrowcast.broker import SubscriptionIndex, SubscriptionStore
from narrowcast.errors import InputError, TransportError
from support.errors import refused

if TYPE_CHECKING:
    from pathlib import Path


def test_subscriptions_survive_a_restart(tmp_path: Path) -> None:
    interests = SubscriptionIndex(store=SubscriptionStore(tmp_path / "db"))
    interests.add("ann", ["price > 75", "name = 'IBM'"])
    interests.add("bob", ["price < 10"])
    interests.remove("ann", [1])
    with refused(InputError, "price = 'dear'"):
        interests.add("bob", ["price < 20", "price = 'dear'"])
    again = SubscriptionIndex(store=SubscriptionStore(tmp_path / "db"))
    assert again.of("ann") == {0: "price > 75"}
    assert again.of("bob") == {2: "price < 10"}
    assert again.refused == []
    assert again.add("eve", ["price = 7"]) == [3]
    events = nc.EventBatch.from_rows([{"price": 80}, {"price": 7}], again.schema)
    assert again.matcher.count(events).tolist() == [1, 2]


def test_an_id_is_not_used_again(tmp_path: Path) -> None:
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
        "a: subscription_id=7: exists already with another filter"
    ]
    assert interests.add("c", ["price = 1"]) == [10]


def test_filters_that_no_longer_fit(tmp_path: Path) -> None:
    SubscriptionIndex(store=SubscriptionStore(tmp_path / "db")).add("ann", ["price > 75", "name = 'IBM'"])
    again = SubscriptionIndex(nc.Schema.of({"price": "double"}), store=SubscriptionStore(tmp_path / "db"))
    assert again.of("ann") == {0: "price > 75"}
    assert len(again.refused) == 1
    assert again.refused[0].startswith("ann: name = 'IBM': ")


def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    store = SubscriptionStore(tmp_path / "db")
    interests = SubscriptionIndex(store=store)
    interests.add("ann", ["price > 75"])
    store.close()
    with refused(TransportError, tmp_path / "db", "write"):
        interests.add("ann", ["price > 80"])
    with refused(TransportError, tmp_path / "db", "write"):
        interests.remove("ann", [0])
    assert interests.of("ann") == {0: "price > 75"}
    (tmp_path / "text").write_text("no database at all, " * 100)
    with refused(TransportError, tmp_path / "text", "open"):
        SubscriptionStore(tmp_path / "text")
