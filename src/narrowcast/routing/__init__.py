"""Which way each event goes: to nobody, directly, over channels, or to everybody."""

from __future__ import annotations

from narrowcast.routing.base import ROUTERS, BaseRouter, Deliveries, Method, Router
from narrowcast.routing.channels import ChannelRouter
from narrowcast.routing.cheapest import ExactRouter, PartialRouter, ThresholdRouter
from narrowcast.routing.decision import Decision, Way, decide
from narrowcast.routing.placed import over_placed

__all__ = [
    "ROUTERS",
    "BaseRouter",
    "ChannelRouter",
    "Decision",
    "Deliveries",
    "ExactRouter",
    "Method",
    "PartialRouter",
    "Router",
    "ThresholdRouter",
    "Way",
    "decide",
    "over_placed",
]
