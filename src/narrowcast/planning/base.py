"""The contract of planners, their registry, and the construction of plans from assignments."""

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
    """What a planner requires and supports.

    Parameters
    ----------
    clusters
        What channels are made of: `flows`; `subscribers`, each of which is in one channel that carries
        everything that any of its members wants; or `nothing`, if the number of channels has no effect.
    all_subscribers
        Whether subscribers without interest are part of the plan.
    boxes
        Whether it requires the boxes of subscribers as its parameter `boxes`.
    network
        Whether it has the parameters `topology`, `locations` and `publishers`.
    warm_start
        Whether its parameter `start`, an earlier plan, is absent, optional or required.
    limits
        Whether it has the parameters that limit groups: `memberships`, `members`, `rate` and `pinned`.
    partial_groups
        Whether a channel may leave out subscribers that want its flows; they are served directly.
    online
        Whether it is an `OnlinePlanner`.
    chooses
        Whether it chooses among other methods, as a `ChoosingPlanner`.
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
    """Makes a plan for an interest; `BasePlanner` has defaults for all but `fit` and `plan_`.

    `__init__` only stores keyword parameters, among them `channels` and `seed`; `fit` checks them, sets
    `plan_` and `report_` and returns self. The same interest, parameters and seed give the same plan.
    """

    capabilities: Capabilities

    def __init__(self, **parameters: Any) -> None: ...

    @property
    def seed(self) -> int:
        """Seed of all random choices."""
        ...

    @property
    def plan_(self) -> ChannelPlan:
        """The plan of the last `fit`."""
        ...

    @property
    def report_(self) -> FitReport:
        """What the last `fit` reports in addition to the plan."""
        ...

    def fit(self, interest: Interest) -> Self:
        """Make a plan that serves every pair of a subscriber and a flow it wants."""
        ...


class ChoosingPlanner(Planner, Protocol):
    """A planner that chooses among other methods; its report names the method that it chose for the plan."""

    def for_large(self) -> tuple[str, Planner]:
        """Return the name and planner of one method, for an interest too large to try several."""
        ...


class OnlinePlanner(Planner, Protocol):
    """A planner that updates its plan as interest changes, and learns rates from events."""

    @property
    def half_life(self) -> float:
        """Seconds after which the weight of an observed event in the rate of its flow is halved."""
        ...

    @property
    def interest_(self) -> Interest:
        """The current interest, with the rates learned so far."""
        ...

    @property
    def messages_(self) -> dict[str, int]:
        """Number of messages that updates have caused so far, by kind of message; empty if not counted."""
        ...

    def update(self, changes: pa.Table) -> PlanDelta:
        """Apply a table of changes (time, subscriber, flow, action) and return what changed in `plan_`."""
        ...

    def observe(self, events: pa.Table, seconds: float) -> PlanDelta:
        """Update rates of flows from a table (flow, events) of event counts in the last `seconds`.

        Returns what changed in `plan_`.
        """
        ...

    def advance(self, time: float) -> PlanDelta:
        """Advance the time, in seconds, without a change of interest, and return what changed in `plan_`."""
        ...

    def resumed(self, interest: Interest, plan: ChannelPlan | None) -> Self:
        """Return a copy fitted to an interest, continuing from an earlier plan if one is given."""
        ...


class BasePlanner:
    """Base class of planners; by default they cluster flows and require nothing but an interest."""

    capabilities: Capabilities = Capabilities()
    report_: FitReport = FitReport()


#: Planners by the name of their method. An installed package adds its own through entry points of the group
#: `narrowcast.planners`.
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
    """Return the names of the planners that have the given capabilities.

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
    """Return the capabilities of a method; the defaults for a method that is not registered."""
    found: Capabilities = PLANNERS.get(method, BasePlanner).capabilities
    return found


def router_for(method: str, flow_space: str) -> str:
    """Return the name of the best router for plans of a method.

    For clusters of subscribers it is `channels`: every event goes to each cluster with an interested member,
    which is what their false positives are counted by. In other plans of events any channel may carry any
    event. To send an event to all channels with an interested subscriber would mostly cost more than direct
    messages, and the break-even threshold would leave channels unused: there, and for partial groups,
    `partial` chooses the cheapest channel.

    Parameters
    ----------
    method
        The name of a method.
    flow_space
        What the plan's flows are, such as `topics`, `cells` or `events`.

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
    """Return the plan with one channel per flow, to which all subscribers of its flows listen.

    Parameters
    ----------
    interest
        The interest to serve.
    channel
        For each flow its channel, or -1 to send it directly to the subscribers that want it.
    n_channels
        Number of channels of the plan.
    parent
        For a plan of two levels, the group of each session, and -1 for groups.

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
    """Return the plan with one channel per subscriber, which carries everything that its members want.

    Parameters
    ----------
    interest
        The interest to serve.
    channel
        The channel of each subscriber.
    n_channels
        Number of channels of the plan.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> plan = plan_of_subscribers(Interest([[1, 1, 0], [0, 1, 0], [0, 0, 1]]), np.array([0, 0, 1]), 2)
    >>> plan.carries.toarray().astype(int).tolist()
    [[1, 0], [1, 0], [0, 1]]
    """
    row, flow = rows_of(interest.wants), interest.wants.indices
    subscriber = np.arange(interest.n_subscribers)
    return ChannelPlan(
        relation_of(flow, channel[row], (interest.n_flows, n_channels)),
        relation_of(subscriber, channel, (interest.n_subscribers, n_channels)),
        subscribers=interest.subscribers,
        flows=interest.flows,
    )


def order_of(interest: Interest) -> Positions:
    """Return subscribers in an order that depends on their interest only, not on their numbering."""
    wants = interest.wants
    key = np.random.default_rng(0).integers(0, 2**63, interest.n_flows, np.uint64)
    # A hash of the wanted flows; the sum may wrap around.
    total = np.append(np.uint64(0), np.cumsum(key[wants.indices], dtype=np.uint64))
    return np.argsort(total[wants.indptr[1:]] - total[wants.indptr[:-1]], kind="stable")
