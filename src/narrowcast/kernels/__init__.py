"""Compiled loops over arrays. They import nothing else of narrowcast, and no other package imports numba."""
