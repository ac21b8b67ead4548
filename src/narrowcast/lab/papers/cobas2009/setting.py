"""Common parts of the experiments of cobas2009: sizes, records of results, and their wording."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from narrowcast.costs.line_positions import capacity_factor
from narrowcast.lab.hubs import Delays, HubTraffic, MachineRings
from narrowcast.workloads.intervals import Intervals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from narrowcast.lab.sweep import Record

#: The paper's table I: machines, filters, attributes; and values that it leaves open: the number of drawn
#: filters,
#: each of which represents several, and the capacity of a machine in even shares, 0 or inf for no limit.
PAPER: dict[str, Any] = {
    "nodes": 10_000,
    "filters": 10_000_000,
    "attributes": 10,
    "subscriptions": 50_000,
    "kappa": 10.0,
}
SMALL: dict[str, Any] = {"nodes": 128, "subscriptions": 3000}

GB = "gb_per_min"
COPIES = "copies_per_event"
MACHINES = "machines_per_event"
REPLICATION = "machines_per_filter"
WORK = "work_max_over_mean"
#: Main metrics, and further metrics.
MAIN = (GB, COPIES, REPLICATION, WORK)
BESIDE = ("upkeep_gb_per_min", "trees", "delivery_gb_per_min")
#: Names of systems in pictures.
NAMES = {
    "multi-1d": "multi-1D",
    "dr-tree": "DR-tree",
    "no-merging": "COBAS without merging",
    "no-division": "COBAS without division",
    "cobas": "COBAS",
}


def overlay_of(
    *,
    seed: int,
    nodes: int,
    filters: int,
    attributes: int,
    subscriptions: int,
    tried: int = 200,
    **given: Any,
) -> MachineRings:
    """Return machines and filters of a seed; `given` are parameters of the workload, such as `density`."""
    workload = Intervals(
        n_subscriptions=subscriptions, attributes=attributes, represents=filters, seed=seed, **given
    )
    return MachineRings.of(workload, nodes=nodes, tried=tried)


def delays_of(params: Mapping[str, Any]) -> Delays:
    """Return the delay model from an experiment's parameters."""
    return Delays(median_ms=params["median_ms"], spread=params["spread"], mbit=params["mbit"])


def traffic_record(traffic: HubTraffic, message: float) -> Record:
    """Return the record of a system's traffic.

    `message` is the traffic of sending each event once, in bytes per minute.
    """
    return {
        GB: traffic.total / 1e9,
        COPIES: traffic.copies,
        REPLICATION: traffic.replication,
        WORK: traffic.imbalance,
        "upkeep_gb_per_min": traffic.upkeep / 1e9,
        "trees": traffic.trees,
        "delivery_gb_per_min": traffic.delivery * message / 1e9,
    }


def crossing(x: Sequence[float], one: Sequence[float], other: Sequence[float]) -> tuple[float, float] | None:
    """Return the last two neighbouring positions between which two curves cross; None if they do not.

    Examples
    --------
    >>> crossing([1, 2, 4], [3.0, 2.0, 1.0], [1.0, 1.5, 2.0])
    (2, 4)
    """
    above = [a > b for a, b in zip(one, other, strict=True)]
    for i in range(len(x) - 1, 0, -1):
        if above[i] != above[i - 1]:
            return x[i - 1], x[i]
    return None


def verdict(yes: bool | None) -> str:
    """Return in words whether a claim of the paper was reproduced; None if nothing can be compared.

    Examples
    --------
    >>> verdict(True), verdict(None)
    ('reproduced', 'nothing to compare')
    """
    if yes is None:
        return "nothing to compare"
    return "reproduced" if yes else "not reproduced"


def listed(places: Sequence[float]) -> str:
    """Return positions in words."""
    return ", ".join(f"{x:g}" for x in places) or "none"


def count(many: float, what: str) -> str:
    """Return a number with its noun.

    Examples
    --------
    >>> count(1, "machine"), count(2000, "machine")
    ('1 machine', '2,000 machines')
    """
    return f"{many:,.15g} {what}" + ("" if many == 1 else "s")


def caption_of(params: Mapping[str, Any], seeds: int, *, without: str = "") -> str:
    """Return the subtitle of a chart: sizes, capacity and number of seeds."""
    words = {"attributes": "attribute", "nodes": "machine", "filters": "filter"}
    parts = [count(params[name], what) for name, what in words.items() if name != without]
    parts.append(f"{params['subscriptions']:,} of them drawn")
    room = capacity_factor(params["kappa"])
    parts.append("room for any number" if math.isinf(room) else f"room for {room:g} shares")
    parts.append(count(seeds, "seed"))
    return ", ".join(parts)


def size_note(params: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return a warning if some of the sizes are not the paper's."""
    other = [name for name in names if params[name] != PAPER[name]]
    if not other:
        return []
    return [f"The size here is not the paper's: {', '.join(f'{name} {params[name]:,}' for name in other)}."]
