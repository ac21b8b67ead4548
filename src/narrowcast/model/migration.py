"""Migration between two plans: an order of single changes in which no subscriber misses a message."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from narrowcast.errors import ParameterError
from narrowcast.model.diff import aligned
from narrowcast.model.labels import positions
from narrowcast.model.migration_state import MigrationState
from narrowcast.model.relation import relation_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.model.relation import Relation

#: The kinds of changes. A subscriber can `join` and `leave` a group, and `listen` to and `ignore` a session
#: of it; a sender can `switch` a flow to its channels, `regroup` a session, and start or stop sending a flow
#: `directly`.
ACTIONS = ("join", "listen", "directly", "switch", "regroup", "ignore", "leave", "no longer directly")


def migration(
    before: ChannelPlan,
    after: ChannelPlan,
    *,
    memberships: int | None = None,
    interest: Interest | None = None,
) -> pa.Table:
    """Return the changes that turn one plan into the other, ordered so that no subscriber misses a message.

    Flows move between channels in steps; flows with the same old and new channels move together. In each step
    the subscribers that need the new channel join it, the flows are switched, and then the subscribers that
    no longer need the old channel leave it. A message sent during a switch may use the old or the new
    channel: every subscriber that both plans serve receives either. Channels are compared by number.

    Joining before leaving takes one additional group for a while. A subscriber without room for it leaves
    first and receives the flows it would miss directly until it has joined.

    Parameters
    ----------
    before, after
        The two plans; apply `renumbered` first if their channels are numbered differently.
    memberships
        Limit on the groups of a subscriber at any time (default: no limit). For a subscriber that exceeds it
        in one of the plans, the larger of its two numbers of groups is the limit. See `peak`.
    interest
        With `memberships`, only wanted flows are sent directly during the migration (default: all flows that
        both plans send to the subscriber).

    Returns
    -------
    pa.Table
        `step`, `action` (see `ACTIONS`), `subscriber`, `flow`, `channel` and `parent`, null where they do not
        apply. A switched flow is from then on only in this channel (rows of one flow and step are one switch
        to several channels), and in none if the channel is null. A regrouped session, or a new one, is sent
        in the group `parent` from then on. Plans of one level, and channels without a parent, only use `join`
        and `leave`.

    Examples
    --------
    >>> from narrowcast.model.plan import ChannelPlan
    >>> before = ChannelPlan(carries=[[1, 0], [0, 1]], listens=[[1, 0], [0, 1]])
    >>> after = ChannelPlan(carries=[[0, 1], [0, 1]], listens=[[0, 1], [0, 1]])
    >>> for row in migration(before, after).to_pylist():
    ...     print(*(value for value in row.values() if value is not None))
    1 join 0 1
    1 switch 0 1
    1 leave 0 0
    >>> for row in migration(before, after, memberships=1).to_pylist():
    ...     print(*(value for value in row.values() if value is not None))
    1 directly 0 0
    1 leave 0 0
    1 join 0 1
    1 switch 0 1
    1 no longer directly 0 0
    """
    if memberships is not None and (isinstance(memberships, bool) or memberships < 1):
        raise ParameterError(parameter="memberships", value=memberships, limit="an integer of at least 1")
    before, after = aligned(before, after)
    state = MigrationState(
        before, after, most=memberships, wants=None if interest is None else _wanted_pairs(interest, after)
    )
    moved, open_ends = _flow_changes(before.carries, after.carries)
    late = _left_last(before, after)
    for flows in moved:
        state.step += 1
        for channel in sorted(flows.now):
            state.enter(channel)
        for flow in flows.flows:
            state.switch(flow, flows.now)
        for channel in sorted(flows.out):
            open_ends[channel] -= 1
            if not open_ends[channel] and channel not in late:
                state.exit(channel)
    for channel, parent in enumerate(state.end):
        if state.parent[channel] != parent:
            state.step += 1
            state.regroup(channel, parent)
    state.step += 1
    state.finish()
    return _table(state)


def peak(before: ChannelPlan, changes: pa.Table) -> int:
    """Return the largest number of groups that any subscriber is in at any time of a migration.

    Parameters
    ----------
    before
        The plan that the migration starts from.
    changes
        The table that `migration` returned.

    Examples
    --------
    >>> from narrowcast.model.plan import ChannelPlan
    >>> before = ChannelPlan(carries=[[1, 0], [0, 1]], listens=[[1, 0], [0, 1]])
    >>> after = ChannelPlan(carries=[[0, 1], [0, 1]], listens=[[0, 1], [0, 1]])
    >>> peak(before, migration(before, after)), peak(before, migration(before, after, memberships=1))
    (2, 1)
    """
    groups = before.groups()[before.listens.indices]
    joined = relation_of(rows_of(before.listens), groups, before.listens.shape)
    names = before.subscribers.to_pylist()
    now = dict(zip(names, np.diff(joined.indptr).tolist(), strict=True))
    most = max(now.values(), default=0)
    for action, user in zip(changes["action"].to_pylist(), changes["subscriber"].to_pylist(), strict=True):
        if action in ("join", "leave"):
            now[user] = now.get(user, 0) + (1 if action == "join" else -1)
            most = max(most, now[user])
    return most


def _wanted_pairs(interest: Interest, plan: ChannelPlan) -> Relation:
    """Return the interest by the positions of the plan, limited to its subscribers and flows."""
    row = positions("subscriber", interest.subscribers, plan.subscribers)[rows_of(interest.wants)]
    column = positions("flow", interest.flows, plan.flows)[interest.wants.indices]
    known = (row >= 0) & (column >= 0)
    return relation_of(row[known], column[known], (plan.n_subscribers, plan.n_flows))


def _left_last(before: ChannelPlan, after: ChannelPlan) -> set[int]:
    """Return channels to leave last: their flows are later in another channel too, or sent directly."""
    carries = after.carries
    several = np.diff(carries.indptr) > 1
    mine, theirs = (rows_of(each) * each.shape[1] + each.indices for each in (after.unicast, before.unicast))
    several[np.setdiff1d(mine, theirs) % max(1, after.n_flows)] = True
    return set(carries.indices[several[rows_of(carries)]].tolist())


def _table(state: MigrationState) -> pa.Table:
    """Return the changes as a table with labels."""
    kinds = (pa.int32(), pa.string(), pa.int64(), pa.int64(), pa.int32(), pa.int32())
    names = ("step", "action", "subscriber", "flow", "channel", "parent")
    columns: Iterable[Any] = zip(*state.rows, strict=True) if state.rows else ((),) * len(names)
    found = {
        name: pa.array(list(column), kind) for name, column, kind in zip(names, columns, kinds, strict=True)
    }
    labels = {"subscriber": state.after.subscribers, "flow": state.after.flows}
    return pa.table(found | {name: known.take(found[name]) for name, known in labels.items()})


class _FlowChange:
    """Flows with the same change: the channels they leave (`out`) and their new channels (`now`)."""

    def __init__(self, old: frozenset[int], new: frozenset[int]) -> None:
        self.out, self.now = old - new, new
        self.flows: list[int] = []


def _flow_changes(before: Relation, after: Relation) -> tuple[list[_FlowChange], dict[int, int]]:
    """Collect flows by change of channels, and count for each channel the changes that leave it."""
    changes: dict[tuple[frozenset[int], frozenset[int]], _FlowChange] = {}
    for flow in _different(before, after):
        old, new = (
            frozenset(each.indices[each.indptr[flow] : each.indptr[flow + 1]].tolist())
            for each in (before, after)
        )
        changes.setdefault((old, new), _FlowChange(old, new)).flows.append(flow)
    ends: dict[int, int] = defaultdict(int)
    for change in changes.values():
        for channel in change.out:
            ends[channel] += 1
    return list(changes.values()), ends


def _different(before: Relation, after: Relation) -> Iterator[int]:
    """Yield the rows in which two relations differ."""
    pairs = [np.stack([rows_of(each), each.indices]).T for each in (before, after)]
    both, counts = np.unique(np.concatenate(pairs), axis=0, return_counts=True)
    yield from np.unique(both[counts == 1][:, 0]).tolist()
