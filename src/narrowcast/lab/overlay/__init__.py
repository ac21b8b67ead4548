"""An overlay simulated: Pastry's ring, Scribe's trees, and the messages that they take.

Milo et al. (2007) assume what a channel of n subscribers costs; here it is counted, helpers included.
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
