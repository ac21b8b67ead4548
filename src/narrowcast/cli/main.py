"""The `narrowcast` command."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from narrowcast.cli.check import check
from narrowcast.cli.diff import diff
from narrowcast.cli.doctor import doctor
from narrowcast.cli.generate import generate
from narrowcast.cli.run import run
from narrowcast.errors import NarrowcastError

app = typer.Typer(
    name="narrowcast",
    help="Learns who wants what, folds many flows onto few channels, "
    "and sends every message the cheapest correct way.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

for command in (run, generate, check, diff, doctor):
    app.command()(command)


def main() -> None:
    """Run a command; an error made on purpose is one line on standard error and exit code 2."""
    try:
        app()
    except NarrowcastError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"narrowcast: {error}", markup=False)
        sys.exit(2)
