"""Explanation of a channel: its flows, its members and the deliveries that it wastes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.report.explain.plan_context import any_of, first_labels

if TYPE_CHECKING:
    from narrowcast.model.relation import Positions
    from narrowcast.report.explain.plan_context import PlanContext


def explain_channel(context: PlanContext, channel: int, *, rows: int = 5) -> dict[str, Any]:
    """Return the flows and members of a channel and, if the interest is known, its wasted deliveries.

    A message in a session reaches every member of its group. It is wasted on members that do not listen to
    the session and on listeners that do not want the flow. Waste is in messages per second, or in the unit
    of the rates of the interest.

    Parameters
    ----------
    context
        The plan, and tables of filters, events or interests.
    channel
        Number of the channel, from 0; a group is explained together with all its sessions.
    rows
        Largest number of flows and members to list, the heaviest first, and of subscriptions, if the plan
        assigns each to a channel.

    Returns
    -------
    dict[str, Any]
        Values that can be written as JSON: numbers, labels and lists of them.

    Raises
    ------
    ParameterError
        When the plan has no channel of this number.
    """
    plan = context.plan
    if not 0 <= channel < plan.n_channels:
        limit = f"from 0 to {plan.n_channels - 1}" if plan.n_channels else "absent: the plan has no channels"
        raise ParameterError(parameter="channel", value=channel, limit=limit)
    sessions = np.flatnonzero(plan.parent == channel)
    own = sessions if len(sessions) else np.array([channel])
    flows, members = (np.flatnonzero(any_of(pairs, own)) for pairs in (plan.carries, plan.listens))
    parent = int(plan.parent[channel])
    facts: dict[str, Any] = {
        "channel": channel,
        "parent": None if parent < 0 else parent,
        "sessions": sessions.tolist(),
        "flows": len(flows),
        "members": len(members),
        "first_members": first_labels(plan.subscribers, members, rows),
        "rate": context.planned_rate(channel),
        "heaviest_flows": [context.flow(int(flow)) for flow in flows[:rows]],
    }
    if plan.subscriptions is not None:
        ids = plan.subscriptions.subscription_id[np.isin(plan.subscriptions.channel, own)]
        facts |= {"subscriptions": len(ids), "first_subscriptions": ids[:rows].tolist()}
    return facts if context.interest is None else facts | _waste(context, channel, own, flows, rows)


def _waste(context: PlanContext, channel: int, own: Positions, flows: Positions, rows: int) -> dict[str, Any]:
    """Return the deliveries of some sessions of a channel's group, and how many of them are wasted.

    Parameters
    ----------
    own
        The sessions to count; the channel itself if it has none.
    flows
        The flows that they carry.
    """
    plan, interest = context.plan, context.interest
    assert interest is not None
    group = plan.groups()[channel]
    members = any_of(plan.listens, np.flatnonzero(plan.groups() == group))
    rate = plan.rate_of_flows(interest)
    #: Per flow: copies that each member receives, and number of copies that a listener wants.
    copies = np.zeros(plan.n_flows)
    wanted_by_flow, wanted_by_member = np.zeros(plan.n_flows), np.zeros(plan.n_subscribers)
    for session in own.tolist():
        carries, listens = (any_of(pairs, np.array([session])) for pairs in (plan.carries, plan.listens))
        copies += carries
        wanted_by_flow += carries * np.asarray(context.wants.T @ listens.astype(np.float64))
        wanted_by_member += listens * np.asarray(context.wants @ (rate * carries))
    per_flow = rate * (copies * members.sum() - wanted_by_flow)
    per_member = np.where(members, np.maximum(rate @ copies - wanted_by_member, 0.0), 0.0)
    heaviest = flows[np.argsort(-rate[flows], kind="stable")][:rows]
    reached = float(rate @ copies) * int(members.sum())
    wasted = float(per_flow.sum())
    found: dict[str, Any] = {
        "rate": float(plan.rates(interest)[channel]),
        "delivered": reached,
        "wasted": wasted,
        "wasted_share": wasted / reached if reached else None,
        "alike": context.alike,
        "heaviest_flows": [
            context.flow(int(flow))
            | {
                "rate": float(rate[flow]),
                "wanted_by": int(wanted_by_flow[flow]),
                "wasted": float(per_flow[flow]),
            }
            for flow in heaviest
        ],
        "most_wasted_flow": None,
        "most_wasted_member": None,
    }
    if wasted > 0:
        flow, member = int(np.argmax(per_flow)), int(np.argmax(per_member))
        found["most_wasted_flow"] = context.flow(flow) | {
            "wanted_by": int(wanted_by_flow[flow]),
            "wasted": float(per_flow[flow]),
        }
        found["most_wasted_member"] = {
            "subscriber": plan.subscribers[member].as_py(),
            "wanted": float(wanted_by_member[member]),
            "wasted": float(per_member[member]),
        }
    return found
