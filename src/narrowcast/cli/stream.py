"""`narrowcast stream`: match and route events as they arrive."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narrowcast.cli import options, panels
from narrowcast.errors import ParameterError

if TYPE_CHECKING:
    from narrowcast.spark.streaming.backlog import Lag
    from narrowcast.spark.streaming.micro_batch import MicroBatch


def stream(
    subscriptions: Annotated[
        str,
        typer.Option(
            "--subscriptions",
            metavar="S",
            help="Table with subscription_id, subscriber and filter; files that are added later are read "
            "too.",
            rich_help_panel=panels.INPUT,
        ),
    ],
    source: Annotated[
        str,
        typer.Option(
            "--source",
            metavar="URI",
            help="Source of events: a folder, nats://host:4222/STREAM, or rate:1000 (1,000 generated "
            "events per second).",
            rich_help_panel=panels.INPUT,
        ),
    ],
    sink: Annotated[
        str,
        typer.Option(
            "--sink", metavar="URI", help="Destination of deliveries: a folder, or nats://host:4222/PREFIX."
        ),
    ],
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="PLAN", help="Plan to route by (default: only match).")
    ] = None,
    changes: Annotated[
        str | None,
        typer.Option(
            "--changes",
            metavar="C",
            help="Folder of files with changes of subscriptions, read as they arrive (default: none).",
            rich_help_panel=panels.INPUT,
        ),
    ] = None,
    flow: Annotated[
        str | None,
        typer.Option(
            "--flow",
            metavar="NAME",
            help="Attribute that holds the topic of an event; required for a plan of topics.",
            rich_help_panel=panels.INPUT,
        ),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="DIR",
            help="Folder for rates and interests, for `narrowcast plan --state` (default: not written).",
            rich_help_panel=panels.STREAM,
        ),
    ] = None,
    half_life: Annotated[
        float,
        typer.Option(
            "--half-life",
            metavar="SECONDS",
            help="Time after which an event counts half in the rates of --state.",
            rich_help_panel=panels.STREAM,
        ),
    ] = 3600.0,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Process the events that exist now, then end.", rich_help_panel=panels.STREAM
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
            help="Maximum size of a micro-batch: messages of NATS, or files of a folder (default: that of "
            "the source).",
            rich_help_panel=panels.STREAM,
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="KIND",
            help="Format of the files of a folder that is still empty: parquet or json (default: that of "
            "the first file).",
            rich_help_panel=panels.INPUT,
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="DIR",
            help="Folder of the checkpoint (default: inside the sink).",
            rich_help_panel=panels.STREAM,
        ),
    ] = None,
    rejected: Annotated[
        str | None,
        typer.Option(
            "--rejected",
            metavar="R",
            help="Write rejected events to this table (default: beside the sink).",
            rich_help_panel=panels.INPUT,
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="HOST:PORT",
            help="Serve metrics for Prometheus at this address (default: not served).",
            rich_help_panel=panels.STREAM,
        ),
    ] = None,
    schema: options.SchemaFile = None,
    master: options.Master = options.LOCAL,
    conf: options.Conf = None,
    ui: options.Ui = False,
    as_json: options.Json = False,
) -> None:
    """Match and route events as they arrive, with Spark Structured Streaming.

    Files added to S or C are read between micro-batches, and so is a plan that replaces PLAN. Interrupt to
    stop; the next start continues with the first event that was not delivered.

    Examples:

        narrowcast stream --subscriptions s.parquet --source events/ --sink matches/ --once

        narrowcast stream --subscriptions s.csv --source nats://host:4222/TICKS --schema types.json --plan p
        --flow symbol --sink nats://host:4222/out --checkpoint ck
    """
    from narrowcast.model.schema import Schema
    from narrowcast.spark.streaming.metrics import StreamMetrics
    from narrowcast.spark.streaming.stream import Stream
    from narrowcast.spark.streaming.stream_record import without_credentials

    if not (every == 0 or 0.001 <= every < 1e6):
        raise ParameterError(
            parameter="every", value=every, limit="seconds of at least 0.001, or 0 for no pause"
        )
    if limit is not None and limit < 1:
        raise ParameterError(parameter="limit", value=limit, limit="at least 1")
    if not 0 < half_life < 1e12:
        raise ParameterError(parameter="half_life", value=half_life, limit="a positive number of seconds")
    types = None if schema is None else Schema.read(schema)
    counts = StreamMetrics.serve(metrics) if metrics is not None else StreamMetrics()
    with counts, options.spark_at(master, conf, ui=ui) as at:
        task = at.progress.add_task("read the subscriptions", total=None)

        def on_batch(batch: MicroBatch) -> None:
            counts.add(batch)
            at.progress.update(task, description=counts.line())

        def seen(lag: Lag) -> None:
            counts.set_lag(lag)
            at.progress.update(task, description=counts.line())

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
            on_batch=on_batch,
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
    facts = {"command": "stream", "sink": without_credentials(sink), **counts.facts()}
    options.show(facts, {"Processed": _rows(facts)}, as_json=as_json)


def _rows(facts: dict[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("", "number")]
    names = ("batches", "events", "rejected", "matched", "matches", "snapshot")
    rows += [(name, f"{facts[name]:,}") for name in names]
    if facts["missing"]:
        rows.append(("missing at the source", f"{facts['missing']:,}"))
    rows.append(("events per second", f"{facts['rate']:,.0f}"))
    return rows
