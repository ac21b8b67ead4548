"""Compiled loops of the lab: arrays in, arrays out."""
