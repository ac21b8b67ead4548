"""Matching by interval trees whose nodes may be spread over many machines (CobasTree, cobas2009)."""

from narrowcast.lab.cobas.intervals import IntervalColumns
from narrowcast.lab.cobas.matcher import Cobas
from narrowcast.lab.cobas.tree import CobasTree

__all__ = ["Cobas", "CobasTree", "IntervalColumns"]
