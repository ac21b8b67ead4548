"""`narrowcast check`: which filters are bad and why, and what the good ones become."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from narrowcast.cli.event_option import read_event
from narrowcast.errors import FilterError, InputError, TableError
from narrowcast.files import read_table
from narrowcast.filters.explain import Explanation, ParsedFilter
from narrowcast.filters.limits import FilterLimits
from narrowcast.filters.subscriptions import compile_filters
from narrowcast.filters.type_inference import infer_schema
from narrowcast.matching import matcher_for
from narrowcast.model.events import EventBatch
from narrowcast.model.schema import Schema

#: Events drawn to tell how selective a filter is, from as many of the first.
SAMPLE = 1_000
LOOKED_AT = 1_000_000
#: Reasons told apart on the terminal.
REASONS = 5


def check(
    filters: Annotated[
        Path, typer.Argument(help="A table with a `filter` column, or a .txt file with one filter a line.")
    ],
    schema: Annotated[
        Path | None, typer.Option(help="Attribute types: a JSON file of names and types, or a table.")
    ] = None,
    events: Annotated[
        Path | None, typer.Option(help="A table of events: gives the types and a sample for selectivity.")
    ] = None,
    event: Annotated[
        str | None, typer.Option(help="One event as JSON, @FILE or -: show which predicates hold for it.")
    ] = None,
    limit_boxes: Annotated[
        int, typer.Option(help="The most boxes one filter may become.")
    ] = FilterLimits().boxes,
    rows: Annotated[int, typer.Option(min=1, help="Filters to list; bad ones come first.")] = 20,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 2 when a filter is bad.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document and nothing else.")
    ] = False,
) -> None:
    """Tell which filters are bad and why, how many boxes each becomes, and how selective it is.

    Without --schema or --events the types come from the literals in the filters.

    Examples:

        narrowcast check subscriptions.parquet --events events.parquet

        narrowcast check filters.txt --event '{"price": 80, "name": "IBM"}'
    """
    table = _read_filters(filters)
    if schema is not None and events is not None:
        raise InputError("give --schema or --events, not both: the events carry their own types")
    limits = FilterLimits(boxes=limit_boxes)
    typed = schema is not None or events is not None
    told = None if event is None else read_event(event)
    sample = None if events is None else _sample(events)
    with Console(stderr=True).status(f"reading {table.num_rows:,} filters") as status:
        if sample is not None:
            types = sample.schema
        elif schema is not None:
            types = Schema.read(schema)
        else:
            types = infer_schema(filter(None, table["filter"].to_pylist()), limits)
        status.update(f"compiling {table.num_rows:,} filters")
        report = _report(table, types, limits, sample, told, None if as_json else rows, typed=typed)
    if as_json:
        print(msgspec.json.encode(report).decode())
    else:
        _show(report)
    if strict and report["bad"]:
        first = report["rows"][0]
        raise FilterError(
            f"{report['bad']:,} of {report['filters']:,} filters are bad; the first is subscription_id "
            f"{first['subscription_id']}: {first['reason']}"
        )


def _sample(path: Path) -> EventBatch:
    """Return events drawn at random, always the same ones."""
    seen = read_table(path, limit=LOOKED_AT)
    drawn = np.random.default_rng(0).permutation(seen.num_rows)[:SAMPLE]
    return EventBatch.from_arrow(seen.take(pa.array(np.sort(drawn))))


def _read_filters(path: Path) -> pa.Table:
    """Return a table with ids, subscribers and filters, whatever of it the file has."""
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
    """Return the counts, and up to `most` rows, the bad ones first and always at least one of them."""
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
    """Explain an event by the types given, or by those of its own values where there are none."""
    try:
        return ParsedFilter.parse(text, limits).explain(event, types)
    except FilterError as error:
        raise InputError(
            f"--event does not go with subscription_id {number}, which {error}; mend it, or give --schema"
        ) from error


def _show(report: dict[str, Any]) -> None:
    console = Console(highlight=False)
    console.print(
        f"{report['filters']:,} filters: {report['good']:,} good, {report['bad']:,} bad; "
        f"{report['boxes']:,} boxes in all, {report['checked']:,} to be checked on candidates, "
        f"{report['never_true']:,} can never be true",
        soft_wrap=True,
    )
    for reason, count in list(report["reasons"].items())[:REASONS]:
        console.print(f"  {count:,} x {reason}", markup=False, soft_wrap=True)
    if len(report["reasons"]) > REASONS:
        console.print(f"  ... and {len(report['reasons']) - REASONS:,} other reasons: see --json")
    if report["sample_events"]:
        console.print(f"selectivity on {report['sample_events']:,} events drawn at random")
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
