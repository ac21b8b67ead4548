"""Conversion between plans of subscribers and plans of subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from narrowcast.errors import PlanError
from narrowcast.model.labels import encode, labels_of, positions
from narrowcast.model.placement import Placement
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.relation import expand, holds, relation_of, rows_of

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import ArrayLike

    from narrowcast.model.relation import Positions

_NOT_PLACED = "the plan assigns whole subscribers to channels: must assign single subscriptions"


def channel_of(plan: ChannelPlan, subscription_id: ArrayLike, subscriber: Positions) -> Positions:
    """Return the channel of each of the given subscriptions in a plan.

    Parameters
    ----------
    plan
        A plan that assigns subscriptions to channels.
    subscription_id
        The subscriptions to look up.
    subscriber
        Position of each subscription's subscriber among the plan's subscribers; -1 for an unknown one.
    -------
    Positions
        -1 for a subscription without a channel, or whose subscriber does not listen to that channel.
    """
    if plan.subscriptions is None:
        raise PlanError(_NOT_PLACED)
    channel = plan.subscriptions.channel_of(subscription_id)
    some = np.flatnonzero((channel >= 0) & (subscriber >= 0))
    some = some[holds(plan.listens, subscriber[some], channel[some])]
    found = np.full(len(channel), -1, np.int64)
    found[some] = channel[some]
    return found


def by_subscription(plan: ChannelPlan, subscription_id: ArrayLike, subscriber: Any) -> ChannelPlan:
    """Return the plan with one row per subscription instead of one per subscriber.

    A subscription is in its own channel if the plan has one for it, otherwise in all channels of its
    subscriber. Direct deliveries to a subscriber become direct deliveries to each of its subscriptions.

    Parameters
    ----------
    plan
        A plan of subscribers.
    subscription_id
        All subscriptions.
    subscriber
        Label of each subscription's subscriber; a subscriber that the plan does not know is in no channel.

    Examples
    --------
    >>> placement = Placement([5, 6, 7], [0, 1, 1])
    >>> plan = ChannelPlan([[1, 0], [0, 1]], [[1, 1], [0, 1]], subscriptions=placement)
    >>> by_subscription(plan, [5, 6, 7], [0, 0, 1]).listens.toarray().astype(int).tolist()
    [[1, 0], [0, 1], [0, 1]]
    >>> whole = ChannelPlan(plan.carries, plan.listens)
    >>> by_subscription(whole, [5, 6, 7], [0, 0, 1]).listens.toarray().astype(int).tolist()
    [[1, 1], [1, 1], [0, 1]]
    """
    ids = np.asarray(subscription_id, np.int64)
    owner = positions("subscriber", labels_of(subscriber, "subscriber"), plan.subscribers)
    if len(owner) != len(ids):
        raise PlanError(f"{len(owner)} subscribers, {len(ids)} subscriptions: must be one subscriber each")
    known = np.flatnonzero(owner >= 0)
    if plan.subscriptions is None:
        place, channel = expand(plan.listens, owner[known])
        row = known[place]
    else:
        channel = channel_of(plan, ids, owner)
        row = np.flatnonzero(channel >= 0)
        channel = channel[row]
    place, flow = expand(plan.unicast, owner[known])
    return ChannelPlan(
        plan.carries,
        relation_of(row, channel, (len(ids), plan.n_channels)),
        plan.parent,
        relation_of(known[place], flow, (len(ids), plan.n_flows)),
        ids,
        plan.flows,
    )


def placed(plan: ChannelPlan) -> ChannelPlan:
    """Return the plan with one row per subscription in a channel, labelled with its id.

    Parameters
    ----------
    plan
        A plan that assigns subscriptions to channels.

    Examples
    --------
    >>> plan = ChannelPlan([[1, 0], [0, 1]], [[1, 1]], subscriptions=Placement([5, 7], [0, 1]))
    >>> placed(plan).subscribers.to_pylist(), placed(plan).listens.indices.tolist()
    ([5, 7], [0, 1])
    """
    known = plan.subscriptions
    if known is None:
        raise PlanError(_NOT_PLACED)
    listens = relation_of(np.arange(len(known)), known.channel, (len(known), plan.n_channels))
    return ChannelPlan(
        plan.carries, listens, plan.parent, subscribers=known.subscription_id, flows=plan.flows
    )


def by_subscriber(plan: ChannelPlan, subscriber: Any) -> ChannelPlan:
    """Convert a plan of subscriptions to a plan of subscribers.

    Each subscriber listens to the channels of all its subscriptions.

    Parameters
    ----------
    plan
        A plan whose rows are subscriptions, labelled with their ids, each in at most one channel.
    subscriber
        Label of the subscriber of each row.

    Examples
    --------
    >>> finer = ChannelPlan([[1, 0], [0, 1]], [[1, 0], [0, 1], [0, 1]], subscribers=[5, 6, 7])
    >>> plan = by_subscriber(finer, ["ann", "ann", "bob"])
    >>> plan.listens.toarray().astype(int).tolist(), plan.subscriptions.channel.tolist()
    ([[1, 1], [0, 1]], [0, 1, 1])
    """
    names, [owner] = encode("subscriber", labels_of(subscriber, "subscriber"))
    if len(owner) != plan.n_subscribers:
        raise PlanError(
            f"{len(owner)} subscribers, {plan.n_subscribers} subscriptions: must be one subscriber each"
        )
    if not pa.types.is_integer(plan.subscribers.type):
        raise PlanError(f"labels have type {plan.subscribers.type}: must be subscription ids (integers)")
    row, ids = rows_of(plan.listens), np.asarray(plan.subscribers, np.int64)
    return ChannelPlan(
        plan.carries,
        relation_of(owner[row], plan.listens.indices, (len(names), plan.n_channels)),
        plan.parent,
        relation_of(owner[rows_of(plan.unicast)], plan.unicast.indices, (len(names), plan.n_flows)),
        names,
        plan.flows,
        Placement(ids[row], plan.listens.indices),
    )
