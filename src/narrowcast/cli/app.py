"""The table of commands; a command's module is imported when the command is used."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand
from typer.main import get_command_from_info, get_group
from typer.models import CommandInfo

from narrowcast import __version__
from narrowcast.cli.command import Command, CommandGroup, HelpOptions

PLANS, EVENTS, BROKER, DATA = "Plan and evaluate", "Match and stream", "Live broker", "Data and papers"


class CommandEntry(NamedTuple):
    """Where a command is defined, and what the list of commands shows of it."""

    place: str
    panel: str
    summary: str


#: Commands by name. A test compares each summary with the first line of the command's own help.
COMMANDS: dict[str, CommandEntry] = {
    "run": CommandEntry(
        "narrowcast.cli.run:run",
        PLANS,
        "Run the whole job on Spark: match events, plan channels, evaluate the plan, write a report.",
    ),
    "plan": CommandEntry(
        "narrowcast.cli.plan:plan",
        PLANS,
        "Plan channels for topics, for filters over events or for a stream's state, and write the plan.",
    ),
    "evaluate": CommandEntry(
        "narrowcast.cli.evaluate:evaluate",
        PLANS,
        "Compare the costs of a plan with unicast, broadcast, one channel per flow, hashing and the ideal.",
    ),
    "compare": CommandEntry(
        "narrowcast.cli.compare:compare",
        PLANS,
        "Plan with several methods, and compare costs, run time and memory in a table and a chart.",
    ),
    "explain": CommandEntry(
        "narrowcast.cli.explain:explain",
        PLANS,
        "Explain how a plan treats an event, a subscriber or a channel, and why.",
    ),
    "diff": CommandEntry(
        "narrowcast.cli.diff:diff",
        PLANS,
        "Show what changes from one plan to another: channels, moved flows and members, costs.",
    ),
    "export": CommandEntry(
        "narrowcast.cli.export:export",
        PLANS,
        "Write a plan as multicast groups, NATS subject mappings or CSV tables.",
    ),
    "parameters": CommandEntry(
        "narrowcast.cli.parameters:parameters",
        PLANS,
        "List what --set takes for a method, cost model, router or workload.",
    ),
    "match": CommandEntry(
        "narrowcast.cli.match:match",
        EVENTS,
        "Match a table of events with a table of subscriptions on Spark.",
    ),
    "partition": CommandEntry(
        "narrowcast.cli.partition:partition",
        EVENTS,
        "Divide subscriptions and events into parts for partitioned matching, and write the parts.",
    ),
    "stream": CommandEntry(
        "narrowcast.cli.stream:stream",
        EVENTS,
        "Match and route events as they arrive, with Spark Structured Streaming.",
    ),
    "follow": CommandEntry(
        "narrowcast.cli.follow:follow",
        EVENTS,
        "Keep a plan up to date while interests and rates change.",
    ),
    "check": CommandEntry(
        "narrowcast.cli.check:check",
        EVENTS,
        "Check filters: which are bad and why, their number of boxes and their selectivity.",
    ),
    "serve": CommandEntry(
        "narrowcast.cli.serve:serve",
        BROKER,
        "Run a broker node: match published events and deliver them by the plan, until interrupted.",
    ),
    "publish": CommandEntry(
        "narrowcast.cli.publish:publish",
        BROKER,
        "Publish JSON events, one per line, to a live broker.",
    ),
    "subscribe": CommandEntry(
        "narrowcast.cli.subscribe:subscribe",
        BROKER,
        "Subscribe to a live broker and print one JSON line per event, until interrupted.",
    ),
    "rollout": CommandEntry(
        "narrowcast.cli.rollout:rollout",
        BROKER,
        "Switch a live broker to another plan while events flow.",
    ),
    "permissions": CommandEntry(
        "narrowcast.cli.permissions:permissions",
        BROKER,
        "Print users and their permissions as configuration for NATS servers.",
    ),
    "users": CommandEntry(
        "narrowcast.cli.users:app",
        BROKER,
        "Manage the users of a live broker: add, list or remove.",
    ),
    "dead-letters": CommandEntry(
        "narrowcast.cli.dead_letters:app",
        BROKER,
        "List or replay dead letters: events that a live broker could not use.",
    ),
    "backup": CommandEntry(
        "narrowcast.cli.backup:backup",
        BROKER,
        "Write the whole state of a broker to one file, while it runs or when it is stopped.",
    ),
    "restore": CommandEntry(
        "narrowcast.cli.restore:restore",
        BROKER,
        "Restore a broker's data folder from a backup.",
    ),
    "generate": CommandEntry(
        "narrowcast.cli.generate:generate",
        DATA,
        "Generate a workload: one Parquet file per table, and workload.json with its parameters.",
    ),
    "reproduce": CommandEntry(
        "narrowcast.lab.reproduce:reproduce",
        DATA,
        "Reproduce the tables and figures of a paper, with a report.",
    ),
    "calibrate": CommandEntry(
        "narrowcast.cli.calibrate:calibrate",
        DATA,
        "Measure what filtering costs a receiver on this machine: alpha(h) and beta(h) of cost filtering.",
    ),
    "bench": CommandEntry(
        "narrowcast.cli.bench:bench",
        DATA,
        "Run the frozen benchmarks, as ratios to peers measured in the same run.",
    ),
    "doctor": CommandEntry(
        "narrowcast.cli.doctor:doctor",
        DATA,
        "Show what is installed, what is missing, and how to fix it.",
    ),
}


class UnloadedCommand(TyperCommand):
    """A command of `COMMANDS` whose module is not imported yet; enough for a list of commands."""

    def __init__(self, name: str) -> None:
        entry = COMMANDS[name]
        super().__init__(name, help=entry.summary, rich_help_panel=entry.panel)


def load_command(name: str) -> TyperCommand | CommandGroup:
    """Import the module of a command and return the command.

    Examples
    --------
    >>> load_command("generate").name
    'generate'
    """
    module, _, attribute = COMMANDS[name].place.partition(":")
    found = getattr(import_module(module), attribute)
    command: Any
    if isinstance(found, typer.Typer):
        command = get_group(found)
        command.name = name
    else:
        command = get_command_from_info(
            CommandInfo(name=name, callback=found, cls=Command),
            pretty_exceptions_short=False,
            rich_markup_mode="markdown",
        )
    return command  # type: ignore[no-any-return]


class Commands(CommandGroup):
    """The group of all commands, loaded one by one."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: UnloadedCommand(name) for name in COMMANDS}

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that the arguments name, loaded."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else load_command(name), rest


app = typer.Typer(
    name="narrowcast",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings=HelpOptions,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"narrowcast {__version__}")
        raise typer.Exit


@app.callback()
def narrowcast(
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Learn which subscribers want which messages, and deliver many flows over few channels.

    Example: `narrowcast plan --interests interests.csv --channels 16 --out plan`
    """
