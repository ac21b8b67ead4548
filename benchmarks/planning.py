"""Planning: what methods cost in messages, on a network, in seconds and in memory, beside common clusterings.

- `markets`: topics of 30 markets, wanted by 10,000 subscribers who each follow some markets and in them what
  is popular; exponential rates; 100 channels. At three sizes.
- `stocks`: the last events of the stock workload on its network of about 600 nodes; 16 channels.

Each method runs in a process of its own. The peers are what one would take instead: k-means on the vectors of
flows and average linkage on their Jaccard distances, both of scipy; and hashing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Self

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.cluster.vq import kmeans2
from scipy.spatial.distance import pdist

from narrowcast import COSTS, AutoMatcher, EventBatch, Interest, Locations, SubscriptionSet, Topology
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.relation import relation_of
from narrowcast.planning import PLANNERS, Partial
from narrowcast.planning.base import plan_of_flows
from narrowcast.spark.stages.planner_trial import trials
from narrowcast.workloads import Stocks
from narrowcast.workloads.stocks import SCHEMA

SIZES, SUBSCRIBERS, MARKETS, CHANNELS = (200, 2_000, 20_000), 10_000, 30, 100
EVENTS, EVENT_CHANNELS = (1_000, 4_000, 16_000), 16
#: Flows up to which a peer is tried: beyond, it takes more memory or time than there is.
MOST = {"kmeans": 1_000, "linkage": 1_000}


class KMeans:
    """k-means on the vectors of flows."""

    plan_: ChannelPlan

    def __init__(self, *, channels: int, seed: int = 0) -> None:
        self.channels, self.seed = channels, seed

    def fit(self, interest: Interest) -> Self:
        """Make the plan."""
        vectors = interest.wants.T.toarray().astype(np.float32)
        k = min(self.channels, len(vectors))
        _, group = kmeans2(vectors, k, minit="++", missing="warn", rng=self.seed)
        self.plan_ = plan_of_flows(interest, group.astype(np.int64), k)
        return self


class Linkage:
    """Average linkage on the Jaccard distances between flows."""

    plan_: ChannelPlan

    def __init__(self, *, channels: int) -> None:
        self.channels = channels

    def fit(self, interest: Interest) -> Self:
        """Make the plan."""
        far = pdist(interest.wants.T.toarray(), "jaccard")
        group = fcluster(linkage(far, "average"), self.channels, "maxclust") - 1
        self.plan_ = plan_of_flows(interest, group.astype(np.int64), int(group.max()) + 1)
        return self


def markets(n_flows: int, n_subscribers: int, seed: int = 0) -> Interest:
    """Return an interest in topics of markets, from a seed; never to be changed."""
    rng = np.random.default_rng(seed)
    market = rng.choice(MARKETS, n_flows, p=(weight := 1 / np.arange(1, MARKETS + 1)) / weight.sum())
    popular = rng.pareto(1.2, n_flows) + 0.05
    chance = np.minimum(popular / popular.mean() * 0.05, 0.9)
    follows = rng.random((n_subscribers, MARKETS)) < rng.uniform(0.02, 0.15, n_subscribers)[:, None]
    follows[np.arange(n_subscribers), rng.integers(0, MARKETS, n_subscribers)] = True
    rows, columns = [], []
    for flow in range(n_flows):
        able = np.flatnonzero(follows[:, market[flow]])
        some = able[rng.random(len(able)) < chance[flow]]
        rows.append(some)
        columns.append(np.full(len(some), flow))
    wants = relation_of(np.concatenate(rows), np.concatenate(columns), (n_subscribers, n_flows))
    return Interest(wants, rng.exponential(10.0, n_flows))


def stocks(n_events: int) -> tuple[Interest, Topology, Locations]:
    """Return the interest in events of the stock workload, and its network."""
    work = Stocks(n_subscriptions=1_000, n_events=n_events)
    tables = work.tables()
    subscriptions = SubscriptionSet.from_boxes(SCHEMA, work.subscribers(), *work.boxes())
    events = EventBatch.from_arrow(tables["events"], SCHEMA)
    matches = AutoMatcher().fit(subscriptions).match(events)
    topology = Topology.from_table(tables["topology"])
    interest = Interest.of_events(matches, events.event_id, subscriptions)
    return interest, topology, Locations.from_table(tables["locations"], topology)


def rows_of(interest: Interest, planners: dict[str, Any], **network: Any) -> list[dict[str, Any]]:
    """Try planners one by one, and say what their plans cost."""
    models = COSTS.made(**network)
    found = []
    for name, trial in zip(planners, trials(interest, list(planners.values())), strict=True):
        row: dict[str, Any] = {"method": name, "flows": interest.n_flows}
        if trial.plan is None:
            found.append(row | {"problem": trial.problem})
            continue
        assert trial.seconds is not None
        assert trial.megabytes is not None
        waste = models["waste"].score(interest, trial.plan)
        row |= {
            "seconds": round(trial.seconds, 3),
            "peak_mb": round(trial.megabytes, 1),
            "waste_per_wanted": round(waste.total / waste.terms["wanted"], 4),
        }
        if "network" in models:
            paid = models["network"].score(interest, trial.plan)
            row["improvement_pct"] = round(paid.terms["improvement_pct"], 2)
        found.append(row)
        print(row, file=sys.stderr)
    return found


def run(*, quick: bool = False) -> dict[str, Any]:
    """Measure everything."""
    # The processes that planners run in have to find the peers.
    here = str(Path(__file__).parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    methods = [name for name in PLANNERS if name in ("forgy", "macqueen", "pairwise", "mst")]
    results: dict[str, Any] = {"markets": [], "stocks": []}
    for n in (50, 200) if quick else SIZES:
        interest = markets(n, 500 if quick else SUBSCRIBERS)
        planners: dict[str, Any] = {name: PLANNERS[name](channels=CHANNELS) for name in methods}
        planners |= {name: PLANNERS[name](channels=CHANNELS) for name in ("auto", "partial", "hash")}
        peers = {"kmeans": KMeans(channels=CHANNELS), "linkage": Linkage(channels=CHANNELS)}
        planners |= {name: peer for name, peer in peers.items() if n <= MOST[name]}
        results["markets"] += rows_of(interest, planners)
    for n in (100, 200) if quick else EVENTS:
        interest, topology, locations = stocks(n)
        planners = {name: PLANNERS[name](channels=EVENT_CHANNELS) for name in methods}
        planners["partial"] = Partial(channels=EVENT_CHANNELS, topology=topology, locations=locations)
        planners |= {name: PLANNERS[name](channels=EVENT_CHANNELS) for name in ("auto", "hash")}
        peers = {"kmeans": KMeans(channels=EVENT_CHANNELS), "linkage": Linkage(channels=EVENT_CHANNELS)}
        # Here there are few subscribers, and k-means has an easier time.
        planners |= {name: peer for name, peer in peers.items() if n <= 4 * MOST[name]}
        results["stocks"] += rows_of(interest, planners, topology=topology, locations=locations)
    return results
