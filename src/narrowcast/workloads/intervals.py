"""Intervals on some of many attributes, all by Zipf's law: the workload of cobas2009, section 7."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from narrowcast.errors import ParameterError
from narrowcast.model.schema import EVENT_ID, Schema
from narrowcast.validation import check_seed
from narrowcast.workloads.base import MOST, BaseWorkload, box_filters, check_count, random_streams, zipf

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]

#: Which cell of an attribute has which rank: by chance, or in order.
Order = Literal["shuffle", "identity"]
#: Whether cells that events are often in are also those that intervals are often around.
Occurrence = Literal["co", "anti"]
#: Cells of the range [0, 1] that Zipf's law is about; within one, values are uniform.
CELLS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals(BaseWorkload):
    """Filters that bound some of the attributes, and events with a value from 0 to 1 for each (cobas2009).

    The range of an attribute is cut into 1,000 cells. Which of them an event is in, and which one the middle
    of an interval is in, follows Zipf's law; within the cell all values are alike. An interval reaches as far
    to both sides: half its length is a share of the way to the nearer end of the range, in 1,000 steps by
    Zipf's law too, the shortest being the most frequent. How many attributes a filter bounds, from 1 to all,
    and which, is by Zipf's law as well: the first attribute is bounded most often.

    Each subscription is a subscriber of its own.

    Parameters
    ----------
    n_subscriptions, n_events
        How many there are. More of either leave the first as they were.
    attributes
        How many attributes an event has.
    density, popularity, breadth
        Exponents of Zipf's law: for the values of events, for middles and lengths of intervals, and for how
        many and which attributes a filter bounds. With 0 all are alike.
    order
        Which cell has which rank: by chance, for each attribute apart (`shuffle`), or in order (`identity`).
    occurrence
        Whether ranks of cells are the same for events and intervals (`co`) or have nothing to do with each
        other (`anti`: another shuffle, or the reverse order).
    represents
        How many filters the subscriptions stand for, each for as many as any other; 0 for themselves. Where
        given, the table of subscriptions has a column `weight`.
    seed
        What all random choices come from.

    Examples
    --------
    >>> intervals = Intervals(n_subscriptions=500, n_events=200, attributes=4, seed=1)
    >>> lo, hi = intervals.ends()
    >>> bounded = np.isfinite(lo)
    >>> bool((lo[bounded] < hi[bounded]).all()), np.bincount(bounded.sum(axis=1)).tolist()
    (True, [0, 247, 116, 75, 62])
    >>> intervals.tables()["subscriptions"]["filter"][0].as_py()
    'x0 > 0.3165361749804213 AND x0 <= 0.36749145979390696'
    """

    n_subscriptions: int = 1000
    n_events: int = 5000
    attributes: int = 10
    density: float = 0.95
    popularity: float = 0.95
    breadth: float = 0.95
    order: Order = "shuffle"
    occurrence: Occurrence = "co"
    represents: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("n_subscriptions", self.n_subscriptions)
        check_count("n_events", self.n_events)
        check_count("attributes", self.attributes, 1)
        for name in ("density", "popularity", "breadth"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ParameterError(f"{name} is {value!r}; give an exponent of at least 0")
        for name, known in (("order", get_args(Order)), ("occurrence", get_args(Occurrence))):
            if getattr(self, name) not in known:
                raise ParameterError(f"{name} is {getattr(self, name)!r}; give one of {', '.join(known)}")
        whole = isinstance(self.represents, int) and not isinstance(self.represents, bool)
        if not whole or not 0 <= self.represents <= MOST:
            raise ParameterError(f"represents is {self.represents!r}; give a whole number from 0 to {MOST}")
        check_seed(self.seed)

    @property
    def weight(self) -> float:
        """How many filters each subscription stands for."""
        return self.represents / self.n_subscriptions if self.represents and self.n_subscriptions else 1.0

    def schema(self) -> Schema:
        """Return what an event has."""
        return Schema.of({f"x{i}": "double" for i in range(self.attributes)})

    def tables(self) -> dict[str, pa.Table]:
        """Return the tables `subscriptions` (subscription_id, subscriber, filter, weight) and `events`."""
        names, points = self.schema().names, self.values()
        number = np.arange(self.n_subscriptions)
        text = pa.array(np.char.mod("s%07d", number), pa.string())
        subscriptions = {
            "subscription_id": number,
            "subscriber": text,
            "filter": box_filters(names, *self.ends()),
        }
        if self.represents:
            subscriptions["weight"] = np.full(len(number), self.weight)
        values = {name: points[:, i] for i, name in enumerate(names)}
        return {
            "subscriptions": pa.table(subscriptions),
            "events": pa.table({EVENT_ID: np.arange(self.n_events), **values}),
        }

    def ends(self) -> tuple[Doubles, Doubles]:
        """Return the ends (lo, hi] of filters, one row each and one column per attribute.

        An attribute that a filter does not bound goes from minus to plus infinity.
        """
        _, _, which, middle, length = self._streams()
        shape = self.n_subscriptions, self.attributes
        row, column = np.nonzero(self._bounded(which))
        # One column of chance for the cell and the place in it: a double has digits enough for both.
        centre = self._cells(middle.random(shape)[row, column], self.popularity, self.maps()[1], column)
        share = self._cells(length.random(shape)[row, column], self.popularity)
        half = share * np.minimum(centre, 1 - centre)
        lo, hi = np.full(shape, -np.inf), np.full(shape, np.inf)
        lo[row, column] = centre - half
        # Never empty, however short.
        hi[row, column] = np.maximum(centre + half, np.nextafter(lo[row, column], 2.0))
        return lo, hi

    def values(self) -> Doubles:
        """Return the events, one row each and one column per attribute."""
        chance = self._streams()[1].random((self.n_events, self.attributes))
        column = np.broadcast_to(np.arange(self.attributes), chance.shape)
        return self._cells(chance, self.density, self.maps()[0], column)

    def below(self, attribute: int, values: ArrayLike) -> Doubles:
        """Return the share of events that are at or below values of an attribute, by the law.

        Examples
        --------
        >>> Intervals(attributes=1, density=0.0).below(0, [0.0, 0.25, 1.0]).tolist()
        [0.0, 0.25, 1.0]
        """
        share = np.empty(CELLS)
        share[self.maps()[0][attribute]] = zipf(CELLS, self.density)
        edges = np.append(0.0, np.cumsum(share))
        at = np.asarray(values, np.float64)
        return np.asarray(np.interp(at, np.arange(CELLS + 1) / CELLS, edges / edges[-1]), np.float64)

    def maps(self) -> tuple[Ints, Ints]:
        """Return the cell of each rank, for events and for middles of intervals, one row per attribute."""
        rng = self._streams()[0]
        ranks = np.tile(np.arange(CELLS), (self.attributes, 1))
        if self.order == "identity":
            return ranks, ranks if self.occurrence == "co" else ranks[:, ::-1]
        # In turn for each attribute, so that more of them leave the first as they were.
        both = rng.permuted(np.tile(np.arange(CELLS), (self.attributes, 2, 1)), axis=2)
        return both[:, 0], both[:, 0] if self.occurrence == "co" else both[:, 1]

    def _bounded(self, rng: np.random.Generator) -> NDArray[np.bool_]:
        """Return which attributes each filter bounds."""
        n, d = self.n_subscriptions, self.attributes
        chance = rng.random((n, d + 1))
        many = np.searchsorted(np.cumsum(zipf(d, self.breadth))[:-1], chance[:, 0], side="right")
        # The least of waiting times, each with its weight for rate, are draws without replacement.
        wait = -np.log1p(-chance[:, 1:]) / zipf(d, self.breadth)
        last = np.take_along_axis(np.sort(wait, axis=1), many[:, None], axis=1)
        return np.asarray(wait <= last, np.bool_)

    def _cells(
        self, chance: Doubles, exponent: float, cells: Ints | None = None, column: Ints | None = None
    ) -> Doubles:
        """Return values from 0 to 1 whose cells follow Zipf's law by rank; without a map, in order."""
        weight = zipf(CELLS, exponent)
        above = np.cumsum(weight)
        rank = np.searchsorted(above[:-1], chance, side="right")
        within = np.clip((chance - (above - weight)[rank]) / weight[rank], 0.0, np.nextafter(1.0, 0.0))
        cell = rank if cells is None else cells[column, rank]
        return np.asarray((cell + within) / CELLS, np.float64)

    def _streams(self) -> list[np.random.Generator]:
        """Return a source of chance each for maps, events, which attributes, middles and lengths."""
        return random_streams(self.seed, 5)
