"""The contract between interests and plans, and what every planner shares."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import numpy as np

from narrowcast.model.diff import PlanDelta, delta_between
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.relation import Positions, relation_of, rows_of
from narrowcast.planning.fit_report import FitReport
from narrowcast.registry import Registry

if TYPE_CHECKING:
    import pyarrow as pa

    from narrowcast.model.interest import Interest

__all__ = [
    "PLANNERS",
    "BasePlanner",
    "Capabilities",
    "ChoosingPlanner",
    "FitReport",
    "OnlinePlanner",
    "PlanDelta",
    "Planner",
    "capabilities_of",
    "delta_between",
    "order_of",
    "plan_of_flows",
    "plan_of_subscribers",
    "planners",
    "router_for",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a planner needs and does, as far as callers depend on it.

    Parameters
    ----------
    clusters
        What a channel is made of: `flows`, `subscribers`, each of which is in one channel that carries all
        that any of them wants, or `nothing`, where the number of channels changes nothing.
    all_subscribers
        Whether subscribers that want nothing yet are in the plan as well.
    boxes
        Whether it needs the boxes of subscribers, its parameter `boxes`.
    network
        Whether it takes `topology`, `locations` and `publishers`.
    warm_start
        Whether it takes an earlier plan, its parameter `start`, or requires one.
    limits
        Whether it takes limits on groups: `memberships`, `members`, `rate` and `pinned`.
    partial_groups
        Whether a channel may leave out subscribers that want its flows, which are then sent to directly.
    online
        Whether it is an `OnlinePlanner`.
    chooses
        Whether it makes its plan by one of several other methods: whether it is a `ChoosingPlanner`.
    """

    clusters: Literal["flows", "subscribers", "nothing"] = "flows"
    all_subscribers: bool = False
    boxes: bool = False
    network: bool = False
    warm_start: Literal["none", "optional", "required"] = "none"
    limits: bool = False
    partial_groups: bool = False
    online: bool = False
    chooses: bool = False


class Planner(Protocol):
    """Something that makes a plan for an interest; `BasePlanner` has defaults for all but `fit` and `plan_`.

    `__init__` only stores keyword parameters, `channels` and `seed` among them; `fit` checks them, writes
    `plan_` and `report_` and returns self. The same interest, parameters and seed give the same plan.
    """

    capabilities: Capabilities

    def __init__(self, **parameters: Any) -> None: ...

    @property
    def seed(self) -> int:
        """What all random choices come from."""
        ...

    @property
    def plan_(self) -> ChannelPlan:
        """The plan of the last `fit`."""
        ...

    @property
    def report_(self) -> FitReport:
        """What the last `fit` found besides the plan."""
        ...

    def fit(self, interest: Interest) -> Self:
        """Make a plan that serves every wanted pair."""
        ...


class ChoosingPlanner(Planner, Protocol):
    """A planner that makes its plan by one of several other methods, which its report names."""

    def for_large(self) -> tuple[str, Planner]:
        """Return the method for an interest too large to try several: its name, and its planner."""
        ...


class OnlinePlanner(Planner, Protocol):
    """A planner that follows changes of interest and learns rates from events."""

    @property
    def half_life(self) -> float:
        """Seconds after which an observed event counts half."""
        ...

    @property
    def interest_(self) -> Interest:
        """The interest now, with the rates that the planner believes in."""
        ...

    @property
    def messages_(self) -> dict[str, int]:
        """The messages that adapting has taken so far, by kind; empty where they are not counted."""
        ...

    def update(self, changes: pa.Table) -> PlanDelta:
        """Take up a table of changes (time, subscriber, flow, action) and return what changed in `plan_`."""
        ...

    def observe(self, events: pa.Table, seconds: float) -> PlanDelta:
        """Take up the number of events (flow, events) of the last seconds; return what changed in `plan_`."""
        ...

    def advance(self, time: float) -> PlanDelta:
        """Let time pass without a change, up to a time in seconds, and return what changed in `plan_`."""
        ...

    def resumed(self, interest: Interest, plan: ChannelPlan | None) -> Self:
        """Return a copy fitted to an interest that goes on from a plan, where there is one to go on from."""
        ...


class BasePlanner:
    """What planners derive from: by default they cluster flows and need nothing but an interest."""

    capabilities: Capabilities = Capabilities()
    report_: FitReport = FitReport()


#: Planners by the name that `--method` takes; an installed package adds its own by
#: entry points of the group `narrowcast.planners`.
PLANNERS: Registry[type[Planner]] = Registry(
    "method",
    {
        "auto": "narrowcast.planning.auto:AutoPlanner",
        "box-overlap": "narrowcast.lab.boxes.overlap:BoxOverlap",
        "broadcast": "narrowcast.planning.baselines.simple:Broadcast",
        "centroid": "narrowcast.lab.boxes.centroid:Centroid",
        "cover": "narrowcast.planning.topics.cover:Cover",
        "direct": "narrowcast.planning.subscribers.direct:Direct",
        "forgy": "narrowcast.planning.cells.clusterings:Forgy",
        "frequency-threshold": "narrowcast.lab.giant:FrequencyThreshold",
        "giant": "narrowcast.lab.giant:Giant",
        "hash": "narrowcast.planning.baselines.simple:Hash",
        "hierarchical-gf": "narrowcast.planning.sessions.hierarchical:GroupsFirst",
        "hierarchical-it": "narrowcast.planning.sessions.hierarchical:Iterated",
        "hierarchical-rra": "narrowcast.planning.sessions.hierarchical:Annealed",
        "hierarchical-sf": "narrowcast.planning.sessions.hierarchical:StreamsFirst",
        "joint": "narrowcast.planning.sessions.joint:Joint",
        "kmeans": "narrowcast.planning.baselines.kmeans:KMeans",
        "macqueen": "narrowcast.planning.cells.clusterings:MacQueen",
        "mst": "narrowcast.planning.cells.clusterings:Mst",
        "ncut": "narrowcast.lab.spectral.planner:Ncut",
        "pairwise": "narrowcast.planning.cells.clusterings:Pairwise",
        "partial": "narrowcast.planning.cells.partial:Partial",
        "per-flow": "narrowcast.planning.baselines.simple:PerFlow",
        "r-tree": "narrowcast.lab.boxes.rtree:RTree",
        "rassoc": "narrowcast.lab.spectral.planner:Rassoc",
        "static": "narrowcast.planning.baselines.static:Static",
        "tamara": "narrowcast.planning.topics.tamara.planner:Tamara",
        "tamara-tidy": "narrowcast.planning.topics.tamara.planner:TamaraTidy",
        "unicast": "narrowcast.planning.baselines.simple:Unicast",
    },
    group="narrowcast.planners",
)


def planners(**capabilities: Any) -> list[str]:
    """Return the names of the planners that have certain capabilities.

    Examples
    --------
    >>> planners(clusters="subscribers", boxes=False)
    ['direct', 'ncut', 'rassoc']
    """
    return [
        name
        for name, planner in PLANNERS.items()
        if planner.capabilities == replace(planner.capabilities, **capabilities)
    ]


def capabilities_of(method: str) -> Capabilities:
    """Return the capabilities of a method; the defaults for one that only a plan names."""
    found: Capabilities = PLANNERS.get(method, BasePlanner).capabilities
    return found


def router_for(method: str, flow_space: str) -> str:
    """Return the name of the router that plans of a method come out best with.

    Clusters of subscribers get every event that one of their members wants: that is what they are made for,
    and what their false positives are counted by. In another plan of events any channel may carry an event.
    Sent to all that have somebody interested, it would mostly cost more than direct messages do, so the
    break-even would leave channels unused: there, as in plans of partial groups, the best one is chosen.

    Parameters
    ----------
    method
        One of `PLANNERS`.
    flow_space
        What the plan's flows are.

    Examples
    --------
    >>> router_for("pairwise", "cells"), router_for("partial", "cells"), router_for("pairwise", "events")
    ('threshold', 'partial', 'partial')
    >>> router_for("direct", "events"), router_for("direct", "cells")
    ('channels', 'threshold')
    """
    known = capabilities_of(method)
    if flow_space == "events":
        return "channels" if known.clusters == "subscribers" else "partial"
    return "partial" if known.partial_groups else "threshold"


def plan_of_flows(
    interest: Interest, channel: Positions, n_channels: int, *, parent: Positions | None = None
) -> ChannelPlan:
    """Return the plan in which each flow goes to one channel and subscribers listen where they must.

    Parameters
    ----------
    interest
        Whom to serve.
    channel
        For each flow its channel; with -1 it is sent directly to those who want it.
    n_channels
        How many channels the plan has.
    parent
        In a plan of two levels the group of each channel, -1 for a group itself.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> plan = plan_of_flows(Interest([[1, 1, 0], [0, 1, 1]]), np.array([0, 0, -1]), 1)
    >>> plan.listens.toarray().tolist(), plan.unicast.toarray().tolist()
    ([[True], [True]], [[False, False, False], [False, False, True]])
    """
    carried = np.flatnonzero(channel >= 0)
    row, flow = rows_of(interest.wants), interest.wants.indices
    listened = channel[flow]
    by_channel = listened >= 0
    return ChannelPlan(
        relation_of(carried, channel[carried], (interest.n_flows, n_channels)),
        relation_of(row[by_channel], listened[by_channel], (interest.n_subscribers, n_channels)),
        parent=parent,
        unicast=relation_of(row[~by_channel], flow[~by_channel], interest.wants.shape),
        subscribers=interest.subscribers,
        flows=interest.flows,
    )


def plan_of_subscribers(interest: Interest, channel: Positions, n_channels: int) -> ChannelPlan:
    """Return the plan in which each subscriber listens to one channel, which carries all that they want.

    Parameters
    ----------
    interest
        Whom to serve.
    channel
        For each subscriber its channel.
    n_channels
        How many channels the plan has.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> plan = plan_of_subscribers(Interest([[1, 1, 0], [0, 1, 0], [0, 0, 1]]), np.array([0, 0, 1]), 2)
    >>> plan.carries.toarray().astype(int).tolist()
    [[1, 0], [1, 0], [0, 1]]
    """
    row, flow = rows_of(interest.wants), interest.wants.indices
    everybody = np.arange(interest.n_subscribers)
    return ChannelPlan(
        relation_of(flow, channel[row], (interest.n_flows, n_channels)),
        relation_of(everybody, channel, (interest.n_subscribers, n_channels)),
        subscribers=interest.subscribers,
        flows=interest.flows,
    )


def order_of(interest: Interest) -> Positions:
    """Return subscribers in an order that only depends on what they want, however they are numbered."""
    wants = interest.wants
    key = np.random.default_rng(0).integers(0, 2**63, interest.n_flows, np.uint64)
    total = np.append(np.uint64(0), np.cumsum(key[wants.indices], dtype=np.uint64))  # wraps, as a hash may
    return np.argsort(total[wants.indptr[1:]] - total[wants.indptr[:-1]], kind="stable")
