"""Overlapping clusters of topics by maintenance and dissemination cost (tamara2007)."""
