"""Matchers: which subscriptions an event matches."""

from typing import Any

from narrowcast.deprecation import renamed
from narrowcast.matching.auto import AutoMatcher, matcher_for
from narrowcast.matching.base import MATCHERS, Matcher
from narrowcast.matching.bitmap import Bitmap
from narrowcast.matching.grid import Grid
from narrowcast.matching.matcher_files import load_matcher
from narrowcast.matching.scan import Scan
from narrowcast.matching.topics import Topics

__all__ = [
    "MATCHERS",
    "AutoMatcher",
    "Bitmap",
    "Grid",
    "Matcher",
    "Scan",
    "Topics",
    "load_matcher",
    "matcher_for",
]


def __getattr__(name: str) -> Any:
    return renamed(__name__, name, {"Auto": "AutoMatcher"})
