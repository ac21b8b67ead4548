"""The `narrowcast reproduce` command: run a paper's experiments, and write its tables and figures."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from narrowcast.cli import options
from narrowcast.errors import ParameterError
from narrowcast.files import new_folder

if TYPE_CHECKING:
    from rich.progress import Progress

    from narrowcast.lab.papers.base import Runner


def reproduce(
    paper: Annotated[
        str,
        typer.Argument(
            metavar="PAPER", help="Name of the paper: riabov2003, tock2005, tamara2007, tariq2012."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A folder that does not exist yet.")],
    experiment: Annotated[
        list[str] | None,
        typer.Option("--experiment", metavar="E", help="Experiment to run (repeatable; default: all)."),
    ] = None,
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="N,N", help="Seeds; every experiment runs once per seed.")
    ] = "0,1,2,3,4",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a parameter of the experiments (repeatable)."),
    ] = None,
    scale: Annotated[
        str, typer.Option("--scale", metavar="SIZE", help="paper, or small for a quick look.")
    ] = "paper",
    master: Annotated[
        str | None,
        typer.Option(
            "--master",
            metavar="URL",
            help="Run as Spark tasks: local[*,4], spark://host:7077. Default: in this process.",
        ),
    ] = None,
    conf: options.Conf = None,
    as_json: options.Json = False,
) -> None:
    """Run experiments of a paper; write results.json, a picture for each figure, and report.html.

    Finished points are saved beside the output folder until it is complete: after an interruption the same
    command continues from there.

    Examples
    --------
        narrowcast reproduce riabov2003 --experiment figure-6 --scale small --seeds 0,1 --out riabov

        narrowcast reproduce tock2005 --master local[*,4] --out tock

        narrowcast reproduce tariq2012 --experiment figure-3 --scale small --seeds 0 --out tariq
    """
    from narrowcast.lab.papers import PAPERS, Study
    from narrowcast.lab.papers.base import check_seeds
    from narrowcast.lab.study import tables_of, write_study

    experiments = PAPERS[paper]
    names = list(dict.fromkeys(experiment or experiments))
    for name in names:
        if name not in experiments:
            known = ", ".join(experiments)
            raise ParameterError(
                parameter="experiment", value=name, limit=f"an experiment of {paper}, one of {known}"
            )
    given = {}
    for text in settings or ():
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise ParameterError(parameter="settings", value=text, limit="key=value")
        given[key] = value
    if scale not in ("small", "paper"):
        raise ParameterError(parameter="scale", value=scale, limit="paper or small")
    size: Literal["small", "paper"] = "small" if scale == "small" else "paper"
    chosen = {name: experiments[name].settings(size, given) for name in names}
    unknown = sorted(set(given) - {key for params in chosen.values() for key in params})
    if unknown:
        known = ", ".join(sorted({key for params in chosen.values() for key in params}))
        raise ParameterError(
            f"unknown parameter {unknown[0]!r}: the chosen experiments have {known}",
            parameter="settings",
            value=unknown[0],
            limit=f"one of {known}",
        )
    numbers = check_seeds(seeds)
    if conf and master is None:
        raise ParameterError(
            f"conf={conf[0]!r} is a setting of Spark's: it needs a Spark master",
            parameter="conf",
            value=conf[0],
            limit="given with a Spark master",
        )
    with (
        _finished_points(out) as points,
        new_folder(out) as aside,
        _runner(master, conf, points) as (runner, progress),
    ):
        outcomes = {}
        for name in names:
            task = progress.add_task(name, total=None)

            def tell(what: str, done: int, of: int, task: object = task, name: str = name) -> None:
                progress.update(task, description=f"{name}: {what}", completed=done, total=of)  # type: ignore[arg-type]

            outcomes[name] = experiments[name].run(Study(numbers, chosen[name], tell, runner))
            progress.update(task, total=1, completed=1)
        facts = {"seeds": list(numbers), "scale": size, "params": chosen}
        results = write_study(aside, paper, outcomes, facts)
    tables = {head: rows for pair in outcomes.items() for head, rows in tables_of(*pair).items()}
    options.show(results, tables, as_json=as_json)
    if not as_json:
        typer.echo(f"{out}: results.json, report.html and the pictures")


@contextmanager
def _finished_points(out: Path) -> Iterator[Path]:
    """Provide a folder for finished points, deleted on success and retained, with a message, on failure."""
    folder = out.parent / f".{out.name}.points"
    if n := _count(folder):
        typer.echo(f"found {n} finished points of an earlier run in {folder}: they are reused", err=True)
    try:
        yield folder
    except BaseException:
        with suppress(OSError):
            folder.rmdir()  # when nothing is in it
        if n := _count(folder):
            typer.echo(
                f"{n} finished points are in {folder}: the same command continues from there", err=True
            )
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _count(folder: Path) -> int:
    return len(list(folder.glob("*.point")))


@contextmanager
def _runner(master: str | None, conf: list[str] | None, points: Path) -> Iterator[tuple[Runner, Progress]]:
    """Provide a function that runs sweeps, in this process or on Spark, and the progress bars to show."""
    if master is not None:
        from narrowcast.lab.spark.sweep import run_sweep

        with options.spark_at(master, conf, ui=False) as at:
            yield lambda sweep, tell: run_sweep(at.spark, sweep, done=points, tell=tell), at.progress
        return
    with options.bars() as progress:
        yield lambda sweep, tell: sweep.run(done=points, tell=tell), progress
