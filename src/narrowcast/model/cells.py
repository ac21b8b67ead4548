"""Cell grids: divide the event space into cells, which serve as flows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from narrowcast.errors import ParameterError, SchemaError
from narrowcast.model import keys
from narrowcast.model.boxes import Boxes
from narrowcast.model.events import EventBatch
from narrowcast.model.schema import Schema
from narrowcast.model.subscriptions import SubscriptionSet

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from narrowcast.model.types import DataType

    Ints = npt.NDArray[np.int64]
    Doubles = npt.NDArray[np.float64]

#: Cell numbers are 63-bit integers.
MOST_CELLS = 2**63 - 1
#: Types that convert to numbers: dates to days, timestamps to seconds since 1970.
NUMBERS = ("boolean", "integer", "float", "decimal", "date", "timestamp")


@dataclass(frozen=True, slots=True, eq=False)
class CellGrid:
    """A grid of half-open cells (lo, hi] over some attributes of a schema (riabov2003, section 4).

    The edges of an attribute divide all keys: the first cell has no lower end and includes null, the last
    has no upper end. Cells are numbered in row-major order, the last attribute changing first. A cell does
    not restrict attributes outside the grid.

    Parameters
    ----------
    schema
        The attributes of events and subscriptions.
    attributes
        The names of the attributes that the grid divides.
    edges
        For each attribute its inner edges as keys (`narrowcast.model.keys`), ascending: one fewer than cells.

    Examples
    --------
    >>> schema = Schema.of({"price": "double", "amount": "int"})
    >>> grid = CellGrid.equal(schema, {"price": (0, 20, 4), "amount": (0, 100, 2)})
    >>> grid.shape, grid.n_cells
    ((4, 2), 8)
    >>> events = EventBatch.from_rows([{"price": 5.0, "amount": 51}, {"price": 99.0, "amount": 0}], schema)
    >>> grid.cell_of(events).tolist()
    [1, 6]
    >>> lo, hi = grid.bounds([1, 6])
    >>> lo.tolist(), hi.tolist()
    ([[-inf, 50.0], [15.0, -inf]], [[5.0, inf], [inf, 50.0]])
    """

    schema: Schema
    attributes: tuple[str, ...]
    edges: tuple[Ints, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", tuple(self.attributes))
        if not self.attributes or len(self.attributes) != len(self.edges):
            raise ParameterError(
                f"{len(self.attributes)} attributes, {len(self.edges)} lists of edges: must be as many of "
                "each, at least 1"
            )
        names = tuple(self.schema.names[self.schema.index(name)] for name in self.attributes)
        if len(set(names)) < len(names):
            raise ParameterError(f"attributes={', '.join(names)}: must differ", parameter="attributes")
        object.__setattr__(self, "attributes", names)
        edges = (_edges(name, e, self.schema[name]) for name, e in zip(names, self.edges, strict=True))
        object.__setattr__(self, "edges", tuple(edges))
        if self.n_cells > MOST_CELLS:
            raise ParameterError(
                f"grid of {' x '.join(map(str, self.shape))} cells: must have at most {MOST_CELLS}; use "
                "fewer cells along an attribute, or drop an attribute"
            )

    @classmethod
    def of_keys(cls, schema: Schema, edges: Mapping[str, Sequence[int]]) -> CellGrid:
        """Build from the inner edges of each attribute, as `keys` returns them."""
        return cls(schema, tuple(edges), tuple(np.array(each, np.int64) for each in edges.values()))

    def keys(self) -> dict[str, list[int]]:
        """Return the inner edges by attribute, as Python integers."""
        return {name: edge.tolist() for name, edge in zip(self.attributes, self.edges, strict=True)}

    @classmethod
    def equal(cls, schema: Schema, sides: Mapping[str, tuple[Any, Any, int]]) -> CellGrid:
        """Build a grid of equally wide cells: per attribute (low, high, n), n cells on (low, high].

        The outermost cells extend to infinity, so that the grid contains every event. To give values outside
        a range their own cells, add one cell on each side: 5 cells on (-1, 4] cover (0, 3] with three.
        Ends of dates and timestamps are given as such or as numbers: days, and seconds, since 1970.
        """
        edges = []
        for name, (lo, hi, n) in sides.items():
            dtype = _divisible(name, schema[name])
            low, high, n = _number(name, lo), _number(name, hi), _count(name, n)
            if not low < high:
                raise ParameterError(
                    f"{name!r}: cells on ({lo}, {hi}]: the low end must be below the high end"
                )
            cuts = [low + (high - low) * i / n for i in range(1, n)]
            found = np.array([_key(cut, dtype) for cut in cuts], np.int64)
            if (found[1:] <= found[:-1]).any():
                raise ParameterError(
                    f"{name!r}: {n} cells on ({lo}, {hi}] are not distinct in type {dtype}; use fewer cells",
                    value=n,
                )
            edges.append(found)
        return cls(schema, tuple(sides), tuple(edges))

    @classmethod
    def quantiles(
        cls,
        schema: Schema,
        sample: EventBatch,
        n: int | Mapping[str, int],
        attributes: Sequence[str] | None = None,
    ) -> CellGrid:
        """Build a grid whose cells contain about equal shares of a sample, attribute by attribute.

        Parameters
        ----------
        schema
            The attributes of events and subscriptions.
        sample
            Events to take the quantiles from; null, NaN and infinite values are ignored.
        n
            Number of cells per attribute, one for all or by name. An attribute with few distinct values in
            the sample gets fewer.
        attributes
            The attributes to divide when `n` is one number (default: all numbers, dates and timestamps).

        Examples
        --------
        >>> schema = Schema.of({"price": "double"})
        >>> sample = EventBatch.from_rows([{"price": float(p)} for p in (1, 2, 3, 4, 5, 60)], schema)
        >>> CellGrid.quantiles(schema, sample, 3).bounds([0, 1, 2])[1].tolist()
        [[2.0], [4.0], [inf]]
        """
        if isinstance(n, int):
            if attributes is None:
                attributes = [name for name in schema if schema[name].family in NUMBERS]
            n = dict.fromkeys(attributes, n)
        edges = []
        for name, cells in n.items():
            dtype = _divisible(name, schema[name])
            found = np.sort(_keys(sample, name, dtype))
            found = found[found > keys.NULL]
            if dtype.family == "float":
                finite = keys.float_keys(np.array([-np.inf, np.inf]))
                found = found[(found > finite[0]) & (found < finite[1])]
            at = -(-np.arange(1, _count(name, cells)) * len(found) // cells) - 1
            picked = np.unique(found[at[at >= 0]])
            edges.append(picked[picked < found[-1]] if len(found) else picked)
        return cls(schema, tuple(n), tuple(edges))

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of cells along each attribute."""
        return tuple(len(edge) + 1 for edge in self.edges)

    @property
    def n_cells(self) -> int:
        """Number of cells in the grid."""
        return math.prod(self.shape)

    def cell_of(self, events: EventBatch) -> Ints:
        """Return the cell number of each event."""
        cell = np.zeros(len(events), np.int64)
        for name, edge in zip(self.attributes, self.edges, strict=True):
            cell *= len(edge) + 1
            cell += np.searchsorted(edge, _keys(events, name, self.schema[name]), side="left")
        return cell

    def places(self, cells: npt.ArrayLike) -> Ints:
        """Return the coordinates of cells: one row per cell, one column per attribute of the grid."""
        rest = np.array(cells, np.int64, ndmin=1)
        wrong = (rest < 0) | (rest >= self.n_cells)
        if wrong.any():
            raise ParameterError(
                f"cell={rest[wrong][0]}: must be from 0 to {self.n_cells - 1}",
                parameter="cell",
                value=int(rest[wrong][0]),
            )
        places = np.empty((len(rest), len(self.shape)), np.int64)
        for i in reversed(range(len(self.shape))):
            rest, places[:, i] = np.divmod(rest, self.shape[i])
        return places

    def bounds(self, cells: npt.ArrayLike) -> tuple[Doubles, Doubles]:
        """Return the ends (lo, hi] of cells as numbers, one row per cell; outer sides are infinite.

        Dates are days and timestamps seconds since 1970. The numbers are for models and for display only:
        ends beyond 2^53 are rounded and decimals of more than 18 digits truncated, so use `cell_of` to locate
        events. A grid over strings has no numeric bounds.

        Raises
        ------
        SchemaError
            When an attribute of the grid is not numeric.
        """
        places = self.places(cells)
        lo, hi = np.empty(places.shape), np.empty(places.shape)
        for i, (name, edge) in enumerate(zip(self.attributes, self.edges, strict=True)):
            inner = values_of(edge, _divisible(name, self.schema[name]))
            ends = np.concatenate([[-np.inf], inner, [np.inf]])
            lo[:, i], hi[:, i] = ends[places[:, i]], ends[places[:, i] + 1]
        return lo, hi

    def points(self, cells: npt.ArrayLike) -> EventBatch:
        """Return one event per cell, to be matched with `rounded` subscriptions."""
        columns = tuple(pa.array(column) for column in self.places(cells).T.copy())
        return EventBatch(self._places_schema(), columns, np.array(cells, np.int64, ndmin=1))

    def rounded(self, subscriptions: SubscriptionSet) -> SubscriptionSet:
        """Return subscriptions to the cells that the given subscriptions intersect.

        A box (lo, hi] intersects a cell (clo, chi] when max(lo, clo) < min(hi, chi) in every attribute of the
        grid; the intersected cells form a box of coordinates. Matching these subscriptions with `points`
        gives exactly the cells that each box intersects. A filter that boxes cannot express exactly gets the
        cells of its (wider) boxes, so that no cell is missed.

        Examples
        --------
        >>> schema = Schema.of({"price": "double"})
        >>> grid = CellGrid.equal(schema, {"price": (0, 20, 4)})
        >>> boxes = grid.rounded(SubscriptionSet.from_boxes(schema, ["ann"], [[5.0]], [[10.5]])).boxes
        >>> boxes.lo.tolist(), boxes.hi.tolist()  # the cells (5, 10] and (10, 15], numbers 1 and 2
        ([0], [2])
        """
        if subscriptions.schema != self.schema:
            raise SchemaError(
                f"subscriptions have schema {subscriptions.schema.to_dict()}: must be the grid's, "
                f"{self.schema.to_dict()}"
            )
        b = subscriptions.boxes
        column = np.full(len(self.schema), -1)
        column[[self.schema.index(name) for name in self.attributes]] = np.arange(len(self.attributes))
        axis = column[b.attribute]
        first, last = np.zeros(len(axis), np.int64), np.zeros(len(axis), np.int64)
        for i, edge in enumerate(self.edges):
            on = axis == i
            first[on] = np.searchsorted(edge, b.lo[on], side="right")
            last[on] = np.searchsorted(edge, b.hi[on], side="left")
        whole = (first == 0) & (last == np.array(self.shape)[axis] - 1)
        box = b.box
        full = np.bincount(box[b.lo >= b.hi], minlength=len(b)) == 0  # an empty box intersects no cell
        kept = (axis >= 0) & ~whole & full[box]
        order = np.lexsort((axis[kept], box[kept]))
        boxes = Boxes.build(
            b.n_owners,
            b.owner[full],
            np.bincount(box[kept], minlength=len(b))[full],
            axis[kept][order],
            first[kept][order] - 1,
            last[kept][order],
            np.ones(int(full.sum()), bool),
        )
        return SubscriptionSet(
            self._places_schema(),
            subscriptions.subscription_id,
            subscriptions.subscriber,
            subscriptions.subscribers,
            boxes,
            pa.nulls(len(subscriptions), pa.string()),
        )

    def _places_schema(self) -> Schema:
        return Schema.of(dict.fromkeys(self.attributes, "bigint"))


def _edges(name: str, edges: npt.ArrayLike, dtype: DataType) -> Ints:
    """Return the inner edges of an attribute as a read-only array; refuse edges that do not ascend."""
    if dtype.family in ("void", "opaque"):
        raise SchemaError(f"attribute {name!r} has unordered type {dtype}; leave it out of the grid")
    found = np.array(edges, np.int64)
    if found.ndim != 1 or (found[1:] <= found[:-1]).any():  # a difference could overflow
        raise ParameterError(f"edges of {name!r}: must ascend without repeats", parameter="edges")
    if len(found) and (found[0] <= keys.NO_LOW or found[-1] >= keys.NO_HIGH):
        raise ParameterError(
            f"edges of {name!r}: must lie inside the range of keys; leave out the outermost",
            parameter="edges",
        )
    found.flags.writeable = False
    return found


def _keys(events: EventBatch, name: str, dtype: DataType) -> Ints:
    """Return the keys of one attribute of the events, which must have the grid's type."""
    if events.schema[name] != dtype:
        raise SchemaError(
            f"attribute {name!r} of the events has type {events.schema[name]}: must be {dtype} as in the "
            "grid; read the events with the grid's schema"
        )
    return events.keys(events.schema.index(name))


def _divisible(name: str, dtype: DataType) -> DataType:
    """Return the type if it converts to numbers; refuse it otherwise."""
    if dtype.family not in NUMBERS:
        raise SchemaError(f"attribute {name!r} has type {dtype}, not numeric; leave it out of the grid")
    return dtype


def _count(name: str, n: int) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ParameterError(
            f"{name!r}: cells={n!r}: must be an integer of at least 1", parameter="cells", value=n
        )
    return n


def _number(name: str, value: Any) -> Fraction:
    """Return a value as an exact number: dates in days, timestamps in seconds since 1970."""
    if isinstance(value, datetime):
        since = (value if value.tzinfo else value.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
        return Fraction(since // timedelta(microseconds=1), 10**6)
    if isinstance(value, date):
        return Fraction((value - date(1970, 1, 1)).days)
    try:
        float(number := Fraction(value))  # fails when it is past all doubles
        return number
    except (TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
        raise ParameterError(f"{name!r}: cell end={value!r}: must be a finite number", value=value) from error


def _key(value: Fraction, dtype: DataType) -> int:
    """Return the key of the greatest value of the type that does not exceed the number."""
    if dtype.family == "float":
        return int(keys.float_keys(np.array([float(value)]))[0])
    return min(max(math.floor(value * _scale(dtype)), keys.FIRST), keys.NO_HIGH - 1)


def _scale(dtype: DataType) -> Fraction:
    """Return the number of keys per unit, for a type whose keys are evenly spaced."""
    if dtype.family == "decimal":
        return Fraction(10) ** (dtype.scale - max(0, dtype.precision - keys.DIGITS))
    return Fraction(10**6) if dtype.family == "timestamp" else Fraction(1)


def values_of(found: Ints, dtype: DataType) -> Doubles:
    """Convert keys of a numeric type to numbers; unbounded ends become infinite.

    Examples
    --------
    >>> from narrowcast.model.schema import Schema
    >>> [size] = Schema.of({"size": "decimal(9, 2)"}).types
    >>> values_of(np.array([keys.NO_LOW, 250, keys.NO_HIGH]), size).tolist()
    [-inf, 2.5, inf]
    """
    if dtype.family == "float":
        values: Doubles = np.where(found < 0, found ^ np.int64(2**63 - 1), found).view(np.float64)
    else:
        scale = _scale(dtype)
        # One rounding where both are whole numbers that doubles hold, as in all types but the widest.
        values = found.astype(np.float64) * float(scale.denominator) / float(scale.numerator)
    ends = np.select([found <= keys.NULL, found >= keys.last(dtype)], [-np.inf, np.inf], values)
    return np.asarray(ends, np.float64)
