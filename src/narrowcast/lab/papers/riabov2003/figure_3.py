"""Figure 3: a picture of the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from narrowcast.lab.papers.base import Experiment, Outcome, ResultRow
from narrowcast.workloads.stocks import Stocks

if TYPE_CHECKING:
    from narrowcast.lab.papers.base import Study


def _figure_3(study: Study) -> Outcome:
    """Draw the network of the first seed."""
    network = Stocks(edges=study.params["edges"], seed=study.seeds[0]).network()
    topology, place = network.topology, network.place
    sizes = {
        "nodes": topology.n_nodes,
        "links": topology.n_links,
        "transit_nodes": int((network.kind == "transit").sum()),
        "stubs": sum(network.n_stubs(block) for block in range(int(network.block.max()) + 1)),
    }
    records: list[dict[str, Any]] = [
        {"what": "link", "x": float(place[a, 0]), "y": float(place[a, 1]),
         "x2": float(place[b, 0]), "y2": float(place[b, 1])}
        for a, b in zip(topology.a.tolist(), topology.b.tolist(), strict=True)
    ]  # fmt: skip
    records += [
        {"what": kind, "x": float(x), "y": float(y), "block": f"block {block + 1}"}
        for (x, y), kind, block in zip(place, network.kind.tolist(), network.block.tolist(), strict=True)
    ]
    caption = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in sizes.items())
    rows = [ResultRow.of("network", None, name, [count]) for name, count in sizes.items()]
    note = "The paper's network has about 600 nodes in three blocks; this one is drawn from the first seed."
    return Outcome(rows, {"riabov2003-figure-3": (records, caption)}, [note])


FIGURE_3 = Experiment("the network, as a picture", _figure_3, {"edges": "levels"})
