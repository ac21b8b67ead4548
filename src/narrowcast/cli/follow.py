"""`narrowcast follow`: keep a plan up to date while interests and rates change."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from narrowcast.cli import choices, inputs, options, panels
from narrowcast.cli.set_option import Settings, for_plan, parameters
from narrowcast.errors import ParameterError

if TYPE_CHECKING:
    from narrowcast.costs.overall import Overall
    from narrowcast.planning.base import OnlinePlanner
    from narrowcast.spark.streaming.follow import FollowProgress


def follow(
    changes: Annotated[
        str,
        typer.Option(
            "--changes",
            metavar="FOLDER",
            help="Folder of files with time, subscriber, flow and action; new files are read as they arrive.",
            rich_help_panel=panels.INPUT,
        ),
    ],
    plan: Annotated[
        Path,
        typer.Option(
            "--plan",
            metavar="PLAN",
            help="Folder of the plan that is kept up to date; an existing plan is the start.",
        ),
    ],
    interests: Annotated[
        str | None,
        typer.Option(
            "--interests",
            metavar="I",
            help="Table with subscriber and flow: the interest before the changes (default: none).",
            rich_help_panel=panels.INPUT,
        ),
    ] = None,
    rates: inputs.Rates = None,
    events: Annotated[
        str | None,
        typer.Option(
            "--events",
            metavar="FOLDER",
            help="Folder of files with time, flow and, where a row is several events, events: rates are "
            "learned from them (default: rates are constant).",
            rich_help_panel=panels.INPUT,
        ),
    ] = None,
    flow: Annotated[
        str,
        typer.Option(
            "--flow",
            metavar="COLUMN",
            help="Column of --events that names the flow.",
            rich_help_panel=panels.INPUT,
        ),
    ] = "flow",
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="M",
            help=f"On-line planner: {', '.join(choices.ONLINE_METHODS)}; or another method, which then "
            "plans from scratch for each batch.",
            rich_help_panel=panels.PLANNING,
        ),
    ] = "tamara",
    channels: Annotated[
        int | None,
        typer.Option(
            "--channels",
            metavar="K",
            help="Maximum number of channels; required by most methods.",
            rich_help_panel=panels.PLANNING,
        ),
    ] = None,
    settings: Settings = None,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Process the files that exist now, then end.", rich_help_panel=panels.STREAM
        ),
    ] = False,
    every: Annotated[
        float,
        typer.Option(
            "--every",
            metavar="SECONDS",
            help="Seconds between micro-batches; 0 for no pause.",
            rich_help_panel=panels.STREAM,
        ),
    ] = 0.0,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            help="Maximum number of files in a micro-batch (default: 1,000).",
            rich_help_panel=panels.STREAM,
        ),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            "--rows",
            metavar="N",
            help="Maximum number of changes that are applied at once (default: 1,000,000).",
            rich_help_panel=panels.STREAM,
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="DIR",
            help="Folder of the checkpoint (default: PLAN.checkpoint).",
            rich_help_panel=panels.STREAM,
        ),
    ] = None,
    rejected: Annotated[
        str | None,
        typer.Option(
            "--rejected",
            metavar="R",
            help="Write rejected rows to this table (default: PLAN.rejected).",
            rich_help_panel=panels.INPUT,
        ),
    ] = None,
    seed: options.Seed = 0,
    master: options.Master = options.LOCAL,
    conf: options.Conf = None,
    ui: options.Ui = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Keep a plan up to date while interests and rates change.

    Each micro-batch of changes goes to an on-line planner. The folder PLAN is then replaced, for
    `narrowcast stream` to read, and PLAN.deltas gets the rows that changed, for brokers. One line is printed
    per micro-batch. With --events, rates are learned from the events; without, they stay as they are.

    A plan that is in PLAN at the first start is the starting point; --interests is the interest at that time.
    Interrupt to stop; the next start continues with the first change that was not processed.

    Examples:

        narrowcast follow --changes log/ --plan plan --once

        narrowcast follow --changes log/ --interests i.parquet --rates r.csv --plan plan --every 10

        narrowcast follow --changes log/ --events events/ --flow symbol --plan plan --every 60

        narrowcast follow --changes log/ --plan plan --method tamara-tidy --set period=3600 --json
    """
    from narrowcast.spark.streaming.event_source import FILES
    from narrowcast.spark.streaming.follow import ROWS, Follow

    if not (every == 0 or 0.001 <= every < 1e6):
        raise ParameterError(
            parameter="every", value=every, limit="seconds of at least 0.001, or 0 for no pause"
        )
    if once and every:
        raise ParameterError("--once and --every exclude each other; leave one out")
    for name, value in (("limit", limit), ("rows", rows)):
        if value is not None and value < 1:
            raise ParameterError(parameter=name, value=value, limit="at least 1")
    params, model, planner = _planner(method, channels, seed, settings)
    out = sys.stdout  # a progress bar replaces sys.stdout by one that prints above the bar
    with options.spark_at(master, conf, ui=ui) as at:
        task = at.progress.add_task("make the first plan", total=None)

        def on_batch(done: FollowProgress) -> None:
            text = msgspec.json.encode(done).decode() if as_json else line_of(done)
            print(text, file=sys.stdout if out.isatty() else out, flush=True)
            at.progress.update(task, description=f"wait for files after batch {done.batch}")

        job = Follow(
            at.spark,
            changes,
            plan,
            planner,
            interests=interests,
            rates=rates,
            events=events,
            flow=flow,
            method=method,
            params=params,
            model=model,
            checkpoint=checkpoint,
            rejected=rejected,
            limit=FILES if limit is None else limit,
            rows=ROWS if rows is None else rows,
            on_batch=on_batch,
        )
        try:
            at.progress.update(task, description="wait for files")
            job.start(once=once, every=every)
            job.wait()
        except KeyboardInterrupt:
            at.progress.update(task, description="ending after this micro-batch; interrupt again to end now")
            job.stop()


def _planner(
    method: str, channels: int | None, seed: int, settings: list[str] | None
) -> tuple[dict[str, Any], Overall, OnlinePlanner]:
    """Return the planner's parameters, the cost model, and the planner, made on-line if it is not."""
    from narrowcast.costs.overall import Overall
    from narrowcast.planning.base import PLANNERS
    from narrowcast.planning.replanner import check_positive, online
    from narrowcast.spark.planning.planner_parameters import check_planner, make_planner

    is_online = PLANNERS[method].capabilities.online
    given = parameters(settings or [])
    if "start" in given:
        raise ParameterError("start: the plan in the folder --plan is the start; leave --set start out")
    # A planner that plans from scratch does not count events itself: the half-life goes to its wrapper.
    wrapper = {} if is_online else _removed(given, "half_life")
    params, scoring = for_plan(given, method, ["overall"])
    check_planner(method, channels=channels, seed=seed, params=params)
    planner = online(make_planner(method, channels=channels, seed=seed, params=params), **wrapper)
    check_positive("half_life", planner.half_life)
    return {"channels": channels, **params, **wrapper}, Overall(**scoring), planner


def _removed(given: dict[str, Any], name: str) -> dict[str, Any]:
    """Remove a parameter from others, and return it if it is there."""
    return {name: given.pop(name)} if name in given else {}


def line_of(done: FollowProgress) -> str:
    """Return the results of a micro-batch as one line.

    Examples
    --------
    >>> from narrowcast.spark.streaming.follow import FollowProgress
    >>> line_of(FollowProgress(3, 120, 2, 0, 14, 1234.5, 5, 1, {"base": 9, "survey": 0}, 0.5))
    'batch 3: 120 changes, 2 ignored; 14 channels, overall cost 1,234.5; rows +5 -1; messages: base 9'
    >>> line_of(FollowProgress(4, 0, 0, 0, 14, 1200.0, 0, 0, {}, 0.5, events=900, unknown=7, moved=2))
    'batch 4: 0 changes, 0 ignored; 900 events, 7 of unknown flows, 2 rates moved; 14 channels, overall ...'
    """
    parts = [f"batch {done.batch}: {done.changes:,} changes, {done.ignored:,} ignored"]
    parts[0] += f", {done.rejected:,} rejected" if done.rejected else ""
    if done.events:
        unknown = f", {done.unknown:,} of unknown flows" if done.unknown else ""
        parts += [f"{done.events:,} events{unknown}, {done.moved:,} rates moved"]
    parts += [f"{done.channels:,} channels, overall cost {options.number(done.cost)}"]
    parts += [f"rows +{done.added:,} -{done.removed:,}"]
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in done.messages.items() if count)
    return "; ".join([*parts, *([f"messages: {kinds}"] if kinds else [])])
