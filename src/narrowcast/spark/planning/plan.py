"""Planning for an interest in Spark tables: on the driver up to a limit, otherwise on Spark."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np

from narrowcast.costs.base import COSTS
from narrowcast.errors import ParameterError, PlanError
from narrowcast.model.interest import Interest
from narrowcast.planning.fit_report import FitReport
from narrowcast.spark.planning.large_planner import LARGE_PLANNERS
from narrowcast.spark.planning.planner_parameters import make_planner
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.bounding_boxes import bring_boxes
from narrowcast.spark.stages.evaluate import evaluate, false_exclusions
from narrowcast.spark.stages.interest_collection import LIMIT, collect_interest, excess, excess_message
from narrowcast.spark.stages.network import NO_NETWORK, NetworkTables
from narrowcast.validation import check_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from narrowcast.model.plan import ChannelPlan
    from narrowcast.planning.base import ChoosingPlanner, Planner
    from narrowcast.spark.planning.large_planner import LargePlanner
    from narrowcast.spark.stages.interest import InterestFrames


class PlanResult(NamedTuple):
    """A plan, the interest and method that it was made with, and where it was made.

    Parameters
    ----------
    plan
        The plan; it serves every wanted pair.
    interest
        The interest that it was made from. If this exceeds the driver's limit, an interest with the plan's
        flows and their rates but no subscribers: see `costs_of`.
    method
        Name of the method; for `auto`, of the method that it chose.
    path
        Where the plan was made: `driver` or `spark`. On Spark, the driver holds only the memberships.
    report
        The planner's report; empty when the plan was made on Spark.
    costs
        Costs that were computed on Spark while planning, by the name of the cost model.
    note
        A difference from planning on the driver that the user should know; empty if there is none.
    how
        Values needed to reproduce a plan made on Spark, besides the planner's parameters: `where`, `limit`
        and others.
    """

    plan: ChannelPlan
    interest: Interest
    method: str
    path: Literal["driver", "spark"]
    report: FitReport = FitReport()
    costs: Mapping[str, float] = MappingProxyType({})
    note: str = ""
    how: Mapping[str, Any] = MappingProxyType({})


def make_plan(
    frames: InterestFrames,
    method: str,
    *,
    channels: int | None,
    seed: int = 0,
    params: Mapping[str, Any] | None = None,
    network: NetworkTables = NO_NETWORK,
    limit: int = LIMIT,
) -> PlanResult:
    """Make a plan by any registered method, and check that it serves every wanted pair.

    An interest within the limit is planned on the driver, a larger one on Spark, with a method in
    `LARGE_PLANNERS` or with `auto`, which chooses one of these if there is no network.

    The plans of `broadcast` and of methods that cluster subscribers include subscribers without interest, if
    the frames list them.

    Parameters
    ----------
    frames
        The interest as Spark tables.
    method
        Name of a method in `PLANNERS`.
    channels
        Maximum number of channels. None: no limit, if the method supports this.
    seed
        Seed of the method.
    params
        Other parameters of the method.
    network
        The network, for methods that use one.
    limit
        Maximum number of wanted pairs on the driver.

    Raises
    ------
    ParameterError
        When the method or a parameter is unknown or out of range, or the interest is over the limit.
    PlanError
        When the plan does not serve a wanted pair.
    """
    check_whole("limit", limit)
    planner = make_planner(method, channels=channels, seed=seed, params=params, network=network)
    if over := excess(frames, limit):
        return _plan_large(frames, *_large_planner(method, planner, params or {}, over, limit), limit)
    interest = collect_interest(frames, all_subscribers=planner.capabilities.all_subscribers)
    if planner.capabilities.boxes and frames.boxes is not None:
        boxes = bring_boxes(frames.boxes, interest.subscribers)
        planner = make_planner(
            method, channels=channels, seed=seed, params=params, network=network, boxes=boxes
        )
    plan = planner.fit(interest).plan_
    plan.validate(interest)
    return PlanResult(plan, interest, planner.report_.method or method, "driver", planner.report_)


def _large_planner(
    method: str, planner: Planner, params: Mapping[str, Any], over: str, limit: int
) -> tuple[str, LargePlanner]:
    """Return the method that plans on Spark, and its executor.

    `over` is the message that the interest exceeds the driver's limit. Raises an error when the method, or
    one of its parameters, is not supported on Spark.
    """
    if planner.capabilities.chooses:
        method, planner = cast("ChoosingPlanner", planner).for_large()
    if method not in LARGE_PLANNERS:
        *others, last = (name for name in LARGE_PLANNERS if name != "joint")
        raise ParameterError(
            f"{over}, raise the limit on a driver with more memory, or use method joint, which plans a "
            f"larger interest on Spark, as {', '.join(others)} and {last} do",
            parameter="limit",
            value=limit,
        )
    known = LARGE_PLANNERS[method].parameters
    if odd := [name for name in params if name not in ("cost", *known) and params[name] != "linear"]:
        name = odd[0]
        raise ParameterError(
            f"{name} is not supported by {method} on Spark, and {over}, raise the limit, or leave {name} "
            f"out; parameters supported on Spark: {', '.join(known)}",
            parameter=name,
            value=params[name],
        )
    return method, LARGE_PLANNERS[method](planner.fit(Interest(np.zeros((0, 0)))))


def _plan_large(frames: InterestFrames, method: str, planner: LargePlanner, limit: int) -> PlanResult:
    """Plan by a method for large interests on Spark, and check that the plan serves every wanted pair."""
    found = planner.plan(frames, limit=limit)
    with plainly("check the plan"):
        missed = false_exclusions(frames, found.plan).limit(3).collect()
    if missed:
        first = ", ".join(f"subscriber {row.subscriber!r} wants flow {row.flow!r}" for row in missed)
        raise PlanError(
            f"the plan of {method} does not serve some wanted pairs: {first}; plan again for this interest",
            parameter="method",
            value=method,
        )
    how = {"where": found.path, "limit": limit, **found.how}
    return PlanResult(
        found.plan, found.interest, method, found.path, costs=found.costs, note=found.note, how=how
    )


def costs_of(
    frames: InterestFrames,
    planned: PlanResult,
    *,
    costs: Iterable[str] | None = None,
    params: Mapping[str, Any] | None = None,
    network: NetworkTables = NO_NETWORK,
) -> dict[str, float]:
    """Return the total cost of a plan by each cost model, computed on the driver or on Spark.

    Parameters
    ----------
    frames
        The interest that was given to `make_plan`.
    planned
        The result of `make_plan`.
    costs
        Names of cost models. Default: all whose inputs are given; for an interest that exceeds the driver's
        limit, only the additive ones.
    params
        Parameters of the cost models; each gets those that it accepts.
    network
        The network, for costs that need one.
    """
    params = dict(params or {})
    models = COSTS.made(costs, **network.given, **params)
    if planned.interest.n_wants or not planned.plan.n_subscribers:
        return {name: model.score(planned.interest, planned.plan).total for name, model in models.items()}
    names = [name for name, model in models.items() if model.additive or costs is not None]
    found = evaluate(frames, planned.plan, name=planned.method, costs=names, network=network, params=params)
    totals = {name: cost.total for name, cost in found.methods[found.name].costs.items()}
    return dict(sorted({**planned.costs, **totals}.items())) if costs is None else totals


def check_large(
    method: str,
    *,
    channels: int | None,
    seed: int = 0,
    params: Mapping[str, Any] | None = None,
    network: NetworkTables = NO_NETWORK,
    pairs: int | None,
    limit: int,
) -> None:
    """Check a method for a large interest before Spark starts.

    Parameters
    ----------
    method, channels, seed, params, network, limit
        As for `make_plan`.
    pairs
        Number of rows of the interest, duplicates included; None if unknown.

    Raises
    ------
    ParameterError
        When the interest exceeds the limit, and the method or a parameter is not supported on Spark.

    Examples
    --------
    >>> check_large("joint", channels=3, params={"members": 9}, pairs=500, limit=100)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: members is not supported by joint on Spark, and the interest...
    """
    check_whole("limit", limit)
    if pairs is not None and pairs > limit:
        planner = make_planner(method, channels=channels, seed=seed, params=params, network=network)
        _large_planner(method, planner, params or {}, excess_message(pairs, "wanted pairs", limit), limit)
