"""Commands and groups of the CLI: help, did-you-mean, and errors in terms of a command's options."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from typer.core import TyperCommand, TyperGroup

from narrowcast.errors import NarrowcastError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

#: Context settings that add `-h` to `--help`, also for the commands of a group.
HelpOptions: Final = {"help_option_names": ["-h", "--help"]}

#: Options of parameters that the library names differently, the first that is given or else the first of all;
#: only for commands that have the option.
OPTIONS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "boxes": ("--limit-boxes",),
    "ca": ("--tls-ca",),
    "cert": ("--tls-cert", "--http-cert"),
    "cost": ("--cost",),
    "delivery": ("--delivery",),
    "every": ("--replan",),
    "folder": ("--data",),
    "key": ("--tls-key", "--http-key"),
    "max_bytes": ("--store",),
    "mappings": ("--no-mappings",),
    "own_partitions": ("--node",),
    "password": ("--token",),
    "retention": ("--keep",),
    "roles": ("--role",),
    "servers": ("--nats",),
    "settings": ("--set",),
    "start": ("--from",),
}
#: The same for parameters whose option depends on the command.
COMMAND_OPTIONS: Final[Mapping[tuple[str, str], str]] = {
    ("calibrate", "path"): "--out",
    ("explain", "node"): "--publisher",
    ("restore", "path"): "FILE",
    ("subscribe", "name"): "--subscriber",
}


def _plain_flags(params: list[Any]) -> list[Any]:
    """Drop the type of flags, which help would show as `<bool>`."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


class Command(TyperCommand):
    """A command that names its own option where the library names a parameter."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the arguments and options."""
        return _plain_flags(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; `--set help` lists the parameters instead of running the command."""
        if not ctx.resilient_parsing and _asks_for_settings(args):
            from narrowcast.cli.parameters import SETTABLE, show_settings

            if self.name in SETTABLE:
                ctx.resilient_parsing = True
                super().parse_args(ctx, args)
                show_settings(self.name, ctx.params)
                ctx.exit()
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; the message of an error that it raises is translated."""
        with self.translation(ctx.params):
            return super().invoke(ctx)

    @contextmanager
    def translation(self, given: Mapping[str, Any]) -> Iterator[None]:
        """Translate the message of an error that the block raises.

        Parameters
        ----------
        given
            The values of the command's parameters.
        """
        try:
            yield
        except NarrowcastError as error:
            settings = {
                option: tuple(given.get(name) or ())
                for name, option in self._own_options().items()
                if option in ("--set", "--limit") and isinstance(given.get(name), list | tuple)
            }
            error.args = (translated(error, self.options(given), settings),)
            raise

    def options(self, given: Mapping[str, Any]) -> dict[str, str]:
        """Return the option of each parameter that an error may name.

        Parameters
        ----------
        given
            The values of the command's parameters.
        """
        own = self._own_options()
        names = {option: name for name, option in own.items()}
        found: dict[str, str] = {}
        for name, candidates in OPTIONS_OF.items():
            there = [option for option in candidates if option in names]
            if there:
                found[name] = next((option for option in there if given.get(names[option])), there[0])
        for (command, parameter), option in COMMAND_OPTIONS.items():
            if command == self.name:
                found[parameter] = option
        return found | own

    def _own_options(self) -> dict[str, str]:
        """Return the option of each parameter of the command; an argument is named by its metavar."""
        return {
            param.name: param.opts[0] if param.param_type_name == "option" else _argument_name(param)
            for param in self.params
            if param.name and param.opts
        }


class CommandGroup(TyperGroup):
    """A group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options."""
        return _plain_flags(super().get_params(ctx))


def _argument_name(argument: Any) -> str:
    """Return the name that help has for an argument."""
    name: str = argument.display_name_raw
    return name.strip("[].")


def _asks_for_settings(args: list[str]) -> bool:
    return "--set=help" in args or ("--set", "help") in pairwise(args)


def usage_message(error: Any) -> str:
    """Return what is wrong with the words of a command line, with close names of options.

    Parameters
    ----------
    error
        An error of typer's parser.

    Examples
    --------
    >>> from typer._click.exceptions import NoSuchOption
    >>> usage_message(NoSuchOption("--sed", possibilities=["--seed", "--set"]))
    "No such option: --sed; did you mean '--seed' or '--set'?"
    """
    close = getattr(error, "possibilities", None)
    if close:
        return f"{error.message.rstrip('.')}; did you mean {' or '.join(map(repr, close))}?"
    message: str = error.format_message()
    return message.rstrip(".").replace(". Did you mean", "; did you mean").replace(", '", " or '")


def translated(
    error: NarrowcastError, options: Mapping[str, str], settings: Mapping[str, Iterable[str]] | None = None
) -> str:
    """Return the message of an error with the option that sets its parameter.

    Parameters
    ----------
    error
        The library's error.
    options
        The options of a command by parameter, such as ``{"channels": "--channels"}``.
    settings
        The values of options that take ``key=value``, such as `--set`, by option.

    Examples
    --------
    >>> from narrowcast.errors import ParameterError
    >>> error = ParameterError(parameter="channels", value=0, limit="at least 1")
    >>> translated(error, {"channels": "--channels"})
    '--channels=0: must be at least 1'
    >>> translated(ParameterError("a plan is required", parameter="start"), {"start": "--from"})
    'a plan is required (--from)'
    >>> translated(ParameterError(parameter="top", value=0, limit="at least 1"), {}, {"--set": ["top=0"]})
    '--set top=0: must be at least 1'
    """
    message, name = str(error), error.parameter
    if name is None:
        return message
    # A key of --set or --limit wins: it may share its name with an option of another meaning.
    nested = (f"{option} {name}" for option, words in (settings or {}).items() if name in _keys(words))
    option = next(nested, options.get(name))
    if option is None or option in message:
        return message
    if message.startswith((f"{name}=", f"{name} ", f"{name}:")):
        return option + message[len(name) :]
    return f"{message} ({option})"


def _keys(settings: Iterable[str]) -> set[str]:
    return {word.partition("=")[0].strip() for word in settings}
