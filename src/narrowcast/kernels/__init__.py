"""Compiled loops: arrays in, arrays out. Nothing of ours is imported here, and numba nowhere else."""
