"""`--set key=value`: reading parameters and assigning them to methods, cost models and routers."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from narrowcast.cli import choices, panels
from narrowcast.cli.suggestions import close_name
from narrowcast.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from narrowcast.model.plan import ChannelPlan

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a parameter of the method, cost model or router; repeatable. `--set help` lists them.",
        rich_help_panel=panels.PLANNING,
    ),
]
Router = Annotated[
    str | None,
    typer.Option(
        "--router",
        metavar="R",
        help=f"Router that sends the events: {', '.join(choices.ROUTERS)} (default: the one that suits the "
        "plan's method).",
        rich_help_panel=panels.PLANNING,
    ),
]
Replay = Annotated[
    bool,
    typer.Option(
        "--replay/--no-replay",
        help="Also send the given events by the plan and count what that costs.",
        rich_help_panel=panels.PLANNING,
    ),
]

#: Stand for alpha and beta of the cost `filtering`: a file of `calibrate`, and messages per packet.
MEASURED = ("calibration", "h")
#: Parameters of methods that have options of their own, `--from` and `--pinned`.
OPTIONS = ("start", "pinned")


def parameters(settings: Iterable[str]) -> dict[str, Any]:
    """Read parameters given as ``key=value``; a value that is not JSON is text.

    Parameters
    ----------
    settings
        The values of `--set`.

    Examples
    --------
    >>> parameters(["distance=total", "moves=10"])
    {'distance': 'total', 'moves': 10}
    """
    found: dict[str, Any] = {}
    for word in settings:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise ParameterError(f"--set {word!r}: must be key=value", parameter="set", value=word)
        try:
            found[key] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            found[key] = value
    return measured(found)


def measured(params: Mapping[str, Any]) -> dict[str, Any]:
    """Replace `calibration` (a file) and `h` (messages per packet) by the measured alpha and beta.

    Parameters
    ----------
    params
        Values by name.

    Examples
    --------
    >>> measured({"top": 9})
    {'top': 9}
    >>> measured({"calibration": "c.json"})
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: calibration='c.json': needs h as well, the messages per packet
    """
    given = [name for name in MEASURED if name in params]
    if not given or ("calibration" not in params and "h" in params):
        return dict(params)  # a method may have a parameter h of its own
    if "h" not in params:
        raise ParameterError(
            f"calibration={params['calibration']!r}: needs h as well, the messages per packet",
            parameter="calibration",
            value=params["calibration"],
        )
    if also := [name for name in ("alpha", "beta") if name in params]:
        raise ParameterError(
            f"{also[0]}={params[also[0]]!r}: the calibration sets it already; leave one out",
            parameter=also[0],
            value=params[also[0]],
        )
    h = params["h"]
    if isinstance(h, bool) or not isinstance(h, int | float):
        raise ParameterError(parameter="h", value=h, limit="the number of messages per packet")
    from narrowcast.costs.calibration import read_calibration

    calibration = read_calibration(Path(str(params["calibration"])))
    cost = calibration.at(h)
    if calibration.fit_warning:
        typer.echo(f"{params['calibration']}: {calibration.fit_warning}", err=True)
    found = {name: value for name, value in params.items() if name not in MEASURED}
    return found | {"alpha": cost.alpha, "beta": cost.beta}


def takers_of_costs(costs: Collection[str] | None, given: Collection[str] = ()) -> dict[str, list[str]]:
    """Return the parameters of each cost model in use, without those that are tables.

    Parameters
    ----------
    costs
        Names of cost models; None for all that `given` suffices for.
    given
        Names of the tables given, such as `topology`.

    Examples
    --------
    >>> takers_of_costs(["filtering", "waste"])
    {"cost 'filtering'": ['alpha', 'beta']}
    """
    from narrowcast.costs import COSTS
    from narrowcast.spark.stages.network import COLUMNS

    names = [name for name in COSTS if set(COSTS.needs(name)) <= set(given)] if costs is None else costs
    own = {name: list(inspect.signature(COSTS[name]).parameters) for name in names}
    mine = {name: [each for each in found if each not in COLUMNS] for name, found in own.items()}
    return {f"cost {name!r}": found for name, found in mine.items() if found}


def takers_of_routers(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the parameters of each router.

    Examples
    --------
    >>> takers_of_routers(["exact"])
    {"router 'exact'": ['broadcast', 'send']}
    """
    from narrowcast.routing.router_parameters import router_parameters

    return {f"router {name!r}": router_parameters(name) for name in dict.fromkeys(names)}


def is_replayed(router: str | None, *, able: bool, again: bool) -> bool:
    """Return whether events are replayed; a router without replayed events is an error.

    Parameters
    ----------
    router
        The value of `--router`.
    able
        Whether there are events to replay.
    again
        Whether replaying is asked for.

    Examples
    --------
    >>> is_replayed("exact", able=True, again=False)
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: --router='exact': no events are replayed; leave --no-replay out
    """
    if router is not None and not (able and again):
        from narrowcast.routing import ROUTERS

        ROUTERS[router]
        fix = "leave --no-replay out" if able else "it needs --subscriptions and --events"
        raise ParameterError(
            f"--router={router!r}: no events are replayed; {fix}", parameter="router", value=router
        )
    return able and again


def check_router(name: str, params: Mapping[str, Any], plan: ChannelPlan | None = None) -> None:
    """Refuse unusable parameters of a router before Spark starts.

    Parameters
    ----------
    name
        One of `ROUTERS`.
    params
        Values by name; those of other routers are ignored.
    plan
        The plan that the router uses; None for several plans with different channels.

    Examples
    --------
    >>> check_router("threshold", {"threshold": [0, 1]})
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: threshold=[0, 1]: must be one number, as plans differ in their channels
    """
    from narrowcast.routing.router_parameters import router_maker, router_parameters

    own = {key: value for key, value in params.items() if key in router_parameters(name)}
    router = router_maker(name, own)(None)
    threshold = own.get("threshold")
    if plan is not None:
        router.thresholds(plan)
    elif isinstance(threshold, list):
        raise ParameterError(
            parameter="threshold",
            value=threshold,
            limit="one number, as plans differ in their channels",
        )


def takers_of_methods(methods: Iterable[str], name: str) -> dict[str, list[str]]:
    """Return the parameters of several methods together.

    Parameters
    ----------
    methods
        Names of `PLANNERS`.
    name
        Name of the group in messages.

    Examples
    --------
    >>> sorted(takers_of_methods(["mst"], "method 'mst'")["method 'mst'"])
    ['distance', 'top']
    """
    from narrowcast.spark.planning.planner_parameters import parameters_of

    return {name: list(dict.fromkeys(key for method in methods for key in parameters_of(method)))}


def for_plan(
    params: Mapping[str, Any], method: str, costs: Collection[str] | None, given: Collection[str] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters of a method, and those of the cost models that its plan is scored by.

    A parameter with an option of its own, such as `channels`, goes to the method, which refuses it.

    Parameters
    ----------
    params
        Values by name.
    method
        One of `PLANNERS`.
    costs, given
        As for `takers_of_costs`.

    Examples
    --------
    >>> for_plan({"beta": 2, "top": 9}, "mst", None)
    ({'top': 9}, {'beta': 2})
    >>> for_plan({"moves": 9}, "ncut", None)
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: moves=9: method 'ncut' does not take it; leave it out, or use direct
    """
    from narrowcast.planning.base import capabilities_of
    from narrowcast.spark.planning.planner_parameters import COMMON, parameters_of

    clusters = capabilities_of(method).clusters == "subscribers"
    if clusters and "moves" in params and "moves" not in parameters_of(method):
        raise ParameterError(
            f"moves={params['moves']}: method {method!r} does not take it; leave it out, or use direct",
            parameter="moves",
            value=params["moves"],
        )
    odd = {name: value for name, value in params.items() if name in COMMON}
    rest = {name: value for name, value in params.items() if name not in COMMON}
    methods = takers_of_methods([method], f"method {method!r}")
    own, scoring = assigned(rest, methods, takers_of_costs(costs, given))
    return odd | own, scoring


def assigned(params: Mapping[str, Any], *takers: Mapping[str, Collection[str]]) -> list[dict[str, Any]]:
    """Return the parameters of each kind of taker; one that several kinds have goes to all of them.

    Parameters
    ----------
    params
        Values by name.
    takers
        For each kind, the parameters of its members by what messages call them, such as "method 'mst'".

    Raises
    ------
    ParameterError
        When no taker has a parameter of that name.

    Examples
    --------
    >>> assigned({"beta": 2, "top": 9}, {"method 'mst'": ["top"]}, {"cost 'filtering'": ["alpha", "beta"]})
    [{'top': 9}, {'beta': 2}]
    >>> assigned({"topp": 9}, {"method 'mst'": ["top"]}, {"cost 'waste'": []})
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: unknown parameter 'topp'; did you mean 'top'? known: method 'mst' top
    """
    known = [{name for own in kind.values() for name in own} for kind in takers]
    for name in params:
        if not any(name in own for own in known):
            owners = {
                owner: [each for each in own if each not in OPTIONS]
                for kind in takers
                for owner, own in kind.items()
            }
            listed = "; ".join(f"{owner} {', '.join(own)}" for owner, own in owners.items() if own) or "none"
            hint = close_name(name, [each for own in owners.values() for each in own])
            raise ParameterError(
                f"unknown parameter {name!r}{hint or ';'} known: {listed}", parameter=name, value=params[name]
            )
    return [{name: value for name, value in params.items() if name in own} for own in known]
