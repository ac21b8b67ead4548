"""Clusterings of grid cells and events into groups of little waste (riabov2003)."""
