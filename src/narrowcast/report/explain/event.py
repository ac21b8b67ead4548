"""Why an event goes where it goes, who gets it, and which predicate fails for whom."""

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

#: Filters of one subscriber that are told of.
FILTERS = 3


@dataclass(frozen=True, slots=True)
class EventSender:
    """Who decides on events, and what it goes by.

    Parameters
    ----------
    router
        What decides.
    network
        What costs are told on; messages where left out.
    publisher
        The number of the node that the event comes from; where left out, costs are averages.
    """

    router: Router
    network: Network | None = None
    publisher: int | None = None


def explain_event(
    known: PlanContext,
    event: Mapping[str, Any],
    sender: Callable[[Labels], EventSender],
    *,
    flow: str | None = None,
    subscriber: str | None = None,
    rows: int = 5,
) -> dict[str, Any]:
    """Return where an event goes and why, who gets it, and why those who do not want it do not.

    Parameters
    ----------
    known
        The plan, and what is known beside it: filters, or for topics the interest.
    event
        Names to values.
    sender
        Makes what decides on the event, from the labels of all subscribers there are.
    flow
        For a plan of topics, the attribute that names the event's topic; `flow` where left out.
    subscriber
        The one to explain the event for; where left out, those who get it in vain are.
    rows
        How many subscribers to name.
    """
    number, label = _flow(known, event, flow)
    wanting, matched = _interested(known, event, number)
    every = known.flow_space == "events"
    plan, who = _over_all(known.plan, wanting, every=every)
    channel = _channels(known, plan, matched)
    if channel is not None:
        holding = Matches.from_pairs(np.zeros(len(channel), np.int64), np.arange(len(channel)), 1)
        plan = over_placed(plan, holding, channel)
    given = sender(plan.subscribers)
    matches = Matches.from_pairs(np.zeros(len(who), np.int64), who, 1)
    at, publisher = [0 if every else number], None if given.publisher is None else [given.publisher]
    [decision] = decide(given.router, at, matches, plan, publisher, network=given.network)
    sent = given.router.route(at, matches, plan, publisher)
    people = _People(known, event, plan, sent, who, matched)
    directly = sent.unicast[0].astype(np.int64)
    facts: dict[str, Any] = {
        "event": dict(event),
        "flow": label,
        "cell": None if known.grid is None else known.ends(label),
        "carried_by": None if every and channel is None else row_of(plan.carries, at[0]).tolist(),
        "matched": _placed(matched, channel, rows),
        "n_matched": len(matched),
        "rejected": 0 if known.compiled is None else known.compiled.rejected.num_rows,
        "interested": len(who),
        "first_interested": first_labels(plan.subscribers, who, rows),
        "decision": decision.to_dict(),
        "directly": len(directly),
        "first_directly": first_labels(plan.subscribers, directly, rows),
        "received": people.received,
        "wasted": people.received - int((people.over & people.wants).sum()),
        "uninterested": int((people.over & ~people.wants).sum()),
    }
    facts["asked_for"] = subscriber
    if subscriber is None:
        some = np.flatnonzero(people.over & ~people.wants)[:rows].tolist()
        return facts | {"subscribers": [people.told(each) for each in some]}
    names = plan.subscribers.cast(pa.string())
    if known.filters is not None:  # whom the plan lacks and who does not want it may be among them
        theirs = pc.unique(known.filters["subscriber"].cast(pa.string())).drop_null()
        names = pc.unique(pa.concat_arrays([names, theirs]))
    place = place_of("subscriber", subscriber, names)
    one = people.told(place) if place < plan.n_subscribers else people.outsider(subscriber)
    return facts | {"subscribers": [one]}


class _People:
    """Those whom an event concerns: who wants it, who gets it and how.

    `who` are those who want it, and `matched` the ids of the filters that hold.
    """

    def __init__(
        self,
        known: PlanContext,
        event: Mapping[str, Any],
        plan: ChannelPlan,
        sent: Deliveries,
        who: Positions,
        matched: pa.Array,
    ) -> None:
        self.known, self.event, self.plan, self.sent, self.matched = known, event, plan, sent, matched
        self.wants = np.zeros(plan.n_subscribers, np.bool_)
        self.wants[who] = True
        groups = plan.groups()
        #: Whom each chosen channel reaches: a session's message, all of its group.
        self.reached = {
            channel: any_of(plan.listens, np.flatnonzero(groups == groups[channel]))
            for channel in sent.channels[0].tolist()
        }
        self.over = np.zeros(plan.n_subscribers, np.bool_)
        for inside in self.reached.values():
            self.over |= inside
        self.received = sum(int(inside.sum()) for inside in self.reached.values())
        if sent.method[0] == RouteMethod.BROADCAST:
            self.over[:] = True
            self.received = plan.n_subscribers

    def told(self, who: int) -> dict[str, Any]:
        """Return how a subscriber is treated, and what its filters say."""
        label = self.plan.subscribers[who].as_py()
        ways = [f"channel {channel}" for channel, inside in self.reached.items() if inside[who]]
        if who in self.sent.unicast[0]:
            ways.append("directly")
        elif self.over[who] and not ways:
            ways.append("broadcast")
        found = {"subscriber": label, "interested": bool(self.wants[who]), "gets_it": ways}
        return found | self._filters(label)

    def outsider(self, name: str) -> dict[str, Any]:
        """Return how somebody is treated whom the plan does not know and who does not want the event."""
        return {"subscriber": name, "interested": False, "gets_it": []} | self._filters(name)

    def _filters(self, label: Any) -> dict[str, Any]:
        """Return what the filters of a subscriber say of the event, those that hold first."""
        filters = self.known.filters
        if filters is None:
            return {}
        own = filters.filter(pc.equal(filters["subscriber"].cast(pa.string()), str(label)))
        ids = own["subscription_id"].cast(self.matched.type, safe=False)
        order = np.argsort(~np.asarray(pc.is_in(ids, value_set=self.matched)), kind="stable")[:FILTERS]
        told = [self._told(row) for row in own.take(pa.array(order)).to_pylist()]
        return {"n_filters": own.num_rows, "filters": told}

    def _told(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return whether a filter holds, and the predicates that fail where it does not."""
        found = {"subscription_id": row["subscription_id"], "filter": row["filter"]}
        reason = self.known.reasons.get((row["subscription_id"], row["filter"]))
        if reason is not None:
            return found | {"holds": False, "reason": reason, "fails": []}
        said = ParsedFilter.parse(row["filter"]).explain(self.event, self.known.schema)
        fails = [{"text": each.text, "holds": each.holds, "values": each.values} for each in said.failing()]
        return found | {"holds": said.holds is True, "reason": None, "fails": fails}


def _flow(known: PlanContext, event: Mapping[str, Any], attribute: str | None) -> tuple[int, Any]:
    """Return the flow of an event: its position in the plan, -1 for none, and its label."""
    if known.flow_space == "events":
        return -1, None
    if known.grid is not None:
        label: Any = int(known.grid.cell_of(_batch(known, event))[0])
    else:
        name = attribute or "flow"
        label = {each.lower(): value for each, value in event.items()}.get(name.lower())
        if label is None:
            raise ParameterError(
                f"the plan's flows are topics, and the event has no {name!r}; name the attribute that has "
                "its topic: --flow"
            )
    return int(pc.index(known.plan.flows.cast(pa.string()), str(label)).as_py()), label


def _channels(known: PlanContext, plan: ChannelPlan, matched: pa.Array) -> Positions | None:
    """Return the channel of each filter that holds, -1 for none; None where the plan is not by filters."""
    if plan.subscriptions is None or known.compiled is None:
        return None
    good, ids = known.compiled.subscriptions, np.asarray(matched, np.int64)
    order = np.argsort(good.subscription_id, kind="stable")
    row = order[np.searchsorted(good.subscription_id, ids, sorter=order)]
    names = good.subscribers.take(pa.array(good.subscriber[row])).cast(pa.string())
    place = pc.index_in(names, value_set=plan.subscribers.cast(pa.string()))
    return channel_of(plan, ids, np.asarray(place, np.int64))


def _placed(matched: pa.Array, channel: Positions | None, most: int) -> list[dict[str, Any]] | None:
    """Return the first of the filters that hold as JSON has them, each with its channel."""
    if channel is None:
        return None
    return [
        {"subscription_id": which, "channel": None if where < 0 else where}
        for which, where in zip(matched.to_pylist()[:most], channel.tolist(), strict=False)
    ]


def _batch(known: PlanContext, event: Mapping[str, Any]) -> EventBatch:
    """Return the event with the types that filters and cells go by."""
    schema = known.schema
    row = {
        name: value
        for name, value, kind in zip(schema.names, event_values(event, schema), schema.types, strict=True)
        if kind.family not in ("opaque", "void")
    }
    return EventBatch.from_rows([row], schema)


def _interested(known: PlanContext, event: Mapping[str, Any], flow: int) -> tuple[Labels, pa.Array]:
    """Return who wants an event, as text, by their filters or the interest in its flow; and which filters."""
    if known.compiled is not None:
        good = known.compiled.subscriptions
        met = matcher_for(len(good), 1).fit(good).match(_batch(known, event))
        who = good.subscribers.take(pa.array(np.unique(good.subscriber[met.index])))
        return who.cast(pa.string()), pa.array(good.subscription_id[met.index])
    if known.interest is None:
        also = "" if known.flow_space == "events" else ", or --interests"
        raise ParameterError(f"nothing says who wants the event; give --subscriptions{also}")
    column = any_of(known.wants, np.array([flow])) if flow >= 0 else np.zeros(0, np.bool_)
    who = known.plan.subscribers.take(pa.array(np.flatnonzero(column)))
    return who.cast(pa.string()), pa.array([], pa.int64())


def _over_all(plan: ChannelPlan, wanting: Labels, *, every: bool) -> tuple[ChannelPlan, Positions]:
    """Return a plan that also knows those who want the event, and where those stand in it.

    Whom the plan lacks listens to nothing. With `every` any channel may carry the event.
    """
    labels, names = plan.subscribers, plan.subscribers.cast(pa.string())
    new = wanting.filter(pc.invert(pc.is_in(wanting, value_set=names)))
    if len(new):
        try:
            labels = pa.concat_arrays([labels, new.cast(labels.type)])
        except pa.ArrowInvalid:  # names where the plan has numbers
            labels = pa.concat_arrays([names, new])
    listens = sp.vstack([plan.listens, sp.csr_array((len(new), plan.n_channels), dtype=np.bool_)])
    group = np.isin(np.arange(plan.n_channels), plan.parent)
    carries, flows = (~group[None], None) if every else (plan.carries, plan.flows)
    placed = plan.subscriptions if every else None
    fitted = ChannelPlan(carries, listens, plan.parent, subscribers=labels, flows=flows, subscriptions=placed)
    place = pc.index_in(wanting, value_set=labels.cast(pa.string()))
    return fitted, np.sort(np.asarray(place, np.int64))
