"""An on-line planner that is led from one micro-batch of changes to the next."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from narrowcast.model.diff import delta_between, renumbered
from narrowcast.model.interest import Interest
from narrowcast.model.labels import positions
from narrowcast.model.relation import holds
from narrowcast.pipeline.streaming.standing import Standing
from narrowcast.pipeline.streaming.update import REJECTED
from narrowcast.planning.replan import Replanner, changed, read_changes
from narrowcast.planning.static import Static

if TYPE_CHECKING:
    from collections.abc import Iterable

    from narrowcast.model.plan import ChannelPlan
    from narrowcast.pipeline.streaming.changelog import Piece
    from narrowcast.planning.base import OnlinePlanner, PlanDelta


@dataclass(frozen=True, slots=True)
class Step:
    """Where a micro-batch has led to.

    Parameters
    ----------
    standing, delta
        How things stand now, and the rows of the plan that changed.
    rejected
        Rows that cannot be used.
    changes, ignored
        How many changes there were, and how many of them changed nothing.
    messages
        What adapting took, by kind; none where the planner does not count them.
    """

    standing: Standing
    delta: PlanDelta
    rejected: pa.Table
    changes: int
    ignored: int
    messages: dict[str, int]

    @property
    def moves(self) -> bool:
        """Whether anything is another way than before."""
        return self.changes > self.ignored or self.delta.n_changes > 0


@dataclass(slots=True)
class Led:
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
        self._online = self._fitted(interest, None)
        return self._online.plan_

    def take(self, before: Standing, pieces: Iterable[Piece], number: int) -> Step:
        """Lead the planner through the changes of a micro-batch, piece by piece.

        Parameters
        ----------
        before
            How things stand.
        pieces
            The changes.
        number
            Of the micro-batch.

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
            sent = sent or _messages(online)
            ignored += ignored_of(interest, piece.rows)
            online.update(piece.rows)
            interest = changed(interest, piece.rows)
            changes += piece.rows.num_rows
        if self._online is None or not changes:
            plan, delta, messages = before.plan, delta_between(before.plan, before.plan), {}
        else:
            plan, delta = numbered_like(before.plan, self._online.plan_)
            plan.validate(interest)
            messages = {kind: count - sent[kind] for kind, count in _messages(self._online).items()}
        standing = Standing(number, plan, interest)
        return Step(standing, delta, pa.concat_tables(rejected), changes, ignored, messages)

    def _fitted(self, interest: Interest, plan: ChannelPlan | None) -> OnlinePlanner:
        """Return a planner that goes on from a plan."""
        made = copy(self.planner)
        if isinstance(made, Replanner):
            if isinstance(made.planner, Static) and made.planner.start is None:
                made.planner = copy(made.planner)
                made.planner.start = plan
        elif hasattr(made, "start") and plan is not None:
            made.start = plan
        return made.fit(interest)

    def _ready(self, interest: Interest, plan: ChannelPlan, piece: Piece) -> tuple[Interest, OnlinePlanner]:
        """Return the interest and the planner, with labels of the types of a piece where there were none."""
        kinds = {name: piece.rows.schema.field(name).type for name in ("subscriber", "flow")}
        labels = {"subscriber": interest.subscribers, "flow": interest.flows}
        if any(not len(each) and each.type != kinds[name] for name, each in labels.items()):
            typed = (each if len(each) else pa.array([], kinds[name]) for name, each in labels.items())
            interest = Interest(interest.wants, interest.rate, *typed)
            self._online = None
        if self._online is None:
            self._online = self._fitted(interest, plan)
        return interest, self._online


def _messages(planner: OnlinePlanner) -> dict[str, int]:
    """Return the messages that a planner has counted so far."""
    return dict(getattr(planner, "messages_", {}))


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
