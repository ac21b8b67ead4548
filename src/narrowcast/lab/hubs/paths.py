"""The path down a balanced tree to the key of an event, and the segments along it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from narrowcast.costs.line_positions import PositionLoads
    from narrowcast.planning.ranges.merging import AttributeLines, AttributeTree

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]
    Flags: TypeAlias = NDArray[np.bool_]


class Line(NamedTuple):
    """A tree: its attribute, the share of events of each key, and the segments of keys.

    `push` says for each key whether it hands intervals down to the left, and to the right.
    """

    attribute: int
    density: Doubles
    held: PositionLoads
    push: Flags


def lines_of(trees: Mapping[int, AttributeTree], hubs: AttributeLines) -> list[Line]:
    """Return the trees that remain after merging."""
    return [
        Line(attribute, hubs.density[attribute], tree.division.held_, tree.division.push_)
        for attribute, tree in trees.items()
    ]


def down(n: int, at: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yield, level by level, the events that have not passed their key, and the key of the level they are at.

    Parameters
    ----------
    n
        Number of keys.
    at
        The key of each event.

    Examples
    --------
    >>> [(which.tolist(), key.tolist()) for which, key in down(7, np.array([0, 3, 5]))]
    [([0, 1, 2], [3, 3, 3]), ([0, 2], [1, 5]), ([0], [0])]
    """
    which, low, high = np.arange(len(at)), np.zeros(len(at), np.int64), np.full(len(at), n - 1)
    while len(which):
        key = (low + high) // 2
        yield which, key
        left, right = at[which] < key, at[which] > key
        low, high = np.where(right, key + 1, low), np.where(left, key - 1, high)
        go = left | right
        which, low, high = which[go], low[go], high[go]


def visits(line: Line, at: Ints) -> tuple[Ints, Ints]:
    """Return the keys that events visit: pairs of an event and a key that has a segment for it.

    An event enters at its own key, which is always included (selective multicast: section III).
    """
    events, keys = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    held = line.held
    for which, key in down(len(line.density), at):
        value = at[which]
        there = (held.segments[key] > 0) & (held.first[key] <= value) & (value <= held.last[key])
        there |= key == value
        events.append(which[there])
        keys.append(key[there])
    return np.concatenate(events), np.concatenate(keys)


def holders(push: Flags, first: Ints, last: Ints, at: Ints) -> Ints:
    """For pairs of interval and event, return the key that has the piece of the interval with the event.

    Parameters
    ----------
    push
        For each key, whether it hands intervals down to the left, and to the right.
    first, last, at
        Intervals, and for each a key in it.

    Examples
    --------
    >>> push = np.array([[0, 0], [1, 0], [0, 0]], bool)
    >>> holders(push, np.array([0, 0]), np.array([2, 2]), np.array([0, 2])).tolist()
    [0, 1]
    """
    found = np.full(len(at), -1, np.int64)
    for which, key in down(len(push), at):
        value = at[which]
        covers = (first[which] <= key) & (key <= last[which])
        on = np.where(value < key, push[key, 0], push[key, 1]) & (value != key)
        stays = covers & ~on & (found[which] < 0)
        found[which[stays]] = key[stays]
    return found
