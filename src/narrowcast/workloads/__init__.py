"""Workloads: made-up subscriptions and events, the same again for the same seed."""

from __future__ import annotations

from narrowcast.workloads.base import WORKLOADS, Workload, make_workload, parameters_of, values_of
from narrowcast.workloads.stocks import Stocks

__all__ = ["WORKLOADS", "Stocks", "Workload", "make_workload", "parameters_of", "values_of"]
