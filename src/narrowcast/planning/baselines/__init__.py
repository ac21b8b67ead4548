"""Baselines that every method is compared with."""
