"""Comparison of planning methods on one interest: the cost of each plan, and its time and memory."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from narrowcast.costs.base import COSTS
from narrowcast.errors import ParameterError
from narrowcast.model.interest import Interest
from narrowcast.planning.base import PLANNERS, planners
from narrowcast.spark.planning.planner_parameters import COMMON, make_planner, parameters_of
from narrowcast.spark.stages.evaluate import excess_share
from narrowcast.spark.stages.network import NO_NETWORK, NetworkTables
from narrowcast.spark.stages.planner_trial import PlannerTrial, trials
from narrowcast.validation import check_channels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from narrowcast.model.cost import Cost
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.planning.base import Planner
    from narrowcast.spark.stages.delivery_results import DeliveryTotals, ReplayResult

    Doubles = NDArray[np.float64]

#: The baselines of every comparison; `ideal` is not a plan but a lower bound of all plans.
ALWAYS = ("unicast", "broadcast", "per-flow", "hash")
IDEAL = "ideal"
#: The cost that orders the rows: the first available of these, otherwise the first by name.
_FIRST = ("network", "waste")
#: Fields of a replay in the table; the first two are floating-point numbers, the others counts.
_REPLAYED = ("cost", "improvement_pct", "direct_messages", "wasted")


@dataclass(frozen=True, slots=True)
class ComparedMethod:
    """The result of one method with one limit on channels.

    Parameters
    ----------
    method
        Name of the method.
    asked
        The maximum number of channels given to the method; None when the method ignores it.
    channels
        Number of channels that carry a flow.
    costs
        Costs by the name of the cost model; empty when the method failed.
    excess_share
        The excess of the cost `filtering` as a share of that of flooding; None without that cost.
    direct_share
        The share of the wanted messages that are sent directly instead of over a channel.
    seconds, peak_mb
        Run time of the planner, and the peak growth of its memory in 10**6 bytes: see `PlannerTrial`.
    problem
        The reason of a failure; empty on success.
    replayed
        Totals of events that were replayed with the plan, if any.
    balance
        Members of the largest channel divided by the mean: see `ChannelPlan.balance`.
    """

    method: str
    asked: int | None = None
    channels: int | None = None
    costs: Mapping[str, Cost] = field(default_factory=dict)
    excess_share: float | None = None
    direct_share: float | None = None
    seconds: float | None = None
    peak_mb: float | None = None
    problem: str = ""
    replayed: DeliveryTotals | None = None
    balance: float | None = None

    @property
    def improvement_pct(self) -> float | None:
        """Position of the network cost between sending all directly (0) and the ideal (100), or None."""
        return self.costs["network"].terms["improvement_pct"] if "network" in self.costs else None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        costs = {name: {"total": cost.total, "terms": dict(cost.terms)} for name, cost in self.costs.items()}
        return {
            "method": self.method,
            "asked": self.asked,
            "channels": self.channels,
            "costs": costs,
            "improvement_pct": self.improvement_pct,
            "excess_share": self.excess_share,
            "direct_share": self.direct_share,
            "balance": self.balance,
            "seconds": self.seconds,
            "peak_mb": self.peak_mb,
            "problem": self.problem or None,
            "replayed": None if self.replayed is None else self.replayed.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """The results of several methods on one interest.

    Parameters
    ----------
    costs
        Names of the costs; rows are ordered by the first.
    rows
        The ideal first, then the methods by ascending cost, failed ones last.
    replayed
        Totals of events that were replayed with the plans, if any.
    """

    costs: tuple[str, ...]
    rows: tuple[ComparedMethod, ...]
    replayed: ReplayResult | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        replayed = None if self.replayed is None else self.replayed.facts()
        return {
            "costs": list(self.costs),
            "rows": [row.to_dict() for row in self.rows],
            "replay": replayed,
        }

    def to_table(self) -> pa.Table:
        """Return a table with a row for each method, and a column for the total of each cost."""
        kinds = {"method": pa.string(), "asked": pa.int64(), "channels": pa.int64()}
        kinds |= dict.fromkeys(self.costs, pa.float64())
        shares = ("improvement_pct", "excess_share", "direct_share", "balance")
        kinds |= dict.fromkeys((*shares, "seconds", "peak_mb"), pa.float64())
        if self.replayed is not None:
            kinds |= {f"replayed_{name}": pa.float64() for name in _REPLAYED[:2]}
            kinds |= {f"replayed_{name}": pa.int64() for name in _REPLAYED[2:]}
            kinds["router"] = pa.string()
        rows = []
        for row in self.rows:
            fields = row.to_dict()
            replayed = fields["replayed"] or {}
            rows.append(
                {
                    **fields,
                    **{name: cost["total"] for name, cost in fields["costs"].items()},
                    **{f"replayed_{name}": replayed.get(name) for name in _REPLAYED},
                    "router": replayed.get("router"),
                }
            )
        return pa.Table.from_pylist(rows, pa.schema({**kinds, "problem": pa.string()}))


def compare(
    interest: Interest,
    *,
    channels: int | Sequence[int],
    methods: Iterable[str] | None = None,
    seed: int = 0,
    params: Mapping[str, Any] | None = None,
    costs: Iterable[str] | None = None,
    network: NetworkTables = NO_NETWORK,
    boxes: tuple[Doubles, Doubles] | None = None,
    cost_params: Mapping[str, Any] | None = None,
    replay: Callable[[Mapping[str, tuple[ChannelPlan, str]]], ReplayResult] | None = None,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> Comparison:
    """Make a plan by every method, each in its own process, and compare their costs.

    A method that fails is listed with the reason, and does not affect the others. The baselines `unicast`,
    `broadcast`, `per-flow`, `hash` and the ideal are always included.

    Parameters
    ----------
    interest
        The interest to plan for. Subscribers without interest are only in the plans of `broadcast` and of
        methods that cluster subscribers; they count in the costs of these and of flooding. Subscribers
        without interest that are on no node of the network are left out, since nothing can be sent to them.
    channels
        The maximum number of channels; with several numbers, each is tried.
    methods
        Names in `PLANNERS`. Default: all methods, except those that need boxes or choose among others.
    seed
        Seed of all methods.
    params
        Parameters of the methods; each method gets those that it accepts.
    costs
        Names of costs. Default: all costs whose inputs are given.
    network
        The network, for methods and costs that use one.
    boxes
        The lower and upper ends of the subscribers' bounding boxes, for methods that use them; rows are in
        the order of the interest.
    cost_params
        Parameters of the costs; each cost gets those that it accepts.
    replay
        Called once with all plans, each with its method: replays events with them. On a network, rows are
        then ordered by the cost of this replay.
    on_progress
        Called before each step with its name, the number of finished steps and their total.

    Raises
    ------
    ParameterError
        When a method or parameter is unknown or out of range, or there is no cost to compare.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> found = compare(Interest([[1, 1, 0], [0, 1, 1]]), channels=2, methods=["pairwise"])
    >>> [(row.method, row.costs["waste"].total) for row in found.rows[2:]]
    [('unicast', 0.0), ('pairwise', 1.0), ('broadcast', 2.0), ('hash', 2.0)]
    """
    counts = counts_of(channels)
    chosen = methods_of(methods, params or {})
    models = COSTS.made(costs, **{**network.given, **(cost_params or {})})
    names = tuple(sorted(models, key=lambda name: ([name != first for first in _FIRST], name)))
    if not names:
        raise ParameterError(
            "costs is empty: must have at least one name; leave it out for all costs",
            parameter="costs",
            value=costs,
            limit="at least one name",
        )
    kept = np.flatnonzero(network.located(interest.subscribers) | (np.diff(interest.wants.indptr) > 0))
    if len(kept) < interest.n_subscribers:
        subscribers = interest.subscribers.take(kept)
        interest = Interest(interest.wants[kept], interest.rate, subscribers, interest.flows)
        boxes = None if boxes is None else (boxes[0][kept], boxes[1][kept])
    # The ideal comes first, because an error in the network would fail all methods.
    ideal = {name: models[name].ideal(interest) for name in names}
    rows = [ComparedMethod(IDEAL, costs=ideal, excess_share=excess_share(ideal, interest.n_subscribers))]
    candidates: list[tuple[str, int | None, Planner]] = []
    for method in chosen:
        own = {name: value for name, value in (params or {}).items() if name in parameters_of(method)}
        fixed = PLANNERS[method].capabilities.clusters == "nothing"
        for count in counts[:1] if fixed else counts:
            try:
                planner = make_planner(
                    method, channels=count, seed=seed, params=own, network=network, boxes=boxes
                )
            except ParameterError as error:
                rows.append(ComparedMethod(method, count, problem=str(error)))
                continue
            candidates.append((method, None if fixed else count, planner))
    made: dict[str, tuple[ChannelPlan, str]] = {}
    with closing(trials(interest, [planner for *_, planner in candidates])) as results:
        for done, (method, asked, _) in enumerate(candidates):
            if on_progress is not None:
                on_progress(method, done, len(candidates))
            trial = next(results)
            plan = trial.plan
            scores = {} if plan is None else {name: models[name].score(interest, plan) for name in names}
            rows.append(_row(method, asked, trial, scores, interest))
            if plan is not None and replay is not None:
                made[_key(rows[-1])] = plan, trial.method or method
    replayed = None
    if replay is not None:
        if on_progress is not None:
            on_progress("replay", len(candidates), len(candidates))
        replayed = replay(made)
        found = {**replayed.plans, IDEAL: replayed.baselines[IDEAL]}
        rows = [dataclasses.replace(row, replayed=found.get(_key(row))) for row in rows]
    rows.sort(key=lambda row: _rank(row, names[0]))
    return Comparison(names, tuple(rows), replayed)


def counts_of(channels: int | Sequence[int]) -> list[int]:
    """Check numbers of channels, and return them as a list.

    Examples
    --------
    >>> counts_of(11), counts_of([11, 61])
    ([11], [11, 61])
    """
    counts = [channels] if isinstance(channels, int) else list(channels)
    for count in counts:
        check_channels(count)
    if not counts or len(set(counts)) < len(counts):
        raise ParameterError(parameter="channels", value=counts, limit="one number or several distinct ones")
    return counts


def methods_of(methods: Iterable[str] | None, params: Mapping[str, Any]) -> list[str]:
    """Check the names of methods and parameters, and return the methods to compare, baselines included.

    Examples
    --------
    >>> methods_of(["mst"], {"top": 9})
    ['unicast', 'broadcast', 'per-flow', 'hash', 'mst']
    """
    named = planners(boxes=False, chooses=False) if methods is None else list(dict.fromkeys(methods))
    for name in named:
        if name != IDEAL:
            PLANNERS[name]
    chosen = [name for name in dict.fromkeys([*ALWAYS, *named]) if name != IDEAL]
    known = sorted({name for method in chosen for name in parameters_of(method)})
    for name in params:
        if name in COMMON:
            raise ParameterError(
                f"{name} must not be in the parameters of methods; pass {name} as its own argument",
                parameter=name,
                value=params[name],
            )
        if name not in known:
            raise ParameterError(
                f"unknown parameter {name!r} of the methods {', '.join(chosen)}; known parameters: "
                f"{', '.join(known) or 'none'}",
                parameter=name,
                value=params[name],
            )
    return chosen


def _row(
    method: str, asked: int | None, trial: PlannerTrial, costs: Mapping[str, Cost], interest: Interest
) -> ComparedMethod:
    """Return the result of a method with a limit on channels, from its trial and the costs of its plan."""
    if trial.plan is None:
        return ComparedMethod(method, asked, problem=trial.problem)
    return ComparedMethod(
        method,
        asked,
        channels=trial.plan.n_used,
        costs=costs,
        excess_share=excess_share(costs, interest.n_subscribers),
        direct_share=_direct_share(interest, trial.plan),
        balance=trial.plan.balance(),
        seconds=trial.seconds,
        peak_mb=trial.megabytes,
    )


def _direct_share(interest: Interest, plan: ChannelPlan) -> float:
    """Return the share of the wanted messages that a plan sends directly."""
    wanted = float(interest.rate @ interest.audience())
    sent = float(np.sum(plan.rate_of_flows(interest)[plan.unicast.indices]))
    return sent / wanted if wanted else 0.0


def _key(row: ComparedMethod) -> str:
    """Return a unique name for a method with a limit on channels: its name, and the number if given."""
    return row.method if row.asked is None else f"{row.method} {row.asked}"


def _rank(row: ComparedMethod, cost: str) -> tuple[Any, ...]:
    """Return the sort key of a method's result: the ideal first, then by cost, failed methods last."""
    total = row.costs[cost].total if row.costs else 0.0
    if row.replayed is not None and row.replayed.improvement_pct is not None:
        total = row.replayed.cost
    return (not row.costs, row.method != IDEAL, total, row.method, row.asked or 0)
