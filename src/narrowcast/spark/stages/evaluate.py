"""Evaluation of a plan on Spark: its costs on the full interest, compared with baselines.

Flows are divided into blocks: a block is a set of flows, with their rates and interested subscribers. A
worker computes the costs of the plan and of the baselines on one block, with the same cost models as on the
driver; these costs are called scores, and are added up over all blocks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.costs.base import COSTS
from narrowcast.costs.false_positives import FalsePositives
from narrowcast.costs.filtering import Filtering
from narrowcast.errors import ParameterError, PlanError
from narrowcast.model.cost import Cost
from narrowcast.model.interest import Interest
from narrowcast.model.labels import encode, labels_in
from narrowcast.model.ownership import by_subscription
from narrowcast.model.plan import ChannelPlan
from narrowcast.model.relation import relation_of, rows_of
from narrowcast.planning.baselines.simple import Hash, PerFlow, Unicast
from narrowcast.spark.arrow_batches import chunks
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.blocks import FlowBlocks, add_block, copy_to_blocks, split_channel_listeners
from narrowcast.spark.stages.broadcast_variable import broadcast_value
from narrowcast.spark.stages.interest_collection import LIMIT, to_interest
from narrowcast.spark.stages.network import NO_NETWORK, NetworkTables
from narrowcast.spark.stages.ownership import bring_owners
from narrowcast.validation import check_channels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark import Broadcast
    from pyspark.sql import DataFrame

    from narrowcast.costs.base import CostModel
    from narrowcast.model.labels import Labels
    from narrowcast.model.relation import Positions
    from narrowcast.spark.stages.interest import InterestFrames

#: The baselines that a plan is compared with; `ideal` is not a plan but a lower bound of all plans.
BASELINES = ("unicast", "broadcast", "per-flow", "hash", "ideal")
#: Approximate number of pairs and flows in a block. It does not depend on the cluster, so that sums do not.
BLOCK = 1_000_000
#: The maximum number of groups of hash channels.
GROUPS = 4096

#: The name of the plan among the scores; no baseline has it.
_OWN = ""
_SCORES = "method string, cost string, term string, value double"
_COUNTS = "group bigint, rows bigint, missed bigint"

#: A method, a cost, a term and its value. Without a term the value is the total; without a cost it is the
#: number of channels in use. Those of `hash` are listed one by one, because several blocks can use the same
#: channel.
Score: TypeAlias = tuple[str, str | None, str | None, float]


@dataclass(frozen=True, slots=True)
class ScoredPlan:
    """The costs of one plan or baseline.

    Parameters
    ----------
    channels
        Number of channels that carry a flow; None for the ideal, which has no channels.
    costs
        Costs by the name of the cost model.
    excess_share
        The excess of the cost `filtering` as a share of that of flooding; None without that cost.
    """

    channels: int | None
    costs: Mapping[str, Cost]
    excess_share: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        costs = {name: {"total": cost.total, "terms": dict(cost.terms)} for name, cost in self.costs.items()}
        return {"channels": self.channels, "costs": costs, "excess_share": self.excess_share}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The costs of a plan and of the baselines.

    Parameters
    ----------
    name
        Name of the plan in `methods`.
    n_pairs
        Number of wanted pairs of subscriber and flow; the plan serves all of them.
    methods
        Costs by name: the plan first, then the baselines.

    Examples
    --------
    >>> found = Evaluation("mine", 3, {"mine": ScoredPlan(2, {"waste": Cost(1.0)})})
    >>> found.to_dict()["methods"]["mine"]["costs"]
    {'waste': {'total': 1.0, 'terms': {}}}
    """

    name: str
    n_pairs: int
    methods: Mapping[str, ScoredPlan]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        methods = {name: scored.to_dict() for name, scored in self.methods.items()}
        return {"name": self.name, "pairs": self.n_pairs, "methods": methods}


def false_exclusions(frames: InterestFrames, plan: ChannelPlan) -> DataFrame:
    """Return the wanted pairs `subscriber`, `flow` that a plan does not serve, in no particular order.

    This is `ChannelPlan.false_exclusions` on Spark: the pairs are not collected on the driver.
    """
    interests = frames.interests.select("subscriber", "flow")
    return _unserved(interests, interests.sparkSession.sparkContext.broadcast(plan))


def evaluate(
    frames: InterestFrames,
    plan: ChannelPlan,
    *,
    name: str,
    channels: int | None = None,
    costs: Iterable[str] | None = None,
    network: NetworkTables = NO_NETWORK,
    params: Mapping[str, Any] | None = None,
    limit: int = LIMIT,
    block_size: int = BLOCK,
) -> Evaluation:
    """Check that a plan serves every wanted pair, and return its costs and those of the baselines.

    The interest is read three times, or four when a hash channel is larger than a block, so store it instead
    of computing it on demand. When the frames list all subscribers, `broadcast` and the flooding of
    `excess_share` also reach those without interest. A worker holds the plan, the names of all subscribers,
    and a block or the audience of one flow, whichever is larger. For flows that are events, costs are those
    of these past events, sent as `carries` assigns them.

    Parameters
    ----------
    frames
        The interest.
    plan
        The plan to evaluate; it may have been made from another interest.
    name
        Name of the plan in the result. If a baseline has the same name and other costs, ", as planned" is
        appended.
    channels
        Number of channels of the baseline `hash`. Default: as many as the plan, at least 1.
    costs
        Names of cost models. Default: all whose inputs are given; beyond `limit` pairs, without those that
        are not additive and need no inputs.
    network
        The network, for costs that need one.
    params
        Parameters of costs; each cost gets those that it accepts.
    limit
        Maximum number of wanted pairs on the driver, for cost models that are not additive.
    block_size
        Approximate number of pairs and flows that a worker scores at once, at least 1.

    Raises
    ------
    PlanError
        When the plan does not serve a wanted pair; the message has the number of such pairs and three of
        them.
    ParameterError
        When a parameter is out of range.
    """
    channels = max(1, plan.n_groups) if channels is None else channels
    check_channels(channels)
    if block_size < 1:
        raise ParameterError(parameter="block_size", value=block_size, limit="at least 1")
    models = COSTS.made(costs, **{**network.given, **(params or {})})
    spark = frames.interests.sparkSession
    with plainly("evaluate the plan"), broadcast_value(spark, plan) as shared_plan:
        n_pairs, sizes = _check_served(frames, shared_plan, channels)
        blocks = FlowBlocks.of_sizes(sizes, channels, block_size)
        if costs is None and n_pairs > limit:
            models = {each: model for each, model in models.items() if model.additive or COSTS.needs(each)}
        additive = {each: model for each, model in models.items() if model.additive}
        subscribers = _broadcast_audience(frames, plan, network)
        scores = _score_blocks(frames, shared_plan, blocks, subscribers, additive)
    if others := {each: model for each, model in models.items() if not model.additive}:
        interest = to_interest(frames, limit=limit)
        plans = _plans(interest, plan, subscribers, channels)
        scores += [score for score in _scores(interest, plans, others) if score[1] is not None]
    return _evaluation(scores, name, plan, n_pairs, len(subscribers), models)


def false_positives_by_subscription(frames: InterestFrames, plan: ChannelPlan) -> float:
    """Check that a plan serves every subscription, and count the unwanted deliveries to subscriptions.

    The result is the number of pairs of a flow and a subscription that it reaches without being wanted. A
    subscription is reached over its own channel if the plan assigns one to each subscription, otherwise over
    all channels of its subscriber. The same count by subscriber is the cost `false-positives`.

    Parameters
    ----------
    frames
        The interest of each subscription: `from_matches` with ``by="subscription"``.
    plan
        A plan for the subscribers that own the subscriptions.

    Raises
    ------
    PlanError
        When a subscription wants a flow that its own channel does not carry.
    """
    assert frames.owners is not None
    subscription_plan = by_subscription(plan, *bring_owners(frames.owners))
    interests = frames.interests.select("subscriber", "flow")
    one_group = FlowBlocks(1, np.zeros(1, np.int64), np.ones(1, np.int64))
    with (
        plainly("evaluate the plan"),
        broadcast_value(interests.sparkSession, subscription_plan) as shared_plan,
    ):
        pairs, missed = _counts(interests, one_group, shared_plan)
        if missed.any():
            _refuse(_unserved(interests, shared_plan), int(missed.sum()), int(pairs.sum()), frames.rows)
        rates = frames.rates.select("flow", "rate").toArrow()
    flows = labels_in(rates, "flow", "rates")
    # An interest without subscribers gives the receptions of all flows; each wanted pair is one of them.
    no_subscribers = Interest(np.zeros((0, len(flows))), rates["rate"].to_numpy(), flows=flows)
    receptions = FalsePositives().score(no_subscribers, subscription_plan).terms["receptions"]
    return receptions - float(pairs.sum())


def _unserved(interests: DataFrame, plan: Broadcast[ChannelPlan]) -> DataFrame:
    """Return the wanted pairs that a plan does not serve."""
    return interests.mapInArrow(partial(_find_unserved, plan=plan), interests.schema)


def _find_unserved(
    batches: Iterator[pa.RecordBatch], plan: Broadcast[ChannelPlan]
) -> Iterator[pa.RecordBatch]:
    for table in chunks(batches):
        yield from _unserved_in(plan.value, table).to_batches()


def _unserved_in(plan: ChannelPlan, pairs: pa.Table) -> pa.Table:
    return plan.false_exclusions(Interest.from_tables(pairs))


def _check_served(
    frames: InterestFrames, plan: Broadcast[ChannelPlan], channels: int
) -> tuple[int, Positions]:
    """Check that a plan serves every wanted pair of a subscriber and a flow.

    Returns the number of wanted pairs, and the number of pairs and flows in each group of hash channels.
    """
    n_groups = min(channels, GROUPS)
    groups = FlowBlocks(channels, np.arange(n_groups), np.ones(n_groups, np.int64))
    interests = frames.interests.select("subscriber", "flow")
    pairs, missed = _counts(interests, groups, plan)
    if missed.any():
        _refuse(_unserved(interests, plan), int(missed.sum()), int(pairs.sum()), frames.rows)
    flows, _ = _counts(frames.rates.select("flow"), groups, None)
    return int(pairs.sum()), pairs + flows


def _counts(
    rows: DataFrame, groups: FlowBlocks, plan: Broadcast[ChannelPlan] | None
) -> tuple[Positions, Positions]:
    """Count the rows of each group of hash channels, and the wanted pairs that the plan does not serve."""
    from pyspark.sql import functions as sf

    counts = rows.mapInArrow(partial(_count, groups=groups, plan=plan), _COUNTS).groupBy("group")
    found = counts.agg(sf.sum("rows").alias("rows"), sf.sum("missed").alias("missed")).toArrow()
    total = np.zeros((2, len(groups.first)), np.int64)
    total[:, found["group"].to_numpy()] = [found["rows"].to_numpy(), found["missed"].to_numpy()]
    return total[0], total[1]


def _count(
    batches: Iterator[pa.RecordBatch], groups: FlowBlocks, plan: Broadcast[ChannelPlan] | None
) -> Iterator[pa.RecordBatch]:
    """Count, in one partition, the rows of each group of hash channels and the wanted pairs not served."""
    for table in chunks(batches):
        missed = table.slice(0, 0) if plan is None else _unserved_in(plan.value, table)
        counts = [
            np.bincount(groups.place(labels_in(each, "flow", "interests"))[0], minlength=len(groups.first))
            for each in (table, missed)
        ]
        some = np.flatnonzero(counts[0])
        columns = [some, *(count[some] for count in counts)]
        yield pa.RecordBatch.from_arrays(list(map(pa.array, columns)), names=["group", "rows", "missed"])


def _refuse(missed: DataFrame, n_missed: int, n_pairs: int, kind: str) -> NoReturn:
    """Raise an error with the number of wanted pairs that a plan does not serve, and examples of them.

    `kind` is what the column `subscriber` contains: subscribers or subscriptions.
    """
    first = ", ".join(
        f"{kind} {row.subscriber!r} wants flow {row.flow!r}"
        for row in missed.orderBy("subscriber", "flow").limit(3).collect()
    )
    raise PlanError(
        f"{n_missed} of {n_pairs} wanted pairs are not served: {first}; "
        "plan again for this interest, or serve these pairs by unicast",
        parameter="plan",
        value=n_missed,
        limit="a plan that serves all wanted pairs",
    )


def _broadcast_audience(frames: InterestFrames, plan: ChannelPlan, network: NetworkTables) -> Labels:
    """Return the subscribers that a broadcast reaches: all known ones, and those of the plan.

    Subscribers without interest that are on no node of the network are left out: nothing can be sent there.
    """
    wanting = frames.interests.select("subscriber").distinct().toArrow()
    # They fit on the driver: the plan serves all of them, so it has at least as many subscribers.
    found = labels_in(wanting, "subscriber", "interests")
    if frames.subscribers is None:
        return found
    known = labels_in(frames.subscribers.select("subscriber").toArrow(), "subscriber", "subscribers")
    both, [wants, *_] = encode("subscriber", found, known, plan.subscribers)
    reached = network.located(both)
    reached[wants] = True
    return both.take(np.flatnonzero(reached))


def _score_blocks(
    frames: InterestFrames,
    plan: Broadcast[ChannelPlan],
    blocks: FlowBlocks,
    subscribers: Labels,
    models: Mapping[str, CostModel],
) -> list[Score]:
    """Compute in workers the costs of the plan and the baselines on each block of flows, and collect them."""
    interests, rates = frames.interests.select("subscriber", "flow"), frames.rates.select("flow", "rate")
    flow, subscriber = (interests.schema[each].dataType.simpleString() for each in ("flow", "subscriber"))
    place = partial(add_block, blocks=blocks)
    left = rates.mapInArrow(place, f"block bigint, flow {flow}, rate double")
    right = interests.mapInArrow(place, f"block bigint, subscriber {subscriber}, flow {flow}")
    if (blocks.count > 1).any():
        listeners = interests.mapInArrow(
            partial(split_channel_listeners, blocks=blocks), f"subscriber {subscriber}, channel bigint"
        )
        copies = listeners.distinct().mapInArrow(
            partial(copy_to_blocks, blocks=blocks), f"block bigint, subscriber {subscriber}, channel bigint"
        )
        right = right.unionByName(copies, allowMissingColumns=True)
    with broadcast_value(interests.sparkSession, subscribers) as names:
        work = partial(_score, plan=plan, subscribers=names, channels=blocks.channels, models=dict(models))
        found = left.groupBy("block").cogroup(right.groupBy("block")).applyInArrow(work, _SCORES).collect()
    if not found:
        empty = Interest(np.zeros((0, 0)))
        return list(_scores(empty, _plans(empty, plan.value, subscribers, blocks.channels), models))
    return [(row.method, row.cost, row.term, row.value) for row in found]


def _score(
    left: pa.Table,
    right: pa.Table,
    *,
    plan: Broadcast[ChannelPlan],
    subscribers: Broadcast[Labels],
    channels: int,
    models: Mapping[str, CostModel],
) -> pa.Table:
    """Return the costs of the plan and the baselines on one block of flows.

    `left` has the flows of the block and their rates. `right` has their wanted pairs, and the listeners
    (subscriber, channel) of those hash channels whose flows are in several blocks.
    """
    listeners = None
    if "channel" in right.column_names:
        listeners = right.filter(pc.is_valid(right["channel"]))
        right = right.filter(pc.is_null(right["channel"]))
    interest = Interest.from_tables(right, left)
    plans = _plans(interest, plan.value, subscribers.value, channels, listeners)
    rows = list(_scores(interest, plans, models))
    names = ["method", "cost", "term", "value"]
    kinds = [pa.string(), pa.string(), pa.string(), pa.float64()]
    return pa.table([pa.array(*each) for each in zip(zip(*rows, strict=True), kinds, strict=True)], names)


def _plans(
    interest: Interest,
    plan: ChannelPlan,
    subscribers: Labels,
    channels: int,
    listeners: pa.Table | None = None,
) -> dict[str, ChannelPlan]:
    """Return the plan and the baselines for the flows of an interest: one block of flows, or all flows.

    `subscribers` are those of all blocks. `listeners` (subscriber, channel) are those of hash channels that
    this block shares with others.
    """
    flows = interest.flows
    return {
        _OWN: plan,
        "unicast": Unicast().fit(interest).plan_,
        "broadcast": ChannelPlan(
            np.ones((len(flows), 1)), np.ones((len(subscribers), 1)), subscribers=subscribers, flows=flows
        ),
        "per-flow": PerFlow().fit(interest).plan_,
        "hash": _hash_plan(interest, channels, listeners),
    }


def _hash_plan(interest: Interest, channels: int, listeners: pa.Table | None) -> ChannelPlan:
    """Return the plan of the baseline `Hash`; `listeners` join channels that have flows in other blocks."""
    plan = Hash(channels=channels).fit(interest).plan_
    if listeners is None or listeners.num_rows == 0:
        return plan
    more = labels_in(listeners, "subscriber", "listeners")
    subscribers, [own, other] = encode("subscriber", plan.subscribers, more)
    row = np.append(own[rows_of(plan.listens)], other)
    channel = np.append(plan.listens.indices, listeners["channel"].to_numpy())
    listens = relation_of(row, channel, (len(subscribers), channels))
    return ChannelPlan(plan.carries, listens, subscribers=subscribers, flows=plan.flows)


def _scores(
    interest: Interest, plans: Mapping[str, ChannelPlan], models: Mapping[str, CostModel]
) -> Iterator[Score]:
    """Yield, for each plan and the ideal, the number of channels in use and each term of each cost."""
    yield "per-flow", None, None, plans["per-flow"].n_groups
    for channel in np.unique(plans["hash"].carries.indices).tolist():
        yield "hash", None, str(channel), 1.0
    for cost, model in models.items():
        scored = {method: model.score(interest, plan) for method, plan in plans.items()}
        for method, found in {**scored, "ideal": model.ideal(interest)}.items():
            yield method, cost, None, found.total
            for term, value in found.terms.items():
                yield method, cost, term, value


def _evaluation(
    scores: Iterable[Score],
    name: str,
    plan: ChannelPlan,
    n_pairs: int,
    n_subscribers: int,
    costs: Iterable[str],
) -> Evaluation:
    """Add up the costs of all blocks; `name` is the name of the plan in the result."""
    parts: dict[tuple[str, str | None, str | None], list[float]] = defaultdict(list)
    for method, cost, term, value in scores:
        parts[method, cost, term].append(value)
    # The exact sum, rounded once, does not depend on the order of blocks.
    total = {key: math.fsum(values) for key, values in parts.items()}
    terms: dict[tuple[str, str | None], dict[str, float]] = defaultdict(dict)
    for (method, cost, term), value in total.items():
        if term is not None:
            terms[method, cost][term] = value
    used = {_OWN: plan.n_used, "unicast": 0, "hash": len(terms["hash", None])}
    used["broadcast"] = min(1, used["hash"])
    used["per-flow"] = int(total["per-flow", None, None])
    methods = {}
    for method in (_OWN, *BASELINES):
        found = {cost: Cost(total[method, cost, None], terms[method, cost]) for cost in costs}
        methods[method] = ScoredPlan(used.get(method), found, excess_share(found, n_subscribers))
    own = methods.pop(_OWN)
    if name in methods and not _alike(own, methods[name]):
        name = f"{name}, as planned"
    return Evaluation(name, n_pairs, {name: own} | {n: m for n, m in methods.items() if n != name})


def excess_share(costs: Mapping[str, Cost], n_subscribers: int) -> float | None:
    """Return the excess of the cost `filtering` as a share of that of flooding; None without that cost."""
    return Filtering.share(costs["filtering"], n_subscribers) if "filtering" in costs else None


def _alike(one: ScoredPlan, other: ScoredPlan) -> bool:
    """Return whether two plans have the same channels and costs, up to rounding."""
    if one.channels != other.channels:
        return False
    pairs = [(cost, other.costs[name]) for name, cost in one.costs.items()]
    return all(
        math.isclose(here, there, rel_tol=1e-9, abs_tol=1e-9)
        for cost, like in pairs
        for here, there in [(cost.total, like.total), *((v, like.terms[k]) for k, v in cost.terms.items())]
    )
