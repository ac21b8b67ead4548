"""The frozen workloads of the matching benchmark: boxes and points from seed 0.

- `R4`: the stock workload, four attributes, wide boxes and many matches.
- `S10`: ten attributes, uniform over 10,000 values. A subscription bounds three of them, chosen at random, by
  intervals of one length; whole boxes hold from 1e-4 to 1e-3 of the events, log-uniformly.
- `C10`: `S10` and, first, an equality on a category of 1,000 values by Zipf's law, for events too.

Each comes as `int` (bigint attributes; the stock workload in hundredths) and as `float` (doubles). More
subscriptions of `S10` and `C10`, and more events of any, leave those before as they were. None of this may
change: results over time are compared by it. A new question is a new workload.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from narrowcast import EventBatch, Schema, SubscriptionSet
from narrowcast.model import keys
from narrowcast.model.boxes import Boxes
from narrowcast.model.types import DataType
from narrowcast.workloads import Stocks

Doubles: TypeAlias = NDArray[np.float64]

NAMES = ("R4", "S10", "C10")
FORMS = ("int", "float")
SEED = 0
#: Values of an attribute of S10, attributes in all and bounded by each subscription, categories of C10.
VALUES, WIDTH, BOUNDED, CATEGORIES = 10_000, 10, 3, 1_000
#: Subscriptions go round as many subscribers.
SUBSCRIBERS = 1_000

_TYPES = {"int": DataType("bigint"), "float": DataType("double")}


@dataclass(frozen=True, eq=False)
class Work:
    """Boxes (lo, hi] and points, one row each and one column per attribute; an infinite side is no bound."""

    name: str
    form: str
    attributes: tuple[str, ...]
    lo: Doubles
    hi: Doubles
    points: Doubles
    #: Whether the first attribute is a category, asked for by equality.
    category: bool = False

    @property
    def schema(self) -> Schema:
        """The attributes, all of one type."""
        return Schema.of(dict.fromkeys(self.attributes, _TYPES[self.form]))

    @property
    def dtype(self) -> type[np.int64] | type[np.float64]:
        """What values are held in."""
        return np.int64 if self.form == "int" else np.float64

    def subscriptions(self, start: int = 0, stop: int | None = None) -> SubscriptionSet:
        """Return some of the boxes as subscriptions, numbered as they stand here."""
        lo, hi = self.lo[start:stop], self.hi[start:stop]
        n = len(lo)
        bound = np.isfinite(lo) | np.isfinite(hi)
        low, high = lo[bound], hi[bound]
        boxes = Boxes.build(
            n,
            np.arange(n),
            bound.sum(axis=1),
            np.nonzero(bound)[1],
            np.where(np.isinf(low), keys.NULL, self._keys(low)),
            np.where(np.isinf(high), keys.last(_TYPES[self.form]), self._keys(high)),
            np.ones(n, bool),
        )
        ids = np.arange(start, start + n)
        names = pa.array([f"s{i}" for i in range(SUBSCRIBERS)])
        who = (ids % SUBSCRIBERS).astype(np.int32)
        return SubscriptionSet(self.schema, ids, who, names, boxes, pa.nulls(n, pa.string()))

    def _keys(self, ends: Doubles) -> NDArray[np.int64]:
        if self.form == "float":
            return keys.float_keys(ends)
        return np.where(np.isfinite(ends), ends, 0).astype(np.int64)

    def table(self, n_events: int | None = None) -> pa.Table:
        """Return the first events as columns."""
        points = self.points[:n_events].astype(self.dtype)
        columns = {name: np.ascontiguousarray(points[:, i]) for i, name in enumerate(self.attributes)}
        return pa.table({"event_id": np.arange(len(points)), **columns})

    def events(self, n_events: int | None = None) -> EventBatch:
        """Return the first events as a batch whose keys have not been computed yet."""
        return EventBatch.from_arrow(self.table(n_events), self.schema)

    def checksum(self) -> str:
        """Return what changes when anything in the workload does."""
        digest = hashlib.sha256()
        for column in (self.lo, self.hi, self.points):
            digest.update(np.ascontiguousarray(column, "<f8").tobytes())
        return digest.hexdigest()[:16]


def make(name: str, form: str, n_subscriptions: int, n_events: int) -> Work:
    """Return a workload by its name, in one of its forms."""
    if name == "R4":
        return _stocks(form, n_subscriptions, n_events)
    lo, hi, points = _uniform(form, n_subscriptions, n_events)
    attributes = tuple(f"a{i}" for i in range(WIDTH))
    if name == "S10":
        return Work(name, form, attributes, lo, hi, points)
    wanted, seen = _zipf(4, n_subscriptions), _zipf(5, n_events)
    # Equality: the half-open interval that holds this value and no other of its type.
    below = wanted - 1 if form == "int" else np.nextafter(wanted, -np.inf)
    return Work(
        name,
        form,
        ("category", *attributes),
        np.column_stack([below, lo]),
        np.column_stack([wanted, hi]),
        np.column_stack([seen, points]),
        category=True,
    )


def _stocks(form: str, n_subscriptions: int, n_events: int) -> Work:
    """Return the stock workload; as integers in hundredths, with the sides 1, 2 and 3."""
    stocks = Stocks(n_subscriptions=n_subscriptions, n_events=n_events, seed=SEED)
    (lo, hi), points = stocks.boxes(), stocks.points()
    if form == "int":
        for values in (lo, hi, points):
            values[:, 1:] = np.rint(values[:, 1:] * 100)
        points[:, 0] = np.ceil(points[:, 0])
    return Work("R4", form, ("bst", "name", "quote", "volume"), lo, hi, points)


def _uniform(form: str, n: int, n_events: int) -> tuple[Doubles, Doubles, Doubles]:
    """Return the boxes and points of S10."""
    # Rounded, for the last bit of a power differs from one processor to another.
    side = np.round(VALUES * 10 ** (_random(0, n) / 3 - 4 / 3), 6)
    chosen = np.sort(np.argsort(_random(1, n, WIDTH), axis=1)[:, :BOUNDED], axis=1)
    place = _random(2, n, BOUNDED)
    points = VALUES * (1 - _random(3, n_events, WIDTH))
    if form == "int":
        side, points = np.rint(side), np.ceil(points)
        start = np.floor(place * (VALUES + 1 - side[:, None]))
    else:
        start = place * (VALUES - side[:, None])
    lo, hi = np.full((n, WIDTH), -np.inf), np.full((n, WIDTH), np.inf)
    np.put_along_axis(lo, chosen, start, axis=1)
    np.put_along_axis(hi, chosen, start + side[:, None], axis=1)
    return lo, hi, points


def _zipf(stream: int, n: int) -> Doubles:
    """Return categories from 1 on, in proportion to 1 / category."""
    weight = np.cumsum(1 / np.arange(1, CATEGORIES + 1))
    category = np.searchsorted(weight[:-1] / weight[-1], _random(stream, n), side="right")
    return np.asarray(category + 1, np.float64)


def _random(stream: int, *shape: int) -> Doubles:
    """Return numbers in [0, 1) from a source of their own; a longer one starts with the shorter."""
    return np.random.default_rng([SEED, stream]).random(shape)
