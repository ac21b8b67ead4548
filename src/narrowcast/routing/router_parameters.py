"""Routers by name, with their parameters."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from narrowcast.errors import ParameterError
from narrowcast.routing.base import ROUTERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from narrowcast.costs.network import Network
    from narrowcast.routing.base import Router


def router_parameters(name: str) -> list[str]:
    """Return the parameters of a router that are its own: all but the network.

    Examples
    --------
    >>> router_parameters("threshold"), router_parameters("channels")
    (['threshold', 'broadcast', 'send'], [])
    """
    return [each for each in inspect.signature(ROUTERS[name]).parameters if each != "network"]


def router_maker(name: str, params: Mapping[str, Any] | None = None) -> Callable[[Network | None], Router]:
    """Return what makes a router for a network, once its parameters are known to be its own and in range.

    Parameters
    ----------
    name
        One of `ROUTERS`.
    params
        Its parameters.

    Examples
    --------
    >>> router_maker("threshold", {"threshold": 0.15})(None).threshold
    0.15
    >>> router_maker("exact", {"threshold": 0.15})
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: router 'exact' has no parameter 'threshold'; it has: broadcast, send
    >>> router_maker("threshold", {"threshold": 2})
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: threshold is 2; give a share from 0 to 1
    """
    factory, own = ROUTERS[name], router_parameters(name)
    given = dict(params or {})
    for key in given:
        if key not in own:
            raise ParameterError(
                f"router {name!r} has no parameter {key!r}; it has: {', '.join(own) or 'none'}"
            )
    factory(**given)  # what is out of range is told here, long before there is a network
    takes = "network" in inspect.signature(factory).parameters
    return lambda network: factory(**given, **({"network": network} if takes else {}))
