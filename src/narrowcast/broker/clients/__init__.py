"""Clients of the broker: publishers and subscribers."""
