"""The executor of the planner `joint` on Spark, for an interest that is too large for the driver.

Flows are planned in sessions, and sessions in groups. All flows with the same users (subscribers) are one
kind; kinds are in Spark tables: see `pack_interest`. Workers propose moves of kinds between sessions; the
driver has the members of each session, and makes the moves. Both steps and the loop are in
`narrowcast.planning.sessions.joint_rounds`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from narrowcast.model.interest import Interest
from narrowcast.model.labels import encode, labels_in
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.relation import relation_of
from narrowcast.planning.sessions.joint_rounds import CHOICES, ROUNDS, MoveProposals, plan_in_rounds
from narrowcast.spark.planning.large_planner import LargePlan
from narrowcast.spark.planning.packed_interest import pack_interest, points_of
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.broadcast_variable import broadcast_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from pyspark import Broadcast

    from narrowcast.planning.progress import Progress
    from narrowcast.planning.sessions.joint import Joint
    from narrowcast.planning.sessions.joint_rounds import FrozenLevels
    from narrowcast.spark.planning.packed_interest import PackedInterest
    from narrowcast.spark.stages.interest import InterestFrames

    Ints: TypeAlias = NDArray[np.int64]

_TO = [f"to{i}" for i in range(CHOICES)]
_PROPOSED = f"kind int, {', '.join(f'{to} int' for to in _TO)}, users array<int>, rate double"


def plan_packed(
    found: PackedInterest,
    planner: Joint,
    *,
    limit: int,
    rounds: int = ROUNDS,
    progress: Progress | None = None,
) -> tuple[ChannelPlan, Interest]:
    """Assign the kinds of flows of a packed interest to sessions and groups.

    Returns the plan, and an interest with its flows and their rates but no subscribers.

    Parameters
    ----------
    found
        The packed interest.
    planner
        The planner, which has the costs and the time limit. It plans a sample on the driver first, in at most
        half of its time limit.
    limit
        Maximum number of users of kinds on the driver, and in the sample, which has at least one kind for
        each session.
    rounds
        Maximum number of rounds that move kinds; with 0, kinds outside the sample are inserted only.
    progress
        Called after each round with its number and the cost; round 0 is when all kinds are inserted.
    """
    propose = partial(_propose_moves, found=found)
    levels = plan_in_rounds(found, propose, planner, limit=limit, rounds=rounds, progress=progress)
    table = found.flows()
    flows, [place] = encode("flow", labels_in(table, "flow", "flows"))
    used, place_of = np.unique(levels.session, return_inverse=True)
    n_groups, above = 0, None
    if levels.two:
        groups, group = np.unique(levels.parent[used], return_inverse=True)
        n_groups = len(groups)
        above = np.append(np.full(n_groups, -1), group)
    n_channels = n_groups + len(used)
    channel = n_groups + place_of[table["kind"].to_numpy()]
    user, listened = np.nonzero(levels.sessions[1][:, used])
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


def _propose_moves(frozen: FrozenLevels, found: PackedInterest) -> MoveProposals:
    """Let workers propose moves of the kinds of a batch, and collect the proposals."""
    rows = found.between(frozen.low, frozen.low + len(frozen.session))
    with broadcast_value(rows.sparkSession, (frozen, found.first)) as state, plainly("find moves of flows"):
        rows = rows.select("bucket", "rank", "users", "rate")
        table = rows.mapInArrow(partial(_propose, state=state), _PROPOSED).toArrow()
    to = np.column_stack([table[name].to_numpy() for name in _TO])
    return MoveProposals(table["kind"].to_numpy(), to, points_of(table))


def _propose(
    batches: Iterator[pa.RecordBatch], state: Broadcast[tuple[FrozenLevels, Ints]]
) -> Iterator[pa.RecordBatch]:
    """Yield the kinds of flows that would cost less in another session, with the best sessions for each."""
    frozen, first = state.value
    for batch in batches:
        kind = first[batch.column("bucket").to_numpy()] + batch.column("rank").to_numpy()
        inside = np.flatnonzero((kind >= frozen.low) & (kind < frozen.low + len(frozen.session)))
        batch, kind = batch.take(inside), kind[inside]
        to = frozen.propose(kind, points_of(batch))
        moving = np.flatnonzero(to[:, 0] >= 0)
        columns: list[Any] = [pa.array(kind[moving], pa.int32()), *(pa.array(each) for each in to[moving].T)]
        columns += [batch.column("users").take(moving), batch.column("rate").take(moving)]
        yield pa.RecordBatch.from_arrays(columns, names=["kind", *_TO, "users", "rate"])


@dataclass(frozen=True, slots=True)
class LargeJoint:
    """Runs the planner `joint` on Spark, for an interest that is too large for the driver."""

    planner: Joint
    parameters: ClassVar[tuple[str, ...]] = ("sessions", "alpha", "beta", "sweeps", "restarts", "seconds")

    def plan(self, frames: InterestFrames, *, limit: int) -> LargePlan:
        """Pack the interest into kinds of flows, and plan on the driver if these fit there, else on Spark."""
        with pack_interest(frames) as found:
            plan, interest = plan_packed(found, self.planner, limit=limit)
            return LargePlan(plan, interest, path="driver" if found.entries <= limit else "spark")
