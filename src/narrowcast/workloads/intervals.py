"""Subscriptions as intervals on a few of many attributes, by Zipf's law (cobas2009, section 7)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from narrowcast.errors import ParameterError
from narrowcast.model.schema import EVENT_ID, Schema
from narrowcast.validation import check_choice, check_seed
from narrowcast.workloads.base import BaseWorkload, box_filters, check_count, random_streams, zipf

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]

#: How the cells of an attribute are ranked: at random, or in order.
Order = Literal["shuffle", "identity"]
#: Whether events and intervals share their popular cells.
Occurrence = Literal["co", "anti"]
#: Number of cells of the range [0, 1]; Zipf's law applies to cells, and within one, values are uniform.
CELLS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals(BaseWorkload):
    """Filters that bound some of the attributes, and events with values from 0 to 1 (cobas2009, section 7).

    The range of an attribute is divided into 1,000 cells. The cell of an event's value, and the cell of the
    middle of an interval, follow Zipf's law; within a cell, values are uniform. An interval is symmetric
    around its middle: half its length is a share of the distance to the nearer end of the range, in 1,000
    steps by Zipf's law, the shortest being the most frequent. The number of attributes that a filter bounds,
    from 1 to all, and the choice of attributes follow Zipf's law as well: the first attribute is bounded
    most often.

    Each subscription has a subscriber of its own.

    Parameters
    ----------
    n_subscriptions, n_events
        Number of rows of each table. Larger numbers do not change the first rows.
    attributes
        Number of attributes of an event, at least 1.
    density, popularity, breadth
        Exponents of Zipf's law, at least 0, for the values of events; the middles and lengths of intervals;
        and the number and choice of the bounded attributes. 0 gives uniform distributions.
    order
        How cells are ranked: at random, independently for each attribute (`shuffle`), or in order
        (`identity`).
    occurrence
        Whether events and intervals rank cells alike (`co`) or independently (`anti`: another random order
        with `shuffle`, the reverse order with `identity`).
    represents
        Number of filters that the table is a sample of; 0 (the default) if it is not a sample. If given, the
        table of subscriptions has a column `weight`, the same for each row.
    seed
        Seed of all random choices, at least 0.

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
                raise ParameterError(parameter=name, value=value, limit="a finite exponent of at least 0")
        for name, known in (("order", get_args(Order)), ("occurrence", get_args(Occurrence))):
            check_choice(name, getattr(self, name), known)
        check_count("represents", self.represents)
        check_seed(self.seed)

    @property
    def weight(self) -> float:
        """Number of filters that each subscription represents; 1 unless `represents` is given."""
        return self.represents / self.n_subscriptions if self.represents and self.n_subscriptions else 1.0

    def schema(self) -> Schema:
        """Return the attributes of events, `x0`, `x1`, ..., with their types."""
        return Schema.of({f"x{i}": "double" for i in range(self.attributes)})

    def tables(self) -> dict[str, pa.Table]:
        """Return `subscriptions` (subscription_id, subscriber, filter) and `events`.

        With `represents`, subscriptions also have a column `weight`.
        """
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
        """Return the ends (lo, hi] of filters, one row per filter and one column per attribute.

        The ends of an unbounded attribute are minus and plus infinity.
        """
        _, _, which, middle, length = self._streams()
        shape = self.n_subscriptions, self.attributes
        row, column = np.nonzero(self._bounded(which))
        # One random number gives the cell and the position in it: a double has enough digits for both.
        centre = self._cells(middle.random(shape)[row, column], self.popularity, self.maps()[1], column)
        share = self._cells(length.random(shape)[row, column], self.popularity)
        half = share * np.minimum(centre, 1 - centre)
        lo, hi = np.full(shape, -np.inf), np.full(shape, np.inf)
        lo[row, column] = centre - half
        # An interval is never empty, however short.
        hi[row, column] = np.maximum(centre + half, np.nextafter(lo[row, column], 2.0))
        return lo, hi

    def values(self) -> Doubles:
        """Return the events, one row per event and one column per attribute."""
        chance = self._streams()[1].random((self.n_events, self.attributes))
        column = np.broadcast_to(np.arange(self.attributes), chance.shape)
        return self._cells(chance, self.density, self.maps()[0], column)

    def below(self, attribute: int, values: ArrayLike) -> Doubles:
        """Return the expected share of events at or below given values of an attribute.

        Parameters
        ----------
        attribute
            Index of the attribute, from 0.
        values
            Values from 0 to 1.

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
        """Return the cell of each rank for events, and that for middles of intervals; a row per attribute."""
        rng = self._streams()[0]
        ranks = np.tile(np.arange(CELLS), (self.attributes, 1))
        if self.order == "identity":
            return ranks, ranks if self.occurrence == "co" else ranks[:, ::-1]
        # Drawn attribute by attribute, so that additional attributes do not change the first ones.
        both = rng.permuted(np.tile(np.arange(CELLS), (self.attributes, 2, 1)), axis=2)
        return both[:, 0], both[:, 0] if self.occurrence == "co" else both[:, 1]

    def _bounded(self, rng: np.random.Generator) -> NDArray[np.bool_]:
        """Draw which attributes each filter bounds, one row per filter."""
        n, d = self.n_subscriptions, self.attributes
        chance = rng.random((n, d + 1))
        # Number of bounded attributes besides the first of each row.
        further = np.searchsorted(np.cumsum(zipf(d, self.breadth))[:-1], chance[:, 0], side="right")
        # The smallest of exponential waiting times, with weights as rates, are draws without replacement.
        wait = -np.log1p(-chance[:, 1:]) / zipf(d, self.breadth)
        last = np.take_along_axis(np.sort(wait, axis=1), further[:, None], axis=1)
        return np.asarray(wait <= last, np.bool_)

    def _cells(
        self, chance: Doubles, exponent: float, cells: Ints | None = None, column: Ints | None = None
    ) -> Doubles:
        """Return values from 0 to 1 whose cells follow Zipf's law.

        Parameters
        ----------
        chance
            Random numbers from 0 to 1, one per value.
        exponent
            Exponent of Zipf's law.
        cells
            The cell of each rank, one row per attribute; None ranks cells in order.
        column
            The attribute of each value, needed with `cells`.
        """
        weight = zipf(CELLS, exponent)
        above = np.cumsum(weight)
        rank = np.searchsorted(above[:-1], chance, side="right")
        within = np.clip((chance - (above - weight)[rank]) / weight[rank], 0.0, np.nextafter(1.0, 0.0))
        cell = rank if cells is None else cells[column, rank]
        return np.asarray((cell + within) / CELLS, np.float64)

    def _streams(self) -> list[np.random.Generator]:
        """Return one random generator each for ranks, events, bounded attributes, middles and lengths."""
        return random_streams(self.seed, 5)
