"""What becomes of plans in use: events sent again by them, at every point of a sweep."""

from __future__ import annotations

from narrowcast.sim.replay import Replay
from narrowcast.sim.sweep import Sweep, Swept

__all__ = ["Replay", "Sweep", "Swept"]
