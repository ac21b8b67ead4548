"""Planning: on the driver, up to a limit; above it some methods plan on Spark: see `ON_SPARK`."""

from __future__ import annotations

import inspect
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.costs.base import COSTS
from narrowcast.errors import ParameterError, PlanError
from narrowcast.lab.spectral import Ncut, Rassoc
from narrowcast.model.interest import Interest
from narrowcast.model.labels import encode, labels_in
from narrowcast.model.relation import relation_of
from narrowcast.planning.auto import Auto
from narrowcast.planning.base import PLANNERS
from narrowcast.planning.sessions.joint import Joint
from narrowcast.planning.subscribers.direct import Direct
from narrowcast.planning.topics.cover import Cover
from narrowcast.spark.problems import plainly
from narrowcast.spark.stages.boxes import bring_boxes
from narrowcast.spark.stages.network import COLUMNS, NOWHERE, NetworkTables
from narrowcast.validation import check_channels, check_seed, check_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark import Broadcast

    from narrowcast.model.labels import Labels
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.planning.base import Planner
    from narrowcast.spark.stages.interest import InterestFrames

#: Wanted pairs that the driver takes. Its Python process grew by 31 to 33 bytes a pair at most, measured
#: with 3 and 9 million, which makes about 1.6 GB here; what a planner needs for itself comes on top.
LIMIT = 50_000_000
#: Parameters that every method may have, and that are not given as one of its own.
COMMON = ("channels", "seed", "boxes", *COLUMNS)
#: What plans above the limit.
Large: TypeAlias = Joint | Cover | Direct | Rassoc | Ncut
_SPECTRAL = (
    *("similarity", "dimensions", "history", "normalise", "levels", "groups", "landmarks", "table", "offset"),
    *("clustering", "restarts"),
)
#: Methods that plan above the limit, and their parameters that they also have there.
ON_SPARK: dict[type[Large], tuple[str, ...]] = {
    Joint: ("sessions", "alpha", "beta", "sweeps", "restarts", "seconds"),
    Cover: ("clusters", "rounds", "restarts", "cost_n", "interval", "seconds"),
    Direct: ("balance", "sample", "merged", "passes", "soft"),
    Rassoc: _SPECTRAL,
    Ncut: (*_SPECTRAL, "sigma", "kernel", "form"),
}
#: What is said where all rows would be embedded in one place.
ONE_TABLE = (
    "above the limit {} compares everybody with one table of landmarks (table=true); with levels=2 or more, "
    "groups find coordinates as published"
)
#: Pairs that a worker looks at in one go: finding labels among all costs once per go, not once per batch.
CHUNK = 1 << 20


def to_interest(frames: InterestFrames, *, limit: int = LIMIT, everybody: bool = False) -> Interest:
    """Bring an interest to the driver.

    Labels travel once and pairs as two numbers of four bytes each, so that neither Spark's limit on
    results nor the driver's memory is met early. However the tables are cut, the same interest comes out.

    Parameters
    ----------
    frames
        Who wants what, and the rates.
    limit
        The most wanted pairs, and the most flows, to take.
    everybody
        Whether those who want none of the flows are in it as well, as far as the frames know them.

    Raises
    ------
    ParameterError
        When there are more, before any is brought over.
    """
    if over := _over(frames, limit):
        raise ParameterError(f"{over}, or raise the limit on a driver with more memory")
    return _brought(frames, everybody=everybody)


def _brought(frames: InterestFrames, *, everybody: bool = False) -> Interest:
    """Return the interest, however large it is, with those who want none of the flows where asked."""
    with plainly("bring the interest to the driver"):
        interests = frames.interests.select("subscriber", "flow")
        rates = frames.rates.select("flow", "rate").toArrow()
        people = interests.select("subscriber").distinct()
        if everybody and frames.subscribers is not None:
            people = frames.subscribers.select("subscriber")
        column = labels_in(people.toArrow(), "subscriber", "interests")
        wanted = labels_in(interests.select("flow").distinct().toArrow(), "flow", "interests")
        subscribers, _ = encode("subscriber", column)
        # Nobody's interest yet: it checks the rates, and numbers the flows as every interest does.
        empty = pa.table({"subscriber": column.slice(0, 0), "flow": wanted.slice(0, 0)})
        rated = Interest.from_tables(empty, rates)
        flows, [known, _] = encode("flow", rated.flows, wanted)
        rate = np.ones(len(flows))
        rate[known] = rated.rate
        shipped = interests.sparkSession.sparkContext.broadcast((subscribers, flows))
        try:
            codes = interests.mapInArrow(partial(_coded, labels=shipped), "row int, column int").toArrow()
        finally:
            shipped.destroy()
    row, place = codes["row"].to_numpy(), codes["column"].to_numpy()
    return Interest(relation_of(row, place, (len(subscribers), len(flows))), rate, subscribers, flows)


def _over(frames: InterestFrames, limit: int) -> str:
    """Return what is too much for the driver, and what to do about it; nothing where all is within."""
    from pyspark.sql import functions as sf

    with plainly("count the interest"):
        pairs = frames.interests.agg(sf.count("*").alias("pairs"))
        [counts] = pairs.crossJoin(frames.rates.agg(sf.count("*").alias("flows"))).collect()
    for what, count in (("wanted pairs", counts.pairs), ("flows", counts.flows)):
        if count > limit:
            return _too_much(count, what, limit)
    return ""


class Planned(NamedTuple):
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
    planner
        What else it has found out, on the driver.
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
    planner: Planner | None = None
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
) -> Planned:
    """Make a plan by any registered method, and check that it serves everybody.

    Up to the limit that is done on the driver. Above it, `joint` can do with less, and so can `auto` where
    there is no network to plan for: with the distinct sets of users of flows on the driver where these are
    within the limit, and on Spark where they are not. See `packed` and `distributed`. For `cover`,
    subscribers choose their clusters on Spark, for `direct` they move between them there, and for `rassoc`
    and `ncut` groups of them find coordinates: see `covering`, `clustering` and `spectral`.

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
    if over := _over(frames, limit):
        return _plan_large(frames, _large(planner, params or {}, over), limit)
    interest = _brought(frames, everybody=getattr(planner, "everybody", False))
    if needs_boxes(method) and frames.boxes is not None:
        planner.boxes = bring_boxes(frames.boxes, interest.subscribers)  # type: ignore[attr-defined]
    plan = planner.fit(interest).plan_
    plan.validate(interest)
    return Planned(plan, interest, getattr(planner, "method_", method), "driver", planner)


def _large(planner: Planner, params: Mapping[str, Any], over: str) -> Large:
    """Return what plans an interest that is over the limit, or say that nothing does."""
    nothing = Interest(np.zeros((0, 0)))
    # On one level joint saves waste as well: what users filter is what they want, and that.
    if isinstance(planner, Auto) and (chosen := planner.fit(nothing).method_) != "partial":
        channels, seed, sessions = planner.channels, planner.seed, planner.sessions
        planner = Joint(channels=channels, seed=seed, sessions=sessions)
        if chosen == "direct":
            planner = Direct(channels=channels, seed=seed)
    if not isinstance(planner, Large):
        raise ParameterError(
            f"{over}, raise the limit on a driver with more memory, or take --method joint, which then plans "
            "on Spark, as cover, direct, rassoc and ncut do"
        )
    method, known = type(planner).__name__.lower(), ON_SPARK[type(planner)]
    if odd := [name for name in params if name not in ("cost", *known) and params[name] != "linear"]:
        name = {"start": "--from", "pinned": "--pinned"}.get(odd[0], odd[0])
        raise ParameterError(
            f"{name} is given, which {method} does without on Spark, and {over}, raise the limit, or leave "
            f"{name} out; there it takes {', '.join(known)}"
        )
    return planner.fit(nothing)


def _plan_large(frames: InterestFrames, planner: Large, limit: int) -> Planned:
    """Plan from the distinct sets of users of flows, or where subscribers are."""
    # These build on what is here: they cannot be known when this module is made.
    from narrowcast.lab.spark.spectral import spectral_clusters
    from narrowcast.spark.planning.clustering import clustered
    from narrowcast.spark.planning.covering import covered
    from narrowcast.spark.planning.distributed import plan_packed
    from narrowcast.spark.planning.packed import packed
    from narrowcast.spark.stages.evaluate import false_exclusions

    note = ""
    path: Literal["driver", "spark"] = "spark"
    known: dict[str, float] = {}
    how: dict[str, Any] = {}
    method = type(planner).__name__.lower()
    if isinstance(planner, Cover):
        with covered(frames, planner, limit=limit) as job:
            plan = job.plan()
            interest = job.interest(plan)
            known["overall"] = job.cost
    elif isinstance(planner, Direct):
        with clustered(frames, planner, limit=limit) as clusters:
            plan, how = clusters.plan(), clusters.how
            interest = clusters.interest(plan)
    elif isinstance(planner, Rassoc | Ncut):
        with spectral_clusters(frames, planner, limit=limit) as clusters:
            plan, how = clusters.plan(), clusters.how
            interest = clusters.interest(plan)
        if planner.levels == 1 and not planner.table:
            note = ONE_TABLE.format(method)
    else:
        with packed(frames) as found:
            plan, interest = plan_packed(found, planner, limit=limit)
            path = "driver" if found.entries <= limit else "spark"
    with plainly("check the plan"):
        missed = false_exclusions(frames, plan).limit(3).collect()
    if missed:
        first = ", ".join(f"subscriber {row.subscriber!r} wants flow {row.flow!r}" for row in missed)
        raise PlanError(f"some wanted pairs are not served: {first}; plan again for this interest")
    how = {"where": path, "limit": limit, **how}
    return Planned(plan, interest, method, path, costs=known, note=note, how=how)


def costs_of(
    frames: InterestFrames,
    planned: Planned,
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
    from narrowcast.spark.stages.evaluate import evaluate  # builds on what is here

    names = [name for name, model in models.items() if model.additive or costs is not None]
    found = evaluate(frames, planned.plan, name=planned.method, costs=names, network=network, params=params)
    totals = {name: cost.total for name, cost in found.methods[found.name].costs.items()}
    return dict(sorted({**planned.costs, **totals}.items())) if costs is None else totals


def make_planner(
    method: str,
    *,
    channels: int | None,
    seed: int = 0,
    params: Mapping[str, Any] | None = None,
    network: NetworkTables = NOWHERE,
) -> Planner:
    """Return a planner, ready to be fitted; what it takes is checked first.

    Parameters
    ----------
    method, channels, seed, params, network
        As for `make_plan`.

    Examples
    --------
    >>> make_planner("pairwise", channels=3, params={"topp": 9})
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: method 'pairwise' has no parameter 'topp'; it has: top, distance
    """
    make = PLANNERS[method]
    params = dict(params or {})
    check_channels(channels)
    check_seed(seed)
    taken = inspect.signature(make).parameters
    given = {name: value for name, value in network.given.items() if name in taken}
    _check_params(method, params, given)
    return make(channels=channels, seed=seed, **params, **given)


def check_planner(
    method: str, *, channels: int | None, seed: int = 0, filters: bool = False, **given: Any
) -> None:
    """Refuse what a method would refuse once it has the interest, before there is one.

    Parameters
    ----------
    method, channels, seed, given
        As for `make_planner`.
    filters
        Whether there will be filters, for methods that look at their boxes.

    Examples
    --------
    >>> check_planner("pairwise", channels=None)
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: channels is None; pairwise needs a whole number of at least 1
    """
    planner: Any = make_planner(method, channels=channels, seed=seed, **given)
    if needs_boxes(method) and filters:
        planner.boxes = np.zeros((0, 1)), np.zeros((0, 1))
    planner.fit(Interest(np.zeros((0, 0))))


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
        _large(planner, params or {}, _too_much(pairs, "wanted pairs", limit))


def _too_much(count: int, what: str, limit: int) -> str:
    """Return what is too much for the driver, and what to do about it."""
    return (
        f"the interest has {count:,} {what} and the driver takes {limit:,}; "
        "keep fewer flows (the heaviest cells, the last events)"
    )


def parameters_of(method: str) -> dict[str, inspect.Parameter]:
    """Return the parameters of a method that are its own: without channels, seed and the network."""
    taken = inspect.signature(PLANNERS[method]).parameters
    return {name: each for name, each in taken.items() if name not in COMMON}


def takes_network(method: str) -> bool:
    """Return whether a method plans for a network, where one is given."""
    return "topology" in inspect.signature(PLANNERS[method]).parameters


def needs_boxes(method: str) -> bool:
    """Return whether a method plans by the boxes of filters."""
    return "boxes" in inspect.signature(PLANNERS[method]).parameters


def _check_params(method: str, params: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse parameters that a method does not have, and miss those that it needs."""
    own = parameters_of(method)
    known = ", ".join(own) or "none besides channels and seed"
    open_ended = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in own.values())
    for name in params:
        if name in COMMON:
            raise ParameterError(f"{name} is among the parameters of {method!r}; give it as {name} itself")
        if name not in own and not open_ended:
            raise ParameterError(f"method {method!r} has no parameter {name!r}; it has: {known}")
    for name, each in inspect.signature(PLANNERS[method]).parameters.items():
        needed = each.kind is inspect.Parameter.KEYWORD_ONLY and each.default is inspect.Parameter.empty
        if needed and name not in ("channels", "seed", *params, *given):
            raise ParameterError(f"method {method!r} needs the parameter {name!r}; set it")


def chunks(batches: Iterator[pa.RecordBatch], size: int = CHUNK) -> Iterator[pa.Table]:
    """Yield the rows of many batches in tables of at least `size` rows, the last one excepted.

    Examples
    --------
    >>> batches = pa.table({"flow": range(5)}).to_batches(max_chunksize=1)
    >>> [table.num_rows for table in chunks(iter(batches), 2)]
    [2, 2, 1]
    """
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if rows >= size:
            yield pa.Table.from_batches(held)
            held, rows = [], 0
    if rows:
        yield pa.Table.from_batches(held)


def _coded(
    batches: Iterator[pa.RecordBatch], labels: Broadcast[tuple[Labels, Labels]]
) -> Iterator[pa.RecordBatch]:
    """Yield wanted pairs as positions among all subscribers and all flows."""
    subscribers, flows = labels.value
    for table in chunks(batches):
        row, column = (
            pc.index_in(labels_in(table, name, "interests").cast(known.type), value_set=known)
            for name, known in (("subscriber", subscribers), ("flow", flows))
        )
        yield pa.RecordBatch.from_arrays([row, column], names=["row", "column"])
