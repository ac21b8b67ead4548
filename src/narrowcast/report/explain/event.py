"""Explanation of an event: its route, its receivers, and the predicates that fail for uninterested ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse as sp

from narrowcast.errors import ParameterError
from narrowcast.filters.explain import ParsedFilter
from narrowcast.filters.values import event_values
from narrowcast.matching import matcher_for
from narrowcast.model.events import EventBatch
from narrowcast.model.matches import Matches
from narrowcast.model.ownership import channel_of
from narrowcast.model.plan import ChannelPlan
from narrowcast.report.explain.plan_context import any_of, first_labels, place_of, row_of
from narrowcast.routing.base import RouteMethod
from narrowcast.routing.decisions import decide
from narrowcast.routing.placed_events import over_placed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from narrowcast.costs.network import Network
    from narrowcast.model.labels import Labels
    from narrowcast.model.relation import Positions
    from narrowcast.report.explain.plan_context import PlanContext
    from narrowcast.routing.base import Deliveries, Router

#: Largest number of filters of one subscriber in an explanation.
MAX_FILTERS = 3


@dataclass(frozen=True, slots=True)
class EventSender:
    """The router that decides on the route of an event, with the network that costs are computed on.

    Parameters
    ----------
    router
        The router.
    network
        The network whose link costs are used; None (the default) counts messages.
    publisher
        Index of the network node that publishes the event; None (the default) averages over publishers.
    """

    router: Router
    network: Network | None = None
    publisher: int | None = None


def explain_event(
    context: PlanContext,
    event: Mapping[str, Any],
    sender: Callable[[Labels], EventSender],
    *,
    flow: str | None = None,
    subscriber: str | None = None,
    rows: int = 5,
) -> dict[str, Any]:
    """Return the route of an event and its reason, its receivers, and why some do not want it.

    Parameters
    ----------
    context
        The plan, and tables of filters or, for a plan of topics, of interests.
    event
        Values by attribute name.
    sender
        Called with the labels of all subscribers; returns the router and the network.
    flow
        For a plan of topics, the attribute that has the event's topic; default `flow`.
    subscriber
        Explain the event for this subscriber only; by default, for receivers that do not want it.
    rows
        Largest number of subscribers to list.

    Returns
    -------
    dict[str, Any]
        Values that can be written as JSON: numbers, labels and lists of them.

    Raises
    ------
    ParameterError
        When the event has no topic, the interested subscribers cannot be determined, or the subscriber is
        unknown.
    """
    number, label = _flow(context, event, flow)
    interested, matched = _interested(context, event, number)
    of_events = context.flow_space == "events"
    plan, positions = _with_interested(context.plan, interested, of_events=of_events)
    channel = _channels(context, plan, matched)
    if channel is not None:
        filter_matches = Matches.from_pairs(np.zeros(len(channel), np.int64), np.arange(len(channel)), 1)
        plan = over_placed(plan, filter_matches, channel)
    chosen = sender(plan.subscribers)
    matches = Matches.from_pairs(np.zeros(len(positions), np.int64), positions, 1)
    at, publisher = [0 if of_events else number], None if chosen.publisher is None else [chosen.publisher]
    [decision] = decide(chosen.router, at, matches, plan, publisher, network=chosen.network)
    deliveries = chosen.router.route(at, matches, plan, publisher)
    receivers = _Receivers(context, event, plan, deliveries, positions, matched)
    directly = deliveries.unicast[0].astype(np.int64)
    facts: dict[str, Any] = {
        "event": dict(event),
        "flow": label,
        "cell": None if context.grid is None else context.ends(label),
        "carried_by": None if of_events and channel is None else row_of(plan.carries, at[0]).tolist(),
        "matched": _matched_filters(matched, channel, rows),
        "n_matched": len(matched),
        "rejected": 0 if context.compiled is None else context.compiled.rejected.num_rows,
        "interested": len(positions),
        "first_interested": first_labels(plan.subscribers, positions, rows),
        "decision": decision.to_dict(),
        "directly": len(directly),
        "first_directly": first_labels(plan.subscribers, directly, rows),
        "received": receivers.n_copies,
        "wasted": receivers.n_copies - int((receivers.over & receivers.wants).sum()),
        "uninterested": int((receivers.over & ~receivers.wants).sum()),
    }
    facts["asked_for"] = subscriber
    if subscriber is None:
        unwanted = np.flatnonzero(receivers.over & ~receivers.wants)[:rows].tolist()
        return facts | {"subscribers": [receivers.explain(each) for each in unwanted]}
    names = plan.subscribers.cast(pa.string())
    if context.filters is not None:  # subscribers that are neither in the plan nor interested
        owners = pc.unique(context.filters["subscriber"].cast(pa.string())).drop_null()
        names = pc.unique(pa.concat_arrays([names, owners]))
    place = place_of("subscriber", subscriber, names)
    one = receivers.explain(place) if place < plan.n_subscribers else receivers.explain_unplanned(subscriber)
    return facts | {"subscribers": [one]}


class _Receivers:
    """The receivers of an event and the subscribers interested in it.

    Parameters
    ----------
    interested
        Positions in the plan of the subscribers that want the event.
    matched
        Ids of the filters that match the event.
    """

    def __init__(
        self,
        context: PlanContext,
        event: Mapping[str, Any],
        plan: ChannelPlan,
        deliveries: Deliveries,
        interested: Positions,
        matched: pa.Array,
    ) -> None:
        self.context, self.event, self.plan = context, event, plan
        self.deliveries, self.matched = deliveries, matched
        self.wants = np.zeros(plan.n_subscribers, np.bool_)
        self.wants[interested] = True
        groups = plan.groups()
        #: Subscribers that each chosen channel reaches: a session reaches its whole group.
        self.reached = {
            channel: any_of(plan.listens, np.flatnonzero(groups == groups[channel]))
            for channel in deliveries.channels[0].tolist()
        }
        #: Whether each subscriber receives the event by a channel or by broadcast.
        self.over = np.zeros(plan.n_subscribers, np.bool_)
        for members in self.reached.values():
            self.over |= members
        #: Copies received by channels or by broadcast; direct messages do not count.
        self.n_copies = sum(int(members.sum()) for members in self.reached.values())
        if deliveries.method[0] == RouteMethod.BROADCAST:
            self.over[:] = True
            self.n_copies = plan.n_subscribers

    def explain(self, position: int) -> dict[str, Any]:
        """Return how a subscriber of the plan receives the event, and the results of its filters."""
        label = self.plan.subscribers[position].as_py()
        ways = [f"channel {channel}" for channel, members in self.reached.items() if members[position]]
        if position in self.deliveries.unicast[0]:
            ways.append("directly")
        elif self.over[position] and not ways:
            ways.append("broadcast")
        found = {"subscriber": label, "interested": bool(self.wants[position]), "gets_it": ways}
        return found | self._filters(label)

    def explain_unplanned(self, name: str) -> dict[str, Any]:
        """Return the results of the filters of a subscriber that is neither in the plan nor interested."""
        return {"subscriber": name, "interested": False, "gets_it": []} | self._filters(name)

    def _filters(self, label: Any) -> dict[str, Any]:
        """Return the results of a subscriber's filters for the event, matching filters first."""
        filters = self.context.filters
        if filters is None:
            return {}
        own = filters.filter(pc.equal(filters["subscriber"].cast(pa.string()), str(label)))
        ids = own["subscription_id"].cast(self.matched.type, safe=False)
        order = np.argsort(~np.asarray(pc.is_in(ids, value_set=self.matched)), kind="stable")[:MAX_FILTERS]
        results = [self._filter_result(row) for row in own.take(pa.array(order)).to_pylist()]
        return {"n_filters": own.num_rows, "filters": results}

    def _filter_result(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return whether a filter matches the event, and the predicates that fail if it does not."""
        found = {"subscription_id": row["subscription_id"], "filter": row["filter"]}
        reason = self.context.reasons.get((row["subscription_id"], row["filter"]))
        if reason is not None:
            return found | {"holds": False, "reason": reason, "fails": []}
        result = ParsedFilter.parse(row["filter"]).explain(self.event, self.context.schema)
        fails = [{"text": each.text, "holds": each.holds, "values": each.values} for each in result.failing()]
        return found | {"holds": result.holds is True, "reason": None, "fails": fails}


def _flow(context: PlanContext, event: Mapping[str, Any], attribute: str | None) -> tuple[int, Any]:
    """Return the position of an event's flow in the plan (-1 if the plan lacks it), and the flow's label."""
    if context.flow_space == "events":
        return -1, None
    if context.grid is not None:
        label: Any = int(context.grid.cell_of(_batch(context, event))[0])
    else:
        name = attribute or "flow"
        label = {each.lower(): value for each, value in event.items()}.get(name.lower())
        if label is None:
            raise ParameterError(
                parameter="flow",
                value=name,
                limit="the attribute that has the event's topic, because the plan's flows are topics",
                fix=f"the event has {', '.join(event) or 'no attributes'}",
            )
    return int(pc.index(context.plan.flows.cast(pa.string()), str(label)).as_py()), label


def _channels(context: PlanContext, plan: ChannelPlan, matched: pa.Array) -> Positions | None:
    """Return the channel of each matching filter, -1 for none; None if the plan assigns no filters."""
    if plan.subscriptions is None or context.compiled is None:
        return None
    valid, ids = context.compiled.subscriptions, np.asarray(matched, np.int64)
    order = np.argsort(valid.subscription_id, kind="stable")
    row = order[np.searchsorted(valid.subscription_id, ids, sorter=order)]
    names = valid.subscribers.take(pa.array(valid.subscriber[row])).cast(pa.string())
    place = pc.index_in(names, value_set=plan.subscribers.cast(pa.string()))
    return channel_of(plan, ids, np.asarray(place, np.int64))


def _matched_filters(matched: pa.Array, channel: Positions | None, most: int) -> list[dict[str, Any]] | None:
    """Return the first matching filters with their channels, as JSON values."""
    if channel is None:
        return None
    return [
        {"subscription_id": subscription, "channel": None if number < 0 else number}
        for subscription, number in zip(matched.to_pylist()[:most], channel.tolist(), strict=False)
    ]


def _batch(context: PlanContext, event: Mapping[str, Any]) -> EventBatch:
    """Return the event as a batch of one row, with the types that filters and cells use."""
    schema = context.schema
    row = {
        name: value
        for name, value, kind in zip(schema.names, event_values(event, schema), schema.types, strict=True)
        if kind.family not in ("opaque", "void")
    }
    return EventBatch.from_rows([row], schema)


def _interested(context: PlanContext, event: Mapping[str, Any], flow: int) -> tuple[Labels, pa.Array]:
    """Return the labels, as text, of subscribers that want an event, and the ids of matching filters.

    Interested subscribers follow from filters if these are given, otherwise from the interest in the flow.
    """
    if context.compiled is not None:
        valid = context.compiled.subscriptions
        matches = matcher_for(len(valid), 1).fit(valid).match(_batch(context, event))
        subscribers = valid.subscribers.take(pa.array(np.unique(valid.subscriber[matches.index])))
        return subscribers.cast(pa.string()), pa.array(valid.subscription_id[matches.index])
    if context.interest is None:
        also = "" if context.flow_space == "events" else ", or their interests"
        raise ParameterError(
            f"subscriptions is missing: the event's subscribers are unknown; give their filters{also}",
            parameter="subscriptions",
            value=None,
            limit="given",
        )
    column = any_of(context.wants, np.array([flow])) if flow >= 0 else np.zeros(0, np.bool_)
    subscribers = context.plan.subscribers.take(pa.array(np.flatnonzero(column)))
    return subscribers.cast(pa.string()), pa.array([], pa.int64())


def _with_interested(
    plan: ChannelPlan, interested: Labels, *, of_events: bool
) -> tuple[ChannelPlan, Positions]:
    """Return a plan extended by the interested subscribers it lacks, and the positions of all interested.

    Added subscribers listen to no channel. In a plan whose flows are events (`of_events`), any channel may
    carry the event.
    """
    labels, names = plan.subscribers, plan.subscribers.cast(pa.string())
    new = interested.filter(pc.invert(pc.is_in(interested, value_set=names)))
    if len(new):
        try:
            labels = pa.concat_arrays([labels, new.cast(labels.type)])
        except pa.ArrowInvalid:  # text labels are added to a plan with integer labels
            labels = pa.concat_arrays([names, new])
    listens = sp.vstack([plan.listens, sp.csr_array((len(new), plan.n_channels), dtype=np.bool_)])
    group = np.isin(np.arange(plan.n_channels), plan.parent)
    carries, flows = (~group[None], None) if of_events else (plan.carries, plan.flows)
    placed = plan.subscriptions if of_events else None
    fitted = ChannelPlan(carries, listens, plan.parent, subscribers=labels, flows=flows, subscriptions=placed)
    place = pc.index_in(interested, value_set=labels.cast(pa.string()))
    return fitted, np.sort(np.asarray(place, np.int64))
