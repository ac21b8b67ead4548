"""The way from one plan to another, one change at a time, on which nobody misses a message."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from narrowcast.model.diff import aligned
from narrowcast.model.relation import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from narrowcast.model.plan import ChannelPlan
    from narrowcast.model.relation import Relation

#: What can be done: by a subscriber, `join` and `leave` a group, `listen` to and `ignore` a session of it; by
#: who sends, `switch` a flow to its channels, `regroup` a session, send a flow `directly`, or no more so.
ACTIONS = ("join", "listen", "directly", "switch", "regroup", "ignore", "leave", "no longer directly")


def migration(before: ChannelPlan, after: ChannelPlan) -> pa.Table:
    """Return the changes that lead from one plan to the other, in an order in which nobody misses a message.

    Flows move from channel to channel in steps, those with the same way together. In each step whoever needs
    the new channel joins it, then the flows are switched, then whoever has no more use for the old channel
    leaves it. A message that is sent while a switch is under way goes by either side of it; both are heard by
    everybody who was served before and is after. Channels are compared by number.

    Parameters
    ----------
    before, after
        The plans; see `renumbered` for one whose channels do not have the numbers of the other's.

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
    """
    return _Way(*aligned(before, after)).table()


class _Way:
    """Who is where, step by step."""

    def __init__(self, before: ChannelPlan, after: ChannelPlan) -> None:
        self._before, self._after = before, after
        # A session that is new is in its group from the start, and one that nobody uses any more stays.
        self._parent = np.where(_unused(before), after.parent, before.parent).tolist()
        self._end = np.where(_unused(after), self._parent, after.parent).tolist()
        self._listens = _columns(before.listens)
        self._wanted = _columns(after.listens)
        #: Who is in which group at last.
        self._stays = {
            (user, channel if self._end[channel] < 0 else self._end[channel])
            for channel, users in self._wanted.items()
            for user in users
        }
        self._joined: set[tuple[int, int]] = set()
        #: Of each subscriber and group, how many channels there it listens to.
        self._uses: defaultdict[tuple[int, int], int] = defaultdict(int)
        for channel, users in self._listens.items():
            for user in users:
                self._uses[user, self._group(channel)] += 1
                self._joined.add((user, self._group(channel)))
        self._step = 0
        self._rows: list[tuple[int, str, int | None, int | None, int | None, int | None]] = []
        for channel in np.flatnonzero(_unused(before) & ~_unused(after) & (after.parent >= 0)).tolist():
            self._step = 1
            self._add("regroup", channel=channel, parent=int(after.parent[channel]))

    def _group(self, channel: int) -> int:
        """Return the group that a channel is sent in now: its parent, or itself."""
        above = self._parent[channel]
        return channel if above < 0 else above

    def _add(self, action: str, **what: int) -> None:
        """Note a change."""
        names = ("subscriber", "flow", "channel", "parent")
        self._rows.append((self._step, action, *(what.get(name) for name in names)))  # type: ignore[arg-type]

    def _join(self, user: int, group: int) -> None:
        """Have a subscriber in a group once more."""
        if (user, group) not in self._joined:
            self._add("join", subscriber=user, channel=group)
            self._joined.add((user, group))
        self._uses[user, group] += 1

    def _leave(self, user: int, group: int) -> None:
        """Have a subscriber in a group once less; one who is to come back stays."""
        self._uses[user, group] -= 1
        if not self._uses[user, group] and (user, group) not in self._stays:
            self._add("leave", subscriber=user, channel=group)
            self._joined.discard((user, group))

    def _enter(self, channel: int) -> None:
        """Have everybody listen to a channel who will."""
        heard = self._listens[channel]
        for user in sorted(self._wanted[channel] - heard):
            self._join(user, self._group(channel))
            if self._parent[channel] >= 0:
                self._add("listen", subscriber=user, channel=channel)
            heard.add(user)

    def _exit(self, channel: int) -> None:
        """Have nobody listen to a channel who will not."""
        heard = self._listens[channel]
        for user in sorted(heard - self._wanted[channel]):
            if self._parent[channel] >= 0:
                self._add("ignore", subscriber=user, channel=channel)
            self._leave(user, self._group(channel))
            heard.discard(user)

    def _regroup(self, channel: int, parent: int) -> None:
        """Have a session sent in another group, or be one itself."""
        old = self._group(channel)
        new = channel if parent < 0 else parent
        users = sorted(self._listens[channel])
        for user in users:
            self._join(user, new)
        self._add("regroup", channel=channel, **({} if parent < 0 else {"parent": parent}))
        self._parent[channel] = parent
        for user in users:
            self._leave(user, old)

    def _direct(self, action: str, pairs: dict[int, list[int]], flow: int) -> None:
        """Begin or end to send a flow directly to those it is due to."""
        for user in pairs.pop(flow, ()):
            self._add(action, subscriber=user, flow=flow)

    def _late(self, served: dict[int, list[int]]) -> set[int]:
        """Return channels that are left at last: with flows that those who leave may get otherwise then."""
        carries = self._after.carries
        several = np.diff(carries.indptr) > 1
        several[list(served)] = True
        return set(carries.indices[several[rows_of(carries)]].tolist())

    def table(self) -> pa.Table:
        """Return all changes."""
        before, after = self._before, self._after
        served, unserved = _only(after.unicast, before.unicast), _only(before.unicast, after.unicast)
        moved, open_ends = _moved(before.carries, after.carries)
        late = self._late(served)
        for flows in moved:
            self._step += 1
            for channel in sorted(flows.now):
                self._enter(channel)
            for flow in flows.flows:
                self._direct("directly", served, flow)
                for channel in sorted(flows.now):
                    self._add("switch", flow=flow, channel=channel)
                if not flows.now:
                    self._add("switch", flow=flow)
                self._direct("no longer directly", unserved, flow)
            for channel in sorted(flows.out):
                open_ends[channel] -= 1
                if not open_ends[channel] and channel not in late:
                    self._exit(channel)
        for channel, parent in enumerate(self._end):
            if self._parent[channel] != parent:
                self._step += 1
                self._regroup(channel, parent)
        self._step += 1
        for flow in list(served):
            self._direct("directly", served, flow)
        for channel in range(before.n_channels):
            self._enter(channel)
        for channel in range(before.n_channels):
            self._exit(channel)
        for flow in list(unserved):
            self._direct("no longer directly", unserved, flow)
        return self._made()

    def _made(self) -> pa.Table:
        """Return the rows as a table, with labels."""
        kinds = (pa.int32(), pa.string(), pa.int64(), pa.int64(), pa.int32(), pa.int32())
        names = ("step", "action", "subscriber", "flow", "channel", "parent")
        columns: Iterable[Any] = zip(*self._rows, strict=True) if self._rows else ((),) * len(names)
        found = {
            name: pa.array(list(column), kind)
            for name, column, kind in zip(names, columns, kinds, strict=True)
        }
        labels = {"subscriber": self._after.subscribers, "flow": self._after.flows}
        return pa.table(found | {name: known.take(found[name]) for name, known in labels.items()})


def _unused(plan: ChannelPlan) -> NDArray[np.bool_]:
    """Return which channels carry nothing, have no listeners and no sessions."""
    used = np.concatenate([plan.carries.indices, plan.listens.indices, plan.parent[plan.parent >= 0]])
    found: NDArray[np.bool_] = np.bincount(used, minlength=plan.n_channels) == 0
    return found


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


def _only(one: Relation, other: Relation) -> dict[int, list[int]]:
    """Return the pairs that only the first relation holds: of each column its rows."""
    mine, theirs = (rows_of(each) * one.shape[1] + each.indices for each in (one, other))
    row, column = np.divmod(np.setdiff1d(mine, theirs), max(1, one.shape[1]))
    found: dict[int, list[int]] = {}
    for user, flow in zip(row.tolist(), column.tolist(), strict=True):
        found.setdefault(flow, []).append(user)
    return found


def _columns(pairs: Relation) -> defaultdict[int, set[int]]:
    """Return the rows of each column."""
    found: defaultdict[int, set[int]] = defaultdict(set)
    for row, column in zip(rows_of(pairs).tolist(), pairs.indices.tolist(), strict=True):
        found[column].add(row)
    return found
