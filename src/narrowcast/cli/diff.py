"""`narrowcast diff`: what changes between two plans."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from narrowcast.cli import options
from narrowcast.errors import ParameterError
from narrowcast.files import check_new_table, write_new_table
from narrowcast.model.artefact import read_plan
from narrowcast.model.diff import CountChange, diff_plans, renumbered
from narrowcast.model.migration import migration, peak

if TYPE_CHECKING:
    from narrowcast.model.artefact import PlanInfo
    from narrowcast.model.diff import PlacementMoves, PlanDiff

#: Subscriptions that the terminal shows at most.
_SHOWN = 12
#: Parameters of plans that say what of their tables they were made from, by what their flows are.
_CHOSEN = {"events": ("recent", "last", "window"), "cells": ("top", "grid"), "all": ("until",)}


def diff(
    before: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan in use: a folder.")],
    after: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan that may follow it.")],
    renumber: Annotated[
        bool,
        typer.Option(
            "--renumber",
            help="First number the second plan's channels to fit the first one's best, by the flows and "
            "listeners they share: planners number channels as they come.",
        ),
    ] = False,
    steps: Annotated[
        Path | None,
        typer.Option(
            "--steps",
            metavar="FILE",
            help="Write the way from the first plan to the second, on which nobody misses a message: a new "
            "file, .csv, .jsonl or .parquet.",
        ),
    ] = None,
    memberships: Annotated[
        int | None,
        typer.Option(
            "--memberships",
            metavar="N",
            help="With --steps: the most groups that a subscriber is in on the way, if it is in no more in "
            "either plan; what it would miss is sent directly meanwhile.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document and nothing else.")
    ] = False,
) -> None:
    """Show what changes between two plans: channels, flows and subscribers moved, costs before and after.

    Of plans both made with --by subscription it also tells which subscriptions are in another channel; --json
    has all of them. Plans from different tables, or from other events of the same ones, are told of.

    Examples:

        narrowcast diff plans/monday plans/tuesday --renumber

        narrowcast diff plans/monday plans/tuesday --steps migration.csv --memberships 20
    """
    if steps is not None:
        check_new_table(steps)
    elif memberships is not None:
        raise ParameterError(f"--memberships is {memberships}, and no steps are written; give --steps FILE")
    old, old_info = read_plan(before)
    new, new_info = read_plan(after)
    shown = renumbered(new, old) if renumber else new
    found = diff_plans(old, shown, costs_before=old_info.costs, costs_after=new_info.costs)
    # Renumbering may leave unused numbers; they are no channels of the plan.
    found = msgspec.structs.replace(found, channels=CountChange(old.n_channels, new.n_channels))
    facts = msgspec.to_builtins(found)
    if steps is not None:
        way = migration(old, shown, memberships=memberships)
        write_new_table(way, steps)
        facts["memberships_on_the_way"] = peak(old, way)
    if as_json:
        typer.echo(msgspec.json.encode(facts).decode())
    else:
        _print(found, f"{old_info.method} to {new_info.method}")
    if steps is not None and not as_json:
        typer.echo(f"on the way a subscriber is in at most {facts['memberships_on_the_way']:,} groups")
    if (old.subscriptions is None) != (new.subscriptions is None):
        finer, whole = (before, after) if new.subscriptions is None else (after, before)
        typer.echo(
            f"{finer} puts each subscription into a channel and {whole} whole subscribers: which "
            "subscriptions moved cannot be told",
            err=True,
        )
    if (differ := _sources(old_info, new_info)) or (
        old_info.flow_space == new_info.flow_space == "events" and old.n_flows != new.n_flows
    ):
        of = f" ({', '.join(differ)})" if differ else ""
        typer.echo(f"the plans were made from different inputs{of}: their costs do not compare", err=True)


def _sources(old: PlanInfo, new: PlanInfo) -> list[str]:
    """Return in what two plans differ of what they were made from: tables, and what was chosen of them."""
    tables = sorted({*old.inputs, *new.inputs})
    found = [name for name in tables if old.inputs.get(name) != new.inputs.get(name)]
    if old.flow_space != new.flow_space:
        return [*found, "flows"]
    chosen = _CHOSEN.get(old.flow_space, ()) + _CHOSEN["all"]
    return found + [name for name in chosen if old.params.get(name) != new.params.get(name)]


def _print(found: PlanDiff, title: str) -> None:
    """Print the numbers as two tables."""
    console = Console()
    rows = _table(title, "", "before", "after", "moved", "added", "removed")
    rows.add_row("channels", f"{found.channels.before:,}", f"{found.channels.after:,}")
    if found.regrouped:
        rows.add_row("sessions in another group", "", "", f"{found.regrouped:,}")
    moved = {"flows": found.flows, "subscribers": found.subscribers}
    if found.subscriptions is not None:
        moved["subscriptions"] = found.subscriptions
    for name, moves in moved.items():
        rows.add_row(name, "", "", f"{moves.moved:,}", f"{moves.added:,}", f"{moves.removed:,}")
    for name, change in (("listens", found.listens), ("unicast pairs", found.unicast)):
        rows.add_row(name, "", "", "", f"{change.added:,}", f"{change.dropped:,}")
    console.print(rows)
    if found.subscriptions is not None and found.subscriptions.which:
        console.print(_which(found.subscriptions))
    if found.costs:
        costs = _table("", "cost", "before", "after", "change")
        for name, cost in found.costs.items():
            change_pct = "" if cost.change_pct is None else f"{cost.change_pct:+.1f} %"
            costs.add_row(
                name,
                *("" if each is None else options.number(each) for each in (cost.before, cost.after)),
                change_pct,
            )
        console.print(costs)


def _which(moves: PlacementMoves) -> Table:
    """Return the channels of subscriptions that moved, came or went, the first of them."""
    rows = _table("", "subscription", "channel before", "channel after")
    for each in moves.which[:_SHOWN]:
        channels = ("none" if value is None else str(value) for value in (each.before, each.after))
        rows.add_row(str(each.subscription_id), *channels)
    if (more := len(moves.which) - _SHOWN) > 0:
        rows.add_row(f"... and {more:,} more")
    return rows


def _table(title: str, *head: str) -> Table:
    table = Table(title=title or None, title_justify="left", title_style="bold")
    for i, name in enumerate(head):
        table.add_column(name, justify="right" if i else "left")
    return table
