"""The planner `auto`: chooses the method that measured best for a cost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

from narrowcast.costs.waste import Waste
from narrowcast.errors import ParameterError
from narrowcast.planning.base import BasePlanner, Capabilities
from narrowcast.planning.cells.clusterings import MacQueen, Pairwise
from narrowcast.planning.cells.partial import Partial
from narrowcast.planning.fit_report import FitReport
from narrowcast.planning.sessions.clusters import fits
from narrowcast.planning.sessions.joint import Joint
from narrowcast.planning.subscribers.direct import Direct
from narrowcast.planning.topics.cover import Cover
from narrowcast.validation import check_channels, check_seed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike

    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.model.topology import Locations, Topology
    from narrowcast.planning.base import Planner

#: The costs that a method can be chosen for.
COSTS = ("network", "filtering", "overall", "false-positives", "waste")
#: Flows x flows x subscribers up to which `pairwise` is tried: ten seconds.
_PAIRWISE_WORK = 10**12


class AutoPlanner(BasePlanner):
    """Plans with the method that measured best for a cost (benchmarks/results/planning.json).

    For the network cost that is `partial`, for filtering `joint`, for the overall cost `cover`, for false
    positives on future events `direct`. For waste, where every flow goes by a channel, it is mostly `joint`,
    sometimes `pairwise` or `macqueen`: all three are tried, and the plan of least waste is chosen. `pairwise`
    is skipped where it would take more than about ten seconds, as for 10,000 flows and 10,000 subscribers,
    and `joint` where it would take too much memory.

    Parameters
    ----------
    channels
        The most channels; optional for the overall cost only, where None means no limit.
    seed
        Seed of the method's random choices (default: 0).
    topology, locations, publishers
        The network, if there is one: see `Partial`.
    cost
        `network`, `filtering`, `overall`, `false-positives` or `waste` (default: `network` with a topology,
        `filtering` with sessions, else `waste`).
    sessions
        The most sessions; for filtering only.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> auto = AutoPlanner(channels=2).fit(Interest([[1, 1, 0], [0, 1, 1]]))
    >>> auto.report_.method, auto.plan_
    ('joint', ChannelPlan(2 channels, 3 flows, 2 subscribers))
    """

    capabilities = Capabilities(network=True, chooses=True)
    plan_: ChannelPlan

    def __init__(
        self,
        *,
        channels: int | None = None,
        seed: int = 0,
        topology: Topology | None = None,
        locations: Locations | ArrayLike | None = None,
        publishers: ArrayLike | None = None,
        cost: str | None = None,
        sessions: int | None = None,
    ) -> None:
        self.channels = channels
        self.seed = seed
        self.topology = topology
        self.locations = locations
        self.publishers = publishers
        self.cost = cost
        self.sessions = sessions

        if cost == "false-positives":
            self.capabilities = replace(type(self).capabilities, clusters="subscribers", all_subscribers=True)

    def fit(self, interest: Interest) -> Self:
        """Choose the method and make the plan, `plan_`."""
        cost = self._checked_cost()
        if cost != "waste":
            method, planner = self._best_method(cost)
            self.plan_ = planner.fit(interest).plan_
        else:
            plans = {name: planner.fit(interest).plan_ for name, planner in self._candidates(interest)}
            waste = Waste()
            method = min(plans, key=lambda name: waste.score(interest, plans[name]).total)
            self.plan_ = plans[method]
        self.report_ = FitReport(method=method)
        return self

    def for_large(self) -> tuple[str, Planner]:
        """Return the name and planner of one method, for an interest too large to try several.

        For the overall cost and for waste this is the method for filtering: on one level, what subscribers
        filter out is what is wasted.
        """
        cost = self._checked_cost()
        return self._best_method("filtering" if cost in ("overall", "waste") else cost)

    def _checked_cost(self) -> str:
        """Check parameters and their combinations, and return the cost to plan for."""
        check_channels(self.channels, required="" if self.cost == "overall" else "auto")
        check_seed(self.seed)
        alone = "waste" if self.sessions is None else "filtering"
        cost = self.cost or (alone if self.topology is None else "network")
        if cost not in COSTS:
            raise ParameterError(parameter="cost", value=cost, limit=f"one of {', '.join(COSTS)}")
        if self.sessions is not None and cost != "filtering":
            raise ParameterError(
                f"sessions={self.sessions}: plans for cost {cost!r} have one level; leave sessions out",
                parameter="sessions",
                value=self.sessions,
            )
        if cost == "network" and self.topology is None:
            raise ParameterError(
                "cost='network': requires a topology; give a topology, or use cost 'waste'",
                parameter="cost",
                value="network",
            )
        return cost

    def _best_method(self, cost: str) -> tuple[str, Planner]:
        """Return the name and planner of the best method for a cost that has a single best one."""
        if cost == "network":
            planner = Partial(
                channels=self.channels,
                seed=self.seed,
                topology=self.topology,
                locations=self.locations,
                publishers=self.publishers,
            )
            return "partial", planner
        if cost == "overall":
            return "cover", Cover(channels=self.channels, seed=self.seed)
        if cost == "false-positives":
            return "direct", Direct(channels=self.channels, seed=self.seed)
        return "joint", Joint(channels=self.channels, sessions=self.sessions, seed=self.seed)

    def _candidates(self, interest: Interest) -> Iterator[tuple[str, Planner]]:
        """Yield names and planners of the methods to try for waste that are fast and small enough."""
        assert self.channels is not None
        if fits(interest.n_subscribers, self.channels):
            yield "joint", Joint(channels=self.channels, seed=self.seed)
        if interest.n_flows**2 * interest.n_subscribers <= _PAIRWISE_WORK:
            yield "pairwise", Pairwise(channels=self.channels)
        yield "macqueen", MacQueen(channels=self.channels)
