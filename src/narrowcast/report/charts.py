"""Charts: a Vega-Lite file each, filled with records and drawn without a network."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
from scipy.cluster.hierarchy import fcluster, leaves_list, linkage
from scipy.spatial.distance import pdist

from narrowcast.errors import MissingError, ParameterError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from narrowcast.model.cost import Cost
    from narrowcast.model.interest import Interest
    from narrowcast.model.matches import Matches

#: What a chart is filled with: a dict for each mark or for what marks are made of.
Records: TypeAlias = list[dict[str, Any]]

#: The charts there are; each is a file of that name among the specs.
CHARTS = ("cost-bars", "interest-matrix", "matches-per-event")

#: Version of the grammar that the files are written in.
VEGA_LITE = "6.4"
#: Pixels per point of a PNG: sharp on today's screens.
SCALE = 2

#: The most rows and columns of an interest matrix that the eye can still tell apart.
SHOWN = (160, 240)
#: As many groups as there are colours in the matrix.
GROUPS = 6


def save_chart(
    name: str, data: Sequence[Mapping[str, Any]], folder: str | Path, *, subtitle: str = ""
) -> tuple[Path, Path]:
    """Draw a chart from records, and return where its PNG and its SVG are.

    Parameters
    ----------
    name
        One of `CHARTS`; the files are named after it.
    data
        What the chart's function below returns.
    folder
        Where the files go; it must exist.
    subtitle
        A line below the title: what the numbers are of.
    """
    spec = _spec(name)
    spec["data"] = {"values": list(data)}
    spec["title"]["subtitle"] = subtitle
    spec["config"] = _read("theme")
    try:
        import vl_convert
    except ImportError as error:
        raise MissingError(
            "charts need the package vl-convert-python; run: pip install vl-convert-python"
        ) from error
    png, svg = (Path(folder, f"{name}.{kind}") for kind in ("png", "svg"))
    png.write_bytes(vl_convert.vegalite_to_png(spec, vl_version=VEGA_LITE, scale=SCALE))
    svg.write_text(vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE), "utf-8")
    return png, svg


def _spec(name: str) -> dict[str, Any]:
    """Return a chart's specification, without data."""
    if name not in CHARTS:
        raise ParameterError(f"unknown chart {name!r}; known: {', '.join(CHARTS)}")
    return _read(name)


def _read(name: str) -> dict[str, Any]:
    text = resources.files("narrowcast.report").joinpath("specs", f"{name}.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, Any])


def matches_per_event(matches: Matches) -> Records:
    """Return how many events have each number of matches.

    Examples
    --------
    >>> from narrowcast.model.matches import Matches
    >>> matches_per_event(Matches.from_pairs([0, 0, 2], [1, 4, 0], n_events=4))
    [{'matches': 0, 'events': 2}, {'matches': 1, 'events': 1}, {'matches': 2, 'events': 1}]
    """
    value, events = np.unique(matches.counts(), return_counts=True)
    return [{"matches": m, "events": e} for m, e in zip(value.tolist(), events.tolist(), strict=True)]


def cost_bars(costs: Mapping[str, tuple[Cost, int]], *, events: int = 1) -> Records:
    """Return the messages that each method delivers per event, by what becomes of them.

    Parameters
    ----------
    costs
        For each method the cost by the model `waste`, and how many channels it takes.
    events
        How many events the costs are of.

    Examples
    --------
    >>> from narrowcast.model.cost import Cost
    >>> terms = {"deliveries": 9.0, "wanted": 7.0, "wasted": 4.0, "unicast": 2.0}
    >>> [(bar["kind"], bar["messages"]) for bar in cost_bars({"hash": (Cost(4.0, terms), 16)})]
    [('wanted, by channel', 5.0), ('wanted, sent directly', 2.0), ('wasted', 4.0)]
    """
    bars: Records = []
    for order, (name, (cost, channels)) in enumerate(costs.items()):
        terms = cost.terms
        kinds = {
            "wanted, by channel": terms["deliveries"] - terms["wasted"],
            "wanted, sent directly": terms["unicast"],
            "wasted": terms["wasted"],
        }
        label = f"{name}\n{channels:,} channel{'s' * (channels != 1)}"
        for place, (kind, messages) in enumerate(kinds.items()):
            bar = {"method": label, "order": order, "kind": kind, "place": place}
            bars.append(bar | {"messages": messages / max(1, events)})
    return bars


def interest_matrix(interest: Interest, *, seed: int = 0) -> Records:
    """Return a sample of who wants what twice: as it comes, and ordered so that what is alike is together.

    Flows are grouped by their audiences (Ward's method on their directions), and each subscriber stands
    with the group that holds the largest part of what it wants. `group` is the colour of a cell: 0 before
    ordering, -1 for a subscriber's wants outside its group.
    """
    wants = _sample(interest, seed)
    n_subscribers, n_flows = wants.shape
    if not n_subscribers:
        return []
    group, flows = _grouped(wants)
    share = np.stack([wants[:, group == g].sum(axis=1) for g in range(group.max() + 1)], axis=1)
    home = share.argmax(axis=1)
    # Groups in the order in which their flows stand, and in each the most devoted subscribers first.
    rank = np.argsort(np.argsort([np.flatnonzero(group[flows] == g)[0] for g in range(share.shape[1])]))
    devoted = share.max(axis=1) / share.sum(axis=1)
    subscribers = np.lexsort((-devoted, rank[home]))
    own = home[:, None] == group[None, :]
    colour = np.where(own, rank[home][:, None] + 1, -1)
    cells: Records = []
    for panel, rows, columns, colours in (
        ("before", np.arange(n_subscribers), np.arange(n_flows), np.zeros_like(colour)),
        ("after", subscribers, flows, colour),
    ):
        y, x = np.nonzero(wants[np.ix_(rows, columns)])
        shade = colours[rows[y], columns[x]]
        cells += [
            {"panel": panel, "subscriber": r, "flow": c, "group": g}
            for r, c, g in zip(y.tolist(), x.tolist(), shade.tolist(), strict=True)
        ]
    return cells


def _sample(interest: Interest, seed: int) -> NDArray[np.bool_]:
    """Return some rows and columns of the wants, in their order, each with something in it."""
    rng = np.random.default_rng(seed)
    flows = _some(rng, np.flatnonzero(interest.audience()), SHOWN[1])
    part = interest.wants[:, flows]
    subscribers = _some(rng, np.flatnonzero(np.diff(part.indptr)), SHOWN[0])
    wants = part[subscribers].toarray()
    kept: NDArray[np.bool_] = wants[:, wants.any(axis=0)]
    return kept


def _some(rng: np.random.Generator, of: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    return np.sort(rng.choice(of, min(len(of), most), replace=False))


def _grouped(wants: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the group of each flow, and the flows in an order that keeps groups and neighbours together."""
    n_flows = wants.shape[1]
    if n_flows == 1:
        return np.zeros(1, np.intp), np.zeros(1, np.intp)
    direction = wants.T / np.sqrt(wants.sum(axis=0))[:, None]
    tree = linkage(pdist(direction), "ward", optimal_ordering=True)
    return fcluster(tree, GROUPS, "maxclust").astype(np.intp) - 1, leaves_list(tree).astype(np.intp)
