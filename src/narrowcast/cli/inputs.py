"""Options for the tables that a plan is made from or evaluated on."""

from __future__ import annotations

from typing import Annotated

import typer

from narrowcast.cli import choices, panels
from narrowcast.errors import ParameterError

Interests = Annotated[
    str | None,
    typer.Option(
        "--interests",
        metavar="I",
        help="Table with subscriber and flow: the topics that each subscriber wants (default: none).",
        rich_help_panel=panels.INPUT,
    ),
]
Rates = Annotated[
    str | None,
    typer.Option(
        "--rates",
        metavar="R",
        help="Table with flow and rate in events per second (default: 1 for every flow).",
        rich_help_panel=panels.INPUT,
    ),
]
Changes = Annotated[
    str | None,
    typer.Option(
        "--changes",
        metavar="C",
        help="Table with time, subscriber, flow and action: changes after --interests, or from nothing "
        "(default: none).",
        rich_help_panel=panels.INPUT,
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        "--until",
        metavar="TIME",
        help="Ignore rows of --changes and --rates after this time, such as 2026-11-16T09:00:00 "
        "(default: use all).",
        rich_help_panel=panels.INPUT,
    ),
]
Subscriptions = Annotated[
    str | None,
    typer.Option(
        "--subscriptions",
        metavar="S",
        help="Table with subscription_id, subscriber and filter (default: none).",
        rich_help_panel=panels.INPUT,
    ),
]
Events = Annotated[
    str | None,
    typer.Option(
        "--events",
        metavar="E",
        help="Table with event_id and one column per attribute (default: none).",
        rich_help_panel=panels.INPUT,
    ),
]
State = Annotated[
    str | None,
    typer.Option(
        "--state",
        metavar="DIR",
        help="Folder of rates and interests that `narrowcast stream --state` writes (default: none).",
        rich_help_panel=panels.INPUT,
    ),
]
Flows = Annotated[
    str,
    typer.Option(
        "--flows",
        metavar="NAME",
        help="What a flow is when planning from filters and events: `events` (recent events) or `cells` "
        "(cells of a grid over the attributes).",
        rich_help_panel=panels.FLOWS,
    ),
]
Recent = Annotated[
    int | None,
    typer.Option(
        "--recent",
        metavar="N",
        help="Use the last N events that match a subscription (default: "
        f"{choices.RECENT:,} for flows of events, all for cells).",
        rich_help_panel=panels.FLOWS,
    ),
]
Last = Annotated[
    int | None,
    typer.Option(
        "--last",
        metavar="N",
        help="Use the last N matching events of each subscription (default: no such limit).",
        rich_help_panel=panels.FLOWS,
    ),
]
Window = Annotated[
    float | None,
    typer.Option(
        "--window",
        metavar="SECONDS",
        help="Use events of the last SECONDS before the latest event (default: no such limit).",
        rich_help_panel=panels.FLOWS,
    ),
]
Topology = Annotated[
    str | None,
    typer.Option(
        "--topology",
        metavar="T",
        help="Table with a, b and cost: the links of the network (default: no network).",
        rich_help_panel=panels.NETWORK,
    ),
]
Locations = Annotated[
    str | None,
    typer.Option(
        "--locations",
        metavar="L",
        help="Table with subscriber and node (default: each subscriber is at the node of its own name).",
        rich_help_panel=panels.NETWORK,
    ),
]
Publishers = Annotated[
    str | None,
    typer.Option(
        "--publishers",
        metavar="P",
        help="Table with node, or with event_id and node: where events are published "
        "(default: at every node alike).",
        rich_help_panel=panels.NETWORK,
    ),
]
Costs = Annotated[
    list[str] | None,
    typer.Option(
        "--cost",
        metavar="C",
        help=f"Cost model: {', '.join(choices.COSTS)}; repeatable (default: all that the input allows).",
        rich_help_panel=panels.PLANNING,
    ),
]
Cells = Annotated[
    str,
    typer.Option(
        "--cells",
        metavar="C",
        help="Grid cells along each attribute; `auto` chooses a number from the data.",
        rich_help_panel=panels.FLOWS,
    ),
]
Top = Annotated[
    int | None,
    typer.Option(
        "--top",
        metavar="T",
        help="Use only the T cells with the highest rate times subscribers (default: all cells).",
        rich_help_panel=panels.FLOWS,
    ),
]


def cells_of(text: str) -> int | None:
    """Return the number of cells that ``--cells`` asks for, None for ``auto``.

    >>> cells_of("5"), cells_of("auto")
    (5, None)
    """
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise ParameterError(
            parameter="cells", value=text, limit="an integer of at least 1, or auto"
        ) from None
