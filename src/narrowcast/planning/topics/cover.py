"""The planner `cover`: overlapping clusters of flows for the least overall cost.

A cluster is a set of flows that share a channel; a subscriber may be a member of several. Subscribers that
want the same flows are of one kind, and are planned together. A direct subscriber of a flow gets it outside
of clusters.
"""

from __future__ import annotations

import math
import time
from copy import copy
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from narrowcast.costs.overall import INTERVAL, Overall
from narrowcast.errors import ParameterError
from narrowcast.planning.base import BasePlanner
from narrowcast.planning.progress import report_cost
from narrowcast.planning.topics.cover_state import CoverState
from narrowcast.planning.topics.lower_bound import least_overall
from narrowcast.validation import check_channels, check_seed, check_whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan

#: Initial clusters for 3000 subscribers; the number grows with the square root of the subscribers.
_CLUSTERS, _SUBSCRIBERS = 80, 3000
#: The most default rounds, and the number of pairs of subscribers and flows divided by the rounds.
_ROUNDS, _PAIRS = 24, 4_000_000
#: Number of initial clusters for each new cluster of a round.
_NEW = 4
#: The most clusters, as a multiple of the initial ones.
_ROOM = 3
#: The most passes in which clusters and subscribers take turns: from a start, and after new clusters.
_PASSES, _FEW = 30, 4


class Cover(BasePlanner):
    """Plans overlapping clusters for the overall cost, with all interests known in one place.

    Initial clusters are the interests of randomly drawn subscribers. Then, in turns, each subscriber chooses
    the clusters that save for it and takes its other flows directly, and each cluster takes the flows that
    pay for its members. Clusters whose removal saves are removed. Then, round by round, new clusters are
    drawn, and kept if the total is lower after the same turns. One cluster of all flows and subscribers is
    tried as well, so that no plan is worse than that, or than a channel for each flow. Each change is priced
    exactly, for any growth of costs.

    Parameters
    ----------
    channels
        The most channels, both of clusters and of single flows; direct subscriptions without a channel go by
        unicast (default: no limit).
    seed
        Seed of all random choices.
    clusters
        Number of initial clusters (default: 80 for 3000 subscribers, growing with the square root of their
        number). The plan may have up to three times as many.
    rounds
        Rounds in which new clusters are drawn (default: up to 24, as many as take some seconds).
    restarts
        Number of independent runs; the best is chosen (default: 1).
    cost_m, cost_a, cost_n, cost_d, interval
        The cost model: see `Overall`.
    seconds
        Approximate time limit; the best plan so far is chosen (default: no limit). With a limit the plan
        depends on the speed of the machine.
    bound
        Whether to compute a lower bound on the cost of any plan, `bound_`: see `least_overall`.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> wants = [[1, 1, 1, 0]] * 5 + [[0, 1, 1, 1]] * 5 + [[1, 0, 0, 1]]
    >>> planner = Cover(interval=1).fit(Interest(wants, rate=[0.1, 0.2, 0.1, 0.1]))
    >>> planner.plan_, round(planner.cost_, 1)
    (ChannelPlan(1 channels, 4 flows, 11 subscribers), 21.5)
    """

    plan_: ChannelPlan
    #: The overall cost of the plan: OC of the paper.
    cost_: float
    #: With `bound`: the lower bound, and the share by which the plan costs more than it; else None.
    bound_: float | None
    gap_: float | None

    def __init__(
        self,
        *,
        channels: int | None = None,
        seed: int = 0,
        clusters: int | None = None,
        rounds: int | None = None,
        restarts: int = 1,
        cost_m: Any = "linear",
        cost_a: Any = "linear",
        cost_n: float = 1.0,
        cost_d: Any = "linear",
        interval: float = INTERVAL,
        seconds: float | None = None,
        bound: bool = False,
    ) -> None:
        self.channels = channels
        self.seed = seed
        self.clusters = clusters
        self.rounds = rounds
        self.restarts = restarts
        self.cost_m = cost_m
        self.cost_a = cost_a
        self.cost_n = cost_n
        self.cost_d = cost_d
        self.interval = interval
        self.seconds = seconds
        self.bound = bound

    def fit(self, interest: Interest) -> Self:
        """Search for clusters of flows and their members, and set `plan_`; return self."""
        model = self.model()
        found, kind = self.find_clusters(interest, model)
        self.plan_ = found.plan(interest, kind, self.channels)
        self.cost_ = model.score(interest, self.plan_).total
        self.bound_ = self.gap_ = None
        if self.bound:
            self.bound_ = least_overall(interest, model)
            self.gap_ = self.cost_ / self.bound_ - 1 if self.bound_ > 0 else 0.0
        return self

    def model(self) -> Overall:
        """Check parameters, and return the cost model."""
        check_channels(self.channels)
        check_seed(self.seed)
        for name, value in (("clusters", self.clusters), ("restarts", self.restarts)):
            if value is not None:
                check_whole(name, value)
        if self.rounds is not None:
            check_whole("rounds", self.rounds, least=0)
        known = isinstance(self.seconds, int | float) and not isinstance(self.seconds, bool)
        if self.seconds is not None and not (known and self.seconds > 0):
            limit = "a number above 0, or None for no limit"
            raise ParameterError(parameter="seconds", value=self.seconds, limit=limit)
        if not isinstance(self.bound, bool):
            raise ParameterError(parameter="bound", value=self.bound, limit="true or false")
        return Overall(
            cost_m=self.cost_m,
            cost_a=self.cost_a,
            cost_n=self.cost_n,
            cost_d=self.cost_d,
            interval=self.interval,
        )

    def with_time_share(self, share: float) -> Cover:
        """Return a copy of the planner whose time limit is a share of the limit of this one."""
        found = copy(self)
        found.seconds = None if self.seconds is None else share * self.seconds
        return found

    def find_clusters(
        self, interest: Interest, model: Overall, *, times: int = 1
    ) -> tuple[CoverState, NDArray[np.int64]]:
        """Search for clusters of flows; return the best ones, and for each subscriber the number of its kind.

        Subscribers that want the same flows are of one kind. The interest may be a sample: each of its
        subscribers counts `times` times.
        """
        end = math.inf if self.seconds is None else time.monotonic() + self.seconds
        n = times * interest.n_subscribers
        clusters = self.clusters or max(2, round(_CLUSTERS * math.sqrt(n / _SUBSCRIBERS)))
        found, kind = CoverState.of(interest, model, _ROOM * clusters + 1, times=times)
        search = _Search(found, self.channels)
        search.record()
        search.from_everything()
        for turn in range(self.restarts):
            if time.monotonic() < end:
                search.from_drawn(
                    np.random.default_rng([self.seed, turn]), clusters, self._rounds(found), end
                )
        found.restore(search.best)
        return found, kind

    def _rounds(self, found: CoverState) -> int:
        """Return the number of rounds in which new clusters are drawn: fewer for more wanted pairs."""
        if self.rounds is not None:
            return self.rounds
        return max(1, min(_ROUNDS, _PAIRS // max(1, len(found.rows[1]))))


class _Search:
    """A search for better clusters by random starts, which remembers the best state so far."""

    def __init__(self, found: CoverState, channels: int | None) -> None:
        self._found = found
        self._channels = channels
        self._bare = found.saved()
        self.best, self.cost = self._bare, math.inf

    def record(self) -> float:
        """Remember the current state if it is the best so far; return its cost."""
        if self._channels is not None:
            self._found.limit(self._channels)
        cost = self._found.within(self._channels)
        if cost < self.cost:
            self.best, self.cost = self._found.saved(), cost
            report_cost(cost)
        return cost

    def from_everything(self) -> None:
        """Start from one cluster of all wanted flows, with all subscribers in it."""
        wanted = np.flatnonzero(self._found.direct)
        if len(wanted) < 2:
            return
        self._found.begin([wanted], all_members=True)
        self.record()
        self._found.settle(_PASSES)
        self.record()

    def from_drawn(self, rng: np.random.Generator, clusters: int, rounds: int, end: float) -> None:
        """Start from the interests of random subscribers, then draw new ones in rounds."""
        found = self._found
        start, _, weight = found.rows
        able = np.flatnonzero(np.diff(start) > 1)
        if len(able) == 0:
            return
        chance = weight[able] / weight[able].sum()
        for turn in range(rounds + 1):
            if turn and time.monotonic() >= end:
                return
            found.restore(self.best if turn else self._bare)
            n = min(len(able), max(1, clusters // _NEW) if turn else clusters)
            found.begin(found.wanted_by(rng.choice(able, n, replace=False, p=chance)))
            found.settle(_FEW if turn else _PASSES)
            found.prune()
            found.settle(_PASSES)
            self.record()
