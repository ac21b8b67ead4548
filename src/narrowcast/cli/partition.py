"""`narrowcast partition`: divide the attribute space into parts, written as a plan folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narrowcast.cli import choices, options, panels
from narrowcast.cli.set_option import parameters
from narrowcast.errors import ParameterError, TableError

if TYPE_CHECKING:
    from narrowcast.matching.partition import AdaptedParts, PartWork
    from narrowcast.spark.stages.partition import PartitionResult

#: Default of `--parts`.
PARTS = 64


def partition(
    subscriptions: Annotated[
        str,
        typer.Option(
            "--subscriptions",
            metavar="S",
            help="Table with subscription_id, subscriber and filter.",
            rich_help_panel=panels.INPUT,
        ),
    ],
    events: Annotated[
        str,
        typer.Option(
            "--events",
            metavar="E",
            help="Table with event_id and one column per attribute.",
            rich_help_panel=panels.INPUT,
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="PLAN", help="Folder of the parts; must not exist yet.")
    ],
    parts: Annotated[
        int | None,
        typer.Option(
            "--parts",
            metavar="P",
            help=f"Maximum number of parts (default: {PARTS}).",
            rich_help_panel=panels.MATCHING,
        ),
    ] = None,
    copies: Annotated[
        int | None,
        typer.Option(
            "--copies",
            metavar="C",
            help="Number of parts that each event is sent to (default: 1).",
            rich_help_panel=panels.MATCHING,
        ),
    ] = None,
    scheme: Annotated[
        str,
        typer.Option(
            "--scheme",
            metavar="NAME",
            help=f"How the parts are made: {', '.join(choices.SCHEMES)}.",
            rich_help_panel=panels.MATCHING,
        ),
    ] = "kd",
    start: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="PLAN",
            help="Parts in use, to adapt where their work is uneven (default: make new parts).",
            rich_help_panel=panels.MATCHING,
        ),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured",
            metavar="T",
            help="Balance by the measured work of parts, a table of `narrowcast match --measured` "
            "(default: by estimates).",
            rich_help_panel=panels.MATCHING,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a parameter of the scheme, or threshold for --from; repeatable.",
            rich_help_panel=panels.MATCHING,
        ),
    ] = None,
    seed: options.Seed = 0,
    schema: options.SchemaFile = None,
    strict: options.Strict = False,
    master: options.Master = options.LOCAL,
    conf: options.Conf = None,
    ui: options.Ui = False,
    as_json: options.Json = False,
) -> None:
    """Divide subscriptions and events into parts for partitioned matching, and write the parts.

    Each event then goes only to the parts where it can match something. The folder says which ranges of
    attributes are in which part, and to which parts a subscription belongs: `match --partitions` uses it. It
    is made from samples. The costs in it are measured on other events than those: copies of an event,
    replication of a subscription, and the work of the heaviest part as a multiple of the mean.

    Schemes: `kd` (cells of a k-d tree, times rows by hash), `selective` (each row has its own cells, and a
    subscription is in the row where it is most selective), `cobas` (trees of ranges, merged and divided, with
    --set routing, search, way, kappa and upkeep) and `hash` (every event goes everywhere).

    With --from, parts are adapted when the heaviest has more than --set threshold=1.25 times the mean work:
    uneven branches are divided again, the rest stays in place. New parts are used instead where they are even
    too and move less, or where nothing else helps. The result names what was done, the balance before and
    after, and the share of places that are new, also when nothing makes the parts even.

    With --measured, the balance by measured work is reported too.

    Examples:

        narrowcast partition --subscriptions s.parquet --events e.parquet --parts 64 --out plan

        narrowcast partition --subscriptions s --events e --scheme selective --copies 4 --out plan

        narrowcast partition --subscriptions s --events today --from plan --out next
    """
    from narrowcast.matching.partition import Partitioning, read_partitions, write_partitions
    from narrowcast.model.schema import Schema
    from narrowcast.planning.ranges.partitioning import SCHEMES, TAKES
    from narrowcast.planning.ranges.partitioning import scheme as scheme_of
    from narrowcast.spark.progress import watched
    from narrowcast.spark.session import sized
    from narrowcast.spark.spark_errors import plainly
    from narrowcast.spark.stages.match_inputs import MatchInputs
    from narrowcast.spark.stages.partition import cut_parts
    from narrowcast.spark.storage import size_of

    if out.exists() or out.is_symlink():
        raise TableError(f"{out}: exists already; name another folder, or remove it")
    SCHEMES[scheme]
    params = parameters(settings or [])
    if odd := [name for name in params if name in ("parts", "copies", "seed", "work")]:
        option = "--measured" if odd[0] == "work" else f"--{odd[0]}"
        raise ParameterError(f"--set {odd[0]}: has an option of its own; use {option}")
    threshold = params.pop("threshold", None)
    work = None if measured is None else _fitted(measured)
    before, described = None, {"parts": PARTS if parts is None else parts, "copies": copies, **params}
    if start is None:
        if threshold is not None:
            raise ParameterError(
                f"threshold={threshold!r}: only for adapting parts; add --from, or leave it out",
                parameter="threshold",
                value=threshold,
            )
        if work is not None and "work" not in TAKES[scheme]:
            raise ParameterError(
                f"--measured={str(measured)!r}: scheme {scheme!r} does not use it; leave it out",
                parameter="measured",
                value=measured,
            )
        scheme_of(scheme, **described)
    else:
        if parts is not None or copies is not None or params or scheme != "kd":
            raise ParameterError(
                "--from sets how parts are made; leave out --parts, --copies, --scheme and --set"
            )
        found, info = read_partitions(start)
        if not isinstance(found, Partitioning):
            raise ParameterError(
                f"--from={str(start)!r}: scheme {info.method!r} cannot be adapted; leave --from out",
                parameter="start",
                value=start,
            )
        if threshold is not None and not (isinstance(threshold, int | float) and threshold >= 1):
            raise ParameterError(parameter="threshold", value=threshold, limit="a number of at least 1")
        before, scheme, described = found, info.method, dict(info.params)
    types = None if schema is None else Schema.read(schema)
    begun = time.perf_counter()
    with options.spark_at(master, conf, ui=ui) as at:
        n_bytes = size_of(at.spark, subscriptions) + size_of(at.spark, events)
        with sized(at.spark, n_bytes):
            content = MatchInputs(
                at.spark, subscriptions, events, schema=types, strict=strict, progress=at.progress
            )
            facts: dict[str, Any] = {"command": "partition", "out": str(out), **content.facts}
            with watched(at.spark, at.progress, "partition"), plainly("make parts"):
                cut = cut_parts(
                    content.events,
                    content.compiled,
                    content.schema,
                    scheme=scheme,
                    params=described if before is None else None,
                    start=before,
                    threshold=threshold,
                    work=work,
                    seed=seed,
                )
            costs = _costs(cut)
            write_partitions(
                cut.parts,
                out,
                method=scheme,
                params=_description(described, {"from": start, "measured": measured}),
                seed=seed,
                costs=costs,
                inputs=content.fingerprints(),
            )
    facts |= {"scheme": scheme, "parts": cut.parts.parts, **costs}
    if cut.adapted is not None:
        facts |= {"from": str(start), **_changes(cut.adapted)}
    facts["seconds"] = time.perf_counter() - begun
    tables = {f"The parts in {out}": _rows(facts)}
    if facts["rejected"]:
        tables = {"Rejected rows": options.reasons(facts), **tables}
    options.show(facts, tables, as_json=as_json)


def _description(params: dict[str, Any], given: dict[str, Path | None]) -> dict[str, Any]:
    """Return the parameters that `plan.json` records: those of the scheme, and the input files."""
    names = {key: str(path) for key, path in given.items() if path is not None}
    return {key: value for key, value in params.items() if value is not None} | names


def _costs(cut: PartitionResult) -> dict[str, float]:
    costs = {
        "copies": cut.measured.copies,
        "replication": cut.measured.replication,
        "work_max_over_mean": cut.measured.work_max_over_mean,
        "work": cut.measured.work,
    }
    if cut.measured.measured_work_max_over_mean is not None:
        costs["measured_work_max_over_mean"] = cut.measured.measured_work_max_over_mean
    return costs if cut.adapted is None else costs | {"moved": cut.adapted.moved}


def _fitted(path: Path) -> PartWork:
    """Return the model of a part's work, fitted to a table of measurements."""
    from narrowcast.files import read_table
    from narrowcast.matching.partition import PartWork

    table = read_table(path)
    try:
        return PartWork.fitted(table)
    except TableError as error:
        raise TableError(f"{path}: {error}") from error


def _changes(found: AdaptedParts) -> dict[str, Any]:
    done = "parts made anew" if found.from_scratch else "some branches cut anew" if found.steps else "nothing"
    return {
        "before": found.before,
        "after": found.after,
        "threshold": found.threshold,
        "even": found.even,
        "steps": found.steps,
        "anew": found.from_scratch,
        "fresh": found.moved_from_scratch,
        "done": done,
    }


def _rows(facts: dict[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("", "number")]
    rows += [(name, f"{facts[name]:,}") for name in ("subscriptions", "events", "parts")]
    titles = {
        "copies": "copies of an event",
        "replication": "parts that hold a subscription",
        "work_max_over_mean": "work of the heaviest part / mean",
        "measured_work_max_over_mean": "  by measured work",
        "work": "work / comparing everything",
        "before": "heaviest part / mean before, sampled",
        "after": "  after",
        "steps": "changes to existing parts",
        "moved": "share of new places",
        "fresh": "  with all new parts",
        "seconds": "seconds",
    }
    rows += [
        (text, options.number(round(facts[name], 4)))
        for name, text in titles.items()
        if facts.get(name) is not None
    ]
    if "done" in facts:
        even = "yes" if facts["even"] else "no: not reachable"
        rows[-1:-1] = [
            ("change", facts["done"]),
            (f"at most {facts['threshold']:g} times the mean", even),
        ]
    return rows
