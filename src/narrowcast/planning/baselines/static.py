"""The planner `static`: keeps the channels of an earlier plan; only memberships change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from narrowcast.costs.overall import INTERVAL
from narrowcast.errors import ParameterError
from narrowcast.model.labels import positions
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.relation import relation_of, rows_of
from narrowcast.planning.base import Capabilities
from narrowcast.planning.baselines.subscriber_choice import ChoosingBaseline

if TYPE_CHECKING:
    from narrowcast.model.interest import Interest
    from narrowcast.model.relation import Relation


class Static(ChoosingBaseline):
    """Keeps which channel carries which flows; only memberships change (SC of tamara2007).

    Channels of two or more flows are clusters: subscribers choose among them by their current interest and
    the cost. All other wanted flows, new ones included, have a channel each. Channels keep their numbers, and
    clusters without members stay. Of a plan of two levels the groups are the channels.

    Parameters
    ----------
    channels
        The most channels; None means no limit. If there are more, those that save most are kept, and are
        renumbered.
    seed
        No effect.
    start
        The earlier plan. Without one there are no clusters, and every flow has a channel of its own.
    cost_m, cost_a, cost_n, cost_d, interval
        The cost model: see `Overall`.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> start = ChannelPlan(carries=[[1], [1], [0]], listens=[[1], [1]])
    >>> now = Interest([[1, 1, 0], [0, 0, 1], [1, 1, 1]])
    >>> plan = Static(start=start, interval=0.1).fit(now).plan_
    >>> plan.carries.toarray().astype(int).tolist(), plan.listens.toarray().astype(int).tolist()
    ([[1, 0], [1, 0], [0, 1]], [[1, 0], [0, 1], [1, 1]])
    """

    capabilities = Capabilities(warm_start="required")
    _keeps_unused = True

    def __init__(
        self,
        *,
        channels: int | None = None,
        seed: int = 0,
        start: ChannelPlan | None = None,
        cost_m: Any = "linear",
        cost_a: Any = "linear",
        cost_n: float = 1.0,
        cost_d: Any = "linear",
        interval: float = INTERVAL,
    ) -> None:
        super().__init__(
            channels=channels,
            seed=seed,
            cost_m=cost_m,
            cost_a=cost_a,
            cost_n=cost_n,
            cost_d=cost_d,
            interval=interval,
        )
        self.start = start

    def fit(self, interest: Interest) -> Self:
        """Let the subscribers of an interest choose among existing channels, and set `plan_`; return self."""
        if self.start is not None and not isinstance(self.start, ChannelPlan):
            raise ParameterError(parameter="start", value=self.start, limit="a plan")
        return super().fit(interest)

    def _topics(self, interest: Interest) -> Relation:
        if self.start is None:
            return relation_of([], [], (interest.n_flows, 0))
        groups = np.flatnonzero(self.start.parent < 0)
        number = np.full(self.start.n_channels, -1)
        number[groups] = np.arange(len(groups))
        carries = self.start.carries
        flow = positions("flow", self.start.flows, interest.flows)[rows_of(carries)]
        channel = number[self.start.groups()[carries.indices]]
        return relation_of(flow[flow >= 0], channel[flow >= 0], (interest.n_flows, len(groups)))
