"""`narrowcast match`: match events with subscriptions on Spark."""

from __future__ import annotations

import time
from itertools import combinations
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narrowcast.cli import choices, options, panels
from narrowcast.errors import ParameterError, TableError

if TYPE_CHECKING:
    from narrowcast.spark.stages.match_inputs import MatchInputs


def match(
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
        str, typer.Option("--out", metavar="M", help="Folder or URI of the matches; must not exist yet.")
    ],
    strategy: options.Strategy = "auto",
    counts: Annotated[
        bool,
        typer.Option(
            "--counts", help="Write event_id and the number of matching subscriptions, instead of their ids."
        ),
    ] = False,
    rejected: Annotated[
        str | None,
        typer.Option(
            "--rejected",
            metavar="R",
            help="Write rejected rows to this table (default: a table named like --out with -rejected, "
            "beside it).",
            rich_help_panel=panels.INPUT,
        ),
    ] = None,
    histories: Annotated[
        str | None,
        typer.Option(
            "--histories",
            metavar="H",
            help="Also write this table: subscription_id and the events that it matched (default: not "
            "written).",
            rich_help_panel=panels.HISTORIES,
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(
            "--last",
            metavar="N",
            help="Histories: use the last N matching events of each subscription (default: all).",
            rich_help_panel=panels.HISTORIES,
        ),
    ] = None,
    recent: Annotated[
        int | None,
        typer.Option(
            "--recent",
            metavar="N",
            help="Histories: use the last N events that match a subscription (default: all).",
            rich_help_panel=panels.HISTORIES,
        ),
    ] = None,
    window: Annotated[
        float | None,
        typer.Option(
            "--window",
            metavar="SECONDS",
            help="Histories: use events of the last SECONDS before the latest event (default: all).",
            rich_help_panel=panels.HISTORIES,
        ),
    ] = None,
    schema: options.SchemaFile = None,
    memory: options.Memory = None,
    parts: Annotated[
        int | None,
        typer.Option(
            "--parts",
            metavar="P",
            help="Number of parts of the partitioned strategy (default: estimated from the data).",
            rich_help_panel=panels.MATCHING,
        ),
    ] = None,
    copies: Annotated[
        int | None,
        typer.Option(
            "--copies",
            metavar="C",
            help="Number of parts that each event is sent to; must divide P (default: estimated from the "
            "data).",
            rich_help_panel=panels.MATCHING,
        ),
    ] = None,
    scheme: Annotated[
        str,
        typer.Option(
            "--scheme",
            metavar="NAME",
            help=f"How the parts are made: {', '.join(choices.SCHEMES)}; see `narrowcast partition`.",
            rich_help_panel=panels.MATCHING,
        ),
    ] = "kd",
    partitions: Annotated[
        Path | None,
        typer.Option(
            "--partitions",
            metavar="PLAN",
            help="Use the parts that `narrowcast partition` wrote (default: make parts for this run).",
            rich_help_panel=panels.MATCHING,
        ),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured",
            metavar="T",
            help="Write the measured work of each part to this table, for `narrowcast partition` "
            "(default: not written).",
            rich_help_panel=panels.MATCHING,
        ),
    ] = None,
    seed: options.Seed = 0,
    strict: options.Strict = False,
    master: options.Master = options.LOCAL,
    conf: options.Conf = None,
    ui: options.Ui = False,
    as_json: options.Json = False,
) -> None:
    """Match a table of events with a table of subscriptions on Spark.

    The result has one row for each event that matches anything, with the matching subscription ids in
    ascending order.

    Before it starts, the estimated cost of each strategy is printed. `broadcast` gives every worker the whole
    index; `partitioned` divides the subscriptions, so that no worker holds all of them; `auto` takes the
    cheaper one that fits into memory.

    With `--histories`, the events that each subscription matched are written too, latest last, with an empty
    list for a subscription without matches: all events, or those that `--last`, `--recent` and `--window`
    choose.

    Examples:

        narrowcast match --subscriptions s.parquet --events e.parquet --out m.parquet

        narrowcast match --subscriptions s.csv --events s3a://bucket/events --out s3a://bucket/sizes --counts

        narrowcast match --subscriptions s.csv --events e.parquet --out m --histories h --last 20

        narrowcast match --subscriptions s --events e --out m --strategy partitioned --partitions plan
    """
    from narrowcast.files import check_new_table, write_new_table
    from narrowcast.matching.partition import read_partitions
    from narrowcast.model.schema import Schema
    from narrowcast.planning.ranges.partitioning import SCHEMES, TAKES
    from narrowcast.planning.ranges.partitioning import scheme as scheme_of
    from narrowcast.spark.session import sized
    from narrowcast.spark.stages.histories import check_selection
    from narrowcast.spark.stages.match_inputs import MatchInputs
    from narrowcast.spark.stages.slice_metrics import SliceMetrics
    from narrowcast.spark.storage import exists, size_of

    options.one_of("strategy", strategy, choices.STRATEGIES)
    types = None if schema is None else Schema.read(schema)
    limit = options.memory_of(memory)
    if not out.strip("/"):
        raise ParameterError(parameter="out", value=out, limit="a folder that does not exist yet")
    chosen_parts = {"--parts": parts, "--copies": copies, "--partitions": partitions}
    given = [name for name, value in chosen_parts.items() if value is not None]
    if strategy == "broadcast" and given:
        raise ParameterError(f"{given[0]}: only for --strategy partitioned; leave it out")
    if strategy != "partitioned" and measured is not None:
        raise ParameterError("--measured: only for --strategy partitioned; add that")
    SCHEMES[scheme]
    if copies is not None and "copies" not in TAKES[scheme]:
        raise ParameterError(
            f"--copies={copies}: scheme {scheme!r} does not take it; leave it out",
            parameter="copies",
            value=copies,
        )
    scheme_of(scheme, parts=(copies or 1) if parts is None else parts, copies=copies)
    held = None
    if partitions is not None:
        if len(given) > 1 or scheme != "kd":
            raise ParameterError("--partitions sets the parts; leave out --parts, --copies and --scheme")
        held = read_partitions(partitions)[0]
    if measured is not None:
        check_new_table(measured)
    check_selection(last=last, window=window, recent=recent)
    chosen = {"last": last, "recent": recent, "window": window}
    if histories is None and (named := [name for name, value in chosen.items() if value is not None]):
        raise ParameterError(
            f"--{named[0]}: chooses the events of histories; add --histories, or leave it out"
        )
    if histories is not None and counts:
        raise ParameterError("--counts leaves out the matching ids, which --histories needs; leave one out")
    aside = rejected or _beside(out)
    places = {"--out": out, "--rejected": aside} | ({} if histories is None else {"--histories": histories})
    _refuse_inside(places | ({} if measured is None else {"--measured": str(measured)}))
    start = time.perf_counter()
    with options.spark_at(master, conf, ui=ui) as at:
        for path in places.values():
            if exists(at.spark, path):
                raise TableError(f"{path}: exists already; name another, or remove it")
        n_bytes = size_of(at.spark, subscriptions) + size_of(at.spark, events)
        with sized(at.spark, n_bytes):
            content = MatchInputs(
                at.spark, subscriptions, events, schema=types, strict=strict, progress=at.progress
            )
            facts: dict[str, Any] = {"command": "match", "out": out, **content.facts}
            metrics = None if measured is None else SliceMetrics(at.spark.sparkContext)
            found = content.match(
                strategy=strategy,
                counts=counts,
                memory=limit,
                parts=parts,
                copies=copies,
                scheme=scheme,
                partitions=held,
                seed=seed,
                metrics=metrics,
                on_estimate=at.tell,
            )
            if facts["rejected"]:  # written first: once the matches exist, everything else does
                content.write_rejected(aside)
                facts["rejected_table"] = aside
            facts |= content.write(found, out, counts=counts)
            if measured is not None and metrics is not None:
                write_new_table(metrics.table(), measured)
                facts["measured_table"] = str(measured)
            if histories is not None:
                facts |= _write_histories(content, out, histories, chosen)
            facts["seconds"] = time.perf_counter() - start
    options.show(facts, {"Result": _rows(facts)}, as_json=as_json)


def _write_histories(content: MatchInputs, matches: str, path: str, chosen: dict[str, Any]) -> dict[str, Any]:
    """Write the histories of a table of matches, and return their counts."""
    from narrowcast.spark.progress import watched
    from narrowcast.spark.stages.histories import histories, long_rows, write_histories
    from narrowcast.spark.storage import read_back

    with watched(content.spark, content.progress, "histories"), long_rows(content.spark):
        built = histories(read_back(content.spark, matches), content.owners, content.events, **chosen)
        return {"histories_table": path, **write_histories(built, path)}


def _rows(facts: dict[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("", "number")]
    rows += [(name, f"{facts[name]:,}") for name in ("subscriptions", "events", "rejected")]
    rows += [(f"  {reason}", f"{count:,}") for reason, count in facts["reasons"].items()]
    rows.append(("matches", f"{facts['matches']:,}"))
    rows.append(("events without a match", f"{facts['unmatched']:,}"))
    if "histories" in facts:
        rows.append(("histories", f"{facts['histories']:,}"))
        rows.append(("  empty ones", f"{facts['empty']:,}"))
    rows.append(("seconds", f"{facts['seconds']:.1f}"))
    return rows


def _refuse_inside(places: dict[str, str]) -> None:
    """Refuse two outputs in one place, or one inside another, where it would be read as part of it."""
    names = {option: _names(place) for option, place in places.items()}
    for one, other in combinations(places, 2):
        if names[one] == names[other]:
            raise ParameterError(f"{one} and {other}: both are {places[one]}; give each its own")
        outer, inner = sorted((one, other), key=lambda option: len(names[option]))
        if names[inner][: len(names[outer])] == names[outer]:
            raise ParameterError(
                f"{inner}={places[inner]}: is inside {outer} {places[outer]}; put it beside that"
            )


def _names(place: str) -> tuple[str, ...]:
    """Return the parts of a path or URI; a local path has the same parts however it is written.

    >>> _names("s3a://bucket/m/"), _names("file:///tmp/a/../m") == _names("/tmp/m")
    (('s3a:', '', 'bucket', 'm'), True)
    """
    if "://" in place and not place.startswith("file:"):
        return tuple(place.rstrip("/").split("/"))
    return Path(place.removeprefix("file:")).resolve().parts


def _beside(out: str) -> str:
    """Return the default path of the rejected rows of a table of matches.

    >>> _beside("s3a://bucket/m.parquet"), _beside("matches")
    ('s3a://bucket/m-rejected.parquet', 'matches-rejected')
    """
    head, slash, name = out.rstrip("/").rpartition("/")
    plain = PurePosixPath(name)
    return f"{head}{slash}{plain.stem}-rejected{plain.suffix}"
