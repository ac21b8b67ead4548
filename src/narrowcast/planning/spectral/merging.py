"""K-means in a hierarchy of groups: what coordinators find, merge and hand on (tariq2012, section 4.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.planning.spectral.kmeans import kmeans, nearest, points_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    Doubles = NDArray[np.float64]
    Numbers = NDArray[np.int32]
    #: Of each level, from the members up to the root, the coordinates of each group.
    Levels = Sequence[Sequence[ArrayLike]]
    #: Of each level but the root's, the number in the level above of each group's parent.
    Parents = Sequence[Sequence[int]]

__all__ = ["GroupMeans", "Traffic", "hierarchical", "hp2pc", "sampled"]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What coordinators of groups send each other while they find clusters.

    Parameters
    ----------
    up, down
        Messages from groups to their parents, and from parents to groups.
    values_up, values_down
        Numbers in them.
    told
        Members who hear from their coordinator where the centres are.
    """

    up: int = 0
    down: int = 0
    values_up: int = 0
    values_down: int = 0
    told: int = 0

    @property
    def messages(self) -> int:
        """All messages, those to members among them."""
        return self.up + self.down + self.told


@dataclass(frozen=True, slots=True, eq=False)
class GroupMeans:
    """Clusters that a hierarchy of groups found.

    Parameters
    ----------
    label
        For each group of members, for each of them the number of its cluster: that of the nearest centre.
    centre
        The centres that the root found, no more than asked for. One may be nobody's nearest.
    traffic
        What it took.
    """

    label: list[Numbers]
    centre: Doubles
    traffic: Traffic


def sampled(
    levels: Levels, parents: Parents, n_clusters: int, *, rng: np.random.Generator, restarts: int = 1
) -> GroupMeans:
    """Return clusters around the centres that the root finds among the points that it has.

    The sampling method of tariq2012, section 4.3: the points of the root are a sample of all, its centres go
    down to everybody, and everybody goes to the nearest.

    Parameters
    ----------
    levels
        Of each level, members first and the root last, the coordinates of each group, all of one basis.
    parents
        Of each level but the last, the number of each group's parent in the level above.
    n_clusters, rng, restarts
        As for `kmeans`.

    Examples
    --------
    >>> members, root = [[[0.0], [1.0]], [[9.0], [8.0]]], [[[0.0], [9.0]]]
    >>> found = sampled([members, root], [[0, 0]], 2, rng=np.random.default_rng(1))
    >>> [label.tolist() for label in found.label], found.traffic.down, found.traffic.told
    ([[1, 1], [0, 0]], 2, 4)
    """
    groups = _groups(levels, parents)
    found = kmeans(groups[-1][0], n_clusters, rng=rng, restarts=restarts)
    return _announced(groups, found.centre, Traffic())


def hierarchical(
    levels: Levels,
    parents: Parents,
    n_clusters: int,
    *,
    rng: np.random.Generator,
    restarts: int = 1,
    selection: bool = True,
) -> GroupMeans:
    """Return clusters that groups find among their members and that their parents merge, up to the root.

    The hierarchical method of tariq2012, section 4.3. Selection: the root finds centres among its points, and
    every group, from the root down, begins with the centres of its parent and hands on what they become.
    Merge: centres go up with the number of their members, and each parent clusters those of its children by
    these weights. The centres of the root go down to everybody, and everybody goes to the nearest.

    Parameters
    ----------
    levels, parents, n_clusters, rng, restarts
        As for `sampled`; the points of levels between members and root only count for the selection.
    selection
        Whether there is one; without, groups of members begin with draws of their own (HP2PC).

    Examples
    --------
    >>> members, root = [[[0.0], [1.0]], [[9.0], [8.0]]], [[[0.0], [9.0]]]
    >>> found = hierarchical([members, root], [[0, 0]], 2, rng=np.random.default_rng(1))
    >>> found.centre.ravel().tolist(), found.traffic
    ([8.5, 0.5], Traffic(up=2, down=4, values_up=8, values_down=8, told=4))
    """
    groups = _groups(levels, parents)
    traffic = Traffic()
    started: list[Doubles | None] = [None] * len(groups[0])
    if selection and len(groups) > 1:
        started, traffic = _selected(groups, parents, n_clusters, rng, restarts)
    found = [
        kmeans(points, n_clusters, rng=rng, restarts=restarts, start=_filled(start, n_clusters))
        for points, start in zip(groups[0], started, strict=True)
    ]
    centres = [each.centre for each in found]
    counts = [each.size.astype(np.float64) for each in found]
    for above, parent in zip(groups[1:], parents, strict=True):
        traffic = _more(traffic, up=len(centres), values_up=sum(c.size + len(c) for c in centres))
        merged = [
            _merged(
                [c for c, p in zip(centres, parent, strict=True) if p == g],
                [n for n, p in zip(counts, parent, strict=True) if p == g],
                n_clusters,
                rng,
                restarts,
            )
            for g in range(len(above))
        ]
        centres, counts = [centre for centre, _ in merged], [count for _, count in merged]
    return _announced(groups, centres[0], traffic)


def hp2pc(
    levels: Levels, parents: Parents, n_clusters: int, *, rng: np.random.Generator, restarts: int = 1
) -> GroupMeans:
    """Return clusters that groups find on their own and that their parents merge: no selection.

    Parameters
    ----------
    levels, parents, n_clusters, rng, restarts
        As for `hierarchical`.

    Examples
    --------
    >>> members, root = [[[0.0], [1.0]], [[9.0], [8.0]]], [[[0.0], [9.0]]]
    >>> hp2pc([members, root], [[0, 0]], 2, rng=np.random.default_rng(1)).traffic
    Traffic(up=2, down=2, values_up=8, values_down=4, told=4)
    """
    return hierarchical(levels, parents, n_clusters, rng=rng, restarts=restarts, selection=False)


def _selected(
    groups: list[list[Doubles]], parents: Parents, n_clusters: int, rng: np.random.Generator, restarts: int
) -> tuple[list[Doubles | None], Traffic]:
    """Return the centres that each group of members begins with, handed down from the root."""
    centres: list[Doubles] = [kmeans(groups[-1][0], n_clusters, rng=rng, restarts=restarts).centre]
    traffic = Traffic()
    for depth in range(len(groups) - 2, -1, -1):
        handed = [centres[p] for p in parents[depth]]
        traffic = _more(traffic, down=len(handed), values_down=sum(each.size for each in handed))
        if depth == 0:
            return list(handed), traffic
        centres = [
            kmeans(points, n_clusters, rng=rng, start=_filled(start, n_clusters)).centre
            if len(points)
            else start
            for points, start in zip(groups[depth], handed, strict=True)
        ]
    raise AssertionError("a hierarchy has a level of members")


def _filled(start: Doubles | None, n_clusters: int) -> Doubles | None:
    """Return as many centres as clusters: copies of the first have no points and go where these are far."""
    if start is None or len(start) == 0:
        return None
    return np.concatenate([start, np.repeat(start[:1], n_clusters - len(start), axis=0)])


def _merged(
    centres: list[Doubles],
    counts: list[Doubles],
    n_clusters: int,
    rng: np.random.Generator,
    restarts: int,
) -> tuple[Doubles, Doubles]:
    """Return the centres of centres by the numbers of their members, and the numbers of theirs."""
    points, weight = np.concatenate(centres), np.concatenate(counts)
    found = kmeans(points, n_clusters, rng=rng, weight=weight, restarts=restarts)
    return found.centre, np.asarray(np.bincount(found.label, weight, len(found.centre)), np.float64)


def _announced(groups: list[list[Doubles]], centre: Doubles, traffic: Traffic) -> GroupMeans:
    """Return everybody at the nearest centre, once all groups have been told where the centres are."""
    edges = sum(len(level) for level in groups[:-1])
    members = sum(len(points) for points in groups[0])
    traffic = _more(traffic, down=edges, values_down=edges * centre.size, told=members)
    label = [nearest(points, centre) if len(points) else np.zeros(0, np.int32) for points in groups[0]]
    return GroupMeans(label, centre, traffic)


def _more(traffic: Traffic, **added: int) -> Traffic:
    """Return traffic and what came on top of it."""
    return replace(traffic, **{name: getattr(traffic, name) + value for name, value in added.items()})


def _groups(levels: Levels, parents: Parents) -> list[list[Doubles]]:
    """Return the points of all groups, once it is sure that each has a parent, up to one root."""
    groups = [[points_of(points) for points in level] for level in levels]
    if not groups or len(groups[-1]) != 1 or len(parents) != len(groups) - 1:
        raise ParameterError(
            f"{[len(level) for level in groups]} groups by level and {len(parents)} lists of parents; "
            "give one group at the last level, the root, and parents for every level before"
        )
    for depth, (level, parent) in enumerate(zip(groups, parents, strict=False)):
        childless = sorted(set(range(len(groups[depth + 1]))) - set(parent))
        if len(parent) != len(level) or childless or not set(parent) <= set(range(len(groups[depth + 1]))):
            raise ParameterError(
                f"the {len(level)} groups of level {depth} have parents {list(parent)}; name for each one of "
                f"the {len(groups[depth + 1])} groups above, and each of these at least once"
            )
    wide = sorted({points.shape[1] for level in groups for points in level})
    if len(wide) > 1:
        raise ParameterError(f"groups have points of {wide} coordinates; give all of them as many")
    if len(groups[-1][0]) == 0 and any(len(points) for points in groups[0]):
        raise ParameterError("the root has no points; give it some of the members as a sample")
    return groups
