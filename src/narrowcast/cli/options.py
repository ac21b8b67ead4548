"""Options shared by commands on Spark, the Spark session of a command, and output as tables or JSON."""

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

from narrowcast.cli import choices, panels
from narrowcast.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from narrowcast.spark.stages.estimate import Estimate

Master = Annotated[
    str,
    typer.Option(
        "--master",
        metavar="URL",
        help="Spark master, such as local[*,4] or spark://host:7077.",
        rich_help_panel=panels.SPARK,
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="K=V",
        help="Spark setting, such as spark.sql.shuffle.partitions=64; repeatable.",
        rich_help_panel=panels.SPARK,
    ),
]
Ui = Annotated[
    bool,
    typer.Option("--ui", help="Serve Spark's web pages during the run.", rich_help_panel=panels.SPARK),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Stop at the first bad row (default: set bad rows aside).",
        rich_help_panel=panels.INPUT,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of all random choices.")]
SchemaFile = Annotated[
    str | None,
    typer.Option(
        "--schema",
        metavar="FILE",
        help="Types of event attributes: a JSON object of names and types, or a table with these columns "
        "(default: from the events, or from the filters' literals).",
        rich_help_panel=panels.INPUT,
    ),
]
Strategy = Annotated[
    str,
    typer.Option(
        "--strategy",
        metavar="NAME",
        help=f"Matching strategy on Spark: {', '.join(choices.STRATEGIES)}; auto takes the cheaper that "
        "fits.",
        rich_help_panel=panels.SPARK,
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="Memory limit of a Python worker, at least 384m (default: 1g).",
        rich_help_panel=panels.SPARK,
    ),
]
Rejected = Annotated[
    str | None,
    typer.Option(
        "--rejected",
        metavar="R",
        help="Write rejected rows and their reasons to this table (default: only count them).",
        rich_help_panel=panels.INPUT,
    ),
]
By = Annotated[
    str,
    typer.Option(
        "--by",
        metavar="WHAT",
        help="Assign each `subscriber` or each `subscription` to a cluster; for methods that cluster "
        "subscribers.",
        rich_help_panel=panels.PLANNING,
    ),
]

#: Bytes that a Python worker needs at least: without any data it takes about 330 MB.
_LEAST_MEMORY = 384 << 20
#: Characters of a cell that is never broken; longer cells are text.
_WHOLE = 24
#: Characters that a column adds to its cells: a border and two blanks.
_BORDER = 3
#: Width up to which the first column is not broken in a table that is too wide.
_FIRST = 24
#: The default of `--master`.
LOCAL = choices.MASTER


@dataclass(frozen=True, slots=True)
class RunningSpark:
    """A Spark session and the progress bars of its command."""

    spark: Any
    progress: Progress

    def tell(self, estimate: Estimate, chosen: str) -> None:
        """Print the estimated cost of each matching strategy before matching starts."""
        for line in estimate.lines(chosen):
            self.progress.console.print(line, markup=False, highlight=False, soft_wrap=True)


def bars() -> Progress:
    """Return progress bars on standard error; they are silent where that is not a terminal."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def spark_at(master: str, conf: list[str] | None, *, ui: bool) -> Iterator[RunningSpark]:
    """Provide a Spark session for the block.

    Parameters
    ----------
    master
        Spark master.
    conf
        Spark settings as ``key=value``.
    ui
        Whether to serve Spark's web pages.
    """
    from narrowcast.spark.session import session, settings_of

    settings = settings_of(conf or [])
    with bars() as progress:
        starting = progress.add_task("start Spark", total=None)
        with session(master, settings, ui=ui, own_interrupt=True) as spark:
            progress.update(starting, total=1, completed=1)
            if ui:
                progress.console.print(f"Spark's pages: {spark.sparkContext.uiWebUrl}", highlight=False)
            yield RunningSpark(spark, progress)


def memory_of(text: str | None) -> int | None:
    """Return the bytes of a memory size such as ``512m``; None for None.

    Raises
    ------
    ParameterError
        When the size is not readable, or less than a Python worker needs (384 MiB).
    """
    if text is None:
        return None
    from narrowcast.spark.session import bytes_of

    found = bytes_of(text)
    if found < _LEAST_MEMORY:
        raise ParameterError(parameter="memory", value=text, limit="at least 384m for a Python worker")
    return found


def number(value: float) -> str:
    """Format a number: whole from 100,000 on, else with six significant digits.

    >>> number(36851234.25), number(21.28533333)
    ('36,851,234', '21.2853')
    """
    return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:,.6g}"


def columns_of(costs: Collection[str]) -> tuple[list[str], bool]:
    """Return the costs that a table of 80 columns shows, and whether it shows the excess of filtering.

    Costs that another column nearly repeats are left out: false positives, filtering and forwarding beside
    waste, and the overall cost beside the network's.

    >>> columns_of(["filtering", "overall", "waste"]), columns_of(["network", "overall", "waste"])
    ((['overall', 'waste'], True), (['network', 'waste'], False))
    >>> columns_of(["false-positives", "waste"]), columns_of(["false-positives"])
    ((['waste'], False), (['false-positives'], False))
    """
    crowded = {"false-positives": "waste", "filtering": "waste", "forwarding": "waste", "overall": "network"}
    totals = [name for name in costs if crowded.get(name) not in costs]
    return totals, "filtering" in costs and not {"network", "waste"} <= set(costs)


def reasons(facts: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a table of the reasons for rejected rows and their counts."""
    return [("", "rows"), *((reason, f"{count:,}") for reason, count in facts["reasons"].items())]


def show(facts: Mapping[str, Any], tables: Mapping[str, Sequence[Sequence[str]]], *, as_json: bool) -> None:
    """Print results as one JSON document or as tables.

    Parameters
    ----------
    facts
        The JSON document.
    tables
        Tables by title; the first row is the head. Rows below the head ``PROSE`` are sentences.
    as_json
        Whether to print JSON.
    """
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(facts), indent=2).decode())
        return
    from narrowcast.report.html_page import PROSE

    console = Console()
    for title, (head, *rows) in tables.items():
        # Printed apart: the title of a rich table is cut to the table's width.
        console.print(title, style="bold", markup=False, highlight=False, soft_wrap=True)
        if tuple(head) == PROSE:
            for row in rows:
                console.print(*row, markup=False, highlight=False)
            continue
        for columns in column_groups(head, rows, console.width):
            console.print(text_table(*([row[i] for i in columns if i < len(row)] for row in (head, *rows))))


def column_groups(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Divide the columns of a table that is too wide into several tables, each with the first column.

    Parameters
    ----------
    head
        Titles of the columns.
    rows
        Rows of cells.
    width
        Characters of a line.

    Examples
    --------
    >>> column_groups(["", "first", "second"], [["a", "1,000,000", "2,000,000"]], 80)
    [[0, 1, 2]]
    >>> column_groups(["", "first", "second"], [["a", "1,000,000", "2,000,000"]], 25)
    [[0, 1], [0, 2]]
    """

    def needs(i: int) -> int:
        words = head[i].split() or [""]
        cells = [row[i] for row in rows if i < len(row)]
        return max(map(len, [*words, *(cell for cell in cells if i and len(cell) <= _WHOLE)])) + _BORDER

    first = min(max([needs(0), *(len(row[0]) + _BORDER for row in rows if row)]), _FIRST)
    groups: list[list[int]] = []
    free = -1
    for i in range(1, len(head)):
        if needs(i) > free:
            groups.append([0])
            free = width - first - 1
        groups[-1].append(i)
        free -= needs(i)
    return groups or [[0]]


def text_table(head: Sequence[str], *rows: Sequence[str]) -> Table:
    """Return a table in which numbers and short words stay whole; the first column and titles may be broken.

    Parameters
    ----------
    head
        Titles of the columns.
    rows
        Rows of cells.
    """
    table = Table()
    for i, name in enumerate(head):
        widest = max((len(row[i]) for row in rows if i < len(row)), default=0)
        table.add_column(
            name,
            justify="right" if i else "left",
            overflow="fold",
            min_width=widest if i and widest <= _WHOLE else None,
        )
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def one_of(parameter: str, value: str, known: Sequence[str]) -> str:
    """Return a value if it is one of the known ones.

    Parameters
    ----------
    parameter
        The name of the command's parameter, for the error.
    value
        The value given.
    known
        All possible values.
    """
    if value not in known:
        raise ParameterError(parameter=parameter, value=value, limit=f"one of {', '.join(known)}")
    return value
