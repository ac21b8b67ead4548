"""Charts: a Vega-Lite file each, filled with records and drawn without a network."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from narrowcast.errors import MissingError, ParameterError
from narrowcast.model.labels import positions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from narrowcast.model.cost import Cost
    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.model.relation import Positions

#: What a chart is filled with: a dict for each mark or for what marks are made of.
Records: TypeAlias = list[dict[str, Any]]

#: The charts there are; each is a file of that name among the specs.
CHARTS = (
    "cobas2009-figure-5",
    "cobas2009-figure-6a",
    "cobas2009-figure-6b",
    "cobas2009-figure-6c",
    "cobas2009-figure-6d",
    "cobas2009-figure-7a",
    "cobas2009-figure-7b",
    "cobas2009-partitioning",
    "cobas2009-planetlab",
    "compare",
    "cost-bars",
    "interest-matrix",
    "load-per-channel",
    "matches-per-event",
    "moves",
    "riabov2003-drift",
    "riabov2003-figure-3",
    "riabov2003-figure-4",
    "riabov2003-figure-5",
    "riabov2003-figure-6",
    "riabov2003-matching",
    "tamara2007-figure-5",
    "tamara2007-figure-6",
    "tamara2007-figure-7",
    "tamara2007-figure-8",
    "tamara2007-figure-9",
    "tamara2007-table-2",
    "tamara2007-table-3",
    "tariq2012-figure-1",
    "tariq2012-figure-3",
    "tariq2012-figure-3k",
    "tariq2012-figure-3l",
    "tariq2012-figure-4",
    "tock2005-baselines",
    "tock2005-figure-4",
    "tock2005-figure-5",
    "tock2005-figure-6",
    "tock2005-figure-7",
)

#: Ways of sending that need no planning, and what none can beat.
_UNPLANNED = ("unicast", "broadcast", "per-flow", "hash", "ideal")
#: What the panel of events that were sent is called in a comparison.
SENT = "replayed: the events, sent"
#: What the costs of a comparison are counted in, where that is known.
_UNITS = {
    "network": "cost of links",
    "waste": "messages in vain",
    "false-positives": "receivers in vain",
    "filtering": "work of receivers",
    "forwarding": "bytes a second",
}

#: Version of the grammar that the files are written in.
VEGA_LITE = "6.4"
#: Pixels per point of a PNG: sharp on today's screens.
SCALE = 2

#: The most rows and columns of an interest matrix that the eye can still tell apart.
SHOWN = (160, 240)
#: As many groups as there are colours in the matrix.
GROUPS = 6
#: The most bars of a load; of more channels, each bar is several.
BARS = 200


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
    if not data:
        spec = _read("empty") | {"title": spec["title"]}
    # The name lets a file choose its words by what it is filled with.
    spec["data"] = {"name": "records", "values": list(data)}
    spec["title"]["subtitle"] = subtitle
    spec["config"] = theme()
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
    spec = _read(name)
    # One that is like another says only what differs.
    like = spec.pop("like", None)
    return spec if like is None else _read(like) | spec


def theme() -> dict[str, Any]:
    """Return what all charts look like."""
    return _read("theme")


def _read(name: str) -> dict[str, Any]:
    text = resources.files("narrowcast.report").joinpath("specs", f"{name}.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, Any])


def matches_per_event(sizes: Mapping[int, int]) -> Records:
    """Return how many events have each number of matches, fewest matches first.

    Parameters
    ----------
    sizes
        By number of matches, how many events have it; those without a match are under 0.

    Examples
    --------
    >>> matches_per_event({2: 1, 0: 4})
    [{'matches': 0, 'events': 4}, {'matches': 2, 'events': 1}]
    """
    return [{"matches": int(m), "events": int(n)} for m, n in sorted(sizes.items()) if n]


def cost_bars(costs: Mapping[str, tuple[Cost, int | None]], *, events: float = 1) -> Records:
    """Return the messages that each method delivers per event, by what becomes of them, in the order given.

    Parameters
    ----------
    costs
        For each method the cost by the model `waste`, and how many channels it takes; None for the ideal,
        which is no plan.
    events
        How many events the costs are of; of costs per second, the rate of all flows together.

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
        takes = "the least there can be"
        if channels is not None:
            takes = f"{channels:,} channel{'s' * (channels != 1)}"
        for place, (kind, messages) in enumerate(kinds.items()):
            bar = {"method": f"{name}\n{takes}", "order": order, "kind": kind, "place": place}
            bars.append(bar | {"messages": messages / (events if events > 0 else 1)})
    return bars


def compared_methods(rows: Sequence[Mapping[str, Any]], costs: Sequence[str]) -> Records:
    """Return the bars of a comparison: for each cost the methods, cheapest first.

    What events cost that were sent comes before the costs, where there are any. Seconds and memory are told
    once, beside the first of them.

    Parameters
    ----------
    rows
        What each method has, as `compare.json` says it; those without costs are left out.
    costs
        Names of costs: a panel each, in this order.

    Examples
    --------
    >>> row = {"method": "mst", "asked": 9, "seconds": 0.5, "peak_mb": 2.0}
    >>> bars = compared_methods([row | {"costs": {"waste": {"total": 4.0}}}], ["waste"])
    >>> [(bar["measure"], bar["value"], bar["text"]) for bar in bars]
    [('cost', 4.0, '4'), ('seconds', 0.5, '0.50'), ('memory', 2.0, '2.00')]
    """
    made = [row for row in rows if row["costs"]]
    several = len({row["asked"] for row in made if row["asked"] is not None}) > 1
    panels = {cost: [row["costs"][cost]["total"] for row in made] for cost in costs}
    units = _UNITS
    if made and all(row.get("replayed") for row in made):
        links = any(row["replayed"].get("improvement_pct") is not None for row in made)
        units = {SENT: "cost of links" if links else "messages", **units}
        panels = {SENT: [row["replayed"]["cost"] for row in made], **panels}
    bars: Records = []
    for place, (cost, totals) in enumerate(panels.items()):
        for order, which in enumerate(sorted(range(len(made)), key=lambda i: totals[i])):
            row, total = made[which], totals[which]
            name = row["method"]
            if several and row["asked"] is not None:
                name += f", {row['asked']:,}"
            bar = {"cost": cost, "unit": units.get(cost, ""), "place": place, "method": name, "order": order}
            bar["kind"] = "without planning" if row["method"] in _UNPLANNED else "planned"
            text = f"{total:,.0f}" if abs(total) >= 1000 else f"{total:,.3g}"
            bars.append(bar | {"measure": "cost", "value": total, "text": text})
            # What there is no number for still has its place, so that panels beside each other stay in line.
            for measure, value in (("seconds", row["seconds"]), ("memory", row["peak_mb"])):
                if place == 0:
                    bars.append(bar | {"measure": measure, "value": value or 0.0, "text": _measured(value)})
    return bars


def _measured(value: float | None) -> str:
    """Return a number that may be small with as many digits as are read.

    >>> _measured(None), _measured(0.00123), _measured(0.512), _measured(27.63)
    ('', '0.001', '0.51', '27.6')
    """
    if value is None:
        return ""
    return f"{value:,.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.1g}"


def channel_load(rates: ArrayLike, members: ArrayLike) -> Records:
    """Return what each channel sends and how many listen to it, the busiest channel first.

    Of more than 200 channels, each record is of a run of neighbours: their mean and the largest. Rates and
    listeners are then sorted each on their own, because means of what is not sorted would tell nothing.

    Parameters
    ----------
    rates
        Messages per second sent in each channel, `ChannelPlan.rates`; of a plan of two levels, give those
        of its groups alone.
    members
        Listeners of each channel, `ChannelPlan.members`.

    Examples
    --------
    >>> for bar in channel_load([0.5, 2.0], [7, 3]):
    ...     print(bar["first"], bar["channels"], bar["rate"], bar["listeners"])
    0 1 2.0 3.0
    1 1 0.5 7.0
    """
    rate, listeners = np.asarray(rates, np.float64), np.asarray(members, np.float64)
    if rate.ndim != 1 or rate.shape != listeners.shape:
        raise ParameterError(
            f"rates has shape {rate.shape} and members {listeners.shape}; give one of each per channel"
        )
    order = np.lexsort((-listeners, -rate))
    few = len(rate) <= BARS
    rate, listeners = rate[order], listeners[order] if few else -np.sort(-listeners)
    n_bars = min(len(rate), BARS)
    ends = np.arange(n_bars + 1) * len(rate) // max(1, n_bars)
    bars: Records = []
    for first, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        bar: dict[str, Any] = {"first": first, "channels": end - first}
        for name, values in (("rate", rate), ("listeners", listeners)):
            part = values[first:end]
            bar |= {name: float(part.mean()), f"{name}_most": float(part.max())}
        bars.append(bar)
    return bars


def interest_matrix(interest: Interest, plan: ChannelPlan | None = None, *, seed: int = 0) -> Records:
    """Return a sample of who wants what twice: as it comes, and ordered.

    Without a plan, what is alike is together: flows are grouped by their audiences (Ward's method on their
    directions), and each subscriber stands with the group that holds the largest part of what it wants.

    With a plan, flows stand with the channel that brings them to most of the sample, channels that bring
    more come first, and what is sent directly comes last; each subscriber stands with the channel from
    which it gets most. A session stands for its group.

    `group` is the colour of a cell: 0 before ordering, -1 for a subscriber's wants from outside its group
    or channel. There are six colours, and channels take them in turn.

    Parameters
    ----------
    interest
        Who wants what, all of it or a sample.
    plan
        Brought together with the interest by label.
    seed
        Of the sample.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> from narrowcast.model.plan import ChannelPlan
    >>> plan = ChannelPlan(carries=[[1, 0], [0, 1], [1, 0]], listens=[[1, 1], [1, 0]])
    >>> cells = interest_matrix(Interest([[0, 1, 0], [1, 0, 1]]), plan)
    >>> [(c["subscriber"], c["flow"], c["group"]) for c in cells if c["panel"] == "by channel"]
    [(0, 0, 1), (0, 1, 1), (1, 2, 2)]
    """
    wants, subscriber, flow = _sample(interest, seed)
    if not wants.size:
        return []
    group, flows = _grouped(wants)
    if plan is None:
        panel, via = "after", np.where(wants, group, -1)
        # Groups in the order in which their flows stand.
        shown = group[flows[np.sort(np.unique(group[flows], return_index=True)[1])]]
    else:
        via = _via(wants, interest, plan, subscriber, flow)
        group, shown = _carriers(via)
        panel = "by channel" if len(shown) else "directly"
    none = len(shown)
    rank = np.full(shown.max(initial=-1) + 2, none)  # at -1, which is no group, it holds `none`
    rank[shown] = np.arange(none)
    via, group = rank[via], rank[group]
    # Half a message from nobody: less than one from anybody, more than none at all.
    share = [*((via == g).sum(axis=1) for g in range(none)), np.full(len(wants), 0.5)]
    home = np.argmax(share, axis=0)
    own = (via == home[:, None]) & (via < none)
    # In each group the most devoted subscribers first.
    rows = np.lexsort((-own.sum(axis=1) / wants.sum(axis=1), home))
    columns = flows[np.argsort(group[flows], kind="stable")]
    colour = np.where(own, via % GROUPS + 1, -1)
    cells: Records = []
    for name, ys, xs, colours in (
        ("before", np.arange(wants.shape[0]), np.arange(wants.shape[1]), np.zeros_like(colour)),
        (panel, rows, columns, colour),
    ):
        y, x = np.nonzero(wants[np.ix_(ys, xs)])
        shade = colours[ys[y], xs[x]]
        cells += [
            {"panel": name, "subscriber": r, "flow": c, "group": g}
            for r, c, g in zip(y.tolist(), x.tolist(), shade.tolist(), strict=True)
        ]
    return cells


def _via(
    wants: NDArray[np.bool_], interest: Interest, plan: ChannelPlan, subscriber: Positions, flow: Positions
) -> Positions:
    """Return for each cell of a sample the group that serves it, -1 where none does or nothing is wanted.

    Of several, it is the one that brings the flow to the most of the sample; of equals, the first.
    """
    row, column = np.nonzero(wants)
    knows_subscriber = positions("subscriber", interest.subscribers.take(subscriber), plan.subscribers)
    knows_flow = positions("flow", interest.flows.take(flow), plan.flows)
    heard = [(np.empty(0, np.intp), np.empty(0, np.intp))]
    heard += list(plan.channels_reaching(knows_subscriber[row], knows_flow[column]))
    pair = np.concatenate([pairs for pairs, _ in heard])
    channel = plan.groups()[np.concatenate([channels for _, channels in heard])]
    # A subscriber in two sessions of a group still gets its messages in one group.
    pair, channel = np.unique(np.stack([pair, channel]), axis=1)
    _, kind, brings = np.unique(
        np.stack([column[pair], channel]), axis=1, return_inverse=True, return_counts=True
    )
    best = np.lexsort((channel, -brings[kind], pair))
    first = best[np.unique(pair[best], return_index=True)[1]]
    via = np.full(wants.shape, -1, np.intp)
    via[row[pair[first]], column[pair[first]]] = channel[first]
    return via


def _carriers(via: Positions) -> tuple[Positions, Positions]:
    """Return the channel that each flow stands with, -1 for none, and the channels in their order."""
    known, carried = np.unique(via[via >= 0], return_counts=True)
    if not len(known):
        return np.full(via.shape[1], -1), known
    to = np.stack([(via == channel).sum(axis=0) for channel in known])
    carrier = np.where(to.any(axis=0), known[to.argmax(axis=0)], -1)
    # Channels with flows of their own first: the colours of neighbours in the picture then differ.
    return carrier, known[np.lexsort((known, -carried, ~np.isin(known, carrier)))]


def _sample(interest: Interest, seed: int) -> tuple[NDArray[np.bool_], Positions, Positions]:
    """Return some rows and columns of the wants, in their order, each with something in it, and which."""
    rng = np.random.default_rng(seed)
    flows = _some(rng, np.flatnonzero(interest.audience()), SHOWN[1])
    part = interest.wants[:, flows]
    subscribers = _some(rng, np.flatnonzero(np.diff(part.indptr)), SHOWN[0])
    wants = part[subscribers].toarray()
    wanted = wants.any(axis=0)
    return wants[:, wanted], subscribers, flows[wanted]


def _some(rng: np.random.Generator, of: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    return np.sort(rng.choice(of, min(len(of), most), replace=False))


def _grouped(wants: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the group of each flow, and the flows in an order that keeps groups and neighbours together."""
    from scipy.cluster.hierarchy import fcluster, leaves_list, linkage  # on use: most commands draw nothing
    from scipy.spatial.distance import pdist

    n_flows = wants.shape[1]
    if n_flows == 1:
        return np.zeros(1, np.intp), np.zeros(1, np.intp)
    direction = wants.T / np.sqrt(wants.sum(axis=0))[:, None]
    tree = linkage(pdist(direction), "ward", optimal_ordering=True)
    return fcluster(tree, GROUPS, "maxclust").astype(np.intp) - 1, leaves_list(tree).astype(np.intp)
