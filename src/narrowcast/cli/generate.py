"""`narrowcast generate`: a seeded workload as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import pyarrow.parquet as pq
import typer
from rich.console import Console

from narrowcast import __version__
from narrowcast.files import new_folder
from narrowcast.workloads import WORKLOADS, make_workload, origin_of, values_of


def generate(
    workload: Annotated[
        str, typer.Argument(metavar="WORKLOAD", help=f"What to make: {', '.join(WORKLOADS)}.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A folder that does not exist yet.")],
    seed: Annotated[int, typer.Option("--seed", help="What all random choices come from.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the workload; can be repeated."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document and nothing else.")
    ] = False,
) -> None:
    """Write a workload: a Parquet file for each of its tables, and workload.json, which says what it is.

    The same seed and parameters give the same tables.

    Example: `narrowcast generate stocks --out quotes --seed 7 --set n_events=500 --set modes=4`
    """
    made = make_workload(workload, settings or (), seed=seed)
    with new_folder(out) as aside, Console(stderr=True).status(f"making {made}"):
        tables = made.tables()
        for name, table in tables.items():
            pq.write_table(table, aside / f"{name}.parquet")
        said = {
            "name": workload,
            "parameters": values_of(made),
            "seed": seed,
            "version": __version__,
            "rows": {name: table.num_rows for name, table in tables.items()},
            **origin_of(made),
        }
        text = msgspec.json.format(msgspec.json.encode(said), indent=2)
        (aside / "workload.json").write_bytes(text + b"\n")
    if as_json:
        typer.echo(text.decode())
        return
    for name, table in tables.items():
        typer.echo(f"{out / name}.parquet: {table.num_rows:,} rows")
    typer.echo(f"{out / 'workload.json'}: {made}")
