"""What becomes of plans in use: events sent again by them."""

from __future__ import annotations

from narrowcast.sim.replay import Replay

__all__ = ["Replay"]
