"""Clusters of subscribers by the events that they match (tariq2012)."""
