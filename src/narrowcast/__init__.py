"""Learns who wants what, folds many flows onto few channels, and sends every message the cheapest way.

Everything here works without Spark and NATS; `narrowcast.pipeline` and `narrowcast.broker` load on use.
"""

from importlib import import_module
from types import ModuleType

from narrowcast.costs import COSTS, CostModel, Filtering, Network, Overall, Waste
from narrowcast.filters.explain import Explanation, Subscription
from narrowcast.filters.limits import Limits
from narrowcast.filters.subscriptions import compile_filters
from narrowcast.filters.topics import TopicSpace
from narrowcast.matching import (
    MATCHERS,
    Auto,
    Bitmap,
    Grid,
    Hilbert,
    Matcher,
    Scan,
    STree,
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
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.schema import Schema
from narrowcast.model.subscriptions import SubscriptionSet
from narrowcast.model.topology import Locations, Topology
from narrowcast.planning import (
    PLANNERS,
    Annealed,
    Broadcast,
    Forgy,
    GroupsFirst,
    Hash,
    Iterated,
    Joint,
    MacQueen,
    Mst,
    OnlinePlanner,
    Pairwise,
    Partial,
    PerFlow,
    Planner,
    Replanner,
    StreamsFirst,
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
    "Cost",
    "CostModel",
    "Deliveries",
    "EventBatch",
    "ExactRouter",
    "Explanation",
    "Filtering",
    "Forgy",
    "Grid",
    "GroupsFirst",
    "Hash",
    "Hilbert",
    "Interest",
    "Iterated",
    "Joint",
    "Limits",
    "Locations",
    "MacQueen",
    "Matcher",
    "Matches",
    "Mst",
    "Network",
    "OnlinePlanner",
    "Overall",
    "Pairwise",
    "Partial",
    "PartialRouter",
    "PerFlow",
    "PlanDelta",
    "PlanDiff",
    "PlanInfo",
    "Planner",
    "Replanner",
    "Router",
    "STree",
    "Scan",
    "Schema",
    "StreamsFirst",
    "Subscription",
    "SubscriptionSet",
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

#: Packages that bring Spark or NATS with them.
_ON_USE = ("broker", "pipeline")


def __getattr__(name: str) -> ModuleType:
    if name in _ON_USE:
        return import_module(f"narrowcast.{name}")
    raise AttributeError(f"module 'narrowcast' has no attribute {name!r}")
