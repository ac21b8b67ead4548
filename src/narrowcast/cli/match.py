"""`narrowcast match`: who wants which event, on Spark."""

from __future__ import annotations

import time
from itertools import combinations
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narrowcast.cli import inputs, options
from narrowcast.errors import ParameterError, TableError
from narrowcast.files import check_new_table, write_new_table
from narrowcast.matching.partition import read_partitions
from narrowcast.model.schema import Schema
from narrowcast.planning.ranges.partitioning import SCHEMES, TAKES
from narrowcast.planning.ranges.partitioning import scheme as scheme_of
from narrowcast.spark.progress import watched
from narrowcast.spark.session import sized
from narrowcast.spark.stages.match import STRATEGIES
from narrowcast.spark.storage import exists, read_back, size_of

if TYPE_CHECKING:
    from narrowcast.spark.stages.match_inputs import MatchInputs


def match(
    subscriptions: Annotated[
        str, typer.Option("--subscriptions", metavar="S", help="Table: subscription_id, subscriber, filter.")
    ],
    events: Annotated[
        str, typer.Option("--events", metavar="E", help="Table: event_id, and a column for each attribute.")
    ],
    out: Annotated[
        str, typer.Option("--out", metavar="M", help="The matches: a folder or URI, not there yet.")
    ],
    strategy: options.Strategy = "auto",
    counts: Annotated[
        bool, typer.Option("--counts", help="Write event_id and how many match, instead of which.")
    ] = False,
    rejected: Annotated[
        str | None,
        typer.Option("--rejected", metavar="R", help="Where bad rows go; by default beside M: M-rejected."),
    ] = None,
    histories: Annotated[
        str | None,
        typer.Option(
            "--histories", metavar="H", help="Also write subscription_id and its history of events."
        ),
    ] = None,
    last: inputs.Last = None,
    recent: inputs.Recent = None,
    window: inputs.Window = None,
    schema: options.SchemaFile = None,
    memory: options.Memory = None,
    parts: Annotated[
        int | None, typer.Option("--parts", metavar="P", help="Of the partitioned strategy: how many.")
    ] = None,
    copies: Annotated[
        int | None, typer.Option("--copies", metavar="C", help="To how many parts an event goes; divides P.")
    ] = None,
    scheme: Annotated[
        str, typer.Option("--scheme", metavar="NAME", help=f"How parts are made: {', '.join(SCHEMES)}.")
    ] = "kd",
    partitions: Annotated[
        Path | None,
        typer.Option("--partitions", metavar="PLAN", help="Parts of narrowcast partition, instead of these."),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option("--measured", metavar="T", help="Write what parts took, for narrowcast partition."),
    ] = None,
    seed: options.Seed = 0,
    strict: options.Strict = False,
    master: options.Master = options.LOCAL,
    conf: options.Conf = None,
    ui: options.Ui = False,
    as_json: options.Json = False,
) -> None:
    """Match events with subscriptions: one row for each event that matches anything, its ids ascending.

    Before it starts it says what each strategy would cost. `broadcast` has the whole index in every worker;
    `partitioned` spreads subscriptions, so that no worker holds them all; `auto` takes the cheaper that fits.

    With `--histories`, which events each subscription matched is written too, the latest last, and an empty
    list where there are none: all of them, or those that `--last`, `--recent` and `--window` choose.

    Examples:

        narrowcast match --subscriptions s.parquet --events e.parquet --out m.parquet

        narrowcast match --subscriptions s.csv --events s3a://bucket/events --out s3a://bucket/sizes --counts

        narrowcast match --subscriptions s.csv --events e.parquet --out m --histories h --last 20

        narrowcast match --subscriptions s --events e --out m --strategy partitioned --partitions plan
    """
    from narrowcast.spark.stages.histories import check_chosen
    from narrowcast.spark.stages.match_inputs import MatchInputs
    from narrowcast.spark.stages.slice_metrics import SliceMetrics

    options.one_of("--strategy", strategy, STRATEGIES)
    types = None if schema is None else Schema.read(schema)
    limit = options.memory_of(memory)
    if not out.strip("/"):
        raise ParameterError(f"--out is {out!r}; name a folder that is not there yet")
    ways = {"--parts": parts, "--copies": copies, "--partitions": partitions}
    given = [name for name, value in ways.items() if value is not None]
    if strategy == "broadcast" and given:
        raise ParameterError(f"{given[0]} is of the strategy partitioned; leave it out")
    if strategy != "partitioned" and measured is not None:
        raise ParameterError("--measured is of the strategy partitioned; add --strategy partitioned")
    SCHEMES[scheme]
    if copies is not None and "copies" not in TAKES[scheme]:
        raise ParameterError(f"--copies is given, and scheme {scheme!r} has none; leave it out")
    scheme_of(scheme, parts=(copies or 1) if parts is None else parts, copies=copies)
    held = None
    if partitions is not None:
        if len(given) > 1 or scheme != "kd":
            raise ParameterError("--partitions say all of parts; leave --parts, --copies and --scheme out")
        held = read_partitions(partitions)[0]
    if measured is not None:
        check_new_table(measured)
    check_chosen(last=last, window=window, recent=recent)
    chosen = {"last": last, "recent": recent, "window": window}
    if histories is None and (named := [name for name, value in chosen.items() if value is not None]):
        raise ParameterError(
            f"--{named[0]} chooses the events of histories; add --histories, or leave it out"
        )
    if histories is not None and counts:
        raise ParameterError("--counts leaves out who matches, which --histories needs; leave one out")
    aside = rejected or _beside(out)
    places = {"--out": out, "--rejected": aside} | ({} if histories is None else {"--histories": histories})
    _refuse_inside(places | ({} if measured is None else {"--measured": str(measured)}))
    start = time.perf_counter()
    with options.spark_at(master, conf, ui=ui) as at:
        for path in places.values():
            if exists(at.spark, path):
                raise TableError(f"{path} exists already; name another or remove it")
        n_bytes = size_of(at.spark, subscriptions) + size_of(at.spark, events)
        with sized(at.spark, n_bytes):
            content = MatchInputs(
                at.spark, subscriptions, events, schema=types, strict=strict, progress=at.progress
            )
            facts: dict[str, Any] = {"command": "match", "out": out, **content.facts}
            took = None if measured is None else SliceMetrics(at.spark.sparkContext)
            found = content.match(
                strategy=strategy,
                counts=counts,
                memory=limit,
                parts=parts,
                copies=copies,
                scheme=scheme,
                partitions=held,
                seed=seed,
                took=took,
                tell=at.tell,
            )
            if facts["rejected"]:  # first: once matches are there, so is all that belongs to them
                content.write_rejected(aside)
                facts["rejected_table"] = aside
            facts |= content.write(found, out, counts=counts)
            if measured is not None and took is not None:
                write_new_table(took.table(), measured)
                facts["measured_table"] = str(measured)
            if histories is not None:
                facts |= _write_histories(content, out, histories, chosen)
            facts["seconds"] = time.perf_counter() - start
    options.show(facts, {"What came out": _rows(facts)}, as_json=as_json)


def _write_histories(content: MatchInputs, matches: str, path: str, chosen: dict[str, Any]) -> dict[str, Any]:
    """Write the histories that go with a table of matches, and return how many there are."""
    from narrowcast.spark.stages.histories import histories, long_rows, write_histories

    with watched(content.spark, content.progress, "histories"), long_rows(content.spark):
        built = histories(read_back(content.spark, matches), content.owners, content.events, **chosen)
        return {"histories_table": path, **write_histories(built, path)}


def _rows(facts: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return what came out as rows of text."""
    rows: list[tuple[str, ...]] = [("", "number")]
    rows += [(name, f"{facts[name]:,}") for name in ("subscriptions", "events", "rejected")]
    rows += [(f"  {reason}", f"{count:,}") for reason, count in facts["reasons"].items()]
    rows.append(("matches", f"{facts['matches']:,}"))
    rows.append(("events that match nobody", f"{facts['unmatched']:,}"))
    if "histories" in facts:
        rows.append(("histories", f"{facts['histories']:,}"))
        rows.append(("  of them empty", f"{facts['empty']:,}"))
    rows.append(("seconds", f"{facts['seconds']:.1f}"))
    return rows


def _refuse_inside(places: dict[str, str]) -> None:
    """Refuse outputs of which two are the same, or one is inside another: it would be read as part of it."""
    names = {option: _names(place) for option, place in places.items()}
    for one, other in combinations(places, 2):
        if names[one] == names[other]:
            raise ParameterError(f"{one} and {other} are both {places[one]}; give each its own")
        outer, inner = sorted((one, other), key=lambda option: len(names[option]))
        if names[inner][: len(names[outer])] == names[outer]:
            raise ParameterError(
                f"{inner} {places[inner]} is inside {outer} {places[outer]}; put it beside it"
            )


def _names(place: str) -> tuple[str, ...]:
    """Return the names that lead to a folder or URI, the same for all ways to write a local one.

    >>> _names("s3a://bucket/m/"), _names("file:///tmp/a/../m") == _names("/tmp/m")
    (('s3a:', '', 'bucket', 'm'), True)
    """
    if "://" in place and not place.startswith("file:"):
        return tuple(place.rstrip("/").split("/"))
    return Path(place.removeprefix("file:")).resolve().parts


def _beside(out: str) -> str:
    """Return the name of the rejected table that goes with a table of matches.

    >>> _beside("s3a://bucket/m.parquet"), _beside("matches")
    ('s3a://bucket/m-rejected.parquet', 'matches-rejected')
    """
    head, slash, name = out.rstrip("/").rpartition("/")
    plain = PurePosixPath(name)
    return f"{head}{slash}{plain.stem}-rejected{plain.suffix}"
