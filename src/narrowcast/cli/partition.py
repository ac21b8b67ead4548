"""`narrowcast partition`: which ranges live where, as a plan artefact."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narrowcast.cli import options
from narrowcast.cli.set_option import Settings, parameters
from narrowcast.errors import ParameterError, TableError
from narrowcast.files import read_table
from narrowcast.matching.partition import Partitioning, PartWork, read_partitions, write_partitions
from narrowcast.model.schema import Schema
from narrowcast.planning.ranges.partitioning import SCHEMES, TAKES
from narrowcast.planning.ranges.partitioning import scheme as scheme_of
from narrowcast.spark.progress import watched
from narrowcast.spark.session import sized
from narrowcast.spark.spark_errors import plainly
from narrowcast.spark.stages.partition import cut_parts
from narrowcast.spark.storage import size_of

if TYPE_CHECKING:
    from narrowcast.matching.partition import AdaptedParts
    from narrowcast.spark.stages.partition import PartitionResult

#: Parts that are made unless said otherwise.
PARTS = 64


def partition(
    subscriptions: Annotated[
        str, typer.Option("--subscriptions", metavar="S", help="Table: subscription_id, subscriber, filter.")
    ],
    events: Annotated[
        str, typer.Option("--events", metavar="E", help="Table: event_id, and a column for each attribute.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="PLAN", help="A folder that does not exist yet.")],
    parts: Annotated[
        int | None, typer.Option("--parts", metavar="P", help=f"The most parts; {PARTS} unless given.")
    ] = None,
    copies: Annotated[
        int | None, typer.Option("--copies", metavar="C", help="To how many parts an event goes; else one.")
    ] = None,
    scheme: Annotated[
        str, typer.Option("--scheme", metavar="NAME", help=f"How parts are made: {', '.join(SCHEMES)}.")
    ] = "kd",
    start: Annotated[
        Path | None,
        typer.Option("--from", metavar="PLAN", help="Parts in use, to be changed where they are not even."),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured", metavar="T", help="What parts took, of match --measured: balance by that."
        ),
    ] = None,
    settings: Settings = None,
    seed: options.Seed = 0,
    schema: options.SchemaFile = None,
    strict: options.Strict = False,
    master: options.Master = options.LOCAL,
    conf: options.Conf = None,
    ui: options.Ui = False,
    as_json: options.Json = False,
) -> None:
    """Cut subscriptions and events into parts, so that each event goes only where something can match it.

    The plan says which ranges of attributes live where, and where a subscription goes: `match --partitions`
    uses it, and so can brokers that share the work. It is made from samples. What it says it costs was
    measured on events that it was not made for: copies of an event, replication of a subscription, and the
    work of the heaviest part over the mean.

    Schemes are `kd` (cells of a k-d tree, times rows by hash), `selective` (each row has cells of its own,
    and a subscription is in the row where it is most selective), `cobas` (trees of ranges, merged and
    divided, with --set routing, search, way, kappa and upkeep) and `hash` (every event goes everywhere).

    With --from, parts in use are changed where the heaviest has more than --set threshold=1.25 times the
    mean work: branches that are not even are cut anew, and what is in others stays where it is. Parts made
    anew are taken where they are even too and move less, or where nothing else helps. It says which was
    done, the balance before and after, and what share of places is new; and when nothing makes parts even.

    With --measured, balance is told by the work that was measured too.

    Examples:

        narrowcast partition --subscriptions s.parquet --events e.parquet --parts 64 --out plan

        narrowcast partition --subscriptions s --events e --scheme selective --copies 4 --out plan

        narrowcast partition --subscriptions s --events today --from plan --out next
    """
    from narrowcast.spark.stages.match_inputs import MatchInputs

    if out.exists() or out.is_symlink():
        raise TableError(f"{out} exists already; name another folder or remove it")
    SCHEMES[scheme]
    params = parameters(settings or [])
    if odd := [name for name in params if name in ("parts", "copies", "seed", "work")]:
        option = "--measured" if odd[0] == "work" else f"--{odd[0]}"
        raise ParameterError(f"--set {odd[0]} is given by an option of its own; use {option}")
    threshold = params.pop("threshold", None)
    work = None if measured is None else _fitted(measured)
    before, said = None, {"parts": PARTS if parts is None else parts, "copies": copies, **params}
    if start is None:
        if threshold is not None:
            raise ParameterError(
                "threshold is given, and there is nothing to adapt; add --from, or leave it out"
            )
        if work is not None and "work" not in TAKES[scheme]:
            raise ParameterError(
                f"--measured is given, and scheme {scheme!r} does not go by it; leave it out"
            )
        scheme_of(scheme, **said)
    else:
        if parts is not None or copies is not None or params or scheme != "kd":
            raise ParameterError(
                "--from says how parts are made; leave --parts, --copies, --scheme and --set out"
            )
        found, info = read_partitions(start)
        if not isinstance(found, Partitioning):
            raise ParameterError(
                f"{start} is of scheme {info.method!r}, which is not adapted; leave --from out"
            )
        if threshold is not None and not (isinstance(threshold, int | float) and threshold >= 1):
            raise ParameterError(f"threshold is {threshold!r}; give a number of at least 1")
        before, scheme, said = found, info.method, dict(info.params)
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
                    params=said if before is None else None,
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
                params=_told(said, {"from": start, "measured": measured}),
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
        tables = {"Rows that were set aside": options.reasons(facts), **tables}
    options.show(facts, tables, as_json=as_json)


def _told(params: dict[str, Any], given: dict[str, Path | None]) -> dict[str, Any]:
    """Return what `plan.json` says of how parts were made: parameters, and what was gone on from."""
    names = {key: str(path) for key, path in given.items() if path is not None}
    return {key: value for key, value in params.items() if value is not None} | names


def _costs(cut: PartitionResult) -> dict[str, float]:
    """Return what `plan.json` says that parts cost: none of these numbers says much alone."""
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
    """Return the work that a table tells."""
    table = read_table(path)
    try:
        return PartWork.fitted(table)
    except TableError as error:
        raise TableError(f"{path}: {error}") from error


def _changes(found: AdaptedParts) -> dict[str, Any]:
    """Return what came of following a load."""
    done = "parts made anew" if found.anew else "some branches cut anew" if found.steps else "nothing"
    return {
        "before": found.before,
        "after": found.after,
        "threshold": found.threshold,
        "even": found.even,
        "steps": found.steps,
        "anew": found.anew,
        "fresh": found.fresh,
        "done": done,
    }


def _rows(facts: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return what came out as rows of text."""
    rows: list[tuple[str, ...]] = [("", "number")]
    rows += [(name, f"{facts[name]:,}") for name in ("subscriptions", "events", "parts")]
    told = {
        "copies": "copies of an event",
        "replication": "parts that hold a subscription",
        "work_max_over_mean": "work of the heaviest part over the mean",
        "measured_work_max_over_mean": "  the same by measured work",
        "work": "work as a share of comparing everything",
        "before": "heaviest over mean before, as sampled",
        "after": "  the same after",
        "steps": "changes to the parts there were",
        "moved": "share of places that are new",
        "fresh": "share of places that would be with parts made anew",
        "seconds": "seconds",
    }
    rows += [
        (text, options.number(round(facts[name], 4)))
        for name, text in told.items()
        if facts.get(name) is not None
    ]
    if "done" in facts:
        even = "yes" if facts["even"] else "no: nothing found is"
        rows[-1:-1] = [
            ("what was done", facts["done"]),
            (f"at most {facts['threshold']:g} times the mean", even),
        ]
    return rows
