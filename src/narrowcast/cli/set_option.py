"""`--set key=value`: what a parameter is, and whose: a method's, a cost's or a router's."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from narrowcast.costs import COSTS
from narrowcast.errors import ParameterError
from narrowcast.planning.base import capabilities_of
from narrowcast.routing import ROUTERS
from narrowcast.routing.router_parameters import router_maker, router_parameters
from narrowcast.spark.planning.planner_parameters import COMMON, parameters_of
from narrowcast.spark.stages.network import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from narrowcast.model.plan import ChannelPlan

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A parameter of whoever has it; can be repeated."),
]
Router = Annotated[
    str | None,
    typer.Option("--router", metavar="R", help=f"What sends events: {', '.join(ROUTERS)}; else what fits."),
]
Again = Annotated[
    bool, typer.Option("--replay/--no-replay", help="Also send the events given, and say what that costs.")
]

#: The two that stand for alpha and beta of the cost `filtering`, as measured: a file, and messages a packet.
MEASURED = ("calibration", "h")
#: Parameters that are given by options of their own, `--from` and `--pinned`.
OPTIONS = ("start", "pinned")


def parameters(settings: Iterable[str]) -> dict[str, Any]:
    """Return parameters given as `key=value`; a value that reads as JSON is that, any other is text.

    Parameters
    ----------
    settings
        What `--set` was given.

    Examples
    --------
    >>> parameters(["distance=total", "moves=10"])
    {'distance': 'total', 'moves': 10}
    """
    found: dict[str, Any] = {}
    for word in settings:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise ParameterError(f"--set is {word!r}; give it as key=value")
        try:
            found[key] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            found[key] = value
    return measured(found)


def measured(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with `calibration`, a file, and `h`, messages a packet, as alpha and beta.

    Parameters
    ----------
    params
        By name.

    Examples
    --------
    >>> measured({"top": 9})
    {'top': 9}
    >>> measured({"calibration": "c.json"})
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: calibration is given without h; give both: a file, and messages a packet
    """
    given = [name for name in MEASURED if name in params]
    if not given or ("calibration" not in params and "h" in params):
        return dict(params)  # an h by itself may be somebody's own
    if "h" not in params:
        raise ParameterError("calibration is given without h; give both: a file, and messages a packet")
    if also := [name for name in ("alpha", "beta") if name in params]:
        raise ParameterError(f"{also[0]} is given beside calibration, which says what it is; leave one out")
    h = params["h"]
    if isinstance(h, bool) or not isinstance(h, int | float):
        raise ParameterError(f"--set h is {h!r}; give the number of messages in a packet")
    from narrowcast.costs.calibration import read_calibration

    calibration = read_calibration(Path(str(params["calibration"])))
    cost = calibration.at(h)
    if calibration.doubts:
        typer.echo(f"{params['calibration']}: {calibration.doubts}", err=True)
    found = {name: value for name, value in params.items() if name not in MEASURED}
    return found | {"alpha": cost.alpha, "beta": cost.beta}


def takers_of_costs(costs: Collection[str] | None, given: Collection[str] = ()) -> dict[str, list[str]]:
    """Return the parameters of each cost that is told, without those that are tables of their own.

    Parameters
    ----------
    costs
        Their names; all that what is given suffices for where left out.
    given
        What there is besides, such as `topology`.

    Examples
    --------
    >>> takers_of_costs(["filtering", "waste"])
    {"cost 'filtering'": ['alpha', 'beta']}
    """
    names = [name for name in COSTS if set(COSTS.needs(name)) <= set(given)] if costs is None else costs
    own = {name: list(inspect.signature(COSTS[name]).parameters) for name in names}
    mine = {name: [each for each in found if each not in COLUMNS] for name, found in own.items()}
    return {f"cost {name!r}": found for name, found in mine.items() if found}


def takers_of_routers(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the parameters of each of some routers.

    Examples
    --------
    >>> takers_of_routers(["exact"])
    {"router 'exact'": ['broadcast', 'send']}
    """
    return {f"router {name!r}": router_parameters(name) for name in dict.fromkeys(names)}


def is_replayed(router: str | None, *, able: bool, again: bool) -> bool:
    """Return whether events are to be sent; a router without any is an error.

    Parameters
    ----------
    router
        What `--router` was given.
    able
        Whether there are events to send.
    again
        Whether they are to be sent.

    Examples
    --------
    >>> is_replayed("exact", able=True, again=False)
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: --router is exact, and no events are sent; leave --no-replay out
    """
    if router is not None and not (able and again):
        ROUTERS[router]
        how = "leave --no-replay out" if able else "it goes with --subscriptions and --events"
        raise ParameterError(f"--router is {router}, and no events are sent; {how}")
    return able and again


def check_router(name: str, params: Mapping[str, Any], plan: ChannelPlan | None = None) -> None:
    """Refuse parameters that a router cannot use, before anything is started for it.

    Parameters
    ----------
    name
        One of `ROUTERS`.
    params
        Some may be of other routers.
    plan
        What it is to send by; None where there are several, of which each has its own channels.

    Examples
    --------
    >>> check_router("threshold", {"threshold": [0, 1]})
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: threshold is [0, 1]; plans differ in their channels: give one for all
    """
    own = {key: value for key, value in params.items() if key in router_parameters(name)}
    router = router_maker(name, own)(None)
    threshold = own.get("threshold")
    if plan is not None:
        router.thresholds(plan)
    elif isinstance(threshold, list):
        raise ParameterError(f"threshold is {threshold}; plans differ in their channels: give one for all")


def takers_of_methods(methods: Iterable[str], name: str) -> dict[str, list[str]]:
    """Return the parameters of some methods together.

    Parameters
    ----------
    methods
        Names of `PLANNERS`.
    name
        What to call them all.

    Examples
    --------
    >>> sorted(takers_of_methods(["mst"], "method 'mst'")["method 'mst'"])
    ['distance', 'top']
    """
    return {name: list(dict.fromkeys(key for method in methods for key in parameters_of(method)))}


def for_plan(
    params: Mapping[str, Any], method: str, costs: Collection[str] | None, given: Collection[str] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters of a method, and those of the costs that are told of its plan.

    What is an option of its own, such as `channels`, goes to the method, which refuses it by that name.

    Parameters
    ----------
    params
        By name.
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
    narrowcast.errors.ParameterError: moves is 9, and of methods of clusters only direct has it; leave it out
    """
    clusters = capabilities_of(method).clusters == "subscribers"
    if clusters and "moves" in params and "moves" not in parameters_of(method):
        raise ParameterError(
            f"moves is {params['moves']}, and of methods of clusters only direct has it; leave it out"
        )
    odd = {name: value for name, value in params.items() if name in COMMON}
    rest = {name: value for name, value in params.items() if name not in COMMON}
    methods = takers_of_methods([method], f"method {method!r}")
    own, told = dealt(rest, methods, takers_of_costs(costs, given))
    return odd | own, told


def dealt(params: Mapping[str, Any], *takers: Mapping[str, Collection[str]]) -> list[dict[str, Any]]:
    """Return the parameters of each kind of taker; one that several kinds have goes to all of them.

    Parameters
    ----------
    params
        By name.
    takers
        For each kind its members by what users call them, and the parameters of each.

    Raises
    ------
    ParameterError
        When nobody has a parameter: with who has which.

    Examples
    --------
    >>> dealt({"beta": 2, "top": 9}, {"method 'mst'": ["top"]}, {"cost 'filtering'": ["alpha", "beta"]})
    [{'top': 9}, {'beta': 2}]
    >>> dealt({"topp": 9}, {"method 'mst'": ["top"]}, {"cost 'waste'": []})
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: nobody has a parameter 'topp'; they have: method 'mst' top
    """
    known = [{name for own in kind.values() for name in own} for kind in takers]
    for name in params:
        if not any(name in own for own in known):
            has = [
                (who, [each for each in own if each not in OPTIONS])
                for kind in takers
                for who, own in kind.items()
            ]
            said = "; ".join(f"{who} {', '.join(own)}" for who, own in has if own) or "none"
            raise ParameterError(f"nobody has a parameter {name!r}; they have: {said}")
    return [{name: value for name, value in params.items() if name in own} for own in known]
