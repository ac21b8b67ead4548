"""Spark implementations of the lab's methods and parameter sweeps."""
