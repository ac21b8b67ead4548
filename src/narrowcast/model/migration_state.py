"""Migration state: memberships and routes between two plans, with the changes that led there."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.model.relation import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from narrowcast.model.plan import ChannelPlan
    from narrowcast.model.relation import Relation

    Row = tuple[int, str, int | None, int | None, int | None, int | None]


class MigrationState:
    """The state of a migration between two plans, and the rows of the changes so far.

    No subscriber misses a message. A subscriber at its limit of groups leaves one group to join another:
    flows it still needs from the old group are sent to it directly until it receives them in its new channel.

    Parameters
    ----------
    before, after
        Plans over the same labels and channels.
    most
        Limit on the groups of a subscriber, for subscribers that are within it in both plans; None for no
        limit.
    wants
        Interest by the positions of the plans (default: every flow that is sent to a subscriber is wanted).
    """

    def __init__(
        self,
        before: ChannelPlan,
        after: ChannelPlan,
        *,
        most: int | None = None,
        wants: Relation | None = None,
    ) -> None:
        self.before, self.after, self._most, self._wants = before, after, most, wants
        # A new session starts in its final group; a session that is no longer used stays in its group.
        new_channels, unused = ~before.used(), ~after.used()
        self.parent: list[int] = np.where(new_channels, after.parent, before.parent).tolist()
        self.end: list[int] = np.where(unused, self.parent, after.parent).tolist()
        self._listens, self.wanted = _columns(before.listens), _columns(after.listens)
        #: By subscriber: its current groups, and its final groups.
        self.joined: defaultdict[int, set[int]] = defaultdict(set)
        self._final_groups: defaultdict[int, set[int]] = defaultdict(set)
        #: By subscriber: its channels. By subscriber and group: how many channels of the group it listens to.
        self._channels_of: defaultdict[int, set[int]] = defaultdict(set)
        self._uses: defaultdict[tuple[int, int], int] = defaultdict(int)
        for channel, users in self.wanted.items():
            for user in users:
                self._final_groups[user].add(channel if self.end[channel] < 0 else self.end[channel])
        for channel, users in self._listens.items():
            for user in users:
                self._channels_of[user].add(channel)
                self._uses[user, self.group(channel)] += 1
                self.joined[user].add(self.group(channel))
        self._limit = {
            user: max(most or 0, len(self.joined[user]), len(groups))
            for user, groups in self._final_groups.items()
        }
        self._carries: dict[int, list[int]] = {}
        self._flows_in = _columns(before.carries)
        self.direct, self._final_direct = _columns(before.unicast), _columns(after.unicast)
        self.step = 0
        self.rows: list[Row] = []
        for channel in np.flatnonzero(new_channels & ~unused & (after.parent >= 0)).tolist():
            self.step = 1
            self._record("regroup", channel=channel, parent=int(after.parent[channel]))

    def group(self, channel: int) -> int:
        """Return the group that a channel is currently sent in: its parent, or itself."""
        above = self.parent[channel]
        return channel if above < 0 else above

    def _record(self, action: str, **what: int) -> None:
        names = ("subscriber", "flow", "channel", "parent")
        self.rows.append((self.step, action, *(what.get(name) for name in names)))  # type: ignore[arg-type]

    def enter(self, channel: int) -> None:
        """Make the final listeners of a channel listen to it, except those without room for its group."""
        for user in sorted(self.wanted[channel] - self._listens[channel]):
            self._listen(user, channel)

    def exit(self, channel: int) -> None:
        """Remove the listeners of a channel that are not its final listeners."""
        for user in sorted(self._listens[channel] - self.wanted[channel]):
            self._ignore(user, channel)

    def switch(self, flow: int, channels: frozenset[int]) -> None:
        """Send a flow in exactly these channels, and directly to the subscribers that need it directly."""
        due = self._final_direct[flow] - self.direct[flow]
        if self._most is not None:
            late = {user for channel in channels for user in self.wanted[channel] - self._listens[channel]}
            listening = {user for channel in channels for user in self._listens[channel]}
            due |= {user for user in late - listening - self.direct[flow] if self._needs(user, flow)}
        self._send(due, flow)
        for channel in sorted(channels):
            self._record("switch", flow=flow, channel=channel)
        if not channels:
            self._record("switch", flow=flow)
        for channel in self._channels(flow):
            self._flows_in[channel].discard(flow)
        for channel in channels:
            self._flows_in[channel].add(flow)
        self._carries[flow] = sorted(channels)
        self._release(flow)

    def regroup(self, channel: int, parent: int) -> None:
        """Move a session to another group; with parent -1 it becomes a group itself."""
        old, new = self.group(channel), channel if parent < 0 else parent
        users = sorted(self._listens[channel])
        full = [user for user in users if new not in self.joined[user] and self._full(user)]
        for user in full:
            self._bridge(user, [channel])
            self._ignore(user, channel)
        users = sorted(self._listens[channel])
        for user in users:
            self._join(user, new)
        self._record("regroup", channel=channel, **({} if parent < 0 else {"parent": parent}))
        self.parent[channel] = parent
        for user in users:
            self._leave(user, old)
        for user in full:
            if user in self.wanted[channel]:
                self._listen(user, channel)
        for flow in sorted(self._flows_in[channel]) if full else ():
            self._release(flow)

    def finish(self) -> None:
        """Apply all remaining changes: final direct deliveries, memberships and channels."""
        for flow in sorted(self._final_direct):
            self._send(self._final_direct[flow] - self.direct[flow], flow)
        for channel in range(self.before.n_channels):
            self.enter(channel)
        for channel in range(self.before.n_channels):
            self.exit(channel)
        for flow in sorted(self.direct):
            self._end(self.direct[flow] - self._final_direct[flow], flow)

    def _listen(self, user: int, channel: int) -> None:
        """Make a subscriber listen to a channel, unless it has no room for the channel's group."""
        if not self._join(user, self.group(channel)):
            return
        if self.parent[channel] >= 0:
            self._record("listen", subscriber=user, channel=channel)
        self._listens[channel].add(user)
        self._channels_of[user].add(channel)

    def _ignore(self, user: int, channel: int) -> None:
        """Make a subscriber stop listening to a channel."""
        if self.parent[channel] >= 0:
            self._record("ignore", subscriber=user, channel=channel)
        self._listens[channel].discard(user)
        self._channels_of[user].discard(channel)
        self._leave(user, self.group(channel))

    def _join(self, user: int, group: int) -> bool:
        """Count one more use of a group by a subscriber, joining it first; return False without room."""
        mine = self.joined[user]
        if group not in mine:
            if self._full(user) and not self._make_room(user):
                return False
            self._record("join", subscriber=user, channel=group)
            mine.add(group)
        self._uses[user, group] += 1
        return True

    def _leave(self, user: int, group: int) -> None:
        """Count one use less of a group, and leave it after the last unless it is a final group."""
        self._uses[user, group] -= 1
        if not self._uses[user, group] and group not in self._final_groups[user]:
            self._record("leave", subscriber=user, channel=group)
            self.joined[user].discard(group)

    def _full(self, user: int) -> bool:
        """Return whether a subscriber is at its limit of groups."""
        return self._most is not None and len(self.joined[user]) >= self._limit.get(user, self._most)

    def _make_room(self, user: int) -> bool:
        """Make a subscriber leave a group that is not final; return False if there is none."""
        # If the group to join is final, there is one: the number of final groups is within the limit.
        ways = []
        for group in self.joined[user] - self._final_groups[user]:
            channels = sorted(each for each in self._channels_of[user] if self.group(each) == group)
            ways.append((len(self._missed(user, channels)), group, channels))
        if not ways:
            return False
        _, _, channels = min(ways)
        self._bridge(user, channels)
        for channel in channels:
            self._ignore(user, channel)
        return True

    def _bridge(self, user: int, channels: list[int]) -> None:
        """Send a subscriber directly what it would miss without the given channels."""
        for flow in self._missed(user, channels):
            self._send([user], flow)

    def _missed(self, user: int, channels: Iterable[int]) -> list[int]:
        """Return the flows that a subscriber would miss without the given channels."""
        rest = self._channels_of[user].difference(channels)
        return sorted(
            flow
            for flow in {flow for channel in channels for flow in self._flows_in[channel]}
            if user not in self.direct[flow]
            and not rest.intersection(self._channels(flow))
            and self._needs(user, flow)
        )

    def _send(self, users: Iterable[int], flow: int) -> None:
        """Start sending a flow directly to subscribers."""
        for user in sorted(users):
            self._record("directly", subscriber=user, flow=flow)
            self.direct[flow].add(user)

    def _end(self, users: Iterable[int], flow: int) -> None:
        """Stop sending a flow directly to subscribers."""
        for user in sorted(users):
            self._record("no longer directly", subscriber=user, flow=flow)
            self.direct[flow].discard(user)

    def _release(self, flow: int) -> None:
        """Stop direct delivery of a flow to subscribers that receive it in a channel or no longer need it."""
        channels = self._channels(flow)
        extra = self.direct[flow] - self._final_direct[flow]
        self._end(
            [u for u in extra if not self._channels_of[u].isdisjoint(channels) or not self._needs(u, flow)],
            flow,
        )

    def _channels(self, flow: int) -> list[int]:
        """Return the channels that currently carry a flow."""
        found = self._carries.get(flow)
        return _row(self.before.carries, flow) if found is None else found

    def _needs(self, user: int, flow: int) -> bool:
        """Return whether a subscriber must receive a flow throughout: wanted, and served by both plans."""
        if self._wants is not None and not _has(self._wants, user, flow):
            return False
        return _delivers(self.before, user, flow) and _delivers(self.after, user, flow)


def _row(pairs: Relation, row: int) -> list[int]:
    found: list[int] = pairs.indices[pairs.indptr[row] : pairs.indptr[row + 1]].tolist()
    return found


def _has(pairs: Relation, row: int, column: int) -> bool:
    """Return whether the relation contains the pair."""
    first, last = int(pairs.indptr[row]), int(pairs.indptr[row + 1])
    place = first + int(np.searchsorted(pairs.indices[first:last], column))
    return place < last and int(pairs.indices[place]) == column


def _delivers(plan: ChannelPlan, user: int, flow: int) -> bool:
    """Return whether the plan delivers the flow to the subscriber, by channel or directly."""
    channels = _row(plan.carries, flow)
    return any(_has(plan.listens, user, channel) for channel in channels) or _has(plan.unicast, user, flow)


def _columns(pairs: Relation) -> defaultdict[int, set[int]]:
    found: defaultdict[int, set[int]] = defaultdict(set)
    for row, column in zip(rows_of(pairs).tolist(), pairs.indices.tolist(), strict=True):
        found[column].add(row)
    return found
