"""On-line clustering of topics: channels that decide by what they know and what they ask (tamara2007).

`peers` is what subscribers know, `channels` what channels of topics and clusters know and how they decide;
`exchange` has every message between them. `protocol` is what happens when somebody subscribes or a round is
due, `system` carries out what was decided, and `addresses` numbers channels for the plan.
"""

from __future__ import annotations

from narrowcast.planning.topics.tamara.planner import Tamara, TamaraTidy

__all__ = ["Tamara", "TamaraTidy"]
