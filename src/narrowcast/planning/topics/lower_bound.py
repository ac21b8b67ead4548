"""What no plan can cost less than: a bound on the overall cost that sees that clusters are shared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.kernels.cover_bound import least_paid
from narrowcast.planning.topics.cover_state import CoverState
from narrowcast.validation import check_whole

if TYPE_CHECKING:
    from narrowcast.costs.overall import Overall
    from narrowcast.model.interest import Interest

#: How often weights change where nothing else is said.
PASSES = 12


def least_overall(interest: Interest, model: Overall, *, passes: int = PASSES) -> float:
    """Return what no plan can cost less than, by the overall cost; never less than `Overall.ideal` says.

    Let a member cost at least m to keep up and d to send to, and a flow a to tie: least slopes, where costs
    are not linear. With f for d times the frequency and b for a plus that of handing on, a cluster of members
    S and flows T takes m |S| + sum over T of (b + f |S|), a direct subscription m + f. Take numbers p(s, t)
    of the wanted pairs, each at most m + f. If no cluster serves pairs whose p are more than what it takes,
    any plan costs at least their sum: the dual of the linear program that chooses clusters. (What all flows
    take to be handed to their own channels comes on top.)

    A flow t of a cluster that n of its k members want costs each of these (b + f k) / n. So it is enough that
    for nobody the p of flows in T that they want, less these, are more than m in sum. That is so if for every
    mix of others, in which a share x(t) wants t, the sum of max(0, p - f / x) is at most m: for
    (b + f k) / n is between b + f, which is no less than p if p <= f + min(m, b), and f / x, as n is 1 and
    x (k - 1), and it rises or falls throughout with k.

    Now p = f + w. max(0, w + f - f / x) is no more than h x, with h = w up to w = f and h = (w + f)^2 / 4 f
    beyond, which touch it; a line that is as much higher holds for as much more of w. A sum of lines in x is
    greatest where all are alike: so it is enough that nobody else wants flows with h of more than m in sum,
    what is left being added to w. That is a packing problem for each subscriber, alone. The trivial bound is
    h = 0. To solve it well gives a better bound; any solution gives one.

    Parameters
    ----------
    interest
        Who wants what, and how often.
    model
        Says what channels and events cost.
    passes
        How hard to try: more are better, by less and less.

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
    keep, send = (float((grow(sizes) / sizes).min()) for grow in (model.maintained, model.sent))
    tie = float((model.tied(flows) / flows).min())
    frequency = model.frequencies(interest)
    if keep <= 0:
        return trivial
    cap = np.minimum(keep, tie + model.cost_n * frequency) / keep
    order = np.argsort(wanted, kind="stable")
    ends = np.append(0, np.cumsum(np.bincount(wanted, minlength=interest.n_flows)))
    row = np.repeat(np.arange(len(weight)), np.diff(start))[order].astype(np.int32)
    paid = np.zeros(len(weight))
    least_paid(covering.rows, (ends, row), send * frequency / keep, cap, passes, paid)
    # Of rounding, a little is left.
    return trivial + keep * float(weight @ np.maximum(0.0, paid - 1.0 - 1e-9)) if len(paid) else trivial
