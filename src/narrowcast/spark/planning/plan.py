"""Planning: on the driver up to a limit, above it on Spark for the methods of `LARGE_PLANNERS`."""

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
from narrowcast.spark.stages.interest_collection import LIMIT, collected, excess, too_much
from narrowcast.spark.stages.network import NOWHERE, NetworkTables
from narrowcast.validation import check_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from narrowcast.model.plan import ChannelPlan
    from narrowcast.planning.base import ChoosingPlanner, Planner
    from narrowcast.spark.planning.large_planner import LargePlanner
    from narrowcast.spark.stages.interest import InterestFrames


class PlanResult(NamedTuple):
    """A plan, the interest that it was made from, the method that made it, and where.

    Parameters
    ----------
    plan
        It serves everybody.
    interest
        What it was made from. Where that is more than the driver takes, only the plan's flows with their
        rates, and nobody who wants them: see `costs_of`.
    method
        What made it: for `auto` what that chose.
    path
        `driver`, or `spark` where the driver only held who is in which channel.
    report
        What else the planner found on the driver; empty where the plan was made on Spark.
    costs
        What the method itself knows that it costs, by the cost model's name, where that was counted on Spark.
    note
        What was done otherwise than on the driver, where somebody should know.
    how
        What else it takes to make the same plan again, where it was not made on the driver: `where`, `limit`
        and what followed from these.
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
    network: NetworkTables = NOWHERE,
    limit: int = LIMIT,
) -> PlanResult:
    """Make a plan by any registered method, and check that it serves everybody.

    Up to the limit that is done on the driver, above it on Spark, by the methods of `LARGE_PLANNERS`; `auto`
    is one of these where there is no network to plan for.

    Methods that cluster subscribers, and `broadcast`, have everybody in their plans, also those who want none
    of the flows, as far as the frames know them.

    Parameters
    ----------
    frames
        Who wants what, and the rates.
    method
        One of `PLANNERS`.
    channels
        The most channels; None for as many as the method likes.
    seed
        Of what the method leaves to chance.
    params
        The method's other parameters.
    network
        For methods that plan for one; others go without.
    limit
        The most wanted pairs to bring to the driver.

    Raises
    ------
    ParameterError
        When the method or a parameter is unknown or out of range, or the interest is over the limit.
    PlanError
        When the method leaves a wanted pair without service.
    """
    check_whole("limit", limit)
    planner = make_planner(method, channels=channels, seed=seed, params=params, network=network)
    if over := excess(frames, limit):
        return _plan_large(frames, *_large(method, planner, params or {}, over), limit)
    interest = collected(frames, everybody=planner.capabilities.all_subscribers)
    if planner.capabilities.boxes and frames.boxes is not None:
        boxes = bring_boxes(frames.boxes, interest.subscribers)
        planner = make_planner(
            method, channels=channels, seed=seed, params=params, network=network, boxes=boxes
        )
    plan = planner.fit(interest).plan_
    plan.validate(interest)
    return PlanResult(plan, interest, planner.report_.method or method, "driver", planner.report_)


def _large(method: str, planner: Planner, params: Mapping[str, Any], over: str) -> tuple[str, LargePlanner]:
    """Return the method for an interest that is over the limit, and what plans there, or refuse."""
    if planner.capabilities.chooses:
        method, planner = cast("ChoosingPlanner", planner).for_large()
    if method not in LARGE_PLANNERS:
        *others, last = (name for name in LARGE_PLANNERS if name != "joint")
        raise ParameterError(
            f"{over}, raise the limit on a driver with more memory, or take --method joint, which then plans "
            f"on Spark, as {', '.join(others)} and {last} do"
        )
    known = LARGE_PLANNERS[method].parameters
    if odd := [name for name in params if name not in ("cost", *known) and params[name] != "linear"]:
        name = {"start": "--from", "pinned": "--pinned"}.get(odd[0], odd[0])
        raise ParameterError(
            f"{name} is given, which {method} does without on Spark, and {over}, raise the limit, or leave "
            f"{name} out; there it takes {', '.join(known)}"
        )
    return method, LARGE_PLANNERS[method](planner.fit(Interest(np.zeros((0, 0)))))


def _plan_large(frames: InterestFrames, method: str, planner: LargePlanner, limit: int) -> PlanResult:
    """Plan where the interest is, and check that the plan serves everybody."""
    found = planner.plan(frames, limit=limit)
    with plainly("check the plan"):
        missed = false_exclusions(frames, found.plan).limit(3).collect()
    if missed:
        first = ", ".join(f"subscriber {row.subscriber!r} wants flow {row.flow!r}" for row in missed)
        raise PlanError(f"some wanted pairs are not served: {first}; plan again for this interest")
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
    network: NetworkTables = NOWHERE,
) -> dict[str, float]:
    """Return what a plan costs by each cost model, where its interest is.

    Parameters
    ----------
    frames, planned
        What was given to `make_plan`, and what came out.
    costs
        Names of cost models. Where left out all that what is given suffices for, but of an interest that
        is not on the driver only those that can be added up from parts of it.
    params
        Of the cost models: each takes those that it has.
    network
        For the costs that need one.
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
    network: NetworkTables = NOWHERE,
    pairs: int | None,
    limit: int,
) -> None:
    """Refuse, before Spark starts, what is not planned there, of a table with more than the driver takes.

    Parameters
    ----------
    method, channels, seed, params, network, limit
        As for `make_plan`.
    pairs
        The rows of the interest; None where nobody knows. Only `make_plan` knows how many differ.

    Examples
    --------
    >>> check_large("joint", channels=3, params={"members": 9}, pairs=500, limit=100)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: members is given, which joint does without on Spark, and the interest...
    """
    check_whole("limit", limit)
    if pairs is not None and pairs > limit:
        planner = make_planner(method, channels=channels, seed=seed, params=params, network=network)
        _large(method, planner, params or {}, too_much(pairs, "wanted pairs", limit))
