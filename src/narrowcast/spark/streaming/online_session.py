"""An on-line planner that is led from one micro-batch of changes and events to the next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from narrowcast.model.diff import delta_between, renumbered
from narrowcast.model.interest import Interest
from narrowcast.model.labels import positions
from narrowcast.model.relation import holds
from narrowcast.planning.replanner import changed, read_changes
from narrowcast.spark.streaming.follow_state import FollowState
from narrowcast.spark.streaming.subscription_update import REJECTED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from narrowcast.model.labels import Labels
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.planning.base import OnlinePlanner, PlanDelta
    from narrowcast.spark.streaming.changelog import Piece
    from narrowcast.spark.streaming.tally import Tally


@dataclass(frozen=True, slots=True)
class OnlineStep:
    """Where a micro-batch has led to.

    Parameters
    ----------
    standing, delta
        How things stand now, and the rows of the plan that changed.
    rejected, bad
        Rows that cannot be used, and how many there were.
    changes, ignored
        How many changes there were, and how many of them changed nothing.
    messages
        What adapting took, by kind; none where the planner does not count them.
    events, unknown
        How many events there were, and how many of them of flows that nobody knows.
    moved, rated
        How many flows have another rate now, to two digits, and whether any rate is another at all.
    """

    standing: FollowState
    delta: PlanDelta
    rejected: pa.Table
    bad: int
    changes: int
    ignored: int
    messages: dict[str, int]
    events: int = 0
    unknown: int = 0
    moved: int = 0
    rated: bool = False

    @property
    def moves(self) -> bool:
        """Whether anything but rates is another way than before."""
        return self.changes > self.ignored or self.delta.n_changes > 0


@dataclass(slots=True)
class OnlineSession:
    """An on-line planner, made when it is needed from how things stand.

    Parameters
    ----------
    planner
        What plans, as it was made: copies of it are fitted.
    """

    planner: OnlinePlanner
    _online: OnlinePlanner | None = field(default=None, init=False, repr=False)

    def forget(self) -> None:
        """Drop the planner, which may know more than how things stand; it is made again."""
        self._online = None

    def first(self, interest: Interest) -> ChannelPlan:
        """Return a first plan for an interest."""
        self._online = self.planner.resumed(interest, None)
        return self._online.plan_

    @property
    def half_life(self) -> float:
        """Seconds in which an event comes to count half."""
        return self.planner.half_life

    def take(
        self,
        before: FollowState,
        pieces: Iterable[Piece],
        number: int,
        count: Callable[[Labels], Tally] | None = None,
    ) -> OnlineStep:
        """Lead the planner through the changes of a micro-batch, piece by piece, and then its events.

        Parameters
        ----------
        before
            How things stand.
        pieces
            The changes.
        number
            Of the micro-batch.
        count
            Counts the events of flows, those that are known after the changes.

        Raises
        ------
        PlanError
            When the plan that the planner comes to leaves somebody out.
        """
        interest, rejected = before.interest, [REJECTED.empty_table()]
        changes = ignored = 0
        sent: dict[str, int] = {}
        for piece in pieces:
            rejected.append(piece.rejected)
            if not piece.rows.num_rows:
                continue
            interest, online = self._ready(interest, before.plan, piece)
            sent = sent or dict(online.messages_)
            ignored += ignored_of(interest, piece.rows)
            online.update(piece.rows)
            interest = changed(interest, piece.rows)
            changes += piece.rows.num_rows
        found = None if count is None else count(interest.flows)
        told = None if found is None else found.counts(interest.flows, before.span, self.half_life)
        rate = interest.rate
        if told is not None:
            online = self._online = self._online or self.planner.resumed(interest, before.plan)
            sent = sent or dict(online.messages_)
            until = None if found is None or found.span is None else found.span.until / 1e6
            interest = _observed(online, interest, *told, until)
        if self._online is None or not (changes or told):
            plan, delta, messages = before.plan, delta_between(before.plan, before.plan), {}
        else:
            plan, delta = numbered_like(before.plan, self._online.plan_)
            plan.validate(interest)
            messages = {kind: n - sent.get(kind, 0) for kind, n in self._online.messages_.items()}
        bad = sum(part.num_rows for part in rejected)
        span = before.span if found is None else found.span
        if found is not None:
            rejected.append(found.rejected)
        return OnlineStep(
            standing=FollowState(number, plan, interest, span),
            delta=delta,
            rejected=pa.concat_tables(rejected),
            bad=bad + (0 if found is None else found.bad),
            changes=changes,
            ignored=ignored,
            messages=messages,
            events=0 if found is None else found.events,
            unknown=0 if found is None else found.unknown,
            moved=moved_of(rate, interest.rate),
            rated=not np.array_equal(rate, interest.rate),
        )

    def _ready(self, interest: Interest, plan: ChannelPlan, piece: Piece) -> tuple[Interest, OnlinePlanner]:
        """Return the interest and the planner, with labels of the types of a piece where there were none."""
        kinds = {name: piece.rows.schema.field(name).type for name in ("subscriber", "flow")}
        labels = {"subscriber": interest.subscribers, "flow": interest.flows}
        if any(not len(each) and each.type != kinds[name] for name, each in labels.items()):
            typed = (each if len(each) else pa.array([], kinds[name]) for name, each in labels.items())
            interest = Interest(interest.wants, interest.rate, *typed)
            self._online = None
        if self._online is None:
            self._online = self.planner.resumed(interest, plan)
        return interest, self._online


def _observed(
    online: OnlinePlanner, interest: Interest, events: pa.Table, seconds: float, until: float | None
) -> Interest:
    """Have the planner learn how often flows send, and return the interest as it believes it now.

    These are the events of so many seconds, until a time, by which rounds may be due.
    """
    online.observe(events, seconds)
    if until is not None:
        online.advance(until)
    believed = online.interest_
    rate = believed.rate[positions("flow", interest.flows, believed.flows)]
    return Interest(interest.wants, rate, interest.subscribers, interest.flows)


def moved_of(before: NDArray[np.float64], after: NDArray[np.float64]) -> int:
    """Return how many rates are others, to two digits.

    Examples
    --------
    >>> moved_of(np.array([1.0, 0.0, 0.1234]), np.array([1.04, 0.1, 0.131]))
    2
    """
    old, new = (np.char.mod("%.1e", rate) for rate in (before, after))
    return int(np.count_nonzero(old != new))


def numbered_like(before: ChannelPlan, plan: ChannelPlan) -> tuple[ChannelPlan, PlanDelta]:
    """Return a plan with its channels as they are, or numbered like those before: as changes fewer rows.

    A planner that was started again numbers them anew, and one that plans from scratch always does.
    """
    delta = delta_between(before, plan)
    if not delta.n_changes:
        return plan, delta
    other = renumbered(plan, before)
    fewer = delta_between(before, other)
    return (other, fewer) if fewer.n_changes < delta.n_changes else (plan, delta)


def ignored_of(interest: Interest, changes: pa.Table) -> int:
    """Return how many changes change nothing: subscribing to what one has, or unsubscribing otherwise.

    Examples
    --------
    >>> log = {"time": [1, 2, 3], "subscriber": [0, 0, 0], "flow": [0, 1, 1], "action": ["subscribe"] * 3}
    >>> ignored_of(Interest([[1, 0]]), pa.table(log))
    2
    """
    subscriber, flow, subscribes, order = read_changes(changes)
    row = positions("subscriber", subscriber, interest.subscribers)
    column = positions("flow", flow, interest.flows)
    both = (row >= 0) & (column >= 0)
    had = np.zeros(len(row), np.bool_)
    had[both] = holds(interest.wants, row[both], column[both])
    codes = [np.asarray(labels.dictionary_encode().indices, np.int64) for labels in (subscriber, flow)]
    pair = codes[0] * (codes[1].max(initial=0) + 1) + codes[1]
    # Pair after pair, each in the order of time: what was said last is how things are.
    order = order[np.argsort(pair[order], kind="stable")]
    first = np.append(True, np.diff(pair[order]) != 0)[: len(order)]
    was = np.where(first, had[order], np.append(False, subscribes[order][:-1])[: len(order)])
    return int(np.count_nonzero(was == subscribes[order]))
