"""Names and defaults that the help shows, so that help needs none of the packages that define them.

A test compares each with the registry or constant of the library.
"""

from __future__ import annotations

from typing import Final

METHODS: Final = (
    "auto", "broadcast", "cover", "direct", "forgy", "frequency-threshold", "giant", "hash",
    "hierarchical-gf", "hierarchical-it", "hierarchical-rra", "hierarchical-sf", "joint", "kmeans",
    "macqueen", "mst", "ncut", "pairwise", "partial", "per-flow", "rassoc", "static", "tamara",
    "tamara-tidy", "unicast",
)  # fmt: skip
#: Methods that need the boxes of filters, and so subscriptions and events.
BOX_METHODS: Final = ("box-overlap", "centroid", "r-tree")
ONLINE_METHODS: Final = ("tamara", "tamara-tidy")
#: Methods that can plan on Spark.
LARGE_METHODS: Final = ("cover", "direct", "joint", "ncut", "rassoc")
COSTS: Final = ("false-positives", "filtering", "forwarding", "network", "overall", "waste")
ROUTERS: Final = ("channels", "exact", "partial", "threshold")
WORKLOADS: Final = ("feeds", "flows", "hotspots", "intervals", "packages", "quotes", "stocks")
STRATEGIES: Final = ("auto", "broadcast", "partitioned")
SCHEMES: Final = ("cobas", "hash", "kd", "selective")
FLOWS: Final = ("events", "cells")
FORMS: Final = ("multicast", "nats", "csv")

MASTER: Final = "local[*,4]"
#: Recent events that become flows.
RECENT: Final = 10_000
#: Wanted pairs that are planned in one process.
LIMIT: Final = 50_000_000
#: Boxes of one filter.
BOXES: Final = 1024
MULTICAST_BASE: Final = "239.192.0.0/14"
MULTICAST_PORT: Final = 5000
NATS_PREFIX: Final = "narrowcast"
#: What `calibrate` measures.
CALIBRATION_SECONDS: Final = 20.0
CALIBRATION_AGGREGATION: Final = "1,2,4,8,16,24,32,40"
CALIBRATION_SIZE: Final = 200
CALIBRATION_GROUP: Final = "239.255.71.4"
CALIBRATION_INTERFACE: Final = "127.0.0.1"
