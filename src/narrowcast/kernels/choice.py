"""Best-response choices of subscribers among clusters of flows: what joining costs, and what it saves.

Clusters may overlap. A subscriber joins the cluster that saves most, then the next, while any saves
something: a greedy weighted cover, which is exact if no flow is in two clusters. The cost of joining depends
on the number of members: if it is not linear, one subscriber's choice changes the others'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from narrowcast.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]
    Numbers: TypeAlias = NDArray[np.int32]
    Bytes: TypeAlias = NDArray[np.uint8]
    Doubles: TypeAlias = NDArray[np.float64]
    #: Compressed rows: the start of each row, and the entries.
    Rows: TypeAlias = tuple[Ints, Numbers]
    #: What member n + 1 adds to the upkeep of a channel, and to the cost of each of its events.
    Steps: TypeAlias = tuple[Doubles, Doubles]
    #: Direct subscribers of flows; members of clusters; mask of wanted pairs that a cluster serves; and of
    #: each subscriber the start of its clusters, the clusters, and their number.
    State: TypeAlias = tuple[Ints, Ints, Bytes, Ints, Numbers, Ints]

#: Relative differences up to this are rounding.
_ROUNDING = 1e-12


@kernel
def is_in(topics: Rows, flow: int, cluster: int) -> bool:
    """Return whether a cluster contains a flow."""
    start, clusters = topics
    found = False
    for i in range(start[flow], start[flow + 1]):
        found |= clusters[i] == cluster
    return found


@kernel
def cover(
    topics: Rows, flows: Numbers, worth: Doubles, price: Doubles, gain: Doubles, count: Numbers,
    picks: Numbers,
) -> int:  # fmt: skip
    """Write the clusters that one subscriber joins to `picks`, and return their number.

    Parameters
    ----------
    topics
        The clusters of each flow.
    flows, worth
        The subscriber's flows, and the cost of sending each directly.
    price
        The cost of joining each cluster.
    gain
        Work space, one zero per cluster; zeros again on return.
    count
        Output: for each flow the number of joined clusters that contain it.
    picks
        Output, with room for as many clusters as there are flows.
    """
    start, clusters = topics
    n = 0
    for k in range(len(flows)):
        count[k] = 0
    while True:
        for k in range(len(flows)):
            if count[k] == 0:
                for i in range(start[flows[k]], start[flows[k] + 1]):
                    gain[clusters[i]] += worth[k]
        best, most = -1, 0.0
        for k in range(len(flows)):
            if count[k] == 0:
                for i in range(start[flows[k]], start[flows[k] + 1]):
                    c = clusters[i]
                    saved, even = gain[c] - price[c], _ROUNDING * gain[c]
                    if saved > even and (saved > most + even or (saved > most - even and c < best)):
                        best, most = c, saved
        for k in range(len(flows)):
            if count[k] == 0:
                for i in range(start[flows[k]], start[flows[k] + 1]):
                    gain[clusters[i]] = 0.0
        if best < 0:
            break
        picks[n] = best
        n += 1
        for k in range(len(flows)):
            count[k] += is_in(topics, flows[k], best)
    # Clusters joined early may have become redundant.
    left = n
    for j in range(n if n > 1 else 0):
        c, only = picks[j], 0.0
        for k in range(len(flows)):
            if count[k] == 1 and is_in(topics, flows[k], c):
                only += worth[k]
        if only <= price[c]:
            picks[j] = -1
            left -= 1
            for k in range(len(flows)):
                count[k] -= is_in(topics, flows[k], c)
    if left < n:
        place = 0
        for j in range(n):
            if picks[j] >= 0:
                picks[place] = picks[j]
                place += 1
    return left


@kernel
def choose(
    wants: Rows, topics: Rows, frequency: Doubles, load: Doubles, steps: Steps, order: Ints, passes: int,
    state: State,
) -> int:  # fmt: skip
    """Let subscribers choose in turn until none would change or the passes are used up; return the passes.

    A choice is changed only if that lowers the total cost, so the loop terminates.

    Parameters
    ----------
    wants, topics
        The flows of each subscriber, and the clusters of each flow.
    frequency, load
        Event rate of each flow, and total rate of the flows of each cluster.
    steps
        Marginal costs of members.
    order
        Order in which subscribers choose.
    passes
        Largest number of passes.
    state
        The current choice; changed in place.
    """
    start, flow = wants
    upkeep, event = steps
    direct, size, served, room, joined, used = state
    widest = 1
    for u in range(len(start) - 1):
        widest = max(widest, start[u + 1] - start[u])
    gain, price = np.zeros(len(load)), np.zeros(len(load))
    worth, count = np.empty(widest), np.empty(widest, np.int32)
    picks = np.empty(widest, np.int32)
    for c in range(len(load)):
        price[c] = upkeep[size[c]] + load[c] * event[size[c]]
    for turn in range(passes):
        moved = 0
        for u in order:
            a, b = start[u], start[u + 1]
            flows = flow[a:b]
            before = 0.0
            for i in range(room[u], room[u] + used[u]):
                c = joined[i]
                size[c] -= 1
                price[c] = upkeep[size[c]] + load[c] * event[size[c]]
                before += price[c]
            for k in range(b - a):
                t = flows[k]
                direct[t] -= 1 - served[a + k]
                worth[k] = upkeep[direct[t]] + frequency[t] * event[direct[t]]
                before += worth[k] * (1 - served[a + k])
            n = cover(topics, flows, worth, price, gain, count, picks)
            after = 0.0
            for j in range(n):
                after += price[picks[j]]
            for k in range(b - a):
                after += worth[k] * (count[k] == 0)
            if after < before - _ROUNDING * before:
                moved += 1
                used[u] = n
                for j in range(n):
                    joined[room[u] + j] = picks[j]
                for k in range(b - a):
                    served[a + k] = count[k] > 0
            for i in range(room[u], room[u] + used[u]):
                c = joined[i]
                size[c] += 1
                price[c] = upkeep[size[c]] + load[c] * event[size[c]]
            for k in range(b - a):
                direct[flows[k]] += 1 - served[a + k]
        if moved == 0:
            return turn + 1
    return passes
