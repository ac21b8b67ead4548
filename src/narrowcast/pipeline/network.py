"""The network that messages travel on, as tables: its links, and who is where."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from narrowcast.errors import ParameterError
from narrowcast.files import read_table
from narrowcast.model.topology import Locations, Topology

if TYPE_CHECKING:
    from pathlib import Path

    from narrowcast.pipeline.interest import InterestFrames


@dataclass(frozen=True, slots=True)
class NetworkTables:
    """A network, or none.

    Parameters
    ----------
    topology
        The links.
    locations
        The node of each subscriber; where left out, it is on the node of the same name.

    Examples
    --------
    >>> NetworkTables(Topology([0], [1], [2.0])).given
    {'topology': Topology(2 nodes, 1 links)}
    """

    topology: Topology | None = None
    locations: Locations | None = None

    @classmethod
    def read(cls, topology: str | Path | None, locations: str | Path | None) -> Self:
        """Read the tables `topology` (a, b, cost) and `locations` (subscriber, node), on the driver."""
        if topology is None:
            if locations is not None:
                raise ParameterError("--locations is given without --topology; give both, or neither")
            return cls()
        links = Topology.from_table(read_table(topology, ("a", "b", "cost")))
        if links.n_nodes == 0:
            raise ParameterError(f"{topology} has no links; give at least one, or leave the topology out")
        if locations is None:
            return cls(links)
        return cls(links, Locations.from_table(read_table(locations, ("subscriber", "node")), links))

    @property
    def given(self) -> dict[str, Any]:
        """What there is, by name, for planners and costs."""
        both = {"topology": self.topology, "locations": self.locations}
        return {name: value for name, value in both.items() if value is not None}

    @property
    def fingerprints(self) -> dict[str, str]:
        """What tells these tables from others, by name; the order of rows does not."""
        return {name: _fingerprint(value) for name, value in self.given.items()}

    def fitting(self, frames: InterestFrames) -> Self:
        """Return it with labels as an interest has them: digits, which CSV reads as numbers, may be text."""
        text = frames.interests.schema["subscriber"].dataType.simpleString() == "string"
        if not text or self.topology is None:
            return self
        if self.locations is not None:
            names = _as_text(self.locations.subscribers)
            return type(self)(self.topology, Locations(names, self.locations.node))
        links = self.topology
        return type(self)(Topology(links.a, links.b, links.cost, _as_text(links.nodes)))


def _as_text(labels: pa.Array) -> pa.Array:
    return labels.cast(pa.string()) if pa.types.is_integer(labels.type) else labels


def _fingerprint(value: Topology | Locations) -> str:
    """Return a hash of a table's values."""
    if isinstance(value, Topology):
        parts = [value.nodes.to_pylist(), value.a.tolist(), value.b.tolist(), value.cost.tolist()]
    else:
        parts = [value.subscribers.to_pylist(), value.node.tolist()]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
