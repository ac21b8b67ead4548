"""Cost models: what a plan costs, each by its own definition."""

from __future__ import annotations

from narrowcast.costs.base import COSTS, CostModel
from narrowcast.costs.false_positives import FalsePositives
from narrowcast.costs.filtering import Filtering
from narrowcast.costs.forwarding import Forwarding
from narrowcast.costs.network import Network
from narrowcast.costs.overall import Overall
from narrowcast.costs.waste import Waste

__all__ = ["COSTS", "CostModel", "FalsePositives", "Filtering", "Forwarding", "Network", "Overall", "Waste"]
