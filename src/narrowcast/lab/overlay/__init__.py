"""A simulated peer-to-peer overlay: Pastry's ring, Scribe's multicast trees, and the messages that both need.

Milo et al. (2007) assume the cost of a channel with n subscribers. Here it is counted, helpers included; a
helper is a node that forwards events of a channel to which it has not subscribed.
"""

from __future__ import annotations

from narrowcast.lab.overlay.charged import Charged
from narrowcast.lab.overlay.churn import OverlayChurn, OverlayUpkeep, churn
from narrowcast.lab.overlay.forest import ChannelForest
from narrowcast.lab.overlay.measured import MeasuredCosts, measured
from narrowcast.lab.overlay.overlay import OverlayRing
from narrowcast.lab.overlay.ring import Ring, RingRoutes, channel_keys
from narrowcast.lab.overlay.scribe import ScribeTree, links

__all__ = [
    "ChannelForest",
    "Charged",
    "MeasuredCosts",
    "OverlayChurn",
    "OverlayRing",
    "OverlayUpkeep",
    "Ring",
    "RingRoutes",
    "ScribeTree",
    "channel_keys",
    "churn",
    "links",
    "measured",
]
