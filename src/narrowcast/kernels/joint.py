"""Moves of flows and of whole sessions at their exact change of cost on both levels (tock2005, extended).

Flows are in sessions, and sessions in groups. A user is a subscriber: it joins the session of each flow that
it wants, and the group of that session. Sessions have a state as in `sessions`, with counts of the flows that
a user wants. Groups have one too, with counts of the sessions that a user listens to. A flow costs `beta` for
each user of its session and `alpha` for each user of its group: `weights` has both. A distance is the cost
that a flow adds by unwanted deliveries. Constraints on plans are in `limits`, with their own weights.
"""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from narrowcast.kernels.jit import kernel
from narrowcast.kernels.limits import allowed, burden, burdens, directly, limited
from narrowcast.kernels.sessions import away, first_least, overlaps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.kernels.limits import Limits, Numbers
    from narrowcast.kernels.sessions import Bytes, Doubles, Ints, Points, State

    Random: TypeAlias = NDArray[np.uint64]
    Weights: TypeAlias = tuple[float, float]
    #: Work space to count users of sessions and of groups, and for the cost of each group.
    Scratch: TypeAlias = tuple[Bytes, Bytes, Doubles]

#: One proposal in this many moves a whole session.
_WHOLE = 512
#: Proposals between two changes of the temperature.
_STEADY = 1024
#: Relative differences up to this are rounding.
_ROUNDING = 1e-12


@kernel
def count_groups(sessions: State, parent: Ints, groups: State, member: Numbers) -> None:
    """Recount the sessions of each group that each user listens to, and the number of groups of each user."""
    _, flag, _, theta = sessions
    count, above, size, rate = groups
    member[:] = 0
    count[:] = 0
    above[:] = 0
    size[:] = 0.0
    rate[:] = 0.0
    for s in range(len(parent)):
        rate[parent[s]] += theta[s]
    for u in range(len(flag)):
        for s in range(len(parent)):
            if flag[u, s]:
                g = parent[s]
                if count[u, g] == 0:
                    above[u, g] = 1
                    size[g] += 1
                    member[u] += 1
                count[u, g] += 1


@kernel
def take_out(
    points: Points, k: int, own: int, parent: Ints, sessions: State, groups: State, member: Numbers
) -> None:
    """Remove a flow from its session; users without another flow there leave the session and its group."""
    start, who, rate = points
    count, flag, size, theta = sessions
    gcount, gflag, gsize, gtheta = groups
    g = parent[own]
    for i in range(start[k], start[k + 1]):
        u = who[i]
        count[u, own] -= 1
        if count[u, own] == 0:
            flag[u, own] = 0
            size[own] -= 1
            gcount[u, g] -= 1
            if gcount[u, g] == 0:
                gflag[u, g] = 0
                gsize[g] -= 1
                member[u] -= 1
    theta[own] = theta[own] - rate[k] if size[own] else 0.0
    gtheta[g] = gtheta[g] - rate[k] if gsize[g] else 0.0


@kernel
def put_in(
    points: Points, k: int, to: int, parent: Ints, sessions: State, groups: State, member: Numbers
) -> None:
    """Add a flow to a session; its users join the session and its group."""
    start, who, rate = points
    count, flag, size, theta = sessions
    gcount, gflag, gsize, gtheta = groups
    g = parent[to]
    for i in range(start[k], start[k + 1]):
        u = who[i]
        if count[u, to] == 0:
            flag[u, to] = 1
            size[to] += 1
            if gcount[u, g] == 0:
                gflag[u, g] = 1
                gsize[g] += 1
                member[u] += 1
            gcount[u, g] += 1
        count[u, to] += 1
    theta[to] += rate[k]
    gtheta[g] += rate[k]


@kernel
def above_without(points: Points, k: int, own: int, group: int, sessions: State, groups: State) -> float:
    """Return the distance of a flow from its own group, computed as if the flow were not in it."""
    start, who, rate = points
    count, gcount, gsize, gtheta = sessions[0], groups[0], groups[2], groups[3]
    left = 0
    for i in range(start[k], start[k + 1]):
        left += count[who[i], own] == 1 and gcount[who[i], group] == 1
    rest, stay = gsize[group] - left, start[k + 1] - start[k] - left
    return left * (gtheta[group] - rate[k]) + (rest - stay) * rate[k] if rest else 0.0


@kernel
def out_of_group(
    points: Points, k: int, own: int, group: int, sessions: State, groups: State, leaves: Bytes
) -> None:
    """For each user of a flow, write whether it would leave the flow's group if the flow were removed."""
    start, who, _ = points
    count, gcount = sessions[0], groups[0]
    for i in range(start[k], start[k + 1]):
        leaves[i - start[k]] = count[who[i], own] == 1 and gcount[who[i], group] == 1


@kernel
def prices(
    points: Points, weights: Weights, k: int, own: int, here: float, above: float, parent: Ints,
    sessions: State, groups: State, heavy: Doubles, scratch: Scratch, near: Doubles,
) -> None:  # fmt: skip
    """Write what a flow costs in each session beyond wanted deliveries, with penalties for broken limits.

    `own` is its current session, -1 for none; `here` and `above` are its distances from that and its group.
    """
    alpha, beta = weights
    start, _, rate = points
    _, flag, size, theta = sessions
    _, gflag, gsize, gtheta = groups
    few, gfew, gnear = scratch
    d, r = start[k + 1] - start[k], rate[k]
    overlaps(points, k, flag, few, near)
    overlaps(points, k, gflag, gfew, gnear)
    for g in range(len(gnear)):
        gnear[g] = alpha * ((d - gnear[g]) * gtheta[g] + (gsize[g] - gnear[g]) * r)
    if own >= 0:
        gnear[parent[own]] = alpha * max(0.0, above)
    gnear += heavy
    for s in range(len(near)):
        near[s] = beta * ((d - near[s]) * theta[s] + (size[s] - near[s]) * r) + gnear[parent[s]]
    if own >= 0:
        near[own] = beta * max(0.0, here) + gnear[parent[own]]


@kernel
def put_at(
    points: Points, k: int, to: int, session: Ints, parent: Ints, sessions: State, groups: State,
    member: Numbers,
) -> None:  # fmt: skip
    """Move a flow from its session, if any, to another; with -1 only remove it."""
    if session[k] >= 0:
        take_out(points, k, session[k], parent, sessions, groups, member)
    if to >= 0:
        put_in(points, k, to, parent, sessions, groups, member)
    session[k] = to


@kernel
def move_flows(
    points: Points, weights: Weights, session: Ints, parent: Ints, sessions: State, groups: State,
    limits: Limits,
) -> int:  # fmt: skip
    """Move each flow once to the session where both levels cost least; return the number of moves.

    If wants may be sent directly, direct delivery is one more alternative.
    """
    start, who, rate = points
    size, gsize = sessions[2], groups[2]
    near, heavy = np.empty(len(size)), np.zeros(len(gsize))
    scratch = np.empty(len(size), np.uint8), np.empty(len(gsize), np.uint8), np.empty(len(gsize))
    member, weight, pin, anchor = limits[0], limits[3], limits[4], limits[5]
    weighed, leaves = limited(limits), np.zeros(len(member), np.uint8)
    moved = 0
    for k in range(len(session)):
        own, d = session[k], start[k + 1] - start[k]
        if own < 0 and weight[4] <= 0.0:  # remains direct
            continue
        group, here, above = -1, 0.0, 0.0
        leaves[:d] = 0
        if own >= 0:
            group = parent[own]
            here = away(points, k, own, sessions)
            above = above_without(points, k, own, group, sessions, groups)
            if weighed:
                out_of_group(points, k, own, group, sessions, groups, leaves)
        if weighed:
            burdens(limits, who[start[k] : start[k + 1]], leaves, rate[k], group, groups, heavy)
        if own >= 0 and here <= 0.0 and above <= 0.0 and heavy[group] <= 0.0:
            continue
        prices(points, weights, k, own, here, above, parent, sessions, groups, heavy, scratch, near)
        if pin[k] >= 0:
            for s in range(len(near)):
                if anchor[s] != pin[k]:
                    near[s] = np.inf
        outside = directly(limits, k, d) if weighed else np.inf
        now = near[own] if own >= 0 else outside
        to = first_least(near, own)
        least = near[to]
        if outside < least:
            to, least = -1, outside
        if to != own and least < now * (1 - _ROUNDING):
            put_at(points, k, to, session, parent, sessions, groups, member)
            moved += 1
    return moved


@kernel
def put_back(
    points: Points, weights: Weights, order: Ints, session: Ints, parent: Ints, sessions: State,
    groups: State, limits: Limits,
) -> int:  # fmt: skip
    """Put directly sent flows into sessions if that breaks no limit; return the number of these flows."""
    start, who, rate = points
    size, gsize = sessions[2], groups[2]
    near, heavy = np.empty(len(size)), np.zeros(len(gsize))
    scratch = np.empty(len(size), np.uint8), np.empty(len(gsize), np.uint8), np.empty(len(gsize))
    leaves = np.zeros(len(limits[0]), np.uint8)
    put = 0
    for k in order:
        burdens(limits, who[start[k] : start[k + 1]], leaves, rate[k], -1, groups, heavy)
        for g in range(len(heavy)):
            if heavy[g] > 0.0:
                heavy[g] = np.inf
        prices(points, weights, k, -1, 0.0, 0.0, parent, sessions, groups, heavy, scratch, near)
        to = first_least(near, -1)
        if near[to] < np.inf:
            put_at(points, k, to, session, parent, sessions, groups, limits[0])
            put += 1
    return put


@kernel
def vacate(
    points: Points, weights: Weights, some: Ints, session: Ints, parent: Ints, sessions: State,
    groups: State, limits: Limits,
) -> float:  # fmt: skip
    """Move flows out of their group, each to where it costs least; return the change of cost and penalties.

    The target is a session of another group, or none if flows may be sent directly. No flow may be pinned.
    """
    start, who, rate = points
    size, gsize = sessions[2], groups[2]
    near, heavy = np.empty(len(size)), np.zeros(len(gsize))
    scratch = np.empty(len(size), np.uint8), np.empty(len(gsize), np.uint8), np.empty(len(gsize))
    leaves = np.zeros(len(limits[0]), np.uint8)
    change = 0.0
    for k in some:
        own = session[k]
        group = parent[own]
        out_of_group(points, k, own, group, sessions, groups, leaves)
        burdens(limits, who[start[k] : start[k + 1]], leaves, rate[k], group, groups, heavy)
        here = away(points, k, own, sessions)
        above = above_without(points, k, own, group, sessions, groups)
        prices(points, weights, k, own, here, above, parent, sessions, groups, heavy, scratch, near)
        now = near[own]
        for s in range(len(near)):
            if parent[s] == group:
                near[s] = np.inf
        to, least = -1, directly(limits, k, start[k + 1] - start[k])
        best = first_least(near, -1)
        if near[best] < least:
            to, least = best, near[best]
        put_at(points, k, to, session, parent, sessions, groups, limits[0])
        change += least - now
    return change


@kernel
def put_all(
    points: Points, some: Ints, to: Ints, session: Ints, parent: Ints, sessions: State, groups: State,
    member: Numbers,
) -> None:  # fmt: skip
    """Move flows to the given sessions, -1 for none."""
    for i in range(len(some)):
        put_at(points, some[i], to[i], session, parent, sessions, groups, member)


@kernel
def rehang(
    s: int, to: int, users: Numbers, parent: Ints, rate: float, groups: State, member: Numbers
) -> None:
    """Move a session, with its users, to another group."""
    gcount, gflag, gsize, gtheta = groups
    own = parent[s]
    for u in users:
        gcount[u, own] -= 1
        if gcount[u, own] == 0:
            gflag[u, own] = 0
            gsize[own] -= 1
            member[u] -= 1
        if gcount[u, to] == 0:
            gflag[u, to] = 1
            gsize[to] += 1
            member[u] += 1
        gcount[u, to] += 1
    gtheta[own] = gtheta[own] - rate if gsize[own] else 0.0
    gtheta[to] += rate
    parent[s] = to


@kernel
def move_sessions(alpha: float, parent: Ints, sessions: State, groups: State, limits: Limits) -> int:
    """Move each session once to the group that costs least; return the number of moves."""
    _, flag, _, theta = sessions
    gcount, gflag, gsize, gtheta = groups
    member, anchor, weighed = limits[0], limits[5], limited(limits)
    heavy, leaves = np.zeros(len(gsize)), np.empty(len(flag), np.uint8)
    near, moved = np.empty(len(gsize)), 0
    for s in range(len(parent)):
        if anchor[s] >= 0:
            continue
        users = np.flatnonzero(flag[:, s]).astype(np.int32)
        own, r, d = parent[s], theta[s], len(users)
        left = 0
        near[:] = 0.0
        for i in range(d):
            u = users[i]
            leaves[i] = gcount[u, own] == 1
            left += leaves[i]
            for g in range(len(near)):
                near[g] += gflag[u, g]
        if weighed:
            burdens(limits, users, leaves, r, own, groups, heavy)
        for g in range(len(near)):
            near[g] = alpha * ((d - near[g]) * gtheta[g] + (gsize[g] - near[g]) * r)
        rest = gsize[own] - left
        near[own] = alpha * max(0.0, left * (gtheta[own] - r) + (rest - (d - left)) * r) if rest else 0.0
        near += heavy
        to = first_least(near, own)
        if to != own and near[to] < near[own] * (1 - _ROUNDING):
            rehang(s, to, users, parent, r, groups, member)
            moved += 1
    return moved


@kernel
def draw(random: Random) -> int:
    """Return the next 64-bit random number (xorshift*), equal on all platforms."""
    x = random[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    random[0] = x
    found: int = x * np.uint64(2685821657736338717)
    return found


@kernel
def one_of(random: Random, n: int) -> int:
    """Return a random number from 0 to n - 1."""
    found: int = np.int64((draw(random) >> np.uint64(33)) % np.uint64(n))  # type: ignore[assignment]
    return found


@kernel
def accepted(random: Random, change: float, heat: float) -> bool:
    """Return whether a change of cost is accepted: always if lower, else at random by the heat."""
    return change <= 0.0 or bool((draw(random) >> np.uint64(11)) * 2.0**-53 < exp(-change / heat))


@kernel
def anneal(
    points: Points, weights: Weights, wanted: tuple[Ints, Numbers], session: Ints, parent: Ints,
    sessions: State, groups: State, random: Random, proposals: int, heats: Weights, limits: Limits,
) -> float:  # fmt: skip
    """Move flows and sessions by simulated annealing; return the change of cost and penalties.

    Half of the proposed targets are sessions that a user of the flow is in already: `wanted` has the flows of
    each user in compressed rows. Temperatures fall from the first of `heats` to the second in equal steps.
    """
    alpha, beta = weights
    start, who, rate = points
    ustart, flows = wanted
    count, flag, size, theta = sessions
    gcount, gflag, gsize, gtheta = groups
    member, anchor = limits[0], limits[5]
    weighed, leaves = limited(limits), np.empty(len(flag), np.uint8)
    change, heat = 0.0, heats[0]
    fall = (heats[1] / heats[0]) ** (_STEADY / max(1, proposals))
    for step in range(proposals):
        if step % _STEADY == 0 and step:
            heat *= fall
        if step % _WHOLE == 0:
            s, to = one_of(random, len(parent)), one_of(random, len(gsize))
            own, r = parent[s], theta[s]
            if to == own or anchor[s] >= 0:
                continue
            users = np.flatnonzero(flag[:, s]).astype(np.int32)
            left, seen, d = 0, 0, len(users)
            for i in range(d):
                u = users[i]
                leaves[i] = gcount[u, own] == 1
                left += leaves[i]
                seen += gflag[u, to]
            rest = gsize[own] - left
            was = left * (gtheta[own] - r) + (rest - (d - left)) * r if rest else 0.0
            delta = alpha * ((d - seen) * gtheta[to] + (gsize[to] - seen) * r - was)
            if weighed:
                delta += burden(limits, users, leaves, r, own, to, groups)
                delta -= burden(limits, users, leaves, r, own, own, groups)
            if accepted(random, delta, heat):
                rehang(s, to, users, parent, r, groups, member)
                change += delta
            continue
        k = one_of(random, len(session))
        if step & 1:
            u = who[start[k] + one_of(random, start[k + 1] - start[k])]
            to = session[flows[ustart[u] + one_of(random, ustart[u + 1] - ustart[u])]]
        else:
            to = one_of(random, len(size))
        own = session[k]
        if to == own or own < 0 or to < 0 or not allowed(limits, k, to):
            continue
        d, r, group, other = start[k + 1] - start[k], rate[k], parent[own], parent[to]
        left, gleft, seen, gseen = 0, 0, 0, 0
        for i in range(start[k], start[k + 1]):
            u = who[i]
            if count[u, own] == 1:
                left += 1
                gleft += gcount[u, group] == 1
            seen += flag[u, to]
            gseen += gflag[u, other]
        rest = size[own] - left
        was = left * (theta[own] - r) + (rest - (d - left)) * r if rest else 0.0
        delta = beta * ((d - seen) * theta[to] + (size[to] - seen) * r - was)
        if group != other:
            rest = gsize[group] - gleft
            was = gleft * (gtheta[group] - r) + (rest - (d - gleft)) * r if rest else 0.0
            delta += alpha * ((d - gseen) * gtheta[other] + (gsize[other] - gseen) * r - was)
            if weighed:
                users = who[start[k] : start[k + 1]]
                out_of_group(points, k, own, group, sessions, groups, leaves)
                delta += burden(limits, users, leaves, r, group, other, groups)
                delta -= burden(limits, users, leaves, r, group, group, groups)
        if accepted(random, delta, heat):
            take_out(points, k, own, parent, sessions, groups, member)
            put_in(points, k, to, parent, sessions, groups, member)
            session[k] = to
            change += delta
    return change
