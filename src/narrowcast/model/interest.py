"""Who wants what and how often it happens, and the labelled sparse relations that plans are made of too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import csr_array

from narrowcast.errors import ParameterError, TableError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

#: A sparse boolean matrix as `relation` returns it.
Relation: TypeAlias = "csr_array[np.bool_, tuple[int, int]]"
#: Integers or strings that name the rows or columns of a relation.
Labels: TypeAlias = "pa.Array"
#: Row or column numbers of a relation.
Positions: TypeAlias = "NDArray[np.int64]"


def relation(matrix: Any) -> Relation:
    """Return a matrix as canonical sparse booleans: sorted, none twice, no stored False, read-only."""
    if isinstance(matrix, csr_array) and matrix.dtype == np.bool_ and matrix.has_canonical_format:
        parts = (matrix.data, matrix.indices, matrix.indptr)
        if not any(part.flags.writeable for part in parts) and matrix.data.all():
            return matrix
    found = csr_array(matrix, dtype=np.bool_, copy=True)
    if found.ndim != 2:
        raise ParameterError(f"a relation has rows and columns; this has {found.ndim} dimension")
    found.sum_duplicates()
    found.eliminate_zeros()
    narrow = np.int32 if max(found.nnz, *found.shape) < 2**31 else np.int64
    found.indices, found.indptr = found.indices.astype(narrow), found.indptr.astype(narrow)
    for part in (found.data, found.indices, found.indptr):
        part.flags.writeable = False
    return found


def relation_of(rows: ArrayLike, columns: ArrayLike, shape: tuple[int, int]) -> Relation:
    """Return the relation that holds for the given pairs; repeated pairs count once."""
    rows = np.asarray(rows)
    return relation(csr_array((np.ones(len(rows), np.bool_), (rows, np.asarray(columns))), shape=shape))


def rows_of(matrix: Relation) -> Positions:
    """Return the row of each stored pair, parallel to `matrix.indices`."""
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


def expand(matrix: Relation, rows: Positions) -> tuple[Positions, Positions]:
    """Return every column of the given rows, row after row, and which of `rows` each belongs to."""
    starts = matrix.indptr[rows].astype(np.int64)
    counts = matrix.indptr[rows + 1] - starts
    owner = np.repeat(np.arange(len(rows)), counts)
    place = np.arange(len(owner)) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
    return owner, matrix.indices[place].astype(np.int64)


def holds(matrix: Relation, rows: Positions, columns: Positions) -> NDArray[np.bool_]:
    """Return whether each (row, column) is in the relation: a binary search in all rows at once."""
    low = matrix.indptr[rows].astype(np.int64)
    high = end = matrix.indptr[rows + 1].astype(np.int64)
    for _ in range(int((end - low).max(initial=0)).bit_length()):
        middle = (low + high) // 2
        right = low < high
        right[right] = matrix.indices[middle[right]] < columns[right]
        low, high = np.where(right, middle + 1, low), np.where(right, high, middle)
    found = low < end
    found[found] = matrix.indices[low[found]] == columns[found]
    return found


def labels_of(values: Any, what: str) -> Labels:
    """Return labels as one Arrow array of integers or strings, or say what they are instead."""
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    try:
        found: Labels = values if isinstance(values, pa.Array) else pa.array(values)
    except pa.ArrowException as error:
        raise TableError(f"{what} mixes types; use integers or strings: {error}") from error
    if isinstance(found, pa.DictionaryArray):
        found = found.dictionary_decode()
    if pa.types.is_null(found.type) and len(found) == 0:
        found = found.cast(pa.int64())
    if pa.types.is_string_view(found.type):
        found = found.cast(pa.large_string())
    if found.null_count:
        row = pc.index(found.is_null(), True).as_py()
        raise TableError(f"{what} has {found.null_count} nulls, the first in row {row}; remove those rows")
    if not (pa.types.is_integer(found.type) or _is_text(found.type)):
        raise TableError(f"{what} is of type {found.type}; use integers or strings")
    return found


def names_of(values: Any, what: str, count: int) -> Labels:
    """Return `count` labels that all differ; 0, 1, 2, ... where none are given."""
    if values is None:
        return pa.array(np.arange(count))
    found = labels_of(values, what)
    if len(found) != count:
        raise ParameterError(f"{len(found)} labels for {count} {what}s; give one each")
    coded = found.dictionary_encode()
    if len(coded.dictionary) != count:
        twice = coded.dictionary[int(np.bincount(coded.indices.to_numpy()).argmax())].as_py()
        raise ParameterError(f"{what} {twice!r} is named twice; labels must differ")
    return found


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def encode(what: str, *columns: Labels) -> tuple[Labels, list[Positions]]:
    """Return the sorted distinct labels of all columns together, and each column as positions in them.

    Sorting makes the numbering independent of the order of rows. Columns of one type keep it; integers
    or strings of several widths take the first one's type where all values fit it, else the widest.
    """
    kinds = [column.type for column in columns if len(column)] or [columns[0].type]
    if len({_is_text(kind) for kind in kinds}) > 1:
        raise TableError(
            f"{what} is {' here and '.join(sorted({str(kind) for kind in kinds}))} there; "
            "labels are compared with their type, so read both as the same"
        )
    parts = [column if len(column) else pa.array([], kinds[0]) for column in columns]
    widest = pa.large_string() if _is_text(kinds[0]) else pa.int64()
    try:
        parts = [part.cast(kinds[0]) for part in parts]
    except pa.ArrowInvalid:
        try:
            parts = [part.cast(widest) for part in parts]
        except pa.ArrowInvalid as error:
            raise TableError(f"{what} mixes integer types that fit no common one: {error}") from error
    encoded = pa.concat_arrays(parts).dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    codes = rank[encoded.indices.to_numpy()]
    return encoded.dictionary.take(order), np.split(codes, np.cumsum([len(part) for part in parts])[:-1])


def positions(what: str, wanted: Labels, known: Labels) -> Positions:
    """Return where each wanted label stands among the known ones, -1 where it does not."""
    if wanted.equals(known):
        return np.arange(len(wanted))
    labels, (wanted_code, known_code) = encode(what, wanted, known)
    place = np.full(len(labels), -1)
    place[known_code] = np.arange(len(known))
    return place[wanted_code]


def column_of(table: pa.Table, name: str, where: str) -> pa.ChunkedArray:
    """Return a column, or say which columns there are instead."""
    if name not in table.column_names:
        found = ", ".join(map(repr, table.column_names)) or "none"
        raise TableError(f"{where} has no column {name!r}; its columns: {found}")
    return table.column(name)


def labels_in(table: pa.Table, name: str, where: str) -> Labels:
    """Return a table's column of labels, checked."""
    return labels_of(column_of(table, name, where), f"column {name!r} of {where}")


@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Interest:
    """Who wants which flow, and how often each flow has an event.

    Parameters
    ----------
    wants
        Subscribers x flows, anything scipy reads as a matrix; kept as canonical sparse booleans.
    rate
        Events per second of each flow, finite and at least 0; 1 where left out.
    subscribers, flows
        Labels of rows and columns, integers or strings; 0, 1, 2, ... where left out.

    Examples
    --------
    >>> interests = pa.table({"subscriber": ["ann", "bob", "bob"], "flow": [7, 7, 9]})
    >>> interest = Interest.from_tables(interests, pa.table({"flow": [9], "rate": [0.5]}))
    >>> interest
    Interest(2 subscribers, 2 flows, 3 wants)
    >>> interest.flows.to_pylist(), interest.rate.tolist(), interest.audience().tolist()
    ([7, 9], [1.0, 0.5], [2, 1])
    """

    wants: Relation
    rate: NDArray[np.float64]
    subscribers: Labels
    flows: Labels

    def __init__(
        self, wants: Any, rate: ArrayLike | None = None, subscribers: Any = None, flows: Any = None
    ) -> None:
        wants = relation(wants)
        n_subscribers, n_flows = wants.shape
        flows = names_of(flows, "flow", n_flows)
        rate = np.ones(n_flows) if rate is None else np.array(rate, np.float64)
        if rate.shape != (n_flows,):
            raise ParameterError(f"rate has shape {rate.shape} for {n_flows} flows; give one rate per flow")
        if wrong := _wrong_rate(rate, flows):
            raise ParameterError(wrong)
        rate.flags.writeable = False
        object.__setattr__(self, "wants", wants)
        object.__setattr__(self, "rate", rate)
        object.__setattr__(self, "subscribers", names_of(subscribers, "subscriber", n_subscribers))
        object.__setattr__(self, "flows", flows)

    @classmethod
    def from_tables(cls, interests: pa.Table, rates: pa.Table | None = None) -> Self:
        """Build from the tables `interests` (subscriber, flow) and `rates` (flow, rate).

        Repeated interests count once. A flow without a rate has rate 1; a flow that has a rate and that
        nobody wants is kept, with an audience of 0.
        """
        rates = pa.table({"flow": [], "rate": []}) if rates is None else rates
        subscribers, [row] = encode("subscriber", labels_in(interests, "subscriber", "interests"))
        rated = labels_in(rates, "flow", "rates")
        flows, [column, place] = encode("flow", labels_in(interests, "flow", "interests"), rated)
        values = column_of(rates, "rate", "rates")
        if values.null_count:
            raise TableError(f"column 'rate' of rates has {values.null_count} nulls; remove those rows")
        try:
            given = values.cast(pa.float64()).to_numpy()
        except pa.ArrowException as error:
            raise TableError(f"column 'rate' of rates is of type {values.type}; use numbers") from error
        if wrong := _wrong_rate(given, rated):
            raise TableError(wrong)
        repeated = np.flatnonzero(np.bincount(place, minlength=len(flows)) > 1)
        if len(repeated):
            raise TableError(
                f"flow {flows[repeated[0]].as_py()!r} has more than one row in rates; "
                "keep one rate per flow (of rates by time, those in force)"
            )
        rate = np.ones(len(flows))
        rate[place] = given
        wants = relation_of(row, column, (len(subscribers), len(flows)))
        return cls(wants, rate, subscribers, flows)

    def to_tables(self) -> tuple[pa.Table, pa.Table]:
        """Return the tables `interests` and `rates`; only a subscriber who wants nothing has no row."""
        interests = {
            "subscriber": self.subscribers.take(rows_of(self.wants)),
            "flow": self.flows.take(self.wants.indices),
        }
        return pa.table(interests), pa.table({"flow": self.flows, "rate": self.rate})

    @property
    def n_subscribers(self) -> int:
        """How many subscribers there are."""
        return int(self.wants.shape[0])

    @property
    def n_flows(self) -> int:
        """How many flows there are, those that nobody wants included."""
        return int(self.wants.shape[1])

    @property
    def n_wants(self) -> int:
        """How many (subscriber, flow) pairs are wanted."""
        return int(self.wants.nnz)

    def audience(self) -> Positions:
        """Return the number of subscribers who want each flow."""
        return np.bincount(self.wants.indices, minlength=self.n_flows)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Interest):
            return NotImplemented
        return (
            same(self.wants, other.wants)
            and np.array_equal(self.rate, other.rate)
            and self.subscribers.equals(other.subscribers)
            and self.flows.equals(other.flows)
        )

    __hash__ = None  # type: ignore[assignment]  # arrays have no hash; Python would set this silently

    def __repr__(self) -> str:
        return f"Interest({self.n_subscribers} subscribers, {self.n_flows} flows, {self.n_wants} wants)"


def same(one: Relation, other: Relation) -> bool:
    """Return whether two relations hold the same pairs over the same rows and columns."""
    return (
        one.shape == other.shape
        and np.array_equal(one.indptr, other.indptr)
        and np.array_equal(one.indices, other.indices)
    )


def _wrong_rate(rate: NDArray[np.float64], flows: Labels) -> str:
    """Return what is wrong with the first unusable rate, or nothing."""
    wrong = np.flatnonzero(~((rate >= 0) & np.isfinite(rate)))
    if len(wrong) == 0:
        return ""
    flow, value = flows[wrong[0]].as_py(), rate[wrong[0]]
    return f"flow {flow!r} has rate {value}; a rate is a finite number of events per second, at least 0"
