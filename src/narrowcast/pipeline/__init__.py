"""The data pipeline on Spark: the only part of Narrowcast that imports pyspark, and only when it is used."""

from __future__ import annotations

from narrowcast.pipeline.cells import cell_rates, from_cells
from narrowcast.pipeline.changes import from_changes
from narrowcast.pipeline.compile import compile_subscriptions, owners
from narrowcast.pipeline.estimate import Estimate, Forecast, estimate
from narrowcast.pipeline.evaluate import Evaluation, evaluate, false_exclusions
from narrowcast.pipeline.histories import Histories, histories
from narrowcast.pipeline.interest import InterestFrames, from_matches, from_topics, rates_of
from narrowcast.pipeline.java import JavaHome, java_home
from narrowcast.pipeline.match import match
from narrowcast.pipeline.plan import costs_of, make_plan, to_interest
from narrowcast.pipeline.session import session, use
from narrowcast.pipeline.similarity import similarities
from narrowcast.pipeline.streaming.batch import Batch
from narrowcast.pipeline.streaming.follow import Follow, Followed
from narrowcast.pipeline.streaming.state import State
from narrowcast.pipeline.streaming.stream import Stream
from narrowcast.pipeline.sweep import run_sweep
from narrowcast.pipeline.tables import Ingested, fingerprint, ingest, schema_of

__all__ = [
    "Batch",
    "Estimate",
    "Evaluation",
    "Follow",
    "Followed",
    "Forecast",
    "Histories",
    "Ingested",
    "InterestFrames",
    "JavaHome",
    "State",
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
    "run_sweep",
    "schema_of",
    "session",
    "similarities",
    "to_interest",
    "use",
]
