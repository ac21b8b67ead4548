"""Planning by subscription: the interest of each subscription, and the resulting plan of subscribers."""

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
from narrowcast.validation import check_choice

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

    from narrowcast.model.labels import Labels
    from narrowcast.spark.planning.plan import PlanResult
    from narrowcast.spark.stages.plan_inputs import LoadedInterest, PlanInputs

#: The units that a plan can assign to channels.
ROWS = ("subscriber", "subscription")


def check_by(by: str, method: str, inputs: PlanInputs, **asks: Any) -> None:
    """Check that a plan can be made by subscription, if `by` says so.

    Planning by subscription needs filters, flows that are events, and a method that clusters subscribers.

    Parameters
    ----------
    by
        The unit to plan by: one of `ROWS`.
    method, asks
        As for `make_planner`.
    inputs
        The inputs of the plan.

    Raises
    ------
    ParameterError
        When one of these conditions does not hold.
    """
    check_choice("by", by, ROWS)
    if by == "subscriber":
        return
    if inputs.subscriptions is None:
        given = next(iter(inputs.paths))
        raise ParameterError(
            f"by='subscription': needs filters, and {given} has none; give subscriptions and events, or "
            "leave `by` out",
            parameter="by",
            value=by,
        )
    if inputs.flows != "events":
        raise ParameterError(
            f"by='subscription': needs flows that are events, not flows={inputs.flows!r}; leave one of the "
            "two out",
            parameter="by",
            value=by,
        )
    if make_planner(method, **asks).capabilities.clusters != "subscribers":
        known = ", ".join(planners(clusters="subscribers"))
        raise ParameterError(
            f"by='subscription': needs a method that clusters subscribers, and {method!r} clusters flows; "
            f"use one of {known}",
            parameter="by",
            value=by,
        )


def interest_by_subscription(loaded: LoadedInterest, inputs: PlanInputs) -> InterestFrames:
    """Return the interest of single subscriptions, in the events of an interest of their subscribers.

    Parameters
    ----------
    loaded
        The result of `load_interest` for filters and events.
    inputs
        The inputs that it was loaded from.
    """
    from pyspark import StorageLevel

    content, matches = loaded.content, loaded.matches
    assert content is not None
    assert matches is not None
    owners = content.owners
    with plainly("select the recent events"):
        frames = from_matches(matches, owners, content.events, **inputs.selection, by="subscription")
        if any(kind.family in NUMBERS for kind in content.schema.types):
            boxes = boxes_of(content.compiled, content.schema, by="subscription")
            frames = replace(frames, boxes=boxes)
    return replace(frames, interests=frames.interests.persist(StorageLevel.DISK_ONLY))


def bring_owners(owners: DataFrame) -> tuple[NDArray[np.int64], Labels]:
    """Collect the owners of all subscriptions on the driver: ascending ids, and the subscriber of each."""
    with plainly("collect the owners of subscriptions"):
        table = owners.select("subscription_id", "subscriber").toArrow().sort_by("subscription_id")
    ids = table["subscription_id"].to_numpy()
    repeated = np.flatnonzero(ids[1:] == ids[:-1])
    if len(repeated):
        raise TableError(
            f"subscription_id {ids[repeated[0]]} has several rows; give each subscription its own id",
            parameter="subscription_id",
            value=int(ids[repeated[0]]),
        )
    return ids, labels_in(table, "subscriber", "subscriptions")


def plan_by_subscriber(frames: InterestFrames, planned: PlanResult) -> PlanResult:
    """Convert a plan of subscriptions into a plan of their subscribers, with the subscribers' interest.

    `make_plan` has checked that the plan serves each subscription, so it serves each subscriber.

    Parameters
    ----------
    frames
        The interest of subscriptions that was given to `make_plan`.
    planned
        The result of `make_plan`.

    Raises
    ------
    PlanError
        When a wanted flow of a subscriber is not served.
    """
    assert frames.owners is not None
    ids, names = bring_owners(frames.owners)

    def owners_of(rows: Labels) -> Labels:
        return names.take(pa.array(np.searchsorted(ids, np.asarray(rows, np.int64))))

    plan, detailed = by_subscriber(planned.plan, owners_of(planned.plan.subscribers)), planned.interest
    if not detailed.n_subscribers:  # the interest exceeds the driver's limit
        return planned._replace(plan=plan)
    subscribers, [owner] = encode("subscriber", owners_of(detailed.subscribers))
    shape = (len(subscribers), detailed.n_flows)
    wants = relation_of(owner[rows_of(detailed.wants)], detailed.wants.indices, shape)
    interest = Interest(wants, detailed.rate, subscribers, detailed.flows)
    plan.validate(interest)
    return planned._replace(plan=plan, interest=interest)
