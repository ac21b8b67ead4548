"""The way from one plan to another, one change at a time, on which nobody misses a message."""

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

#: What can be done: by a subscriber, `join` and `leave` a group, `listen` to and `ignore` a session of it; by
#: who sends, `switch` a flow to its channels, `regroup` a session, send a flow `directly`, or no more so.
ACTIONS = ("join", "listen", "directly", "switch", "regroup", "ignore", "leave", "no longer directly")


def migration(
    before: ChannelPlan,
    after: ChannelPlan,
    *,
    memberships: int | None = None,
    interest: Interest | None = None,
) -> pa.Table:
    """Return the changes that lead from one plan to the other, in an order in which nobody misses a message.

    Flows move from channel to channel in steps, those with the same way together. In each step whoever needs
    the new channel joins it, then the flows are switched, then whoever has no more use for the old channel
    leaves it. A message that is sent while a switch is under way goes by either side of it; both are heard by
    everybody who was served before and is after. Channels are compared by number.

    Joining before leaving takes one group more for a while. Where a subscriber has no room for it, it leaves
    first, and what it would miss is sent to it directly in the meantime.

    Parameters
    ----------
    before, after
        The plans; see `renumbered` for one whose channels do not have the numbers of the other's.
    memberships
        The most groups that a subscriber is in at any time, if it is in no more before and after, and else
        the most of these; where left out, any number. See `peak`.
    interest
        Who wants what: with `memberships`, nothing else is sent directly in the meantime. Where left out, all
        that both plans send to a subscriber.

    Returns
    -------
    pa.Table
        `step`, `action` (see `ACTIONS`), `subscriber`, `flow`, `channel` and `parent`, null where they do not
        apply. A flow that is switched is from then on in this channel alone (rows of one flow and step are
        one switch, to several), in none with null. A session that is regrouped is sent in the group `parent`
        from then on; so is a new one.
        In plans of one level, and for channels without a parent, one joins and leaves, and listens to nothing
        besides.

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
        raise ParameterError(f"memberships is {memberships}; give a whole number of at least 1")
    before, after = aligned(before, after)
    way = MigrationState(
        before, after, most=memberships, wants=None if interest is None else _wants(interest, after)
    )
    moved, open_ends = _moved(before.carries, after.carries)
    late = _late(before, after)
    for flows in moved:
        way.step += 1
        for channel in sorted(flows.now):
            way.enter(channel)
        for flow in flows.flows:
            way.switch(flow, flows.now)
        for channel in sorted(flows.out):
            open_ends[channel] -= 1
            if not open_ends[channel] and channel not in late:
                way.exit(channel)
    for channel, parent in enumerate(way.end):
        if way.parent[channel] != parent:
            way.step += 1
            way.regroup(channel, parent)
    way.step += 1
    way.finish()
    return _table(way)


def peak(before: ChannelPlan, way: pa.Table) -> int:
    """Return the most groups that a subscriber is in at any time of a migration.

    Parameters
    ----------
    before
        The plan that it starts from.
    way
        What `migration` returned.

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
    for action, user in zip(way["action"].to_pylist(), way["subscriber"].to_pylist(), strict=True):
        if action in ("join", "leave"):
            now[user] = now.get(user, 0) + (1 if action == "join" else -1)
            most = max(most, now[user])
    return most


def _wants(interest: Interest, plan: ChannelPlan) -> Relation:
    """Return what is wanted by the positions of a plan, of what it knows."""
    row = positions("subscriber", interest.subscribers, plan.subscribers)[rows_of(interest.wants)]
    column = positions("flow", interest.flows, plan.flows)[interest.wants.indices]
    known = (row >= 0) & (column >= 0)
    return relation_of(row[known], column[known], (plan.n_subscribers, plan.n_flows))


def _late(before: ChannelPlan, after: ChannelPlan) -> set[int]:
    """Return channels that are left at last: with flows that those who leave may get otherwise then."""
    carries = after.carries
    several = np.diff(carries.indptr) > 1
    mine, theirs = (rows_of(each) * each.shape[1] + each.indices for each in (after.unicast, before.unicast))
    several[np.setdiff1d(mine, theirs) % max(1, after.n_flows)] = True
    return set(carries.indices[several[rows_of(carries)]].tolist())


def _table(way: MigrationState) -> pa.Table:
    """Return the rows as a table, with labels."""
    kinds = (pa.int32(), pa.string(), pa.int64(), pa.int64(), pa.int32(), pa.int32())
    names = ("step", "action", "subscriber", "flow", "channel", "parent")
    columns: Iterable[Any] = zip(*way.rows, strict=True) if way.rows else ((),) * len(names)
    found = {
        name: pa.array(list(column), kind) for name, column, kind in zip(names, columns, kinds, strict=True)
    }
    labels = {"subscriber": way.after.subscribers, "flow": way.after.flows}
    return pa.table(found | {name: known.take(found[name]) for name, known in labels.items()})


class _Moved:
    """Flows that go the same way: out of these channels, to be in certain ones then."""

    def __init__(self, old: frozenset[int], new: frozenset[int]) -> None:
        self.out, self.now = old - new, new
        self.flows: list[int] = []


def _moved(before: Relation, after: Relation) -> tuple[list[_Moved], dict[int, int]]:
    """Return the flows whose channels change, and of each channel how many such ways lead out of it."""
    ways: dict[tuple[frozenset[int], frozenset[int]], _Moved] = {}
    for flow in _different(before, after):
        old, new = (
            frozenset(each.indices[each.indptr[flow] : each.indptr[flow + 1]].tolist())
            for each in (before, after)
        )
        ways.setdefault((old, new), _Moved(old, new)).flows.append(flow)
    ends: dict[int, int] = defaultdict(int)
    for way in ways.values():
        for channel in way.out:
            ends[channel] += 1
    return list(ways.values()), ends


def _different(before: Relation, after: Relation) -> Iterator[int]:
    """Yield the rows in which two relations differ."""
    pairs = [np.stack([rows_of(each), each.indices]).T for each in (before, after)]
    both, counts = np.unique(np.concatenate(pairs), axis=0, return_counts=True)
    yield from np.unique(both[counts == 1][:, 0]).tolist()
