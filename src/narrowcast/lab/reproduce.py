"""`narrowcast reproduce`: a paper's tables and figures, run again."""

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
        str, typer.Argument(metavar="PAPER", help="Which paper: riabov2003, tock2005, tamara2007, tariq2012.")
    ],
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
    """Run experiments of a paper: results.json, a picture for each figure, and report.html.

    What is finished is kept beside the folder until it is there: after an interruption the same command goes
    on from where it was.

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
    if conf and master is None:
        raise ParameterError(f"--conf is {conf[0]!r}, a setting of Spark's; give --master with it")
    with _kept(out) as points, new_folder(out) as aside, _runner(master, conf, points) as (runner, progress):
        outcomes = {}
        for name in names:
            task = progress.add_task(name, total=None)

            def tell(what: str, done: int, of: int, task: object = task, name: str = name) -> None:
                progress.update(task, description=f"{name}: {what}", completed=done, total=of)  # type: ignore[arg-type]

            outcomes[name] = experiments[name].run(Study(numbers, chosen[name], tell, runner))
            progress.update(task, total=1, completed=1)
        facts = {"seeds": list(numbers), "scale": size, "params": chosen}
        said = write_study(aside, paper, outcomes, facts)
    tables = {head: rows for pair in outcomes.items() for head, rows in tables_of(*pair).items()}
    options.show(said, tables, as_json=as_json)
    if not as_json:
        typer.echo(f"{out}: results.json, report.html and the pictures")


@contextmanager
def _kept(out: Path) -> Iterator[Path]:
    """Give a folder for finished points that stays when a block fails, and say so."""
    folder = out.parent / f".{out.name}.points"
    if n := _count(folder):
        typer.echo(f"{n} points of an earlier run in {folder}: what is the same is not done again", err=True)
    try:
        yield folder
    except BaseException:
        with suppress(OSError):
            folder.rmdir()  # when nothing is in it
        if n := _count(folder):
            typer.echo(f"{n} finished points stay in {folder}: the same command goes on from there", err=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _count(folder: Path) -> int:
    return len(list(folder.glob("*.point")))


@contextmanager
def _runner(master: str | None, conf: list[str] | None, points: Path) -> Iterator[tuple[Runner, Progress]]:
    """Give what runs sweeps, here or on Spark, and where to show how far they are."""
    if master is not None:
        from narrowcast.lab.spark.sweep import run_sweep

        with options.spark_at(master, conf, ui=False) as at:
            yield lambda sweep, tell: run_sweep(at.spark, sweep, done=points, tell=tell), at.progress
        return
    with options.bars() as progress:
        yield lambda sweep, tell: sweep.run(done=points, tell=tell), progress
