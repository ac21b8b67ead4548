"""`narrowcast run`: from subscriptions and events to a plan, its costs and a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from narrowcast.cli import choices, inputs, options, panels
from narrowcast.errors import ParameterError, TableError

if TYPE_CHECKING:
    from narrowcast.spark.stages.run import GeneratedTables


def run(
    out: Annotated[
        Path,
        typer.Option("--out", metavar="DIR", help="Folder of the results; replaces those of an earlier run."),
    ],
    workload: Annotated[
        str | None,
        typer.Option(
            "--workload",
            metavar="NAME",
            help=f"Workload to generate: {', '.join(choices.WORKLOADS)} (default: stocks, unless tables are "
            "given).",
            rich_help_panel=panels.INPUT,
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="M",
            help=f"Planning method: {', '.join(choices.METHODS)}.",
            rich_help_panel=panels.PLANNING,
        ),
    ] = "auto",
    channels: Annotated[
        int,
        typer.Option(
            "--channels", metavar="K", help="Maximum number of channels.", rich_help_panel=panels.PLANNING
        ),
    ] = 16,
    seed: options.Seed = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a parameter of the workload; repeatable. `--set help` lists them.",
            rich_help_panel=panels.INPUT,
        ),
    ] = None,
    subscriptions: Annotated[
        str | None,
        typer.Option(
            "--subscriptions",
            metavar="S",
            help="Table with subscription_id, subscriber and filter, instead of a workload (default: none).",
            rich_help_panel=panels.INPUT,
        ),
    ] = None,
    events: Annotated[
        str | None,
        typer.Option(
            "--events",
            metavar="E",
            help="Table with event_id and one column per attribute, instead of a workload (default: none).",
            rich_help_panel=panels.INPUT,
        ),
    ] = None,
    topology: inputs.Topology = None,
    locations: inputs.Locations = None,
    publishers: inputs.Publishers = None,
    schema: options.SchemaFile = None,
    strategy: options.Strategy = "auto",
    memory: options.Memory = None,
    recent: Annotated[
        int,
        typer.Option(
            "--recent",
            metavar="N",
            help="Plan for the last N events that match a subscription.",
            rich_help_panel=panels.PLANNING,
        ),
    ] = choices.RECENT,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over (default: continue after the last finished stage).")
    ] = False,
    strict: options.Strict = False,
    master: options.Master = options.LOCAL,
    conf: options.Conf = None,
    ui: options.Ui = False,
    as_json: options.Json = False,
) -> None:
    """Run the whole job on Spark: match events, plan channels, evaluate the plan, write a report.

    Finished stages are kept: a second run with the same inputs continues after them, and one with other
    parameters repeats only the stages that depend on these.

    Examples:

        narrowcast run --out out --workload stocks --set n_events=5000 --channels 32

        narrowcast run --out out --subscriptions s.parquet --events e.parquet --master spark://host:7077
    """
    from narrowcast.model.artefact import read_plan
    from narrowcast.model.schema import Schema
    from narrowcast.planning.base import PLANNERS
    from narrowcast.report.run_report import FILES, rows_of, summary_of, write_report
    from narrowcast.spark.checkpoint import Checkpoints, key_of, staging_folder
    from narrowcast.spark.stages.network import NetworkTables
    from narrowcast.spark.stages.run import PipelineRun, RunSettings
    from narrowcast.validation import check_channels

    source, origin = _source(workload, settings or [], subscriptions, events, seed)
    out = out.resolve() if out.is_symlink() or out.name in ("", "..") else out
    if out.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise ParameterError(
            f"--out={str(out)!r}: must be below the current folder or beside it, not the folder itself or "
            "one that contains it",
            parameter="out",
            value=out,
        )
    _require_replaceable(out)
    check_channels(channels)
    PLANNERS[method]
    options.one_of("strategy", strategy, choices.STRATEGIES)
    network = {"topology": topology, "locations": locations, "publishers": publishers}
    NetworkTables.read(**network)  # before Spark starts
    if recent < 1:
        raise ParameterError(parameter="recent", value=recent, limit="at least 1")
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
    with staging_folder(out, fresh=fresh) as folder, options.spark_at(master, conf, ui=ui) as at:
        stages = Checkpoints(folder)
        work = PipelineRun(at.spark, stages, job, at.progress, at.tell)
        records = work.do()
        facts = {name: record.facts for name, record in records.items()}
        facts["job"] = {"source": origin, "seed": seed, "method": facts["plan"]["method"]}
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
            at.progress.console.print(f"finished earlier: {', '.join(stages.resumed)}", highlight=False)
    options.show(summary, rows_of(summary), as_json=as_json)
    if not as_json:
        typer.echo(f"report: {out / 'report.html'}")


def _source(
    workload: str | None, settings: list[str], subscriptions: str | None, events: str | None, seed: int
) -> tuple[GeneratedTables | dict[str, str], dict[str, Any]]:
    """Return the source of the tables, and its description for the summary."""
    from narrowcast.spark.stages.run import GeneratedTables
    from narrowcast.workloads import make_workload, origin_of, values_of

    if subscriptions is None and events is None:
        name = workload or "stocks"
        made = make_workload(name, settings, seed=seed)
        if "interests" in made.makes:
            raise ParameterError(
                f"--workload={name!r}: makes interests, but a run needs subscriptions and events; use "
                "`narrowcast generate`, then `narrowcast plan` with --interests and --rates",
                parameter="workload",
                value=name,
            )
        origin = {"workload": name, "parameters": values_of(made), **origin_of(made)}
        return GeneratedTables(made.tables, {**origin, "seed": seed}), origin
    if subscriptions is None or events is None:
        given, lacks = ("events", "subscriptions") if subscriptions is None else ("subscriptions", "events")
        raise ParameterError(f"--{given} needs --{lacks}; give both, or neither to use a workload")
    for option, value in (("--workload", workload), ("--set", settings)):
        if value:
            raise ParameterError(
                f"{option}: only for a workload; leave it out with --subscriptions and --events"
            )
    paths = {"subscriptions": subscriptions, "events": events}
    return paths, paths


def _require_replaceable(out: Path) -> None:
    """Refuse a folder with files that no run wrote."""
    from narrowcast.report.run_report import FILES
    from narrowcast.spark.checkpoint import RECORDS
    from narrowcast.spark.stages.run import TABLES

    if not out.exists():
        return
    if not out.is_dir():
        raise TableError(f"{out}: is a file; name a folder")
    names = {path.name for path in out.iterdir()}
    try:
        ours = not names or msgspec.json.decode((out / "summary.json").read_bytes())["command"] == "run"
    except (OSError, msgspec.DecodeError, LookupError, TypeError):
        ours = False
    if not ours:
        raise TableError(f"{out}: exists and was not written by a run; name another folder, or remove it")
    others = sorted(names - {*TABLES, *FILES, RECORDS})
    if others:
        raise TableError(
            f"{out}: also contains {others[0]!r}, which no run wrote; move it, or name another folder"
        )
