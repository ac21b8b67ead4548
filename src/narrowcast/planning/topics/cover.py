"""Clusters that may overlap, chosen by subscribers and made for them in turns: the least overall cost."""

from __future__ import annotations

import math
import time
from copy import copy
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from narrowcast.costs.overall import INTERVAL, Overall
from narrowcast.errors import ParameterError
from narrowcast.planning.base import BasePlanner
from narrowcast.planning.progress import tell
from narrowcast.planning.topics.cover_state import CoverState
from narrowcast.planning.topics.lower_bound import least_overall
from narrowcast.validation import check_channels, check_seed, check_whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan

#: Clusters to begin with for 3000 subscribers; they grow with the square root of these.
_CLUSTERS, _SUBSCRIBERS = 80, 3000
#: Rounds where nothing else is said: so many at most, and fewer from so many wanted pairs on.
_ROUNDS, _PAIRS = 24, 4_000_000
#: Of the clusters to begin with, one in so many is new in a round.
_NEW = 4
#: Clusters that there is room for, as a multiple of those to begin with.
_ROOM = 3
#: The most passes in which clusters and subscribers take turns, from a start and after new clusters.
_PASSES, _FEW = 30, 4


class Cover(BasePlanner):
    """Plans for the overall cost, with all interests in one place: the product's own answer to tamara2007.

    Clusters begin as what subscribers want who are drawn at random. Then, in turns, each subscriber chooses
    clusters, by what they save, and takes the rest directly; and each cluster takes the flows that pay for
    those who chose it. A cluster that is not missed is removed. Then, round by round, new ones are drawn, and
    kept if all is cheaper after the same turns. One cluster of everything for everybody is tried as well; no
    plan is worse than that, nor than a channel for each flow. Each change is priced exactly, whatever the
    growth of costs.

    Parameters
    ----------
    channels
        The most channels, clusters and those of single flows together; of direct subscriptions, what is left
        then goes by unicast. Where left out, any number.
    seed
        What all random choices come from.
    clusters
        How many clusters to begin with; where left out, 80 for 3000 subscribers, and as the square root of
        their number. In the end there may be up to three times as many.
    rounds
        How often new clusters are drawn; where left out, up to 24 times, as often as takes some seconds.
    restarts
        How often all of it is done; the best is kept.
    cost_m, cost_a, cost_n, cost_d, interval
        What channels and events cost: see `Overall`.
    seconds
        The most that it may take, about; the best so far is kept. The plan then hangs on how fast the machine
        is.
    bound
        Whether to find out what no plan can cost less than: `bound_`, see `least_overall`.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> wants = [[1, 1, 1, 0]] * 5 + [[0, 1, 1, 1]] * 5 + [[1, 0, 0, 1]]
    >>> planner = Cover(interval=1).fit(Interest(wants, rate=[0.1, 0.2, 0.1, 0.1]))
    >>> planner.plan_, round(planner.cost_, 1)
    (ChannelPlan(1 channels, 4 flows, 11 subscribers), 21.5)
    """

    plan_: ChannelPlan
    #: What it costs: OC of the paper.
    cost_: float
    #: With `bound`: what no plan can cost less than, and the share by which this costs more; else None.
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
        """Make the plan, `plan_`."""
        model = self.model()
        found, kind = self.covering(interest, model)
        self.plan_ = found.plan(interest, kind, self.channels)
        self.cost_ = model.score(interest, self.plan_).total
        self.bound_ = self.gap_ = None
        if self.bound:
            self.bound_ = least_overall(interest, model)
            self.gap_ = self.cost_ / self.bound_ - 1 if self.bound_ > 0 else 0.0
        return self

    def model(self) -> Overall:
        """Refuse parameters that are out of range, and return the cost to plan for."""
        check_channels(self.channels)
        check_seed(self.seed)
        for name, value in (("clusters", self.clusters), ("restarts", self.restarts)):
            if value is not None:
                check_whole(name, value)
        if self.rounds is not None:
            check_whole("rounds", self.rounds, least=0)
        known = isinstance(self.seconds, int | float) and not isinstance(self.seconds, bool)
        if self.seconds is not None and not (known and self.seconds > 0):
            raise ParameterError(f"seconds is {self.seconds!r}; give a number above 0, or none for no limit")
        if not isinstance(self.bound, bool):
            raise ParameterError(f"bound is {self.bound!r}; give true or false")
        return Overall(
            cost_m=self.cost_m,
            cost_a=self.cost_a,
            cost_n=self.cost_n,
            cost_d=self.cost_d,
            interval=self.interval,
        )

    def hurried(self, share: float) -> Cover:
        """Return the same with only a share of its seconds."""
        found = copy(self)
        found.seconds = None if self.seconds is None else share * self.seconds
        return found

    def covering(
        self, interest: Interest, model: Overall, *, times: int = 1
    ) -> tuple[CoverState, NDArray[np.int64]]:
        """Return the best clusters that were found, and the kind of each subscriber.

        Each subscriber stands for so many, `times`.
        """
        end = math.inf if self.seconds is None else time.monotonic() + self.seconds
        n = times * interest.n_subscribers
        clusters = self.clusters or max(2, round(_CLUSTERS * math.sqrt(n / _SUBSCRIBERS)))
        found, kind = CoverState.of(interest, model, _ROOM * clusters + 1, times=times)
        search = _Search(found, self.channels)
        search.look()
        search.from_everything()
        for turn in range(self.restarts):
            if time.monotonic() < end:
                search.from_drawn(
                    np.random.default_rng([self.seed, turn]), clusters, self._rounds(found), end
                )
        found.restore(search.best)
        return found, kind

    def _rounds(self, found: CoverState) -> int:
        """Return how many rounds to make."""
        if self.rounds is not None:
            return self.rounds
        return max(1, min(_ROUNDS, _PAIRS // max(1, len(found.rows[1]))))


class _Search:
    """Looks for better clusters, and holds the best so far."""

    def __init__(self, found: CoverState, channels: int | None) -> None:
        self._found = found
        self._channels = channels
        self._bare = found.saved()
        self.best, self.cost = self._bare, math.inf

    def look(self) -> float:
        """Keep what there is if it is the best so far; return what it costs."""
        if self._channels is not None:
            self._found.limit(self._channels)
        cost = self._found.within(self._channels)
        if cost < self.cost:
            self.best, self.cost = self._found.saved(), cost
            tell(cost)
        return cost

    def from_everything(self) -> None:
        """Begin with one cluster of all that anybody wants, with everybody in it."""
        wanted = np.flatnonzero(self._found.direct)
        if len(wanted) < 2:
            return
        self._found.begin([wanted], everybody=True)
        self.look()
        self._found.settle(_PASSES)
        self.look()

    def from_drawn(self, rng: np.random.Generator, clusters: int, rounds: int, end: float) -> None:
        """Begin with what some subscribers want; then draw others, as often as is said."""
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
            self.look()
