"""Distributions fitted to data by maximum likelihood, with their greatest distance from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from scipy import optimize, stats

from narrowcast.errors import TableError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Doubles: TypeAlias = NDArray[np.float64]

#: A Pareto law begins where it fits best, with at least this share, and this number, of the values above.
TAIL, FEWEST = 0.1, 30
#: Of beginnings whose distances differ by less than this, in per cent, the lowest is taken.
NOISE = 0.5
#: Number of candidate beginnings.
_BEGINS = 200


class Normal(NamedTuple):
    """A normal distribution: mean, standard deviation, and the distance from the data in per cent."""

    mean: float
    sd: float
    ks: float


class Zipf(NamedTuple):
    """Zipf's law, in proportion to rank ** -`exponent`, and its distance from the data in per cent."""

    exponent: float
    ks: float


class Pareto(NamedTuple):
    """Pareto's law P(amount > x) = (begin / x) ** alpha above `begin`, as is a `share` of the data."""

    alpha: float
    begin: float
    share: float
    ks: float


def fit_normal(values: Doubles) -> Normal:
    """Return the normal distribution of maximum likelihood.

    Examples
    --------
    >>> fit_normal(np.array([1.0, 3.0])).mean
    2.0
    """
    mean, sd = stats.norm.fit(values)
    return Normal(float(mean), float(sd), distance(values, stats.norm(mean, max(sd, 1e-12)).cdf))


def fit_zipf(counts: Doubles) -> Zipf:
    """Return Zipf's law of maximum likelihood, with one rank for each count, the largest first.

    Examples
    --------
    >>> round(fit_zipf(1000 / np.arange(1.0, 51)).exponent, 3)
    1.0
    """
    logs = np.log(np.arange(1, len(counts) + 1))
    share = counts / counts.sum()

    def unlikely(exponent: float) -> float:
        return float(exponent * (share @ logs) + np.log(np.exp(-exponent * logs).sum()))

    exponent = float(optimize.minimize_scalar(unlikely, bounds=(0, 20), method="bounded").x)
    law = np.exp(-exponent * logs)
    gap = np.abs(np.cumsum(share) - np.cumsum(law / law.sum()))
    return Zipf(exponent, 100 * float(gap.max()))


def fit_pareto(values: Doubles, *, least: float = TAIL) -> Pareto:
    """Return Pareto's law of maximum likelihood, with the beginning that makes it fit best.

    Parameters
    ----------
    values
        Amounts above 0.
    least
        The smallest share of the values that must lie above the beginning; 1 fits all of them.

    Examples
    --------
    >>> law = fit_pareto(4 / np.linspace(0.001, 1, 5000), least=1)
    >>> round(law.alpha, 1), law.begin
    (1.0, 4.0)
    """
    ordered = np.sort(values)
    n = len(ordered)
    last = max(0, n - max(int(np.ceil(least * n)), min(n, FEWEST)))
    laws: list[Pareto] = []
    for at in np.unique(np.linspace(0, last, _BEGINS).astype(np.int64)):
        tail = ordered[np.searchsorted(ordered, ordered[at]) :]
        logs = np.log(tail / tail[0])
        if logs[-1] > 0:
            alpha = len(tail) / float(logs.sum())
            gap = distance(tail, lambda x, a=alpha, c=tail[0]: 1 - (c / x) ** a)
            laws.append(Pareto(alpha, float(tail[0]), len(tail) / n, gap))
    if not laws:
        raise TableError(
            f"amounts: all {n} are {ordered[0]:g}; fitting a law needs at least two different ones",
            parameter="amounts",
            value=float(ordered[0]),
        )
    least_gap = min(law.ks for law in laws)
    return next(law for law in laws if law.ks <= least_gap + NOISE)


def distance(values: Doubles, law: Any) -> float:
    """Return the largest difference of the cumulative shares of a law and the data, in per cent (Kolmogorov).

    Examples
    --------
    >>> distance(np.array([0.5]), lambda x: x)
    50.0
    """
    ordered = np.sort(values)
    n = len(ordered)
    below = law(ordered)
    return 100 * float(max((np.arange(1, n + 1) / n - below).max(), (below - np.arange(n) / n).max()))
