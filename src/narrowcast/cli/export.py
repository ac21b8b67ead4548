"""`narrowcast export`: a plan in the form a network or broker takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narrowcast.cli import options
from narrowcast.errors import ParameterError
from narrowcast.report.export import multicast, nats
from narrowcast.report.export.multicast import multicast_files
from narrowcast.report.export.nats import nats_files
from narrowcast.report.export.plan_tables import (
    PlanFolder,
    csv_files,
    csv_text,
    named_file,
    sizes_of,
    write_files,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from narrowcast.report.export.plan_tables import Files

#: What makes the files of each form, and the options that it takes.
FORMS: dict[str, tuple[Callable[..., Files], tuple[str, ...]]] = {
    "multicast": (multicast_files, ("base", "avoid", "port", "port_per_session")),
    "nats": (nats_files, ("prefix", "encode", "keep_topic", "mappings")),
    "csv": (csv_files, ()),
}


def export(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan: a folder.")],
    to: Annotated[str, typer.Option("--to", metavar="FORM", help=f"The form: {', '.join(FORMS)}.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="A new folder for all files of the form.")
    ] = None,
    table: Annotated[
        str | None,
        typer.Option("--table", metavar="NAME", help="Which file to print, not the first."),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            "--base", metavar="NET", help=f"multicast: where addresses come from; default {multicast.BASE}."
        ),
    ] = None,
    avoid: Annotated[
        list[str] | None,
        typer.Option(
            "--avoid",
            metavar="ADDR",
            help="multicast: groups of others, joined by commas, to share no MAC address with.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", metavar="N", help=f"multicast: the port, or the first; default {multicast.PORT}."
        ),
    ] = None,
    port_per_session: Annotated[
        bool, typer.Option("--port-per-session", help="multicast: give each session a port of its own.")
    ] = False,
    prefix: Annotated[
        str | None,
        typer.Option("--prefix", metavar="P", help=f"nats: how subjects begin; default {nats.PREFIX}."),
    ] = None,
    encode: Annotated[
        bool, typer.Option("--encode", help="nats: publish to PREFIX.flow.NAME, with any name escaped.")
    ] = False,
    keep_topic: Annotated[
        bool, typer.Option("--keep-topic", help="nats: put the topic behind the channel's subject.")
    ] = False,
    no_mappings: Annotated[
        bool, typer.Option("--no-mappings", help="nats: publishers send to channels themselves.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Write a plan in the form a network or broker takes; without --out, print its first table.

    Example: `narrowcast export plans/monday --to multicast --base 239.192.0.0/14 --out tables`
    """
    if to not in FORMS:
        raise ParameterError(f"--to is {to!r}; use one of {', '.join(FORMS)}")
    if table is not None and (out is not None or as_json):
        raise ParameterError("--table prints one file; leave out --out and --json, or --table")
    made, takes = FORMS[to]
    asked: dict[str, Any] = {
        "base": base,
        "avoid": [each for word in avoid or () for each in word.split(",")] or None,
        "port": port,
        "port_per_session": port_per_session or None,
        "prefix": prefix,
        "encode": encode or None,
        "keep_topic": keep_topic or None,
        "mappings": False if no_mappings else None,
    }
    asked = {name: value for name, value in asked.items() if value is not None}
    for name in asked:
        if name not in takes:
            form = next(form for form, (_, known) in FORMS.items() if name in known)
            option = "no-mappings" if name == "mappings" else name.replace("_", "-")
            raise ParameterError(f"--{option} is for --to {form}; leave it out with --to {to}")
    source = PlanFolder(plan)
    files = made(source, **asked)
    if out is None and not as_json:
        shown = next(iter(files.values())) if table is None else named_file(files, table)
        typer.echo(shown if isinstance(shown, str) else csv_text(shown), nl=False)
        if table is None:
            others = ", ".join(name.partition(".")[0] for name in list(files)[1:])
            typer.echo(f"there are also {others}: --table NAME prints one, --out DIR writes all", err=True)
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
