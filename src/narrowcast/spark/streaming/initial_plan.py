"""What a job that follows changes begins with: a plan, and who wants what before the first change."""

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
from narrowcast.spark.streaming.follow_state import plain, read_start
from narrowcast.spark.streaming.subscription_update import REJECTED

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from narrowcast.model.plan import ChannelPlan

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InitialPlan:
    """What there is before the first change.

    Parameters
    ----------
    plan
        The plan that is there; None where there is none.
    interest
        Who wants what.
    rejected
        Rows of the tables given that cannot be used.
    rated
        Whether anybody has said how often flows send; else each is taken to have an event a second.
    """

    plan: ChannelPlan | None
    interest: Interest
    rejected: pa.Table
    rated: bool

    @classmethod
    def read(cls, spark: SparkSession, plan: Path, interests: str | None, rates: str | None) -> InitialPlan:
        """Find out who wants what.

        That is what the tables say; without interests, what stands beside the plan; without either, all that
        the plan brings to everybody, so that nobody loses anything; and nothing where there is no plan.

        Parameters
        ----------
        spark
            Where tables are read.
        plan
            The plan artefact, if it is there.
        interests, rates
            Tables.
        """
        given, rejected = _given(spark, interests, rates)
        rated = rates is not None
        if not plan.exists():
            return cls(None, plain(Interest(np.zeros((0, 0)))) if given is None else given, rejected, rated)
        made, found = read_start(plan)
        if interests is not None and given is not None:
            return cls(made, given, rejected, rated)
        rated |= found is not None
        if found is None:
            found = brought_by(made)
            if found.n_wants:
                log.warning(
                    "who wants what is not known: everybody is taken to want all that %s brings them; "
                    "say it with --interests",
                    plan,
                )
        return cls(made, found if given is None else _rated(found, given), rejected, rated)


def _given(spark: SparkSession, interests: str | None, rates: str | None) -> tuple[Interest | None, pa.Table]:
    """Return the interest that tables say, None without any, and their rows that cannot be used."""
    paths = {"interests": interests, "rates": rates}
    with plainly("read the first interest"):
        read = {name: ingest(spark, name, path) for name, path in paths.items() if path is not None}
        if not read:
            return None, REJECTED.empty_table()
        often = read["rates"].rows if "rates" in read else None
        if "interests" in read:
            pairs = read["interests"].rows
        else:
            assert often is not None
            pairs = often.selectExpr("'' AS subscriber", "flow").limit(0)
        interest = plain(to_interest(from_topics(pairs, often)))
        return interest, pa.concat_tables([each.rejected.toArrow().cast(REJECTED) for each in read.values()])


def brought_by(plan: ChannelPlan) -> Interest:
    """Return the interest of those who want all that a plan brings them.

    Examples
    --------
    >>> from narrowcast.model.plan import ChannelPlan
    >>> brought_by(ChannelPlan([[1], [1]], [[1], [0]], unicast=[[0, 0], [0, 1]])).wants.toarray().tolist()
    [[True, True], [False, True]]
    """
    heard = plan.listens.astype(np.int64) @ plan.carries.astype(np.int64).T
    wants = heard + plan.unicast.astype(np.int64)
    return plain(Interest(wants, subscribers=plan.subscribers, flows=plan.flows))


def _rated(interest: Interest, rates: Interest) -> Interest:
    """Return an interest with the rates of another, where that has them."""
    flows, [ours, theirs] = encode("flow", interest.flows, rates.flows)
    rate = np.ones(len(flows))
    rate[ours] = interest.rate
    rate[theirs] = rates.rate
    wants = relation_of(
        rows_of(interest.wants), ours[interest.wants.indices], (interest.n_subscribers, len(flows))
    )
    return Interest(wants, rate, interest.subscribers, flows)
