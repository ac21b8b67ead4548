"""The sources of plans of a live broker: a watched folder, replanning, and the plan of the last run."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from narrowcast.errors import NarrowcastError

if TYPE_CHECKING:
    from pathlib import Path

    from narrowcast.broker import ControlPlane, SubscriptionIndex
    from narrowcast.broker.storage.broker_state import BrokerState
    from narrowcast.cli.replan_loop import ReplanLoop
    from narrowcast.routing.plan_routes import PlanRoutes

log = logging.getLogger(__name__)

#: Seconds between checks of the plan folder.
_CHECK = 1.0


@dataclass
class WatchedPlan:
    """A plan folder that is checked for new plans.

    Parameters
    ----------
    folder
        The plan folder.
    flow
        Attribute that holds the topic of an event, for plans of topics.
    name
        Name of the plan that was read last.
    """

    folder: Path
    flow: str | None
    name: str | None = None

    def read(self, interests: SubscriptionIndex) -> PlanRoutes:
        """Read the current plan."""
        from narrowcast.routing.plan_routes import read_routes

        routes = read_routes(self.folder, interests.schema, self.flow)
        self.name = routes.name
        return routes

    async def watch(self, control: ControlPlane) -> None:
        """Roll out each new plan that appears in the folder."""
        from narrowcast.model.plan_store import PlanStore

        while True:
            await asyncio.sleep(_CHECK)
            name = PlanStore(self.folder).name
            if name is None or name == self.name:
                continue
            if control.busy:
                continue
            self.name = name
            with suppress(NarrowcastError):  # the control plane has logged it
                await control.rollout_from(str(self.folder), self.flow)


@dataclass
class PlanSources:
    """The sources of plans.

    Parameters
    ----------
    given
        The folder of `--plan`.
    replanning
        Makes plans from recorded events.
    joins
        Maximum number of channel joins per second.
    state
        The recorded state, with the plan of the last run.
    """

    given: WatchedPlan | None
    replanning: ReplanLoop | None
    joins: float | None
    state: BrokerState | None

    def begin(self, control: ControlPlane) -> None:
        """Use the first plan, if there is one, and record all later ones.

        The plan of the last run stays in use, unless the folder has another one since.
        """
        given, last = self.given, self.state
        if last is not None:
            control.on_plan_used = lambda epoch: last.use(epoch, None if given is None else given.name)
            if last.facts.plan is not None and (given is None or given.name == last.facts.given):
                before = WatchedPlan(last.plan, last.facts.flow)
                try:
                    control.use(before.read(control.interests), str(before.folder), before.flow)
                    return
                except NarrowcastError as error:
                    log.warning("the plan of the last run cannot be used: %s", error)
        if given is not None:
            control.use(given.read(control.interests), str(given.folder), given.flow)
            control.on_plan_used(control.epoch)
