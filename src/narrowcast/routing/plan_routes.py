"""The routes of a plan for current subscribers, who may differ from those it was planned for."""

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
    """Finds the flow of an event: the value of an attribute, or the cell of a grid that contains it.

    Examples
    --------
    >>> from narrowcast import EventBatch
    >>> FlowAssignment(column="topic").of(EventBatch.from_rows([{"topic": "a"}, {"topic": None}])).to_pylist()
    ['a', None]
    """

    column: str | None = None
    grid: CellGrid | None = None

    def check(self, schema: Schema) -> None:
        """Refuse a column that events do not have, or that cannot name flows."""
        if self.column is not None and self.column.lower() not in [name.lower() for name in schema.names]:
            known = ", ".join(map(repr, schema.names[:12])) or "none"
            raise ParameterError(
                f"flow={self.column!r}: events have no such attribute; they have {known}",
                parameter="flow",
                value=self.column,
            )
        if self.column is not None and schema[self.column].family in ("opaque", "void"):
            raise ParameterError(
                f"flow={self.column!r}: attribute of type {schema[self.column]}, which cannot name flows; "
                "use an attribute of text or numbers",
                parameter="flow",
                value=self.column,
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """The attributes of events that determine the flow."""
        return (self.column,) if self.column is not None else self.grid.attributes if self.grid else ()

    def of(self, events: EventBatch) -> pa.Array:
        """Return the label of each event's flow; null for an event without a flow."""
        if self.column is not None:
            lower = [name.lower() for name in events.schema.names]
            return events.columns[lower.index(self.column.lower())]
        if self.grid is not None:
            return pa.array(self.grid.cell_of(events))
        return pa.nulls(len(events), pa.string())


@dataclass(frozen=True, slots=True)
class PlanRoutes:
    """A plan for routing a stream of events.

    Parameters
    ----------
    name
        Identifies the plan.
    plan
        The plan with the channels.
    flows
        Finds the flow of an event; None if every channel may carry every event.
    known
        The labels of the plan's flows; set by `for_subscribers`.
    channel
        The channel of each subscription by position, so that an event goes to the channels of matching
        subscriptions only; set by `for_subscribers`. None if any channel of a subscriber may be used.
    router
        The router that decides (default: `ChannelRouter`).
    """

    name: str
    plan: ChannelPlan
    flows: FlowAssignment | None
    known: pa.Array | None = None
    channel: Ints | None = None
    router: Router = field(default_factory=ChannelRouter)

    def for_subscribers(
        self, subscribers: pa.Array, subscription_id: Ints | None = None, owner: NDArray[Any] | None = None
    ) -> PlanRoutes:
        """Return routes for these subscribers in this order; those that the plan lacks are sent to directly.

        Parameters
        ----------
        subscribers
            Labels of all current subscribers.
        subscription_id, owner
            Ids of their subscriptions, and the position of the subscriber of each, for a plan with a channel
            per subscription. Without these, such a plan may use any channel of an interested subscriber.
        """
        plan = self.plan
        listens = sp.vstack([plan.listens, sp.csr_array((1, plan.n_channels), dtype=plan.listens.dtype)])
        known = positions_of(subscribers, plan.subscribers)
        carries = plan.carries
        if self.flows is None:  # whatever the plan was made from, any channel may carry an event
            # All channels but groups of a two-level plan.
            carries = sp.csr_array(~np.isin(np.arange(plan.n_channels), plan.parent)[None])
        fitted = ChannelPlan(carries, listens.tocsr()[known], plan.parent)
        channel = None
        if plan.subscriptions is not None and subscription_id is not None and owner is not None:
            channel = channel_of(plan, subscription_id, known[owner])
        return PlanRoutes(self.name, fitted, self.flows, plan.flows, channel, self.router)

    def route(self, events: EventBatch, interested: Matches, matched: Matches | None = None) -> Deliveries:
        """Return the deliveries of a batch; subscribers are positions among those given to `for_subscribers`.

        Parameters
        ----------
        events
            The events.
        interested
            The interested subscribers of each event.
        matched
            The positions of the subscriptions that each event matches.
        """
        flow, plan = np.zeros(len(events), np.int64), self.plan
        if self.channel is not None and matched is not None:
            flow, plan = np.arange(len(events)), over_placed(plan, matched, self.channel)
        elif self.flows is not None:
            assert self.known is not None
            flow = positions_of(self.flows.of(events), self.known)
        return self.router.route(flow, interested, plan)


def positions_of(wanted: pa.Array, known: pa.Array) -> Ints:
    """Return the positions of labels among known ones, -1 if absent; the labels 7 and "7" are the same."""
    if wanted.type != known.type:
        wanted, known = wanted.cast(pa.string()), known.cast(pa.string())
    found = pc.fill_null(pc.index_in(wanted, value_set=known, skip_nulls=True), -1)
    return np.asarray(found, np.int64)


def read_routes(folder: str | Path, schema: Schema, flow: str | None = None) -> PlanRoutes:
    """Read a plan from a folder, for routing events with a given schema.

    Parameters
    ----------
    folder
        Folder of the plan.
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
                f"{folder}: a plan of cells without its grid; make the plan again with narrowcast plan",
                value=str(folder),
            )
        return PlanRoutes(name, plan, FlowAssignment(grid=CellGrid.of_keys(schema, grid)))
    if flow is None:
        raise ParameterError(
            f"flow is missing: {folder} is a plan of topics; name the attribute of events with their topic",
            parameter="flow",
            value=None,
        )
    found = FlowAssignment(column=flow)
    found.check(schema)
    return PlanRoutes(name, plan, found)
