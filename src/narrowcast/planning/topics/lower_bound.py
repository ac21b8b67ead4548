"""A lower bound on the overall cost of any plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.kernels.cover_bound import least_paid
from narrowcast.planning.topics.cover_state import CoverState
from narrowcast.validation import check_whole

if TYPE_CHECKING:
    from narrowcast.costs.overall import Overall
    from narrowcast.model.interest import Interest

#: Default number of passes in which weights are adjusted.
PASSES = 12


def least_overall(interest: Interest, model: Overall, *, passes: int = PASSES) -> float:
    """Return a lower bound on the overall cost of any plan, at least as high as `Overall.ideal`.

    Let a member cost at least m in upkeep and d per event, and a flow of a cluster a: the least slopes, where
    costs are not linear. With f = d x frequency and b = a + the cost of handover of the flow's events, a
    cluster of members S and flows T costs m |S| + sum over T of (b + f |S|), and a direct subscription m + f.
    Choose numbers p(s, t) for the wanted pairs, each at most m + f. If no cluster serves pairs whose p add up
    to more than its cost, any plan costs at least the sum of all p: this is the dual of the linear program
    that chooses clusters. (The handover of all flows to their own channels is added to it.)

    Divide the cost (b + f k) of a flow t, in a cluster of k members of which n want t, by n. It is enough
    that for each subscriber the p of its flows in T, minus these shares, add up to at most m. This holds if,
    for every mix of other members, of which a share x(t) wants t, the sum of max(0, p - f / x) is at most m:
    (b + f k) / n lies between b + f, which is at least p if p <= f + min(m, b), and f / x, for n = 1 +
    x (k - 1), and is monotonic in k.

    Let p = f + w. max(0, w + f - f / x) is at most h x, with h = w for w up to f and h = (w + f)^2 / 4 f
    above, which touch it; a line that is higher by some amount permits as much more of w. A sum of lines in x
    is greatest where all other members are alike: so it is enough that for no other subscriber the h of its
    flows add up to more than m, and what is left is added to w. That is an independent packing problem for
    each subscriber. The trivial bound is h = 0. A better solution gives a higher bound; any solution gives a
    valid one.

    Parameters
    ----------
    interest
        The interest to serve, with rates.
    model
        The cost model.
    passes
        Number of passes: more give a higher bound, by less and less (default: 12).

    Examples
    --------
    >>> from narrowcast.costs.overall import Overall
    >>> from narrowcast.model.interest import Interest
    >>> interest, model = Interest([[1, 1, 0], [0, 1, 1]], rate=[0.5, 0.5, 0.5]), Overall(interval=1)
    >>> model.ideal(interest).total, round(least_overall(interest, model), 2)
    (5.5, 7.33)
    """
    check_whole("passes", passes)
    trivial = model.ideal(interest).total
    covering, kind = CoverState.of(interest, model, 0)
    start, wanted, weight = covering.rows
    sizes = np.arange(1, max(2, len(kind) + 1))
    flows = np.arange(2, max(3, interest.n_flows + 1))
    growths = (model.maintenance_of, model.dissemination_of)
    keep, send = (float((grow(sizes) / sizes).min()) for grow in growths)
    tie = float((model.association_of(flows) / flows).min())
    frequency = model.frequencies(interest)
    if keep <= 0:
        return trivial
    cap = np.minimum(keep, tie + model.cost_n * frequency) / keep
    order = np.argsort(wanted, kind="stable")
    ends = np.append(0, np.cumsum(np.bincount(wanted, minlength=interest.n_flows)))
    row = np.repeat(np.arange(len(weight)), np.diff(start))[order].astype(np.int32)
    paid = np.zeros(len(weight))
    least_paid(covering.rows, (ends, row), send * frequency / keep, cap, passes, paid)
    # A small tolerance for rounding keeps the bound valid.
    return trivial + keep * float(weight @ np.maximum(0.0, paid - 1.0 - 1e-9)) if len(paid) else trivial
