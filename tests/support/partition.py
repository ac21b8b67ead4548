"""Parts of any scheme: subscriptions and events to cut, and what holds of all of them."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from numpy.typing import NDArray

from narrowcast import EventBatch, Scan, Schema, SubscriptionSet
from narrowcast.matching.partition import parts_of_table
from narrowcast.model import keys
from narrowcast.model.boxes import Boxes

if TYPE_CHECKING:
    from narrowcast.matching.partition import Parts

Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

CELLS, SKEW, WIDTH = 1000, 0.95, 10


def zipf(rng: np.random.Generator, n: int, ranks: int) -> Ints:
    weight = np.cumsum(np.arange(1, ranks + 1) ** -SKEW)
    return np.minimum(np.searchsorted(weight / weight[-1], rng.random(n), side="right"), ranks - 1)


def cobas(n: int, n_events: int, seed: int) -> tuple[SubscriptionSet, EventBatch, EventBatch]:
    """The paper's workload: values, medians, half lengths and numbers of attributes, all by Zipf's law.

    Returns subscriptions, events to fit to and as many others.
    """
    rng = np.random.default_rng(seed)
    maps = [rng.permutation(CELLS) for _ in range(WIDTH)]

    def values(place: Ints, count: int) -> Doubles:
        return (place[zipf(rng, count, CELLS)] + rng.random(count)) / CELLS

    points = [values(place, 2 * n_events) for place in maps]
    size = zipf(rng, n, WIDTH) + 1
    race = rng.exponential(size=(n, WIDTH)) * np.arange(1, WIDTH + 1) ** SKEW
    bound = np.argsort(np.argsort(race, axis=1), axis=1) < size[:, None]
    lo, hi = np.full((n, WIDTH), -np.inf), np.full((n, WIDTH), np.inf)
    for a, place in enumerate(maps):
        rows = np.flatnonzero(bound[:, a])
        middle = values(place, len(rows))
        share = (zipf(rng, len(rows), CELLS) + rng.random(len(rows))) / CELLS
        half = share * np.minimum(middle, 1 - middle)
        lo[rows, a], hi[rows, a] = middle - half, middle + half
    schema = Schema.of({f"a{i}": "double" for i in range(WIDTH)})
    batch = EventBatch.from_arrow(pa.table({f"a{i}": p for i, p in enumerate(points)}), schema)
    made = SubscriptionSet.from_boxes(schema, pa.array(["s"] * n), lo, hi)
    return made, batch.slice(0, n_events), batch.slice(n_events, 2 * n_events)


@st.composite
def raw(draw: st.DrawFn) -> tuple[SubscriptionSet, EventBatch]:
    """Boxes on a few keys, some of them empty, several to a subscription or none; and events with nulls."""
    d = draw(st.integers(1, 3))
    schema = Schema.of({f"a{i}": "bigint" for i in range(d)})
    n = draw(st.integers(0, 6))
    low = st.sampled_from([keys.NO_LOW, keys.NULL, 0, 1, 2, 3])
    high = st.sampled_from([keys.NULL, 0, 1, 2, 3, 4, keys.NO_HIGH])
    bounds = st.dictionaries(st.integers(0, d - 1), st.tuples(low, high))
    boxes = draw(st.lists(st.tuples(st.integers(0, max(0, n - 1)), bounds), max_size=10 if n else 0))
    entries = [(a, *box[a]) for _, box in boxes for a in sorted(box)]
    table = np.array(entries, np.int64).reshape(-1, 3)
    made = Boxes.build(
        n,
        np.array([owner for owner, _ in boxes], np.int64),
        np.array([len(box) for _, box in boxes], np.int64),
        table[:, 0],
        table[:, 1],
        table[:, 2],
        np.ones(len(boxes), bool),
    )
    who = np.zeros(n, np.int32)
    subscriptions = SubscriptionSet(
        schema, np.arange(n), who, pa.array(["s"]), made, pa.nulls(n, pa.string())
    )
    value = st.none() | st.integers(-1, 5)
    rows = {f"a{i}": pa.array(draw(st.lists(value, min_size=15, max_size=15)), pa.int64()) for i in range(d)}
    return subscriptions, EventBatch.from_arrow(pa.table(rows), schema)


def check_parts(parts: Parts, subscriptions: SubscriptionSet, batch: EventBatch) -> None:
    """Everything that holds of any parts, subscriptions and events, whatever the scheme."""
    event, event_part = parts.parts_of_events(batch)
    visited = list(zip(event.tolist(), event_part.tolist(), strict=True))
    assert len(visited) == len(set(visited))
    assert event.tolist() == sorted(event.tolist())
    assert set(event.tolist()) == set(range(len(batch)))
    assert np.bincount(event, minlength=1).max(initial=0) <= parts.copies
    assert all(0 <= part < parts.parts for part in event_part.tolist())

    position, part = parts.parts_of_subscriptions(subscriptions)
    held = list(zip(position.tolist(), part.tolist(), strict=True))
    assert held == sorted(set(held))
    assert all(0 <= each < parts.parts for each in part.tolist())

    # An event goes to a part exactly when it is between the ends that the table has.
    table = parts.to_arrow()
    lo, hi = (np.array(table[name].to_pylist()).reshape(parts.parts, -1) for name in ("lo", "hi"))
    point = np.stack([batch.keys(a) for a in range(len(parts.schema))], axis=1)
    inside = (lo[None] < point[:, None]).all(axis=2) & (point[:, None] <= hi[None]).all(axis=2)
    assert sorted(visited) == [tuple(each) for each in np.argwhere(inside).tolist()]

    places: dict[int, set[int]] = {}
    for p, q in held:
        places.setdefault(p, set()).add(q)
    for e, matched in enumerate(Scan().fit(subscriptions).match(batch)):
        mine = set(event_part[event == e].tolist())
        for p in matched.tolist():
            assert len(mine & places[p]) == 1

    for again in (
        pickle.loads(pickle.dumps(parts)),
        parts_of_table(table, parts.schema),
        parts_of_table(table.take(np.arange(parts.parts)[::-1]), parts.schema),
    ):
        assert again == parts
        assert sorted(zip(*(each.tolist() for each in again.parts_of_events(batch)), strict=True)) == sorted(
            visited
        )
        assert (
            list(zip(*(each.tolist() for each in again.parts_of_subscriptions(subscriptions)), strict=True))
            == held
        )
