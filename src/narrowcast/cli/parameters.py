"""`narrowcast parameters`: what `--set` takes, with the meaning from the docstrings of strategies."""

from __future__ import annotations

import inspect
import re
import sys
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from narrowcast.cli import options
from narrowcast.cli.suggestions import close_name
from narrowcast.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from narrowcast.registry import Registry

#: Kinds of strategies, with the heads of their lists.
KINDS = {"method": "Methods", "cost": "Cost models", "router": "Routers", "workload": "Workloads"}
#: Kinds of strategies whose parameters ``--set`` takes, by command.
SETTABLE = {
    "plan": ("method", "cost"),
    "evaluate": ("cost", "router"),
    "compare": ("method", "cost", "router"),
    "follow": ("method", "cost"),
    "run": ("workload",),
    "generate": ("workload",),
    "serve": ("router",),
    "explain": ("router",),
    "partition": ("scheme",),
}
#: A meaning that refers to another class, such as "As for `Direct`." or "See `Overall`."
_REFERENCE = re.compile(r"\b(?:as (?:for|of|in)|see)\s+`(\w+)`", re.IGNORECASE)
#: `calibration` and `h` stand for alpha and beta of the cost `filtering`.
_MEASURED = {
    "calibration": ("str", "File of `narrowcast calibrate`, in place of alpha and beta; needs h."),
    "h": ("float", "Messages per packet, for calibration."),
}


class StrategyParameter(NamedTuple):
    """A parameter of a strategy.

    Parameters
    ----------
    name
        Its name in ``--set NAME=VALUE``.
    type
        Its type as text.
    default
        Its default; None where it is required or the default is None.
    meaning
        Its meaning.
    required
        Whether it has no default.
    """

    name: str
    type: str
    default: Any
    meaning: str
    required: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the parameter as JSON has it."""
        default = (
            self.default if isinstance(self.default, bool | int | float | str | None) else str(self.default)
        )
        return {
            "name": self.name,
            "type": self.type,
            "default": default,
            "required": self.required,
            "meaning": self.meaning,
        }


def parameters(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Name of a method, cost model, router or workload (default: list all names).",
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            help=f"Only this kind: {', '.join(KINDS)} (default: all kinds with that name).",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List what --set takes for a method, cost model, router or workload.

    Each parameter is listed with its type, default and meaning. Options such as --channels and --seed are not
    listed. Without NAME, the names are listed by kind. A command that takes --set also lists its parameters
    with `--set help`.

    Examples:

        narrowcast parameters

        narrowcast parameters joint

        narrowcast parameters partial --kind router --json
    """
    kinds = list(KINDS) if kind is None else [options.one_of("kind", kind, list(KINDS))]
    if name is None:
        names = {each: list(_registry(each)) for each in kinds}
        if as_json:
            options.show({"command": "parameters", "names": names}, {}, as_json=True)
            return
        console = Console()
        for each, listed in names.items():
            console.print(f"[bold]{KINDS[each]}[/bold]: {', '.join(listed)}", highlight=False)
        return
    found = [each for each in kinds if name in _registry(each)]
    if not found:
        known = [other for each in kinds for other in _registry(each)]
        raise ParameterError(
            f"unknown name {name!r}{close_name(name, known) or ';'} `narrowcast parameters` lists all names",
            parameter="name",
            value=name,
        )
    _show([(each, name, strategy_parameters(each, name)) for each in found], as_json=as_json)


def show_settings(command: str, given: Mapping[str, Any]) -> None:
    """Print what ``--set`` takes with the options of a command.

    Parameters
    ----------
    command
        One of `SETTABLE`.
    given
        The command's parameters by name, such as `method` and `costs`.
    """
    options_of = {"method": "methods" if "methods" in given else "method", "cost": "costs"}
    wanted: list[tuple[str, str]] = []
    for kind in SETTABLE[command]:
        names = _names(given.get(options_of.get(kind, kind)))
        if command == "follow" and kind == "cost":
            names = ["overall"]
        elif command == "run" and not names:
            names = ["stocks"]
        wanted += [(kind, name) for name in names or _registry(kind)]
    found = [(kind, name, strategy_parameters(kind, name)) for kind, name in wanted]
    found = [each for each in found if each[2]] or [
        (kind, name, listed)
        for kind in SETTABLE[command]
        for name in _registry(kind)
        if (listed := strategy_parameters(kind, name))
    ]
    _show(found, as_json=bool(given.get("as_json")))


def strategy_parameters(kind: str, name: str) -> list[StrategyParameter]:
    """Return what ``--set`` takes for a strategy.

    Parameters
    ----------
    kind
        `method`, `cost`, `router` or `workload`.
    name
        Name of the strategy.

    Examples
    --------
    >>> [each.name for each in strategy_parameters("method", "mst")]
    ['top', 'distance']
    >>> strategy_parameters("router", "threshold")[0].type
    'number or list'
    """
    strategy = _registry(kind)[name]
    signature = inspect.signature(strategy).parameters
    found = [
        StrategyParameter(
            each,
            _type_text(signature[each].annotation, strategy),
            None if signature[each].default is inspect.Parameter.empty else signature[each].default,
            meaning_of(strategy, each),
            signature[each].default is inspect.Parameter.empty,
        )
        for each in _own_parameters(kind, name)
    ]
    if kind == "cost" and name == "filtering":
        found += [StrategyParameter(each, text, None, meaning) for each, (text, meaning) in _MEASURED.items()]
    return found


def meaning_of(strategy: Any, parameter: str) -> str:
    """Return the meaning of a parameter from the section Parameters of a class's numpydoc docstring.

    A meaning that only refers to another class is followed to that class.

    Parameters
    ----------
    strategy
        The class.
    parameter
        Name of the parameter.

    Examples
    --------
    >>> from fractions import Fraction
    >>> meaning_of(Fraction, "numerator")
    ''
    """
    return _meaning(strategy, parameter, set())


def parameter_meanings(docstring: str) -> dict[str, str]:
    """Parse the section Parameters of a numpydoc docstring.

    Parameters
    ----------
    docstring
        The docstring.

    Examples
    --------
    >>> parameter_meanings('''Adds.
    ...
    ... Parameters
    ... ----------
    ... a, b : int
    ...     What is
    ...     added.
    ... ''')
    {'a': 'What is added.', 'b': 'What is added.'}
    """
    lines = inspect.cleandoc(docstring).splitlines()
    rules = (i for i, line in enumerate(lines) if line == "Parameters" and lines[i + 1 : i + 2] == ["-" * 10])
    start = next(rules, None)
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for i, line in enumerate(lines[start + 2 :], start + 2) if start is not None else ():
        if re.fullmatch(r"-{3,}", lines[i + 1].strip() if i + 1 < len(lines) else ""):
            break  # the head of the next section
        if line and not line.startswith(" "):
            listed = [word.strip(" *") for word in line.partition(" : ")[0].split(",")]
            # A list of names may go on in the next line, after a comma.
            names = [each for each in [*names * lines[i - 1].endswith(","), *listed] if each]
        for name in names if line.startswith(" ") else ():
            found.setdefault(name, []).append(line.strip())
    return {name: " ".join(text) for name, text in found.items()}


def _meaning(strategy: Any, parameter: str, visited: set[Any]) -> str:
    visited.add(strategy)
    bases = strategy.__mro__ if inspect.isclass(strategy) else (strategy,)
    text = ""
    for base in bases:
        text = parameter_meanings(base.__doc__ or "").get(parameter, "")
        if text:
            break
    else:
        # A class without the section has the parameters of the class that its summary names.
        reference = re.search(r"`(\w+)`", (strategy.__doc__ or "").partition("\n\n")[0])
        other = None if reference is None else _class_named(reference[1], strategy)
        return "" if other is None or other in visited else _meaning(other, parameter, visited)
    reference = _REFERENCE.search(text)
    if reference is None:
        return text
    other = _class_named(reference[1], strategy)
    if other is None or other in visited:
        return text
    referred = _meaning(other, parameter, visited)
    if not referred:
        return text
    # The sentence with the reference may be about several parameters; the other sentences are about this one.
    own = " ".join(each for each in re.split(r"(?<=\.) ", text) if not _REFERENCE.search(each))
    return f"{referred} {own}".strip()


def _class_named(name: str, strategy: Any) -> Any:
    """Return the class that a docstring refers to: of the same module, a base class, or a strategy."""
    module = sys.modules.get(getattr(strategy, "__module__", ""))
    if hasattr(module, name):
        return getattr(module, name)
    for base in getattr(strategy, "__mro__", ()):
        home = sys.modules.get(base.__module__)
        if base.__name__ == name or hasattr(home, name):
            return base if base.__name__ == name else getattr(home, name)
    strategies = (each for kind in KINDS for each in _registry(kind).values())
    return next((each for each in strategies if getattr(each, "__name__", "") == name), None)


def _registry(kind: str) -> Registry[Any]:
    if kind == "method":
        from narrowcast.planning.base import PLANNERS

        return PLANNERS
    if kind == "cost":
        from narrowcast.costs import COSTS

        return COSTS
    if kind == "router":
        from narrowcast.routing import ROUTERS

        return ROUTERS
    if kind == "scheme":
        from narrowcast.planning.ranges.partitioning import SCHEMES

        return SCHEMES
    from narrowcast.workloads import WORKLOADS

    return WORKLOADS


def _own_parameters(kind: str, name: str) -> list[str]:
    """Return the names that ``--set`` takes: without those that have options of their own."""
    from narrowcast.cli import set_option

    if kind == "method":
        from narrowcast.spark.planning.planner_parameters import parameters_of

        hidden = (*set_option.OPTIONS, "sessions")
        return [each for each in parameters_of(name) if each not in hidden]
    if kind == "cost":
        return next(iter(set_option.takers_of_costs([name]).values()), [])
    if kind == "router":
        return next(iter(set_option.takers_of_routers([name]).values()))
    if kind == "scheme":
        from narrowcast.planning.ranges.partitioning import TAKES

        return [each for each in TAKES[name] if each not in ("copies", "work")]
    signature = inspect.signature(_registry(kind)[name]).parameters
    return [each for each in signature if each != "seed"]


def _type_text(annotation: Any, strategy: Any) -> str:
    """Return a type in words: a literal type as its values, without None."""
    if isinstance(annotation, str):
        names = vars(sys.modules[strategy.__module__]) | {"Literal": Literal}
        try:
            annotation = eval(annotation, names)  # noqa: S307 - the library's own source code
        except (NameError, TypeError, AttributeError):  # a name that only type checkers import
            return _plain(annotation)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if origin in (Union, UnionType):
        return " | ".join(_type_text(each, strategy) for each in arguments if each is not type(None))
    return _plain(annotation.__name__ if isinstance(annotation, type) and not arguments else str(annotation))


def _plain(text: str) -> str:
    text = re.sub(r"\b(?:typing|collections\.abc)\.", "", text)
    text = text.replace(" | None", "").replace("Any", "value").replace("ArrayLike", "number or list")
    return re.sub(r"(?:Sequence|list|tuple)\[(\w+)(?:, \.\.\.)?\]", r"list of \1", text)


def _names(value: Any) -> list[str]:
    if value is None:
        return []
    words = value.split(",") if isinstance(value, str) else list(value)
    return [word.strip() for word in words if word.strip()]


def _show(found: Sequence[tuple[str, str, list[StrategyParameter]]], *, as_json: bool) -> None:
    """Print the parameters of strategies, each with its kind and name."""
    if as_json:
        rows = [
            {"kind": kind, "name": name, "parameters": [each.to_dict() for each in listed]}
            for kind, name, listed in found
        ]
        options.show({"command": "parameters", "strategies": rows}, {}, as_json=True)
        return
    console = Console()
    for kind, name, listed in found:
        console.print(f"[bold]{kind} {name}[/bold]" + ("" if listed else ": no parameters"), highlight=False)
        if listed:
            table = Table("parameter", "type", "default", "meaning")
            for each in listed:
                default = "required" if each.required else "" if each.default is None else str(each.default)
                table.add_row(*map(escape, (each.name, each.type, default, each.meaning)))
            console.print(table, highlight=False)
