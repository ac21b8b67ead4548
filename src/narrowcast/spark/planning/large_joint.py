"""The executor of `joint` on Spark, for an interest that is too large for the driver.

Kinds of flows stay in Spark's tables; see `packed`. Workers propose moves of them, and the driver has who is
in which session and makes them. Both steps, and the loop, are in `narrowcast.planning.sessions.joint_rounds`.
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
from narrowcast.spark.planning.packed_interest import packed, points_of
from narrowcast.spark.spark_errors import plainly

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
    tell: Progress | None = None,
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
    propose = partial(_proposed, found=found)
    levels = plan_in_rounds(found, propose, planner, limit=limit, rounds=rounds, tell=tell)
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


def _proposed(frozen: FrozenLevels, found: PackedInterest) -> MoveProposals:
    """Have workers propose moves of the kinds of a batch."""
    rows = found.between(frozen.low, frozen.low + len(frozen.session))
    shipped = rows.sparkSession.sparkContext.broadcast((frozen, found.first))
    try:
        with plainly("look for moves of flows"):
            rows = rows.select("bucket", "rank", "users", "rate")
            table = rows.mapInArrow(partial(_propose, shipped=shipped), _PROPOSED).toArrow()
    finally:
        shipped.destroy()
    to = np.column_stack([table[name].to_numpy() for name in _TO])
    return MoveProposals(table["kind"].to_numpy(), to, points_of(table))


def _propose(
    batches: Iterator[pa.RecordBatch], shipped: Broadcast[tuple[FrozenLevels, Ints]]
) -> Iterator[pa.RecordBatch]:
    """Yield kinds that would cost less elsewhere, and where that is."""
    frozen, first = shipped.value
    for batch in batches:
        kind = first[batch.column("bucket").to_numpy()] + batch.column("rank").to_numpy()
        inside = np.flatnonzero((kind >= frozen.low) & (kind < frozen.low + len(frozen.session)))
        batch, kind = batch.take(inside), kind[inside]
        to = frozen.propose(kind, points_of(batch))
        some = np.flatnonzero(to[:, 0] >= 0)
        columns: list[Any] = [pa.array(kind[some], pa.int32()), *(pa.array(each) for each in to[some].T)]
        columns += [batch.column("users").take(some), batch.column("rate").take(some)]
        yield pa.RecordBatch.from_arrays(columns, names=["kind", *_TO, "users", "rate"])


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
