"""`joint` for an interest that is too large for the driver: workers propose moves, the driver makes them.

Kinds of flows stay in Spark's tables; see `packed`. The driver holds who is in which session, and of each
kind its session, rate and size. A sample of kinds that fits is planned there. Others are put in, and then
moved in rounds, batch by batch: workers see the state as it was when the batch began and send, with its
users, each kind that would cost less elsewhere; the driver looks at each once more and makes the move if it
still lowers the cost. Whole sessions it moves by itself. So the cost falls with every move, and proposals
are taken in the order of kinds, so that it does not matter how tables are cut.

Before these rounds, if they are not too many, parts of the kinds that fit the driver are brought there again
and again, to be moved at random as `joint` does it, less and less uphill: that needs no more of the others
than who is in which session, which the driver has.
"""

from __future__ import annotations

import time
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

import numpy as np
import pyarrow as pa

from narrowcast.kernels import joint, proposals
from narrowcast.model.interest import Interest
from narrowcast.model.labels import encode, labels_in
from narrowcast.model.matches import Matches
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.relation import relation_of
from narrowcast.planning import watch
from narrowcast.planning.sessions.clusters import Clusters, Points
from narrowcast.planning.sessions.levels import heats_of, proposals_of
from narrowcast.spark.planning.large import LargePlan
from narrowcast.spark.planning.packed import packed, points_of
from narrowcast.spark.problems import plainly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray
    from pyspark import Broadcast

    from narrowcast.kernels.limits import Limits
    from narrowcast.kernels.sessions import State
    from narrowcast.planning.sessions.joint import Joint
    from narrowcast.spark.planning.packed import Packed
    from narrowcast.spark.stages.interest import InterestFrames

    Ints: TypeAlias = NDArray[np.int64]
    Numbers: TypeAlias = NDArray[np.int32]

#: The most rounds, and the share of the cost that a round has to save for another one.
ROUNDS, LEAST = 20, 1e-3
#: The most batches of a round, where nothing asks for more, and the fewest kinds that are worth one.
BATCHES, FEWEST = 16, 1 << 14
#: Sessions that a worker proposes for a kind: where others were quicker, the next best may still do.
CHOICES = 4
#: How often parts of the kinds are brought to the driver to be moved at random, in all, and each at most.
VISITS, TIMES = 60, 8
#: Users of kinds that the driver takes at once in any case.
AT_ONCE = 1 << 20

_PROPOSED = f"kind int, {', '.join(f'to{i} int' for i in range(CHOICES))}, users array<int>, rate double"


def plan_packed(
    found: Packed,
    planner: Joint,
    *,
    limit: int,
    rounds: int = ROUNDS,
    tell: Callable[[int, float], None] | None = None,
) -> tuple[ChannelPlan, Interest]:
    """Return the plan for a packed interest, and its flows with their rates: an interest of nobody.

    Parameters
    ----------
    found
        Kinds of flows.
    planner
        What plans the sample, and says what to plan for. It gets half of its seconds for that.
    limit
        The most users of kinds that the driver takes; a sample has as many, but a kind for each session.
    rounds
        The most rounds in which kinds are moved; with none, what does not fit the driver is only put in.
    tell
        Called after each round with its number and the cost; first, as round 0, when all kinds are put in.
    """
    n, sessions = len(found), planner.sessions
    planner, end = copy(planner), None
    if planner.seconds is not None:
        end = time.monotonic() + planner.seconds
        planner.seconds /= 2
    two_levels = sessions is not None
    if n == 0:
        return _plan_of(found, np.zeros(0, np.int32), np.zeros((0, 0)), None)
    assert planner.channels is not None
    n_groups = min(planner.channels, n)
    n_sessions = n_groups if sessions is None else min(sessions, n)
    enough = max(n_sessions, int(np.searchsorted(np.cumsum(found.size), limit, side="right")))
    sample, points = found.take(min(n, enough))
    levels = _Levels(found, n_sessions, n_groups if two_levels else 1, planner)
    levels.begin(planner.fit(sample).plan_, points)
    del sample, points
    at = min(n, enough)
    most = max(limit, AT_ONCE)
    while at < n:
        # No more than what is there already: so what a worker sees is like what it adds to.
        high = _reach(found.size, at, min(most, int(found.size[:at].sum())))
        levels.improve(found, at, high)
        at = high
    levels.settle()
    if rounds:
        levels.cool(found, _parts(found.size, limit), planner, end)
    _say(tell, 0, levels.cost)
    edges = _edges(found.size, most)
    for turn in range(rounds):
        if end is not None and time.monotonic() >= end:
            break
        before = levels.cost
        for low, high in pairwise(edges):
            levels.improve(found, low, high)
        levels.settle()
        _say(tell, turn + 1, levels.cost)
        if before - levels.cost <= LEAST * before:
            break
    return _plan_of(found, levels.session, levels.sessions[1], levels.parent if two_levels else None)


def _say(tell: Callable[[int, float], None] | None, turn: int, cost: float) -> None:
    """Tell what the plan costs after a round, to whoever asked and to whoever watches planners."""
    watch.tell(cost)
    if tell is not None:
        tell(turn, cost)


class _Levels:
    """Kinds in sessions in groups, with who is in each: what the driver holds."""

    def __init__(self, found: Packed, n_sessions: int, n_groups: int, planner: Joint) -> None:
        nothing = Points(Matches.from_pairs([], [], 0), np.zeros(0), len(found.subscribers))
        nowhere = np.zeros(0, np.int64)
        alpha, beta = float(planner.alpha), float(planner.beta)
        # Without sessions a group is one: then its users pay for both.
        self._weights = (0.0, alpha + beta) if planner.sessions is None else (alpha, beta)
        self._rate = found.rate
        self.sessions: State = Clusters(nothing, nowhere, n_sessions).state
        self.groups: State = Clusters(nothing, nowhere, n_groups).state
        self.session = np.full(len(found), -1, np.int32)
        self.parent = np.arange(n_sessions) % n_groups
        self._member = np.zeros(len(found.subscribers), np.int32)

    def begin(self, plan: ChannelPlan, points: tuple[Any, Any, Any]) -> None:
        """Take over the plan of the first kinds; sessions that it does not use stay empty."""
        n_groups = plan.n_groups if plan.n_groups < plan.n_channels else 0
        session = (plan.carries.indices - n_groups).astype(np.int32)
        self.parent[: plan.n_channels - n_groups] = plan.parent[n_groups:] if n_groups else 0
        kind = np.arange(len(session))
        self._make(points, kind, kind.astype(np.int32), session[:, None])

    def improve(self, found: Packed, low: int, high: int) -> int:
        """Let workers look at kinds from one number up to another, and make moves; return how many."""
        rows = found.between(low, high).select("bucket", "rank", "users", "rate")
        frozen = Frozen(
            self.sessions, self.groups, self.parent, self._weights, low, self.session[low:high], found.first
        )
        shipped = rows.sparkSession.sparkContext.broadcast(frozen)
        try:
            with plainly("look for moves of flows"):
                table = rows.mapInArrow(partial(_propose, frozen=shipped), _PROPOSED).toArrow()
        finally:
            shipped.destroy()
        kind = table["kind"].to_numpy()
        to = np.column_stack([table[f"to{i}"].to_numpy() for i in range(CHOICES)])
        return self._make(points_of(table), np.argsort(kind), kind, to)

    def _make(self, points: tuple[Any, Any, Any], order: Ints, kind: Numbers, to: Numbers) -> int:
        return proposals.accept(
            points, self._weights, order, kind, to, self.session, self.parent, self.sessions, self.groups,
            self._member,
        )  # fmt: skip

    def cool(self, found: Packed, edges: list[int], planner: Joint, end: float | None) -> None:
        """Move kinds at random, uphill less and less, part by part; go back if that leads to no less."""
        times = min(TIMES, VISITS // (len(edges) - 1))
        n = proposals_of(planner.sweeps, len(found), found.entries)
        unit = self.cost / max(1, len(found))
        if times < 2 or not n or not unit or len(self.parent) < 2:
            return
        kept = [each.copy() for each in self._arrays]
        before = self.cost
        random = np.random.default_rng([planner.seed, 1]).integers(1, 2**63, 1, np.uint64)
        for heats in pairwise(heats_of(unit, times)):
            for low, high in pairwise(edges):
                if end is not None and time.monotonic() >= end:
                    break
                share = n * int(found.size[low:high].sum()) // (times * max(1, found.entries))
                self._visit(found, low, high, share, heats, random)
            self.settle()
        if self.cost > before:
            for mine, was in zip(self._arrays, kept, strict=True):
                mine[:] = was

    @property
    def _arrays(self) -> list[NDArray[Any]]:
        """All that moves change."""
        return [*self.sessions, *self.groups, self.session, self.parent, self._member]

    def _visit(
        self, found: Packed, low: int, high: int, n: int, heats: tuple[float, float], random: Any
    ) -> None:
        """Move kinds from one number up to another at random, on the driver."""
        points = found.part(low, high)
        session = self.session[low:high].astype(np.int64)
        start, users, _ = points
        users = users[start[0] : start[-1]]
        owner = np.repeat(np.arange(high - low), np.diff(start))
        order = np.argsort(users, kind="stable")
        count = np.bincount(users, minlength=len(self._member))
        wanted = np.append(0, np.cumsum(count)), owner[order].astype(np.int32)
        rules = (*self._rules[:4], np.full(high - low, -1), *self._rules[5:])
        joint.anneal(
            points, self._weights, wanted, session, self.parent, self.sessions, self.groups, random, n, heats,
            rules,
        )  # fmt: skip
        self.session[low:high] = session

    def settle(self) -> None:
        """Take out of rates what rounding has left, and move whole sessions to where they cost least."""
        rate = self.sessions[3]
        rate[:] = np.bincount(self.session, self._rate, len(rate))
        joint.count_groups(self.sessions, self.parent, self.groups, self._member)
        if len(self.groups[2]) > 1:
            joint.move_sessions(self._weights[0], self.parent, self.sessions, self.groups, self._rules)
            joint.count_groups(self.sessions, self.parent, self.groups, self._member)

    @property
    def _rules(self) -> Limits:
        """Limits that nothing breaks."""
        free, nobody = np.full(len(self.parent), -1), np.zeros((0, 0), np.uint8)
        return self._member, nobody, np.full(3, np.inf), np.zeros(5), free[:0], free, np.zeros(0)

    @property
    def cost(self) -> float:
        """What users filter, on both levels."""
        alpha, beta = self._weights
        return float(alpha * (self.groups[2] @ self.groups[3]) + beta * (self.sessions[2] @ self.sessions[3]))


@dataclass(frozen=True, slots=True)
class Frozen:
    """What a worker has to know for one batch of kinds; on the way two bits for each user and session.

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
    first
        The number of the first kind of each bucket.
    """

    sessions: State
    groups: State
    parent: Ints
    weights: tuple[float, float]
    low: int
    session: Numbers
    first: Ints

    def __reduce__(self) -> tuple[Any, ...]:
        rest = (self.parent, self.weights, self.low, self.session, self.first)
        return _thawed, (_packed_bits(self.sessions), _packed_bits(self.groups), *rest)


def _packed_bits(state: State) -> tuple[Any, ...]:
    """Return a state in few bytes: who is in each, and who would not be but for one flow."""
    count, flag, size, theta = state
    return flag.shape, np.packbits(flag), np.packbits(count == 1), size, theta


def _thawed(sessions: tuple[Any, ...], groups: tuple[Any, ...], *rest: Any) -> Frozen:
    """Return what was sent to a worker."""
    return Frozen(_unpacked(*sessions), _unpacked(*groups), *rest)


def _unpacked(shape: tuple[int, int], flags: Any, alone: Any, size: Any, theta: Any) -> State:
    """Return a state from its few bytes, with 2 for every count above 1."""
    n = shape[0] * shape[1]
    flag, one = (np.unpackbits(bits, count=n).reshape(shape) for bits in (flags, alone))
    return cast("NDArray[np.int32]", 2 * flag - one), flag, size, theta


def _propose(batches: Iterator[pa.RecordBatch], frozen: Broadcast[Frozen]) -> Iterator[pa.RecordBatch]:
    """Yield kinds that would cost less elsewhere, and where that is."""
    state = frozen.value
    for batch in batches:
        kind = state.first[batch.column("bucket").to_numpy()] + batch.column("rank").to_numpy()
        inside = np.flatnonzero((kind >= state.low) & (kind < state.low + len(state.session)))
        batch, kind = batch.take(inside), kind[inside]
        to = np.empty((len(kind), CHOICES), np.int32)
        points = points_of(batch)
        own = state.session[kind - state.low]
        proposals.propose(points, state.weights, own, state.parent, state.sessions, state.groups, to)
        some = np.flatnonzero(to[:, 0] >= 0)
        columns = [pa.array(kind[some], pa.int32()), *(pa.array(to[some, i]) for i in range(CHOICES))]
        columns += [batch.column("users").take(some), batch.column("rate").take(some)]
        names = ["kind", *(f"to{i}" for i in range(CHOICES)), "users", "rate"]
        yield pa.RecordBatch.from_arrays(columns, names=names)


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


def _plan_of(
    found: Packed, session: Numbers, flag: NDArray[Any], parent: Ints | None
) -> tuple[ChannelPlan, Interest]:
    """Return the plan in which each flow is in the session of its kind, and its flows with their rates."""
    table = found.flows()
    flows, [place] = encode("flow", labels_in(table, "flow", "flows"))
    used, place_of = np.unique(session, return_inverse=True)
    n_groups, above = 0, None
    if parent is not None:
        groups, group = np.unique(parent[used], return_inverse=True)
        n_groups = len(groups)
        above = np.append(np.full(n_groups, -1), group)
    n_channels = n_groups + len(used)
    channel = n_groups + place_of[table["kind"].to_numpy()]
    user, listened = np.nonzero(flag[:, used])
    plan = ChannelPlan(
        relation_of(place, channel, (len(flows), n_channels)),
        relation_of(user, n_groups + listened, (len(found.subscribers), n_channels)),
        parent=above,
        subscribers=found.subscribers,
        flows=flows,
    )
    rate = np.empty(len(flows))
    rate[place] = table["rate"].to_numpy()
    return plan, Interest(np.zeros((0, len(flows))), rate, flows=flows)


@dataclass(frozen=True, slots=True)
class LargeJoint:
    """`joint` as one of `LARGE_PLANNERS`."""

    planner: Joint
    parameters: ClassVar[tuple[str, ...]] = ("sessions", "alpha", "beta", "sweeps", "restarts", "seconds")

    def plan(self, frames: InterestFrames, *, limit: int) -> LargePlan:
        """Return a plan from the distinct sets of users of flows, on the driver where these fit there."""
        with packed(frames) as found:
            plan, interest = plan_packed(found, self.planner, limit=limit)
            return LargePlan(plan, interest, path="driver" if found.entries <= limit else "spark")
