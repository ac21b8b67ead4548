"""Forwarding of a value through a CobasTree: top-down, bottom-up, or by selective multicast (section III)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np

from narrowcast.lab.kernels import cobas as kernels
from narrowcast.lab.kernels.cobas import HEIGHT, KEY, SELECTIVE
from narrowcast.matching.index import CandidateBoxes
from narrowcast.model.matches import Matches
from narrowcast.validation import check_choice

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from narrowcast.lab.cobas.store import TreeArrays

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]

How = Literal["topdown", "sequential", "selective"]

#: Initial capacity for matches: per value, and a constant.
_EACH = 4
_ROOM = 1 << 12


class Forwarded(NamedTuple):
    """The matches of each value, and the messages and hops that forwarding it takes."""

    matches: Matches
    messages: Ints
    hops: Ints


class Journey(NamedTuple):
    """The path of one value: keys of the nodes that it visits, in order, with its messages and hops."""

    keys: list[float]
    messages: int
    hops: int


def forward(store: TreeArrays, values: Doubles, how: How) -> Forwarded:
    """Send each value through a tree, and match it at every node that it visits.

    `topdown` starts at the root and follows the search for the value to its end. The other two start at
    FIND_LEAF, a leaf below that end (the left one where there is a choice): starting at the paper's "closest
    key" loses matches. `sequential` goes from node to node up to the root; `selective` sends directly to
    those nodes above whose bounding interval contains the value.

    Every node but the first costs a message. Looking up the first one in the overlay is not counted, nor is
    delivery to subscribers. A value of NaN stands for a missing attribute: it is sent nowhere.
    """
    code = code_of(how)
    points, order = in_order(values)
    messages, hops = np.zeros((2, len(values)), np.int64)
    nodes = store.frozen()

    def find(event: int, found: Numbers, indptr: Ints) -> int:
        given = (nodes, store.root, store.n_intervals, points, code, event, found, indptr, messages, hops)
        return kernels.forward(*given)

    found = collected(find, len(values))
    matches = Matches.trusted(*kernels.put_back(*found, order))
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return Forwarded(matches, messages[back], hops[back])


def in_order(values: Doubles) -> tuple[Doubles, Ints]:
    """Return values sorted, so that neighbours have similar paths, and their original positions."""
    order = np.argsort(values)
    return values[order], order


def trace(store: TreeArrays, value: float, how: How) -> Journey:
    """Return the path of one value: see `forward`."""
    code = code_of(how)
    nodes = store.frozen()
    path = np.empty(int(store.link[store.root, HEIGHT]) if store.root >= 0 else 0, np.int64)
    n = kernels.way(nodes, store.root, value, code, path)
    messages = max(0, n - 1)
    keys: list[float] = store.number[path[:n], KEY].tolist()
    return Journey(keys, messages, min(1, messages) if code == SELECTIVE else messages)


def code_of(how: str) -> int:
    """Return the number that kernels use for a way of forwarding."""
    names = get_args(How)
    check_choice("how", how, names)
    return names.index(how)


def collected(find: Callable[[int, Numbers, Ints], int], n: int) -> CandidateBoxes:
    """Return the matches that a kernel finds for n events, with more room whenever it runs out.

    The kernel's arguments are the first event to match, the array to write to and the array of row ends. It
    returns the first event for which there was no room.
    """
    indptr = np.zeros(n + 1, np.int64)
    found = np.empty(_EACH * n + _ROOM, np.int32)
    done = 0
    while (done := find(done, found, indptr)) < n:
        used = int(indptr[done])
        # extrapolated from the events done so far
        expected = used * n // max(1, done) * 9 // 8
        longer = np.empty(max(2 * len(found), min(expected, 8 * len(found))), np.int32)
        longer[:used] = found[:used]
        found = longer
    return CandidateBoxes(indptr, found[: indptr[-1]])
