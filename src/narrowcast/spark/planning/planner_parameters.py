"""Planners by name, with their parameters checked."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.model.interest import Interest
from narrowcast.planning.base import PLANNERS
from narrowcast.spark.stages.network import COLUMNS, NOWHERE, NetworkTables
from narrowcast.validation import check_channels, check_seed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from narrowcast.planning.base import Planner

    Doubles = NDArray[np.float64]

#: Parameters that every method may have, and that are not given as one of its own.
COMMON = ("channels", "seed", "boxes", *COLUMNS)


def make_planner(
    method: str,
    *,
    channels: int | None,
    seed: int = 0,
    params: Mapping[str, Any] | None = None,
    network: NetworkTables = NOWHERE,
    boxes: tuple[Doubles, Doubles] | None = None,
) -> Planner:
    """Return a planner, ready to be fitted; what it takes is checked first.

    Parameters
    ----------
    method, channels, seed, params, network
        As for `make_plan`.
    boxes
        The lower and the upper ends of the boxes of subscribers, for methods that need them.

    Examples
    --------
    >>> make_planner("pairwise", channels=3, params={"topp": 9})
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: method 'pairwise' has no parameter 'topp'; it has: top, distance
    """
    make = PLANNERS[method]
    params = dict(params or {})
    check_channels(channels)
    check_seed(seed)
    given: dict[str, Any] = dict(network.given) if make.capabilities.network else {}
    if make.capabilities.boxes:
        given["boxes"] = boxes
    _check_params(method, params, given)
    return make(channels=channels, seed=seed, **params, **given)


def check_planner(
    method: str, *, channels: int | None, seed: int = 0, filters: bool = False, **given: Any
) -> None:
    """Refuse what a method would refuse once it has the interest, before there is one.

    Parameters
    ----------
    method, channels, seed, given
        As for `make_planner`.
    filters
        Whether there will be filters, for methods that look at their boxes.

    Examples
    --------
    >>> check_planner("pairwise", channels=None)
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: channels is None; pairwise needs a whole number of at least 1
    """
    boxes = (np.zeros((0, 1)), np.zeros((0, 1))) if filters else None
    make_planner(method, channels=channels, seed=seed, boxes=boxes, **given).fit(Interest(np.zeros((0, 0))))


def parameters_of(method: str) -> dict[str, inspect.Parameter]:
    """Return the parameters of a method that are its own: without channels, seed and the network."""
    taken = inspect.signature(PLANNERS[method]).parameters
    return {name: each for name, each in taken.items() if name not in COMMON}


def _check_params(method: str, params: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse parameters that a method does not have, and miss those that it needs."""
    own = parameters_of(method)
    known = ", ".join(own) or "none besides channels and seed"
    open_ended = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in own.values())
    for name in params:
        if name in COMMON:
            raise ParameterError(f"{name} is among the parameters of {method!r}; give it as {name} itself")
        if name not in own and not open_ended:
            raise ParameterError(f"method {method!r} has no parameter {name!r}; it has: {known}")
    for name, each in inspect.signature(PLANNERS[method]).parameters.items():
        needed = each.kind is inspect.Parameter.KEYWORD_ONLY and each.default is inspect.Parameter.empty
        if needed and name not in ("channels", "seed", *params, *given):
            raise ParameterError(f"method {method!r} needs the parameter {name!r}; set it")
