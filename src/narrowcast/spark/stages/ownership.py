"""Whose each subscription is: subscriptions in place of their subscribers, and the way back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from narrowcast.errors import ParameterError, TableError
from narrowcast.model.cells import NUMBERS
from narrowcast.model.interest import Interest
from narrowcast.model.labels import encode, labels_in
from narrowcast.model.ownership import by_subscriber
from narrowcast.model.relation import relation_of, rows_of
from narrowcast.planning.base import planners
from narrowcast.spark.planning.planner_parameters import make_planner
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.bounding_boxes import boxes_of
from narrowcast.spark.stages.interest import InterestFrames, from_matches

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

    from narrowcast.model.labels import Labels
    from narrowcast.spark.planning.plan import PlanResult
    from narrowcast.spark.stages.plan_inputs import LoadedInterest, PlanInputs

#: What is put into channels.
ROWS = ("subscriber", "subscription")


def check_by(by: str, method: str, inputs: PlanInputs, **asks: Any) -> None:
    """Refuse to plan by subscription where there are none, or a method that puts flows into channels.

    Parameters
    ----------
    by
        One of `ROWS`.
    method, asks
        As for `make_planner`.
    inputs
        What the plan is made from.
    """
    if by not in ROWS:
        raise ParameterError(f"--by is {by!r}; use one of {', '.join(ROWS)}")
    if by == "subscriber":
        return
    if inputs.subscriptions is None:
        given = next(iter(inputs.paths))
        raise ParameterError(
            f"--by subscription needs filters, and --{given} has none; give --subscriptions and --events, or "
            "leave it out"
        )
    if inputs.flows != "events":
        raise ParameterError(
            f"--by subscription goes by the events that each matches, and --flows is {inputs.flows}; leave "
            "one out"
        )
    if make_planner(method, **asks).capabilities.clusters != "subscribers":
        known = ", ".join(planners(clusters="subscribers"))
        raise ParameterError(
            f"--by subscription is given, and method {method!r} puts flows into channels; take one that "
            f"clusters subscribers: {known}"
        )


def subscribed(taken: LoadedInterest, inputs: PlanInputs) -> InterestFrames:
    """Return the interest of each subscription, of the events that the interest taken is in.

    Parameters
    ----------
    taken, inputs
        What `take` made of filters and events, and of what.
    """
    from pyspark import StorageLevel

    content, matches = taken.content, taken.matches
    assert content is not None
    assert matches is not None
    owners = content.owners
    with plainly("find the last events"):
        frames = from_matches(matches, owners, content.events, **inputs.chosen, by="subscription")
        if any(kind.family in NUMBERS for kind in content.schema.types):
            boxes = boxes_of(content.compiled, content.schema, by="subscription")
            frames = replace(frames, boxes=boxes)
    return replace(frames, interests=frames.interests.persist(StorageLevel.DISK_ONLY))


def bring_owners(owners: DataFrame) -> tuple[NDArray[np.int64], Labels]:
    """Bring all subscriptions to the driver: their ids, ascending, and whose each is."""
    with plainly("bring the owners of subscriptions to the driver"):
        table = owners.select("subscription_id", "subscriber").toArrow().sort_by("subscription_id")
    ids = table["subscription_id"].to_numpy()
    twice = np.flatnonzero(ids[1:] == ids[:-1])
    if len(twice):
        raise TableError(f"subscription_id {ids[twice[0]]} is used twice; give each its own")
    return ids, labels_in(table, "subscriber", "subscriptions")


def gathered(frames: InterestFrames, planned: PlanResult) -> PlanResult:
    """Return the plan of subscribers that one of their subscriptions makes, and their interest.

    That the plan serves each subscription was checked when it was made; so everybody is served by it.

    Parameters
    ----------
    frames, planned
        What was given to `make_plan`, by subscription, and what came out.

    Raises
    ------
    PlanError
        When a subscriber is left without a flow that it wants.
    """
    assert frames.owners is not None
    ids, names = bring_owners(frames.owners)

    def owners_of(rows: Labels) -> Labels:
        return names.take(pa.array(np.searchsorted(ids, np.asarray(rows, np.int64))))

    plan, finer = by_subscriber(planned.plan, owners_of(planned.plan.subscribers)), planned.interest
    if not finer.n_subscribers:  # it is more than the driver takes
        return planned._replace(plan=plan)
    people, [owner] = encode("subscriber", owners_of(finer.subscribers))
    wants = relation_of(owner[rows_of(finer.wants)], finer.wants.indices, (len(people), finer.n_flows))
    interest = Interest(wants, finer.rate, people, finer.flows)
    plan.validate(interest)
    return planned._replace(plan=plan, interest=interest)
