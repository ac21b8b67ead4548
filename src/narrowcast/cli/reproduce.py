"""`narrowcast reproduce`: a paper's tables and figures, run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from narrowcast.cli import options
from narrowcast.errors import ParameterError
from narrowcast.files import new_folder


def reproduce(
    paper: Annotated[str, typer.Argument(metavar="PAPER", help="Which paper: riabov2003.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A folder that does not exist yet.")],
    experiment: Annotated[
        list[str] | None,
        typer.Option("--experiment", metavar="E", help="Which of its experiments; all where left out."),
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", metavar="N,N", help="A run for each seed.")] = "0,1,2,3,4",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A parameter of its experiments; can be repeated."),
    ] = None,
    scale: Annotated[
        str, typer.Option("--scale", metavar="SIZE", help="paper, or small for a quick look.")
    ] = "paper",
    as_json: options.Json = False,
) -> None:
    """Run experiments of a paper: results.json, a picture for each figure, and report.html.

    Example: `narrowcast reproduce riabov2003 --experiment figure-6 --scale small --seeds 0,1 --out riabov`
    """
    from narrowcast.papers import PAPERS, Study
    from narrowcast.papers.base import check_seeds
    from narrowcast.report.study import tables_of, write_study

    experiments = PAPERS[paper]
    names = list(dict.fromkeys(experiment or experiments))
    for name in names:
        if name not in experiments:
            known = ", ".join(experiments)
            raise ParameterError(f"{paper} has no experiment {name!r} here; known: {known}")
    given = {}
    for text in settings or ():
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise ParameterError(f"{text!r} sets nothing; write key=value")
        given[key] = value
    if scale not in ("small", "paper"):
        raise ParameterError(f"--scale is {scale!r}; give paper or small")
    size: Literal["small", "paper"] = "small" if scale == "small" else "paper"
    chosen = {name: experiments[name].settings(size, given) for name in names}
    unknown = sorted(set(given) - {key for params in chosen.values() for key in params})
    if unknown:
        known = ", ".join(sorted({key for params in chosen.values() for key in params}))
        raise ParameterError(f"no experiment here has a parameter {unknown[0]!r}; there are: {known}")
    numbers = check_seeds(seeds)
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with (
        new_folder(out) as aside,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        outcomes = {}
        for name in names:
            task = progress.add_task(name, total=None)

            def tell(what: str, done: int, of: int, task: object = task, name: str = name) -> None:
                progress.update(task, description=f"{name}: {what}", completed=done, total=of)  # type: ignore[arg-type]

            outcomes[name] = experiments[name].run(Study(numbers, chosen[name], tell))
            progress.update(task, total=1, completed=1)
        facts = {"seeds": list(numbers), "scale": size, "params": chosen}
        said = write_study(aside, paper, outcomes, facts)
    tables = {head: rows for pair in outcomes.items() for head, rows in tables_of(*pair).items()}
    options.show(said, tables, as_json=as_json)
    if not as_json:
        typer.echo(f"{out}: results.json, report.html and the pictures")
