"""An online planner that processes one micro-batch of changes and events after another."""

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
    from narrowcast.spark.streaming.changelog import ChangeBatch
    from narrowcast.spark.streaming.tally import Tally


@dataclass(frozen=True, slots=True)
class OnlineStep:
    """The result of a micro-batch.

    Parameters
    ----------
    state, delta
        The new state, and the changes of the plan.
    rejected, bad
        The rejected rows, and their number.
    changes, ignored
        Number of changes, and of those among them without effect.
    messages
        Messages that adapting the plan took, by kind; empty if the planner does not count them.
    events, unknown
        Number of events, and of those of unknown flows among them.
    moved, rates_changed
        Number of flows whose rate changed in its first two significant digits, and whether any rate
        changed at all.
    """

    state: FollowState
    delta: PlanDelta
    rejected: pa.Table
    bad: int
    changes: int
    ignored: int
    messages: dict[str, int]
    events: int = 0
    unknown: int = 0
    moved: int = 0
    rates_changed: bool = False

    @property
    def has_changes(self) -> bool:
        """Whether the interest or the plan changed; rates do not count."""
        return self.changes > self.ignored or self.delta.n_changes > 0


@dataclass(slots=True)
class OnlineSession:
    """An online planner that is resumed from the current state when it is needed.

    Parameters
    ----------
    planner
        The planner, not fitted: copies of it are fitted.
    """

    planner: OnlinePlanner
    _online: OnlinePlanner | None = field(default=None, init=False, repr=False)

    def reset(self) -> None:
        """Discard the fitted planner, which may be ahead of the stored state; it is resumed on next use."""
        self._online = None

    def initial_plan(self, interest: Interest) -> ChannelPlan:
        """Compute a first plan for an interest."""
        self._online = self.planner.resumed(interest, None)
        return self._online.plan_

    @property
    def half_life(self) -> float:
        """Seconds after which the weight of an event has halved."""
        return self.planner.half_life

    def apply(
        self,
        before: FollowState,
        pieces: Iterable[ChangeBatch],
        number: int,
        count: Callable[[Labels], Tally] | None = None,
    ) -> OnlineStep:
        """Apply the changes of a micro-batch to the planner, piece by piece, and then its events.

        Parameters
        ----------
        before
            The state before the micro-batch.
        pieces
            The changes.
        number
            Number of the micro-batch.
        count
            Called with the flows that are known after the changes; counts their events. None without events.

        Raises
        ------
        PlanError
            When the planner's plan does not deliver a wanted flow to a subscriber.
        """
        interest, rejected = before.interest, [REJECTED.empty_table()]
        changes = ignored = 0
        sent: dict[str, int] = {}
        for piece in pieces:
            rejected.append(piece.rejected)
            if not piece.rows.num_rows:
                continue
            interest, online = self._resume(interest, before.plan, piece)
            sent = sent or dict(online.messages_)
            ignored += ignored_of(interest, piece.rows)
            online.update(piece.rows)
            interest = changed(interest, piece.rows)
            changes += piece.rows.num_rows
        found = None if count is None else count(interest.flows)
        counts = None if found is None else found.counts(interest.flows, before.span, self.half_life)
        rate = interest.rate
        if counts is not None:
            online = self._online = self._online or self.planner.resumed(interest, before.plan)
            sent = sent or dict(online.messages_)
            until = None if found is None or found.span is None else found.span.until / 1e6
            interest = _observe(online, interest, *counts, until)
        if self._online is None or not (changes or counts):
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
            state=FollowState(number, plan, interest, span),
            delta=delta,
            rejected=pa.concat_tables(rejected),
            bad=bad + (0 if found is None else found.bad),
            changes=changes,
            ignored=ignored,
            messages=messages,
            events=0 if found is None else found.events,
            unknown=0 if found is None else found.unknown,
            moved=moved_of(rate, interest.rate),
            rates_changed=not np.array_equal(rate, interest.rate),
        )

    def _resume(
        self, interest: Interest, plan: ChannelPlan, piece: ChangeBatch
    ) -> tuple[Interest, OnlinePlanner]:
        """Return the interest and the fitted planner; empty labels get the types of the piece."""
        kinds = {name: piece.rows.schema.field(name).type for name in ("subscriber", "flow")}
        labels = {"subscriber": interest.subscribers, "flow": interest.flows}
        if any(not len(each) and each.type != kinds[name] for name, each in labels.items()):
            typed = (each if len(each) else pa.array([], kinds[name]) for name, each in labels.items())
            interest = Interest(interest.wants, interest.rate, *typed)
            self._online = None
        if self._online is None:
            self._online = self.planner.resumed(interest, plan)
        return interest, self._online


def _observe(
    online: OnlinePlanner, interest: Interest, events: pa.Table, seconds: float, until: float | None
) -> Interest:
    """Let the planner learn the rates of flows, and return the interest with its estimates of the rates.

    Parameters
    ----------
    online
        The fitted planner.
    interest
        The interest after the changes.
    events
        Counts of events by flow.
    seconds
        Length of the period of the events.
    until
        End of the period in seconds since 1970, at which maintenance rounds of the planner may be due.
    """
    online.observe(events, seconds)
    if until is not None:
        online.advance(until)
    estimated = online.interest_
    rate = estimated.rate[positions("flow", interest.flows, estimated.flows)]
    return Interest(interest.wants, rate, interest.subscribers, interest.flows)


def moved_of(before: NDArray[np.float64], after: NDArray[np.float64]) -> int:
    """Return how many rates differ in their first two significant digits.

    Examples
    --------
    >>> moved_of(np.array([1.0, 0.0, 0.1234]), np.array([1.04, 0.1, 0.131]))
    2
    """
    old, new = (np.char.mod("%.1e", rate) for rate in (before, after))
    return int(np.count_nonzero(old != new))


def numbered_like(before: ChannelPlan, plan: ChannelPlan) -> tuple[ChannelPlan, PlanDelta]:
    """Return a plan, with its channels renumbered like those of the plan before if this changes fewer rows.

    A resumed planner may number channels differently, and one that plans from scratch always does.
    """
    delta = delta_between(before, plan)
    if not delta.n_changes:
        return plan, delta
    other = renumbered(plan, before)
    fewer = delta_between(before, other)
    return (other, fewer) if fewer.n_changes < delta.n_changes else (plan, delta)


def ignored_of(interest: Interest, changes: pa.Table) -> int:
    """Return the number of changes without effect: subscribing again, or unsubscribing without subscription.

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
    subscribed = np.zeros(len(row), np.bool_)
    subscribed[both] = holds(interest.wants, row[both], column[both])
    codes = [np.asarray(labels.dictionary_encode().indices, np.int64) for labels in (subscriber, flow)]
    pair = codes[0] * (codes[1].max(initial=0) + 1) + codes[1]
    # Grouped by pair and ordered by time within a pair: each change is compared with the one before it.
    order = order[np.argsort(pair[order], kind="stable")]
    first = np.append(True, np.diff(pair[order]) != 0)[: len(order)]
    was = np.where(first, subscribed[order], np.append(False, subscribes[order][:-1])[: len(order)])
    return int(np.count_nonzero(was == subscribes[order]))
