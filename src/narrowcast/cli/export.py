"""`narrowcast export`: a plan as files for a network or a broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narrowcast.cli import choices, options, panels
from narrowcast.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Callable

    from narrowcast.report.export.plan_tables import Files

#: Parameters that each form takes.
TAKES: dict[str, tuple[str, ...]] = {
    "multicast": ("base", "avoid", "port", "port_per_session"),
    "nats": ("prefix", "encode", "keep_topic", "mappings"),
    "csv": (),
}


def export(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="Folder of the plan.")],
    to: Annotated[
        str, typer.Option("--to", metavar="FORM", help=f"Form of the export: {', '.join(choices.FORMS)}.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="New folder for all files (default: print the first file)."
        ),
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", metavar="NAME", help="File to print (default: the first).")
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            "--base",
            metavar="NET",
            help=f"Network that group addresses come from (default: {choices.MULTICAST_BASE}).",
            rich_help_panel=panels.MULTICAST,
        ),
    ] = None,
    avoid: Annotated[
        list[str] | None,
        typer.Option(
            "--avoid",
            metavar="ADDR",
            help="Groups in use, joined by commas: no new group shares a MAC address with them; repeatable.",
            rich_help_panel=panels.MULTICAST,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="N",
            help=f"Port, or the first one with --port-per-session (default: {choices.MULTICAST_PORT}).",
            rich_help_panel=panels.MULTICAST,
        ),
    ] = None,
    port_per_session: Annotated[
        bool,
        typer.Option(
            "--port-per-session",
            help="Give each session a port of its own.",
            rich_help_panel=panels.MULTICAST,
        ),
    ] = False,
    prefix: Annotated[
        str | None,
        typer.Option(
            "--prefix",
            metavar="P",
            help=f"First word of subjects (default: {choices.NATS_PREFIX}).",
            rich_help_panel=panels.NATS,
        ),
    ] = None,
    encode: Annotated[
        bool,
        typer.Option(
            "--encode",
            help="Publish to PREFIX.flow.NAME, with the flow name escaped.",
            rich_help_panel=panels.NATS,
        ),
    ] = False,
    keep_topic: Annotated[
        bool,
        typer.Option(
            "--keep-topic",
            help="Append the topic to the subject of the channel.",
            rich_help_panel=panels.NATS,
        ),
    ] = False,
    no_mappings: Annotated[
        bool,
        typer.Option(
            "--no-mappings",
            help="Write no subject mappings: publishers send to the subjects of channels themselves.",
            rich_help_panel=panels.NATS,
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Write a plan as multicast groups, NATS subject mappings or CSV tables.

    Without --out, the first table is printed.

    Example: `narrowcast export plans/monday --to multicast --base 239.192.0.0/14 --out tables`
    """
    from narrowcast.report.export.plan_tables import (
        PlanFolder,
        csv_text,
        named_file,
        sizes_of,
        write_files,
    )

    options.one_of("to", to, choices.FORMS)
    if table is not None and (out is not None or as_json):
        raise ParameterError("--table prints one file: cannot be combined with --out or --json")
    given: dict[str, Any] = {
        "base": base,
        "avoid": [each for word in avoid or () for each in word.split(",")] or None,
        "port": port,
        "port_per_session": port_per_session or None,
        "prefix": prefix,
        "encode": encode or None,
        "keep_topic": keep_topic or None,
        "mappings": False if no_mappings else None,
    }
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        if name not in TAKES[to]:
            form = next(form for form, known in TAKES.items() if name in known)
            option = "no-mappings" if name == "mappings" else name.replace("_", "-")
            raise ParameterError(f"--{option}: only for --to {form}; leave it out")
    source = PlanFolder(plan)
    files = _writer(to)(source, **given)
    if out is None and not as_json:
        shown = next(iter(files.values())) if table is None else named_file(files, table)
        typer.echo(shown if isinstance(shown, str) else csv_text(shown), nl=False)
        if table is None:
            rest = ", ".join(name.partition(".")[0] for name in list(files)[1:])
            typer.echo(f"not printed: {rest}; --table NAME prints one, --out DIR writes all", err=True)
        return
    sizes = sizes_of(files) if out is None else write_files(files, out)
    facts = {
        "command": "export",
        "to": to,
        "out": None if out is None else str(out),
        "flow_space": source.info.flow_space,
        "groups": len(source.groups),
        "sessions": len(source.sessions),
        "flows": source.plan.n_flows,
        "subscribers": source.plan.n_subscribers,
        "unicast": source.plan.unicast.nnz,
        "files": sizes,
    }
    if as_json:
        options.show(facts, {}, as_json=True)
        return
    for name, size in sizes.items():
        typer.echo(f"{out}/{name}: {size:,} {'rows' if name.endswith('.csv') else 'lines'}")


def _writer(form: str) -> Callable[..., Files]:
    """Return the function that makes the files of a form."""
    from narrowcast.report.export.multicast import multicast_files
    from narrowcast.report.export.nats import nats_files
    from narrowcast.report.export.plan_tables import csv_files

    writers: dict[str, Callable[..., Files]] = {
        "multicast": multicast_files,
        "nats": nats_files,
        "csv": csv_files,
    }
    return writers[form]
