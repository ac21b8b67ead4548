"""Progress of planners: reports of the current plan's cost to an observer."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    #: Called with the number of a round and the cost after it.
    Progress: TypeAlias = Callable[[int, float], None]

_OBSERVER: ContextVar[Callable[[float], None] | None] = ContextVar("observer", default=None)


@contextmanager
def observe_costs(observer: Callable[[float], None]) -> Iterator[None]:
    """Inside a `with` statement, have planners report the current cost of their plan repeatedly.

    Parameters
    ----------
    observer
        Called with the cost; it should return quickly.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> from narrowcast.planning.sessions.joint import Joint
    >>> costs = []
    >>> with observe_costs(costs.append):
    ...     planner = Joint(channels=1).fit(Interest([[1, 0], [1, 1]], rate=[3.0, 1.0]))
    >>> costs[-1] == planner.cost_ == 16.0
    True
    """
    token = _OBSERVER.set(observer)
    try:
        yield
    finally:
        _OBSERVER.reset(token)


def report_cost(cost: float) -> None:
    """Report the current cost of a plan to the observer of `observe_costs`, if there is one."""
    observer = _OBSERVER.get()
    if observer is not None:
        observer(cost)


def report_round(progress: Progress | None, turn: int, cost: float) -> None:
    """Report a planner's cost after a round to the caller's function and to the observer, if given."""
    report_cost(cost)
    if progress is not None:
        progress(turn, cost)
