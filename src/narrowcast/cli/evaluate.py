"""`narrowcast evaluate`: what a plan costs on given data, beside the plans that need no planning."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narrowcast.cli import inputs, options
from narrowcast.costs import COSTS
from narrowcast.errors import PlanError
from narrowcast.model.artefact import read_plan
from narrowcast.model.schema import Schema
from narrowcast.pipeline.evaluate import evaluate as evaluate_plan
from narrowcast.pipeline.inputs import Inputs, take
from narrowcast.pipeline.match import STRATEGIES
from narrowcast.pipeline.network import COLUMNS, NetworkTables
from narrowcast.pipeline.problems import plainly
from narrowcast.pipeline.progress import watched
from narrowcast.pipeline.run import RECENT
from narrowcast.pipeline.session import sized
from narrowcast.pipeline.storage import write_table
from narrowcast.planning.base import check_channels

if TYPE_CHECKING:
    from narrowcast.model.artefact import PlanInfo

#: Terms that the table has already: the total of a cost, or that of a row, under another name.
_SAME = {
    "waste": ("wasted",),
    "network": ("unicast", "ideal", "broadcast"),
    "filtering": ("ideal", "excess", "everything"),
}


def evaluate(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan: a folder.")],
    interests: inputs.Interests = None,
    rates: inputs.Rates = None,
    subscriptions: inputs.Subscriptions = None,
    events: inputs.Events = None,
    state: inputs.State = None,
    recent: inputs.Recent = None,
    last: inputs.Last = None,
    window: inputs.Window = None,
    top: inputs.Top = None,
    topology: inputs.Topology = None,
    locations: inputs.Locations = None,
    publishers: inputs.Publishers = None,
    costs: inputs.Costs = None,
    channels: Annotated[
        int | None, typer.Option("--channels", metavar="K", help="Of the baseline hash; else as the plan.")
    ] = None,
    rejected: options.Rejected = None,
    seed: options.Seed = 0,
    schema: options.SchemaFile = None,
    strategy: options.Strategy = "auto",
    memory: options.Memory = None,
    strict: options.Strict = False,
    master: options.Master = options.LOCAL,
    conf: options.Conf = None,
    ui: options.Ui = False,
    as_json: options.Json = False,
) -> None:
    """Say what a plan costs against unicast, broadcast, a channel for each flow, hashing and the ideal.

    First it makes sure that the plan serves everybody; costs of one that does not are not reported.

    Examples:

        narrowcast evaluate plan --interests i.parquet --rates r.csv

        narrowcast evaluate plan --subscriptions s.jsonl --events e.csv --json

        narrowcast evaluate plan --state out/state

        narrowcast evaluate plan --interests i.csv --topology t.csv --locations l.csv
    """
    made, info = read_plan(plan)
    _require_fitting(info, interests, state)
    options.one_of("--strategy", strategy, STRATEGIES)
    check_channels(channels)
    network = NetworkTables.read(topology, locations, publishers)
    COSTS.made(costs, **network.given)  # what is wrong with them is told before Spark starts
    if recent is last is window is None:  # then the events that the plan says it was made from
        recent, last, window = (info.params.get(name) for name in ("recent", "last", "window"))
        if recent is last is window is None and info.flow_space == "events":
            recent = RECENT
    types = None if schema is None else Schema.read(schema)
    given = Inputs(
        interests=interests,
        rates=rates,
        subscriptions=subscriptions,
        events=events,
        state=state,
        flows="cells" if info.flow_space == "cells" and state is None else "events",
        recent=recent,
        last=last,
        window=window,
        top=info.params.get("top") if top is None and state is None else top,
        grid=info.params.get("grid"),
        schema=types,
        strict=strict,
        strategy=strategy,
        memory=options.memory_of(memory),
        seed=seed,
    )
    with options.spark_at(master, conf, ui=ui) as at, sized(at.spark, given.size(at.spark)):
        taken = take(at.spark, given, at.progress, at.tell)
        if taken.frames.flow_space != info.flow_space:
            raise PlanError(
                f"the plan's flows are {info.flow_space}, and those of the inputs {taken.frames.flow_space}; "
                "give inputs like those that it was made from"
            )
        if rejected is not None and taken.rejected is not None:
            write_table(taken.rejected, rejected, doing=f"write {rejected}")
        with watched(at.spark, at.progress, "evaluate"), plainly("evaluate the plan"):
            network = network.fitting(text=taken.frames.text)
            found = evaluate_plan(
                taken.frames, made, name=info.method, channels=channels, costs=costs, network=network
            )
    facts: dict[str, Any] = {"command": "evaluate", "plan": str(plan), **taken.facts, **found.to_dict()}
    prints = taken.fingerprints | {k: v for k, v in network.fingerprints.items() if k in info.inputs}
    if prints != {k: v for k, v in info.inputs.items() if k in prints or k not in COLUMNS}:
        typer.echo("these are not the inputs that the plan was made from", err=True)
    # Only topics, and flows of a stream, have a rate in time; else it is what all events given make, or one.
    unit = "messages a second" if info.flow_space == "topics" or state is not None else "messages"
    tables = {f"What {plan} costs": _rows(facts, unit)}
    if facts["rejected"]:
        tables = {"Rows that were set aside": options.reasons(facts), **tables}
    options.show(facts, tables, as_json=as_json)


def _require_fitting(info: PlanInfo, interests: str | None, state: str | None) -> None:
    """Refuse inputs whose flows are not of the kind that the plan carries."""
    if info.flow_space == "ranges":
        raise PlanError("the plan's flows are ranges of a partitioner, which have no cost; give another plan")
    if state is not None and info.flow_space == "events":
        raise PlanError(
            "the plan's flows are events; a state has none; give --subscriptions and --events to evaluate it"
        )
    if state is None and (info.flow_space == "topics") != (interests is not None):
        needs = "--interests" if info.flow_space == "topics" else "--subscriptions and --events"
        raise PlanError(f"the plan's flows are {info.flow_space}; give {needs} to evaluate it")


def _rows(facts: dict[str, Any], unit: str) -> list[tuple[str, ...]]:
    """Return costs as rows of text: a method each, a column for each cost and each of its terms."""
    methods: dict[str, Any] = facts["methods"]
    first = next(iter(methods.values()))["costs"]
    costs, with_excess = options.columns_of(first)
    heads = [
        (cost, term)
        for cost in costs
        for term in (None, *first[cost]["terms"])
        if term not in _SAME.get(cost, ())
    ]
    excess = ("excess %",) if with_excess else ()
    rows: list[tuple[str, ...]] = [
        (unit, "channels", *(cost if term is None else term for cost, term in heads), *excess)
    ]
    for name, each in methods.items():
        values = (
            each["costs"][cost]["total"] if term is None else each["costs"][cost]["terms"][term]
            for cost, term in heads
        )
        shown = "" if each["channels"] is None else f"{each['channels']:,}"
        more = (f"{100 * each['excess_share']:.1f}",) if excess else ()
        rows.append((name, shown, *map(options.number, values), *more))
    return rows
