"""The seam between interests and plans, and what every planner shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from narrowcast.model.diff import PlanDelta, delta_between
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.relation import Positions, relation_of, rows_of
from narrowcast.registry import Registry

if TYPE_CHECKING:
    import pyarrow as pa

    from narrowcast.model.interest import Interest

__all__ = [
    "PLANNERS",
    "OnlinePlanner",
    "PlanDelta",
    "Planner",
    "Planners",
    "delta_between",
    "order_of",
    "plan_of_flows",
    "plan_of_subscribers",
]


class Planner(Protocol):
    """Something that makes a plan for an interest.

    `__init__` only stores keyword parameters, `channels` and `seed` among them; `fit` checks them, writes
    `plan_` and returns self. The same interest, parameters and seed give the same plan.
    """

    @property
    def plan_(self) -> ChannelPlan:
        """The plan of the last `fit`."""
        ...

    def fit(self, interest: Interest) -> Self:
        """Make a plan that serves every wanted pair."""
        ...


class OnlinePlanner(Planner, Protocol):
    """A planner that follows changes of interest."""

    def update(self, changes: pa.Table) -> PlanDelta:
        """Take up a table of changes (time, subscriber, flow, action) and return what changed in `plan_`."""
        ...


class Planners(Registry[Callable[..., Planner]]):
    """Planners by name.

    One that needs more than an interest, such as the boxes of subscribers, names that in `needs`. It is found
    by its name, and is not among those that come up when all are gone through: these can do without.
    """

    def __iter__(self) -> Iterator[str]:
        return (name for name in super().__iter__() if not getattr(self[name], "needs", ()))

    def __len__(self) -> int:
        return sum(1 for _ in self)


#: Planners by the name that `--method` takes; each entry makes a planner from keyword parameters.
PLANNERS = Planners(
    "method",
    {
        "auto": "narrowcast.planning.auto:Auto",
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
)


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
