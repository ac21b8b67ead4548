"""Intervals in trees that no single machine holds (cobas2009)."""

from narrowcast.matching.cobas.intervals import Intervals
from narrowcast.matching.cobas.matcher import Cobas
from narrowcast.matching.cobas.tree import CobasTree

__all__ = ["Cobas", "CobasTree", "Intervals"]
