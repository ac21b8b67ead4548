"""Subscribers that choose among overlapping clusters, and clusters that choose their flows (tamara2007).

Each subscriber is in some clusters of flows, and has a direct subscription to each wanted flow that none of
them contains. Subscribers that want the same flows are of one kind, and choose alike.

`rows` has the flows of each kind in compressed rows (start of each row, flows) and the number of subscribers
of each kind. `growths` has the costs, for 0, 1, 2, ... members, of upkeep, of tying flows and of sending to
members; the cost of forwarding; and the frequency of each flow. `lists` has the clusters of each flow in
compressed rows. In a state, `choice` has the clusters of each kind, at the start of its row, with their
number in `chosen`; `count` the number of these that contain each wanted flow; `direct` the number of direct
subscribers of each flow; `has` the flows of each cluster, `size` its members, `flows` their number, and
`rate` their total frequency. A change is priced at the current sizes, one kind after the other, so no choice
raises the cost, whatever its growth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from narrowcast.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes: TypeAlias = NDArray[np.uint8]
    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]
    Numbers: TypeAlias = NDArray[np.int32]
    #: Start of each subscriber's flows, the flows, and the number of subscribers with equal interest.
    Rows: TypeAlias = tuple[Ints, Numbers, Ints]
    #: Costs of upkeep, of tying and of sending by number; cost of forwarding; frequency of each flow.
    Growths: TypeAlias = tuple[Doubles, Doubles, Doubles, float, Doubles]
    #: Start of the clusters of each flow, and the clusters.
    Lists: TypeAlias = tuple[Ints, Numbers]
    #: choice, chosen, count; direct; has, size, flows, rate: see above.
    State: TypeAlias = tuple[Numbers, Numbers, Numbers, Ints, Bytes, Ints, Ints, Doubles]
    #: Work space for one subscriber: prices of wanted flows; gains of clusters; clusters with any of these
    #: flows; status of clusters (0 unknown, 1 gain known, 2 chosen); chosen clusters.
    WorkSpace: TypeAlias = tuple[Doubles, Doubles, Numbers, Bytes, Numbers]

#: Differences up to this are rounding.
_ROUNDING = 1e-9


@kernel
def clusters_of_flows(has: Bytes, start: Ints) -> Numbers:
    """Return the clusters of each flow in turn, and write the start of each flow's clusters."""
    n_clusters, n_flows = has.shape
    start[:] = 0
    for c in range(n_clusters):
        for t in range(n_flows):
            start[t + 1] += has[c, t]
    for t in range(n_flows):
        start[t + 1] += start[t]
    found, at = np.empty(start[n_flows], np.int32), start[:-1].copy()
    for c in range(n_clusters):
        for t in range(n_flows):
            if has[c, t]:
                found[at[t]] = c
                at[t] += 1
    return found


@kernel
def members_of(rows: Rows, state: State, start: Ints) -> Numbers:
    """Return the subscribers of each cluster in turn, and write the start of each cluster's subscribers."""
    begin, choice, chosen = rows[0], state[0], state[1]
    n_clusters = len(start) - 1
    start[:] = 0
    for u in range(len(chosen)):
        for i in range(begin[u], begin[u] + chosen[u]):
            start[choice[i] + 1] += 1
    for c in range(n_clusters):
        start[c + 1] += start[c]
    found, at = np.empty(start[n_clusters], np.int32), start[:-1].copy()
    for u in range(len(chosen)):
        for i in range(begin[u], begin[u] + chosen[u]):
            found[at[choice[i]]] = u
            at[choice[i]] += 1
    return found


@kernel
def total(growths: Growths, state: State) -> float:
    """Return the overall cost of a state: of flows, direct subscriptions, and clusters with members."""
    keep, tie, send, hand, frequency = growths
    direct, size, flows, rate = state[3], state[5], state[6], state[7]
    found = 0.0
    for t in range(len(direct)):
        found += keep[direct[t]] + frequency[t] * (hand + send[direct[t]])
    for c in range(len(size)):
        if size[c] > 0:
            found += keep[size[c]] + tie[flows[c]] + rate[c] * (hand + send[size[c]])
    return found


@kernel
def enter(rows: Rows, u: int, c: int, state: State) -> None:
    """Add the subscribers of kind u to a cluster; they no longer get its flows directly."""
    begin, wanted, weight = rows
    choice, chosen, count, direct, has, size, _, _ = state
    choice[begin[u] + chosen[u]] = c
    chosen[u] += 1
    size[c] += weight[u]
    for i in range(begin[u], begin[u + 1]):
        if has[c, wanted[i]]:
            if count[i] == 0:
                direct[wanted[i]] -= weight[u]
            count[i] += 1


@kernel
def enter_all(rows: Rows, c: int, state: State) -> None:
    """Add all subscribers with interest to a cluster."""
    begin = rows[0]
    for u in range(len(rows[2])):
        if begin[u + 1] > begin[u]:
            enter(rows, u, c, state)


@kernel
def leave(rows: Rows, u: int, c: int, state: State) -> None:
    """Remove the subscribers of kind u from a cluster; flows they get from no other cluster become direct."""
    begin, wanted, weight = rows
    choice, chosen, count, direct, has, size, _, _ = state
    last = begin[u] + chosen[u] - 1
    at = begin[u]
    while choice[at] != c:
        at += 1
    choice[at] = choice[last]
    chosen[u] -= 1
    size[c] -= weight[u]
    for i in range(begin[u], begin[u + 1]):
        if has[c, wanted[i]]:
            count[i] -= 1
            if count[i] == 0:
                direct[wanted[i]] += weight[u]


@kernel
def price(growths: Growths, state: State, c: int, w: int) -> float:
    """Return the cost of `w` more members of a cluster; the first members also pay for its flows."""
    keep, tie, send, hand, _ = growths
    size, flows, rate = state[5], state[6], state[7]
    now = size[c]
    found: float = keep[now + w] - keep[now] + rate[c] * (send[now + w] - send[now])
    if now == 0:
        found += tie[flows[c]] + rate[c] * hand
    return found


@kernel
def _cover(
    first: int, last: int, c: int, wanted: Numbers, lists: Lists, state: State, space: WorkSpace
) -> None:
    """Choose a cluster for one subscriber; its flows no longer count as a gain of other clusters."""
    start, found = lists
    count, has = state[2], state[4]
    value, gain, _, known, _ = space
    known[c] = 2
    for i in range(first, last):
        t = wanted[i]
        if has[c, t]:
            if count[i] == 0:
                for j in range(start[t], start[t + 1]):
                    gain[found[j]] -= value[i - first]
            count[i] += 1


@kernel
def _uncover(
    first: int, last: int, c: int, wanted: Numbers, lists: Lists, state: State, space: WorkSpace
) -> None:
    """Undo the choice of a cluster for one subscriber; its flows count as a gain of other clusters again."""
    start, found = lists
    count, has = state[2], state[4]
    value, gain, _, known, _ = space
    known[c] = 1
    for i in range(first, last):
        t = wanted[i]
        if has[c, t]:
            count[i] -= 1
            if count[i] == 0:
                for j in range(start[t], start[t + 1]):
                    gain[found[j]] += value[i - first]


@kernel
def _fill(
    first: int, last: int, without: int, wanted: Numbers, lists: Lists, state: State, space: WorkSpace,
    near: int, n: int,
) -> tuple[int, float]:  # fmt: skip
    """Choose clusters for one subscriber by largest gain while any gains; return their number and gain."""
    _, gain, touched, known, picks = space
    saved = 0.0
    while True:
        best, most = -1, _ROUNDING
        for j in range(near):
            c = touched[j]
            if gain[c] > most and known[c] == 1 and c != without:
                best, most = c, gain[c]
        if best < 0:
            return n, saved
        saved += most
        picks[n] = best
        n += 1
        _cover(first, last, best, wanted, lists, state, space)


@kernel
def choose_one(
    rows: Rows,
    growths: Growths,
    lists: Lists,
    state: State,
    space: WorkSpace,
    u: int,
    banned: int,
    depth: int,
) -> float:
    """Choose a subscriber's clusters again while all others stay; return the change of the cost.

    The cluster with the largest gain is chosen first. Then, up to `depth` times, each cluster is replaced by
    those with the largest gain without it, if that is better. The cheaper of this and the previous choice is
    kept, so the cost does not rise; but the cluster `banned` is left in any case.
    """
    begin, wanted, weight = rows
    keep, _, send, _, frequency = growths
    choice, chosen, count, direct, has, _, flows, _ = state
    start, found = lists
    value, gain, touched, known, picks = space
    first, last, w = begin[u], begin[u + 1], weight[u]
    old = choice[first : first + chosen[u]].copy()
    for c in old:
        leave(rows, u, c, state)
    bare, near, stay = 0.0, 0, True
    for i in range(first, last):
        t = wanted[i]
        at = direct[t] - w
        value[i - first] = keep[at + w] - keep[at] + frequency[t] * (send[at + w] - send[at])
        bare += value[i - first]
        for j in range(start[t], start[t + 1]):
            c = found[j]
            if known[c] == 0 and flows[c] > 0:
                known[c] = 1
                gain[c] = -price(growths, state, c, w)
                touched[near] = c
                near += 1
            gain[c] += value[i - first]
    was = bare
    for c in old:
        stay &= c != banned
        was += price(growths, state, c, w)
        for i in range(first, last):
            if has[c, wanted[i]]:
                if count[i] == 0:
                    was -= value[i - first]
                count[i] += 1
    count[first:last] = 0
    n, saved = _fill(first, last, banned, wanted, lists, state, space, near, 0)
    for _ in range(depth):
        before, k = saved, 0
        while k < n:
            c = picks[k]
            n -= 1
            picks[k] = picks[n]
            _uncover(first, last, c, wanted, lists, state, space)
            lost, kept = gain[c], n
            known[c] = 3  # not to be chosen again immediately
            n, got = _fill(first, last, banned, wanted, lists, state, space, near, n)
            known[c] = 1
            if got > lost + _ROUNDING:
                saved += got - lost
                continue
            while n > kept:
                n -= 1
                _uncover(first, last, picks[n], wanted, lists, state, space)
            _cover(first, last, c, wanted, lists, state, space)
            picks[n] = picks[k]
            picks[k] = c
            n, k = n + 1, k + 1
        if saved <= before:
            break
    for j in range(near):
        known[touched[j]] = 0
    count[first:last] = 0
    change = bare - saved - was
    if stay and change >= -_ROUNDING:
        for c in old:
            enter(rows, u, c, state)
        return 0.0
    for k in range(n):
        enter(rows, u, picks[k], state)
    return change


@kernel
def work_space_of(rows: Rows, n_clusters: int) -> WorkSpace:
    """Allocate work space for the choice of one subscriber."""
    most = 0
    for u in range(len(rows[2])):
        most = max(most, rows[0][u + 1] - rows[0][u])
    near, known = np.empty(n_clusters, np.int32), np.zeros(n_clusters, np.uint8)
    return np.empty(most), np.zeros(n_clusters), near, known, np.empty(most + 1, np.int32)


@kernel
def choose(rows: Rows, growths: Growths, lists: Lists, state: State, depth: int) -> float:
    """Let each subscriber choose again, one after the other; return the change of the cost."""
    space, change = work_space_of(rows, len(state[5])), 0.0
    for u in range(len(rows[2])):
        change += choose_one(rows, growths, lists, state, space, u, -1, depth)
    return change


@kernel
def dissolve(rows: Rows, state: State, members: Numbers, c: int) -> None:
    """Remove all members and all flows from a cluster."""
    for u in members:
        leave(rows, u, c, state)
    state[4][c] = 0
    state[6][c] = 0
    state[7][c] = 0.0


@kernel
def refit(rows: Rows, growths: Growths, state: State, members: Numbers, c: int, need: Ints) -> None:
    """Give a cluster the flows that pay for its members; dissolve it if fewer than two remain.

    A flow pays if direct subscriptions, for members that receive it from no other cluster, cost more. With
    linear costs flows are independent, so the result is optimal: need (1 + f) > 1 + f (n + |S|).
    """
    begin, wanted, weight = rows
    keep, tie, send, hand, frequency = growths
    count, direct, has, size, flows, rate = state[2:]
    for u in members:
        for i in range(begin[u], begin[u + 1]):
            if count[i] == has[c, wanted[i]]:
                need[wanted[i]] += weight[u]
    turned = False
    total_rate, n = 0.0, flows[c]
    for t in range(len(need)):
        inside = has[c, t] == 1
        if inside or need[t]:
            low = direct[t] if inside else direct[t] - need[t]
            high = low + need[t]
            saves = keep[high] - keep[low] + frequency[t] * (send[high] - send[low])
            other = n - 1 if inside else n + 1
            costs = abs(tie[n] - tie[other]) + frequency[t] * (hand + send[size[c]])
            if (saves < costs - _ROUNDING) if inside else (saves > costs + _ROUNDING):
                turned, inside, n = True, not inside, other
                has[c, t] ^= 2  # the second bit marks a flow to be toggled
            need[t] = 0
        if inside:
            total_rate += frequency[t]
    if turned:
        for u in members:
            for i in range(begin[u], begin[u + 1]):
                t = wanted[i]
                if has[c, t] == 2:
                    if count[i] == 0:
                        direct[t] -= weight[u]
                    count[i] += 1
                elif has[c, t] == 3:
                    count[i] -= 1
                    if count[i] == 0:
                        direct[t] += weight[u]
        for t in range(len(need)):
            has[c, t] = (has[c, t] & 1) ^ (has[c, t] >> 1)
    flows[c], rate[c] = n, total_rate
    if n < 2 or len(members) == 0:
        dissolve(rows, state, members, c)


@kernel
def refit_all(rows: Rows, growths: Growths, state: State) -> None:
    """Give each cluster the flows that lower the cost for its members, one cluster after the other."""
    start, need = np.zeros(len(state[5]) + 1, np.int64), np.zeros(len(state[3]), np.int64)
    members = members_of(rows, state, start)
    for c in range(len(state[5])):
        if state[6][c] > 0:
            refit(rows, growths, state, members[start[c] : start[c + 1]], c, need)


@kernel
def prune(
    rows: Rows, growths: Growths, lists: Lists, state: State, depth: int, below: float, change: Doubles
) -> int:
    """Remove each cluster whose removal changes the cost by less than `below`; its members choose again.

    Writes the change (actual or hypothetical) for each cluster; returns the number of removed clusters.
    """
    begin, choice, chosen, size, flows = rows[0], state[0], state[1], state[5], state[6]
    space, start = work_space_of(rows, len(size)), np.zeros(len(size) + 1, np.int64)
    members, gone = members_of(rows, state, start), 0
    for c in np.argsort(size):
        change[c] = np.inf
        if flows[c] == 0:
            continue
        inside = members[start[c] : start[c + 1]]
        ends = np.zeros(len(inside) + 1, np.int64)
        for k in range(len(inside)):
            ends[k + 1] = ends[k] + chosen[inside[k]]
        before = np.empty(ends[-1], np.int32)
        for k in range(len(inside)):
            first = begin[inside[k]]
            before[ends[k] : ends[k + 1]] = choice[first : first + chosen[inside[k]]]
        change[c] = 0.0
        for u in inside:
            change[c] += choose_one(rows, growths, lists, state, space, u, c, depth)
        if change[c] < below:
            dissolve(rows, state, inside[:0], c)
            members = members_of(rows, state, start)
            gone += 1
            continue
        for k in range(len(inside)):
            u = inside[k]
            while chosen[u]:
                leave(rows, u, choice[begin[u]], state)
            for i in range(ends[k], ends[k + 1]):
                enter(rows, u, before[i], state)
    return gone


@kernel
def owners(rows: Rows, state: State, turn: int, owner: Numbers) -> None:
    """Assign each wanted pair (subscriber, flow) to one of the subscriber's clusters; -1 if it has none.

    Of several clusters with the flow it is the first; for a flow in none of them, the first of all. The order
    starts with another cluster each turn.
    """
    begin, wanted, _ = rows
    choice, chosen, has = state[0], state[1], state[4]
    for u in range(len(chosen)):
        n = chosen[u]
        for i in range(begin[u], begin[u + 1]):
            owner[i] = -1 if n == 0 else choice[begin[u] + turn % n]
            for k in range(n):
                c = choice[begin[u] + (turn + k) % n]
                if has[c, wanted[i]]:
                    owner[i] = c
                    break
