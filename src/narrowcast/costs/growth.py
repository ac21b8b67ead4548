"""Growth functions: how a cost grows with the number of a channel's subscribers or flows."""

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

#: A function from sizes to costs, both as arrays.
Growth: TypeAlias = "Callable[[Doubles], Doubles]"


def _linear(n: Doubles) -> Doubles:
    return n


def _log(n: Doubles) -> Doubles:
    return n * np.log2(n + 2)


def _sqrt(n: Doubles) -> Doubles:
    return n + np.sqrt(n)


#: Growth functions by name: n; n log2(n + 2), a path in a tree for each; n + sqrt(n), with helper nodes.
GROWTHS: dict[str, Growth] = {"linear": _linear, "log": _log, "sqrt": _sqrt}


@dataclass(frozen=True, slots=True, init=False, eq=False)
class MeasuredGrowth:
    """A measured growth function: linear between points, and beyond the last with its slope.

    Parameters
    ----------
    sizes
        Sizes in ascending order; if the first is above 0, the point (0, 0) is added.
    costs
        The cost at each size: at least 0, not decreasing.

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
                f"costs: has shape {cost.shape} for sizes of shape {at.shape}; give one cost for each size",
                parameter="costs",
            )
        finite = np.isfinite(at).all() and np.isfinite(cost).all()
        if not finite or at[0] < 0 or cost[0] < 0 or (np.diff(at) <= 0).any() or (np.diff(cost) < 0).any():
            raise ParameterError(
                "sizes: must be finite, at least 0 and ascending, with costs that are at least 0 and do not "
                "decrease",
                parameter="sizes",
                limit="finite, at least 0 and ascending",
            )
        if at[0] > 0:
            at, cost = np.append(0.0, at), np.append(0.0, cost)
        for each in (at, cost):
            each.flags.writeable = False
        object.__setattr__(self, "sizes", at)
        object.__setattr__(self, "costs", cost)

    def __call__(self, n: Doubles) -> Doubles:
        """Return the costs of sizes."""
        found = np.interp(n, self.sizes, self.costs)
        if len(self.sizes) > 1:
            last = (self.costs[-1] - self.costs[-2]) / (self.sizes[-1] - self.sizes[-2])
            found = found + last * np.maximum(np.asarray(n) - self.sizes[-1], 0.0)
        return np.asarray(found, np.float64)


def growth_of(name: str, given: Any) -> Growth:
    """Return the growth function that the value of a parameter names.

    Parameters
    ----------
    name
        Name of the parameter, for error messages.
    given
        `linear`, `log`, `sqrt`, the path of a table with columns `size` and `cost`, or any function from an
        array to an array.

    Examples
    --------
    >>> growth_of("cost_m", "log")(np.array([0.0, 2.0])).tolist()
    [0.0, 4.0]
    >>> growth_of("cost_m", "cubic")
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: cost_m='cubic': must be linear, log, sqrt, or a table's path
    """
    if callable(given):
        found: Growth = given
        return found
    if isinstance(given, str) and given in GROWTHS:
        return GROWTHS[given]
    if isinstance(given, str | Path) and Path(given).suffix in FORMATS:
        table = read_table(given, ("size", "cost"))
        return MeasuredGrowth(*(numbers_in(table, column, str(given)) for column in ("size", "cost")))
    limit = f"{', '.join(GROWTHS)}, or a table's path"
    raise ParameterError(parameter=name, value=given, limit=limit)
