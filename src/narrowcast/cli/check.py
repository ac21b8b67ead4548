"""`narrowcast check`: bad filters and their reasons, and the boxes and selectivity of good ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from narrowcast.cli import choices
from narrowcast.cli.event_option import read_event
from narrowcast.errors import FilterError, InputError, TableError

if TYPE_CHECKING:
    import pyarrow as pa

    from narrowcast.filters.explain import Explanation
    from narrowcast.filters.limits import FilterLimits
    from narrowcast.model.events import EventBatch
    from narrowcast.model.schema import Schema

#: Events of the sample for selectivity, and the first events that it is drawn from.
SAMPLE = 1_000
SAMPLED_FROM = 1_000_000
#: Reasons that are printed.
REASONS = 5


def check(
    filters: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Table with a filter column, or a .txt file with one filter per line."
        ),
    ],
    schema: Annotated[
        Path | None,
        typer.Option(
            "--schema",
            metavar="FILE",
            help="Types of event attributes: a JSON object of names and types, or a table with these "
            "columns (default: from --events, or from the literals of the filters).",
        ),
    ] = None,
    events: Annotated[
        Path | None,
        typer.Option(
            "--events",
            metavar="E",
            help="Table of events; gives the types, and a sample for the selectivity of each filter "
            "(default: none).",
        ),
    ] = None,
    event: Annotated[
        str | None,
        typer.Option(
            "--event",
            metavar="JSON",
            help="Show which predicates hold for this event: a JSON object, @FILE, or - for standard "
            "input (default: none).",
        ),
    ] = None,
    limit_boxes: Annotated[
        int,
        typer.Option(
            "--limit-boxes",
            metavar="N",
            help="Maximum number of boxes of one filter; a filter with more is bad.",
        ),
    ] = choices.BOXES,
    rows: Annotated[
        int,
        typer.Option(
            "--rows", metavar="N", help="Maximum number of filters to list; bad ones come first.", min=1
        ),
    ] = 20,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 2 when a filter is bad.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document and nothing else.")
    ] = False,
) -> None:
    """Check filters: which are bad and why, their number of boxes and their selectivity.

    A box is one conjunction of ranges; matching works on boxes. Selectivity is the share of sampled events
    that match. Without --schema or --events, types come from the literals in the filters.

    Examples:

        narrowcast check subscriptions.parquet --events events.parquet

        narrowcast check filters.txt --event '{"price": 80, "name": "IBM"}'
    """
    from narrowcast.filters.limits import FilterLimits
    from narrowcast.filters.type_inference import infer_schema
    from narrowcast.model.schema import Schema

    table = _read_filters(filters)
    if schema is not None and events is not None:
        raise InputError("--schema and --events exclude each other: the events have types; leave one out")
    limits = FilterLimits(boxes=limit_boxes)
    typed = schema is not None or events is not None
    read = None if event is None else read_event(event)
    sample = None if events is None else _sample(events)
    with Console(stderr=True).status(f"reading {table.num_rows:,} filters") as status:
        if sample is not None:
            types = sample.schema
        elif schema is not None:
            types = Schema.read(schema)
        else:
            types = infer_schema(filter(None, table["filter"].to_pylist()), limits)
        status.update(f"compiling {table.num_rows:,} filters")
        report = _report(table, types, limits, sample, read, None if as_json else rows, typed=typed)
    if as_json:
        print(msgspec.json.encode(report).decode())
    else:
        _show(report)
    if strict and report["bad"]:
        first = report["rows"][0]
        raise FilterError(
            f"{report['bad']:,} of {report['filters']:,} filters are bad; the first has subscription_id "
            f"{first['subscription_id']}: {first['reason']}"
        )


def _sample(path: Path) -> EventBatch:
    """Draw a sample of events, with a fixed seed."""
    import numpy as np
    import pyarrow as pa

    from narrowcast.files import read_table
    from narrowcast.model.events import EventBatch

    events = read_table(path, limit=SAMPLED_FROM)
    drawn = np.random.default_rng(0).permutation(events.num_rows)[:SAMPLE]
    return EventBatch.from_arrow(events.take(pa.array(np.sort(drawn))))


def _read_filters(path: Path) -> pa.Table:
    """Read filters; missing ids are row numbers, missing subscribers empty names."""
    import numpy as np
    import pyarrow as pa

    from narrowcast.files import read_table

    if path.suffix.lower() == ".txt":
        try:
            lines = path.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise TableError(f"cannot read {path}: {error}") from error
        table = pa.table({"filter": pa.array([line for line in lines if line.strip()], pa.string())})
    else:
        table = read_table(path, ("filter",))
    n = table.num_rows
    if "subscription_id" not in table.column_names:
        table = table.append_column("subscription_id", pa.array(np.arange(n)))
    if "subscriber" not in table.column_names:
        table = table.append_column("subscriber", pa.array([""] * n, pa.string()))
    return table


def _report(
    table: pa.Table,
    types: Schema,
    limits: FilterLimits,
    sample: EventBatch | None,
    event: dict[str, Any] | None,
    most: int | None,
    *,
    typed: bool,
) -> dict[str, Any]:
    """Return counts and up to `most` rows (at least one), bad filters first."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from narrowcast.filters.subscriptions import compile_filters
    from narrowcast.matching import matcher_for

    compiled = compile_filters(types, table, limits=limits)
    good, rejected = compiled.subscriptions, compiled.rejected
    boxes, checked = good.boxes.counts, np.asarray(good.check.is_valid())
    share = None
    if sample is not None and len(sample):
        matches = matcher_for(len(good), len(sample)).fit(good).match(sample)
        share = np.bincount(matches.index, minlength=len(good)) / len(sample)
    most = table.num_rows if most is None else max(1, most)
    rows = rejected.slice(0, most).select(["subscription_id", "filter", "reason"]).to_pylist()
    ids = pa.array(good.subscription_id[: most - len(rows)])
    texts = table["filter"].take(pc.index_in(ids, table["subscription_id"].cast(pa.int64()))).to_pylist()
    for i, (number, text) in enumerate(zip(ids.to_pylist(), texts, strict=True)):
        row = {"subscription_id": number, "filter": text, "boxes": int(boxes[i]), "checked": bool(checked[i])}
        if share is not None:
            row["selectivity"] = float(share[i])
        if event is not None:
            row["explanation"] = _explain(text, limits, event, types if typed else None, number)
        rows.append(row)
    reasons = rejected["reason"].value_counts().to_pylist()
    return {
        "filters": table.num_rows,
        "good": len(good),
        "bad": rejected.num_rows,
        "reasons": dict(sorted(((r["values"], r["counts"]) for r in reasons), key=lambda pair: -pair[1])),
        "never_true": int((boxes == 0).sum()),
        "checked": int(checked.sum()),
        "boxes": int(boxes.sum()),
        "sample_events": None if sample is None else len(sample),
        "schema": types.to_dict(),
        "rows": rows,
    }


def _explain(
    text: str, limits: FilterLimits, event: dict[str, Any], types: Schema | None, number: int
) -> Explanation:
    """Explain a filter for an event, by the types given or else by those of the event's values."""
    from narrowcast.filters.explain import ParsedFilter

    try:
        return ParsedFilter.parse(text, limits).explain(event, types)
    except FilterError as error:
        raise InputError(
            f"--event: does not fit the filter of subscription_id {number}, which {error}; correct it, or "
            "give --schema"
        ) from error


def _show(report: dict[str, Any]) -> None:
    console = Console(highlight=False)
    console.print(
        f"{report['filters']:,} filters: {report['good']:,} good, {report['bad']:,} bad; "
        f"{report['boxes']:,} boxes in total, {report['checked']:,} to be checked on candidates, "
        f"{report['never_true']:,} can never be true",
        soft_wrap=True,
    )
    for reason, count in list(report["reasons"].items())[:REASONS]:
        console.print(f"  {count:,} x {reason}", markup=False, soft_wrap=True)
    if len(report["reasons"]) > REASONS:
        console.print(f"  ... and {len(report['reasons']) - REASONS:,} other reasons: see --json")
    if report["sample_events"]:
        console.print(f"selectivity on a random sample of {report['sample_events']:,} events")
    table = Table("id", "filter", "boxes", *(["selectivity"] if report["sample_events"] else []), "remark")
    for row in report["rows"]:
        remark = row.get("reason") or (
            "can never be true" if not row["boxes"] else "checked" * row["checked"]
        )
        cells = [str(row["subscription_id"]), str(row["filter"])[:200], str(row.get("boxes", "bad"))]
        if report["sample_events"]:
            cells.append(f"{row['selectivity']:.4g}" if "selectivity" in row else "")
        table.add_row(*map(escape, [*cells, remark]))
    console.print(table)
    if report["filters"] > len(report["rows"]):
        console.print(f"... and {report['filters'] - len(report['rows']):,} more: see --rows and --json")
    for row in report["rows"]:
        if "explanation" in row:
            console.print(f"\n{row['subscription_id']}: {row['filter']}\n{row['explanation']}", markup=False)
