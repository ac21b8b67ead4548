"""On-line clustering of topics by channels with local knowledge and messages (tamara2007).

`subscribers` holds what subscribers know; `channels` what channels of topics and clusters know, and their
decisions; `exchange` counts every message between them. `protocol` reacts to subscriptions and rounds,
`cluster_system` carries out what was decided, and `channel_numbers` numbers the channels of the plan.
"""

from __future__ import annotations

from narrowcast.planning.topics.tamara.planner import Tamara, TamaraTidy

__all__ = ["Tamara", "TamaraTidy"]
