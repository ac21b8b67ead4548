"""Where the plans of a live broker come from."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from narrowcast.errors import NarrowcastError
from narrowcast.model.plan_store import PlanStore
from narrowcast.routing.plan_routes import read_routes

if TYPE_CHECKING:
    from pathlib import Path

    from narrowcast.broker import ControlPlane, SubscriptionIndex
    from narrowcast.broker.storage.broker_state import BrokerState
    from narrowcast.cli.replan_loop import ReplanLoop
    from narrowcast.routing.plan_routes import PlanRoutes

log = logging.getLogger(__name__)

#: Seconds from one look at the plan's folder to the next.
_LOOK = 1.0


@dataclass
class WatchedPlan:
    """A plan's folder, and what was in it last."""

    folder: Path
    flow: str | None
    name: str | None = None

    def read(self, interests: SubscriptionIndex) -> PlanRoutes:
        """Return the plan that is there."""
        routes = read_routes(self.folder, interests.schema, self.flow)
        self.name = routes.name
        return routes

    async def watch(self, desk: ControlPlane) -> None:
        """Let plans be used that are put into the folder."""
        while True:
            await asyncio.sleep(_LOOK)
            name = PlanStore(self.folder).name
            if name is None or name == self.name:
                continue
            if desk.busy:
                continue
            self.name = name
            with suppress(NarrowcastError):  # the desk has said so
                await desk.rollout_from(str(self.folder), self.flow)


@dataclass
class PlanSources:
    """Plans of a folder, of what is recorded and of the last start; and how many joins there are a second."""

    given: WatchedPlan | None
    again: ReplanLoop | None
    joins: float | None
    lasting: BrokerState | None

    def begin(self, desk: ControlPlane) -> None:
        """Let the first plan be used, if there is one, and remember all that come.

        The plan that was in use last is used on, unless another was put into the folder since.
        """
        given, last = self.given, self.lasting
        if last is not None:
            desk.used = lambda epoch: last.use(epoch, None if given is None else given.name)
            if last.facts.plan is not None and (given is None or given.name == last.facts.given):
                before = WatchedPlan(last.plan, last.facts.flow)
                try:
                    desk.use(before.read(desk.interests), str(before.folder), before.flow)
                    return
                except NarrowcastError as error:
                    log.warning("the plan that was in use last is not used on: %s", error)
        if given is not None:
            desk.use(given.read(desk.interests), str(given.folder), given.flow)
            desk.used(desk.epoch)
