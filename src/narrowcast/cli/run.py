"""`narrowcast run`: the whole job, from subscriptions and events to a plan, its costs and a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from narrowcast.cli import inputs, options
from narrowcast.errors import ParameterError, TableError
from narrowcast.filters.subscriptions import COLUMNS
from narrowcast.model.artefact import read_plan
from narrowcast.model.schema import EVENT_ID, Schema
from narrowcast.planning.base import PLANNERS, planners
from narrowcast.report.run_report import FILES, rows_of, summary_of, write_report
from narrowcast.spark.checkpoint import RECORDS, Checkpoints, key_of, workshop
from narrowcast.spark.stages.match import STRATEGIES
from narrowcast.spark.stages.network import NetworkTables
from narrowcast.spark.stages.run import RECENT, TABLES, GeneratedTables, PipelineRun, RunSettings
from narrowcast.validation import check_channels
from narrowcast.workloads import WORKLOADS, make_workload, origin_of, values_of


def run(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where results go; an earlier run's are replaced.")
    ],
    workload: Annotated[
        str | None,
        typer.Option(
            "--workload", metavar="NAME", help=f"What to make: {', '.join(WORKLOADS)}. Default: stocks."
        ),
    ] = None,
    method: Annotated[
        str, typer.Option("--method", metavar="M", help=f"How to plan: {', '.join(planners(boxes=False))}.")
    ] = "auto",
    channels: Annotated[int, typer.Option("--channels", metavar="K", help="The most channels.")] = 16,
    seed: options.Seed = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the workload; can be repeated."),
    ] = None,
    subscriptions: Annotated[
        str | None,
        typer.Option("--subscriptions", metavar="S", help=f"Own subscriptions: {', '.join(COLUMNS)}."),
    ] = None,
    events: Annotated[
        str | None,
        typer.Option("--events", metavar="E", help=f"Own events: {EVENT_ID} and a column per attribute."),
    ] = None,
    topology: inputs.Topology = None,
    locations: inputs.Locations = None,
    publishers: inputs.Publishers = None,
    schema: options.SchemaFile = None,
    strategy: options.Strategy = "auto",
    memory: options.Memory = None,
    recent: Annotated[
        int, typer.Option("--recent", metavar="N", help="Plan for the last N events that somebody wanted.")
    ] = RECENT,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over instead of going on after the last finished stage.")
    ] = False,
    strict: options.Strict = False,
    master: options.Master = options.LOCAL,
    conf: options.Conf = None,
    ui: options.Ui = False,
    as_json: options.Json = False,
) -> None:
    """Match events with subscriptions, plan channels, say what they cost, and write a report, on Spark.

    What a stage has finished stays finished: a second call with the same inputs goes on behind it, and one
    with other parameters does again only what depends on them.

    Examples:

        narrowcast run --out out --workload stocks --set n_events=5000 --channels 32

        narrowcast run --out out --subscriptions s.parquet --events e.parquet --master spark://host:7077
    """
    source, said = _source(workload, settings or [], subscriptions, events, seed)
    out = out.resolve() if out.is_symlink() or out.name in ("", "..") else out
    if out.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise ParameterError(f"--out is {out}, which is or holds the folder you are in; name one below it")
    _require_replaceable(out)
    check_channels(channels)
    PLANNERS[method]
    options.one_of("--strategy", strategy, STRATEGIES)
    network = {"topology": topology, "locations": locations, "publishers": publishers}
    NetworkTables.read(**network)  # what is wrong with them is told before Spark starts
    if recent < 1:
        raise ParameterError(f"--recent is {recent}; plan for at least 1 event")
    job = RunSettings(
        source,
        method=method,
        channels=channels,
        seed=seed,
        strategy=strategy,
        memory=options.memory_of(memory),
        recent=recent,
        schema=None if schema is None else Schema.read(schema),
        strict=strict,
        network={name: path for name, path in network.items() if path is not None},
    )
    with workshop(out, fresh=fresh) as folder, options.spark_at(master, conf, ui=ui) as at:
        stages = Checkpoints(folder)
        work = PipelineRun(at.spark, stages, job, at.progress, at.tell)
        records = work.do()
        facts = {name: record.facts for name, record in records.items()}
        facts["job"] = {"source": said, "seed": seed, "method": facts["plan"]["method"]}
        summary = summary_of(facts, {name: record.seconds for name, record in records.items()})

        def report(aside: Path) -> dict[str, Any]:
            plan, _ = read_plan(folder / "plan")
            sizes = {int(size): int(count) for size, count in facts["match"]["sizes"]}
            write_report(
                summary, sizes, work.sample(), plan, aside, channels=folder / "plan" / "channels.parquet"
            )
            return {}

        stages.run("report", key_of("report", summary=summary), FILES, report)
        if stages.resumed:
            at.progress.console.print(f"done before: {', '.join(stages.resumed)}", highlight=False)
    options.show(summary, rows_of(summary), as_json=as_json)
    if not as_json:
        typer.echo(f"report: {out / 'report.html'}")


def _source(
    workload: str | None, settings: list[str], subscriptions: str | None, events: str | None, seed: int
) -> tuple[GeneratedTables | dict[str, str], dict[str, Any]]:
    """Return what gives the tables, and what the summary says of where they are from."""
    if subscriptions is None and events is None:
        name = workload or "stocks"
        made = make_workload(name, settings, seed=seed)
        if "interests" in made.makes:
            raise ParameterError(
                f"workload {name!r} makes interests, and a run starts from subscriptions and events; "
                "generate it, and plan with --interests and --rates"
            )
        said = {"workload": name, "parameters": values_of(made), **origin_of(made)}
        return GeneratedTables(made.tables, {**said, "seed": seed}), said
    if subscriptions is None or events is None:
        given, lacks = ("events", "subscriptions") if subscriptions is None else ("subscriptions", "events")
        raise ParameterError(f"--{given} is given without --{lacks}; give both, or neither for a workload")
    for option, value in (("--workload", workload), ("--set", settings)):
        if value:
            raise ParameterError(f"{option} makes a workload; leave it out with --subscriptions and --events")
    paths = {"subscriptions": subscriptions, "events": events}
    return paths, paths


def _require_replaceable(out: Path) -> None:
    """Refuse a folder that holds anything but what a run wrote."""
    if not out.exists():
        return
    if not out.is_dir():
        raise TableError(f"{out} is a file; name a folder")
    names = {path.name for path in out.iterdir()}
    try:
        ours = not names or msgspec.json.decode((out / "summary.json").read_bytes())["command"] == "run"
    except (OSError, msgspec.DecodeError, LookupError, TypeError):
        ours = False
    if not ours:
        raise TableError(f"{out} exists and is not an earlier run's; name another folder or remove it")
    others = sorted(names - {*TABLES, *FILES, RECORDS})
    if others:
        raise TableError(
            f"{out} also holds {others[0]!r}, which no run wrote; move it or name another folder"
        )
