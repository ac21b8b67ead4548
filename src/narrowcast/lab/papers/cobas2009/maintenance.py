"""Figure 7(b): cost of adding and removing filters, and of machines that join and leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from narrowcast.errors import ParameterError
from narrowcast.lab.hubs import (
    Links,
    Stretches,
    balance,
    churn,
    lines_of,
    loads_of,
    register,
)
from narrowcast.lab.papers.base import Experiment, Outcome, ResultRow
from narrowcast.lab.papers.cobas2009.setting import (
    MACHINES,
    PAPER,
    REPLICATION,
    SMALL,
    WORK,
    caption_of,
    listed,
    overlay_of,
    size_note,
    verdict,
)
from narrowcast.lab.sweep import Sweep
from narrowcast.planning.ranges.merging import Merging
from narrowcast.validation import check_number
from narrowcast.workloads.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from narrowcast.lab.hubs import Toll
    from narrowcast.lab.papers.base import Study
    from narrowcast.lab.sweep import Record

#: Kinds of changes, and their names in the picture.
SERIES = {
    "filters/insert": "filters added",
    "filters/delete": "filters taken away",
    "nodes/join": "machines that come",
    "nodes/fail": "machines that go without a word",
    "nodes/leave": "machines that go with a word",
    "nodes/rebalance": "balancing after machines came and went",
}
GB, MESSAGES, EACH = "gb", "messages", "kb_per_operation"
#: Metric of the share that actually changes, after rounding to whole filters and machines.
CHANGED = "share_pct"
#: Kinds of changes whose cost is per operation.
_LOADS = (MACHINES, REPLICATION, WORK)


def _made(
    *, seed: int, nodes: int, filters: int, attributes: int, subscriptions: int, **params: Any
) -> tuple[Any, ...]:
    """Return trees on balanced machines, and the links of machines."""
    overlay = overlay_of(
        seed=seed, nodes=nodes, filters=filters, attributes=attributes, subscriptions=subscriptions,
        tried=params["events"],
    )  # fmt: skip
    merging = Merging(charges=overlay.charges(kappa=params["kappa"]), seed=seed).fit(overlay.hubs)
    start = Stretches.even(lines_of(merging.trees_, overlay.hubs), overlay, nodes=nodes)
    at = overlay.positions(overlay.events)
    even = balance(start, at, kappa=params["kappa"], rounds=params["rounds"], seed=seed).stretches
    return overlay, merging, even, at, Links(nodes, seed=seed)


def _trial(made: tuple[Any, ...], *, share: float, seed: int, **params: Any) -> list[Record]:
    """Return the cost of changing a share of filters and of machines."""
    overlay, merging, even, at, links = made
    drawn, filters, nodes = params["subscriptions"], params["filters"], overlay.n_nodes
    more, machines = changing(share, drawn, nodes)
    weight = filters / drawn
    # The next draws of the workload: of the same law, and different from existing filters.
    workload = Intervals(n_subscriptions=drawn + more, attributes=params["attributes"], seed=seed)
    lo, hi = workload.ends()
    new = overlay.filters(lo[drawn:], hi[drawn:], weight)
    filed = register(merging.trees_, overlay.hubs, new, links, seed=seed)
    joined = churn(even, links, joining=machines, seed=seed)
    failed = churn(even, links, leaving=machines, seed=seed)
    left = churn(even, links, leaving=machines, graceful=True, seed=seed)
    both = churn(even, links, leaving=machines, joining=machines, seed=seed)
    again = balance(both.stretches, at, kappa=params["kappa"], rounds=params["rounds"], seed=seed)
    loads = loads_of(again.stretches, at)
    work = loads.of("work")
    rows = [
        _record("filters/insert", filed.insertion, more * weight) | {CHANGED: 100 * more / drawn},
        _record("filters/delete", filed.deletion, more * weight),
        _record("nodes/join", joined.total, machines) | {CHANGED: 100 * machines / nodes},
        _record("nodes/fail", failed.total, machines) | {"rotations": failed.rotations},
        _record("nodes/leave", left.total, machines),
        _record("nodes/rebalance", again.moving, 2 * machines)
        | {"sampling_gb": again.sampling.bytes / 1e9, "moves": again.moves},
    ]
    rows[2] |= {"links_gb": joined.links.bytes / 1e9, "segments_gb": joined.segments.bytes / 1e9}
    rows[3] |= {"links_gb": failed.links.bytes / 1e9, "segments_gb": failed.segments.bytes / 1e9}
    rows[5] |= {
        MACHINES: loads.machines,
        REPLICATION: float(loads.of("storage").sum()) / filters,
        WORK: float(work.max() / work.mean()) if work.mean() > 0 else 1.0,
    }
    return rows


def changing(share: float, filters: int, nodes: int) -> tuple[int, int]:
    """Return the number of drawn filters, and of machines, that a share in per cent is.

    Examples
    --------
    >>> changing(5, 500, 24)
    (25, 1)
    """
    limit = f"a percentage above 0, up to 50, that is at least one of {nodes:,} machines"
    check_number("share", share, least=0, most=50, limit=limit)
    found = round(filters * share / 100), round(nodes * share / 100)
    if not min(found):
        raise ParameterError(
            parameter="share", value=share, limit=f"{limit} and of {filters:,} drawn filters"
        )
    return found


def _record(series: str, toll: Toll, operations: float) -> Record:
    """Return the record of the cost of a number of equal operations."""
    each = toll.bytes / operations / 1e3
    return {"series": series, GB: toll.bytes / 1e9, MESSAGES: toll.messages, EACH: each}


def _figure_7b(study: Study) -> Outcome:
    """Run all shares, and compare with the paper."""
    params = dict(study.params)
    shares = params.pop("share")
    for share in shares:
        changing(share, params["subscriptions"], params["nodes"])
    found: dict[tuple[str, float, str], list[float]] = {}
    for row in study.run(Sweep(_trial, {"share": shares}, study.seeds, params, setup=_made)).rows:
        values: dict[str, Any] = dict(row)
        for metric, value in values.items():
            if metric not in ("series", "share", "seed") and value is not None:
                found.setdefault((values["series"], values["share"], metric), []).append(value)
    rows = [ResultRow.of(series, x, metric, values) for (series, x, metric), values in found.items()]
    marks = [
        {"series": SERIES[row.series], "order": list(SERIES).index(row.series), "share": row.x,
         "value": row.measured, "kind": row.series.partition("/")[0]}
        for row in rows
        if row.metric == GB and row.measured > 0
    ]  # fmt: skip
    value = {(row.series, row.x or 0.0, row.metric): row.measured for row in rows}
    notes = [*_claims(value, shares), *size_note(params, ("nodes", "filters", "attributes"))]
    main = (GB, MESSAGES, EACH)
    caption = caption_of(params, len(study.seeds))
    return Outcome(
        [row for row in rows if row.metric in main],
        {"cobas2009-figure-7b": (marks, caption)},
        notes,
        [row for row in rows if row.metric not in main],
    )


def _claims(value: Mapping[tuple[str, float, str], float], shares: Sequence[float]) -> list[str]:
    """Return notes that compare the paper's claims on maintenance with the results."""

    def sums(kind: str, share: float, metric: str) -> float:
        ways = ("join", "fail") if kind == "nodes" else ("insert", "delete")
        return sum(value[f"{kind}/{way}", share, metric] for way in ways)

    last = shares[-1]
    dearer = [x for x in shares if sums("nodes", x, GB) > sums("filters", x, GB)]
    each = {kind: sums(kind, last, EACH) / 2 for kind in ("nodes", "filters")}
    costs = (
        "The paper: machines that come and go take relatively more than filters that are added and taken "
        f"away. Here, with {last:g} % of either, {sums('nodes', last, GB):.2f} GB against "
        f"{sums('filters', last, GB):.2f} GB, without balancing. Machines take more with "
        f"{listed(dearer)} of {listed(shares)} %: {verdict(len(dearer) == len(shares))} by the same share of "
        f"both. With {last:g} %, one machine takes {each['nodes']:,.0f} kB and one filter "
        f"{each['filters']:,.1f} kB: {verdict(each['nodes'] > each['filters'])} by the piece."
    )
    notes = [costs]
    odd = [
        f"{x:g} % of machines are {value['nodes/join', x, CHANGED]:.3g} %"
        for x in shares
        if abs(value["nodes/join", x, CHANGED] - x) > 0.05 * x
    ]
    if odd:
        notes.append(f"There are only whole machines: {', '.join(odd)}.")
    lost, handed = (value[f"nodes/{way}", last, GB] for way in ("fail", "leave"))
    notes.append(
        f"Machines that go without a word take {lost:.2f} GB, for agents look up and register what they "
        f"held; those that hand it on {handed:.2f} GB. Links are {value['nodes/fail', last, 'links_gb']:.3f} "
        f"GB of the former. Balancing after {last:g} % went and came takes "
        f"{value['nodes/rebalance', last, GB]:.2f} GB, and samples "
        f"{value['nodes/rebalance', last, 'sampling_gb']:.2f} GB."
    )
    turned = max(value["nodes/fail", x, "rotations"] for x in shares)
    notes.append(
        f"Trees were to be rotated {turned:.1f} times at most: so few keys go that no side of a root is less "
        "than half as high as the other."
        if not turned
        else f"Trees were to be rotated {turned:.1f} times at most."
    )
    machines, replication, work = (value["nodes/rebalance", last, metric] for metric in _LOADS)
    notes.append(
        f"Afterwards an event comes to {machines:.1f} machines, {replication:.1f} hold a filter, and the "
        f"most work of a machine is {work:.1f} times the mean. The paper prints no numbers, nor how many "
        "change."
    )
    return notes


FIGURE_7B = Experiment(
    "traffic of adding and removing filters, and of machines that join and leave",
    _figure_7b,
    {**PAPER, "share": [1.0, 2.0, 5.0, 10.0], "events": 500, "rounds": 60},
    {**SMALL, "share": [2.0, 10.0], "events": 200},
)
