"""Narrowcast: folds many message flows onto few channels, from the interest of the subscribers.

Everything here works without Spark and NATS; `narrowcast.spark` and `narrowcast.broker` load on first use, as does
every name below.
"""

from narrowcast import start as _start  # noqa: F401  # first, so that an interrupt while loading ends the command

# isort: split
from importlib import import_module
from typing import TYPE_CHECKING, Any

from narrowcast.deprecation import renamed

if TYPE_CHECKING:
    from narrowcast.costs import (
        COSTS,
        CostModel,
        FalsePositives,
        Filtering,
        Forwarding,
        Network,
        Overall,
        Waste,
    )
    from narrowcast.errors import NarrowcastError
    from narrowcast.filters.explain import Explanation, ParsedFilter
    from narrowcast.filters.limits import FilterLimits
    from narrowcast.filters.subscriptions import compile_filters
    from narrowcast.filters.topics import TopicSpace
    from narrowcast.matching import (
        MATCHERS,
        AutoMatcher,
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
    "AutoMatcher",
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
    "FilterLimits",
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
    "ParsedFilter",
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

#: Public names by the module that defines them.
_NAMES = {
    "narrowcast.costs": "COSTS CostModel FalsePositives Filtering Forwarding Network Overall Waste",
    "narrowcast.errors": "NarrowcastError",
    "narrowcast.filters.explain": "Explanation ParsedFilter",
    "narrowcast.filters.limits": "FilterLimits",
    "narrowcast.filters.subscriptions": "compile_filters",
    "narrowcast.filters.topics": "TopicSpace",
    "narrowcast.lab.cobas": "Cobas",
    "narrowcast.lab.giant": "FrequencyThreshold Giant",
    "narrowcast.lab.trees.hilbert": "Hilbert",
    "narrowcast.lab.trees.stree": "STree",
    "narrowcast.matching": "AutoMatcher Bitmap Grid MATCHERS Matcher Scan Topics load_matcher",
    "narrowcast.model.artefact": "PlanInfo read_plan write_plan",
    "narrowcast.model.cost": "Cost",
    "narrowcast.model.diff": "PlanDelta PlanDiff diff_plans renumbered",
    "narrowcast.model.events": "EventBatch",
    "narrowcast.model.interest": "Interest",
    "narrowcast.model.matches": "Matches",
    "narrowcast.model.migration": "migration",
    "narrowcast.model.placement": "Placement",
    "narrowcast.model.plan": "ChannelPlan",
    "narrowcast.model.schema": "Schema",
    "narrowcast.model.subscriptions": "SubscriptionSet",
    "narrowcast.model.topology": "Locations Topology",
    "narrowcast.planning": "Annealed Broadcast Cover Direct Forgy GroupsFirst Hash Iterated Joint KMeans MacQueen Mst OnlinePlanner PLANNERS Pairwise Partial PerFlow Planner Replanner Static StreamsFirst Tamara TamaraTidy Unicast",
    "narrowcast.routing": "ChannelRouter Deliveries ExactRouter PartialRouter ROUTERS Router ThresholdRouter",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}
_PACKAGES = ("broker", "pipeline", "spark")
_OLD_NAMES = {"Auto": "AutoMatcher", "Limits": "FilterLimits", "Subscription": "ParsedFilter"}


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"narrowcast.{name}")
    if name not in _MODULE_OF:
        return renamed(__name__, name, _OLD_NAMES)
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
