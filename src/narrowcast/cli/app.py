"""The commands, put together."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from narrowcast import __version__
from narrowcast.cli import dead_letters, users
from narrowcast.cli.backup import backup
from narrowcast.cli.bench import bench
from narrowcast.cli.calibrate import calibrate
from narrowcast.cli.check import check
from narrowcast.cli.command import Command
from narrowcast.cli.compare import compare
from narrowcast.cli.diff import diff
from narrowcast.cli.doctor import doctor
from narrowcast.cli.evaluate import evaluate
from narrowcast.cli.explain import explain
from narrowcast.cli.export import export
from narrowcast.cli.follow import follow
from narrowcast.cli.generate import generate
from narrowcast.cli.match import match
from narrowcast.cli.partition import partition
from narrowcast.cli.permissions import permissions
from narrowcast.cli.plan import plan
from narrowcast.cli.publish import publish
from narrowcast.cli.restore import restore
from narrowcast.cli.rollout import rollout
from narrowcast.cli.run import run
from narrowcast.cli.serve import serve
from narrowcast.cli.stream import stream
from narrowcast.cli.subscribe import subscribe

app = typer.Typer(
    name="narrowcast",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
for command in (
    run,
    match,
    partition,
    plan,
    evaluate,
    compare,
    explain,
    stream,
    follow,
    serve,
    publish,
    subscribe,
    rollout,
    permissions,
    backup,
    restore,
    import_module("narrowcast.lab.reproduce").reproduce,  # by name: the product knows nothing of the lab
    generate,
    calibrate,
    check,
    diff,
    export,
    bench,
    doctor,
):
    app.command(cls=Command)(command)
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(users.app, name="users")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"narrowcast {__version__}")
        raise typer.Exit


@app.callback()
def narrowcast(
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Learns who wants what, folds many flows onto few channels, and sends every message the cheapest way."""
