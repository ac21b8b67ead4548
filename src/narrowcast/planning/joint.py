"""Sessions and groups planned together: each move at what it changes on both levels, uphill ones at first."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING, Self

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.kernels import joint
from narrowcast.planning.base import PLANNERS, check_seed, check_whole
from narrowcast.planning.clusters import Clusters, Points, two_level_plan
from narrowcast.planning.hierarchical import check_levels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan

    Ints = NDArray[np.int64]

#: Proposals that are made in all where no number of sweeps is given, and the most sweeps that makes.
_PROPOSALS, _SWEEPS = 60_000_000, 10_000
#: Temperatures at the start and at the end, in what a flow costs on average.
_HOT, _COLD = 0.3, 0.012
#: Parts of the cooling, between which the clock is looked at.
_PARTS = 50
#: The most passes of moves that only go down.
_PASSES = 200


@PLANNERS.register("joint")
class Joint:
    """Plans both levels at once: the product's own answer to tock2005.

    Flows that the same subscribers want are one. They are put in turn where they cost least, sessions into
    groups likewise. Then flows, and now and then whole sessions, are moved at random at exactly what that
    changes, of which more and more only what lowers the cost; then flows and sessions in turns to where they
    cost least, until none moves.

    Parameters
    ----------
    channels
        The most groups; required.
    sessions
        The most sessions; where left out a group is a session, and the plan has one level.
    seed
        What all random choices come from.
    alpha, beta
        What a user pays for a message of its groups, and once more of its sessions: see `Filtering`.
    sweeps
        How often each flow is tried elsewhere on average; 0 for none. Where left out, as often as takes some
        seconds.
    restarts
        How often all of it is done; the best is kept.
    seconds
        The most that it may take, about; the best so far is kept. The plan then hangs on how fast the machine
        is.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> interest = Interest([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]], rate=[9, 2, 8, 3])
    >>> plan = Joint(channels=2, sessions=3).fit(interest).plan_
    >>> plan.n_groups, plan.n_channels
    (2, 5)
    """

    plan_: ChannelPlan
    #: What users filter with it: C1 + C2 of the paper.
    cost_: float

    def __init__(
        self,
        *,
        channels: int | None = None,
        sessions: int | None = None,
        seed: int = 0,
        alpha: float = 1.0,
        beta: float = 1.0,
        sweeps: int | None = None,
        restarts: int = 1,
        seconds: float | None = None,
    ) -> None:
        self.channels = channels
        self.sessions = sessions
        self.seed = seed
        self.alpha = alpha
        self.beta = beta
        self.sweeps = sweeps
        self.restarts = restarts
        self.seconds = seconds

    def fit(self, interest: Interest) -> Self:
        """Make the plan, `plan_`."""
        check_levels(self.channels, self.sessions, "joint")
        check_seed(self.seed)
        check_whole("restarts", self.restarts)
        if self.sweeps is not None:
            check_whole("sweeps", self.sweeps, least=0)
        if self.seconds is not None and not self.seconds > 0:
            raise ParameterError(f"seconds is {self.seconds!r}; give a number above 0, or none for no limit")
        assert self.channels is not None
        points, flows = Points.of(interest)
        kinds, kind = points.collapsed()
        n_groups = min(self.channels, len(kinds))
        n_sessions = n_groups if self.sessions is None else min(self.sessions, len(kinds))
        best: _Levels | None = None
        end = None if self.seconds is None else time.monotonic() + self.seconds
        for turn in range(self.restarts if n_groups else 0):
            if turn and end is not None and time.monotonic() >= end:
                break
            found = _Levels(kinds, n_groups, n_sessions, self.alpha, self.beta, [self.seed, turn])
            found.improve(self.sweeps, end)
            if best is None or found.cost < best.cost:
                best = found
        session, parent = (np.zeros(0, np.int64),) * 2 if best is None else (best.session, best.parent)
        self.cost_ = 0.0 if best is None else best.cost
        self.plan_ = two_level_plan(interest, flows, session[kind], None if self.sessions is None else parent)
        return self


class _Levels:
    """Flows in sessions in groups, with who is in each."""

    def __init__(
        self,
        points: Points,
        n_groups: int,
        n_sessions: int,
        alpha: float,
        beta: float,
        seed: list[int],
    ) -> None:
        rng = np.random.default_rng(seed)
        self.points, self._weights = points, (float(alpha), float(beta))
        self.session, self.parent = np.zeros(len(points), np.int64), np.zeros(n_sessions, np.int64)
        self._random = rng.integers(1, 2**63, 1, np.uint64)
        self.below = Clusters(points, self.session, n_sessions).seeded(rng.permutation(len(points)))
        middle = self.below.as_points()
        self.above = Clusters(middle, self.parent, n_groups).seeded(np.argsort(-middle.rate, kind="stable"))
        self._count()

    def _count(self) -> None:
        """Count anew, without what rounding has left."""
        self.below.counted()
        joint.count_groups(self.below.state, self.parent, self.above.state)

    @property
    def cost(self) -> float:
        """What users filter, on both levels."""
        alpha, beta = self._weights
        return alpha * self.above.cost + beta * self.below.cost

    def improve(self, sweeps: int | None, end: float | None) -> None:
        """Move flows and sessions, uphill at first, until none can be moved to where it costs less."""
        self._descend(end)
        kept, least = (self.session.copy(), self.parent.copy()), self.cost
        n = len(self.points)
        if sweeps is None:
            sweeps = min(_SWEEPS, _PROPOSALS // max(1, n))
        unit = least / max(1, n)
        if sweeps and unit > 0 and len(self.parent) > 1:
            sets = self.points.sets
            flows = sets.rows()[np.argsort(sets.index, kind="stable")].astype(np.int32)
            each = np.bincount(sets.index, minlength=self.points.n_users)
            wanted = np.append(0, np.cumsum(each)), flows
            heats = unit * _HOT * (_COLD / _HOT) ** (np.arange(_PARTS + 1) / _PARTS)
            for pair in pairwise(heats.tolist()):
                if end is not None and time.monotonic() >= end:
                    break
                joint.anneal(
                    self.below.csr, self._weights, wanted, self.session, self.parent, self.below.state,
                    self.above.state, self._random, sweeps * n // _PARTS, pair,
                )  # fmt: skip
                self._count()
            self._descend(end)
        if self.cost > least:
            self.session[:], self.parent[:] = kept
            self._count()

    def _descend(self, end: float | None) -> None:
        """Move flows and sessions in turns to where they cost least."""
        for _ in range(_PASSES):
            moved = joint.move_flows(
                self.below.csr, self._weights, self.session, self.parent, self.below.state, self.above.state
            )
            moved += joint.move_sessions(self.parent, self.below.state, self.above.state)
            self._count()
            if not moved or (end is not None and time.monotonic() >= end):
                return
