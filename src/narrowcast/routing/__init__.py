"""Which way each event goes: to nobody, directly, over channels, or to everybody."""

from __future__ import annotations

from typing import Any

from narrowcast.deprecation import renamed
from narrowcast.routing.base import ROUTERS, BaseRouter, Deliveries, RouteMethod, Router
from narrowcast.routing.channels import ChannelRouter
from narrowcast.routing.cost_routers import ExactRouter, PartialRouter, ThresholdRouter
from narrowcast.routing.decisions import RouteDecision, RouteOption, decide
from narrowcast.routing.placed_events import over_placed

__all__ = [
    "ROUTERS",
    "BaseRouter",
    "ChannelRouter",
    "Deliveries",
    "ExactRouter",
    "PartialRouter",
    "RouteDecision",
    "RouteMethod",
    "RouteOption",
    "Router",
    "ThresholdRouter",
    "decide",
    "over_placed",
]


def __getattr__(name: str) -> Any:
    return renamed(
        __name__, name, {"Decision": "RouteDecision", "Method": "RouteMethod", "Way": "RouteOption"}
    )
