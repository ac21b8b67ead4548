"""What a plan costs on the full data, against plans that need no planning.

The flows are cut into blocks. A block holds some of the flows, all who want them, and their rates; it is
scored in a worker by the same cost models that score an interest on the driver, and the blocks add up.
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
from narrowcast.spark.stages.blocks import FlowBlocks, copies, members, placed
from narrowcast.spark.stages.broadcast_variable import shipped
from narrowcast.spark.stages.interest_collection import LIMIT, to_interest
from narrowcast.spark.stages.network import NOWHERE, NetworkTables
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

#: What every plan is compared with; `ideal` is no plan but what none can beat.
BASELINES = ("unicast", "broadcast", "per-flow", "hash", "ideal")
#: Pairs and flows in a block, about; it comes from the data alone, so that every cluster sums alike.
BLOCK = 1_000_000
#: The most groups of hash channels that blocks are made of.
GROUPS = 4096

#: The plan among the scores: a name that no baseline has.
_OWN = ""
_SCORES = "method string, cost string, term string, value double"
_COUNTS = "group bigint, rows bigint, missed bigint"

#: A method, a cost, a term and its value; without a term the total, without a cost the channels in use, those
#: of `hash` one by one, as parts of the flows may share them.
Score: TypeAlias = tuple[str, str | None, str | None, float]


@dataclass(frozen=True, slots=True)
class ScoredPlan:
    """What one way of sending costs.

    Parameters
    ----------
    channels
        How many of its channels carry a flow; None for the ideal, which has none.
    costs
        By the cost model's name.
    excess_share
        The excess of the cost `filtering` as a share of that of flooding; None without that cost.
    """

    channels: int | None
    costs: Mapping[str, Cost]
    excess_share: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        costs = {name: {"total": cost.total, "terms": dict(cost.terms)} for name, cost in self.costs.items()}
        return {"channels": self.channels, "costs": costs, "excess_share": self.excess_share}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a plan costs, and what the baselines would.

    Parameters
    ----------
    name
        Which of `methods` is the plan.
    n_pairs
        How many wanted pairs there are, all of them served.
    methods
        The plan first, then the baselines.

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
        """Return it as JSON has it."""
        methods = {name: scored.to_dict() for name, scored in self.methods.items()}
        return {"name": self.name, "pairs": self.n_pairs, "methods": methods}


def false_exclusions(frames: InterestFrames, plan: ChannelPlan) -> DataFrame:
    """Return the pairs (subscriber, flow) that are wanted and that nothing serves.

    The same as `ChannelPlan.false_exclusions`, in no order; pairs are looked at where they are.
    """
    interests = frames.interests.select("subscriber", "flow")
    return _missed(interests, interests.sparkSession.sparkContext.broadcast(plan))


def evaluate(
    frames: InterestFrames,
    plan: ChannelPlan,
    *,
    name: str,
    channels: int | None = None,
    costs: Iterable[str] | None = None,
    network: NetworkTables = NOWHERE,
    params: Mapping[str, Any] | None = None,
    limit: int = LIMIT,
    block_size: int = BLOCK,
) -> Evaluation:
    """Return every cost of a plan and of the baselines, once it is sure that the plan serves everybody.

    The interest is read three times, four times when a hash channel is larger than a block, so it is better
    stored than computed on demand. Where the frames know all subscribers, `broadcast` reaches those who want
    none of the flows as well, and so does the flooding that an excess is a share of. A worker holds the plan,
    the names of all subscribers, and a block or the audience of one flow, whichever is larger. For flows that
    are events, costs are those of the history given: each event goes where `carries` says, which for events
    to come is not known yet.

    Parameters
    ----------
    frames
        Who wants what, and the rates.
    plan
        What to evaluate; it need not be made from this interest.
    name
        What to call it. Where a baseline has that name and costs otherwise, "as planned" is added.
    channels
        How many channels the baseline `hash` has; as many as the plan where left out, at least 1.
    costs
        Names of cost models; all that what is given suffices for where left out. Beyond `limit` pairs those
        that need nothing to be given, but all pairs at once, are left out then.
    network
        For the costs that need one.
    params
        Parameters of costs; each gets those that it has.
    limit
        The most wanted pairs to bring to the driver, for a cost model that is not additive.
    block_size
        About how many pairs and flows are scored in one go.

    Raises
    ------
    PlanError
        When a wanted pair is not served: with how many there are, and the first three.
    """
    channels = max(1, plan.n_groups) if channels is None else channels
    check_channels(channels)
    if block_size < 1:
        raise ParameterError(f"block_size is {block_size}; give at least 1")
    models = COSTS.made(costs, **{**network.given, **(params or {})})
    spark = frames.interests.sparkSession
    with plainly("evaluate the plan"), shipped(spark, plan) as everywhere:
        n_pairs, sizes = _checked(frames, everywhere, channels)
        blocks = FlowBlocks.of_sizes(sizes, channels, block_size)
        if costs is None and n_pairs > limit:
            models = {each: model for each, model in models.items() if model.additive or COSTS.needs(each)}
        in_parts = {each: model for each, model in models.items() if model.additive}
        everybody = _everybody(frames, plan, network)
        scores = _scored(frames, everywhere, blocks, everybody, in_parts)
    if at_once := {each: model for each, model in models.items() if not model.additive}:
        interest = to_interest(frames, limit=limit)
        plans = _plans(interest, plan, everybody, channels)
        scores += [score for score in _scores(interest, plans, at_once) if score[1] is not None]
    return _evaluation(scores, name, plan, n_pairs, len(everybody), models)


def false_positives_by_subscription(frames: InterestFrames, plan: ChannelPlan) -> float:
    """Return how many subscriptions flows reach for nothing, once it is sure that the plan serves each.

    A subscription is reached in its own channel where the plan has one for each, and wherever its subscriber
    listens where not. By subscriber, the same is the cost `false-positives`.

    Parameters
    ----------
    frames
        What each subscription wants: of `from_matches` by subscription.
    plan
        A plan of their subscribers.

    Raises
    ------
    PlanError
        When a subscription wants a flow that its own channel does not carry.
    """
    assert frames.owners is not None
    finer = by_subscription(plan, *bring_owners(frames.owners))
    interests = frames.interests.select("subscriber", "flow")
    one = FlowBlocks(1, np.zeros(1, np.int64), np.ones(1, np.int64))
    with plainly("evaluate the plan"), shipped(interests.sparkSession, finer) as everywhere:
        pairs, missed = _counts(interests, one, everywhere)
        if missed.any():
            _refuse(_missed(interests, everywhere), int(missed.sum()), int(pairs.sum()), frames.rows)
        rates = frames.rates.select("flow", "rate").toArrow()
    flows = labels_in(rates, "flow", "rates")
    # Nobody's interest: what flows bring in all, of which a pair each is wanted.
    nobody = Interest(np.zeros((0, len(flows))), rates["rate"].to_numpy(), flows=flows)
    return FalsePositives().score(nobody, finer).terms["receptions"] - float(pairs.sum())


def _missed(interests: DataFrame, plan: Broadcast[ChannelPlan]) -> DataFrame:
    """Return the wanted pairs that nothing serves."""
    return interests.mapInArrow(partial(_find_missed, plan=plan), interests.schema)


def _find_missed(batches: Iterator[pa.RecordBatch], plan: Broadcast[ChannelPlan]) -> Iterator[pa.RecordBatch]:
    """Yield those of the wanted pairs that nothing serves."""
    for table in chunks(batches):
        yield from _left_out(plan.value, table).to_batches()


def _left_out(plan: ChannelPlan, pairs: pa.Table) -> pa.Table:
    """Return those of the wanted pairs that a plan does not serve."""
    return plan.false_exclusions(Interest.from_tables(pairs))


def _checked(frames: InterestFrames, plan: Broadcast[ChannelPlan], channels: int) -> tuple[int, Positions]:
    """Return how many wanted pairs there are, and the pairs and flows in each group of hash channels."""
    n_groups = min(channels, GROUPS)
    groups = FlowBlocks(channels, np.arange(n_groups), np.ones(n_groups, np.int64))
    interests = frames.interests.select("subscriber", "flow")
    pairs, missed = _counts(interests, groups, plan)
    if missed.any():
        _refuse(_missed(interests, plan), int(missed.sum()), int(pairs.sum()), frames.rows)
    flows, _ = _counts(frames.rates.select("flow"), groups, None)
    return int(pairs.sum()), pairs + flows


def _counts(
    rows: DataFrame, groups: FlowBlocks, plan: Broadcast[ChannelPlan] | None
) -> tuple[Positions, Positions]:
    """Return how many rows each group has, and how many of them are pairs that the plan does not serve."""
    from pyspark.sql import functions as sf

    counts = rows.mapInArrow(partial(_count, groups=groups, plan=plan), _COUNTS).groupBy("group")
    found = counts.agg(sf.sum("rows").alias("rows"), sf.sum("missed").alias("missed")).toArrow()
    total = np.zeros((2, len(groups.first)), np.int64)
    total[:, found["group"].to_numpy()] = [found["rows"].to_numpy(), found["missed"].to_numpy()]
    return total[0], total[1]


def _count(
    batches: Iterator[pa.RecordBatch], groups: FlowBlocks, plan: Broadcast[ChannelPlan] | None
) -> Iterator[pa.RecordBatch]:
    """Yield what `_counts` adds up."""
    for table in chunks(batches):
        missed = table.slice(0, 0) if plan is None else _left_out(plan.value, table)
        counts = [
            np.bincount(groups.place(labels_in(each, "flow", "interests"))[0], minlength=len(groups.first))
            for each in (table, missed)
        ]
        some = np.flatnonzero(counts[0])
        columns = [some, *(count[some] for count in counts)]
        yield pa.RecordBatch.from_arrays(list(map(pa.array, columns)), names=["group", "rows", "missed"])


def _refuse(missed: DataFrame, n_missed: int, n_pairs: int, who: str) -> NoReturn:
    """Raise what `ChannelPlan.validate` would."""
    first = ", ".join(
        f"{who} {row.subscriber!r} wants flow {row.flow!r}"
        for row in missed.orderBy("subscriber", "flow").limit(3).collect()
    )
    raise PlanError(
        f"{n_missed} of {n_pairs} wanted pairs are not served: {first}; "
        "plan again for this interest, or serve them by unicast"
    )


def _everybody(frames: InterestFrames, plan: ChannelPlan, network: NetworkTables) -> Labels:
    """Return whom a broadcast reaches: all subscribers as far as they are known, and those of the plan.

    Who wants nothing and is on no node of the network is left out: nothing can be sent there.
    """
    wanting = frames.interests.select("subscriber").distinct().toArrow()
    # All of them are subscribers of the plan, which serves everybody: there are no more than it has.
    found = labels_in(wanting, "subscriber", "interests")
    if frames.subscribers is None:
        return found
    known = labels_in(frames.subscribers.select("subscriber").toArrow(), "subscriber", "subscribers")
    both, [wants, *_] = encode("subscriber", found, known, plan.subscribers)
    there = network.located(both)
    there[wants] = True
    return both.take(np.flatnonzero(there))


def _scored(
    frames: InterestFrames,
    plan: Broadcast[ChannelPlan],
    blocks: FlowBlocks,
    everybody: Labels,
    models: Mapping[str, CostModel],
) -> list[Score]:
    """Return the scores of all blocks."""
    interests, rates = frames.interests.select("subscriber", "flow"), frames.rates.select("flow", "rate")
    flow, subscriber = (interests.schema[each].dataType.simpleString() for each in ("flow", "subscriber"))
    place = partial(placed, blocks=blocks)
    left = rates.mapInArrow(place, f"block bigint, flow {flow}, rate double")
    right = interests.mapInArrow(place, f"block bigint, subscriber {subscriber}, flow {flow}")
    if (blocks.count > 1).any():
        listening = interests.mapInArrow(
            partial(members, blocks=blocks), f"subscriber {subscriber}, channel bigint"
        )
        more = listening.distinct().mapInArrow(
            partial(copies, blocks=blocks), f"block bigint, subscriber {subscriber}, channel bigint"
        )
        right = right.unionByName(more, allowMissingColumns=True)
    with shipped(interests.sparkSession, everybody) as names:
        work = partial(_score, plan=plan, everybody=names, channels=blocks.channels, models=dict(models))
        found = left.groupBy("block").cogroup(right.groupBy("block")).applyInArrow(work, _SCORES).collect()
    if not found:
        nothing = Interest(np.zeros((0, 0)))
        return list(_scores(nothing, _plans(nothing, plan.value, everybody, blocks.channels), models))
    return [(row.method, row.cost, row.term, row.value) for row in found]


def _score(
    left: pa.Table,
    right: pa.Table,
    *,
    plan: Broadcast[ChannelPlan],
    everybody: Broadcast[Labels],
    channels: int,
    models: Mapping[str, CostModel],
) -> pa.Table:
    """Return the scores of one block: its rates, and its wanted pairs with listeners from other blocks."""
    listeners = None
    if "channel" in right.column_names:
        listeners = right.filter(pc.is_valid(right["channel"]))
        right = right.filter(pc.is_null(right["channel"]))
    interest = Interest.from_tables(right, left)
    plans = _plans(interest, plan.value, everybody.value, channels, listeners)
    rows = list(_scores(interest, plans, models))
    names = ["method", "cost", "term", "value"]
    kinds = [pa.string(), pa.string(), pa.string(), pa.float64()]
    return pa.table([pa.array(*each) for each in zip(zip(*rows, strict=True), kinds, strict=True)], names)


def _plans(
    interest: Interest, plan: ChannelPlan, everybody: Labels, channels: int, listeners: pa.Table | None = None
) -> dict[str, ChannelPlan]:
    """Return the plan and the baselines, as far as they concern the flows of an interest.

    `everybody` and `listeners` (subscriber, channel) are those whom other flows bring in: all subscribers,
    and the listeners of hash channels that this interest holds a part of.
    """
    flows = interest.flows
    return {
        _OWN: plan,
        "unicast": Unicast().fit(interest).plan_,
        "broadcast": ChannelPlan(
            np.ones((len(flows), 1)), np.ones((len(everybody), 1)), subscribers=everybody, flows=flows
        ),
        "per-flow": PerFlow().fit(interest).plan_,
        "hash": _hash_plan(interest, channels, listeners),
    }


def _hash_plan(interest: Interest, channels: int, listeners: pa.Table | None) -> ChannelPlan:
    """Return what `Hash` does with an interest, with listeners that other flows of a channel bring in."""
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
    """Yield what each plan and the ideal cost, term by term."""
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
    """Add up scores."""
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
    """Return whether two ways of sending cost the same, but for rounding."""
    if one.channels != other.channels:
        return False
    pairs = [(cost, other.costs[name]) for name, cost in one.costs.items()]
    return all(
        math.isclose(here, there, rel_tol=1e-9, abs_tol=1e-9)
        for cost, like in pairs
        for here, there in [(cost.total, like.total), *((v, like.terms[k]) for k, v in cost.terms.items())]
    )
