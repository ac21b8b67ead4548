"""Lower bound on the cost of each subscriber beyond its own events; proof in `planning.topics.lower_bound`.

Each subscriber has a budget of 1, the cost of one more member. A share v of the budget is spent on each flow
that it has in common with another subscriber, and earns a part of the flow's cost.
"""

from __future__ import annotations

from math import exp, sqrt
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.kernels.jit import kernel

if TYPE_CHECKING:
    from narrowcast.kernels.cover import Doubles, Lists, Rows

#: Rate at which subscribers with too much overlap gain weight.
_RATE = 3.0
#: Bisection steps in the search for a price.
_HALVINGS = 40


@kernel
def earned(v: float, f: float, cap: float) -> float:
    """Return the cost accounted for by a flow of frequency f if the share v of the budget is spent on it."""
    return min(cap, v if v <= f else 2.0 * sqrt(f * v) - f)


@kernel
def _spent(price: float, common: Doubles, frequency: Doubles, most: Doubles, v: Doubles) -> float:
    """Write the best share v of each flow at a given price, and return the mean budget that is spent."""
    total = 0.0
    for i in range(len(common)):
        at = price * common[i]
        v[i] = 0.0 if at > 1.0 else min(most[i], frequency[i] / (at * at)) if at > 1e-9 else most[i]
        total += common[i] * v[i]
    return total


@kernel
def least_paid(rows: Rows, lists: Lists, frequency: Doubles, cap: Doubles, passes: int, out: Doubles) -> None:
    """Write a lower bound on the cost of each subscriber, in units of one more member; 1 is trivial.

    For each subscriber there is a v for each of its flows such that the sum of v over flows in common with
    any other subscriber is at most 1; v earns as in `earned`, and what remains of 1 earns its own amount. The
    v are found by multiplicative weights on the subscribers with most overlap; any feasible v is a valid
    bound.

    Parameters
    ----------
    rows
        The flows of each kind of subscriber.
    lists
        The kinds that want each flow.
    frequency
        Frequency of each flow, times the cost of sending to a member.
    cap
        The most that each flow can earn.
    passes
        Number of weight updates.
    out
        Output: one bound per kind.
    """
    begin, wanted, weight = rows
    start, who = lists
    load, known = np.zeros(len(weight)), np.zeros(len(weight), np.uint8)
    neighbours = np.empty(len(weight), np.int32)
    for u in range(len(weight)):
        first, n = begin[u], begin[u + 1] - begin[u]
        out[u] = 1.0 if n else 0.0
        near = 0
        for i in range(n):
            t = wanted[first + i]
            for j in range(start[t], start[t + 1]):
                o = who[j]
                if not known[o] and (o != u or weight[u] > 1):
                    known[o] = 1
                    load[o] = 0.0
                    neighbours[near] = o
                    near += 1
        f, most, caps = np.empty(n), np.empty(n), np.empty(n)
        room = 0.0
        for i in range(n):
            t = wanted[first + i]
            f[i], caps[i] = frequency[t], cap[t]
            room += cap[t]
            most[i] = cap[t] if cap[t] <= f[i] else (cap[t] + f[i]) ** 2 / (4.0 * f[i]) if f[i] > 0.0 else 0.0
        common, v, mean = np.zeros(n), np.zeros(n), np.zeros(n)
        for step in range(1, passes + 1):
            high, total = 0.0, 0.0
            for j in range(near):
                high = max(high, load[neighbours[j]])
            common[:] = 0.0
            for j in range(near):
                total += exp(_RATE * (load[neighbours[j]] - high))
            for i in range(n):
                t = wanted[first + i]
                for j in range(start[t], start[t + 1]):
                    o = who[j]
                    if o != u or weight[u] > 1:
                        common[i] += exp(_RATE * (load[o] - high)) / total
            low, up = 0.0, 1.0
            while _spent(up, common, f, most, v) > 1.0:
                low, up = up, 2.0 * up
            for _ in range(_HALVINGS):
                middle = (low + up) / 2
                if _spent(middle, common, f, most, v) > 1.0:
                    low = middle
                else:
                    up = middle
            _spent(up, common, f, most, v)
            for i in range(n):
                mean[i] += v[i]
                t = wanted[first + i]
                for j in range(start[t], start[t + 1]):
                    load[who[j]] += v[i]
            high = 0.0
            for j in range(near):
                high = max(high, load[neighbours[j]])
            scale, found = max(high, float(step)), 0.0
            for i in range(n):
                alone = start[wanted[first + i] + 1] - start[wanted[first + i]] == 1 and weight[u] == 1
                found += caps[i] if alone else earned(mean[i] / scale, f[i], caps[i])
            out[u] = max(out[u], min(room, found + 1.0 - high / scale))
        for j in range(near):
            known[neighbours[j]] = 0
