"""What the commands that run on Spark have in common: their options, and Spark itself with a progress bar."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from narrowcast.errors import ParameterError
from narrowcast.report.html_page import PROSE
from narrowcast.spark.session import MASTER, bytes_of, session, settings_of
from narrowcast.spark.stages.match import STRATEGIES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from narrowcast.spark.stages.estimate import Estimate

Master = Annotated[
    str,
    typer.Option("--master", metavar="URL", help="Where Spark runs: local[*,4], spark://host:7077."),
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="K=V", help="A setting of Spark's; can be repeated.")
]
Ui = Annotated[bool, typer.Option("--ui", help="Serve Spark's own pages while it runs.")]
Strict = Annotated[bool, typer.Option("--strict", help="Stop when a row is bad instead of setting it aside.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="What all random choices come from.")]
SchemaFile = Annotated[
    str | None,
    typer.Option("--schema", metavar="FILE", help="The types of events: JSON of names to types, or a table."),
]
Strategy = Annotated[
    str, typer.Option("--strategy", metavar="NAME", help=f"How to match: {', '.join(STRATEGIES)}.")
]
Memory = Annotated[
    str | None,
    typer.Option("--memory", metavar="SIZE", help="What a Python worker may take, such as 512m; default 1g."),
]

Rejected = Annotated[
    str | None, typer.Option("--rejected", metavar="R", help="Write the rows that were set aside there.")
]
By = Annotated[
    str,
    typer.Option("--by", metavar="WHAT", help="Whom to cluster: each subscriber, or each subscription."),
]

#: The least that a Python worker can do with: with nothing to match it has about 330 MB.
_LEAST = 384 << 20
#: The default of `--master`.
LOCAL = MASTER


@dataclass(frozen=True, slots=True)
class RunningSpark:
    """Spark at work, and where to show how far it is."""

    spark: Any
    progress: Progress

    def tell(self, estimate: Estimate, chosen: str) -> None:
        """Print what matching will cost, before it starts."""
        for line in estimate.lines(chosen):
            self.progress.console.print(line, markup=False, highlight=False, soft_wrap=True)


def bars() -> Progress:
    """Return what shows how far long work is: on standard error, and only where that is a terminal."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def spark_at(master: str, conf: list[str] | None, *, ui: bool) -> Iterator[RunningSpark]:
    """Start Spark for the length of a block."""
    settings = settings_of(conf or [])
    with bars() as progress:
        starting = progress.add_task("start Spark", total=None)
        with session(master, settings, ui=ui, own_interrupt=True) as spark:
            progress.update(starting, total=1, completed=1)
            if ui:
                progress.console.print(f"Spark's pages: {spark.sparkContext.uiWebUrl}", highlight=False)
            yield RunningSpark(spark, progress)


def memory_of(text: str | None) -> int | None:
    """Return the bytes that a size stands for; too few for any worker are an error."""
    found = None if text is None else bytes_of(text)
    if found is not None and found < _LEAST:
        raise ParameterError(f"--memory is {text}; a Python worker takes 384m at least")
    return found


def number(value: float) -> str:
    """Return a number with as many digits as are read.

    >>> number(36851234.25), number(21.28533333)
    ('36,851,234', '21.2853')
    """
    return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:,.6g}"


def columns_of(costs: Collection[str]) -> tuple[list[str], bool]:
    """Return the costs that a table has room for, and whether it has room for the excess of filtering.

    That excess says what the total does; false positives are mostly the waste, and copies the channels; and
    beside the columns of a network, those of filtering and of the overall cost would be too many.

    >>> columns_of(["filtering", "overall", "waste"]), columns_of(["network", "overall", "waste"])
    ((['overall', 'waste'], True), (['network', 'waste'], False))
    >>> columns_of(["false-positives", "waste"]), columns_of(["false-positives"])
    ((['waste'], False), (['false-positives'], False))
    """
    crowded = {"false-positives": "waste", "filtering": "waste", "forwarding": "waste", "overall": "network"}
    totals = [name for name in costs if crowded.get(name) not in costs]
    return totals, "filtering" in costs and not {"network", "waste"} <= set(costs)


def reasons(facts: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return why rows were set aside as rows of text."""
    return [("", "rows"), *((reason, f"{count:,}") for reason, count in facts["reasons"].items())]


def show(facts: Mapping[str, Any], tables: Mapping[str, Sequence[Sequence[str]]], *, as_json: bool) -> None:
    """Print what came out: as one JSON document, or as tables of which the first row is the head.

    Below the head `PROSE` there are sentences, and no table.
    """
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(facts), indent=2).decode())
        return
    console = Console()
    for title, (head, *rows) in tables.items():
        # Not as the table's own, which would be cut to its width.
        console.print(title, style="bold", markup=False, highlight=False, soft_wrap=True)
        if tuple(head) == PROSE:
            for row in rows:
                console.print(*row, markup=False, highlight=False)
            continue
        table = Table()
        for i, name in enumerate(head):
            # Folded where there is no room: a number that is cut is another number.
            table.add_column(name, justify="right" if i else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(escape, row))
        console.print(table)


def one_of(option: str, value: str, known: Sequence[str]) -> str:
    """Return a value if it is one of those known."""
    if value not in known:
        raise ParameterError(f"{option} is {value!r}; use one of {', '.join(known)}")
    return value
