"""Partitioning of the matching work by ranges of attributes (cobas2009)."""
