"""Limits on plans of sessions in groups, as penalties for breaking them (tock2005, extended).

A user is a subscriber. A point is what moves between sessions: a flow, or several with the same users. Users
in too many groups, groups with too many members or too high a rate, and users in another group than before
are penalised by `weight`: in this order per excess group, per excess member, per excess share of the rate,
per group joined or left, and per wanted flow of a user that is sent directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from narrowcast.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.kernels.sessions import Bytes, Doubles, Ints, State

    Numbers: TypeAlias = NDArray[np.int32]
    #: The number of groups of each user, and its groups before (users by groups, or empty); limits on the
    #: groups of a user, the members of a group and the rate of a group; penalties for breaking these, for a
    #: change and for a want that is sent directly (0: not allowed); the group that each point, and each
    #: session, must be in, -1 for any; and the number of wants of each point.
    Limits: TypeAlias = tuple[Numbers, Bytes, Doubles, Doubles, Ints, Ints, Doubles]


@kernel
def limited(limits: Limits) -> bool:
    """Return whether any limit has a penalty."""
    return bool(limits[3].any())


@kernel
def allowed(limits: Limits, k: int, to: int) -> bool:
    """Return whether a point may be moved to a session: its pinned group, if any, must be that session's."""
    pin, anchor = limits[4], limits[5]
    return bool(pin[k] < 0 or anchor[to] == pin[k])


@kernel
def directly(limits: Limits, k: int, d: int) -> float:
    """Return the penalty for sending a flow with d users directly, including the groups that they leave."""
    weight, pin, wants = limits[3], limits[4], limits[6]
    return weight[4] * wants[k] + weight[3] * d if weight[4] > 0.0 and pin[k] < 0 else np.inf


@kernel
def over(value: float, most: float, unit: float) -> float:
    """Return the excess of a value over its limit in units, plus one if there is any excess; else 0."""
    return 1.0 + (value - most) / unit if value > most else 0.0


@kernel
def burden(
    limits: Limits, users: Numbers, leaves: Bytes, rate: float, own: int, g: int, groups: State
) -> float:
    """Return the penalty when users with a rate join a group after leaving their own.

    Parameters
    ----------
    users, rate
        Users that move together, and their rate: those that want a flow, or listen to a session.
    leaves
        For each user whether it is then out of its own group.
    own, g
        The old and the new group; they can be the same.
    """
    member, before, most, weight = limits[0], limits[1], limits[2], limits[3]
    flag, size, theta = groups[1], groups[2], groups[3]
    joins, gone, full, strange = 0, 0, 0, 0
    for i in range(len(users)):
        u = users[i]
        gone += leaves[i]
        if leaves[i] if g == own else not flag[u, g]:
            joins += 1
            full += member[u] - leaves[i] >= most[0]
            if weight[3] > 0.0:
                strange += 1 if before[u, g] else -1
    found: float = weight[0] * full + weight[3] * (len(users) - strange)
    there, sent = size[g], theta[g]
    if g == own:
        there, sent = there - gone, sent - rate
    found += weight[1] * (over(there + joins, most[1], 1.0) - over(there, most[1], 1.0))
    found += weight[2] * (over(sent + rate, most[2], most[2]) - over(sent, most[2], most[2]))
    return max(0.0, found)


@kernel
def burdens(
    limits: Limits, users: Numbers, leaves: Bytes, rate: float, own: int, groups: State, out: Doubles
) -> None:
    """Write the penalty for each group if the users joined it after leaving their own."""
    for g in range(len(out)):
        out[g] = burden(limits, users, leaves, rate, own, g, groups)


@kernel
def broken(limits: Limits, groups: State) -> tuple[float, float, float, float]:
    """Return by how much each limit is exceeded in total, and how many groups were joined and left."""
    member, before, most = limits[0], limits[1], limits[2]
    _, flag, size, theta = groups
    memberships, members, rates, changes = 0.0, 0.0, 0.0, 0.0
    for u in range(len(member)):
        memberships += max(0.0, member[u] - most[0])
        if len(before):
            for g in range(len(size)):
                changes += flag[u, g] != before[u, g]
    for g in range(len(size)):
        members += max(0.0, size[g] - most[1])
        # Rates are sums in any order: an excess by rounding does not count.
        rates += theta[g] - most[2] if theta[g] > most[2] * (1 + 1e-9) else 0.0
    return memberships, members, rates, changes
