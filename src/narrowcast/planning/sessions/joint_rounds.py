"""`joint` in rounds: moves are proposed on a frozen state, batch by batch, and made on the current one.

Kinds of flows (flows of the same users) are stored anywhere; see `FlowKinds`. `KindLevels` has who is in which
session, and the session of each kind. A sample of kinds that fits is planned by `Joint`. The others are put
in, and then moved in rounds: where kinds are stored, moves are proposed on the state as it was when the batch
began (`FrozenLevels.propose`); each proposal is then priced once more, and made if it still lowers the cost
(`KindLevels.improve`). Whole sessions are moved in between. So the cost falls with every move, and proposals
are taken in the order of kinds, so that it makes no difference how a batch is split.

Before these rounds, if they are not too many, parts of the kinds that fit are moved at random as `Joint` does
it, less and less uphill: for that it is enough to know of the others who is in which session.

`plan_in_rounds` is the loop. `in_rounds` has the kinds in this process,
`narrowcast.spark.planning.large_joint` in the rows of a Spark table.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

import numpy as np

from narrowcast.kernels import joint, proposals
from narrowcast.model.interest import Interest
from narrowcast.model.matches import Matches
from narrowcast.model.relation import relation_of
from narrowcast.planning.progress import report_round
from narrowcast.planning.sessions.clusters import FlowClusters, FlowPoints, two_level_plan
from narrowcast.planning.sessions.two_levels import flows_of_users, heats_of, proposals_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.kernels.limits import Limits
    from narrowcast.kernels.sessions import Points as Rows
    from narrowcast.kernels.sessions import State
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.planning.progress import Progress
    from narrowcast.planning.sessions.joint import Joint

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]
    Numbers: TypeAlias = NDArray[np.int32]

#: The most rounds, and the share of the cost that a round has to save for another one.
ROUNDS, LEAST = 20, 1e-3
#: The most batches of a round, where the limit does not ask for more, and the fewest kinds worth a batch.
BATCHES, FEWEST = 16, 1 << 14
#: Sessions that are proposed for a kind: where moves of other kinds came first, the next best may still do.
CHOICES = 4
#: How often parts of the kinds are moved at random, in all, and each at most.
VISITS, TIMES = 60, 8
#: Users of kinds that are taken at once in any case.
AT_ONCE = 1 << 20


class MoveProposals(NamedTuple):
    """Moves of kinds that cost less elsewhere, in any order.

    Parameters
    ----------
    kind
        The number of each kind.
    to
        For each up to `CHOICES` sessions, the best first, and -1 behind the last.
    points
        The users and the rate of each.
    """

    kind: Numbers
    to: Numbers
    points: Rows


class FlowKinds(Protocol):
    """Numbered kinds of flows, no two of the same users, wherever they are stored."""

    @property
    def n_users(self) -> int:
        """The number of users."""
        ...

    @property
    def rate(self) -> Doubles:
        """The rate of each kind."""
        ...

    @property
    def size(self) -> Ints:
        """The number of users of each kind."""
        ...

    def part(self, low: int, high: int) -> Rows:
        """Bring kinds from one number up to another here."""
        ...


#: Has moves of the kinds of a batch proposed, by `FrozenLevels.propose`.
Executor: TypeAlias = Callable[["FrozenLevels"], MoveProposals]


@dataclass(frozen=True, slots=True)
class LocalFlowKinds:
    """Kinds in this process.

    Parameters
    ----------
    points
        The users and the rate of each.
    n_users
        The number of users.
    """

    points: Rows
    n_users: int

    @property
    def rate(self) -> Doubles:
        """The rate of each kind."""
        return self.points[2]

    @property
    def size(self) -> Ints:
        """The number of users of each kind."""
        return np.diff(self.points[0])

    def part(self, low: int, high: int) -> Rows:
        """Return kinds from one number up to another."""
        start, users, rate = self.points
        return start[low : high + 1], users, rate[low:high]

    def propose(self, frozen: FrozenLevels) -> MoveProposals:
        """Propose moves of the kinds of a batch."""
        kind = frozen.low + np.arange(len(frozen.session), dtype=np.int32)
        points = self.part(frozen.low, frozen.low + len(kind))
        return MoveProposals(kind, frozen.propose(kind, points), points)


def plan_in_rounds(
    kinds: FlowKinds,
    propose: Executor,
    planner: Joint,
    *,
    limit: int,
    rounds: int = ROUNDS,
    tell: Progress | None = None,
) -> KindLevels:
    """Plan a sample of kinds, put in the others, and move kinds in rounds.

    Parameters
    ----------
    kinds
        The kinds; those with numbers between two others are a random sample of all.
    propose
        Has moves of a batch of them proposed.
    planner
        Plans the sample, with half of its seconds, and has the parameters of the plan.
    limit
        The most users of kinds that are brought here; a sample has as many, but a kind for each session.
    rounds
        The most rounds in which kinds are moved; with none, what is not in the sample is only put in.
    tell
        Called after each round with its number and the cost; first, as round 0, when all kinds are put in.
    """
    n, size, sessions = len(kinds.rate), kinds.size, planner.sessions
    planner, end = copy(planner), None
    if planner.seconds is not None:
        end = time.monotonic() + planner.seconds
        planner.seconds /= 2
    n_groups = min(planner.channels or 0, n)
    n_sessions = n_groups if sessions is None else min(sessions, n)
    levels = KindLevels(kinds, n_sessions, n_groups if sessions is not None else min(1, n), planner)
    if n == 0:
        return levels
    at = min(n, max(n_sessions, int(np.searchsorted(np.cumsum(size), limit, side="right"))))
    levels.begin(planner, at)
    most = max(limit, AT_ONCE)
    while at < n:
        # No more than what is there already: so the frozen state is like the one it adds to.
        high = _reach(size, at, min(most, int(size[:at].sum())))
        levels.improve(propose, at, high)
        at = high
    levels.settle()
    if rounds:
        levels.cool(_parts(size, limit), planner, end)
    report_round(tell, 0, levels.cost)
    edges = _edges(size, most)
    for turn in range(rounds):
        if end is not None and time.monotonic() >= end:
            break
        before = levels.cost
        for low, high in pairwise(edges):
            levels.improve(propose, low, high)
        levels.settle()
        report_round(tell, turn + 1, levels.cost)
        if before - levels.cost <= LEAST * before:
            break
    return levels


def in_rounds(
    interest: Interest, planner: Joint, *, limit: int, rounds: int = ROUNDS, tell: Progress | None = None
) -> ChannelPlan:
    """Return the plan by `plan_in_rounds`, with all kinds in this process, in a random order.

    Parameters
    ----------
    interest
        The subscribers and what they want.
    planner, limit, rounds, tell
        See `plan_in_rounds`.
    """
    points, flows = FlowPoints.of(interest)
    collapsed, kind = points.collapsed()
    order = np.random.default_rng(planner.seed).permutation(len(collapsed))
    shuffled = collapsed.take(order)
    csr = shuffled.sets.indptr, shuffled.sets.index, shuffled.rate
    kinds = LocalFlowKinds(csr, points.n_users)
    levels = plan_in_rounds(kinds, kinds.propose, planner, limit=limit, rounds=rounds, tell=tell)
    session = np.empty(len(order), np.int64)
    session[order] = levels.session
    return two_level_plan(interest, flows, session[kind], levels.parent if levels.two else None)


class KindLevels:
    """Kinds in sessions in groups, with who is in each.

    Parameters
    ----------
    kinds
        The kinds.
    n_sessions, n_groups
        The number of sessions, and of groups; one group where the plan has one level.
    planner
        Has the parameters of the plan.
    """

    def __init__(self, kinds: FlowKinds, n_sessions: int, n_groups: int, planner: Joint) -> None:
        nothing = FlowPoints(Matches.from_pairs([], [], 0), np.zeros(0), kinds.n_users)
        nowhere = np.zeros(0, np.int64)
        alpha, beta = float(planner.alpha), float(planner.beta)
        self.two = planner.sessions is not None
        # Without sessions a group is one: then its users pay for both.
        self._weights = (alpha, beta) if self.two else (0.0, alpha + beta)
        self._kinds = kinds
        self.sessions: State = FlowClusters(nothing, nowhere, n_sessions).state
        self.groups: State = FlowClusters(nothing, nowhere, n_groups).state
        self.session = np.full(len(kinds.rate), -1, np.int32)
        self.parent = np.arange(n_sessions) % max(1, n_groups)
        self._member = np.zeros(kinds.n_users, np.int32)

    def begin(self, planner: Joint, n: int) -> None:
        """Plan the first n kinds; sessions that the plan does not use stay empty."""
        points = self._kinds.part(0, n)
        start, users, rate = points
        kind = np.arange(n, dtype=np.int32)
        wants = relation_of(
            users[start[0] : start[-1]], np.repeat(kind, np.diff(start)), (self._kinds.n_users, n)
        )
        plan = planner.fit(Interest(wants, rate)).plan_
        n_groups = plan.n_groups if plan.n_groups < plan.n_channels else 0
        session = (plan.carries.indices - n_groups).astype(np.int32)
        self.parent[: plan.n_channels - n_groups] = plan.parent[n_groups:] if n_groups else 0
        self._make(MoveProposals(kind, session[:, None], points))

    def improve(self, propose: Executor, low: int, high: int) -> int:
        """Have moves of kinds from one number up to another proposed, and make them; return how many."""
        frozen = FrozenLevels(
            self.sessions, self.groups, self.parent, self._weights, low, self.session[low:high]
        )
        return self._make(propose(frozen))

    def _make(self, proposed: MoveProposals) -> int:
        kind, to, points = proposed
        return proposals.accept(
            points, self._weights, np.argsort(kind), kind, to, self.session, self.parent, self.sessions,
            self.groups, self._member,
        )  # fmt: skip

    def cool(self, edges: list[int], planner: Joint, end: float | None) -> None:
        """Move kinds at random, uphill less and less, part by part; go back if that leads to no less."""
        n, size = len(self.session), self._kinds.size
        entries = int(size.sum())
        times = min(TIMES, VISITS // (len(edges) - 1))
        tries = proposals_of(planner.sweeps, n, entries)
        unit = self.cost / max(1, n)
        if times < 2 or not tries or not unit or len(self.parent) < 2:
            return
        kept = [each.copy() for each in self._arrays]
        before = self.cost
        random = np.random.default_rng([planner.seed, 1]).integers(1, 2**63, 1, np.uint64)
        for heats in pairwise(heats_of(unit, times)):
            for low, high in pairwise(edges):
                if end is not None and time.monotonic() >= end:
                    break
                share = tries * int(size[low:high].sum()) // (times * max(1, entries))
                self._visit(low, high, share, heats, random)
            self.settle()
        if self.cost > before:
            for mine, was in zip(self._arrays, kept, strict=True):
                mine[:] = was

    @property
    def _arrays(self) -> list[NDArray[Any]]:
        """All that moves change."""
        return [*self.sessions, *self.groups, self.session, self.parent, self._member]

    def _visit(self, low: int, high: int, n: int, heats: tuple[float, float], random: Any) -> None:
        """Move kinds from one number up to another at random."""
        points = self._kinds.part(low, high)
        session = self.session[low:high].astype(np.int64)
        start, users, _ = points
        wanted = flows_of_users(np.diff(start), users[start[0] : start[-1]], len(self._member))
        rules = (*self._rules[:4], np.full(high - low, -1), *self._rules[5:])
        joint.anneal(
            points, self._weights, wanted, session, self.parent, self.sessions, self.groups, random, n, heats,
            rules,
        )  # fmt: skip
        self.session[low:high] = session

    def settle(self) -> None:
        """Take out of rates what rounding has left, and move whole sessions to where they cost least."""
        rate = self.sessions[3]
        rate[:] = np.bincount(self.session, self._kinds.rate, len(rate))
        joint.count_groups(self.sessions, self.parent, self.groups, self._member)
        if len(self.groups[2]) > 1:
            joint.move_sessions(self._weights[0], self.parent, self.sessions, self.groups, self._rules)
            joint.count_groups(self.sessions, self.parent, self.groups, self._member)

    @property
    def _rules(self) -> Limits:
        """Limits that no plan breaks."""
        free, nobody = np.full(len(self.parent), -1), np.zeros((0, 0), np.uint8)
        return self._member, nobody, np.full(3, np.inf), np.zeros(5), free[:0], free, np.zeros(0)

    @property
    def cost(self) -> float:
        """What users filter, on both levels."""
        alpha, beta = self._weights
        return float(alpha * (self.groups[2] @ self.groups[3]) + beta * (self.sessions[2] @ self.sessions[3]))


@dataclass(frozen=True, slots=True)
class FrozenLevels:
    """The state at the start of a batch of kinds; pickled, it has two bits for each user and session.

    Parameters
    ----------
    sessions, groups
        Who is in each, as kernels read it; of counts only whether they are 0, 1 or more.
    parent
        The group of each session.
    weights
        What a user pays on both levels.
    low, session
        The number of the batch's first kind, and the session of each, -1 for none.
    """

    sessions: State
    groups: State
    parent: Ints
    weights: tuple[float, float]
    low: int
    session: Numbers

    def propose(self, kind: Ints | Numbers, points: Rows) -> Numbers:
        """Return for each of some kinds of the batch the sessions where it costs less, as in `MoveProposals`."""
        to = np.empty((len(kind), CHOICES), np.int32)
        own = self.session[kind - self.low]
        proposals.propose(points, self.weights, own, self.parent, self.sessions, self.groups, to)
        return to

    def __reduce__(self) -> tuple[Any, ...]:
        rest = (self.parent, self.weights, self.low, self.session)
        return _thawed, (_packed_bits(self.sessions), _packed_bits(self.groups), *rest)


def _packed_bits(state: State) -> tuple[Any, ...]:
    """Return a state in few bytes: who is in each, and who would not be but for one flow."""
    count, flag, size, theta = state
    return flag.shape, np.packbits(flag), np.packbits(count == 1), size, theta


def _thawed(sessions: tuple[Any, ...], groups: tuple[Any, ...], *rest: Any) -> FrozenLevels:
    """Return a state that was pickled."""
    return FrozenLevels(_unpacked(*sessions), _unpacked(*groups), *rest)


def _unpacked(shape: tuple[int, int], flags: Any, alone: Any, size: Any, theta: Any) -> State:
    """Return a state from its few bytes, with 2 for every count above 1."""
    n = shape[0] * shape[1]
    flag, one = (np.unpackbits(bits, count=n).reshape(shape) for bits in (flags, alone))
    return cast("NDArray[np.int32]", 2 * flag - one), flag, size, theta


def _parts(size: Ints, most: int) -> list[int]:
    """Return where to cut kinds into parts of at most about so many users.

    >>> _parts(np.full(100, 10), 400)
    [0, 33, 66, 100]
    """
    total = np.cumsum(size)
    n = max(1, -(-int(total[-1]) // most))
    inner = np.searchsorted(total, total[-1] * np.arange(1, n) / n, side="right")
    found: list[int] = np.unique([0, *inner, len(size)]).tolist()
    return found


def _reach(size: Ints, low: int, entries: int) -> int:
    """Return up to which kind there are about so many users from one kind on: one kind at least."""
    reached = np.searchsorted(np.cumsum(size[low:]), entries, side="right")
    return low + max(1, int(reached))


def _edges(size: Ints, most: int) -> list[int]:
    """Return where to cut kinds into batches of about equal size, none much larger than so many users.

    >>> _edges(np.full(4096, 10), 20_000)
    [0, 1365, 2730, 4096]
    """
    n = max(1, min(BATCHES, len(size) // FEWEST))
    return _parts(size, min(most, -(-int(size.sum()) // n)))
