"""Moves of flows and of whole sessions at what exactly they change on both levels (tock2005, and beyond).

Sessions have a state as in `sessions`, with counts of the flows that a user wants. Groups have theirs, with
counts of the sessions that a user listens to. A flow costs `beta` for each user of its session and `alpha`
for each of its group: `weights` has both.
"""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from narrowcast.kernels.jit import kernel
from narrowcast.kernels.sessions import away, first_least, overlaps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.kernels.sessions import Ints, Points, State

    Numbers: TypeAlias = NDArray[np.int32]
    Random: TypeAlias = NDArray[np.uint64]
    Weights: TypeAlias = tuple[float, float]

#: One in so many proposals moves a whole session.
_WHOLE = 512
#: Proposals between which the temperature stays.
_STEADY = 1024
#: Less by no more than this share is less by rounding.
_ROUNDING = 1e-12


@kernel
def count_groups(sessions: State, parent: Ints, groups: State) -> None:
    """Count who listens to which sessions of each group, from nothing."""
    _, flag, _, theta = sessions
    count, above, size, rate = groups
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
                count[u, g] += 1


@kernel
def move(points: Points, k: int, own: int, to: int, parent: Ints, sessions: State, groups: State) -> None:
    """Move a flow from one session to another, with all who leave and join sessions and groups for it."""
    start, who, rate = points
    count, flag, size, theta = sessions
    gcount, gflag, gsize, gtheta = groups
    group, other = parent[own], parent[to]
    for i in range(start[k], start[k + 1]):
        u = who[i]
        count[u, own] -= 1
        if count[u, own] == 0:
            flag[u, own] = 0
            size[own] -= 1
            gcount[u, group] -= 1
            if gcount[u, group] == 0:
                gflag[u, group] = 0
                gsize[group] -= 1
        if count[u, to] == 0:
            flag[u, to] = 1
            size[to] += 1
            if gcount[u, other] == 0:
                gflag[u, other] = 1
                gsize[other] += 1
            gcount[u, other] += 1
        count[u, to] += 1
    theta[own] = theta[own] - rate[k] if size[own] else 0.0
    theta[to] += rate[k]
    gtheta[group] = gtheta[group] - rate[k] if gsize[group] else 0.0
    gtheta[other] += rate[k]


@kernel
def above_without(points: Points, k: int, own: int, group: int, sessions: State, groups: State) -> float:
    """Return the distance of a flow from its own group without it."""
    start, who, rate = points
    count, gcount, gsize, gtheta = sessions[0], groups[0], groups[2], groups[3]
    left = 0
    for i in range(start[k], start[k + 1]):
        left += count[who[i], own] == 1 and gcount[who[i], group] == 1
    rest, stay = gsize[group] - left, start[k + 1] - start[k] - left
    return left * (gtheta[group] - rate[k]) + (rest - stay) * rate[k] if rest else 0.0


@kernel
def move_flows(
    points: Points, weights: Weights, session: Ints, parent: Ints, sessions: State, groups: State
) -> int:
    """Move each flow once to the session where both levels cost least; return how many moved."""
    alpha, beta = weights
    start, _, rate = points
    _, flag, size, theta = sessions
    _, gflag, gsize, gtheta = groups
    few, near = np.empty(len(size), np.uint8), np.empty(len(size))
    gfew, gnear = np.empty(len(gsize), np.uint8), np.empty(len(gsize))
    moved = 0
    for k in range(len(session)):
        own, d, r = session[k], start[k + 1] - start[k], rate[k]
        here = away(points, k, own, sessions)
        above = above_without(points, k, own, parent[own], sessions, groups)
        if here <= 0.0 and above <= 0.0:
            continue
        overlaps(points, k, flag, few, near)
        overlaps(points, k, gflag, gfew, gnear)
        for g in range(len(gnear)):
            gnear[g] = alpha * ((d - gnear[g]) * gtheta[g] + (gsize[g] - gnear[g]) * r)
        gnear[parent[own]] = alpha * above
        for s in range(len(near)):
            near[s] = beta * ((d - near[s]) * theta[s] + (size[s] - near[s]) * r) + gnear[parent[s]]
        near[own] = beta * here + alpha * above
        to = first_least(near, own)
        if to != own and near[to] < near[own] * (1 - _ROUNDING):
            move(points, k, own, to, parent, sessions, groups)
            session[k] = to
            moved += 1
    return moved


@kernel
def rehang(s: int, to: int, users: Numbers, parent: Ints, rate: float, groups: State) -> None:
    """Move a session, with those who listen to it, to another group."""
    gcount, gflag, gsize, gtheta = groups
    own = parent[s]
    for u in users:
        gcount[u, own] -= 1
        if gcount[u, own] == 0:
            gflag[u, own] = 0
            gsize[own] -= 1
        if gcount[u, to] == 0:
            gflag[u, to] = 1
            gsize[to] += 1
        gcount[u, to] += 1
    gtheta[own] = gtheta[own] - rate if gsize[own] else 0.0
    gtheta[to] += rate
    parent[s] = to


@kernel
def move_sessions(parent: Ints, sessions: State, groups: State) -> int:
    """Move each session once to the group that costs least; return how many moved."""
    _, flag, _, theta = sessions
    gcount, gflag, gsize, gtheta = groups
    near, moved = np.empty(len(gsize)), 0
    for s in range(len(parent)):
        users = np.flatnonzero(flag[:, s]).astype(np.int32)
        own, r, d = parent[s], theta[s], len(users)
        left = 0
        near[:] = 0.0
        for u in users:
            left += gcount[u, own] == 1
            for g in range(len(near)):
                near[g] += gflag[u, g]
        for g in range(len(near)):
            near[g] = (d - near[g]) * gtheta[g] + (gsize[g] - near[g]) * r
        rest = gsize[own] - left
        near[own] = max(0.0, left * (gtheta[own] - r) + (rest - (d - left)) * r) if rest else 0.0
        to = first_least(near, own)
        if to != own and near[to] < near[own] * (1 - _ROUNDING):
            rehang(s, to, users, parent, r, groups)
            moved += 1
    return moved


@kernel
def draw(random: Random) -> int:
    """Return the next random number of 64 bits (xorshift*), the same everywhere."""
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
    """Return whether a change of the cost is taken: always down, and up the less the colder it is."""
    return change <= 0.0 or bool((draw(random) >> np.uint64(11)) * 2.0**-53 < exp(-change / heat))


@kernel
def anneal(
    points: Points, weights: Weights, wanted: tuple[Ints, Numbers], session: Ints, parent: Ints,
    sessions: State, groups: State, random: Random, proposals: int, heats: Weights,
) -> float:  # fmt: skip
    """Move flows and sessions at random, uphill too, less and less so; return the change of the cost.

    Half of the proposals are sessions that somebody who wants the flow is in already: `wanted` has the flows
    of each user in compressed rows. Temperatures fall from the first of `heats` to the second in equal steps.
    """
    alpha, beta = weights
    start, who, rate = points
    ustart, flows = wanted
    count, flag, size, theta = sessions
    gcount, gflag, gsize, gtheta = groups
    change, heat = 0.0, heats[0]
    fall = (heats[1] / heats[0]) ** (_STEADY / max(1, proposals))
    for step in range(proposals):
        if step % _STEADY == 0 and step:
            heat *= fall
        if step % _WHOLE == 0:
            s, to = one_of(random, len(parent)), one_of(random, len(gsize))
            own, r = parent[s], theta[s]
            if to == own:
                continue
            users = np.flatnonzero(flag[:, s]).astype(np.int32)
            left, seen, d = 0, 0, len(users)
            for u in users:
                left += gcount[u, own] == 1
                seen += gflag[u, to]
            rest = gsize[own] - left
            was = left * (gtheta[own] - r) + (rest - (d - left)) * r if rest else 0.0
            delta = alpha * ((d - seen) * gtheta[to] + (gsize[to] - seen) * r - was)
            if accepted(random, delta, heat):
                rehang(s, to, users, parent, r, groups)
                change += delta
            continue
        k = one_of(random, len(session))
        if step & 1:
            u = who[start[k] + one_of(random, start[k + 1] - start[k])]
            to = session[flows[ustart[u] + one_of(random, ustart[u + 1] - ustart[u])]]
        else:
            to = one_of(random, len(size))
        own = session[k]
        if to == own:
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
        if accepted(random, delta, heat):
            move(points, k, own, to, parent, sessions, groups)
            session[k] = to
            change += delta
    return change
