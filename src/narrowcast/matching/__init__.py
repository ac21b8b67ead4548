"""Matchers: which subscriptions an event matches."""

from narrowcast.matching.auto import Auto, matcher_for
from narrowcast.matching.base import MATCHERS, Matcher
from narrowcast.matching.bitmap import Bitmap
from narrowcast.matching.grid import Grid
from narrowcast.matching.load import load_matcher
from narrowcast.matching.scan import Scan
from narrowcast.matching.topics import Topics

__all__ = [
    "MATCHERS",
    "Auto",
    "Bitmap",
    "Grid",
    "Matcher",
    "Scan",
    "Topics",
    "load_matcher",
    "matcher_for",
]
