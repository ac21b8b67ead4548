"""The network that messages travel on, as tables: its links, who is where, and where events come from."""

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

#: The tables by name, with the columns that each must have.
COLUMNS = {"topology": ("a", "b", "cost"), "locations": ("subscriber", "node"), "publishers": ("node",)}
#: The columns among them that hold labels.
_LABELS = ("a", "b", "subscriber", "node")


@dataclass(frozen=True, slots=True)
class NetworkTables:
    """A network, or none.

    Parameters
    ----------
    topology
        The links.
    locations
        The node of each subscriber; where left out, it is on the node of the same name.
    publishers
        The number of the node that each of some events came from; where left out, any node is as likely.
    published
        `event_id`, ascending, and `node`, a number: where each of some events came from, if that is told.

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
        """Read the tables, on the driver; those left out are not there. Each node must reach all others."""
        if topology is None:
            for name, path in (("locations", locations), ("publishers", publishers)):
                if path is not None:
                    raise ParameterError(f"--{name} is given without --topology; give both, or neither")
            return cls()
        with _about(topology):
            links = Topology.from_table(_one_type(_read(topology, "topology"), ("a", "b")))
        if links.n_nodes == 0:
            raise ParameterError(f"{topology} has no links; give at least one, or leave the topology out")
        with _about(topology):
            links.check_reached(0, np.arange(links.n_nodes))
        places = nodes = published = None
        if locations is not None:
            with _about(locations):
                places = Locations.from_table(*_alike(_read(locations, "locations"), links))
        if publishers is not None:
            with _about(publishers):
                rows = _read(publishers, "publishers")
                if rows.num_rows == 0:
                    raise ParameterError(
                        f"{publishers} has no rows; give at least one, or leave the publishers out"
                    )
                nodes = _publishers(*_alike(rows, links))
                published = _published(rows, nodes)
        return cls(links, places, nodes, published)

    @property
    def given(self) -> dict[str, Any]:
        """What there is, by name, for planners and costs."""
        named = {name: getattr(self, name) for name in COLUMNS}
        return {name: value for name, value in named.items() if value is not None}

    @property
    def fingerprints(self) -> dict[str, str]:
        """What tells these tables from others, by name; the order of rows does not."""
        return {name: _fingerprint(value) for name, value in self.given.items()}

    def located(self, subscribers: Labels) -> NDArray[np.bool_]:
        """Return which subscribers are on a node; all where there is no network.

        Examples
        --------
        >>> here = NetworkTables(Topology([0], [1], [2.0], nodes=["ann", "bob"]))
        >>> here.located(pa.array(["bob", "eve"])).tolist()
        [True, False]
        """
        if self.topology is None:
            return np.ones(len(subscribers), np.bool_)
        known = self.topology.nodes if self.locations is None else self.locations.subscribers
        return np.asarray(positions("subscriber", subscribers, known) >= 0)

    def fitting(self, *, text: bool) -> Self:
        """Return it with subscribers named as others name them: CSV reads digits as numbers, but for 007."""
        if self.topology is None:
            return self
        if not text:
            return self if self.locations is None else replace(self, locations=_numbered(self.locations))
        if self.locations is not None:
            names = _as_text(self.locations.subscribers)
            return replace(self, locations=Locations(names, self.locations.node))
        links = self.topology
        return replace(self, topology=Topology(links.a, links.b, links.cost, _as_text(links.nodes)))


#: No network: what is sent costs its messages.
NOWHERE = NetworkTables()


@contextmanager
def _about(path: str | Path) -> Iterator[None]:
    """Say which file an error is about that a block raises."""
    try:
        yield
    except (ParameterError, TableError) as error:
        said = str(error)
        raise type(error)(said if str(path) in said else f"{path}: {said}") from error


def _read(path: str | Path, name: str) -> pa.Table:
    """Read one of the tables, as those that Spark reads are: names ignore case, and 007 is no number."""
    table = read_columns(path, _LABELS)
    known = (*COLUMNS[name], *([EVENT_ID] if name == "publishers" else []))
    spelled = [each for each in table.column_names if each.lower() in known]
    if both := collision(spelled):
        raise TableError(f"columns {both[0]!r} and {both[1]!r} collide: names ignore case; rename one")
    was = {each.lower(): each for each in spelled}
    missing = [each for each in COLUMNS[name] if each not in was]
    if missing:
        there = ", ".join(map(repr, table.column_names)) or "no columns"
        raise TableError(f"{path} has no column {', '.join(map(repr, missing))}; it has {there}")
    return pa.table({each: table[own] for each, own in was.items()})


def _one_type(table: pa.Table, names: tuple[str, ...]) -> pa.Table:
    """Return a table with these columns as text, if one of them is."""
    if not any(_is_text(table[name].type) for name in names):
        return table
    for name in names:
        table = table.set_column(table.column_names.index(name), name, _as_text(table[name]))
    return table


def _alike(table: pa.Table, topology: Topology) -> tuple[pa.Table, Topology]:
    """Return both with nodes named by text, if one of them has them so; the numbers of nodes stay."""
    if _is_text(topology.nodes.type) == _is_text(table["node"].type) or not table.num_rows:
        return table, topology
    named = Topology(topology.a, topology.b, topology.cost, _as_text(topology.nodes))
    place = table.column_names.index("node")
    return table.set_column(place, "node", _as_text(table["node"])), named


def _publishers(table: pa.Table, topology: Topology) -> NDArray[np.int32]:
    """Return the nodes that a table says events come from, each as often as it is named."""
    where = labels_in(table, "node", "publishers")
    node = positions("node", where, topology.nodes)
    wrong = np.flatnonzero(node < 0)
    if len(wrong):
        raise TableError(
            f"an event is published on node {where[int(wrong[0])].as_py()!r}, which no link of the topology "
            "names; add a link to it, or mend publishers"
        )
    return node.astype(np.int32)


def _published(table: pa.Table, node: NDArray[np.int32]) -> pa.Table | None:
    """Return the node of each event, by its id; None where the table has no ids."""
    if EVENT_ID not in table.column_names:
        return None
    ids = table[EVENT_ID].combine_chunks()
    if ids.null_count:
        row = pc.index(ids.is_null(), True).as_py()
        raise TableError(
            f"{EVENT_ID} is null in {ids.null_count} rows, the first of them row {row}; mend them"
        )
    try:
        numbers = np.asarray(ids.cast(pa.int64()))
    except pa.ArrowException as error:
        raise TableError(
            f"column {EVENT_ID!r} is of type {ids.type}; use whole numbers of 64 bits"
        ) from error
    order = np.argsort(numbers, kind="stable")
    numbers = numbers[order]
    twice = np.flatnonzero(numbers[1:] == numbers[:-1])
    if len(twice):
        raise TableError(
            f"{EVENT_ID} {numbers[twice[0]]} has several rows; an event has one publisher: keep one"
        )
    return pa.table({EVENT_ID: numbers, "node": node[order]})


def _numbered(locations: Locations) -> Locations:
    """Return locations by number, without those whose names are none."""
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
    """Return a hash of a table's values."""
    if isinstance(value, Topology):
        parts = [value.nodes.to_pylist(), value.a.tolist(), value.b.tolist(), value.cost.tolist()]
    elif isinstance(value, Locations):
        parts = [value.subscribers.to_pylist(), value.node.tolist()]
    else:
        parts = [each.tolist() for each in np.unique(value, return_counts=True)]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
