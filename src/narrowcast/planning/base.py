"""The seam between interests and plans, and what every planner shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from narrowcast.errors import ParameterError
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
    "check_channels",
    "check_seed",
    "check_whole",
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
        return (name for name in sorted(self._items) if not getattr(self._items[name], "needs", ()))

    def __len__(self) -> int:
        return sum(1 for _ in self)


#: Planners by the name that `--method` takes; each entry makes a planner from keyword parameters.
PLANNERS = Planners("method")


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


def check_number(name: str, value: float, *, least: float, most: float = math.inf, fix: str) -> None:
    """Refuse a parameter that is not a number, not finite, or out of range; `fix` says what to give."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not least <= value <= most or not math.isfinite(value):
        raise ParameterError(f"{name} is {value!r}; {fix}")


def check_flag(name: str, value: bool) -> None:
    """Refuse a parameter that is neither true nor false."""
    if not isinstance(value, bool | np.bool_):
        raise ParameterError(f"{name} is {value!r}; give true or false")


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
