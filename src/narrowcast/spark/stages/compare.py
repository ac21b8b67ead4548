"""All methods beside each other on one interest: what their plans cost, and what it takes to make them."""

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
from narrowcast.spark.stages.network import NOWHERE, NetworkTables
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

#: What is always there to compare with; `ideal` is no plan but what none can beat.
ALWAYS = ("unicast", "broadcast", "per-flow", "hash")
IDEAL = "ideal"
#: What rows are ordered by: the first of these that there is, else the first by name.
_FIRST = ("network", "waste")
#: What files have of replayed events, the two that are no counts first.
_REPLAYED = ("cost", "improvement_pct", "direct_messages", "wasted")


@dataclass(frozen=True, slots=True)
class ComparedMethod:
    """A method with so many channels.

    Parameters
    ----------
    method
        Its name.
    asked
        The most channels that it was given; None where the number changes nothing.
    channels
        How many of them carry a flow.
    costs
        By the cost model's name; none where it failed.
    excess_share
        The excess of the cost `filtering` as a share of that of flooding; None without that cost.
    direct_share
        The share of the wanted messages that is sent directly, over no channel.
    seconds, peak_mb
        What `PlannerTrial` has: how long making the plan took, and how much memory, in 10**6 bytes.
    problem
        Why it failed; empty where it did not.
    replayed
        What came of events that were sent by its plan, where there were any.
    balance
        How many times the mean the largest channel has members: see `ChannelPlan.balance`.
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
        """How far the network cost is from all sent directly, 0, to the ideal, 100; None without one."""
        return self.costs["network"].terms["improvement_pct"] if "network" in self.costs else None

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
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
    """Methods beside each other.

    Parameters
    ----------
    costs
        The names of the costs, the one that rows are ordered by first.
    rows
        The cheapest first, those that failed last.
    replayed
        What came of events that were sent by the plans, where there were any.
    """

    costs: tuple[str, ...]
    rows: tuple[ComparedMethod, ...]
    replayed: ReplayResult | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        replayed = None if self.replayed is None else self.replayed.facts()
        return {
            "costs": list(self.costs),
            "rows": [row.to_dict() for row in self.rows],
            "replay": replayed,
        }

    def to_table(self) -> pa.Table:
        """Return a row for each method, and a column for the total of each cost."""
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
            said = row.to_dict()
            again = said["replayed"] or {}
            rows.append(
                {
                    **said,
                    **{name: cost["total"] for name, cost in said["costs"].items()},
                    **{f"replayed_{name}": again.get(name) for name in _REPLAYED},
                    "router": again.get("router"),
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
    network: NetworkTables = NOWHERE,
    boxes: tuple[Doubles, Doubles] | None = None,
    cost_params: Mapping[str, Any] | None = None,
    replay: Callable[[Mapping[str, tuple[ChannelPlan, str]]], ReplayResult] | None = None,
    tell: Callable[[str, int, int], None] | None = None,
) -> Comparison:
    """Make a plan by every method, each in a process of its own, and return what they cost.

    A method that fails is told with the reason, and the others go on. What is always there: `unicast`,
    `broadcast`, `per-flow` and `hash` within the same channels, and the ideal.

    Parameters
    ----------
    interest
        Who wants what. Who wants nothing is only in the plans of `broadcast` and of methods that cluster
        subscribers, and counts there and in what flooding brings, but for somebody who is on no node of the
        network: nothing can be sent there.
    channels
        The most channels; of several numbers each is tried.
    methods
        Names of `PLANNERS`; where left out all, but those that plan by boxes or choose among others.
    seed
        Of what methods leave to chance.
    params
        Parameters of methods; each gets those that it has.
    costs
        Names of costs; all that what is given suffices for where left out.
    network
        For the methods and costs that take one.
    boxes
        The lower and the upper ends of the boxes of subscribers, a row for each in the order of the interest,
        for methods that plan by them.
    cost_params
        Parameters of costs; each gets those that it has.
    replay
        Called once with all plans and the method of each: sends events by them. On a network, rows are then
        ordered by what that costs.
    tell
        Called with what is done next, how much is done, and how much there is.

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
        raise ParameterError("there is no cost to compare by; name one, or leave costs out")
    some = np.flatnonzero(network.located(interest.subscribers) | (np.diff(interest.wants.indptr) > 0))
    if len(some) < interest.n_subscribers:
        people = interest.subscribers.take(some)
        interest = Interest(interest.wants[some], interest.rate, people, interest.flows)
        boxes = None if boxes is None else (boxes[0][some], boxes[1][some])
    # First of all: what is wrong with a network is wrong for all methods.
    ideal = {name: models[name].ideal(interest) for name in names}
    rows = [ComparedMethod(IDEAL, costs=ideal, excess_share=excess_share(ideal, interest.n_subscribers))]
    trying: list[tuple[str, int | None, Planner]] = []
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
            trying.append((method, None if fixed else count, planner))
    made: dict[str, tuple[ChannelPlan, str]] = {}
    with closing(trials(interest, [planner for *_, planner in trying])) as results:
        for done, (method, asked, _) in enumerate(trying):
            if tell is not None:
                tell(method, done, len(trying))
            trial = next(results)
            plan = trial.plan
            scores = {} if plan is None else {name: models[name].score(interest, plan) for name in names}
            rows.append(_row(method, asked, trial, scores, interest))
            if plan is not None and replay is not None:
                made[_key(rows[-1])] = plan, trial.method or method
    replayed = None
    if replay is not None:
        if tell is not None:
            tell("replay", len(trying), len(trying))
        replayed = replay(made)
        found = {**replayed.plans, IDEAL: replayed.baselines[IDEAL]}
        rows = [dataclasses.replace(row, replayed=found.get(_key(row))) for row in rows]
    rows.sort(key=lambda row: _rank(row, names[0]))
    return Comparison(names, tuple(rows), replayed)


def counts_of(channels: int | Sequence[int]) -> list[int]:
    """Return the numbers of channels that `compare` tries, once it is sure that there can be so many.

    Examples
    --------
    >>> counts_of(11), counts_of([11, 61])
    ([11], [11, 61])
    """
    counts = [channels] if isinstance(channels, int) else list(channels)
    for count in counts:
        check_channels(count)
    if not counts or len(set(counts)) < len(counts):
        raise ParameterError(f"channels is {counts}; give one number, or several that differ")
    return counts


def methods_of(methods: Iterable[str] | None, params: Mapping[str, Any]) -> list[str]:
    """Return the methods that `compare` tries, once it is sure that they and their parameters are known.

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
            raise ParameterError(f"{name} is among the parameters of methods; give it as {name} itself")
        if name not in known:
            raise ParameterError(
                f"no method compared has a parameter {name!r}; they have: {', '.join(known) or 'none'}"
            )
    return chosen


def _row(
    method: str, asked: int | None, trial: PlannerTrial, costs: Mapping[str, Cost], interest: Interest
) -> ComparedMethod:
    """Return what came of a method as a row."""
    if trial.plan is None:
        return ComparedMethod(method, asked, problem=trial.problem)
    return ComparedMethod(
        method,
        asked,
        channels=trial.plan.n_used,
        costs=costs,
        excess_share=excess_share(costs, interest.n_subscribers),
        direct_share=_direct(interest, trial.plan),
        balance=trial.plan.balance(),
        seconds=trial.seconds,
        peak_mb=trial.megabytes,
    )


def _direct(interest: Interest, plan: ChannelPlan) -> float:
    """Return the share of the wanted messages that a plan sends directly."""
    wanted = float(interest.rate @ interest.audience())
    sent = float(np.sum(plan.rate_of_flows(interest)[plan.unicast.indices]))
    return sent / wanted if wanted else 0.0


def _key(row: ComparedMethod) -> str:
    """Return what tells a row from others."""
    return row.method if row.asked is None else f"{row.method} {row.asked}"


def _rank(row: ComparedMethod, cost: str) -> tuple[Any, ...]:
    """Return what rows are ordered by: the ideal, then by cost, those that failed last."""
    total = row.costs[cost].total if row.costs else 0.0
    if row.replayed is not None and row.replayed.improvement_pct is not None:
        total = row.replayed.cost
    return (not row.costs, row.method != IDEAL, total, row.method, row.asked or 0)
