"""`narrowcast evaluate`: the costs of a plan on given data, beside baselines that need no planning."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narrowcast.cli import choices, inputs, options, panels, set_option
from narrowcast.errors import PlanError

if TYPE_CHECKING:
    from narrowcast.model.artefact import PlanInfo
    from narrowcast.spark.stages.plan_inputs import LoadedInterest

#: Why a plan of events is not scored on other events.
_OTHER_EVENTS = "the plan was made from other events, so no channel is assigned to these"
#: Terms that repeat a column of the table: the total of a cost, or that of a row.
_REPEATED = {
    "waste": ("wasted",),
    "false-positives": ("false_positives",),
    "network": ("unicast", "ideal", "broadcast"),
    "filtering": ("ideal", "excess", "everything"),
    "overall": ("association", "direct", "clustered", "unicast"),
}
#: Titles of terms in the table.
_SHORT = {"improvement_pct": "gain %"}


def evaluate(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="Folder of the plan.")],
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
        int | None,
        typer.Option(
            "--channels",
            metavar="K",
            help="Channels of the hash baseline (default: as many as the plan has).",
            rich_help_panel=panels.PLANNING,
        ),
    ] = None,
    router: set_option.Router = None,
    again: set_option.Replay = True,
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
    """Compare the costs of a plan with unicast, broadcast, one channel per flow, hashing and the ideal.

    The plan is checked first: it must deliver every wanted flow. Costs of a plan that does not are not
    reported.

    Besides these costs, which are computed by flows, the given events are replayed: each is sent to the
    subscribers that it matches, as the --router decides. This works for plans of cells or of events, also
    with events other than those that the plan was made from. The result includes the false positives per
    event, counted by subscriber (a subscriber with a matching subscription has none) and by subscription,
    and the size of the largest channel as a multiple of the mean.

    Examples:

        narrowcast evaluate plan --interests i.parquet --rates r.csv

        narrowcast evaluate plan --subscriptions s.jsonl --events e.csv --json

        narrowcast evaluate plan --state out/state

        narrowcast evaluate plan --changes c.parquet --rates r.csv

        narrowcast evaluate plan --interests i.csv --topology t.csv --locations l.csv

        narrowcast evaluate plan --subscriptions s.csv --events later.csv --topology t.csv --router exact
    """
    from narrowcast.costs import COSTS
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
    from narrowcast.spark.stages.network import COLUMNS, NetworkTables
    from narrowcast.spark.stages.ownership import interest_by_subscription
    from narrowcast.spark.stages.plan_inputs import PlanInputs, load_interest
    from narrowcast.spark.stages.replay import replay_inputs
    from narrowcast.spark.storage import write_table
    from narrowcast.validation import check_channels

    made, info = read_plan(plan)
    _require_fitting(info, interests or changes, state)
    options.one_of("strategy", strategy, choices.STRATEGIES)
    check_channels(channels)
    network = NetworkTables.read(topology, locations, publishers)
    name = router or router_for(info.method, info.flow_space)
    able = info.flow_space in ("cells", "events") and state is None
    again = set_option.is_replayed(router, able=able, again=again)
    routers = set_option.takers_of_routers([name]) if again else {}
    params = set_option.parameters(given_settings or [])
    costing, routing = set_option.assigned(params, set_option.takers_of_costs(costs, network.given), routers)
    set_option.check_router(name, routing, made)  # before Spark starts
    COSTS.made(costs, **network.given, **costing)
    if recent is last is window is None:  # then the events that the plan was made from
        recent, last, window = (info.params.get(name) for name in ("recent", "last", "window"))
        if recent is last is window is None and info.flow_space == "events":
            recent = choices.RECENT
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
        loaded = load_interest(at.spark, given, at.progress, at.tell)
        if loaded.frames.flow_space != info.flow_space:
            raise PlanError(
                f"{plan}: its flows are {info.flow_space}, those of the inputs {loaded.frames.flow_space}; "
                "give "
                "the kind of inputs that it was made from"
            )
        if rejected is not None and loaded.rejected is not None:
            write_table(loaded.rejected, rejected, doing=f"write {rejected}")
        network = network.fitting(text=loaded.frames.text)
        others = again and info.inputs.get("events", "") not in ("", loaded.fingerprints.get("events"))
        found, why = None, _OTHER_EVENTS if others and info.flow_space == "events" else None
        finer = None
        if why is None:
            try:
                with watched(at.spark, at.progress, "evaluate"), plainly("evaluate the plan"):
                    found = evaluate_plan(
                        loaded.frames,
                        made,
                        name=info.method,
                        channels=channels,
                        costs=costs,
                        network=network,
                        params=costing,
                    )
                    counted = "false-positives" in found.methods[found.name].costs
                    if info.flow_space == "events" and (counted or made.subscriptions is not None):
                        finer = false_positives_by_subscription(interest_by_subscription(loaded, given), made)
            except PlanError as error:
                if not others:
                    raise
                why = str(error)
        per = _per(loaded) if found is not None else ""
        replayed = None
        if again:
            with watched(at.spark, at.progress, "replay"):
                replayed = replay_inputs(
                    loaded,
                    given,
                    {name: PlanWithRouter(made, name, routing)},
                    network=network,
                    multicast=costing.get("multicast", "dense"),
                )
    facts: dict[str, Any] = {"command": "evaluate", "plan": str(plan), **loaded.facts}
    facts |= {"name": info.method, "pairs": None, "methods": {}} if found is None else found.to_dict()
    facts |= {"not_scored": why, "replay": None, "false_positives_per_event": None}
    facts["balance"] = made.balance()
    if found is not None and finer is not None and "false-positives" in found.methods[found.name].costs:
        total = found.methods[found.name].costs["false-positives"].total
        facts["false_positives_per_event"] = per_event(total, finer, loaded.facts["flows"])
    if replayed is not None:
        facts["replay"] = {**replayed.facts(), "plan": replayed.plans[name].to_dict()}
    prints = loaded.fingerprints | {k: v for k, v in network.fingerprints.items() if k in info.inputs}
    if prints != {k: v for k, v in info.inputs.items() if k in prints or k not in COLUMNS}:
        typer.echo("the inputs differ from those that the plan was made from", err=True)
    unit = "messages a second" if per == "" else "messages"
    tables = {f"Costs of {plan}{per}": _rows(facts, unit)} if found is not None else {}
    if replayed is not None and replayed.n_events:
        tables[_replay_title(facts)] = _replayed_rows(facts)
        tables["False positives per event"] = _false_positive_rows(facts)
    elif replayed is not None:
        typer.echo(
            f"none of the {facts['events']:,} events matches a subscription, so none is sent", err=True
        )
    if facts["balance"] is not None:
        largest = f"The largest channel has {facts['balance']:.2f} times the mean number of members"
        tables[largest] = [PROSE]
    if why is not None:
        typer.echo(f"costs by flows are not computed: {why}", err=True)
    if facts["rejected"]:
        tables = {"Rejected rows": options.reasons(facts), **tables}
    options.show(facts, tables, as_json=as_json)


def _require_fitting(info: PlanInfo, topics: str | None, state: str | None) -> None:
    """Refuse inputs whose flows are of another kind than the plan's."""
    if info.flow_space == "ranges":
        raise PlanError(
            "the plan's flows are ranges of a partitioner, which have no costs; give another plan"
        )
    if state is not None and info.flow_space == "events":
        raise PlanError(
            "the plan's flows are events, which a --state does not have; give --subscriptions and --events"
        )
    if state is None and (info.flow_space == "topics") != (topics is not None):
        needs = "--interests" if info.flow_space == "topics" else "--subscriptions and --events"
        raise PlanError(f"the plan's flows are {info.flow_space}: needs {needs}")


def _per(loaded: LoadedInterest) -> str:
    """Return the unit of costs by flows, as the end of a title; empty where rates are per second."""
    from narrowcast.spark.stages.interest import extent, has

    if loaded.content is None:
        return ""
    if loaded.frames.flow_space == "events":
        return f" for the {loaded.facts['flows']:,} events of the plan"
    events = loaded.content.events
    return "" if has(events, "time") and extent(events)[1] else " per event"


def _replay_title(facts: dict[str, Any]) -> str:
    replay = facts["replay"]
    mine = replay["plan"]
    title = f"Total cost of {replay['events']:,} events, sent by the plan with router {mine['router']}"
    if mine["outside"]:
        title += f"; {mine['outside']:,} of them are in cells that no channel carries"
    return title


def _replayed_rows(facts: dict[str, Any]) -> list[tuple[str, ...]]:
    replay = facts["replay"]
    on_links = replay["unit"] == "links"
    gain = ("gain %",) if on_links else ()
    rows: list[tuple[str, ...]] = [
        ("sent by", "cost of links" if on_links else "messages", *gain, "by channel", "direct", "wasted")
    ]
    ways = {facts["name"]: replay["plan"]}
    ways |= {f"all {name}": replay[name] for name in ("unicast", "broadcast")} | {"ideal": replay["ideal"]}
    for name, each in ways.items():
        shown = (f"{each['improvement_pct']:.1f}",) if on_links else ()
        counts = (f"{each[key]:,}" for key in ("channel_messages", "direct_messages", "wasted"))
        rows.append((name, options.number(each["cost"]), *shown, *counts))
    return rows


def _false_positive_rows(facts: dict[str, Any]) -> list[tuple[str, ...]]:
    replay = facts["replay"]
    ways = {"the plan, by flows": facts["false_positives_per_event"]}
    ways[f"the plan, replayed with router {replay['plan']['router']}"] = replay["plan"][
        "false_positives_per_event"
    ]
    ways["all broadcast"] = replay["broadcast"]["false_positives_per_event"]
    rows: list[tuple[str, ...]] = [("sent by", "by subscriber", "by subscription")]
    rows += [
        (way, *(options.number(each[by]) for by in ("subscriber", "subscription")))
        for way, each in ways.items()
        if each is not None
    ]
    return rows


def _rows(facts: dict[str, Any], unit: str) -> list[tuple[str, ...]]:
    methods: dict[str, Any] = facts["methods"]
    first = next(iter(methods.values()))["costs"]
    costs, with_excess = options.columns_of(first)
    heads = [
        (cost, term)
        for cost in costs
        for term in (None, *first[cost]["terms"])
        # Beside a second cost there is no room for a column that is the same in all rows.
        if term not in _REPEATED.get(cost, ()) and not (term == "wanted" and len(costs) > 1)
        # Beside other costs, the overall cost shows its total only.
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
