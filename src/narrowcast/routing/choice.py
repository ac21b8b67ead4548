"""Routers by name, with parameters: the one that fits a plan, or the one asked for."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from narrowcast.errors import ParameterError
from narrowcast.routing.base import ROUTERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from narrowcast.costs.network import Network
    from narrowcast.routing.base import Router


#: Methods whose channels are clusters of subscribers: who is in one gets what anybody there wants.
CLUSTERS = ("direct", "rassoc", "ncut", "centroid", "box-overlap", "r-tree")


def router_for(method: str, flow_space: str) -> str:
    """Return the name of the router that plans of a method come out best with.

    Clusters of subscribers get every event that one of their members wants: that is what they are made for,
    and what their false positives are counted by. In another plan of events any channel may carry an event.
    Sent to all that have somebody interested, it would mostly cost more than direct messages do, so the
    break-even would leave channels unused: there, as in plans of the method `partial`, the best one is
    chosen.

    Parameters
    ----------
    method
        One of `PLANNERS`.
    flow_space
        What the plan's flows are.

    Examples
    --------
    >>> router_for("pairwise", "cells"), router_for("partial", "cells"), router_for("pairwise", "events")
    ('threshold', 'partial', 'partial')
    >>> router_for("direct", "events"), router_for("direct", "cells")
    ('channels', 'threshold')
    """
    if method in CLUSTERS and flow_space == "events":
        return "channels"
    return "partial" if method == "partial" or flow_space == "events" else "threshold"


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
