"""Creation of planners by name, with checks of their parameters."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.model.interest import Interest
from narrowcast.planning.base import PLANNERS
from narrowcast.spark.stages.network import COLUMNS, NO_NETWORK, NetworkTables
from narrowcast.validation import check_channels, check_seed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from narrowcast.planning.base import Planner

    Doubles = NDArray[np.float64]

#: Parameters shared by all methods, which are passed separately and not among a method's own parameters.
COMMON = ("channels", "seed", "boxes", *COLUMNS)


def make_planner(
    method: str,
    *,
    channels: int | None,
    seed: int = 0,
    params: Mapping[str, Any] | None = None,
    network: NetworkTables = NO_NETWORK,
    boxes: tuple[Doubles, Doubles] | None = None,
) -> Planner:
    """Create a planner that is not fitted, after checking its parameters.

    Parameters
    ----------
    method, channels, seed, params, network
        As for `make_plan`.
    boxes
        The lower and upper ends of subscribers' bounding boxes, for methods that use them.

    Raises
    ------
    ParameterError
        When the method or a parameter is unknown, missing or out of range.

    Examples
    --------
    >>> make_planner("pairwise", channels=3, params={"topp": 9})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: unknown parameter 'topp' of method 'pairwise'; known parameters: top...
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
    """Check all parameters of a method before there is an interest, by fitting it to an empty one.

    Parameters
    ----------
    method, channels, seed, given
        As for `make_planner`.
    filters
        Whether there will be filters, for methods that use subscribers' bounding boxes.

    Raises
    ------
    ParameterError
        When the method or a parameter is unknown, missing or out of range.

    Examples
    --------
    >>> check_planner("pairwise", channels=None)
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: channels is missing: pairwise needs an integer of at least 1
    """
    boxes = (np.zeros((0, 1)), np.zeros((0, 1))) if filters else None
    make_planner(method, channels=channels, seed=seed, boxes=boxes, **given).fit(Interest(np.zeros((0, 0))))


def parameters_of(method: str) -> dict[str, inspect.Parameter]:
    """Return the parameters that are specific to a method, without those that all methods have."""
    parameters = inspect.signature(PLANNERS[method]).parameters
    return {name: each for name, each in parameters.items() if name not in COMMON}


def _check_params(method: str, params: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse unknown parameters of a method, and missing required ones."""
    own = parameters_of(method)
    known = ", ".join(own) or "none besides channels and seed"
    open_ended = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in own.values())
    for name in params:
        if name in COMMON:
            raise ParameterError(
                f"{name} must not be in the parameters of method {method!r}; pass {name} as its own argument",
                parameter=name,
                value=params[name],
            )
        if name not in own and not open_ended:
            raise ParameterError(
                f"unknown parameter {name!r} of method {method!r}; known parameters: {known}",
                parameter=name,
                value=params[name],
            )
    for name, each in inspect.signature(PLANNERS[method]).parameters.items():
        needed = each.kind is inspect.Parameter.KEYWORD_ONLY and each.default is inspect.Parameter.empty
        if needed and name not in ("channels", "seed", *params, *given):
            raise ParameterError(
                f"parameter {name!r} is missing: method {method!r} requires it", parameter=name, value=None
            )
