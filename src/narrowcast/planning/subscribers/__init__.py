"""Clusters of subscribers by the events they match (tariq2012)."""
