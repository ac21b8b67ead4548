"""Parameters of routers, and the creation of routers by name."""

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
    """Return the parameters of a router other than the network.

    Examples
    --------
    >>> router_parameters("threshold"), router_parameters("channels")
    (['threshold', 'broadcast', 'send'], [])
    """
    return [each for each in inspect.signature(ROUTERS[name]).parameters if each != "network"]


def router_maker(name: str, params: Mapping[str, Any] | None = None) -> Callable[[Network | None], Router]:
    """Return a function that creates a router for a network; parameters are checked at once.

    Parameters
    ----------
    name
        Name of the router, one of `ROUTERS`.
    params
        Parameters of the router.

    Examples
    --------
    >>> router_maker("threshold", {"threshold": 0.15})(None).threshold
    0.15
    >>> router_maker("exact", {"threshold": 0.15})
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: threshold=0.15: not a parameter of 'exact'; it has broadcast, send
    >>> router_maker("threshold", {"threshold": 2})
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: threshold=2: must be a share from 0 to 1
    """
    factory, own = ROUTERS[name], router_parameters(name)
    given = dict(params or {})
    for key in given:
        if key not in own:
            known = ", ".join(own) or "none"
            raise ParameterError(
                f"{key}={given[key]!r}: not a parameter of {name!r}; it has {known}",
                parameter=key,
                value=given[key],
            )
    factory(**given)  # invalid values are refused here, before there is a network
    takes = "network" in inspect.signature(factory).parameters
    return lambda network: factory(**given, **({"network": network} if takes else {}))
