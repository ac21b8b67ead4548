"""`narrowcast follow`: a plan that goes along with its users."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from narrowcast.cli import inputs, options
from narrowcast.cli.set_option import Settings, for_plan, parameters
from narrowcast.costs.overall import Overall
from narrowcast.errors import ParameterError
from narrowcast.planning.base import PLANNERS, planners
from narrowcast.planning.replanner import check_positive, online
from narrowcast.spark.planning.planner_parameters import check_planner, make_planner

if TYPE_CHECKING:
    from typing import Any

    from narrowcast.planning.base import OnlinePlanner
    from narrowcast.spark.streaming.follow import FollowProgress


def follow(
    changes: Annotated[
        str,
        typer.Option(
            "--changes",
            metavar="FOLDER",
            help="A folder that tables are added to: time, subscriber, flow, action.",
        ),
    ],
    plan: Annotated[
        Path,
        typer.Option("--plan", metavar="PLAN", help="The plan: one to start from, or a folder to be made."),
    ],
    interests: inputs.Interests = None,
    rates: inputs.Rates = None,
    events: Annotated[
        str | None,
        typer.Option(
            "--events",
            metavar="FOLDER",
            help="A folder that tables are added to: time, flow, and events where a row is not one.",
        ),
    ] = None,
    flow: Annotated[
        str, typer.Option("--flow", metavar="COLUMN", help="The column of events that names their flow.")
    ] = "flow",
    method: Annotated[
        str,
        typer.Option(
            "--method", metavar="M", help=f"{', '.join(planners(online=True))}, or any that then plans anew."
        ),
    ] = "tamara",
    channels: Annotated[
        int | None,
        typer.Option("--channels", metavar="K", help="The most channels; most methods need it."),
    ] = None,
    settings: Settings = None,
    once: Annotated[bool, typer.Option("--once", help="Take what is there now, and end.")] = False,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", help="From one micro-batch to the next.")
    ] = 0.0,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", help="Files that a micro-batch takes at most.")
    ] = None,
    rows: Annotated[
        int | None, typer.Option("--rows", metavar="N", help="Changes that are taken up at once at most.")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="DIR", help="Its own folder; by default PLAN.checkpoint."),
    ] = None,
    rejected: Annotated[
        str | None,
        typer.Option("--rejected", metavar="R", help="Where bad rows go; by default PLAN.rejected."),
    ] = None,
    seed: options.Seed = 0,
    master: options.Master = options.LOCAL,
    conf: options.Conf = None,
    ui: options.Ui = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object in each line.")] = False,
) -> None:
    """Keep a plan good while interests and rates change, and go on after a stop where it was.

    Each micro-batch of changes goes to an on-line planner. PLAN is then replaced, for narrowcast stream to
    take up, and PLAN.deltas gets the rows that changed, for brokers. A line tells what each came to.

    From --events it learns how often flows send, also when that changes; without, rates stay as they are.

    A plan that is in PLAN at the first start is what it begins with; --interests says who wants what by then.
    Interrupt it to stop; started again it goes on with the first change that was not taken up.

    Examples:

        narrowcast follow --changes log/ --plan plan --once

        narrowcast follow --changes log/ --interests i.parquet --rates r.csv --plan plan --every 10

        narrowcast follow --changes log/ --events events/ --flow symbol --plan plan --every 60

        narrowcast follow --changes log/ --plan plan --method tamara-tidy --set period=3600 --json
    """
    from narrowcast.spark.streaming.follow import ROWS, Follow
    from narrowcast.spark.streaming.incoming import FILES

    if not (every == 0 or 0.001 <= every < 1e6):
        raise ParameterError(f"--every is {every}; give seconds, at least 0.001, or 0 to go on at once")
    if once and every:
        raise ParameterError("--once ends when all is taken up, and --every goes on; leave one out")
    for name, value in (("limit", limit), ("rows", rows)):
        if value is not None and value < 1:
            raise ParameterError(f"--{name} is {value}; let a micro-batch take at least 1")
    params, model, planner = _planner(method, channels, seed, settings)
    out = sys.stdout  # a progress bar puts another in its place, which goes where the bar is
    with options.spark_at(master, conf, ui=ui) as at:
        task = at.progress.add_task("make the first plan", total=None)

        def heard(done: FollowProgress) -> None:
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
            heard=heard,
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
    """Return what to say of the planner, what things cost, and the planner: any plans anew if need be."""
    follows = PLANNERS[method].capabilities.online
    given = parameters(settings or [])
    if "start" in given:
        raise ParameterError("start is the plan that is in PLAN; put it there, and leave --set start out")
    # One that plans anew does not count events itself: the half-life is of those that are counted for it.
    anew = {} if follows else _taken(given, "half_life")
    params, told = for_plan(given, method, ["overall"])
    check_planner(method, channels=channels, seed=seed, params=params)
    planner = online(make_planner(method, channels=channels, seed=seed, params=params), **anew)
    check_positive("half_life", planner.half_life)
    return {"channels": channels, **params, **anew}, Overall(**told), planner


def _taken(given: dict[str, Any], name: str) -> dict[str, Any]:
    """Take a parameter out of others, if it is there."""
    return {name: given.pop(name)} if name in given else {}


def line_of(done: FollowProgress) -> str:
    """Return what a micro-batch came to in one line.

    Examples
    --------
    >>> from narrowcast.spark.streaming.follow import FollowProgress
    >>> line_of(FollowProgress(3, 120, 2, 0, 14, 1234.5, 5, 1, {"base": 9, "survey": 0}, 0.5))
    'batch 3: 120 changes, 2 ignored; 14 channels, overall cost 1,234.5; rows +5 -1; messages: base 9'
    >>> line_of(FollowProgress(4, 0, 0, 0, 14, 1200.0, 0, 0, {}, 0.5, events=900, unknown=7, moved=2))
    'batch 4: 0 changes, 0 ignored; 900 events, 7 of unknown flows, 2 rates moved; 14 channels, overall ...'
    """
    parts = [f"batch {done.batch}: {done.changes:,} changes, {done.ignored:,} ignored"]
    parts[0] += f", {done.rejected:,} set aside" if done.rejected else ""
    if done.events:
        unknown = f", {done.unknown:,} of unknown flows" if done.unknown else ""
        parts += [f"{done.events:,} events{unknown}, {done.moved:,} rates moved"]
    parts += [f"{done.channels:,} channels, overall cost {options.number(done.cost)}"]
    parts += [f"rows +{done.added:,} -{done.removed:,}"]
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in done.messages.items() if count)
    return "; ".join([*parts, *([f"messages: {kinds}"] if kinds else [])])
