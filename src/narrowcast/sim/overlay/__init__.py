"""An overlay simulated: Pastry's ring, Scribe's trees, and the messages that they take.

Milo et al. (2007) assume what a channel of n subscribers costs; here it is counted, helpers included.
"""

from __future__ import annotations

from narrowcast.sim.overlay.charged import Charged
from narrowcast.sim.overlay.churn import Churned, Upkeep, churn
from narrowcast.sim.overlay.forest import Forest
from narrowcast.sim.overlay.measured import Measured, measured
from narrowcast.sim.overlay.overlay import Overlay
from narrowcast.sim.overlay.ring import Ring, Routes, channel_keys
from narrowcast.sim.overlay.scribe import Tree, links

__all__ = [
    "Charged",
    "Churned",
    "Forest",
    "Measured",
    "Overlay",
    "Ring",
    "Routes",
    "Tree",
    "Upkeep",
    "channel_keys",
    "churn",
    "links",
    "measured",
]
