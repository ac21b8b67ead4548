"""Plans that a broker is offered in a folder."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pyarrow as pa

from narrowcast.errors import PlanError
from narrowcast.files import first_line
from narrowcast.routing.plan_routes import read_routes

if TYPE_CHECKING:
    from narrowcast.broker.control.subscription_index import SubscriptionIndex
    from narrowcast.routing.plan_routes import PlanRoutes


async def read_offered(folder: str, flow: str | None, interests: SubscriptionIndex) -> PlanRoutes:
    """Return the plan of a folder, if it is one for those who subscribe.

    Parameters
    ----------
    folder
        Where it is.
    flow
        For a plan of topics, the attribute that names an event's topic.
    interests
        Who subscribes to what.

    Raises
    ------
    PlanError
        When there is no plan that can be used.
    """
    try:
        return await asyncio.to_thread(_read, folder, flow, interests)
    except (OSError, ValueError) as error:
        raise PlanError(f"{folder!r:.200} is no folder of a plan: {first_line(error)}") from error


def _read(folder: str, flow: str | None, interests: SubscriptionIndex) -> PlanRoutes:
    """Read a plan, and see whom it is for."""
    routes = read_routes(folder, interests.schema, flow)
    known, planned = interests.subscribers, routes.plan.subscribers.cast(pa.string()).to_pylist()
    if known and planned and not known & set(planned):
        raise PlanError(
            f"{folder} is a plan for others: none of its {len(planned):,} subscribers subscribes here; "
            "make one from the subscriptions of this broker"
        )
    return routes
