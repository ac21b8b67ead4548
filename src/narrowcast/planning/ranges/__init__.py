"""Ranges of attributes as parts of the matching work (cobas2009)."""
