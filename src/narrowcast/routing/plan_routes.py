"""Which channels a plan sends an event over, whoever subscribes today."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp

from narrowcast.errors import ParameterError, PlanError
from narrowcast.model.artefact import read_named_plan
from narrowcast.model.cells import CellGrid
from narrowcast.model.ownership import channel_of
from narrowcast.model.plan import ChannelPlan
from narrowcast.routing import ChannelRouter, over_placed

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from narrowcast.model.events import EventBatch
    from narrowcast.model.matches import Matches
    from narrowcast.model.schema import Schema
    from narrowcast.routing import Deliveries, Router

    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FlowAssignment:
    """Which flow an event belongs to: the value of a column, or the cell of a grid that it falls in.

    Examples
    --------
    >>> from narrowcast import EventBatch
    >>> FlowAssignment(column="topic").of(EventBatch.from_rows([{"topic": "a"}, {"topic": None}])).to_pylist()
    ['a', None]
    """

    column: str | None = None
    grid: CellGrid | None = None

    def check(self, schema: Schema) -> None:
        """Refuse a column that events lack, or that has no labels."""
        if self.column is not None and self.column.lower() not in [name.lower() for name in schema.names]:
            raise ParameterError(
                f"events have no attribute {self.column!r} to take flows from; they have "
                f"{', '.join(map(repr, schema.names[:12])) or 'none'}"
            )
        if self.column is not None and schema[self.column].family in ("opaque", "void"):
            raise ParameterError(
                f"attribute {self.column!r} of events is {schema[self.column]}, which cannot name flows; "
                "take one of text or numbers"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of events that it looks at."""
        return (self.column,) if self.column is not None else self.grid.attributes if self.grid else ()

    def of(self, events: EventBatch) -> pa.Array:
        """Return the flow of each event; null for one without."""
        if self.column is not None:
            lower = [name.lower() for name in events.schema.names]
            return events.columns[lower.index(self.column.lower())]
        if self.grid is not None:
            return pa.array(self.grid.cell_of(events))
        return pa.nulls(len(events), pa.string())


@dataclass(frozen=True, slots=True)
class PlanRoutes:
    """A plan as a stream uses it.

    Parameters
    ----------
    name
        Tells it from any other plan.
    plan
        Which channels there are.
    flows
        Which of the plan's flows an event belongs to; None where every channel may carry every event.
    known
        The flows of the plan, once it is fitted to subscribers.
    channel
        The channel of each subscription, by position, once it is fitted to subscriptions: an event then goes
        to the channels of those that it matches. None where every channel of a subscriber's will do.
    router
        What decides which way an event goes.
    """

    name: str
    plan: ChannelPlan
    flows: FlowAssignment | None
    known: pa.Array | None = None
    channel: Ints | None = None
    router: Router = field(default_factory=ChannelRouter)

    def over(
        self, subscribers: pa.Array, subscription_id: Ints | None = None, owner: NDArray[Any] | None = None
    ) -> PlanRoutes:
        """Return routes for these subscribers in this order; those whom the plan lacks listen to nothing.

        They are sent to directly, until a plan has them.

        Parameters
        ----------
        subscribers
            Everybody who subscribes.
        subscription_id, owner
            Their subscriptions, and the position of the subscriber of each: for a plan that has a channel
            for each subscription. Where left out, whole subscribers are routed to by that plan, too.
        """
        plan = self.plan
        listens = sp.vstack([plan.listens, sp.csr_array((1, plan.n_channels), dtype=plan.listens.dtype)])
        known = positions_of(subscribers, plan.subscribers)
        carries = plan.carries
        if self.flows is None:  # whatever the plan was made from, an event may go over any channel
            carries = sp.csr_array(~np.isin(np.arange(plan.n_channels), plan.parent)[None])  # not over groups
        fitted = ChannelPlan(carries, listens.tocsr()[known], plan.parent)
        channel = None
        if plan.subscriptions is not None and subscription_id is not None and owner is not None:
            channel = channel_of(plan, subscription_id, known[owner])
        return PlanRoutes(self.name, fitted, self.flows, plan.flows, channel, self.router)

    def route(self, events: EventBatch, interested: Matches, matched: Matches | None = None) -> Deliveries:
        """Return the way of each event to those who are interested, as positions among those fitted to.

        Parameters
        ----------
        events
            A batch.
        interested
            Who wants each.
        matched
            The subscriptions that each matches, as positions among those fitted to.
        """
        flow, plan = np.zeros(len(events), np.int64), self.plan
        if self.channel is not None and matched is not None:
            flow, plan = np.arange(len(events)), over_placed(plan, matched, self.channel)
        elif self.flows is not None:
            assert self.known is not None
            flow = positions_of(self.flows.of(events), self.known)
        return self.router.route(flow, interested, plan)


def positions_of(wanted: pa.Array, known: pa.Array) -> Ints:
    """Return where labels stand among others, -1 for those that are not there; 7 and "7" are the same."""
    if wanted.type != known.type:
        wanted, known = wanted.cast(pa.string()), known.cast(pa.string())
    found = pc.fill_null(pc.index_in(wanted, value_set=known, skip_nulls=True), -1)
    return np.asarray(found, np.int64)


def read_routes(folder: str | Path, schema: Schema, flow: str | None = None) -> PlanRoutes:
    """Read a plan for events of a schema.

    Parameters
    ----------
    folder
        The plan artefact.
    schema
        The attributes of events.
    flow
        For a plan of topics, the attribute that names an event's topic.
    """
    name, plan, info = read_named_plan(folder)
    if info.flow_space == "events":
        return PlanRoutes(name, plan, None)
    if info.flow_space == "cells":
        grid = info.params.get("grid")
        if not isinstance(grid, dict):
            raise PlanError(
                f"{folder} is a plan of cells without its grid; make it again with narrowcast plan"
            )
        return PlanRoutes(name, plan, FlowAssignment(grid=CellGrid.of_keys(schema, grid)))
    if flow is None:
        raise ParameterError(
            f"{folder} is a plan of topics; name the attribute of events that has theirs: --flow"
        )
    found = FlowAssignment(column=flow)
    found.check(schema)
    return PlanRoutes(name, plan, found)
