"""Segment lists of an interval tree's nodes: adding and removing segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.kernels.jit import kernel
from narrowcast.lab.kernels.cobas import HIGH, LOW, ROOM, SIZE, START, CobasNodes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Doubles = NDArray[np.float64]
    Flags = NDArray[np.bool_]
    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]

#: Lists shorter than this are sorted by insertion.
_SHORT = 16


@kernel
def spread(segment: Numbers, node: Numbers, n_nodes: int) -> tuple[Ints, Numbers]:
    """Return segments sorted by node (stable), and the position of each node's first segment."""
    at = np.zeros(n_nodes + 1, np.int64)
    for s in segment:
        at[node[s] + 1] += 1
    for i in range(n_nodes):
        at[i + 1] += at[i]
    to = at.copy()
    out = np.empty(len(segment), np.int32)
    for s in segment:
        out[to[node[s]]] = s
        to[node[s]] += 1
    return at, out


@kernel
def by_upper(at: Ints, segment: Numbers, last: Doubles) -> Numbers:
    """Return the segments of each node, at[i]:at[i + 1], by last value descending."""
    out = segment.copy()
    for i in range(len(at) - 1):
        if at[i + 1] - at[i] > _SHORT:
            part = segment[at[i] : at[i + 1]]
            out[at[i] : at[i + 1]] = part[np.argsort(-last[part], kind="mergesort")]
            continue
        for j in range(at[i] + 1, at[i + 1]):
            own = out[j]
            k = j
            while k > at[i] and last[out[k - 1]] < last[own]:
                out[k] = out[k - 1]
                k -= 1
            out[k] = own
    return out


@kernel
def room_needed(link: Ints, node: Ints, at: Ints) -> int:
    """Return the extra list space that nodes need for `at[i + 1] - at[i]` more segments each."""
    need = 0
    for i in range(len(node)):
        whole = link[node[i], SIZE] + at[i + 1] - at[i]
        if whole > link[node[i], ROOM]:
            need += whole if link[node[i], SIZE] == 0 else 2 * whole
    return need


@kernel
def _merge(
    end: Doubles, entry: Numbers, begin: int, size: int, to: int, ends: Doubles, more: Numbers, sign: float
) -> None:
    """Merge segments into a list, in place or at a new position, so that `sign` * end ascends.

    The new segments are sorted; equal ends stay in the order in which they were added.
    """
    i, j = size - 1, len(more) - 1
    while j >= 0:
        if i >= 0 and sign * end[begin + i] > sign * ends[more[j]]:
            end[to + i + j + 1], entry[to + i + j + 1] = end[begin + i], entry[begin + i]
            i -= 1
        else:
            end[to + i + j + 1], entry[to + i + j + 1] = ends[more[j]], more[j]
            j -= 1
    if to != begin:
        end[to : to + i + 1] = end[begin : begin + i + 1]
        entry[to : to + i + 1] = entry[begin : begin + i + 1]


@kernel
def _bound(nodes: CobasNodes, node: int) -> None:
    """Set the bounding interval of a node."""
    start = nodes.link[node, START]
    if nodes.link[node, SIZE]:
        nodes.number[node, LOW], nodes.number[node, HIGH] = nodes.lower_end[start], nodes.upper_end[start]
    else:
        nodes.number[node, LOW], nodes.number[node, HIGH] = np.inf, -np.inf


@kernel
def attach(
    nodes: CobasNodes,
    first: Doubles,
    last: Doubles,
    node: Ints,
    at: Ints,
    lower: Numbers,
    upper: Numbers,
    used: int,
) -> int:
    """Add segments to nodes: node[i] gets those of at[i]:at[i + 1].

    `lower` has the segments of each node by first value ascending, `upper` by last value descending. Returns
    the used length of the lists: a node without enough space moves to their end.
    """
    for i in range(len(node)):
        if at[i] == at[i + 1]:
            continue
        own = nodes.link[node[i]]
        begin, size, to = own[START], own[SIZE], own[START]
        whole = size + at[i + 1] - at[i]
        if whole > own[ROOM]:
            to, own[ROOM] = used, whole if size == 0 else 2 * whole
            used += own[ROOM]
        _merge(nodes.lower_end, nodes.lower, begin, size, to, first, lower[at[i] : at[i + 1]], 1.0)
        _merge(nodes.upper_end, nodes.upper, begin, size, to, last, upper[at[i] : at[i + 1]], -1.0)
        own[START], own[SIZE] = to, whole
        _bound(nodes, node[i])
    return used


@kernel
def detach(nodes: CobasNodes, node: Ints, gone: Flags) -> None:
    """Remove the marked segments from the lists of nodes."""
    for x in node:
        begin, size = nodes.link[x, START], nodes.link[x, SIZE]
        n = m = begin
        for i in range(begin, begin + size):
            nodes.lower_end[n], nodes.lower[n] = nodes.lower_end[i], nodes.lower[i]
            n += not gone[nodes.lower[i]]
            nodes.upper_end[m], nodes.upper[m] = nodes.upper_end[i], nodes.upper[i]
            m += not gone[nodes.upper[i]]
        nodes.link[x, SIZE] = n - begin
        _bound(nodes, x)


@kernel
def chained(head: Numbers, after: Numbers, owner: Ints) -> Numbers:
    """Return all segments of some intervals."""
    n = 0
    for o in owner:
        s = head[o]
        while s >= 0:
            n += 1
            s = after[s]
    out = np.empty(n, np.int32)
    n = 0
    for o in owner:
        s = head[o]
        while s >= 0:
            out[n] = s
            n += 1
            s = after[s]
    return out


@kernel
def neighbours(
    head: Numbers, after: Numbers, owner: Numbers, end: Doubles, segment: Numbers, wanted: float
) -> Numbers:
    """Return, for each segment, another of its interval with the given end; -1 if there is none."""
    out = np.full(len(segment), -1, np.int32)
    for i in range(len(segment)):
        s = head[owner[segment[i]]]
        while s >= 0:
            if end[s] == wanted and s != segment[i]:
                out[i] = s
            s = after[s]
    return out


@kernel
def unchain(head: Numbers, after: Numbers, owner: Numbers, segment: Numbers) -> None:
    """Remove segments from the chains of their intervals."""
    for s in segment:
        o = owner[s]
        if head[o] == s:
            head[o] = after[s]
            continue
        before = head[o]
        while after[before] != s:
            before = after[before]
        after[before] = after[s]
