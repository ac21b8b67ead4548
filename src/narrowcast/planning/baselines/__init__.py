"""Baselines that other planners are compared with."""
