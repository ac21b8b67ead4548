"""K-means in a hierarchy of groups: groups find centres, parents merge them (tariq2012, section 4.3)."""

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
    #: Coordinates of each group, for each level from the members up to the root.
    Levels = Sequence[Sequence[ArrayLike]]
    #: Number of each group's parent in the level above, for each level but the root's.
    Parents = Sequence[Sequence[int]]

__all__ = [
    "GroupMeans",
    "MergeStart",
    "MergeTraffic",
    "MergeWork",
    "group_means",
    "hierarchical",
    "hp2pc",
    "merge_centres",
    "sampled",
]


@dataclass(frozen=True, slots=True)
class MergeTraffic:
    """Messages between coordinators of groups, and from them to members, while clusters are found.

    Parameters
    ----------
    up, down
        Messages from groups to their parents, and from parents to groups.
    values_up, values_down
        Numbers in these messages.
    to_members
        Messages in which members receive the centres from their coordinator.
    """

    up: int = 0
    down: int = 0
    values_up: int = 0
    values_down: int = 0
    to_members: int = 0

    @property
    def messages(self) -> int:
        """All messages, those to members included."""
        return self.up + self.down + self.to_members


@dataclass(frozen=True, slots=True, eq=False)
class MergeStart:
    """The initial state of k-means in a group.

    Parameters
    ----------
    centre
        Centres received from the parent; None or empty for random ones.
    draws
        Seed of random centres.
    """

    centre: Doubles | None = None
    draws: int = 0


class MergeWork(Protocol):
    """A function that runs `group_means` in all groups of a level, each on its own points."""

    def __call__(self, depth: int, starts: list[MergeStart]) -> list[tuple[Doubles, Doubles]]:
        """Return the centres of each group of a level, and the number of points at each."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class GroupMeans:
    """Clusters found by a hierarchy of groups.

    Parameters
    ----------
    label
        For each group of members, the cluster number of each member: that of the nearest centre.
    centre
        The centres found by the root, at most as many as requested. A centre may be nearest to no member.
    traffic
        Messages sent.
    """

    label: list[Numbers]
    centre: Doubles
    traffic: MergeTraffic


def sampled(
    levels: Levels, parents: Parents, n_clusters: int, *, rng: np.random.Generator, restarts: int = 1
) -> GroupMeans:
    """Cluster all members around the centres that the root finds among its own points.

    The sampling method of tariq2012, section 4.3: the points of the root are a sample of all points; its
    centres are sent down to all members, and each member joins the nearest.

    Parameters
    ----------
    levels
        For each level, members first and the root last, the coordinates of each group, all in one basis.
    parents
        For each level but the last, the number of each group's parent in the level above.
    n_clusters, rng, restarts
        As for `kmeans`.

    Examples
    --------
    >>> members, root = [[[0.0], [1.0]], [[9.0], [8.0]]], [[[0.0], [9.0]]]
    >>> found = sampled([members, root], [[0, 0]], 2, rng=np.random.default_rng(1))
    >>> [label.tolist() for label in found.label], found.traffic.down, found.traffic.to_members
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
    """Cluster all members by centres that groups find and that their parents merge, up to the root.

    The hierarchical method of tariq2012, section 4.3. Selection: the root finds centres among its points, and
    every group, from the root down, starts with the centres of its parent and passes on its result. Merge:
    centres are sent up with the numbers of their members, and each parent clusters those of its children with
    these weights. The centres of the root are sent down to all members, and each member joins the nearest.

    Parameters
    ----------
    levels, parents, n_clusters, rng, restarts
        As for `sampled`; points of levels between members and root matter for the selection only.
    selection
        Whether there is a selection; without it, groups of members start with random centres (HP2PC).

    Examples
    --------
    >>> members, root = [[[0.0], [1.0]], [[9.0], [8.0]]], [[[0.0], [9.0]]]
    >>> found = hierarchical([members, root], [[0, 0]], 2, rng=np.random.default_rng(1))
    >>> found.centre.ravel().tolist(), found.traffic
    ([8.5, 0.5], MergeTraffic(up=2, down=4, values_up=8, values_down=8, to_members=4))
    """
    groups = _groups(levels, parents)

    def work(depth: int, starts: list[MergeStart]) -> list[tuple[Doubles, Doubles]]:
        pairs = zip(groups[depth], starts, strict=True)
        return [group_means(points, start, n_clusters, restarts) for points, start in pairs]

    centre, traffic = merge_centres(
        work, groups[-1][0], parents, n_clusters, rng=rng, restarts=restarts, selection=selection
    )
    return _announced(groups, centre, traffic)


def hp2pc(
    levels: Levels, parents: Parents, n_clusters: int, *, rng: np.random.Generator, restarts: int = 1
) -> GroupMeans:
    """Cluster all members by centres that groups find from random starts and that their parents merge.

    This is `hierarchical` without selection (HP2PC in tariq2012).

    Parameters
    ----------
    levels, parents, n_clusters, rng, restarts
        As for `hierarchical`.

    Examples
    --------
    >>> members, root = [[[0.0], [1.0]], [[9.0], [8.0]]], [[[0.0], [9.0]]]
    >>> hp2pc([members, root], [[0, 0]], 2, rng=np.random.default_rng(1)).traffic
    MergeTraffic(up=2, down=2, values_up=8, values_down=4, to_members=4)
    """
    return hierarchical(levels, parents, n_clusters, rng=rng, restarts=restarts, selection=False)


def group_means(
    points: Doubles, start: MergeStart, n_clusters: int, restarts: int = 1
) -> tuple[Doubles, Doubles]:
    """Return the centres that one group finds among its points, and the number of points at each.

    Parameters
    ----------
    points
        The points of the group.
    start
        Initial centres, or the seed of random ones.
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


def merge_centres(
    work: MergeWork,
    root: Doubles,
    parents: Parents,
    n_clusters: int,
    *,
    rng: np.random.Generator,
    restarts: int = 1,
    selection: bool = True,
) -> tuple[Doubles, MergeTraffic]:
    """Return the centres of the root after selection and merge, and the messages sent: see `hierarchical`.

    `work` does the work of groups, in this process or where their points are; only centres are exchanged.

    Parameters
    ----------
    work
        Function that runs `group_means` in all groups of a level, given the level and their initial states.
    root
        The points of the root.
    parents, n_clusters, rng, restarts, selection
        See `hierarchical`. A group without initial centres has a random generator of its own.
    """
    traffic = MergeTraffic()
    if not parents:
        return kmeans(root, n_clusters, rng=rng, restarts=restarts).centre, traffic
    if selection:
        starts, traffic = _selection(work, root, parents, n_clusters, rng, restarts)
    else:
        starts = [MergeStart(draws=each) for each in rng.integers(2**63, size=len(parents[0])).tolist()]
    found = work(0, starts)
    for parent in parents:
        traffic = _plus(traffic, up=len(found), values_up=sum(c.size + len(c) for c, _ in found))
        below: list[list[tuple[Doubles, Doubles]]] = [[] for _ in range(max(parent) + 1)]
        for each, number in zip(found, parent, strict=True):
            below[number].append(each)
        found = [_merge(some, n_clusters, rng, restarts) for some in below]
    return found[0][0], traffic


def _selection(
    work: MergeWork, root: Doubles, parents: Parents, n_clusters: int, rng: np.random.Generator, restarts: int
) -> tuple[list[MergeStart], MergeTraffic]:
    """Return the initial centres of each group of members, passed down from the root."""
    centres: list[Doubles] = [kmeans(root, n_clusters, rng=rng, restarts=restarts).centre]
    traffic = MergeTraffic()
    for depth in range(len(parents) - 1, -1, -1):
        received = [centres[p] for p in parents[depth]]
        starts = [MergeStart(centre) for centre in received]
        traffic = _plus(traffic, down=len(received), values_down=sum(each.size for each in received))
        if depth:
            found = zip(work(depth, starts), received, strict=True)
            # A group without points passes on the centres that it received.
            centres = [centre if len(centre) else before for (centre, _), before in found]
    return starts, traffic


def _filled(start: Doubles | None, n_clusters: int) -> Doubles | None:
    """Pad centres to one per cluster with copies of the first, which k-means moves to far points."""
    if start is None or len(start) == 0:
        return None
    return np.concatenate([start, np.repeat(start[:1], n_clusters - len(start), axis=0)])


def _merge(
    found: list[tuple[Doubles, Doubles]], n_clusters: int, rng: np.random.Generator, restarts: int
) -> tuple[Doubles, Doubles]:
    """Return centres of weighted centres, and the sums of their weights."""
    points, weight = (np.concatenate(each) for each in zip(*found, strict=True))
    means = kmeans(points, n_clusters, rng=rng, weight=weight, restarts=restarts)
    return means.centre, np.asarray(np.bincount(means.label, weight, len(means.centre)), np.float64)


def _announced(groups: list[list[Doubles]], centre: Doubles, traffic: MergeTraffic) -> GroupMeans:
    """Assign all members to the nearest centre, and count the messages that send centres down."""
    edges = sum(len(level) for level in groups[:-1])
    members = sum(len(points) for points in groups[0])
    traffic = _plus(traffic, down=edges, values_down=edges * centre.size, to_members=members)
    label = [nearest(points, centre) if len(points) else np.zeros(0, np.int32) for points in groups[0]]
    return GroupMeans(label, centre, traffic)


def _plus(traffic: MergeTraffic, **added: int) -> MergeTraffic:
    """Return traffic with some counts increased."""
    return replace(traffic, **{name: getattr(traffic, name) + value for name, value in added.items()})


def _groups(levels: Levels, parents: Parents) -> list[list[Doubles]]:
    """Return the points of all groups; refuse levels that do not form a tree with one root."""
    groups = [[points_of(points) for points in level] for level in levels]
    if not groups or len(groups[-1]) != 1 or len(parents) != len(groups) - 1:
        raise ParameterError(
            f"levels have {[len(level) for level in groups]} groups, with {len(parents)} lists of parents: "
            "must end with one group, the root, and have parents for every level before",
            parameter="parents",
            value=len(parents),
            limit="a list for every level but the root's",
        )
    for depth, (level, parent) in enumerate(zip(groups, parents, strict=False)):
        childless = sorted(set(range(len(groups[depth + 1]))) - set(parent))
        if len(parent) != len(level) or childless or not set(parent) <= set(range(len(groups[depth + 1]))):
            raise ParameterError(
                f"the {len(level)} groups of level {depth} have parents {list(parent)}: must be one of the "
                f"{len(groups[depth + 1])} groups above for each, and each of these at least once",
                parameter="parents",
                value=list(parent),
                limit=f"one of the {len(groups[depth + 1])} groups above for each group",
            )
    wide = sorted({points.shape[1] for level in groups for points in level})
    if len(wide) > 1:
        raise ParameterError(
            f"levels have points of {wide} coordinates: must be the same number for all groups",
            parameter="levels",
            value=wide,
            limit="points of one dimension",
        )
    if len(groups[-1][0]) == 0 and any(len(points) for points in groups[0]):
        raise ParameterError(
            "levels: the root has no points: must have some of the members as a sample",
            parameter="levels",
            value=0,
            limit="points in the root",
        )
    return groups
