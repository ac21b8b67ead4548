"""Titles of the panels that group the options of a command in its help."""

from typing import Final

INPUT: Final = "Input tables"
FLOWS: Final = "Flows from filters and events"
NETWORK: Final = "Network"
PLANNING: Final = "Planning and costs"
MATCHING: Final = "Matching"
HISTORIES: Final = "Histories"
SPARK: Final = "Spark"
STREAM: Final = "Stream"
CONNECTION: Final = "Connection to NATS"
BROKER: Final = "Subscriptions and plan"
STORAGE: Final = "Storage and delivery"
HTTP: Final = "HTTP API"
REPLANNING: Final = "Recording and replanning"
MULTICAST: Final = "--to multicast"
NATS: Final = "--to nats"
