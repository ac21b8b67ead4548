"""Planning on the driver: the interest is brought over, within a stated limit, and handed to a planner."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.errors import ParameterError
from narrowcast.model.interest import Interest
from narrowcast.model.labels import encode, labels_in
from narrowcast.model.relation import relation_of
from narrowcast.pipeline.network import COLUMNS, NOWHERE, NetworkTables
from narrowcast.pipeline.problems import plainly
from narrowcast.planning.base import PLANNERS, check_channels, check_seed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark import Broadcast

    from narrowcast.model.labels import Labels
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.pipeline.interest import InterestFrames
    from narrowcast.planning.base import Planner

#: Wanted pairs that the driver takes. Its Python process grew by 31 to 33 bytes a pair at most, measured
#: with 3 and 9 million, which makes about 1.6 GB here; what a planner needs for itself comes on top.
LIMIT = 50_000_000
#: Parameters that every method may have, and that are not given as one of its own.
COMMON = ("channels", "seed", *COLUMNS)
#: Pairs that a worker looks at in one go: finding labels among all costs once per go, not once per batch.
CHUNK = 1 << 20


def to_interest(frames: InterestFrames, *, limit: int = LIMIT) -> Interest:
    """Bring an interest to the driver.

    Labels travel once and pairs as two numbers of four bytes each, so that neither Spark's limit on
    results nor the driver's memory is met early. However the tables are cut, the same interest comes out.

    Parameters
    ----------
    frames
        Who wants what, and the rates.
    limit
        The most wanted pairs, and the most flows, to take.

    Raises
    ------
    ParameterError
        When there are more, before any is brought over.
    """
    from pyspark.sql import functions as sf

    with plainly("bring the interest to the driver"):
        pairs = frames.interests.agg(sf.count("*").alias("pairs"))
        [counts] = pairs.crossJoin(frames.rates.agg(sf.count("*").alias("flows"))).collect()
        for what, count in (("wanted pairs", counts.pairs), ("flows", counts.flows)):
            if count > limit:
                raise ParameterError(
                    f"the interest has {count:,} {what} and the driver takes {limit:,}; keep fewer flows "
                    "(the heaviest cells, the last events), or raise the limit on a driver with more memory"
                )
        interests = frames.interests.select("subscriber", "flow")
        rates = frames.rates.select("flow", "rate").toArrow()
        column = labels_in(interests.select("subscriber").distinct().toArrow(), "subscriber", "interests")
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


class Planned(NamedTuple):
    """A plan, the interest that it was made from, and the method that made it: what `auto` chose."""

    plan: ChannelPlan
    interest: Interest
    method: str


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
    """Make a plan by any registered method, on the driver, and check that it serves everybody.

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
    planner = make_planner(method, channels=channels, seed=seed, params=params, network=network)
    interest = to_interest(frames, limit=limit)
    plan = planner.fit(interest).plan_
    plan.validate(interest)
    return Planned(plan, interest, getattr(planner, "method_", method))


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


def check_planner(method: str, *, channels: int | None, seed: int = 0, **given: Any) -> None:
    """Refuse what a method would refuse once it has the interest, before there is one.

    Parameters
    ----------
    method, channels, seed, given
        As for `make_planner`.

    Examples
    --------
    >>> check_planner("pairwise", channels=None)
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: channels is None; pairwise needs a whole number of at least 1
    """
    make_planner(method, channels=channels, seed=seed, **given).fit(Interest(np.zeros((0, 0))))


def parameters_of(method: str) -> dict[str, inspect.Parameter]:
    """Return the parameters of a method that are its own: without channels, seed and the network."""
    taken = inspect.signature(PLANNERS[method]).parameters
    return {name: each for name, each in taken.items() if name not in COMMON}


def takes_network(method: str) -> bool:
    """Return whether a method plans for a network, where one is given."""
    return "topology" in inspect.signature(PLANNERS[method]).parameters


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
