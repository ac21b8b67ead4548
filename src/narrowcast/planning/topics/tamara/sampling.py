"""How many to ask, and how often: the two places where chance saves messages."""

from __future__ import annotations

import math


def sample_size(members: int, *, margin: float = 0.05, z: float = 1.96) -> int:
    """Return how many of so many members to ask for a share that is right within a margin (Cochran).

    Parameters
    ----------
    members
        How many there are.
    margin, z
        The margin, and how many standard deviations it is: 1.96 is 95 % of all samples.

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
    """Return how likely a coin must win for one of so many tosses to win, almost surely (section 3.1).

    Examples
    --------
    >>> round(coin(911), 6), coin(0.5), coin(float("inf"))
    (0.005042, 0.99, 0.0)
    """
    return float(1 - (1 - surely) ** (1 / max(needed, 1.0)))
