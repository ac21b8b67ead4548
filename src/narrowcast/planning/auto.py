"""The method that is best for what is to be planned, as measured."""

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
#: Flows x flows x subscribers up to which the closest are merged: ten seconds.
_MERGED = 10**12


class AutoPlanner(BasePlanner):
    """Plans by the method that measured best for a cost (benchmarks/results/planning.json).

    For network cost that is `partial`, for filtering `joint`, for the overall cost `cover`, for false
    positives on events that are yet to come `direct`. For waste, where every flow goes by a channel, it
    mostly is `joint` too, now and then `pairwise` or `macqueen`: all three are tried, and the plan that
    wastes least is kept. `pairwise` is left out where it would take more than some ten seconds, as for 10,000
    flows and 10,000 subscribers, and `joint` where it takes too much memory.

    Parameters
    ----------
    channels
        The most channels; required, but for the overall cost, for which any number will do.
    seed
        Of what the method leaves to chance.
    topology, locations, publishers
        The network, where there is one: see `Partial`.
    cost
        `network`, `filtering`, `overall`, `false-positives` or `waste`; where left out, the first if there is
        a topology, the second if there are sessions, else the last.
    sessions
        The most sessions, for filtering.

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
        cost = self._checked()
        if cost != "waste":
            method, planner = self._for(cost)
            self.plan_ = planner.fit(interest).plan_
        else:
            plans = {name: planner.fit(interest).plan_ for name, planner in self._tried(interest)}
            waste = Waste()
            method = min(plans, key=lambda name: waste.score(interest, plans[name]).total)
            self.plan_ = plans[method]
        self.report_ = FitReport(method=method)
        return self

    def for_large(self) -> tuple[str, Planner]:
        """Return the method for an interest too large to try several: its name, and its planner.

        On one level `joint` saves waste as well: what users filter is what they get and do not want.
        """
        cost = self._checked()
        return self._for("filtering" if cost in ("overall", "waste") else cost)

    def _checked(self) -> str:
        """Refuse parameters that do not go together, and return the cost to plan for."""
        check_channels(self.channels, required="" if self.cost == "overall" else "auto")
        check_seed(self.seed)
        alone = "waste" if self.sessions is None else "filtering"
        cost = self.cost or (alone if self.topology is None else "network")
        if cost not in COSTS:
            raise ParameterError(f"cost is {cost!r}; auto knows the best method for {', '.join(COSTS)}")
        if self.sessions is not None and cost != "filtering":
            raise ParameterError(
                f"sessions is {self.sessions}, and plans for {cost} have one level; leave it out"
            )
        if cost == "network" and self.topology is None:
            raise ParameterError("cost is 'network' and there is no topology; give one, or take waste")
        return cost

    def _for(self, cost: str) -> tuple[str, Planner]:
        """Return the method for a cost that one method is best for, and its planner."""
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

    def _tried(self, interest: Interest) -> Iterator[tuple[str, Planner]]:
        """Yield the methods, by name, that may waste least and take neither too long nor too much memory."""
        assert self.channels is not None
        if fits(interest.n_subscribers, self.channels):
            yield "joint", Joint(channels=self.channels, seed=self.seed)
        if interest.n_flows**2 * interest.n_subscribers <= _MERGED:
            yield "pairwise", Pairwise(channels=self.channels)
        yield "macqueen", MacQueen(channels=self.channels)
