"""Loading of plans from folders for a rollout."""

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


async def load_plan(folder: str, flow: str | None, interests: SubscriptionIndex) -> PlanRoutes:
    """Read a plan from a folder, and check that it is for subscribers of this broker.

    Parameters
    ----------
    folder
        Folder of the plan.
    flow
        For a plan of topics, the attribute with an event's topic.
    interests
        The current subscriptions.

    Raises
    ------
    PlanError
        When the folder holds no plan, or one for other subscribers.
    """
    try:
        return await asyncio.to_thread(_read, folder, flow, interests)
    except (OSError, ValueError) as error:
        raise PlanError(
            f"plan={folder!r:.200}: the folder holds no readable plan: {first_line(error)}",
            parameter="plan",
            value=folder,
        ) from error


def _read(folder: str, flow: str | None, interests: SubscriptionIndex) -> PlanRoutes:
    routes = read_routes(folder, interests.schema, flow)
    known, planned = interests.subscribers, routes.plan.subscribers.cast(pa.string()).to_pylist()
    if known and planned and not known & set(planned):
        raise PlanError(
            f"plan={folder!r:.200}: none of its {len(planned):,} subscribers subscribes here; make a plan "
            "from the subscriptions of this broker",
            parameter="plan",
            value=folder,
        )
    return routes
