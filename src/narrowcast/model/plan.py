"""Channel plan: which channels carry each flow and which channels each subscriber listens to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from narrowcast.deprecation import renamed_members
from narrowcast.errors import PlanError
from narrowcast.model.labels import Labels, encode, labels_in, names_of, positions
from narrowcast.model.placement import Placement
from narrowcast.model.relation import Positions, Relation, expand, holds, relation, relation_of, rows_of, same

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    from narrowcast.model.interest import Interest

#: Pairs that are processed at once: bounds the memory of every check, whatever the size of the plan.
BLOCK = 1 << 20


@renamed_members(heard="channels_reaching")
@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class ChannelPlan:
    """An assignment of flows and subscribers to channels.

    In a plan of two levels, a channel with a parent is a session and its parent is the group that it is sent
    in; `carries` and `listens` then refer to sessions. In a plan of one level, each channel is both.

    Parameters
    ----------
    carries
        Flows x channels: which channels carry a flow.
    listens
        Subscribers x channels: which channels a subscriber listens to.
    parent
        For each channel the group it is sent in, -1 for none. A parent has no parent, carries no flow itself
        and has no listeners of its own.
    unicast
        Subscribers x flows: the pairs that are delivered directly.
    subscribers, flows
        Labels, integers or strings (default: 0, 1, 2, ...). A label without any row is equivalent to an
        unknown label: the plan does not serve that subscriber or flow.
    subscriptions
        The channel of each subscription, in a plan that clusters subscriptions instead of subscribers. A
        subscriber listens to the channels of all its subscriptions. An event goes to the channels of the
        subscriptions that it matches, not to all channels of their subscribers.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> interest = Interest([[1, 1, 0], [0, 1, 1]])
    >>> plan = ChannelPlan(carries=[[1, 0], [1, 0], [0, 1]], listens=[[1, 0], [1, 0]])
    >>> plan
    ChannelPlan(2 channels, 3 flows, 2 subscribers)
    >>> plan.false_exclusions(interest).to_pylist()
    [{'subscriber': 1, 'flow': 2}]
    """

    carries: Relation
    listens: Relation
    parent: NDArray[np.int32]
    unicast: Relation
    subscribers: Labels
    flows: Labels
    subscriptions: Placement | None

    def __init__(
        self,
        carries: Any,
        listens: Any,
        parent: ArrayLike | None = None,
        unicast: Any = None,
        subscribers: Any = None,
        flows: Any = None,
        subscriptions: Placement | None = None,
    ) -> None:
        carries, listens = relation(carries), relation(listens)
        (n_flows, n_channels), n_subscribers = carries.shape, listens.shape[0]
        if listens.shape[1] != n_channels:
            raise PlanError(
                f"carries has {n_channels} channels, listens has {listens.shape[1]}: must be the same number"
            )
        unicast = relation_of([], [], (n_subscribers, n_flows)) if unicast is None else relation(unicast)
        if unicast.shape != (n_subscribers, n_flows):
            raise PlanError(
                parameter="unicast",
                value=unicast.shape,
                limit=f"{n_subscribers, n_flows}, subscribers x flows",
            )
        above = np.full(n_channels, -1, np.int32) if parent is None else np.array(parent, np.int32)
        _check_parents(above, carries, listens)
        if subscriptions is not None:
            subscriptions.check(n_channels)
            _check_placed(subscriptions, listens)
        above.flags.writeable = False
        object.__setattr__(self, "carries", carries)
        object.__setattr__(self, "listens", listens)
        object.__setattr__(self, "parent", above)
        object.__setattr__(self, "unicast", unicast)
        object.__setattr__(self, "subscribers", names_of(subscribers, "subscriber", n_subscribers))
        object.__setattr__(self, "flows", names_of(flows, "flow", n_flows))
        object.__setattr__(self, "subscriptions", subscriptions)

    @classmethod
    def from_tables(
        cls,
        carries: pa.Table,
        listens: pa.Table,
        unicast: pa.Table | None = None,
        *,
        n_channels: int,
        parent: ArrayLike | None = None,
        subscriptions: pa.Table | None = None,
    ) -> Self:
        """Build from the tables that `to_tables` returns."""
        if unicast is None:
            unicast = pa.table({"subscriber": pa.array([], pa.null()), "flow": pa.array([], pa.null())})
        flows, [carried, direct_flow] = encode(
            "flow", labels_in(carries, "flow", "carries"), labels_in(unicast, "flow", "unicast")
        )
        subscribers, [listener, direct_subscriber] = encode(
            "subscriber",
            labels_in(listens, "subscriber", "listens"),
            labels_in(unicast, "subscriber", "unicast"),
        )
        return cls(
            relation_of(carried, _channels_in(carries, "carries", n_channels), (len(flows), n_channels)),
            relation_of(
                listener, _channels_in(listens, "listens", n_channels), (len(subscribers), n_channels)
            ),
            parent,
            relation_of(direct_subscriber, direct_flow, (len(subscribers), len(flows))),
            subscribers,
            flows,
            None if subscriptions is None else Placement.from_table(subscriptions),
        )

    def to_tables(self) -> dict[str, pa.Table]:
        """Return the tables `carries`, `listens`, `unicast` and `channels` (channel, parent or null).

        A plan that assigns subscriptions to channels has the table `subscriptions` as well.
        """
        parent = pa.array(self.parent, mask=self.parent < 0)
        placed = {} if self.subscriptions is None else {"subscriptions": self.subscriptions.to_table()}
        return {
            "carries": pair_table(self.carries, flow=self.flows, channel=None),
            "listens": pair_table(self.listens, subscriber=self.subscribers, channel=None),
            "unicast": pair_table(self.unicast, subscriber=self.subscribers, flow=self.flows),
            "channels": pa.table({"channel": np.arange(self.n_channels, dtype=np.int32), "parent": parent}),
            **placed,
        }

    @property
    def n_channels(self) -> int:
        """Number of channels, sessions and groups together."""
        return int(self.carries.shape[1])

    @property
    def n_groups(self) -> int:
        """Number of channels without a parent: what a planner's `channels` limits."""
        return int(np.count_nonzero(self.parent < 0))

    @property
    def n_used(self) -> int:
        """Number of groups that carry a flow, themselves or in a session."""
        return len(np.unique(self.groups()[self.carries.indices]))

    @property
    def n_subscribers(self) -> int:
        """Number of subscribers in the plan."""
        return int(self.listens.shape[0])

    @property
    def n_flows(self) -> int:
        """Number of flows in the plan."""
        return int(self.carries.shape[0])

    def groups(self) -> Positions:
        """Return the group that each channel is sent in: its parent, or itself."""
        return np.where(self.parent < 0, np.arange(self.n_channels), self.parent)

    def used(self) -> NDArray[np.bool_]:
        """Return the mask of channels that carry a flow, have a listener, or have a session that does.

        A plan that continues from another keeps the channel numbers; unused numbers are free.
        """
        own = np.append(self.carries.indices, self.listens.indices)
        found: NDArray[np.bool_] = np.bincount(own, minlength=self.n_channels) > 0
        found[self.parent[found & (self.parent >= 0)]] = True
        return found

    def members(self) -> Positions:
        """Return the number of distinct listeners of each channel, or of all sessions of a group."""
        listeners = np.bincount(self.listens.indices, minlength=self.n_channels)
        if self.n_groups == self.n_channels:
            return listeners
        # A session's listeners count once in its group, no matter how many of its sessions they listen to.
        joined = relation_of(rows_of(self.listens), self.groups()[self.listens.indices], self.listens.shape)
        in_groups = np.bincount(joined.indices, minlength=self.n_channels)
        return np.where(self.parent < 0, in_groups, listeners)

    def balance(self) -> float | None:
        """Return the size of the largest group relative to the mean size; None if no group has members.

        Groups without members do not count. A plan with few unwanted deliveries may still be useless when one
        group has most of the members.

        Examples
        --------
        >>> ChannelPlan(carries=[[1, 1, 0]], listens=[[1, 0, 0], [1, 0, 0], [1, 0, 0], [0, 1, 0]]).balance()
        1.5
        """
        size = self.members()[self.parent < 0]
        size = size[size > 0]
        return float(size.max() / size.mean()) if len(size) else None

    def rates(self, interest: Interest) -> NDArray[np.float64]:
        """Return the messages per second of each channel; a group counts those of all its sessions."""
        rate = self.rate_of_flows(interest)[rows_of(self.carries)]
        own = np.bincount(self.carries.indices, rate, self.n_channels)
        session = self.parent >= 0
        below = np.bincount(self.parent[session], own[session], self.n_channels)
        return np.asarray(own + below, np.float64)

    def rate_of_flows(self, interest: Interest) -> NDArray[np.float64]:
        """Return the rate of each of the plan's flows, 0 for a flow that the interest does not have."""
        place = positions("flow", self.flows, interest.flows)
        return np.where(place >= 0, np.append(interest.rate, 0.0)[place], 0.0)

    def channels_reaching(
        self, subscriber: Positions, flow: Positions
    ) -> Iterator[tuple[Positions, Positions]]:
        """Yield for each (subscriber, flow) pair every channel that delivers the flow to the subscriber.

        Pairs are given by position; a pair with a position of -1 has no channel. Each block has pair numbers
        and a channel for each. The work is linear in the number of channels per flow, summed over the pairs.
        """
        known = np.flatnonzero((subscriber >= 0) & (flow >= 0))
        for part in np.split(known, cuts(np.diff(self.carries.indptr)[flow[known]])):
            owner, channel = expand(self.carries, flow[part])
            pair = part[owner]
            hit = holds(self.listens, subscriber[pair], channel)
            yield pair[hit], channel[hit]

    def by_channel(self, interest: Interest) -> NDArray[np.bool_]:
        """Return for each wanted pair whether a channel serves it, in the order of `interest.wants`."""
        reached = np.zeros(interest.n_wants, np.bool_)
        for start, subscriber, flow in self._wanted(interest):
            for pair, _ in self.channels_reaching(subscriber, flow):
                reached[start + pair] = True
        return reached

    def by_unicast(self, interest: Interest) -> NDArray[np.bool_]:
        """Return for each wanted pair whether it is delivered directly, in the order of `interest.wants`."""
        reached = np.zeros(interest.n_wants, np.bool_)
        for start, subscriber, flow in self._wanted(interest):
            known = np.flatnonzero((subscriber >= 0) & (flow >= 0))
            reached[start + known] = holds(self.unicast, subscriber[known], flow[known])
        return reached

    def _wanted(self, interest: Interest) -> Iterator[tuple[int, Positions, Positions]]:
        """Yield blocks of wanted pairs: the number of the first pair, and positions in this plan."""
        subscriber = positions("subscriber", interest.subscribers, self.subscribers)
        flow = positions("flow", interest.flows, self.flows)
        wants = interest.wants
        for start in range(0, interest.n_wants, BLOCK):
            pair = np.arange(start, min(start + BLOCK, interest.n_wants))
            row = np.searchsorted(wants.indptr, pair, side="right") - 1
            yield start, subscriber[row], flow[wants.indices[pair]]

    def false_exclusions(self, interest: Interest) -> pa.Table:
        """Return the wanted (subscriber, flow) pairs that no channel and no unicast serves.

        Plan and interest are compared by label; a wanted flow or subscriber that the plan does not know is
        not served.
        """
        missed = np.flatnonzero(~(self.by_channel(interest) | self.by_unicast(interest)))
        row = np.searchsorted(interest.wants.indptr, missed, side="right") - 1
        return pa.table(
            {
                "subscriber": interest.subscribers.take(row),
                "flow": interest.flows.take(interest.wants.indices[missed]),
            }
        )

    def validate(self, interest: Interest) -> None:
        """Check the invariant "no false exclusion": every wanted pair is served.

        Raises
        ------
        PlanError
            With the number of wanted pairs that are not served, and the first three of them.
        """
        missed = self.false_exclusions(interest)
        if missed.num_rows:
            first = ", ".join(
                f"subscriber {row['subscriber']!r} wants flow {row['flow']!r}"
                for row in missed.slice(0, 3).to_pylist()
            )
            raise PlanError(
                f"{missed.num_rows} of {interest.n_wants} wanted pairs are not served: {first}; "
                "plan again for this interest, or deliver them by unicast",
                value=missed.num_rows,
                limit="0",
            )

    def carrying(self, carries: Relation) -> ChannelPlan:
        """Return a plan with the same channels that carries other flows (0, 1, 2, ...), for routers.

        Skips all checks: it is called for each batch of events.
        """
        new = object.__new__(type(self))
        n_flows = carries.shape[0]
        changed = {
            "carries": carries,
            "unicast": relation_of([], [], (self.n_subscribers, n_flows)),
            "flows": pa.array(np.arange(n_flows)),
        }
        for name in self.__slots__:
            object.__setattr__(new, name, changed.get(name, getattr(self, name)))
        return new

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ChannelPlan):
            return NotImplemented
        return (
            same(self.carries, other.carries)
            and same(self.listens, other.listens)
            and same(self.unicast, other.unicast)
            and np.array_equal(self.parent, other.parent)
            and self.subscribers.equals(other.subscribers)
            and self.flows.equals(other.flows)
            and self.subscriptions == other.subscriptions
        )

    __hash__ = None  # type: ignore[assignment]  # arrays have no hash; Python would set this silently

    def __repr__(self) -> str:
        return (
            f"ChannelPlan({self.n_channels} channels, {self.n_flows} flows, {self.n_subscribers} subscribers)"
        )


def cuts(sizes: Positions) -> Positions:
    """Return where to cut a list so that the sizes in each part add up to about one block."""
    total = np.cumsum(sizes, dtype=np.int64)
    ends = np.arange(BLOCK, total[-1] if len(total) else 0, BLOCK)
    found: Positions = np.unique(np.searchsorted(total, ends))
    return found


def pair_table(pairs: Relation, **labels: Labels | None) -> pa.Table:
    """Return a relation as a table of two columns ordered by position; columns without labels are numbers."""
    (row_name, row_labels), (column_name, column_labels) = labels.items()
    row, column = rows_of(pairs).astype(np.int32), pairs.indices.astype(np.int32)
    return pa.table(
        {
            row_name: pa.array(row) if row_labels is None else row_labels.take(row),
            column_name: pa.array(column) if column_labels is None else column_labels.take(column),
        }
    )


def _channels_in(table: pa.Table, where: str, n_channels: int) -> Positions:
    """Return a table's channel column, all within 0 to n_channels - 1."""
    found = labels_in(table, "channel", where)
    if not pa.types.is_integer(found.type):
        raise PlanError(f"column 'channel' of {where} has type {found.type}: must be integers")
    channel = np.asarray(found, np.int64)
    wrong = np.flatnonzero((channel < 0) | (channel >= n_channels))
    if len(wrong):
        raise PlanError(
            f"{where} has channel={channel[wrong[0]]}: must be from 0 to {n_channels - 1}",
            parameter="channel",
            value=int(channel[wrong[0]]),
        )
    return channel


def _check_parents(parent: NDArray[np.int32], carries: Relation, listens: Relation) -> None:
    """Refuse parents that do not exist, have parents themselves, carry flows or have listeners."""
    n_channels = carries.shape[1]
    if parent.shape != (n_channels,):
        raise PlanError(
            f"parent has shape {parent.shape}: must be ({n_channels},), one per channel, -1 for none"
        )
    wrong = np.flatnonzero((parent < -1) | (parent >= n_channels))
    if len(wrong):
        raise PlanError(
            f"channel {wrong[0]} has parent={parent[wrong[0]]}: must be from 0 to {n_channels - 1}, or -1",
            parameter="parent",
            value=int(parent[wrong[0]]),
        )
    session = np.flatnonzero(parent >= 0)
    deep = session[parent[parent[session]] >= 0]
    if len(deep):
        raise PlanError(
            f"channel {deep[0]} has parent={parent[deep[0]]}, which has a parent itself: must be at most two "
            "levels",
            parameter="parent",
            value=int(parent[deep[0]]),
        )
    is_parent = np.zeros(n_channels, np.bool_)
    is_parent[parent[session]] = True
    for name, used in (("carries", carries), ("listens", listens)):
        groups = used.indices[is_parent[used.indices]]
        if len(groups):
            raise PlanError(
                f"{name} has channel={groups[0]}, a parent of other channels: must be a session; use one of "
                "its sessions",
                parameter="channel",
                value=int(groups[0]),
            )


def _check_placed(subscriptions: Placement, listens: Relation) -> None:
    """Refuse a subscription in a channel without listeners."""
    listened = np.bincount(listens.indices, minlength=listens.shape[1]) > 0
    silent = np.flatnonzero(~listened[subscriptions.channel])
    if len(silent):
        which, where = subscriptions.subscription_id[silent[0]], subscriptions.channel[silent[0]]
        raise PlanError(
            f"subscription {which} is in channel {where}, which has no listener: its subscriber must listen "
            "to it",
            value=int(where),
        )
