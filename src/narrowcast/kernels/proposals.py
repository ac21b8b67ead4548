"""Moves of flows, proposed on a frozen state and verified on the current one (tock2005).

Flows are in sessions, and sessions in groups; a user is a subscriber. Workers see sessions and groups as they
were when a batch began. A proposal may be outdated when it is examined, so each move is priced again, in time
linear in the flow's users, and made only if it still lowers the cost. A flow without a session (-1) goes
where it costs least.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.kernels.jit import kernel
from narrowcast.kernels.joint import above_without, prices, put_in, take_out
from narrowcast.kernels.sessions import away, first_least

if TYPE_CHECKING:
    from narrowcast.kernels.joint import Weights
    from narrowcast.kernels.limits import Numbers
    from narrowcast.kernels.sessions import Ints, Points, State

#: Relative differences up to this are rounding.
_ROUNDING = 1e-12


@kernel
def propose(
    points: Points, weights: Weights, own: Numbers, parent: Ints, sessions: State, groups: State, out: Numbers
) -> int:
    """Find sessions where each flow would cost less than in its own; return the number of flows with any.

    `out` has a row for each flow: sessions, the best first, padded with -1. Of counts it matters only whether
    they are 0, 1 or more.
    """
    alpha, beta = weights
    n_sessions, n_groups = len(sessions[2]), len(groups[2])
    near, heavy = np.empty(n_sessions), np.zeros(n_groups)
    scratch = np.empty(n_sessions, np.uint8), np.empty(n_groups, np.uint8), np.empty(n_groups)
    out[:] = -1
    found = 0
    for k in range(len(own)):
        s, now, here, above = own[k], np.inf, 0.0, 0.0
        if s >= 0:
            here = away(points, k, s, sessions)
            above = above_without(points, k, s, parent[s], sessions, groups)
            now = beta * max(0.0, here) + alpha * max(0.0, above)
            if now <= 0.0:
                continue
        prices(points, weights, k, s, here, above, parent, sessions, groups, heavy, scratch, near)
        if s >= 0:
            near[s] = np.inf
        for i in range(out.shape[1]):
            to = first_least(near, -1)
            if not near[to] < now * (1 - _ROUNDING):
                break
            out[k, i] = to
            near[to] = np.inf
        found += out[k, 0] >= 0
    return found


@kernel
def distance(points: Points, k: int, to: int, state: State) -> float:
    """Return the cost of unwanted deliveries that a flow would add to a session or group without it."""
    start, who, rate = points
    _, flag, size, theta = state
    seen, d = 0, start[k + 1] - start[k]
    for i in range(start[k], start[k + 1]):
        seen += flag[who[i], to]
    found: float = (d - seen) * theta[to] + (size[to] - seen) * rate[k]
    return found


@kernel
def accept(
    points: Points, weights: Weights, order: Ints, flow: Numbers, proposed: Numbers, session: Numbers,
    parent: Ints, sessions: State, groups: State, member: Numbers,
) -> int:  # fmt: skip
    """Make the best move of each flow if it still lowers the cost; return the number of moves.

    Proposals are rows of `points`, `flow` and `proposed`, in the given order; `session` has the session of
    every flow, -1 for none, and `member` the number of groups of each user.
    """
    alpha, beta = weights
    made = 0
    for k in order:
        own, best, above, least = session[flow[k]], -1, 0.0, np.inf
        if own >= 0:
            above = alpha * max(0.0, above_without(points, k, own, parent[own], sessions, groups))
            least = beta * max(0.0, away(points, k, own, sessions)) + above
        for i in range(proposed.shape[1]):
            to = proposed[k, i]
            if to < 0:
                break
            price = beta * distance(points, k, to, sessions)
            if own >= 0 and parent[to] == parent[own]:
                price += above
            else:
                price += alpha * distance(points, k, parent[to], groups)
            if to != own and price < least * (1 - _ROUNDING):
                best, least = to, price
        if best < 0:
            continue
        if own >= 0:
            take_out(points, k, own, parent, sessions, groups, member)
        put_in(points, k, best, parent, sessions, groups, member)
        session[flow[k]] = best
        made += 1
    return made
