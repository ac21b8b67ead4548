"""Why a subscriber gets what it gets: the channels it listens to, and what of them it wants."""

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


def explain_subscriber(known: PlanContext, name: str, *, rows: int = 5) -> dict[str, Any]:
    """Return what a plan brings to a subscriber, and with an interest what of that it wants.

    Of a plan that puts subscriptions into channels, and with their table, it also says which of them is in
    which channel.

    A message in a session reaches every member of its group. What is received in vain counts as waste, and
    so does a second copy: the waste of all subscribers together is the cost `waste`.

    Parameters
    ----------
    known
        The plan, and what is known beside it.
    name
        The subscriber, as text whatever the type of the plan's labels.
    rows
        How many flows, and subscriptions, to name.

    Raises
    ------
    ParameterError
        When neither the plan nor the interest knows the subscriber.
    """
    plan, interest = known.plan, known.interest
    who = int(pc.index(plan.subscribers.cast(pa.string()), name).as_py())
    wanting = -1
    if interest is not None:
        wanting = int(pc.index(interest.subscribers.cast(pa.string()), name).as_py())
    if who == wanting == -1:
        place_of("subscriber", name, plan.subscribers)
    channels, alone = row_of(plan.listens, who), row_of(plan.unicast, who)
    carried = np.flatnonzero(any_of(plan.carries, channels))
    facts: dict[str, Any] = {
        "subscriber": name,
        "in_plan": who >= 0,
        "flows_over_channels": len(carried),
        "flows_directly": len(alone),
        "first_directly": first_labels(plan.flows, alone, rows),
        "channels": [_channel(known, channel, who) for channel in channels.tolist()],
    }
    if plan.subscriptions is not None:
        facts |= _subscriptions(known, name, who, rows)
    if interest is None:
        return facts
    wanted = row_of(interest.wants, wanting)
    place = positions("flow", interest.flows, plan.flows)[wanted]
    over = np.isin(place, carried)
    directly = np.isin(place, alone) & ~over
    missed = wanted[~over & ~directly]
    # Copies are whole numbers, so that without waste it is exactly 0.
    inside = np.isin(plan.groups(), plan.groups()[channels])
    copies = np.asarray(plan.carries[:, np.flatnonzero(inside)].sum(axis=1)).ravel()
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
        "alike": known.alike,
    }


def _subscriptions(known: PlanContext, name: str, who: int, rows: int) -> dict[str, Any]:
    """Return the channels of a subscriber's subscriptions; none where nobody says which they are."""
    table = known.filters
    if table is None:
        return {"n_subscriptions": None, "subscriptions": []}
    own = table.filter(pc.equal(table["subscriber"].cast(pa.string()), name)).sort_by("subscription_id")
    ids = own["subscription_id"].cast(pa.int64()).to_numpy()
    channel = channel_of(known.plan, ids, np.full(len(ids), who))
    order = np.argsort(channel < 0, kind="stable")[:rows]  # those that are in none come last
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


def _channel(known: PlanContext, channel: int, who: int) -> dict[str, Any]:
    """Return what a channel brings to a listener."""
    plan, interest = known.plan, known.interest
    flows = np.flatnonzero(any_of(plan.carries, np.array([channel])))
    parent = int(plan.parent[channel])
    found: dict[str, Any] = {
        "channel": channel,
        "group": None if parent < 0 else parent,
        "flows": len(flows),
        "members": int(plan.members()[channel]),
        "rate": known.said_rate(channel),
    }
    if interest is None:
        return found
    rate = plan.rate_of_flows(interest)[flows]
    wanted = np.isin(flows, row_of(known.wants, who))
    return found | {
        "rate": float(rate.sum()),
        "wanted_flows": int(wanted.sum()),
        "wanted": float(rate[wanted].sum()),
        "wasted": float(rate[~wanted].sum()),
    }
