"""The initial plan of online planning, and the interest before the first change."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from narrowcast.model.interest import Interest
from narrowcast.model.labels import encode
from narrowcast.model.relation import relation_of, rows_of
from narrowcast.spark.sources.tables import ingest
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.interest import from_topics
from narrowcast.spark.stages.interest_collection import to_interest
from narrowcast.spark.streaming.follow_state import read_start, with_wide_labels
from narrowcast.spark.streaming.subscription_update import REJECTED

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from narrowcast.model.plan import ChannelPlan

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InitialPlan:
    """Plan and interest before the first change.

    Parameters
    ----------
    plan
        The existing plan; None if there is none.
    interest
        The interest.
    rejected
        Rejected rows of the given tables.
    has_rates
        Whether the rates of flows are known; otherwise each flow has a rate of one event per second.
    """

    plan: ChannelPlan | None
    interest: Interest
    rejected: pa.Table
    has_rates: bool

    @classmethod
    def read(cls, spark: SparkSession, plan: Path, interests: str | None, rates: str | None) -> InitialPlan:
        """Read the plan and determine the interest.

        The interest comes from the given tables; without a table of interests, from the folder of the plan;
        without either, subscribers are assumed to want all flows that the plan delivers to them, so that no
        subscriber loses a flow. Without a plan the interest is empty.

        Parameters
        ----------
        spark
            Session that reads the tables.
        plan
            Folder of the plan; it need not exist.
        interests, rates
            Paths or URIs of tables.
        """
        given, rejected = _read_tables(spark, interests, rates)
        has_rates = rates is not None
        if not plan.exists():
            empty = with_wide_labels(Interest(np.zeros((0, 0))))
            return cls(None, empty if given is None else given, rejected, has_rates)
        existing, stored = read_start(plan)
        if interests is not None and given is not None:
            return cls(existing, given, rejected, has_rates)
        has_rates |= stored is not None
        if stored is None:
            stored = delivered_by(existing)
            if stored.n_wants:
                log.warning(
                    "interests are missing: subscribers are assumed to want all that %s delivers to them",
                    plan,
                )
        return cls(existing, stored if given is None else _with_rates(stored, given), rejected, has_rates)


def _read_tables(
    spark: SparkSession, interests: str | None, rates: str | None
) -> tuple[Interest | None, pa.Table]:
    """Read the interest of the tables, None without any, and their rejected rows."""
    paths = {"interests": interests, "rates": rates}
    with plainly("read the initial interest"):
        read = {name: ingest(spark, name, path) for name, path in paths.items() if path is not None}
        if not read:
            return None, REJECTED.empty_table()
        rate_rows = read["rates"].rows if "rates" in read else None
        if "interests" in read:
            pairs = read["interests"].rows
        else:
            assert rate_rows is not None
            pairs = rate_rows.selectExpr("'' AS subscriber", "flow").limit(0)
        interest = with_wide_labels(to_interest(from_topics(pairs, rate_rows)))
        return interest, pa.concat_tables([each.rejected.toArrow().cast(REJECTED) for each in read.values()])


def delivered_by(plan: ChannelPlan) -> Interest:
    """Return the interest in which subscribers want exactly the flows that a plan delivers to them.

    Examples
    --------
    >>> from narrowcast.model.plan import ChannelPlan
    >>> delivered_by(ChannelPlan([[1], [1]], [[1], [0]], unicast=[[0, 0], [0, 1]])).wants.toarray().tolist()
    [[True, True], [False, True]]
    """
    by_channel = plan.listens.astype(np.int64) @ plan.carries.astype(np.int64).T
    wants = by_channel + plan.unicast.astype(np.int64)
    return with_wide_labels(Interest(wants, subscribers=plan.subscribers, flows=plan.flows))


def _with_rates(interest: Interest, rates: Interest) -> Interest:
    """Return an interest with the rates of another one, extended by the flows that only the other has."""
    flows, [own, other] = encode("flow", interest.flows, rates.flows)
    rate = np.ones(len(flows))
    rate[own] = interest.rate
    rate[other] = rates.rate
    wants = relation_of(
        rows_of(interest.wants), own[interest.wants.indices], (interest.n_subscribers, len(flows))
    )
    return Interest(wants, rate, interest.subscribers, flows)
