"""The network that messages travel on, as tables: its links, who is where, and where events come from."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from narrowcast.errors import ParameterError, TableError
from narrowcast.files import read_table
from narrowcast.model.labels import labels_in, positions
from narrowcast.model.schema import EVENT_ID
from narrowcast.model.topology import Locations, Topology

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

#: The tables by name, with the columns that each must have.
COLUMNS = {"topology": ("a", "b", "cost"), "locations": ("subscriber", "node"), "publishers": ("node",)}


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
        Where the table of publishers is, if it has a column `event_id` that tells whose each event is.

    Examples
    --------
    >>> NetworkTables(Topology([0], [1], [2.0])).given
    {'topology': Topology(2 nodes, 1 links)}
    """

    topology: Topology | None = None
    locations: Locations | None = None
    publishers: NDArray[np.int32] | None = None
    published: str | None = None

    @classmethod
    def read(
        cls,
        topology: str | Path | None = None,
        locations: str | Path | None = None,
        publishers: str | Path | None = None,
    ) -> Self:
        """Read the tables, on the driver; those left out are not there."""
        if topology is None:
            for name, path in (("locations", locations), ("publishers", publishers)):
                if path is not None:
                    raise ParameterError(f"--{name} is given without --topology; give both, or neither")
            return cls()
        with _about(topology):
            links = Topology.from_table(read_table(topology, COLUMNS["topology"]))
        if links.n_nodes == 0:
            raise ParameterError(f"{topology} has no links; give at least one, or leave the topology out")
        places = nodes = published = None
        if locations is not None:
            with _about(locations):
                places = Locations.from_table(read_table(locations, COLUMNS["locations"]), links)
        if publishers is not None:
            with _about(publishers):
                rows = read_table(publishers, COLUMNS["publishers"])
                if rows.num_rows == 0:
                    raise ParameterError(
                        f"{publishers} has no rows; give at least one, or leave the publishers out"
                    )
                nodes = _publishers(rows, links)
            if EVENT_ID in (name.lower() for name in rows.column_names):
                published = str(publishers)
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

    def fitting(self, *, text: bool) -> Self:
        """Return it with subscribers named by text, if others name them so: CSV reads digits as numbers."""
        if not text or self.topology is None:
            return self
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
