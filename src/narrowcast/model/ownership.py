"""Plans whose rows are subscriptions, and the plans of those whose subscriptions they are."""

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


def channel_of(plan: ChannelPlan, subscription_id: ArrayLike, subscriber: Positions) -> Positions:
    """Return the channel that a plan has each of some subscriptions in.

    Parameters
    ----------
    plan
        One that puts subscriptions into channels.
    subscription_id
        Which subscriptions.
    subscriber
        Whose each is, as a position among the plan's subscribers; -1 for somebody it does not know.

    Returns
    -------
    Positions
        -1 where the plan says none, or one that the subscriber does not listen to.
    """
    if plan.subscriptions is None:
        raise PlanError("the plan puts whole subscribers into channels; make one with --by subscription")
    said = plan.subscriptions.channel_of(subscription_id)
    some = np.flatnonzero((said >= 0) & (subscriber >= 0))
    some = some[holds(plan.listens, subscriber[some], said[some])]
    found = np.full(len(said), -1, np.int64)
    found[some] = said[some]
    return found


def by_subscription(plan: ChannelPlan, subscription_id: ArrayLike, subscriber: Any) -> ChannelPlan:
    """Return a plan with a row for each subscription in place of its subscriber.

    A subscription is in its own channel where the plan says so, else wherever its subscriber listens; what
    is sent to its subscriber directly is sent to it.

    Parameters
    ----------
    plan
        A plan of subscribers.
    subscription_id
        All subscriptions.
    subscriber
        Whose each is, by label; somebody whom the plan does not know listens to nothing.

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
        raise PlanError(f"{len(owner)} subscribers for {len(ids)} subscriptions; give one each")
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
    """Return a plan with a row for each subscription that it has in a channel, labelled with its id.

    Parameters
    ----------
    plan
        One that puts subscriptions into channels.

    Examples
    --------
    >>> plan = ChannelPlan([[1, 0], [0, 1]], [[1, 1]], subscriptions=Placement([5, 7], [0, 1]))
    >>> placed(plan).subscribers.to_pylist(), placed(plan).listens.indices.tolist()
    ([5, 7], [0, 1])
    """
    known = plan.subscriptions
    if known is None:
        raise PlanError("the plan puts whole subscribers into channels; make one with --by subscription")
    listens = relation_of(np.arange(len(known)), known.channel, (len(known), plan.n_channels))
    return ChannelPlan(
        plan.carries, listens, plan.parent, subscribers=known.subscription_id, flows=plan.flows
    )


def by_subscriber(plan: ChannelPlan, subscriber: Any) -> ChannelPlan:
    """Return the plan of subscribers that one of subscriptions makes.

    Everybody listens to the channels of all of their subscriptions.

    Parameters
    ----------
    plan
        A plan whose rows are subscriptions, labelled with their ids; each is in one channel at most.
    subscriber
        Whose the subscription of each row is, by label.

    Examples
    --------
    >>> finer = ChannelPlan([[1, 0], [0, 1]], [[1, 0], [0, 1], [0, 1]], subscribers=[5, 6, 7])
    >>> plan = by_subscriber(finer, ["ann", "ann", "bob"])
    >>> plan.listens.toarray().astype(int).tolist(), plan.subscriptions.channel.tolist()
    ([[1, 1], [0, 1]], [0, 1, 1])
    """
    names, [owner] = encode("subscriber", labels_of(subscriber, "subscriber"))
    if len(owner) != plan.n_subscribers:
        raise PlanError(f"{len(owner)} subscribers for {plan.n_subscribers} subscriptions; give one each")
    if not pa.types.is_integer(plan.subscribers.type):
        raise PlanError(f"rows are labelled with {plan.subscribers.type}; label them with subscription ids")
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
