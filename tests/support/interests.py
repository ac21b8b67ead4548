"""Interests that several tests plan for."""

from __future__ import annotations

import numpy as np

from narrowcast.model.interest import Interest


def clustered(seed: int = 0, *, subscribers: int = 200, rate: float = 2e-4) -> Interest:
    """Two groups of six topics, each subscriber with most of one of them."""
    rng = np.random.default_rng(seed)
    home = rng.integers(0, 2, subscribers)
    wants = (rng.random((subscribers, 12)) < 0.9) & (np.arange(12) // 6 == home[:, None])
    return Interest(wants, np.full(12, rate))
