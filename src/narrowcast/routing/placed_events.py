"""Routing by subscription: events go to the channels of matching subscriptions only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.model.relation import relation_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from narrowcast.model.matches import Matches
    from narrowcast.model.plan import ChannelPlan


def over_placed(plan: ChannelPlan, matched: Matches, channel: ArrayLike) -> ChannelPlan:
    """Return a plan in which each event is a flow of its own, for any router.

    The flow of an event is its index in the batch, and the channels that carry it are those of the
    subscriptions that it matches. A subscriber with a matching subscription without a channel is reached by
    any of its channels that carries the event, or directly. So no interested subscriber is missed, and an
    event goes only to channels that it could go to if all channels of interested subscribers carried it.

    Parameters
    ----------
    plan
        The plan with the memberships of channels.
    matched
        The positions of the subscriptions that each event matches.
    channel
        The channel of each subscription by position, -1 for none: see `ownership.channel_of`.

    Examples
    --------
    >>> from narrowcast.model.matches import Matches
    >>> from narrowcast.model.plan import ChannelPlan
    >>> from narrowcast.routing import ChannelRouter
    >>> plan = ChannelPlan(carries=[[1, 1]], listens=[[1, 1], [0, 1]])
    >>> one = Matches.from_pairs([0], [0], 1)  # the first of ann's two subscriptions, and so ann
    >>> ChannelRouter().route([0], one, plan).channels.index.tolist()
    [0, 1]
    >>> ChannelRouter().route([0], one, over_placed(plan, one, [0, 1, 1])).channels.index.tolist()
    [0]
    """
    found = np.asarray(channel, np.int64)[matched.index]
    some = np.flatnonzero(found >= 0)
    shape = (matched.n_events, plan.n_channels)
    return plan.carrying(relation_of(matched.rows()[some], found[some], shape))
