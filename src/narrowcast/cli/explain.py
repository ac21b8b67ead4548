"""`narrowcast explain`: why an event, a subscriber or a channel is treated as it is."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import typer

from narrowcast.cli import explain_tables, inputs, options
from narrowcast.cli.event_option import read_event
from narrowcast.cli.set_option import parameters
from narrowcast.costs.network import Network
from narrowcast.errors import ParameterError
from narrowcast.model.schema import EVENT_ID
from narrowcast.planning.base import router_for
from narrowcast.report.explain import PlanContext, explain_channel, explain_event, explain_subscriber
from narrowcast.report.explain.event import EventSender
from narrowcast.report.explain.plan_context import place_of
from narrowcast.routing import ROUTERS
from narrowcast.routing.router_parameters import router_maker
from narrowcast.spark.stages.network import NetworkTables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narrowcast.model.labels import Labels


def explain(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan: a folder.")],
    event: Annotated[
        str | None, typer.Option("--event", metavar="JSON", help="Explain this event: JSON, @FILE or -.")
    ] = None,
    subscriber: Annotated[
        str | None,
        typer.Option("--subscriber", metavar="S", help="Explain this subscriber, or the event for it."),
    ] = None,
    channel: Annotated[
        int | None, typer.Option("--channel", metavar="C", help="Explain this channel, by its number.")
    ] = None,
    subscriptions: inputs.Subscriptions = None,
    events: inputs.Events = None,
    interests: inputs.Interests = None,
    rates: inputs.Rates = None,
    topology: inputs.Topology = None,
    locations: inputs.Locations = None,
    publishers: inputs.Publishers = None,
    publisher: Annotated[
        str | None, typer.Option("--publisher", metavar="NODE", help="Where the event comes from.")
    ] = None,
    flow: Annotated[
        str | None,
        typer.Option("--flow", metavar="NAME", help="The attribute that has an event's topic; else flow."),
    ] = None,
    router: Annotated[
        str | None,
        typer.Option("--router", metavar="R", help=f"What decides: {', '.join(ROUTERS)}; else what fits."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the router, as threshold=0.15."),
    ] = None,
    schema: options.SchemaFile = None,
    rows: Annotated[int, typer.Option("--rows", metavar="N", min=1, help="Of lists, the first N.")] = 5,
    as_json: options.Json = False,
) -> None:
    """Tell why an event goes where it goes, what a subscriber gets and why, or what a channel is good for.

    For an event: the flow or cell it falls in, what each way costs and why one was chosen, who gets it, and
    which predicate fails for those who get it in vain. It says who is interested by the filters of
    --subscriptions, or for topics by --interests. On a --topology costs are those of links, else messages.

    What is wasted on a subscriber or in a channel follows from --interests, or for a plan of cells or events
    from --subscriptions and --events. Without them, what the plan itself says is told. All is read in this
    process, without Spark.

    Examples:

        narrowcast explain plan --event '{"price": 80, "name": "IBM"}' --subscriptions s.parquet

        narrowcast explain plan --event @e.json --subscriber ann --subscriptions s.csv --topology t.csv

        narrowcast explain plan --subscriber ann --interests i.parquet --rates r.csv

        narrowcast explain plan --channel 3 --subscriptions s.parquet --events e.parquet
    """
    if event is None and subscriber is None and channel is None:
        raise ParameterError("nothing to explain; give one of --event, --subscriber, --channel")
    if channel is not None and not (event is subscriber is None):
        raise ParameterError("give --channel alone: it goes with neither --event nor --subscriber")
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
        raise ParameterError(f"--{odd[0]} is about an event; give --event with it, or leave it out")
    told = None if event is None else read_event(event)
    known = PlanContext(
        plan,
        subscriptions=subscriptions,
        events=events,
        interests=interests,
        rates=rates,
        schema=schema,
        event=told,
    )
    facts: dict[str, Any] = {
        "command": "explain",
        "plan": str(plan),
        "method": known.info.method,
        "flow_space": known.flow_space,
    }
    if flow is not None and known.flow_space != "topics":
        raise ParameterError(
            f"--flow names a topic, and the plan's flows are {known.flow_space}; leave it out"
        )
    if told is not None:
        _check_names(told, known, flow, typed=not (schema is None and events is None))
        name = router or router_for(known.info.method, known.flow_space)
        make = router_maker(name, parameters(settings or []))
        tables = NetworkTables.read(topology, locations, publishers)
        if publisher is not None and tables.topology is None:
            raise ParameterError("--publisher is given without --topology; give both, or neither")

        def sender(labels: Labels) -> EventSender:
            fitting = tables.fitting(text=not pa.types.is_integer(labels.type))
            network = Network(**fitting.given) if fitting.topology else None
            place = None
            if publisher is not None and network is not None:
                place = place_of("node", publisher, network.topology.nodes)
            return EventSender(make(network), network, place)

        found = explain_event(known, told, sender, flow=flow, subscriber=subscriber, rows=rows)
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
    """Refuse an attribute that events lack; where only filters and cells tell, one spelt like another.

    Of others that none of them looks at it is said so: events may have more than anybody asks for.
    """
    names = dict.fromkeys(name.partition(".")[0] for name in known.schema.names)
    lower = {name.lower() for name in (*names, EVENT_ID, "time", flow or "flow")}
    given = {name.lower() for name in event}
    for name in event:
        if name.lower() in lower:
            continue
        close = [each for each in difflib.get_close_matches(name, names, 1) if each.lower() not in given]
        if typed or close:
            hint = f"did you mean {close[0]!r}?" if close else f"they have {', '.join(names) or 'none'}"
            raise ParameterError(f"--event has {name!r}, which events do not have; {hint}")
        if names:
            said = f"--event has {name!r}, which no filter or cell looks at; they look at {', '.join(names)}"
            typer.echo(said, err=True)
