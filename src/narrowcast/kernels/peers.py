"""Surveys among subscribers: counts over their topics, clusters and interests, stored as rows of bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from narrowcast.kernels.jit import kernel, lowest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words: TypeAlias = NDArray[np.uint64]
    Ints: TypeAlias = NDArray[np.int64]


@kernel
def tally(words: Words, rows: Ints, counts: Ints) -> None:
    """Add to each column's count how many of the given rows of bits have a bit in that column."""
    for i in range(len(rows)):
        row: Any = words[rows[i]]
        for w in range(len(row)):
            left = row[w]
            while left:
                counts[64 * w + lowest(left)] += 1
                left &= left - np.uint64(1)


@kernel
def needed(interests: Words, joined: Words, topics: Words, rows: Ints, cluster: int, counts: Ints) -> None:
    """Add to each topic's count how many given members want it and get it from this cluster alone.

    `topics` has a row for each cluster; a subscriber reads only those that it joined.
    """
    for i in range(len(rows)):
        for w in range(topics.shape[1]):
            left = _alone(interests, joined, topics, rows[i], cluster, w)
            while left:
                counts[64 * w + lowest(left)] += 1
                left &= left - np.uint64(1)


@kernel
def worth(
    interests: Words,
    joined: Words,
    topics: Words,
    rows: Ints,
    cluster: int,
    weight: NDArray[np.float64],
    found: NDArray[np.float64],
) -> None:
    """For each given member, add the weights of the topics that it wants and gets from this cluster alone."""
    for i in range(len(rows)):
        for w in range(topics.shape[1]):
            left = _alone(interests, joined, topics, rows[i], cluster, w)
            while left:
                found[i] += weight[64 * w + lowest(left)]
                left &= left - np.uint64(1)


@kernel
def _alone(interests: Words, joined: Words, topics: Words, row: int, cluster: int, w: int) -> Any:
    """Return word w of the bits of topics that a member wants and gets from this cluster alone."""
    left: Any = interests[row, w] & topics[cluster, w]
    v = 0
    while left and v < joined.shape[1]:
        others = joined[row, v]
        while others:
            other = 64 * v + lowest(others)
            others &= others - np.uint64(1)
            if other != cluster:
                left &= ~topics[other, w]
        v += 1
    return left
