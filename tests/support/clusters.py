"""Streams of events to clusters, small and with something to see."""

from __future__ import annotations

from typing import Any

import numpy as np

from narrowcast.lab.clusters import ClusteringMethod, Load, Policy, SubscriptionStream, lives

OPTIONS: dict[str, dict[str, Any]] = {
    "rassoc": {"levels": 2, "groups": 2},
    "ncut": {},
    "r-tree": {"packing": "str"},
}


def drawn(
    seed: int, *, n: int = 40, events: int = 240, peers: int | None = None, churn: float = 0.1
) -> SubscriptionStream:
    """Return intervals, and points near a spot that moves half-way; some come and go."""
    rng = np.random.default_rng(seed)
    comes, leaves = lives(n, events, churn=churn, step=35, seed=seed, start=60)
    lo = rng.integers(0, 90, len(comes)).astype(float)
    hi = lo + rng.integers(5, 25, len(comes))
    spot = np.where(np.arange(events) < events // 2, 20, 75)
    x = spot + rng.integers(-15, 16, events)
    matches = (x[:, None] > lo) & (x[:, None] <= hi)
    owner = None if peers is None else rng.integers(0, peers, len(comes))
    return SubscriptionStream(matches, owner, comes, leaves, (lo[:, None], hi[:, None]), x[:, None])


def load(stream: SubscriptionStream, name: str = "direct", **given: Any) -> Load:
    policy = given.pop("policy", Policy(history=60, period=80, drift=0.3, stretch=20))
    method = ClusteringMethod(name=name, clusters=4, seed=1, options=OPTIONS.get(name, {}))
    return Load(stream=stream, method=method, policy=policy, start=60, window=30, heartbeat=40, **given)
