"""`narrowcast explain`: how a plan treats an event, a subscriber or a channel, and why."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narrowcast.cli import choices, explain_tables, inputs, options, panels
from narrowcast.cli.event_option import read_event
from narrowcast.cli.set_option import parameters
from narrowcast.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narrowcast.model.labels import Labels
    from narrowcast.report.explain import PlanContext
    from narrowcast.report.explain.event import EventSender


def explain(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="Folder of the plan.")],
    event: Annotated[
        str | None,
        typer.Option(
            "--event",
            metavar="JSON",
            help="Explain this event: a JSON object, @FILE, or - for standard input (default: none).",
            rich_help_panel=panels.SUBJECT,
        ),
    ] = None,
    subscriber: Annotated[
        str | None,
        typer.Option(
            "--subscriber",
            metavar="S",
            help="Explain this subscriber; with --event, why it does or does not get the event (default: "
            "none).",
            rich_help_panel=panels.SUBJECT,
        ),
    ] = None,
    channel: Annotated[
        int | None,
        typer.Option(
            "--channel",
            metavar="C",
            help="Explain the channel of this number (default: none).",
            rich_help_panel=panels.SUBJECT,
        ),
    ] = None,
    subscriptions: inputs.Subscriptions = None,
    events: inputs.Events = None,
    interests: inputs.Interests = None,
    rates: inputs.Rates = None,
    topology: inputs.Topology = None,
    locations: inputs.Locations = None,
    publishers: inputs.Publishers = None,
    publisher: Annotated[
        str | None,
        typer.Option(
            "--publisher",
            metavar="NODE",
            help="Node that publishes the event (default: averaged over --publishers).",
            rich_help_panel=panels.NETWORK,
        ),
    ] = None,
    flow: Annotated[
        str | None,
        typer.Option(
            "--flow",
            metavar="NAME",
            help="Attribute that holds the topic of the event (default: flow).",
            rich_help_panel=panels.SUBJECT,
        ),
    ] = None,
    router: Annotated[
        str | None,
        typer.Option(
            "--router",
            metavar="R",
            help=f"Router that decides: {', '.join(choices.ROUTERS)} (default: the one that suits the "
            "plan's method).",
            rich_help_panel=panels.SUBJECT,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a parameter of the router, such as threshold=0.15; repeatable. `--set help` lists "
            "them.",
            rich_help_panel=panels.SUBJECT,
        ),
    ] = None,
    schema: options.SchemaFile = None,
    rows: Annotated[
        int, typer.Option("--rows", metavar="N", help="Maximum number of rows of each list.", min=1)
    ] = 5,
    as_json: options.Json = False,
) -> None:
    """Explain how a plan treats an event, a subscriber or a channel, and why.

    For an event: its flow or cell, the cost of each possible route and why one was chosen, who receives it,
    and which predicate fails for subscribers that receive it without wanting it. Interest comes from the
    filters of --subscriptions, or for topics from --interests. Costs are those of links with a --topology,
    else numbers of messages.

    The waste of a subscriber or a channel is computed from --interests, or for a plan of cells or events from
    --subscriptions and --events; without them, the answer has only what is in the plan. Spark is not used.

    Examples:

        narrowcast explain plan --event '{"price": 80, "name": "IBM"}' --subscriptions s.parquet

        narrowcast explain plan --event @e.json --subscriber ann --subscriptions s.csv --topology t.csv

        narrowcast explain plan --subscriber ann --interests i.parquet --rates r.csv

        narrowcast explain plan --channel 3 --subscriptions s.parquet --events e.parquet
    """
    import pyarrow as pa

    from narrowcast.costs.network import Network
    from narrowcast.planning.base import router_for
    from narrowcast.report.explain import PlanContext, explain_channel, explain_event, explain_subscriber
    from narrowcast.report.explain.event import EventSender
    from narrowcast.report.explain.plan_context import place_of
    from narrowcast.routing.router_parameters import router_maker
    from narrowcast.spark.stages.network import NetworkTables

    if event is None and subscriber is None and channel is None:
        raise ParameterError("nothing to explain: needs --event, --subscriber or --channel")
    if channel is not None and not (event is subscriber is None):
        raise ParameterError(
            f"--channel={channel}: cannot be combined with --event or --subscriber",
            parameter="channel",
            value=channel,
        )
    about = {
        "topology": topology,
        "locations": locations,
        "publishers": publishers,
        "publisher": publisher,
        "flow": flow,
        "router": router,
        "set": settings,
    }
    if event is None and (odd := [name for name, value in about.items() if value]):
        raise ParameterError(f"--{odd[0]}: only for an event; add --event, or leave it out")
    read = None if event is None else read_event(event)
    known = PlanContext(
        plan,
        subscriptions=subscriptions,
        events=events,
        interests=interests,
        rates=rates,
        schema=schema,
        event=read,
    )
    facts: dict[str, Any] = {
        "command": "explain",
        "plan": str(plan),
        "method": known.info.method,
        "flow_space": known.flow_space,
    }
    if flow is not None and known.flow_space != "topics":
        raise ParameterError(
            f"--flow={flow!r}: only for plans of topics, and this plan's flows are {known.flow_space}",
            parameter="flow",
            value=flow,
        )
    if read is not None:
        _check_names(read, known, flow, typed=not (schema is None and events is None))
        name = router or router_for(known.info.method, known.flow_space)
        make = router_maker(name, parameters(settings or []))
        tables = NetworkTables.read(topology, locations, publishers)
        if publisher is not None and tables.topology is None:
            raise ParameterError(
                f"--publisher={publisher!r}: needs --topology; give both, or neither",
                parameter="publisher",
                value=publisher,
            )

        def sender(labels: Labels) -> EventSender:
            fitting = tables.fitting(text=not pa.types.is_integer(labels.type))
            network = Network(**fitting.given) if fitting.topology else None
            place = None
            if publisher is not None and network is not None:
                place = place_of("node", publisher, network.topology.nodes)
            return EventSender(make(network), network, place)

        found = explain_event(known, read, sender, flow=flow, subscriber=subscriber, rows=rows)
        unit = "messages" if tables.topology is None else "cost of links"
        facts |= {"router": name, "unit": unit} | found
        shown = explain_tables.event(facts, rows)
    elif subscriber is not None:
        facts |= explain_subscriber(known, subscriber, rows=rows)
        shown = explain_tables.subscriber(facts, rows)
    else:
        assert channel is not None
        facts |= explain_channel(known, channel, rows=rows)
        shown = explain_tables.channel(facts)
    options.show(facts, shown, as_json=as_json)


def _check_names(event: Mapping[str, Any], known: PlanContext, flow: str | None, *, typed: bool) -> None:
    """Refuse an attribute that events do not have.

    Without typed events, the known attributes are those of filters and cells: then an unknown attribute is
    refused when it resembles a known one that the event lacks, and otherwise only reported.
    """
    from narrowcast.model.schema import EVENT_ID

    names = dict.fromkeys(name.partition(".")[0] for name in known.schema.names)
    lower = {name.lower() for name in (*names, EVENT_ID, "time", flow or "flow")}
    given = {name.lower() for name in event}
    for name in event:
        if name.lower() in lower:
            continue
        close = [each for each in difflib.get_close_matches(name, names, 1) if each.lower() not in given]
        if typed or close:
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names) or 'none'}"
            raise ParameterError(
                f"--event: unknown attribute {name!r}; {hint}", parameter="event", value=name
            )
        if names:
            typer.echo(
                f"--event: no filter or cell uses attribute {name!r}; they use {', '.join(names)}", err=True
            )
