"""The router `channels`: sends events over the channels to which the plan assigns their flows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.model.matches import Matches
from narrowcast.routing.base import BaseRouter, deliveries_of, flows_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from narrowcast.model.plan import ChannelPlan
    from narrowcast.routing.base import Deliveries


class ChannelRouter(BaseRouter):
    """Sends an event over channels of its flow that have an interested listener, and directly to the others.

    An interested subscriber that no channel reaches is sent to directly, whatever the plan says.

    Examples
    --------
    >>> from narrowcast.model.plan import ChannelPlan
    >>> plan = ChannelPlan(carries=[[1], [0]], listens=[[1], [1], [0]])
    >>> interested = Matches.from_pairs([0, 1, 2, 2], [0, 0, 1, 2], n_events=4)
    >>> sent = ChannelRouter().route([0, 1, 0, 0], interested, plan)
    >>> sent.to_table().column("method").to_pylist()
    ['channel', 'unicast', 'channel+unicast', 'none']
    >>> sent.unicast.rows().tolist(), sent.unicast.index.tolist()
    ([1, 2], [0, 2])
    """

    def route(
        self,
        events: ArrayLike,
        matches: Matches,
        plan: ChannelPlan,
        publisher: ArrayLike | None = None,  # noqa: ARG002 - no cost is weighed
    ) -> Deliveries:
        """Return for each event the channels of its flow with an interested listener, and direct messages."""
        flow = flows_of(events, matches, plan)
        event, subscriber = matches.rows(), matches.index.astype(np.int64)
        width = max(plan.n_channels, 1)
        reached, chosen = np.zeros(matches.n_pairs, np.bool_), [np.zeros(0, np.int64)]
        for pair, channel in plan.channels_reaching(subscriber, flow[event]):
            reached[pair] = True
            chosen.append(np.unique(event[pair] * width + channel))
        channels = Matches.from_pairs(*np.divmod(np.concatenate(chosen), width), matches.n_events)
        unicast = Matches.from_pairs(event[~reached], subscriber[~reached], matches.n_events)
        return deliveries_of(channels, unicast)
