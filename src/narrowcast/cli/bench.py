"""`narrowcast bench`: the frozen benchmarks."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import narrowcast
from narrowcast.cli.suggestions import close_name
from narrowcast.errors import InputError, MissingError, ParameterError


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Benchmarks to run (default: all).")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Write the results to this JSON file (default: not written)."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use small sizes, to check that the benchmarks work.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as one JSON document.")] = False,
) -> None:
    """Run the frozen benchmarks, as ratios to peers measured in the same run.

    They are part of the repository, not of the installed package, and take half an hour in total. `make
    bench` updates the committed results.

    Examples:

        narrowcast bench --quick

        narrowcast bench matching --out matching.json
    """
    script = Path(narrowcast.__file__).parents[2] / "benchmarks" / "run.py"
    if not script.exists():
        raise MissingError(
            "the benchmarks are not installed with the package; run this in a clone of the repository"
        )
    known = sorted(path.stem for path in script.parent.glob("*.py") if "\ndef run(" in path.read_text())
    for name in names or []:
        if name not in known:
            raise ParameterError(
                f"unknown benchmark {name!r}{close_name(name, known) or ';'} known: {', '.join(known)}",
                parameter="names",
                value=name,
            )
    if out is not None and not out.resolve().parent.is_dir():
        raise InputError(f"--out={str(out)!r}: there is no folder {out.resolve().parent}; make it first")
    with tempfile.TemporaryDirectory() as folder:
        words = [*(names or []), "--out", folder, *(["--quick"] if quick else [])]
        done = subprocess.run([sys.executable, str(script), *words], stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise InputError(f"a benchmark failed with exit code {done.returncode}; its output is above")
        found = {path.stem: json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))}
    text = json.dumps(found, indent=1) + "\n"
    if out is not None:
        part = out.with_name(f".{out.name}.part")
        part.write_text(text)
        part.replace(out)
    if as_json:
        typer.echo(text, nl=False)
    else:
        for name, result in found.items():
            _show(name, result)


def _show(name: str, result: dict[str, Any]) -> None:
    """Print the targets of a benchmark, or its rows if it has no targets."""
    rows = result.get("targets") or result.get("rows") or []
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(title=f"{name}: {result['about']}", title_justify="left")
    for column in columns:
        table.add_column(column.replace("_", " "))
    for row in rows:
        table.add_row(*("" if row.get(column) is None else str(row[column]) for column in columns))
    Console().print(table)
