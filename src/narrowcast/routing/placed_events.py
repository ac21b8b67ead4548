"""Events that go to the channels of the subscriptions that they match, not to all of their subscribers'."""

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

    The flow of an event is its number in the batch, and the channels that carry it are those of the
    subscriptions that it matches. Who is interested for the sake of one that has no channel is reached by
    whatever channel of theirs carries the event, or directly. So nobody is missed, and no channel gets an
    event that would not get it if every channel of those interested might carry it.

    Parameters
    ----------
    plan
        Who listens to which channel.
    matched
        The subscriptions that each event matches, as positions.
    channel
        The channel of each subscription by position, -1 for none; see `ownership.channel_of`.

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
