"""The data pipeline on Spark: the only part of Narrowcast that imports pyspark, and only when it is used."""

from __future__ import annotations

from typing import Any

from narrowcast.deprecation import renamed
from narrowcast.spark.java import JavaHome, java_home
from narrowcast.spark.planning.plan import costs_of, make_plan
from narrowcast.spark.session import session, use
from narrowcast.spark.sources.tables import Ingested, fingerprint, ingest, schema_of
from narrowcast.spark.stages.cells import cell_rates, from_cells
from narrowcast.spark.stages.changes import from_changes
from narrowcast.spark.stages.compile import compile_subscriptions, owners
from narrowcast.spark.stages.estimate import Estimate, Forecast, estimate
from narrowcast.spark.stages.evaluate import Evaluation, evaluate, false_exclusions
from narrowcast.spark.stages.histories import Histories, histories
from narrowcast.spark.stages.interest import InterestFrames, from_matches, from_topics, rates_of
from narrowcast.spark.stages.interest_collection import to_interest
from narrowcast.spark.stages.match import match
from narrowcast.spark.streaming.follow import Follow, FollowProgress
from narrowcast.spark.streaming.interest_state import InterestState
from narrowcast.spark.streaming.micro_batch import MicroBatch
from narrowcast.spark.streaming.stream import Stream

__all__ = [
    "Estimate",
    "Evaluation",
    "Follow",
    "FollowProgress",
    "Forecast",
    "Histories",
    "Ingested",
    "InterestFrames",
    "InterestState",
    "JavaHome",
    "MicroBatch",
    "Stream",
    "cell_rates",
    "compile_subscriptions",
    "costs_of",
    "estimate",
    "evaluate",
    "false_exclusions",
    "fingerprint",
    "from_cells",
    "from_changes",
    "from_matches",
    "from_topics",
    "histories",
    "ingest",
    "java_home",
    "make_plan",
    "match",
    "owners",
    "rates_of",
    "schema_of",
    "session",
    "to_interest",
    "use",
]


def __getattr__(name: str) -> Any:
    return renamed(
        __name__, name, {"Batch": "MicroBatch", "Followed": "FollowProgress", "State": "InterestState"}
    )
