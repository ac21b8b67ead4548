"""How a cost grows with a number: of the subscribers of a channel, or of the flows in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.files import FORMATS, read_table
from narrowcast.model.labels import numbers_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    Doubles: TypeAlias = NDArray[np.float64]

#: From numbers to costs, both as arrays.
Growth: TypeAlias = "Callable[[Doubles], Doubles]"


def _linear(n: Doubles) -> Doubles:
    return n


def _log(n: Doubles) -> Doubles:
    return n * np.log2(n + 2)


def _sqrt(n: Doubles) -> Doubles:
    return n + np.sqrt(n)


#: Growths by name, of n: n; n log2(n + 2), each paying a path through a tree; n + sqrt(n), with helpers.
GROWTHS: dict[str, Growth] = {"linear": _linear, "log": _log, "sqrt": _sqrt}


@dataclass(frozen=True, slots=True, init=False, eq=False)
class MeasuredGrowth:
    """A growth that was measured: straight lines between points, the last one going on.

    Parameters
    ----------
    sizes
        Numbers, each above the one before; where the first is above 0, a cost of 0 at 0 is put before it.
    costs
        What each costs: at least 0, and no less than at the number before.

    Examples
    --------
    >>> MeasuredGrowth([10, 20], [15.0, 25.0])(np.array([0.0, 5.0, 15.0, 40.0])).tolist()
    [0.0, 7.5, 20.0, 45.0]
    """

    sizes: Doubles
    costs: Doubles

    def __init__(self, sizes: ArrayLike, costs: ArrayLike) -> None:
        at, cost = np.array(sizes, np.float64), np.array(costs, np.float64)
        if at.ndim != 1 or at.shape != cost.shape or not len(at):
            raise ParameterError(
                f"{at.shape} sizes and {cost.shape} costs; give a row of each, as many of both"
            )
        finite = np.isfinite(at).all() and np.isfinite(cost).all()
        if not finite or at[0] < 0 or cost[0] < 0 or (np.diff(at) <= 0).any() or (np.diff(cost) < 0).any():
            raise ParameterError(
                "sizes or costs of a table fall, repeat or are below 0; give sizes that grow, and costs that "
                "do not fall"
            )
        if at[0] > 0:
            at, cost = np.append(0.0, at), np.append(0.0, cost)
        for each in (at, cost):
            each.flags.writeable = False
        object.__setattr__(self, "sizes", at)
        object.__setattr__(self, "costs", cost)

    def __call__(self, n: Doubles) -> Doubles:
        """Return the costs of numbers."""
        found = np.interp(n, self.sizes, self.costs)
        if len(self.sizes) > 1:
            last = (self.costs[-1] - self.costs[-2]) / (self.sizes[-1] - self.sizes[-2])
            found = found + last * np.maximum(np.asarray(n) - self.sizes[-1], 0.0)
        return np.asarray(found, np.float64)


def growth_of(name: str, given: Any) -> Growth:
    """Return the growth that a parameter names.

    Parameters
    ----------
    name
        Of the parameter, for errors.
    given
        `linear`, `log`, `sqrt`, a table of `size` and `cost` on disk, or any function of an array.

    Examples
    --------
    >>> growth_of("cost_m", "log")(np.array([0.0, 2.0])).tolist()
    [0.0, 4.0]
    >>> growth_of("cost_m", "cubic")
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: cost_m is 'cubic'; give linear, log, sqrt, or a table of size and cost
    """
    if callable(given):
        found: Growth = given
        return found
    if isinstance(given, str) and given in GROWTHS:
        return GROWTHS[given]
    if isinstance(given, str | Path) and Path(given).suffix in FORMATS:
        table = read_table(given, ("size", "cost"))
        return MeasuredGrowth(*(numbers_in(table, column, str(given)) for column in ("size", "cost")))
    raise ParameterError(f"{name} is {given!r}; give {', '.join(GROWTHS)}, or a table of size and cost")
