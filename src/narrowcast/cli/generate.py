"""`narrowcast generate`: a seeded workload as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from narrowcast import __version__
from narrowcast.cli import choices, options


def generate(
    workload: Annotated[
        str, typer.Argument(metavar="WORKLOAD", help=f"Workload: {', '.join(choices.WORKLOADS)}.")
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder of the files; must not exist yet.")
    ],
    seed: options.Seed = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a parameter of the workload; repeatable. `--set help` lists them.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document and nothing else.")
    ] = False,
) -> None:
    """Generate a workload: one Parquet file per table, and workload.json with its parameters.

    The same seed and parameters give the same tables.

    Example: `narrowcast generate stocks --out quotes --seed 7 --set n_events=500 --set modes=4`
    """
    import pyarrow.parquet as pq

    from narrowcast.files import new_folder
    from narrowcast.workloads import make_workload, origin_of, values_of

    made = make_workload(workload, settings or (), seed=seed)
    with new_folder(out) as aside, Console(stderr=True).status(f"making {made}"):
        tables = made.tables()
        for name, table in tables.items():
            pq.write_table(table, aside / f"{name}.parquet")
        description = {
            "name": workload,
            "parameters": values_of(made),
            "seed": seed,
            "version": __version__,
            "rows": {name: table.num_rows for name, table in tables.items()},
            **origin_of(made),
        }
        text = msgspec.json.format(msgspec.json.encode(description), indent=2)
        (aside / "workload.json").write_bytes(text + b"\n")
    if as_json:
        typer.echo(text.decode())
        return
    for name, table in tables.items():
        typer.echo(f"{out / name}.parquet: {table.num_rows:,} rows")
    typer.echo(f"{out / 'workload.json'}: {made}")
