"""A command of the CLI: the library's errors, put in terms of the command's options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

from narrowcast.errors import NarrowcastError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Command(TyperCommand):
    """A command that names its own option where the library names a parameter."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; the message of an error that it raises is translated."""
        try:
            return super().invoke(ctx)
        except NarrowcastError as error:
            options = {param.name: param.opts[0] for param in self.params if param.name and param.opts}
            named = {option: name for name, option in options.items()}
            settings = ctx.params.get(named.get("--set")) or ()
            error.args = (translated(error, options, settings),)
            raise


def translated(error: NarrowcastError, options: Mapping[str, str], settings: Iterable[str] = ()) -> str:
    """Return the message of an error with the option that sets its parameter.

    Parameters
    ----------
    error
        The library's error.
    options
        The options of a command by parameter, such as ``{"channels": "--channels"}``.
    settings
        The values of `--set`, as ``key=value``.

    Examples
    --------
    >>> from narrowcast.errors import ParameterError
    >>> error = ParameterError(parameter="channels", value=0, limit="at least 1")
    >>> translated(error, {"channels": "--channels"})
    '--channels=0: must be at least 1'
    >>> translated(ParameterError("a plan is required", parameter="start"), {"start": "--from"})
    'a plan is required (--from)'
    """
    message, name = str(error), error.parameter
    if name is None:
        return message
    option = options.get(name)
    if option is None and name in {word.partition("=")[0] for word in settings}:
        option = f"--set {name}"
    if option is None or option in message:
        return message
    if message.startswith((f"{name}=", f"{name} ")):
        return option + message[len(name) :]
    return f"{message} ({option})"
