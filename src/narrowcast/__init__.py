"""Learns who wants what, folds many flows onto few channels, and sends every message the cheapest way.

Everything here works without Spark and NATS; `narrowcast.spark` and `narrowcast.broker` load on use.
"""

# First of all: from here on an interruption of the command is met.
from narrowcast import start as _start  # noqa: F401

# isort: split
from importlib import import_module
from typing import Any

from narrowcast.costs import COSTS, CostModel, FalsePositives, Filtering, Forwarding, Network, Overall, Waste
from narrowcast.errors import NarrowcastError
from narrowcast.filters.explain import Explanation, Subscription
from narrowcast.filters.limits import Limits
from narrowcast.filters.subscriptions import compile_filters
from narrowcast.filters.topics import TopicSpace
from narrowcast.matching import (
    MATCHERS,
    Auto,
    Bitmap,
    Grid,
    Matcher,
    Scan,
    Topics,
    load_matcher,
)
from narrowcast.model.artefact import PlanInfo, read_plan, write_plan
from narrowcast.model.cost import Cost
from narrowcast.model.diff import PlanDelta, PlanDiff, diff_plans, renumbered
from narrowcast.model.events import EventBatch
from narrowcast.model.interest import Interest
from narrowcast.model.matches import Matches
from narrowcast.model.migration import migration
from narrowcast.model.placement import Placement
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.schema import Schema
from narrowcast.model.subscriptions import SubscriptionSet
from narrowcast.model.topology import Locations, Topology
from narrowcast.planning import (
    PLANNERS,
    Annealed,
    Broadcast,
    Cover,
    Direct,
    Forgy,
    GroupsFirst,
    Hash,
    Iterated,
    Joint,
    KMeans,
    MacQueen,
    Mst,
    OnlinePlanner,
    Pairwise,
    Partial,
    PerFlow,
    Planner,
    Replanner,
    Static,
    StreamsFirst,
    Tamara,
    TamaraTidy,
    Unicast,
)
from narrowcast.routing import (
    ROUTERS,
    ChannelRouter,
    Deliveries,
    ExactRouter,
    PartialRouter,
    Router,
    ThresholdRouter,
)

__all__ = [
    "COSTS",
    "MATCHERS",
    "PLANNERS",
    "ROUTERS",
    "Annealed",
    "Auto",
    "Bitmap",
    "Broadcast",
    "ChannelPlan",
    "ChannelRouter",
    "Cobas",
    "Cost",
    "CostModel",
    "Cover",
    "Deliveries",
    "Direct",
    "EventBatch",
    "ExactRouter",
    "Explanation",
    "FalsePositives",
    "Filtering",
    "Forgy",
    "Forwarding",
    "FrequencyThreshold",
    "Giant",
    "Grid",
    "GroupsFirst",
    "Hash",
    "Hilbert",
    "Interest",
    "Iterated",
    "Joint",
    "KMeans",
    "Limits",
    "Locations",
    "MacQueen",
    "Matcher",
    "Matches",
    "Mst",
    "NarrowcastError",
    "Network",
    "OnlinePlanner",
    "Overall",
    "Pairwise",
    "Partial",
    "PartialRouter",
    "PerFlow",
    "Placement",
    "PlanDelta",
    "PlanDiff",
    "PlanInfo",
    "Planner",
    "Replanner",
    "Router",
    "STree",
    "Scan",
    "Schema",
    "Static",
    "StreamsFirst",
    "Subscription",
    "SubscriptionSet",
    "Tamara",
    "TamaraTidy",
    "ThresholdRouter",
    "TopicSpace",
    "Topics",
    "Topology",
    "Unicast",
    "Waste",
    "compile_filters",
    "diff_plans",
    "load_matcher",
    "migration",
    "read_plan",
    "renumbered",
    "write_plan",
]
__version__ = "0.1.0"

#: Imported on first use: packages that bring Spark or NATS with them, and methods of the lab.
_ON_USE = {
    "Cobas": "narrowcast.lab.cobas:Cobas",
    "FrequencyThreshold": "narrowcast.lab.giant:FrequencyThreshold",
    "Giant": "narrowcast.lab.giant:Giant",
    "Hilbert": "narrowcast.lab.trees.hilbert:Hilbert",
    "STree": "narrowcast.lab.trees.stree:STree",
    "broker": "narrowcast.broker",
    "pipeline": "narrowcast.pipeline",
    "spark": "narrowcast.spark",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_USE:
        raise AttributeError(f"module 'narrowcast' has no attribute {name!r}")
    module, _, attribute = _ON_USE[name].partition(":")
    found = import_module(module)
    return getattr(found, attribute) if attribute else found
