"""Charts: Vega-Lite specifications filled with records and rendered offline."""

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

#: The data of a chart, usually one dictionary per mark.
Records: TypeAlias = list[dict[str, Any]]

#: Names of the charts; each is a file in the folder `specs`.
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

#: Baselines that need no planning, and the lower bound.
_BASELINES = ("unicast", "broadcast", "per-flow", "hash", "ideal")
#: Title of the panel of replayed events in a comparison.
REPLAY_PANEL = "replayed events"
#: Units of the cost models in a comparison.
_UNITS = {
    "network": "cost of links",
    "waste": "unwanted messages",
    "false-positives": "unwanted receivers",
    "filtering": "work of receivers",
    "forwarding": "bytes per second",
}

#: Version of Vega-Lite that the specifications are written in.
VEGA_LITE = "6.4"
#: Pixels per point of a PNG: sharp on high-resolution screens.
SCALE = 2

#: Largest numbers of rows and columns of an interest matrix at which single cells are still visible.
SHOWN = (160, 240)
#: Number of groups of flows in an interest matrix, which is the number of its colours.
GROUPS = 6
#: Largest number of bars of a load chart; with more channels, each bar stands for several.
BARS = 200


def save_chart(
    name: str, data: Sequence[Mapping[str, Any]], folder: str | Path, *, subtitle: str = ""
) -> tuple[Path, Path]:
    """Render a chart from records; return the paths of its PNG and its SVG.

    Parameters
    ----------
    name
        One of `CHARTS`; the files are named after it.
    data
        The records, as returned by the chart's function, such as `cost_bars`. Without records, a
        placeholder is rendered.
    folder
        An existing folder for the files.
    subtitle
        A line below the title, such as a description of the data.

    Raises
    ------
    ParameterError
        When there is no chart of this name.
    MissingError
        When the package vl-convert-python is not installed.
    """
    spec = _spec(name)
    if not data:
        spec = _read("empty") | {"title": spec["title"]}
    # Specifications refer to the data by this name, to adapt their texts to it.
    spec["data"] = {"name": "records", "values": list(data)}
    spec["title"]["subtitle"] = subtitle
    spec["config"] = theme()
    try:
        import vl_convert
    except ImportError as error:
        raise MissingError(
            "vl-convert-python is not installed, and charts need it; run: pip install vl-convert-python"
        ) from error
    png, svg = (Path(folder, f"{name}.{kind}") for kind in ("png", "svg"))
    png.write_bytes(vl_convert.vegalite_to_png(spec, vl_version=VEGA_LITE, scale=SCALE))
    svg.write_text(vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE), "utf-8")
    return png, svg


def _spec(name: str) -> dict[str, Any]:
    """Return a chart's specification, without data."""
    if name not in CHARTS:
        raise ParameterError(
            f"unknown chart {name!r}; known: {', '.join(CHARTS)}", parameter="name", value=name
        )
    spec = _read(name)
    # A specification with `like` overrides keys of another one.
    like = spec.pop("like", None)
    return spec if like is None else _read(like) | spec


def theme() -> dict[str, Any]:
    """Return the Vega-Lite configuration shared by all charts: colours, fonts and axes."""
    return _read("theme")


def _read(name: str) -> dict[str, Any]:
    text = resources.files("narrowcast.report").joinpath("specs", f"{name}.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, Any])


def matches_per_event(sizes: Mapping[int, int]) -> Records:
    """Return the records of a histogram of matches per event, ordered by number of matches.

    Parameters
    ----------
    sizes
        Number of events by number of matches; 0 for events without a match.

    Examples
    --------
    >>> matches_per_event({2: 1, 0: 4})
    [{'matches': 0, 'events': 4}, {'matches': 2, 'events': 1}]
    """
    return [{"matches": int(m), "events": int(n)} for m, n in sorted(sizes.items()) if n]


def cost_bars(costs: Mapping[str, tuple[Cost, int | None]], *, events: float = 1) -> Records:
    """Return the messages that each method delivers per event: wanted by channel, sent directly, wasted.

    Methods are in the given order.

    Parameters
    ----------
    costs
        For each method, its cost by the model `waste` and its number of channels; None for the lower bound
        `ideal`, which is not a plan.
    events
        The number that costs are divided by: the number of events or, for costs per second, the total rate
        of all flows.

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
        note = "lower bound" if channels is None else f"{channels:,} channel{'s' * (channels != 1)}"
        for place, (kind, messages) in enumerate(kinds.items()):
            bar = {"method": f"{name}\n{note}", "order": order, "kind": kind, "place": place}
            bars.append(bar | {"messages": messages / (events if events > 0 else 1)})
    return bars


def compared_methods(rows: Sequence[Mapping[str, Any]], costs: Sequence[str]) -> Records:
    """Return the bars of a comparison of methods: one panel per cost, each with the cheapest method first.

    If events were replayed with all methods, their measured cost is the first panel. Planning time (seconds)
    and memory (MB) are shown only beside the first panel.

    Parameters
    ----------
    rows
        The rows of `compare.json`, one per method; rows without costs are left out.
    costs
        Names of cost models; panels are in this order.

    Examples
    --------
    >>> row = {"method": "mst", "asked": 9, "seconds": 0.5, "peak_mb": 2.0}
    >>> bars = compared_methods([row | {"costs": {"waste": {"total": 4.0}}}], ["waste"])
    >>> [(bar["measure"], bar["value"], bar["text"]) for bar in bars]
    [('cost', 4.0, '4'), ('seconds', 0.5, '0.50'), ('memory', 2.0, '2.00')]
    """
    scored = [row for row in rows if row["costs"]]
    several = len({row["asked"] for row in scored if row["asked"] is not None}) > 1
    panels = {cost: [row["costs"][cost]["total"] for row in scored] for cost in costs}
    units = _UNITS
    if scored and all(row.get("replayed") for row in scored):
        links = any(row["replayed"].get("improvement_pct") is not None for row in scored)
        units = {REPLAY_PANEL: "cost of links" if links else "messages", **units}
        panels = {REPLAY_PANEL: [row["replayed"]["cost"] for row in scored], **panels}
    bars: Records = []
    for place, (cost, totals) in enumerate(panels.items()):
        for order, i in enumerate(sorted(range(len(scored)), key=lambda i: totals[i])):
            row, total = scored[i], totals[i]
            name = row["method"]
            if several and row["asked"] is not None:
                name += f", {row['asked']:,}"
            bar = {"cost": cost, "unit": units.get(cost, ""), "place": place, "method": name, "order": order}
            bar["kind"] = "without planning" if row["method"] in _BASELINES else "planned"
            text = f"{total:,.0f}" if abs(total) >= 1000 else f"{total:,.3g}"
            bars.append(bar | {"measure": "cost", "value": total, "text": text})
            # A missing number still has a record, so that the rows of adjacent panels are aligned.
            for measure, value in (("seconds", row["seconds"]), ("memory", row["peak_mb"])):
                if place == 0:
                    bars.append(bar | {"measure": measure, "value": value or 0.0, "text": _rounded(value)})
    return bars


def _rounded(value: float | None) -> str:
    """Format a number: one decimal from 10, two from 0.1, else one significant digit; None as empty text.

    >>> _rounded(None), _rounded(0.00123), _rounded(0.512), _rounded(27.63)
    ('', '0.001', '0.51', '27.6')
    """
    if value is None:
        return ""
    return f"{value:,.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.1g}"


def channel_load(rates: ArrayLike, members: ArrayLike) -> Records:
    """Return the rate and the number of listeners of each channel, the busiest channel first.

    With more than 200 channels, each record has the mean and the maximum of several adjacent channels. Rates
    and listeners are then sorted independently, because means of unsorted values would be meaningless.

    Parameters
    ----------
    rates
        Messages per second of each channel, as `ChannelPlan.rates` returns them; for a plan of two levels,
        those of its groups only.
    members
        Number of listeners of each channel, as `ChannelPlan.members` returns them.

    Raises
    ------
    ParameterError
        When `rates` and `members` are not one-dimensional and of equal length.

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
            f"rates of shape {rate.shape} and members of shape {listeners.shape}: must both have one value "
            "per channel",
            parameter="members",
            value=members,
        )
    order = np.lexsort((-listeners, -rate))
    single = len(rate) <= BARS
    rate, listeners = rate[order], listeners[order] if single else -np.sort(-listeners)
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
    """Return the cells of a sample of the interest matrix, once in the original order and once sorted.

    Without a plan, flows are sorted by similarity: they are clustered by their subscribers (Ward's method on
    normalised columns), and each subscriber is placed at the cluster with most of its wanted flows.

    With a plan, each flow is placed at the channel that delivers it to the most subscribers of the sample;
    channels with more deliveries come first, and flows that are sent directly last. Each subscriber is
    placed at the channel that delivers most to it. Sessions count as their group.

    `group` is the colour of a cell: 0 in the original order, -1 for flows wanted from outside the
    subscriber's cluster or channel, otherwise 1 to 6; channels use the six colours cyclically.

    Parameters
    ----------
    interest
        The interest; larger ones than 160 subscribers by 240 flows are sampled.
    plan
        The plan to sort by; labels relate it to the interest.
    seed
        Seed of the sample, at least 0.

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
    group, flows = _clusters(wants)
    if plan is None:
        panel, via = "after", np.where(wants, group, -1)
        # Groups in the order of their first flows.
        shown = group[flows[np.sort(np.unique(group[flows], return_index=True)[1])]]
    else:
        via = _delivering_group(wants, interest, plan, subscriber, flow)
        group, shown = _group_of_flows(via)
        panel = "by channel" if len(shown) else "directly"
    none = len(shown)
    rank = np.full(shown.max(initial=-1) + 2, none)  # index -1, for no group, has the value `none`
    rank[shown] = np.arange(none)
    via, group = rank[via], rank[group]
    # No group counts as half a message: a subscriber with a single message of a group is placed there.
    share = [*((via == g).sum(axis=1) for g in range(none)), np.full(len(wants), 0.5)]
    home = np.argmax(share, axis=0)
    own = (via == home[:, None]) & (via < none)
    # Within a group, subscribers with the largest share of wants in the group come first.
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


def _delivering_group(
    wants: NDArray[np.bool_], interest: Interest, plan: ChannelPlan, subscriber: Positions, flow: Positions
) -> Positions:
    """Return the group that delivers each wanted cell of a sample; -1 if none does or it is not wanted.

    If several groups do, it is the one that delivers the flow to the most subscribers of the sample, and of
    these the first.
    """
    row, column = np.nonzero(wants)
    plan_row = positions("subscriber", interest.subscribers.take(subscriber), plan.subscribers)
    plan_column = positions("flow", interest.flows.take(flow), plan.flows)
    received = [(np.empty(0, np.intp), np.empty(0, np.intp))]
    received += list(plan.channels_reaching(plan_row[row], plan_column[column]))
    pair = np.concatenate([pairs for pairs, _ in received])
    channel = plan.groups()[np.concatenate([channels for _, channels in received])]
    # A subscriber in two sessions of a group still receives its messages in one group.
    pair, channel = np.unique(np.stack([pair, channel]), axis=1)
    _, kind, delivered = np.unique(
        np.stack([column[pair], channel]), axis=1, return_inverse=True, return_counts=True
    )
    best = np.lexsort((channel, -delivered[kind], pair))
    first = best[np.unique(pair[best], return_index=True)[1]]
    via = np.full(wants.shape, -1, np.intp)
    via[row[pair[first]], column[pair[first]]] = channel[first]
    return via


def _group_of_flows(via: Positions) -> tuple[Positions, Positions]:
    """Return the group that each flow is placed at, -1 for none, and the groups in the order of the chart."""
    known, carried = np.unique(via[via >= 0], return_counts=True)
    if not len(known):
        return np.full(via.shape[1], -1), known
    to = np.stack([(via == channel).sum(axis=0) for channel in known])
    carrier = np.where(to.any(axis=0), known[to.argmax(axis=0)], -1)
    # Groups with flows of their own come first, so that adjacent groups in the chart differ in colour.
    return carrier, known[np.lexsort((known, -carried, ~np.isin(known, carrier)))]


def _sample(interest: Interest, seed: int) -> tuple[NDArray[np.bool_], Positions, Positions]:
    """Draw non-empty rows and columns of the wants; return them with their subscribers and flows."""
    rng = np.random.default_rng(seed)
    flows = _draw(rng, np.flatnonzero(interest.audience()), SHOWN[1])
    part = interest.wants[:, flows]
    subscribers = _draw(rng, np.flatnonzero(np.diff(part.indptr)), SHOWN[0])
    wants = part[subscribers].toarray()
    wanted = wants.any(axis=0)
    return wants[:, wanted], subscribers, flows[wanted]


def _draw(rng: np.random.Generator, of: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    return np.sort(rng.choice(of, min(len(of), most), replace=False))


def _clusters(wants: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the cluster of each flow, and an order of flows that keeps clusters and neighbours together."""
    # Imported on first use: most commands draw no chart.
    from scipy.cluster.hierarchy import fcluster, leaves_list, linkage
    from scipy.spatial.distance import pdist

    n_flows = wants.shape[1]
    if n_flows == 1:
        return np.zeros(1, np.intp), np.zeros(1, np.intp)
    direction = wants.T / np.sqrt(wants.sum(axis=0))[:, None]
    tree = linkage(pdist(direction), "ward", optimal_ordering=True)
    return fcluster(tree, GROUPS, "maxclust").astype(np.intp) - 1, leaves_list(tree).astype(np.intp)
