"""Sample sizes and coin probabilities, by which Tamara saves messages to members and other channels."""

from __future__ import annotations

import math


def sample_size(members: int, *, margin: float = 0.05, z: float = 1.96) -> int:
    """Return the sample size for estimating a share of members within a margin (Cochran).

    Parameters
    ----------
    members
        Number of members.
    margin, z
        The margin of error, and its number of standard deviations: 1.96 covers 95 % of all samples.

    Examples
    --------
    >>> sample_size(3000), sample_size(100), sample_size(10**6), sample_size(0)
    (341, 80, 385, 0)
    """
    if members < 1:
        return 0
    endless = z * z / (4 * margin * margin)
    return min(members, math.ceil(endless / (1 + (endless - 1) / members)))


def coin(needed: float, *, surely: float = 0.99) -> float:
    """Return the probability with which a coin must win so that one of `needed` tosses almost surely does.

    Examples
    --------
    >>> round(coin(911), 6), coin(0.5), coin(float("inf"))
    (0.005042, 0.99, 0.0)
    """
    return float(1 - (1 - surely) ** (1 / max(needed, 1.0)))
