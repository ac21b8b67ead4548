"""Synthetic workloads: tables of subscriptions, events or interests, reproducible from a seed."""

from __future__ import annotations

from narrowcast.workloads.base import (
    WORKLOADS,
    Workload,
    make_workload,
    origin_of,
    parameters_of,
    values_of,
)
from narrowcast.workloads.feeds import Feeds
from narrowcast.workloads.flows import Flows
from narrowcast.workloads.hotspots import Hotspots
from narrowcast.workloads.intervals import Intervals
from narrowcast.workloads.packages import Packages
from narrowcast.workloads.quotes import Quotes
from narrowcast.workloads.stocks import Stocks

__all__ = [
    "WORKLOADS",
    "Feeds",
    "Flows",
    "Hotspots",
    "Intervals",
    "Packages",
    "Quotes",
    "Stocks",
    "Workload",
    "make_workload",
    "origin_of",
    "parameters_of",
    "values_of",
]
