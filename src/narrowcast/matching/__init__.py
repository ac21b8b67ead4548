"""Matchers: which subscriptions an event matches."""

from narrowcast.matching.base import MATCHERS, Matcher
from narrowcast.matching.scan import Scan

__all__ = ["MATCHERS", "Matcher", "Scan"]
