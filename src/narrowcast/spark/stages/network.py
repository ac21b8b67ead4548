"""Tables of a network: its links, the nodes of subscribers, and the nodes of publishers."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import ParameterError, TableError
from narrowcast.model.labels import labels_in, positions
from narrowcast.model.schema import EVENT_ID
from narrowcast.model.topology import Locations, Topology
from narrowcast.tables.raw import collision
from narrowcast.tables.reader import read_columns

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from narrowcast.model.labels import Labels

#: The tables by name, with their required columns.
COLUMNS = {"topology": ("a", "b", "cost"), "locations": ("subscriber", "node"), "publishers": ("node",)}
#: The columns that hold labels.
_LABELS = ("a", "b", "subscriber", "node")


@dataclass(frozen=True, slots=True)
class NetworkTables:
    """The tables of a network; without a topology there is no network.

    Parameters
    ----------
    topology
        The links.
    locations
        The node of each subscriber. Default: the node with the subscriber's name.
    publishers
        Node numbers of publishers, each as often as events come from it. Default: all nodes alike.
    published
        `event_id`, ascending, and `node`, a number: the publishing node of individual events, if known.

    Examples
    --------
    >>> NetworkTables(Topology([0], [1], [2.0])).given
    {'topology': Topology(2 nodes, 1 links)}
    """

    topology: Topology | None = None
    locations: Locations | None = None
    publishers: NDArray[np.int32] | None = None
    published: pa.Table | None = None

    @classmethod
    def read(
        cls,
        topology: str | Path | None = None,
        locations: str | Path | None = None,
        publishers: str | Path | None = None,
    ) -> Self:
        """Read the tables of a network on the driver, and check them.

        Parameters
        ----------
        topology
            Path of the links: columns `a`, `b` and `cost`. None for no network.
        locations
            Path of the subscribers' nodes: columns `subscriber` and `node`.
        publishers
            Path of the publishers' nodes: columns `node` and optionally `event_id`.

        Raises
        ------
        ParameterError
            When a table is given without a topology, a table is empty, or a node cannot reach another.
        TableError
            When a table cannot be read or lacks a column.
        """
        if topology is None:
            for name, path in (("locations", locations), ("publishers", publishers)):
                if path is not None:
                    raise ParameterError(
                        f"{name}={str(path)!r}: needs a topology, too; give both or neither",
                        parameter=name,
                        value=str(path),
                    )
            return cls()
        with _naming(topology):
            links = Topology.from_table(_one_type(_read(topology, "topology"), ("a", "b")))
        if links.n_nodes == 0:
            raise ParameterError(
                parameter="topology",
                value=str(topology),
                limit="a table with at least one link",
                fix="add links, or leave the topology out",
            )
        with _naming(topology):
            links.check_reached(0, np.arange(links.n_nodes))
        places = nodes = published = None
        if locations is not None:
            with _naming(locations):
                places = Locations.from_table(*_alike(_read(locations, "locations"), links))
        if publishers is not None:
            with _naming(publishers):
                rows = _read(publishers, "publishers")
                if rows.num_rows == 0:
                    raise ParameterError(
                        parameter="publishers",
                        value=str(publishers),
                        limit="a table with at least one row",
                        fix="add rows, or leave the publishers out",
                    )
                nodes = _publishers(*_alike(rows, links))
                published = _published(rows, nodes)
        return cls(links, places, nodes, published)

    @property
    def given(self) -> dict[str, Any]:
        """The tables that are present, by name: keyword arguments for planners and costs."""
        named = {name: getattr(self, name) for name in COLUMNS}
        return {name: value for name, value in named.items() if value is not None}

    @property
    def fingerprints(self) -> dict[str, str]:
        """A fingerprint of each table by name, which does not depend on the order of rows."""
        return {name: _fingerprint(value) for name, value in self.given.items()}

    def located(self, subscribers: Labels) -> NDArray[np.bool_]:
        """Return a mask of the subscribers that are on a node; without a network, all of them.

        Examples
        --------
        >>> network = NetworkTables(Topology([0], [1], [2.0], nodes=["ann", "bob"]))
        >>> network.located(pa.array(["bob", "eve"])).tolist()
        [True, False]
        """
        if self.topology is None:
            return np.ones(len(subscribers), np.bool_)
        known = self.topology.nodes if self.locations is None else self.locations.subscribers
        return np.asarray(positions("subscriber", subscribers, known) >= 0)

    def fitting(self, *, text: bool) -> Self:
        """Return the network with labels of the given type, so that they equal those of other tables.

        This is needed because CSV files have no types: digits are read as numbers, except text such as 007.

        Parameters
        ----------
        text
            Whether subscribers are identified by text in the other tables; otherwise by numbers.
        """
        if self.topology is None:
            return self
        if not text:
            return self if self.locations is None else replace(self, locations=_with_numbers(self.locations))
        if self.locations is not None:
            names = _as_text(self.locations.subscribers)
            return replace(self, locations=Locations(names, self.locations.node))
        links = self.topology
        return replace(self, topology=Topology(links.a, links.b, links.cost, _as_text(links.nodes)))


#: No network: the cost of an event is its number of messages.
NO_NETWORK = NetworkTables()


@contextmanager
def _naming(path: str | Path) -> Iterator[None]:
    """Inside a `with` statement, add the path of a file to the messages of errors."""
    try:
        yield
    except (ParameterError, TableError) as error:
        message = str(error)
        raise type(error)(
            message if str(path) in message else f"{path}: {message}",
            parameter=error.parameter,
            value=error.value,
            limit=error.limit,
        ) from error


def _read(path: str | Path, name: str) -> pa.Table:
    """Read one table of a network by the rules of `ingest`: names ignore case, and 007 is text."""
    table = read_columns(path, _LABELS)
    known = (*COLUMNS[name], *([EVENT_ID] if name == "publishers" else []))
    present = [each for each in table.column_names if each.lower() in known]
    if both := collision(present):
        raise TableError(
            f"columns {both[0]!r} and {both[1]!r} have the same name, because names ignore case; rename one",
            parameter=both[1].lower(),
            value=both[1],
        )
    original = {each.lower(): each for each in present}
    missing = [each for each in COLUMNS[name] if each not in original]
    if missing:
        columns = ", ".join(map(repr, table.column_names)) or "none"
        raise TableError(
            f"{path}: column {', '.join(map(repr, missing))} is missing; its columns: {columns}",
            parameter=missing[0],
            value=None,
        )
    return pa.table({each: table[own] for each, own in original.items()})


def _one_type(table: pa.Table, names: tuple[str, ...]) -> pa.Table:
    """Convert the given columns to text if at least one of them is text."""
    if not any(_is_text(table[name].type) for name in names):
        return table
    for name in names:
        table = table.set_column(table.column_names.index(name), name, _as_text(table[name]))
    return table


def _alike(table: pa.Table, topology: Topology) -> tuple[pa.Table, Topology]:
    """Convert node labels of a table and of a topology to text if they are text in one of the two."""
    if _is_text(topology.nodes.type) == _is_text(table["node"].type) or not table.num_rows:
        return table, topology
    converted = Topology(topology.a, topology.b, topology.cost, _as_text(topology.nodes))
    place = table.column_names.index("node")
    return table.set_column(place, "node", _as_text(table["node"])), converted


def _publishers(table: pa.Table, topology: Topology) -> NDArray[np.int32]:
    """Return the number of the publishing node for each row of the table `publishers`."""
    labels = labels_in(table, "node", "publishers")
    node = positions("node", labels, topology.nodes)
    unknown = np.flatnonzero(node < 0)
    if len(unknown):
        label = labels[int(unknown[0])].as_py()
        raise TableError(
            f"node {label!r} of publishers is in no link of the topology; add a link, or correct publishers",
            parameter="publishers",
            value=label,
        )
    return node.astype(np.int32)


def _published(table: pa.Table, node: NDArray[np.int32]) -> pa.Table | None:
    """Return the publishing node of each event, ordered by event id; None if the table has no event ids."""
    if EVENT_ID not in table.column_names:
        return None
    ids = table[EVENT_ID].combine_chunks()
    if ids.null_count:
        row = pc.index(ids.is_null(), True).as_py()
        raise TableError(
            f"{EVENT_ID}=None in {ids.null_count} rows, first in row {row}: must be an integer",
            parameter=EVENT_ID,
            value=None,
            limit="an integer",
        )
    try:
        numbers = np.asarray(ids.cast(pa.int64()))
    except pa.ArrowException as error:
        raise TableError(
            f"column {EVENT_ID!r} has type {ids.type}: must have integers of up to 64 bits",
            parameter=EVENT_ID,
            value=str(ids.type),
            limit="integers of up to 64 bits",
        ) from error
    order = np.argsort(numbers, kind="stable")
    numbers = numbers[order]
    repeated = np.flatnonzero(numbers[1:] == numbers[:-1])
    if len(repeated):
        raise TableError(
            f"{EVENT_ID}={numbers[repeated[0]]} has several rows in publishers: an event has one publisher; "
            "keep one row",
            parameter=EVENT_ID,
            value=int(numbers[repeated[0]]),
        )
    return pa.table({EVENT_ID: numbers, "node": node[order]})


def _with_numbers(locations: Locations) -> Locations:
    """Convert the subscribers of locations to numbers, and drop those that are not numbers."""
    if not _is_text(locations.subscribers.type):
        return locations
    kept = np.flatnonzero(pc.match_substring_regex(locations.subscribers, r"^(0|-?[1-9]\d{0,17})$"))
    numbers = locations.subscribers.take(pa.array(kept)).cast(pa.int64())
    return Locations(numbers, locations.node[kept])


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _as_text(labels: pa.Array) -> pa.Array:
    return labels.cast(pa.string()) if pa.types.is_integer(labels.type) else labels


def _fingerprint(value: Topology | Locations | NDArray[np.int32]) -> str:
    """Return a hash of a table's values, independent of the order of its rows."""
    if isinstance(value, Topology):
        parts = [value.nodes.to_pylist(), value.a.tolist(), value.b.tolist(), value.cost.tolist()]
    elif isinstance(value, Locations):
        parts = [value.subscribers.to_pylist(), value.node.tolist()]
    else:
        parts = [each.tolist() for each in np.unique(value, return_counts=True)]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
