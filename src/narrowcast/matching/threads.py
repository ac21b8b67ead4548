"""Shared thread pools, kept alive: starting threads would take longer than a batch of milliseconds."""

from __future__ import annotations

import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


@cache
def _pool(n: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n, thread_name_prefix="narrowcast")


# a forked process has none of these threads
os.register_at_fork(after_in_child=_pool.cache_clear)


def share(work: Callable[[int, int], T], size: int, n: int) -> list[T]:
    """Apply a function to n shares of a range, one thread each; return the results in order.

    Examples
    --------
    >>> share(lambda start, stop: list(range(start, stop)), 5, 2)
    [[0, 1], [2, 3, 4]]
    """
    if n == 1:
        return [work(0, size)]
    edges = itertools.pairwise(np.linspace(0, size, n + 1).astype(np.int64).tolist())
    return list(_pool(n).map(lambda ends: work(*ends), edges))
