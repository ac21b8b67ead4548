"""Who is where between two plans, one change after the other, so that nobody misses a message."""

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
    """The state between two plans, and the rows that led there.

    Whoever is in as many groups as it may be leaves one for another: what it needs of that one is sent to it
    directly until it hears it in its new channel.

    Parameters
    ----------
    before, after
        Plans over the same labels and channels.
    most
        The most groups that a subscriber is in who is in no more before and after; None for any number.
    wants
        What subscribers want, by the positions of the plans; where left out, all that is sent to them.
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
        # A session that is new is in its group from the start, and one that nobody uses any more stays.
        fresh, gone = ~before.used(), ~after.used()
        self.parent: list[int] = np.where(fresh, after.parent, before.parent).tolist()
        self.end: list[int] = np.where(gone, self.parent, after.parent).tolist()
        self._listens, self.wanted = _columns(before.listens), _columns(after.listens)
        #: Of each subscriber the groups that it is in, and those that it is in at last.
        self.joined: defaultdict[int, set[int]] = defaultdict(set)
        self._stays: defaultdict[int, set[int]] = defaultdict(set)
        #: Of each subscriber its channels; of it and a group, how many channels there it listens to.
        self._heard: defaultdict[int, set[int]] = defaultdict(set)
        self._uses: defaultdict[tuple[int, int], int] = defaultdict(int)
        for channel, users in self.wanted.items():
            for user in users:
                self._stays[user].add(channel if self.end[channel] < 0 else self.end[channel])
        for channel, users in self._listens.items():
            for user in users:
                self._heard[user].add(channel)
                self._uses[user, self.group(channel)] += 1
                self.joined[user].add(self.group(channel))
        self._cap = {
            user: max(most or 0, len(self.joined[user]), len(groups)) for user, groups in self._stays.items()
        }
        self._carries: dict[int, list[int]] = {}
        self._inside = _columns(before.carries)
        self.direct, self._directly = _columns(before.unicast), _columns(after.unicast)
        self.step = 0
        self.rows: list[Row] = []
        for channel in np.flatnonzero(fresh & ~gone & (after.parent >= 0)).tolist():
            self.step = 1
            self._add("regroup", channel=channel, parent=int(after.parent[channel]))

    def group(self, channel: int) -> int:
        """Return the group that a channel is sent in now: its parent, or itself."""
        above = self.parent[channel]
        return channel if above < 0 else above

    def _add(self, action: str, **what: int) -> None:
        """Note a change."""
        names = ("subscriber", "flow", "channel", "parent")
        self.rows.append((self.step, action, *(what.get(name) for name in names)))  # type: ignore[arg-type]

    def enter(self, channel: int) -> None:
        """Have everybody listen to a channel who will, but for those who have no room for its group."""
        for user in sorted(self.wanted[channel] - self._listens[channel]):
            self._listen(user, channel)

    def exit(self, channel: int) -> None:
        """Have nobody listen to a channel who will not."""
        for user in sorted(self._listens[channel] - self.wanted[channel]):
            self._ignore(user, channel)

    def switch(self, flow: int, channels: frozenset[int]) -> None:
        """Have a flow sent in certain channels and in no other, and directly to whom it is due."""
        due = self._directly[flow] - self.direct[flow]
        if self._most is not None:
            late = {user for channel in channels for user in self.wanted[channel] - self._listens[channel]}
            heard = {user for channel in channels for user in self._listens[channel]}
            due |= {user for user in late - heard - self.direct[flow] if self._needs(user, flow)}
        self._send(due, flow)
        for channel in sorted(channels):
            self._add("switch", flow=flow, channel=channel)
        if not channels:
            self._add("switch", flow=flow)
        for channel in self._channels(flow):
            self._inside[channel].discard(flow)
        for channel in channels:
            self._inside[channel].add(flow)
        self._carries[flow] = sorted(channels)
        self._release(flow)

    def regroup(self, channel: int, parent: int) -> None:
        """Have a session sent in another group, or be one itself."""
        old, new = self.group(channel), channel if parent < 0 else parent
        users = sorted(self._listens[channel])
        full = [user for user in users if new not in self.joined[user] and self._full(user)]
        for user in full:
            self._bridge(user, [channel])
            self._ignore(user, channel)
        users = sorted(self._listens[channel])
        for user in users:
            self._join(user, new)
        self._add("regroup", channel=channel, **({} if parent < 0 else {"parent": parent}))
        self.parent[channel] = parent
        for user in users:
            self._leave(user, old)
        for user in full:
            if user in self.wanted[channel]:
                self._listen(user, channel)
        for flow in sorted(self._inside[channel]) if full else ():
            self._release(flow)

    def finish(self) -> None:
        """Do all that is left: what is due is sent directly, and everybody is where it is at last."""
        for flow in sorted(self._directly):
            self._send(self._directly[flow] - self.direct[flow], flow)
        for channel in range(self.before.n_channels):
            self.enter(channel)
        for channel in range(self.before.n_channels):
            self.exit(channel)
        for flow in sorted(self.direct):
            self._end(self.direct[flow] - self._directly[flow], flow)

    def _listen(self, user: int, channel: int) -> None:
        """Have a subscriber listen to a channel, if it can be in its group."""
        if not self._join(user, self.group(channel)):
            return
        if self.parent[channel] >= 0:
            self._add("listen", subscriber=user, channel=channel)
        self._listens[channel].add(user)
        self._heard[user].add(channel)

    def _ignore(self, user: int, channel: int) -> None:
        """Have a subscriber no longer listen to a channel."""
        if self.parent[channel] >= 0:
            self._add("ignore", subscriber=user, channel=channel)
        self._listens[channel].discard(user)
        self._heard[user].discard(channel)
        self._leave(user, self.group(channel))

    def _join(self, user: int, group: int) -> bool:
        """Have a subscriber in a group once more; return whether there was room for it."""
        mine = self.joined[user]
        if group not in mine:
            if self._full(user) and not self._make_room(user):
                return False
            self._add("join", subscriber=user, channel=group)
            mine.add(group)
        self._uses[user, group] += 1
        return True

    def _leave(self, user: int, group: int) -> None:
        """Have a subscriber in a group once less; one who is to come back stays."""
        self._uses[user, group] -= 1
        if not self._uses[user, group] and group not in self._stays[user]:
            self._add("leave", subscriber=user, channel=group)
            self.joined[user].discard(group)

    def _full(self, user: int) -> bool:
        """Return whether a subscriber is in as many groups as it may be."""
        return self._most is not None and len(self.joined[user]) >= self._cap.get(user, self._most)

    def _make_room(self, user: int) -> bool:
        """Have a subscriber leave a group that it is not in at last, if there is one."""
        # There is for every group that it is in at last: of these it then is in fewer than it may be.
        ways = []
        for group in self.joined[user] - self._stays[user]:
            channels = sorted(each for each in self._heard[user] if self.group(each) == group)
            ways.append((len(self._missed(user, channels)), group, channels))
        if not ways:
            return False
        _, _, channels = min(ways)
        self._bridge(user, channels)
        for channel in channels:
            self._ignore(user, channel)
        return True

    def _bridge(self, user: int, channels: list[int]) -> None:
        """Send a subscriber directly what it would miss without some of its channels."""
        for flow in self._missed(user, channels):
            self._send([user], flow)

    def _missed(self, user: int, channels: Iterable[int]) -> list[int]:
        """Return the flows that a subscriber would miss without some of its channels."""
        rest = self._heard[user].difference(channels)
        return sorted(
            flow
            for flow in {flow for channel in channels for flow in self._inside[channel]}
            if user not in self.direct[flow]
            and not rest.intersection(self._channels(flow))
            and self._needs(user, flow)
        )

    def _send(self, users: Iterable[int], flow: int) -> None:
        """Begin to send a flow to subscribers directly."""
        for user in sorted(users):
            self._add("directly", subscriber=user, flow=flow)
            self.direct[flow].add(user)

    def _end(self, users: Iterable[int], flow: int) -> None:
        """No longer send a flow to subscribers directly."""
        for user in sorted(users):
            self._add("no longer directly", subscriber=user, flow=flow)
            self.direct[flow].discard(user)

    def _release(self, flow: int) -> None:
        """No longer send a flow directly to those who hear it in a channel, or who go without it at last."""
        channels = self._channels(flow)
        extra = self.direct[flow] - self._directly[flow]
        self._end(
            [u for u in extra if not self._heard[u].isdisjoint(channels) or not self._needs(u, flow)], flow
        )

    def _channels(self, flow: int) -> list[int]:
        """Return the channels that a flow is sent in now."""
        found = self._carries.get(flow)
        return _row(self.before.carries, flow) if found is None else found

    def _needs(self, user: int, flow: int) -> bool:
        """Return whether a subscriber has a flow all the time: both plans serve it, and it is wanted."""
        if self._wants is not None and not _has(self._wants, user, flow):
            return False
        return _serves(self.before, user, flow) and _serves(self.after, user, flow)


def _row(pairs: Relation, row: int) -> list[int]:
    """Return the columns of a row."""
    found: list[int] = pairs.indices[pairs.indptr[row] : pairs.indptr[row + 1]].tolist()
    return found


def _has(pairs: Relation, row: int, column: int) -> bool:
    """Return whether a relation has a pair."""
    first, last = int(pairs.indptr[row]), int(pairs.indptr[row + 1])
    place = first + int(np.searchsorted(pairs.indices[first:last], column))
    return place < last and int(pairs.indices[place]) == column


def _serves(plan: ChannelPlan, user: int, flow: int) -> bool:
    """Return whether a plan has a flow sent to a subscriber."""
    channels = _row(plan.carries, flow)
    return any(_has(plan.listens, user, channel) for channel in channels) or _has(plan.unicast, user, flow)


def _columns(pairs: Relation) -> defaultdict[int, set[int]]:
    """Return the rows of each column."""
    found: defaultdict[int, set[int]] = defaultdict(set)
    for row, column in zip(rows_of(pairs).tolist(), pairs.indices.tolist(), strict=True):
        found[column].add(row)
    return found
