"""`narrowcast stream`: who gets which event and how, while events arrive."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narrowcast.cli import options
from narrowcast.errors import ParameterError
from narrowcast.model.schema import Schema

if TYPE_CHECKING:
    from narrowcast.spark.streaming.backlog import Lag
    from narrowcast.spark.streaming.micro_batch import MicroBatch


def stream(
    subscriptions: Annotated[
        str,
        typer.Option("--subscriptions", metavar="S", help="Table: subscription_id, subscriber, filter."),
    ],
    source: Annotated[
        str,
        typer.Option(
            "--source",
            metavar="URI",
            help="Where events come from: a folder, nats://host:4222/STREAM, rate:1000.",
        ),
    ],
    sink: Annotated[
        str,
        typer.Option("--sink", metavar="URI", help="Where deliveries go: a folder, nats://host:4222/PREFIX."),
    ],
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="PLAN", help="Route by this plan; else only match."),
    ] = None,
    changes: Annotated[
        str | None,
        typer.Option("--changes", metavar="C", help="A folder that changes of subscriptions are added to."),
    ] = None,
    flow: Annotated[
        str | None,
        typer.Option("--flow", metavar="NAME", help="The attribute that has an event's topic."),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="DIR", help="Keep rates and interests there, for narrowcast plan."),
    ] = None,
    half_life: Annotated[
        float, typer.Option("--half-life", metavar="SECONDS", help="After which an event counts half.")
    ] = 3600.0,
    once: Annotated[bool, typer.Option("--once", help="Take what is there now, and end.")] = False,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", help="From one micro-batch to the next.")
    ] = 0.0,
    limit: Annotated[
        int | None,
        typer.Option("--limit", metavar="N", help="What a micro-batch takes at most: messages, or files."),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--format", metavar="KIND", help="Of files that are to come: parquet or json."),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="DIR", help="The stream's own folder; by default in the sink."),
    ] = None,
    rejected: Annotated[
        str | None,
        typer.Option("--rejected", metavar="R", help="Where bad events go; by default beside the sink."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="HOST:PORT", help="Serve metrics for Prometheus there."),
    ] = None,
    schema: options.SchemaFile = None,
    master: options.Master = options.LOCAL,
    conf: options.Conf = None,
    ui: options.Ui = False,
    as_json: options.Json = False,
) -> None:
    """Match and route events while they arrive, and go on after a stop where it was.

    Files that are added to S or C are taken up between micro-batches, and so is a plan that takes the place
    of PLAN. Interrupt it to stop; started again it goes on with the first event that was not delivered.

    Examples:

        narrowcast stream --subscriptions s.parquet --source events/ --sink matches/ --once

        narrowcast stream --subscriptions s.csv --source nats://host:4222/TICKS --schema types.json --plan p
        --flow symbol --sink nats://host:4222/out --checkpoint ck
    """
    from narrowcast.spark.streaming.metrics import StreamMetrics
    from narrowcast.spark.streaming.stream import Stream
    from narrowcast.spark.streaming.stream_record import named

    if not (every == 0 or 0.001 <= every < 1e6):
        raise ParameterError(f"--every is {every}; give seconds, at least 0.001, or 0 to go on at once")
    if limit is not None and limit < 1:
        raise ParameterError(f"--limit is {limit}; let a micro-batch take at least 1")
    if not 0 < half_life < 1e12:
        raise ParameterError(f"--half-life is {half_life}; give a positive number of seconds")
    types = None if schema is None else Schema.read(schema)
    told = StreamMetrics.serve(metrics) if metrics is not None else StreamMetrics()
    with told, options.spark_at(master, conf, ui=ui) as at:
        task = at.progress.add_task("read the subscriptions", total=None)

        def heard(batch: MicroBatch) -> None:
            told.add(batch)
            at.progress.update(task, description=told.line())

        def seen(lag: Lag) -> None:
            told.see(lag)
            at.progress.update(task, description=told.line())

        job = Stream(
            at.spark,
            subscriptions,
            source,
            sink,
            checkpoint=checkpoint,
            plan=plan,
            changes=changes,
            flow=flow,
            schema=types,
            rejected=rejected,
            state=state,
            half_life=half_life,
            limit=limit,
            kind=kind,
            heard=heard,
        )
        try:
            at.progress.update(task, description="wait for events")
            job.start(once=once, every=every)
            job.wait(seen)
        except KeyboardInterrupt:
            at.progress.update(task, description="ending after this micro-batch; interrupt again to end now")
            job.stop()
        finally:
            job.close()
    facts = {"command": "stream", "sink": named(sink), **told.facts()}
    options.show(facts, {"What went through": _rows(facts)}, as_json=as_json)


def _rows(facts: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return what went through as rows of text."""
    rows: list[tuple[str, ...]] = [("", "number")]
    names = ("batches", "events", "rejected", "matched", "matches", "snapshot")
    rows += [(name, f"{facts[name]:,}") for name in names]
    if facts["missing"]:
        rows.append(("missing at the source", f"{facts['missing']:,}"))
    rows.append(("events a second", f"{facts['rate']:,.0f}"))
    return rows
