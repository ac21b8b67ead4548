"""The planner `joint` for large inputs: batches of moves are proposed on a frozen state and then applied.

A kind is a set of flows with the same subscribers. Kinds may be stored anywhere: see `FlowKinds`.
`KindLevels` holds the session of each kind and the subscribers of each session. A sample of kinds that fits
in memory is planned by `Joint`. The other kinds are added, and then all are moved in rounds: where kinds are
stored, moves are proposed on the state at the start of the batch (`FrozenLevels.propose`); each proposal is
then priced again on the current state and applied if it still lowers the cost (`KindLevels.improve`). Between
rounds whole sessions move. So every move lowers the cost, and as proposals are applied in the order of kinds,
the result does not depend on how a batch is split among workers.

Before these rounds, if few enough parts of the kinds cover them all, simulated annealing moves one part at a
time, as `Joint` does: of the other kinds it needs only the subscribers of each session.

`plan_in_rounds` is the loop. `in_rounds` runs it on kinds in this process,
`narrowcast.spark.planning.large_joint` on kinds in the rows of a Spark table.
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
from narrowcast.planning.sessions.two_levels import flows_of_users, proposals_of, temperatures

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

#: The most rounds, and the share of the cost that a round must save for another round to follow.
ROUNDS, LEAST = 20, 1e-3
#: The most batches of a round if the limit does not require more, and the fewest kinds of a batch.
BATCHES, FEWEST = 16, 1 << 14
#: Sessions proposed for a kind, best first: after moves of other kinds, a later one may be the best.
CHOICES = 4
#: The most visits of parts by simulated annealing in all, and for each part.
VISITS, TIMES = 60, 8
#: Least number of subscriber entries in a batch, whatever the limit.
LEAST_BATCH = 1 << 20


class MoveProposals(NamedTuple):
    """Proposed moves of kinds that cost less in another session, in any order.

    Parameters
    ----------
    kind
        The number of each kind.
    to
        For each kind up to `CHOICES` sessions, best first, padded with -1.
    points
        The subscribers and the rate of each kind.
    """

    kind: Numbers
    to: Numbers
    points: Rows


class FlowKinds(Protocol):
    """Kinds of flows: all flows with the same subscribers are one kind; loaded in parts from any storage."""

    @property
    def n_users(self) -> int:
        """Number of subscribers."""
        ...

    @property
    def rate(self) -> Doubles:
        """Messages per second of all flows of each kind."""
        ...

    @property
    def size(self) -> Ints:
        """Number of subscribers of each kind."""
        ...

    def part(self, low: int, high: int) -> Rows:
        """Load the subscribers of the kinds numbered from `low` up to `high`, exclusive."""
        ...


#: Proposes moves for all kinds of a batch, by `FrozenLevels.propose`.
Executor: TypeAlias = Callable[["FrozenLevels"], MoveProposals]


@dataclass(frozen=True, slots=True)
class LocalFlowKinds:
    """Kinds of flows stored in this process.

    Parameters
    ----------
    points
        The subscribers and the rate of each kind, in compressed rows.
    n_users
        Number of subscribers.
    """

    points: Rows
    n_users: int

    @property
    def rate(self) -> Doubles:
        """Messages per second of all flows of each kind."""
        return self.points[2]

    @property
    def size(self) -> Ints:
        """Number of subscribers of each kind."""
        return np.diff(self.points[0])

    def part(self, low: int, high: int) -> Rows:
        """Return the subscribers of the kinds numbered from `low` up to `high`, exclusive."""
        start, users, rate = self.points
        return start[low : high + 1], users, rate[low:high]

    def propose(self, frozen: FrozenLevels) -> MoveProposals:
        """Propose cheaper sessions for the kinds of a batch, priced on a frozen state."""
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
    progress: Progress | None = None,
) -> KindLevels:
    """Plan a sample of the kinds of flows, add the other kinds, and move kinds in rounds.

    Parameters
    ----------
    kinds
        The kinds, in random order: any range of numbers is a random sample.
    propose
        Proposes the moves of a batch.
    planner
        Plans the sample in half of its time limit, and has the parameters of the plan.
    limit
        The most subscriber entries of kinds that are loaded at once, except that a sample has at least one
        kind per session.
    rounds
        The most rounds; with 0 the kinds outside the sample are only added (default: 20).
    progress
        Called after each round with its number and the cost; first with round 0, when all kinds are added.
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
    most = max(limit, LEAST_BATCH)
    while at < n:
        # A batch is at most as large as the state it is added to, so that the frozen state changes little.
        high = _batch_end(size, at, min(most, int(size[:at].sum())))
        levels.improve(propose, at, high)
        at = high
    levels.settle()
    if rounds:
        levels.anneal(_part_edges(size, limit), planner, end)
    report_round(progress, 0, levels.cost)
    edges = _batch_edges(size, most)
    for turn in range(rounds):
        if end is not None and time.monotonic() >= end:
            break
        before = levels.cost
        for low, high in pairwise(edges):
            levels.improve(propose, low, high)
        levels.settle()
        report_round(progress, turn + 1, levels.cost)
        if before - levels.cost <= LEAST * before:
            break
    return levels


def in_rounds(
    interest: Interest, planner: Joint, *, limit: int, rounds: int = ROUNDS, progress: Progress | None = None
) -> ChannelPlan:
    """Return the plan of `plan_in_rounds`, with all kinds in this process and in random order.

    Parameters
    ----------
    interest
        The interest to serve.
    planner, limit, rounds, progress
        See `plan_in_rounds`.
    """
    points, flows = FlowPoints.of(interest)
    collapsed, kind = points.merge_equal()
    order = np.random.default_rng(planner.seed).permutation(len(collapsed))
    shuffled = collapsed.take(order)
    csr = shuffled.sets.indptr, shuffled.sets.index, shuffled.rate
    kinds = LocalFlowKinds(csr, points.n_users)
    levels = plan_in_rounds(kinds, kinds.propose, planner, limit=limit, rounds=rounds, progress=progress)
    session = np.empty(len(order), np.int64)
    session[order] = levels.session
    return two_level_plan(interest, flows, session[kind], levels.parent if levels.two else None)


class KindLevels:
    """An assignment of kinds to sessions and of sessions to groups, with the subscribers of each.

    Parameters
    ----------
    kinds
        The kinds.
    n_sessions, n_groups
        Number of sessions, and of groups; one group for a plan of one level.
    planner
        Has the parameters of the plan.
    """

    def __init__(self, kinds: FlowKinds, n_sessions: int, n_groups: int, planner: Joint) -> None:
        nothing = FlowPoints(Matches.from_pairs([], [], 0), np.zeros(0), kinds.n_users)
        nowhere = np.zeros(0, np.int64)
        alpha, beta = float(planner.alpha), float(planner.beta)
        self.two = planner.sessions is not None
        # Without sessions a channel is both group and session: its subscribers pay for both.
        self._weights = (alpha, beta) if self.two else (0.0, alpha + beta)
        self._kinds = kinds
        self.sessions: State = FlowClusters(nothing, nowhere, n_sessions).state
        self.groups: State = FlowClusters(nothing, nowhere, n_groups).state
        self.session = np.full(len(kinds.rate), -1, np.int32)
        self.parent = np.arange(n_sessions) % max(1, n_groups)
        self._member = np.zeros(kinds.n_users, np.int32)

    def begin(self, planner: Joint, n: int) -> None:
        """Plan the first n kinds as a sample, and use its sessions; unused sessions stay empty."""
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
        self._apply(MoveProposals(kind, session[:, None], points))

    def improve(self, propose: Executor, low: int, high: int) -> int:
        """Propose and apply moves of the kinds from `low` up to `high`; return the number of moves."""
        frozen = FrozenLevels(
            self.sessions, self.groups, self.parent, self._weights, low, self.session[low:high]
        )
        return self._apply(propose(frozen))

    def _apply(self, proposed: MoveProposals) -> int:
        kind, to, points = proposed
        return proposals.accept(
            points, self._weights, np.argsort(kind), kind, to, self.session, self.parent, self.sessions,
            self.groups, self._member,
        )  # fmt: skip

    def anneal(self, edges: list[int], planner: Joint, end: float | None) -> None:
        """Move kinds by simulated annealing, one range of kinds after the other; undo all if not cheaper."""
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
        for heats in pairwise(temperatures(unit, times)):
            for low, high in pairwise(edges):
                if end is not None and time.monotonic() >= end:
                    break
                share = tries * int(size[low:high].sum()) // (times * max(1, entries))
                self._anneal_part(low, high, share, heats, random)
            self.settle()
        if self.cost > before:
            for mine, was in zip(self._arrays, kept, strict=True):
                mine[:] = was

    @property
    def _arrays(self) -> list[NDArray[Any]]:
        """The arrays that moves of kinds and sessions change, to save and restore them."""
        return [*self.sessions, *self.groups, self.session, self.parent, self._member]

    def _anneal_part(self, low: int, high: int, n: int, heats: tuple[float, float], random: Any) -> None:
        """Make n random moves of kinds from `low` up to `high`, between the temperatures of `heats`."""
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
        """Recompute rates without rounding errors, and move each whole session to its cheapest group."""
        rate = self.sessions[3]
        rate[:] = np.bincount(self.session, self._kinds.rate, len(rate))
        joint.count_groups(self.sessions, self.parent, self.groups, self._member)
        if len(self.groups[2]) > 1:
            joint.move_sessions(self._weights[0], self.parent, self.sessions, self.groups, self._rules)
            joint.count_groups(self.sessions, self.parent, self.groups, self._member)

    @property
    def _rules(self) -> Limits:
        """Limits that permit every move, in the form that kernels require."""
        free, before = np.full(len(self.parent), -1), np.zeros((0, 0), np.uint8)
        return self._member, before, np.full(3, np.inf), np.zeros(5), free[:0], free, np.zeros(0)

    @property
    def cost(self) -> float:
        """The filtering cost on both levels."""
        alpha, beta = self._weights
        return float(alpha * (self.groups[2] @ self.groups[3]) + beta * (self.sessions[2] @ self.sessions[3]))


@dataclass(frozen=True, slots=True)
class FrozenLevels:
    """The state at the start of a batch of kinds, sent to workers with two bits per subscriber and session.

    Parameters
    ----------
    sessions, groups
        Members of each, as kernels read them; counts only tell apart 0, 1 and more.
    parent
        The group of each session.
    weights
        The cost of a message for a subscriber, on each level.
    low, session
        The number of the batch's first kind, and the session of each kind, -1 for none.
    """

    sessions: State
    groups: State
    parent: Ints
    weights: tuple[float, float]
    low: int
    session: Numbers

    def propose(self, kind: Ints | Numbers, points: Rows) -> Numbers:
        """Return cheaper sessions for some kinds of the batch, the best first, as in `MoveProposals.to`."""
        to = np.empty((len(kind), CHOICES), np.int32)
        own = self.session[kind - self.low]
        proposals.propose(points, self.weights, own, self.parent, self.sessions, self.groups, to)
        return to

    def __reduce__(self) -> tuple[Any, ...]:
        rest = (self.parent, self.weights, self.low, self.session)
        return _unpickle, (_pack_bits(self.sessions), _pack_bits(self.groups), *rest)


def _pack_bits(state: State) -> tuple[Any, ...]:
    """Pack a state of clusters: bits of members, and of members that want a single flow of the cluster."""
    count, flag, size, theta = state
    return flag.shape, np.packbits(flag), np.packbits(count == 1), size, theta


def _unpickle(sessions: tuple[Any, ...], groups: tuple[Any, ...], *rest: Any) -> FrozenLevels:
    """Rebuild a `FrozenLevels` from packed bits."""
    return FrozenLevels(_unpack_bits(*sessions), _unpack_bits(*groups), *rest)


def _unpack_bits(shape: tuple[int, int], flags: Any, alone: Any, size: Any, theta: Any) -> State:
    """Rebuild a state of clusters from packed bits; a count above 1 becomes 2."""
    n = shape[0] * shape[1]
    flag, one = (np.unpackbits(bits, count=n).reshape(shape) for bits in (flags, alone))
    return cast("NDArray[np.int32]", 2 * flag - one), flag, size, theta


def _part_edges(size: Ints, most: int) -> list[int]:
    """Return the indices that cut the kinds into ranges with at most about `most` subscribers in all.

    >>> _part_edges(np.full(100, 10), 400)
    [0, 33, 66, 100]
    """
    total = np.cumsum(size)
    n = max(1, -(-int(total[-1]) // most))
    inner = np.searchsorted(total, total[-1] * np.arange(1, n) / n, side="right")
    found: list[int] = np.unique([0, *inner, len(size)]).tolist()
    return found


def _batch_end(size: Ints, low: int, entries: int) -> int:
    """Return where a batch of kinds from `low` ends: at least one kind, about `entries` subscribers."""
    reached = np.searchsorted(np.cumsum(size[low:]), entries, side="right")
    return low + max(1, int(reached))


def _batch_edges(size: Ints, most: int) -> list[int]:
    """Cut the kinds into batches of similar size, with at most about `most` subscribers in all.

    >>> _batch_edges(np.full(4096, 10), 20_000)
    [0, 1365, 2730, 4096]
    """
    n = max(1, min(BATCHES, len(size) // FEWEST))
    return _part_edges(size, min(most, -(-int(size.sum()) // n)))
