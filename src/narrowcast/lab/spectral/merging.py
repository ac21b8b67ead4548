"""K-means in a hierarchy of groups: what coordinators find, merge and hand on (tariq2012, section 4.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.lab.spectral.kmeans import kmeans, nearest, points_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    Doubles = NDArray[np.float64]
    Numbers = NDArray[np.int32]
    #: Of each level, from the members up to the root, the coordinates of each group.
    Levels = Sequence[Sequence[ArrayLike]]
    #: Of each level but the root's, the number in the level above of each group's parent.
    Parents = Sequence[Sequence[int]]

__all__ = [
    "GroupMeans",
    "MergeStart",
    "MergeTraffic",
    "MergeWork",
    "group_means",
    "hierarchical",
    "hp2pc",
    "merged",
    "sampled",
]


@dataclass(frozen=True, slots=True)
class MergeTraffic:
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
class MergeStart:
    """What a group begins k-means with.

    Parameters
    ----------
    centre
        Centres that it was handed; None, or none of them, for draws of its own.
    draws
        The seed of these.
    """

    centre: Doubles | None = None
    draws: int = 0


class MergeWork(Protocol):
    """What has the groups of a level look for clusters, each among its points: see `group_means`."""

    def __call__(self, depth: int, starts: list[MergeStart]) -> list[tuple[Doubles, Doubles]]:
        """Return the centres of each group of a level, and how many are at each."""
        ...


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
    traffic: MergeTraffic


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
    return _announced(groups, found.centre, MergeTraffic())


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

    def work(depth: int, starts: list[MergeStart]) -> list[tuple[Doubles, Doubles]]:
        pairs = zip(groups[depth], starts, strict=True)
        return [group_means(points, start, n_clusters, restarts) for points, start in pairs]

    centre, traffic = merged(
        work, groups[-1][0], parents, n_clusters, rng=rng, restarts=restarts, selection=selection
    )
    return _announced(groups, centre, traffic)


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


def group_means(
    points: Doubles, start: MergeStart, n_clusters: int, restarts: int = 1
) -> tuple[Doubles, Doubles]:
    """Return the centres that one group finds among its points, and how many are at each.

    Parameters
    ----------
    points
        Those of the group.
    start
        What it begins with.
    n_clusters, restarts
        As for `kmeans`.

    Examples
    --------
    >>> centre, count = group_means(np.array([[0.0], [1.0], [9.0]]), MergeStart(np.array([[8.0], [2.0]])), 2)
    >>> centre.ravel().tolist(), count.tolist()
    ([9.0, 0.5], [1.0, 2.0])
    """
    rng = np.random.default_rng(start.draws)
    found = kmeans(points, n_clusters, rng=rng, restarts=restarts, start=_filled(start.centre, n_clusters))
    return found.centre, found.size.astype(np.float64)


def merged(
    work: MergeWork,
    root: Doubles,
    parents: Parents,
    n_clusters: int,
    *,
    rng: np.random.Generator,
    restarts: int = 1,
    selection: bool = True,
) -> tuple[Doubles, MergeTraffic]:
    """Return the centres that the root ends up with, and what it took: see `hierarchical`.

    What groups do is left to `work`, here or wherever their points are; only centres come and go.

    Parameters
    ----------
    work
        What has all groups of a level do `group_means`, given the level and what each begins with.
    root
        The points of the root.
    parents, n_clusters, rng, restarts, selection
        See `hierarchical`. A group that begins with nothing draws from a source of its own.
    """
    traffic = MergeTraffic()
    if not parents:
        return kmeans(root, n_clusters, rng=rng, restarts=restarts).centre, traffic
    if selection:
        starts, traffic = _selected(work, root, parents, n_clusters, rng, restarts)
    else:
        starts = [MergeStart(draws=each) for each in rng.integers(2**63, size=len(parents[0])).tolist()]
    found = work(0, starts)
    for parent in parents:
        traffic = _more(traffic, up=len(found), values_up=sum(c.size + len(c) for c, _ in found))
        below: list[list[tuple[Doubles, Doubles]]] = [[] for _ in range(max(parent) + 1)]
        for each, number in zip(found, parent, strict=True):
            below[number].append(each)
        found = [_merged(some, n_clusters, rng, restarts) for some in below]
    return found[0][0], traffic


def _selected(
    work: MergeWork, root: Doubles, parents: Parents, n_clusters: int, rng: np.random.Generator, restarts: int
) -> tuple[list[MergeStart], MergeTraffic]:
    """Return what each group of members begins with: centres, handed down from the root."""
    centres: list[Doubles] = [kmeans(root, n_clusters, rng=rng, restarts=restarts).centre]
    traffic = MergeTraffic()
    for depth in range(len(parents) - 1, -1, -1):
        handed = [centres[p] for p in parents[depth]]
        starts = [MergeStart(centre) for centre in handed]
        traffic = _more(traffic, down=len(handed), values_down=sum(each.size for each in handed))
        if depth:
            found = zip(work(depth, starts), handed, strict=True)
            # A group without points hands on what it was handed.
            centres = [centre if len(centre) else before for (centre, _), before in found]
    return starts, traffic


def _filled(start: Doubles | None, n_clusters: int) -> Doubles | None:
    """Return as many centres as clusters: copies of the first have no points and go where these are far."""
    if start is None or len(start) == 0:
        return None
    return np.concatenate([start, np.repeat(start[:1], n_clusters - len(start), axis=0)])


def _merged(
    found: list[tuple[Doubles, Doubles]], n_clusters: int, rng: np.random.Generator, restarts: int
) -> tuple[Doubles, Doubles]:
    """Return the centres of centres by the numbers of their members, and the numbers of theirs."""
    points, weight = (np.concatenate(each) for each in zip(*found, strict=True))
    means = kmeans(points, n_clusters, rng=rng, weight=weight, restarts=restarts)
    return means.centre, np.asarray(np.bincount(means.label, weight, len(means.centre)), np.float64)


def _announced(groups: list[list[Doubles]], centre: Doubles, traffic: MergeTraffic) -> GroupMeans:
    """Return everybody at the nearest centre, once all groups have been told where the centres are."""
    edges = sum(len(level) for level in groups[:-1])
    members = sum(len(points) for points in groups[0])
    traffic = _more(traffic, down=edges, values_down=edges * centre.size, told=members)
    label = [nearest(points, centre) if len(points) else np.zeros(0, np.int32) for points in groups[0]]
    return GroupMeans(label, centre, traffic)


def _more(traffic: MergeTraffic, **added: int) -> MergeTraffic:
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
