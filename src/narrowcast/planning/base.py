"""The seam between interests and plans, and what every planner shares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.model.diff import PlanDelta, delta_between
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.relation import Positions, relation_of, rows_of
from narrowcast.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from narrowcast.model.interest import Interest

__all__ = [
    "PLANNERS",
    "OnlinePlanner",
    "PlanDelta",
    "Planner",
    "check_channels",
    "check_seed",
    "check_whole",
    "delta_between",
    "plan_of_flows",
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


#: Planners by the name that `--method` takes; each entry makes a planner from keyword parameters.
PLANNERS: Registry[Callable[..., Planner]] = Registry("method")


def check_channels(channels: int | None, *, required: str = "") -> None:
    """Refuse a number of channels that is not a whole number of at least 1.

    Parameters
    ----------
    channels
        The number; None stands for as many as the method likes.
    required
        The name of a method that cannot do without.
    """
    if channels is None and not required:
        return
    if channels is None:
        raise ParameterError(f"channels is None; {required} needs a whole number of at least 1")
    check_whole("channels", channels)


def check_seed(seed: int) -> None:
    """Refuse a seed that is not a whole number of at least 0."""
    check_whole("seed", seed, least=0)


def check_whole(name: str, value: int, *, least: int = 1) -> None:
    """Refuse a parameter that is not a whole number, or too small."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ParameterError(f"{name} is {value!r}; give a whole number of at least {least}")


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
