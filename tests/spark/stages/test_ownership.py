"""Planning by subscription: what is refused, and whose each subscription is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import narrowcast as nc
from narrowcast.costs import FalsePositives
from narrowcast.errors import ParameterError, TableError
from narrowcast.model.ownership import by_subscription
from narrowcast.planning.base import PLANNERS, planners
from narrowcast.spark.planning.plan import costs_of, make_plan
from narrowcast.spark.stages import bounding_boxes
from narrowcast.spark.stages.compile import pack
from narrowcast.spark.stages.evaluate import false_positives_by_subscription
from narrowcast.spark.stages.interest import from_matches
from narrowcast.spark.stages.ownership import bring_owners, check_by, gathered
from narrowcast.spark.stages.plan_inputs import PlanInputs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILTERS = PlanInputs(subscriptions="s", events="e")


def test_methods_that_cluster_subscribers() -> None:
    clusters = planners(clusters="subscribers")
    assert clusters == ["box-overlap", "centroid", "direct", "ncut", "r-tree", "rassoc"]
    for method in clusters:
        check_by("subscription", method, FILTERS, channels=3)
    check_by("subscription", "auto", FILTERS, channels=3, params={"cost": "false-positives"})
    assert set(planners(all_subscribers=True)) - {"broadcast"} <= set(clusters)
    others = [name for name in PLANNERS if name not in clusters]
    for method in others:
        check_by("subscriber", method, FILTERS, channels=3)
        with pytest.raises(ParameterError, match=f"method '{method}' puts flows into channels; take one"):
            check_by("subscription", method, FILTERS, channels=3)


@pytest.mark.parametrize(
    ("by", "inputs", "message"),
    [
        ("peer", FILTERS, "--by is 'peer'; use one of subscriber, subscription"),
        ("subscription", PlanInputs(interests="i"), "needs filters, and --interests has none; give --subscr"),
        ("subscription", PlanInputs(changes="c"), "needs filters, and --changes has none"),
        ("subscription", PlanInputs(state="s"), "needs filters, and --state has none"),
        (
            "subscription",
            PlanInputs(subscriptions="s", events="e", flows="cells"),
            "goes by the events that each matches, and --flows is cells; leave one out",
        ),
    ],
)
def test_what_is_refused(by: str, inputs: PlanInputs, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        check_by(by, "direct", inputs, channels=3)


@pytest.mark.slow
@pytest.mark.spark
def test_plans_on_the_driver_and_on_spark(spark: SparkSession) -> None:
    rng = np.random.default_rng(2)
    matched = rng.random((30, 12)) < 0.3
    matched[:, 11] = False  # what matches nothing is in a cluster all the same
    owner = [f"s{i // 3}" for i in range(12)]
    rows: list[Any] = [(e, np.flatnonzero(row).tolist()) for e, row in enumerate(matched)]
    matches = spark.createDataFrame(rows, "event_id bigint, subscription_ids array<bigint>")
    people = spark.createDataFrame(list(enumerate(owner)), "subscription_id bigint, subscriber string")
    finer, coarse = (from_matches(matches, people, by=by) for by in ("subscription", "subscriber"))
    assert (finer.rows, coarse.rows, finer.text) == ("subscription", "subscriber", False)
    seen = np.flatnonzero(matched.any(axis=1))
    by_id = nc.Interest(matched[seen].T, flows=seen)
    by_name = nc.Interest(
        matched[seen].reshape(len(seen), 4, 3).any(axis=2).T, subscribers=["s0", "s1", "s2", "s3"], flows=seen
    )
    plans = {}
    for limit, path in ((1000, "driver"), (1, "spark")):
        planned = gathered(finer, make_plan(finer, "direct", channels=4, limit=limit))
        plan = plans[path] = planned.plan
        assert planned.path == path
        assert plan.subscriptions is not None
        assert plan.subscriptions.subscription_id.tolist() == list(range(12))
        by_subscription(plan, range(12), owner).validate(by_id)
        plan.validate(by_name)
        cost = FalsePositives().score(by_name, plan).total
        assert costs_of(coarse, planned, costs=["false-positives"]) == {"false-positives": cost}
    assert planned.interest.n_wants == 0
    # By subscription, of a plan that is by subscription and of one that is not.
    plans["whole"] = nc.Direct(channels=2).fit(by_name).plan_
    for plan in (plans["driver"], plans["whole"]):
        cost = FalsePositives().score(by_id, by_subscription(plan, range(12), owner)).total
        assert false_positives_by_subscription(finer, plan) == cost > 0


def test_a_box_for_each_subscription() -> None:
    schema = nc.Schema.of({"x": "double"})
    filters = {"subscription_id": [7, 3], "subscriber": ["ann"] * 2, "filter": ["x > 1 AND x <= 2", "x > 5"]}
    payload = pack(nc.compile_filters(schema, pa.table(filters), strict=True).subscriptions)
    batch = pa.RecordBatch.from_pydict({"payload": pa.array([payload], pa.binary())})
    [each] = bounding_boxes._around(iter([batch]), schema, [0], "subscription")
    assert each.to_pydict() == {"subscriber": ["7", "3"], "lo0": [1.0, 5.0], "hi0": [2.0, float("inf")]}
    [whole] = bounding_boxes._around(iter([batch]), schema, [0], "subscriber")
    assert whole.to_pydict() == {"subscriber": ["ann"], "lo0": [1.0], "hi0": [float("inf")]}


@pytest.mark.spark
def test_owners_on_the_driver(spark: SparkSession) -> None:
    rows: list[Any] = [(7, "bob"), (3, "ann"), (5, "ann")]
    frame = spark.createDataFrame(rows, "subscription_id bigint, subscriber string")
    ids, names = bring_owners(frame)
    assert (ids.tolist(), names.to_pylist()) == ([3, 5, 7], ["ann", "ann", "bob"])
    with pytest.raises(TableError, match="subscription_id 5 is used twice; give each its own"):
        bring_owners(frame.unionByName(spark.createDataFrame([(5, "cid")], frame.schema)))
