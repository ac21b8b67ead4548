"""The options that say what a plan is made from, or evaluated on."""

from __future__ import annotations

from typing import Annotated

import typer

from narrowcast.errors import ParameterError
from narrowcast.spark.stages.plan_inputs import FLOWS

Interests = Annotated[
    str | None,
    typer.Option("--interests", metavar="I", help="Table: subscriber, flow: who wants which topic."),
]
Rates = Annotated[
    str | None, typer.Option("--rates", metavar="R", help="Table: flow, rate (events a second; else 1 each).")
]
Changes = Annotated[
    str | None,
    typer.Option(
        "--changes",
        metavar="C",
        help="Table: time, subscriber, flow, action: changes since --interests.",
    ),
]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help="The last moment of --changes and --rates that counts."),
]
Subscriptions = Annotated[
    str | None,
    typer.Option("--subscriptions", metavar="S", help="Table: subscription_id, subscriber, filter."),
]
Events = Annotated[
    str | None,
    typer.Option("--events", metavar="E", help="Table: event_id, and a column per attribute."),
]
State = Annotated[
    str | None,
    typer.Option("--state", metavar="DIR", help="What narrowcast stream keeps: rates and interests."),
]
Flows = Annotated[
    str, typer.Option("--flows", metavar="NAME", help=f"Of filters and events make: {' or '.join(FLOWS)}.")
]
Recent = Annotated[
    int | None, typer.Option("--recent", metavar="N", help="The last N events that somebody wanted.")
]
Last = Annotated[
    int | None, typer.Option("--last", metavar="N", help="The last N events that each subscription matched.")
]
Window = Annotated[
    float | None, typer.Option("--window", metavar="SECONDS", help="The events of the last so many seconds.")
]
Topology = Annotated[
    str | None, typer.Option("--topology", metavar="T", help="Table: a, b, cost: the links of a network.")
]
Locations = Annotated[
    str | None,
    typer.Option("--locations", metavar="L", help="Table: subscriber, node; else the node of the same name."),
]
Publishers = Annotated[
    str | None,
    typer.Option(
        "--publishers",
        metavar="P",
        help="Table: node, or event_id, node: where events come from.",
    ),
]
Costs = Annotated[
    list[str] | None,
    typer.Option("--cost", metavar="C", help="A cost to tell; can be repeated. Default: all there can be."),
]
Cells = Annotated[
    str, typer.Option("--cells", metavar="C", help="Cells along each attribute; auto: as many as pays.")
]
Top = Annotated[int | None, typer.Option("--top", metavar="T", help="Keep the T heaviest cells; else all.")]


def cells_of(text: str) -> int | None:
    """Return how many cells a text asks for, None for as many as pays.

    >>> cells_of("5"), cells_of("auto")
    (5, None)
    """
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise ParameterError(f"--cells is {text!r}; give a whole number of at least 1, or auto") from None
