"""Learns who wants what, folds many flows onto few channels, and sends every message the cheapest way."""

from narrowcast.filters.limits import Limits
from narrowcast.filters.subscriptions import compile_filters
from narrowcast.matching import Scan
from narrowcast.model.events import EventBatch
from narrowcast.model.matches import Matches
from narrowcast.model.schema import Schema
from narrowcast.model.subscriptions import SubscriptionSet

__all__ = ["EventBatch", "Limits", "Matches", "Scan", "Schema", "SubscriptionSet", "compile_filters"]
__version__ = "0.1.0"
