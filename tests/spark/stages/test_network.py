"""The tables of a network: labels as Spark reads them, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import narrowcast as nc
from narrowcast.errors import ParameterError, TableError
from narrowcast.spark.stages.network import NetworkTables

if TYPE_CHECKING:
    from pathlib import Path


def read(folder: Path, links: str, places: str | None = None, publishers: str | None = None) -> NetworkTables:
    """Read tables of CSV."""
    paths = {}
    for name, text in (("topology", links), ("locations", places), ("publishers", publishers)):
        if text is not None:
            paths[name] = folder / f"{name}.csv"
            paths[name].write_text(text)
    return NetworkTables.read(**paths)


@pytest.mark.parametrize(
    ("links", "nodes"),
    [
        ("a,b,cost\n7,8,1\n8,0,2\n", [0, 7, 8]),
        ("a,b,cost\n7,8,1\n8,-9,2\n", [-9, 7, 8]),
        ("a,b,cost\n007,8,1\n8,0,2\n", ["0", "007", "8"]),
        ("a,b,cost\n7,8,1\n8,+9,2\n", ["+9", "7", "8"]),
        ("A,B,Cost\n7,x,1\n", ["7", "x"]),
        ("a,b,cost\n1.50,2,1\n", ["1.50", "2"]),
        ("a,b,cost\ntrue,false,1\n", ["false", "true"]),
    ],
)
def test_nodes_are_named_as_they_are_written(links: str, nodes: list[object], tmp_path: Path) -> None:
    found = read(tmp_path, links).topology
    assert found is not None
    assert found.nodes.to_pylist() == nodes


def test_places_name_nodes_as_the_links_do(tmp_path: Path) -> None:
    links = "a,b,cost\n007,8,1\n8,9,2\n"
    found = read(tmp_path, links, "Subscriber,Node\n01,9\n2,8\n", "NODE,Event_ID\n9,5\n9,2\n8,3\n")
    assert found.locations is not None
    assert found.locations.subscribers.to_pylist() == ["01", "2"]
    assert found.locations.node.tolist() == [2, 1]
    assert found.publishers is not None
    assert found.publishers.tolist() == [2, 2, 1]
    assert found.published is not None
    assert found.published.to_pydict() == {"event_id": [2, 3, 5], "node": [2, 1, 2]}
    assert read(tmp_path, links, None, "node\n9\n").published is None
    # Among subscribers that are numbers there is no 01.
    numbered = found.fitting(text=False).locations
    assert numbered is not None
    assert (numbered.subscribers.to_pylist(), numbered.node.tolist()) == ([2], [1])
    assert found.fitting(text=True).locations.subscribers.to_pylist() == ["01", "2"]  # type: ignore[union-attr]


def test_a_folder_of_tables(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "1.csv").write_text("a,b,cost\n1,2,1\n")
    (tmp_path / "t" / "2.csv").write_text("a,b,cost\n02,1,3\n")
    found = NetworkTables.read(tmp_path / "t").topology
    assert found is not None
    assert found.nodes.to_pylist() == ["02", "1", "2"]


@pytest.mark.parametrize(
    ("publishers", "said"),
    [
        ("event_id,node\n1,007\n", "publishers.csv: an event is published on node '007', which no link"),
        ("event_id,node\n1,7\n2,x\n", "publishers.csv: an event is published on node 'x', which no link"),
        ("event_id,node\n5,7\n3,7\n5,8\n", "publishers.csv: event_id 5 has several rows"),
        ("event_id,node\n5,7\n,7\n", "publishers.csv: event_id is null in 1 rows, the first of them row 1"),
        ("event_id,node\nx,7\n", "publishers.csv: column 'event_id' is of type string; use whole numbers"),
        ("event_id,node\n1.5,7\n", "publishers.csv: column 'event_id' is of type double; use whole numbers"),
        ("event_id,node,Node\n1,7,7\n", "publishers.csv: columns 'node' and 'Node' collide"),
        ("event_id,place\n1,7\n", "publishers.csv has no column 'node'; it has 'event_id', 'place'"),
    ],
)
def test_bad_publishers(publishers: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(TableError) as error:
        read(tmp_path, "a,b,cost\n7,8,1\n", None, publishers)
    assert said in str(error.value)
    assert str(error.value).count("publishers.csv") == 1


def test_a_network_in_parts_is_refused(tmp_path: Path) -> None:
    """Whoever is where: one message to every node could not be."""
    with pytest.raises(ParameterError) as error:
        read(tmp_path, "a,b,cost\n7,8,1\nx,y,1\n", "subscriber,node\nann,8\n", "node\n7\n")
    assert str(error.value) == f"{tmp_path / 'topology.csv'}: node 'x' is not reachable from '7'; add a link"


def test_a_node_without_coordinates(tmp_path: Path) -> None:
    """Costs are those of the links: coordinates are read past, whether or not a node has some."""
    links = "a,b,cost,x,y\n7,8,1.5,0.25,4\n8,9,2,,\n"
    found = read(tmp_path, links, "subscriber,node,x,y\nann,9,,\nbob,7,0.5,\n")
    assert found.given["topology"] == nc.Topology([0, 1], [1, 2], [1.5, 2.0], [7, 8, 9])
    network = nc.Network(**found.given)
    to_all = nc.Matches.from_pairs([0, 0, 0], [0, 1, 2], n_events=1)
    assert network.multicast([0], to_all).tolist() == [3.5]


def test_other_formats_have_their_types(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": ["007"], "b": ["8"], "cost": [1.0]}), tmp_path / "t.parquet")
    pq.write_table(pa.table({"event_id": pa.array([3], pa.int32()), "node": [8]}), tmp_path / "p.parquet")
    found = NetworkTables.read(tmp_path / "t.parquet", publishers=tmp_path / "p.parquet")
    assert found.published is not None
    assert found.published.to_pydict() == {"event_id": [3], "node": [1]}
    assert found.given["topology"] == nc.Topology([0], [1], [1.0], ["007", "8"])
