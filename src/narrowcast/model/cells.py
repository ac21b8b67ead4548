"""A grid over the event space: its cells are flows that every event falls in one of."""

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

#: Cells are numbered in 63 bits.
MOST_CELLS = 2**63 - 1
#: Types whose values are numbers, or can be told as numbers: dates in days, timestamps in seconds from 1970.
NUMBERS = ("boolean", "integer", "float", "decimal", "date", "timestamp")


@dataclass(frozen=True, slots=True, eq=False)
class CellGrid:
    """A grid of half-open cells (lo, hi] over some attributes of a schema (riabov2003, section 4).

    Along each attribute the edges part all keys: the first cell starts below everything and holds null too,
    the last ends above everything. Cells are numbered in row-major order, the last attribute changing first.
    An attribute outside the grid does not matter to a cell.

    Parameters
    ----------
    schema
        The attributes of events and subscriptions.
    attributes
        The names of those that the grid divides.
    edges
        For each of them its inner edges as keys (`narrowcast.model.keys`), ascending: one fewer than cells.

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
                f"{len(self.attributes)} attributes with {len(self.edges)} lists of edges; "
                "give at least one attribute, and one list for each"
            )
        names = tuple(self.schema.names[self.schema.index(name)] for name in self.attributes)
        if len(set(names)) < len(names):
            raise ParameterError(f"the attributes of a grid are {', '.join(names)}; name each once")
        object.__setattr__(self, "attributes", names)
        edges = (_edges(name, e, self.schema[name]) for name, e in zip(names, self.edges, strict=True))
        object.__setattr__(self, "edges", tuple(edges))
        if self.n_cells > MOST_CELLS:
            raise ParameterError(
                f"a grid of {' x '.join(map(str, self.shape))} cells is over the limit of {MOST_CELLS}; "
                "ask for fewer cells along an attribute, or leave one out"
            )

    @classmethod
    def of_keys(cls, schema: Schema, edges: Mapping[str, Sequence[int]]) -> CellGrid:
        """Return the grid with these inner edges by attribute, as `keys` gives them and plans keep them."""
        return cls(schema, tuple(edges), tuple(np.array(each, np.int64) for each in edges.values()))

    def keys(self) -> dict[str, list[int]]:
        """Return the inner edges by attribute, as plain numbers."""
        return {name: edge.tolist() for name, edge in zip(self.attributes, self.edges, strict=True)}

    @classmethod
    def equal(cls, schema: Schema, sides: Mapping[str, tuple[Any, Any, int]]) -> CellGrid:
        """Return a grid of equally wide cells: for each attribute n of them on (lo, hi], as values.

        The outermost cells are open, so that the grid holds every event. Where what lies outside is to have
        cells of its own, ask for one more on either side: 5 cells on (-1, 4] have (0, 3] in three.
        Dates and timestamps are given as such or as numbers: days, and seconds, from 1970.
        """
        edges = []
        for name, (lo, hi, n) in sides.items():
            dtype = _divisible(name, schema[name])
            low, high, n = _number(name, lo), _number(name, hi), _count(name, n)
            if not low < high:
                raise ParameterError(f"the cells of {name!r} are on ({lo}, {hi}]; give two ends that ascend")
            cuts = [low + (high - low) * i / n for i in range(1, n)]
            found = np.array([_key(cut, dtype) for cut in cuts], np.int64)
            if (found[1:] <= found[:-1]).any():
                raise ParameterError(
                    f"({lo}, {hi}] of {name!r} has no {n} different cells of type {dtype}; ask for fewer"
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
        """Return a grid whose cells have about equal shares of a sample, attribute by attribute.

        Parameters
        ----------
        schema
            The attributes of events and subscriptions.
        sample
            Events to take the quantiles from; null, NaN and infinite values are left out.
        n
            How many cells each attribute gets, or a number for each. One with few different values in the
            sample gets fewer.
        attributes
            The attributes to divide, where `n` does not name them: all that are numbers, dates or timestamps
            unless given.

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
        """How many cells there are along each attribute."""
        return tuple(len(edge) + 1 for edge in self.edges)

    @property
    def n_cells(self) -> int:
        """How many cells there are."""
        return math.prod(self.shape)

    def cell_of(self, events: EventBatch) -> Ints:
        """Return the number of the cell that each event falls in."""
        cell = np.zeros(len(events), np.int64)
        for name, edge in zip(self.attributes, self.edges, strict=True):
            cell *= len(edge) + 1
            cell += np.searchsorted(edge, _keys(events, name, self.schema[name]), side="left")
        return cell

    def places(self, cells: npt.ArrayLike) -> Ints:
        """Return where cells stand: a row for each, with its place along each attribute."""
        rest = np.array(cells, np.int64, ndmin=1)
        wrong = (rest < 0) | (rest >= self.n_cells)
        if wrong.any():
            raise ParameterError(f"cell {rest[wrong][0]} lies outside 0 to {self.n_cells - 1}")
        places = np.empty((len(rest), len(self.shape)), np.int64)
        for i in reversed(range(len(self.shape))):
            rest, places[:, i] = np.divmod(rest, self.shape[i])
        return places

    def bounds(self, cells: npt.ArrayLike) -> tuple[Doubles, Doubles]:
        """Return the ends (lo, hi] of cells as numbers, a row for each; the outer sides are infinite.

        Dates are days and timestamps seconds from 1970. These are for models and for people: which cell an
        event is in is for `cell_of` to say, since an end past 2^53 is rounded, and one of a decimal of more
        than 18 digits is cut. Strings are not numbers: a grid that divides one has no such bounds.

        Raises
        ------
        SchemaError
            When an attribute of the grid has no numbers.
        """
        places = self.places(cells)
        lo, hi = np.empty(places.shape), np.empty(places.shape)
        for i, (name, edge) in enumerate(zip(self.attributes, self.edges, strict=True)):
            inner = values_of(edge, _divisible(name, self.schema[name]))
            ends = np.concatenate([[-np.inf], inner, [np.inf]])
            lo[:, i], hi[:, i] = ends[places[:, i]], ends[places[:, i] + 1]
        return lo, hi

    def points(self, cells: npt.ArrayLike) -> EventBatch:
        """Return cells as events of their own: what `rounded` subscriptions are matched with."""
        columns = tuple(pa.array(column) for column in self.places(cells).T.copy())
        return EventBatch(self._places_schema(), columns, np.array(cells, np.int64, ndmin=1))

    def rounded(self, subscriptions: SubscriptionSet) -> SubscriptionSet:
        """Return subscriptions to the cells that their boxes meet: boxes over places along each attribute.

        A box (lo, hi] meets a cell (clo, chi] when max(lo, clo) < min(hi, chi) in every attribute of the
        grid, and the cells of a grid that do so lie side by side: a box meets a box of places. Matching
        these subscriptions with `points` of cells says, exactly, whose boxes meet which cell. A filter that
        its boxes cannot express meets the cells that its boxes do, never fewer than it should.

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
                f"subscriptions over {subscriptions.schema.to_dict()} do not go with a grid over "
                f"{self.schema.to_dict()}; make both with one schema"
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
        full = np.bincount(box[b.lo >= b.hi], minlength=len(b)) == 0  # an empty box meets nothing
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
    """Return the edges of an attribute, read-only, or say what is wrong with them."""
    if dtype.family in ("void", "opaque"):
        raise SchemaError(f"attribute {name!r} is {dtype}, which has no order; leave it out of the grid")
    found = np.array(edges, np.int64)
    if found.ndim != 1 or (found[1:] <= found[:-1]).any():  # a difference could overflow
        raise ParameterError(f"the edges of {name!r} must ascend; sort them and keep one of each")
    if len(found) and (found[0] <= keys.NO_LOW or found[-1] >= keys.NO_HIGH):
        raise ParameterError(f"the edges of {name!r} reach the end of all keys; leave the outermost out")
    found.flags.writeable = False
    return found


def _keys(events: EventBatch, name: str, dtype: DataType) -> Ints:
    """Return the keys of an attribute of events, which must be of the grid's type."""
    if events.schema[name] != dtype:
        raise SchemaError(
            f"attribute {name!r} of the events is {events.schema[name]}, and {dtype} in the grid; "
            "read the events with the grid's schema"
        )
    return events.keys(events.schema.index(name))


def _divisible(name: str, dtype: DataType) -> DataType:
    """Return a type that cells along it can be told as numbers of."""
    if dtype.family not in NUMBERS:
        raise SchemaError(
            f"attribute {name!r} is {dtype}, which has no numbers to bound cells with; "
            "leave it out of the grid"
        )
    return dtype


def _count(name: str, n: int) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ParameterError(f"{name!r} is to have {n!r} cells; give a whole number of at least 1")
    return n


def _number(name: str, value: Any) -> Fraction:
    """Return a value as an exact number: dates in days, timestamps in seconds from 1970."""
    if isinstance(value, datetime):
        since = (value if value.tzinfo else value.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
        return Fraction(since // timedelta(microseconds=1), 10**6)
    if isinstance(value, date):
        return Fraction((value - date(1970, 1, 1)).days)
    try:
        float(number := Fraction(value))  # fails when it is past all doubles
        return number
    except (TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
        raise ParameterError(f"an end of the cells of {name!r} is {value!r}; give a finite number") from error


def _key(value: Fraction, dtype: DataType) -> int:
    """Return the key of the greatest value of a type that is at most a number."""
    if dtype.family == "float":
        return int(keys.float_keys(np.array([float(value)]))[0])
    return min(max(math.floor(value * _scale(dtype)), keys.FIRST), keys.NO_HIGH - 1)


def _scale(dtype: DataType) -> Fraction:
    """Return how many keys there are to one, in a type whose keys are evenly spaced."""
    if dtype.family == "decimal":
        return Fraction(10) ** (dtype.scale - max(0, dtype.precision - keys.DIGITS))
    return Fraction(10**6) if dtype.family == "timestamp" else Fraction(1)


def values_of(found: Ints, dtype: DataType) -> Doubles:
    """Return keys of a type of numbers as the numbers that they stand for; no bound is infinite.

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
