"""How far a planner is: what its plan costs by now, told to whoever watches."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    #: Called with the number of a round and the cost after it.
    Progress: TypeAlias = Callable[[int, float], None]

_WATCHER: ContextVar[Callable[[float], None] | None] = ContextVar("watcher", default=None)


@contextmanager
def watching(tell: Callable[[float], None]) -> Iterator[None]:
    """Have planners tell what their plan costs, again and again, while a block runs.

    Parameters
    ----------
    tell
        Called with the cost; it should be quick.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> from narrowcast.planning.sessions.joint import Joint
    >>> costs = []
    >>> with watching(costs.append):
    ...     planner = Joint(channels=1).fit(Interest([[1, 0], [1, 1]], rate=[3.0, 1.0]))
    >>> costs[-1] == planner.cost_ == 16.0
    True
    """
    token = _WATCHER.set(tell)
    try:
        yield
    finally:
        _WATCHER.reset(token)


def tell(cost: float) -> None:
    """Tell what the plan costs by now, where somebody watches."""
    watcher = _WATCHER.get()
    if watcher is not None:
        watcher(cost)


def report_round(say: Progress | None, turn: int, cost: float) -> None:
    """Report the cost after a round, to the caller's own function and to whoever watches planners."""
    tell(cost)
    if say is not None:
        say(turn, cost)
