"""Why a channel is as it is: what shares it, who listens, and what it wastes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.report.explain.plan_context import any_of, first_labels

if TYPE_CHECKING:
    from narrowcast.model.relation import Positions
    from narrowcast.report.explain.plan_context import PlanContext


def explain_channel(known: PlanContext, channel: int, *, rows: int = 5) -> dict[str, Any]:
    """Return what a plan says of a channel, and with an interest what it wastes on whom.

    A message in a session reaches every member of its group: whoever does not listen to it, or does and does
    not want the flow, gets it in vain. What is wasted on a flow or a member are messages a second, or as many
    as the rates of the interest count.

    Parameters
    ----------
    known
        The plan, and what is known beside it.
    channel
        Its number; for a group, all of its sessions are told of together.
    rows
        How many flows and members to name, the heaviest first, and how many subscriptions, where the plan has
        each in a channel.

    Raises
    ------
    ParameterError
        When there is no such channel.
    """
    plan = known.plan
    if not 0 <= channel < plan.n_channels:
        there = f"they are 0 to {plan.n_channels - 1}" if plan.n_channels else "the plan has none"
        raise ParameterError(f"there is no channel {channel}; {there}")
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
        "rate": known.said_rate(channel),
        "heaviest_flows": [known.flow(int(flow)) for flow in flows[:rows]],
    }
    if plan.subscriptions is not None:
        inside = plan.subscriptions.subscription_id[np.isin(plan.subscriptions.channel, own)]
        facts |= {"subscriptions": len(inside), "first_subscriptions": inside[:rows].tolist()}
    return facts if known.interest is None else facts | _waste(known, channel, own, flows, rows)


def _waste(known: PlanContext, channel: int, own: Positions, flows: Positions, rows: int) -> dict[str, Any]:
    """Return what the channel brings to whom, and how much of it in vain."""
    plan, interest = known.plan, known.interest
    assert interest is not None
    group = plan.groups()[channel]
    inside = any_of(plan.listens, np.flatnonzero(plan.groups() == group))
    rate = plan.rate_of_flows(interest)
    #: For each flow how often it comes to each member, and how often a listener wants what comes.
    copies = np.zeros(plan.n_flows)
    wanted_by_flow, wanted_by_member = np.zeros(plan.n_flows), np.zeros(plan.n_subscribers)
    for session in own.tolist():
        carries, listens = (any_of(pairs, np.array([session])) for pairs in (plan.carries, plan.listens))
        copies += carries
        wanted_by_flow += carries * np.asarray(known.wants.T @ listens.astype(np.float64))
        wanted_by_member += listens * np.asarray(known.wants @ (rate * carries))
    per_flow = rate * (copies * inside.sum() - wanted_by_flow)
    per_member = np.where(inside, np.maximum(rate @ copies - wanted_by_member, 0.0), 0.0)
    heaviest = flows[np.argsort(-rate[flows], kind="stable")][:rows]
    reached = float(rate @ copies) * int(inside.sum())
    wasted = float(per_flow.sum())
    found: dict[str, Any] = {
        "rate": float(plan.rates(interest)[channel]),
        "delivered": reached,
        "wasted": wasted,
        "wasted_share": wasted / reached if reached else None,
        "alike": known.alike,
        "heaviest_flows": [
            known.flow(int(flow))
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
        found["most_wasted_flow"] = known.flow(flow) | {
            "wanted_by": int(wanted_by_flow[flow]),
            "wasted": float(per_flow[flow]),
        }
        found["most_wasted_member"] = {
            "subscriber": plan.subscribers[member].as_py(),
            "wanted": float(wanted_by_member[member]),
            "wasted": float(per_member[member]),
        }
    return found
