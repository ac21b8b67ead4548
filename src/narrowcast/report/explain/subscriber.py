"""Explanation of a subscriber: its channels, its wanted flows and its wasted deliveries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from narrowcast.model.labels import positions
from narrowcast.model.ownership import channel_of
from narrowcast.report.explain.plan_context import any_of, first_labels, place_of, row_of

if TYPE_CHECKING:
    from narrowcast.report.explain.plan_context import PlanContext


def explain_subscriber(context: PlanContext, name: str, *, rows: int = 5) -> dict[str, Any]:
    """Return what a subscriber receives by a plan and, if the interest is known, how much of it it wants.

    If the plan assigns subscriptions to channels and their table is given, the result also has the channel
    of each subscription.

    A message in a session reaches every member of its group. Unwanted messages and second copies are waste;
    the waste of all subscribers adds up to the cost `waste`.

    Parameters
    ----------
    context
        The plan, and tables of filters, events or interests.
    name
        Label of the subscriber as text, also if the plan's labels are integers.
    rows
        Largest number of flows, and of subscriptions, to list.

    Returns
    -------
    dict[str, Any]
        Values that can be written as JSON: numbers, labels and lists of them.

    Raises
    ------
    ParameterError
        When neither the plan nor the interest has the subscriber.
    """
    plan, interest = context.plan, context.interest
    position = int(pc.index(plan.subscribers.cast(pa.string()), name).as_py())
    wanting = -1
    if interest is not None:
        wanting = int(pc.index(interest.subscribers.cast(pa.string()), name).as_py())
    if position == wanting == -1:
        place_of("subscriber", name, plan.subscribers)
    channels, direct = row_of(plan.listens, position), row_of(plan.unicast, position)
    carried = np.flatnonzero(any_of(plan.carries, channels))
    facts: dict[str, Any] = {
        "subscriber": name,
        "in_plan": position >= 0,
        "flows_over_channels": len(carried),
        "flows_directly": len(direct),
        "first_directly": first_labels(plan.flows, direct, rows),
        "channels": [_channel(context, channel, position) for channel in channels.tolist()],
    }
    if plan.subscriptions is not None:
        facts |= _subscriptions(context, name, position, rows)
    if interest is None:
        return facts
    wanted = row_of(interest.wants, wanting)
    place = positions("flow", interest.flows, plan.flows)[wanted]
    over = np.isin(place, carried)
    directly = np.isin(place, direct) & ~over
    missed = wanted[~over & ~directly]
    # Copies are integers, so that no waste gives exactly 0.
    in_groups = np.isin(plan.groups(), plan.groups()[channels])
    copies = np.asarray(plan.carries[:, np.flatnonzero(in_groups)].sum(axis=1)).ravel()
    served = np.zeros(plan.n_flows, np.int64)
    served[place[over]] = 1
    rate = plan.rate_of_flows(interest)
    return facts | {
        "wants": len(wanted),
        "wanted_rate": float(interest.rate[wanted].sum()),
        "wants_over_channels": int(over.sum()),
        "wants_directly": int(directly.sum()),
        "wants_missed": len(missed),
        "first_missed": first_labels(interest.flows, missed, rows),
        "received": float(rate @ copies),
        "wasted": float(rate @ (copies - served)),
        "alike": context.alike,
    }


def _subscriptions(context: PlanContext, name: str, position: int, rows: int) -> dict[str, Any]:
    """Return the channels of a subscriber's subscriptions; no subscriptions if their table is not given."""
    table = context.filters
    if table is None:
        return {"n_subscriptions": None, "subscriptions": []}
    own = table.filter(pc.equal(table["subscriber"].cast(pa.string()), name)).sort_by("subscription_id")
    ids = own["subscription_id"].cast(pa.int64()).to_numpy()
    channel = channel_of(context.plan, ids, np.full(len(ids), position))
    order = np.argsort(channel < 0, kind="stable")[:rows]  # subscriptions without a channel come last
    return {
        "n_subscriptions": len(ids),
        "subscriptions": [
            {
                "subscription_id": int(ids[i]),
                "channel": None if channel[i] < 0 else int(channel[i]),
                "filter": own["filter"][i].as_py(),
            }
            for i in order.tolist()
        ],
    }


def _channel(context: PlanContext, channel: int, position: int) -> dict[str, Any]:
    """Return the flows of a channel and the rates that a listener wants and wastes of it."""
    plan, interest = context.plan, context.interest
    flows = np.flatnonzero(any_of(plan.carries, np.array([channel])))
    parent = int(plan.parent[channel])
    found: dict[str, Any] = {
        "channel": channel,
        "group": None if parent < 0 else parent,
        "flows": len(flows),
        "members": int(plan.members()[channel]),
        "rate": context.planned_rate(channel),
    }
    if interest is None:
        return found
    rate = plan.rate_of_flows(interest)[flows]
    wanted = np.isin(flows, row_of(context.wants, position))
    return found | {
        "rate": float(rate.sum()),
        "wanted_flows": int(wanted.sum()),
        "wanted": float(rate[wanted].sum()),
        "wasted": float(rate[~wanted].sum()),
    }
