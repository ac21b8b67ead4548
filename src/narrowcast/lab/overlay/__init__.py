"""An overlay simulated: Pastry's ring, Scribe's trees, and the messages that they take.

Milo et al. (2007) assume what a channel of n subscribers costs; here it is counted, helpers included.
"""

from __future__ import annotations

from narrowcast.lab.overlay.charged import Charged
from narrowcast.lab.overlay.churn import Churned, Upkeep, churn
from narrowcast.lab.overlay.forest import Forest
from narrowcast.lab.overlay.measured import Measured, measured
from narrowcast.lab.overlay.overlay import Overlay
from narrowcast.lab.overlay.ring import Ring, Routes, channel_keys
from narrowcast.lab.overlay.scribe import Tree, links

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
