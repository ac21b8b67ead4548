"""`narrowcast evaluate`: what a plan costs on given data, beside the plans that need no planning."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narrowcast.cli import inputs, options, set_option
from narrowcast.costs import COSTS
from narrowcast.errors import PlanError
from narrowcast.model.artefact import read_plan
from narrowcast.model.schema import Schema
from narrowcast.planning.base import router_for
from narrowcast.report.html_page import PROSE
from narrowcast.spark.progress import watched
from narrowcast.spark.session import sized
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.changes import instant_of
from narrowcast.spark.stages.delivery_results import PlanWithRouter, per_event
from narrowcast.spark.stages.evaluate import evaluate as evaluate_plan
from narrowcast.spark.stages.evaluate import false_positives_by_subscription
from narrowcast.spark.stages.interest import extent, has
from narrowcast.spark.stages.match import STRATEGIES
from narrowcast.spark.stages.network import COLUMNS, NetworkTables
from narrowcast.spark.stages.ownership import subscribed
from narrowcast.spark.stages.plan_inputs import PlanInputs, take
from narrowcast.spark.stages.replay import replay_inputs
from narrowcast.spark.stages.run import RECENT
from narrowcast.spark.storage import write_table
from narrowcast.validation import check_channels

if TYPE_CHECKING:
    from narrowcast.model.artefact import PlanInfo
    from narrowcast.spark.stages.plan_inputs import LoadedInterest

#: Why a plan of events is not scored on other events.
_OTHERS = "the plan is of other events, and says nothing of which channel carries these"
#: Terms that the table has already: the total of a cost, or that of a row, under another name.
_SAME = {
    "waste": ("wasted",),
    "false-positives": ("false_positives",),
    "network": ("unicast", "ideal", "broadcast"),
    "filtering": ("ideal", "excess", "everything"),
    "overall": ("association", "direct", "clustered", "unicast"),
}
#: What terms are called in the table.
_SHORT = {"improvement_pct": "gain %"}


def evaluate(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan: a folder.")],
    interests: inputs.Interests = None,
    rates: inputs.Rates = None,
    changes: inputs.Changes = None,
    until: inputs.Until = None,
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
    router: set_option.Router = None,
    again: set_option.Again = True,
    given_settings: set_option.Settings = None,
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

    Beside these costs, which go by flows, it tells what the events given cost when each is sent to those whom
    it matches, the way that a --router decides: of a plan of cells or of events. They need not be the events
    that the plan was made from. Of both it tells the false positives of an event, by subscriber (one who has
    a subscription that matches has none) and by subscription, and beside these how many times the mean the
    largest channel has members: without that they say little.

    Examples:

        narrowcast evaluate plan --interests i.parquet --rates r.csv

        narrowcast evaluate plan --subscriptions s.jsonl --events e.csv --json

        narrowcast evaluate plan --state out/state

        narrowcast evaluate plan --changes c.parquet --rates r.csv

        narrowcast evaluate plan --interests i.csv --topology t.csv --locations l.csv

        narrowcast evaluate plan --subscriptions s.csv --events later.csv --topology t.csv --router exact
    """
    made, info = read_plan(plan)
    _require_fitting(info, interests or changes, state)
    options.one_of("--strategy", strategy, STRATEGIES)
    check_channels(channels)
    network = NetworkTables.read(topology, locations, publishers)
    name = router or router_for(info.method, info.flow_space)
    able = info.flow_space in ("cells", "events") and state is None
    again = set_option.is_replayed(router, able=able, again=again)
    routers = set_option.takers_of_routers([name]) if again else {}
    params = set_option.parameters(given_settings or [])
    costing, routing = set_option.dealt(params, set_option.takers_of_costs(costs, network.given), routers)
    set_option.check_router(name, routing, made)  # what is wrong with them is told before Spark starts
    COSTS.made(costs, **network.given, **costing)
    if recent is last is window is None:  # then the events that the plan says it was made from
        recent, last, window = (info.params.get(name) for name in ("recent", "last", "window"))
        if recent is last is window is None and info.flow_space == "events":
            recent = RECENT
    types = None if schema is None else Schema.read(schema)
    given = PlanInputs(
        interests=interests,
        rates=rates,
        changes=changes,
        until=None if until is None else instant_of(until),
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
        network = network.fitting(text=taken.frames.text)
        others = again and info.inputs.get("events", "") not in ("", taken.fingerprints.get("events"))
        found, why = None, _OTHERS if others and info.flow_space == "events" else None
        finer = None
        if why is None:
            try:
                with watched(at.spark, at.progress, "evaluate"), plainly("evaluate the plan"):
                    found = evaluate_plan(
                        taken.frames,
                        made,
                        name=info.method,
                        channels=channels,
                        costs=costs,
                        network=network,
                        params=costing,
                    )
                    counted = "false-positives" in found.methods[found.name].costs
                    if info.flow_space == "events" and (counted or made.subscriptions is not None):
                        finer = false_positives_by_subscription(subscribed(taken, given), made)
            except PlanError as error:
                if not others:
                    raise
                why = str(error)
        per = _per(taken) if found is not None else ""
        replayed = None
        if again:
            with watched(at.spark, at.progress, "replay"):
                replayed = replay_inputs(
                    taken,
                    given,
                    {name: PlanWithRouter(made, name, routing)},
                    network=network,
                    multicast=costing.get("multicast", "dense"),
                )
    facts: dict[str, Any] = {"command": "evaluate", "plan": str(plan), **taken.facts}
    facts |= {"name": info.method, "pairs": None, "methods": {}} if found is None else found.to_dict()
    facts |= {"not_scored": why, "replay": None, "false_positives_per_event": None}
    facts["balance"] = made.balance()
    if found is not None and finer is not None and "false-positives" in found.methods[found.name].costs:
        total = found.methods[found.name].costs["false-positives"].total
        facts["false_positives_per_event"] = per_event(total, finer, taken.facts["flows"])
    if replayed is not None:
        facts["replay"] = {**replayed.facts(), "plan": replayed.plans[name].to_dict()}
    prints = taken.fingerprints | {k: v for k, v in network.fingerprints.items() if k in info.inputs}
    if prints != {k: v for k, v in info.inputs.items() if k in prints or k not in COLUMNS}:
        typer.echo("these are not the inputs that the plan was made from", err=True)
    unit = "messages a second" if per == "" else "messages"
    tables = {f"What {plan} costs{per}": _rows(facts, unit)} if found is not None else {}
    if replayed is not None and replayed.n_events:
        tables[_said(facts)] = _replayed_rows(facts)
        tables["False positives for each event"] = _false_positive_rows(facts)
    elif replayed is not None:
        typer.echo(f"nobody wants any of the {facts['events']:,} events given, so none is sent", err=True)
    if facts["balance"] is not None:
        largest = f"The largest channel has {facts['balance']:.2f} times the members of the mean"
        tables[largest] = [PROSE]
    if why is not None:
        typer.echo(f"costs by flows are left out: {why}", err=True)
    if facts["rejected"]:
        tables = {"Rows that were set aside": options.reasons(facts), **tables}
    options.show(facts, tables, as_json=as_json)


def _require_fitting(info: PlanInfo, topics: str | None, state: str | None) -> None:
    """Refuse inputs whose flows are not of the kind that the plan carries."""
    if info.flow_space == "ranges":
        raise PlanError("the plan's flows are ranges of a partitioner, which have no cost; give another plan")
    if state is not None and info.flow_space == "events":
        raise PlanError(
            "the plan's flows are events; a state has none; give --subscriptions and --events to evaluate it"
        )
    if state is None and (info.flow_space == "topics") != (topics is not None):
        needs = "--interests" if info.flow_space == "topics" else "--subscriptions and --events"
        raise PlanError(f"the plan's flows are {info.flow_space}; give {needs} to evaluate it")


def _per(taken: LoadedInterest) -> str:
    """Return what costs by flows are of: nothing to be said where flows have a rate in time."""
    if taken.content is None:
        return ""
    if taken.frames.flow_space == "events":
        return f", over the {taken.facts['flows']:,} events that are scored"
    events = taken.content.events
    return "" if has(events, "time") and extent(events)[1] else ", per event"


def _said(facts: dict[str, Any]) -> str:
    """Return what the table of replayed events is of."""
    again = facts["replay"]
    mine = again["plan"]
    said = f"What {again['events']:,} events cost in all, sent by it with the router {mine['router']}"
    if mine["outside"]:
        said += f"; {mine['outside']:,} of them are in cells that no channel carries"
    return said


def _replayed_rows(facts: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return what came of events as rows of text."""
    again = facts["replay"]
    on_links = again["unit"] == "links"
    gain = ("gain %",) if on_links else ()
    rows: list[tuple[str, ...]] = [
        ("way", "cost of links" if on_links else "messages", *gain, "by channel", "direct", "in vain")
    ]
    ways = {facts["name"]: again["plan"]}
    ways |= {f"all {name}": again[name] for name in ("unicast", "broadcast")} | {"ideal": again["ideal"]}
    for name, each in ways.items():
        shown = (f"{each['improvement_pct']:.1f}",) if on_links else ()
        counts = (f"{each[key]:,}" for key in ("channel_messages", "direct_messages", "wasted"))
        rows.append((name, options.number(each["cost"]), *shown, *counts))
    return rows


def _false_positive_rows(facts: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return false positives as rows of text, by flows where these are scored, and of what was sent."""
    again = facts["replay"]
    ways = {"where the plan carries it": facts["false_positives_per_event"]}
    ways[f"sent with the router {again['plan']['router']}"] = again["plan"]["false_positives_per_event"]
    ways["all broadcast"] = again["broadcast"]["false_positives_per_event"]
    rows: list[tuple[str, ...]] = [("way", "by subscriber", "by subscription")]
    rows += [
        (way, *(options.number(each[by]) for by in ("subscriber", "subscription")))
        for way, each in ways.items()
        if each is not None
    ]
    return rows


def _rows(facts: dict[str, Any], unit: str) -> list[tuple[str, ...]]:
    """Return costs as rows of text: a method each, a column for each cost and each of its terms."""
    methods: dict[str, Any] = facts["methods"]
    first = next(iter(methods.values()))["costs"]
    costs, with_excess = options.columns_of(first)
    heads = [
        (cost, term)
        for cost in costs
        for term in (None, *first[cost]["terms"])
        # With one cost more there is no room for what all rows have alike.
        if term not in _SAME.get(cost, ()) and not (term == "wanted" and len(costs) > 1)
        # Beside other costs the overall one has its total only.
        if cost != "overall" or term is None or len(costs) == 1
    ]
    excess = ("excess %",) if with_excess else ()
    named = (cost if term is None else _SHORT.get(term, term) for cost, term in heads)
    rows: list[tuple[str, ...]] = [(unit, "channels", *named, *excess)]
    for name, each in methods.items():
        values = (
            each["costs"][cost]["total"] if term is None else each["costs"][cost]["terms"][term]
            for cost, term in heads
        )
        shown = "" if each["channels"] is None else f"{each['channels']:,}"
        more = (f"{100 * each['excess_share']:.1f}",) if excess else ()
        rows.append((name, shown, *map(options.number, values), *more))
    return rows
