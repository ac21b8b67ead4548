"""Coordinates that groups find each by itself and bring to one basis, level by level (tariq2012, section 4).

What a group does takes its own histories and what it was told: `EmbeddingSpace.local`, `EmbeddingSpace.projection`. Here the
groups of a tree do so one after the other; a job on Spark or a simulation of peers can call the same for
each.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.lab.spectral.groups import admitted
from narrowcast.lab.spectral.projection import Projection
from narrowcast.lab.spectral.space import Above, EmbeddingSpace, LocalSpace, SpaceFrame
from narrowcast.lab.spectral.traffic import (
    HierarchyReport,
    WorkStep,
    bytes_of_coordinates,
    bytes_of_histories,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.lab.spectral.tree import GroupTree, RowGroup
    from narrowcast.model.relation import Relation

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["CoordinateTable", "Hierarchy", "Projected", "embedded", "tabled"]


@dataclass(frozen=True, slots=True, eq=False)
class Projected:
    """A group that knows where its members are for all: what a coordinator keeps.

    Parameters
    ----------
    frame
        Where rows are in the group by itself.
    projection
        What brings these coordinates to those of all.
    compared
        The numbers of the rows that the frame compares others with, in its order.
    """

    frame: SpaceFrame
    projection: Projection
    compared: Ints

    def place(self, rows: Relation) -> Doubles:
        """Return where new rows are, without computing anything anew (section 5)."""
        return self.projection(self.frame.place(rows))


@dataclass(frozen=True, slots=True, eq=False)
class Hierarchy:
    """Rows with coordinates by groups.

    Parameters
    ----------
    tree
        Who is in which group.
    lowest
        What the coordinators of the lowest level keep.
    levels
        Of each level, the lowest first, where the members of each group are for all.
    coordinates
        Where each row is.
    report
        What it took.
    """

    tree: GroupTree
    lowest: list[Projected]
    levels: list[list[Doubles]]
    coordinates: Doubles
    report: HierarchyReport

    def place(self, rows: Relation, first: Ints | None = None) -> Doubles:
        """Return where new rows are, by the group that admits each.

        Parameters
        ----------
        rows
            Histories.
        first
            The group that each asks first: see `admitted`; in turn where left out. Who shares no event with
            any group stays with the first.
        """
        reach = self.tree.base.reach
        asked = np.arange(rows.shape[0]) % len(reach) if first is None else first
        to = admitted(rows, asked, reach)
        to = np.where(to < 0, asked, to)
        found = np.zeros((rows.shape[0], self.coordinates.shape[1]))
        for number, group in enumerate(self.lowest):
            some = np.flatnonzero(to == number)
            if len(some):
                found[some] = group.place(rows[some])
        return found

    def refreshed(self, rows: Relation) -> Doubles:
        """Return where the rows are by newer histories and the projections that are there (section 5).

        What members are compared with has newer histories as well; neither a basis nor a projection is
        computed. It will do for as long as events change little.
        """
        if rows.shape[0] != len(self.coordinates):
            raise ParameterError(
                f"there are {rows.shape[0]} newer histories of {len(self.coordinates)} rows; give as many"
            )
        found = np.zeros(self.coordinates.shape)
        for group, kept in zip(self.tree.levels[0], self.lowest, strict=True):
            frame = kept.frame.moved(rows[kept.compared])
            others = np.setdiff1d(group.members, kept.compared)
            found[kept.compared] = kept.projection(frame.own)
            found[others] = kept.projection(frame.place(rows[others]))
        return found


@dataclass(frozen=True, slots=True, eq=False)
class CoordinateTable:
    """Rows with coordinates by one table that everybody hears: the landmarks of the root.

    Parameters
    ----------
    tree
        Who is in which group.
    frame
        The root's, which is the table.
    levels
        Of each level, the lowest first, where the members of each group are.
    coordinates
        Where each row is.
    report
        What it took.
    """

    tree: GroupTree
    frame: SpaceFrame
    levels: list[list[Doubles]]
    coordinates: Doubles
    report: HierarchyReport

    def place(self, rows: Relation) -> Doubles:
        """Return where new rows are."""
        return self.frame.place(rows)

    def refreshed(self, rows: Relation) -> Doubles:
        """Return where the rows are by newer histories and the basis that is there."""
        root = self.tree.root.members
        frame = self.frame.moved(rows[root])
        found = frame.place(rows)
        found[root] = frame.own
        return found


def embedded(space: EmbeddingSpace, rows: Relation, tree: GroupTree) -> Hierarchy:
    """Return coordinates as published: each group its own basis, projected onto that of the group above.

    Two things differ from the paper: projections have an offset, unless the space is told otherwise, and by
    normalised cut a landmark shares no weight with itself in the group above. Both keep neighbours better.

    Parameters
    ----------
    space
        Ratio association or normalised cut.
    rows
        Histories, none of them empty.
    tree
        Who is in which group.

    Examples
    --------
    >>> from narrowcast.model.relation import relation
    >>> from narrowcast.lab.spectral.space import Association
    >>> from narrowcast.lab.spectral.tree import GroupTree
    >>> rows = relation(np.random.default_rng(0).random((80, 30)) < 0.2)
    >>> space = Association(dimensions=4)
    >>> found = embedded(space, rows, GroupTree.of(rows, levels=2, groups=4, landmarks=0.5))
    >>> found.coordinates.shape, found.report.total(lambda step: step.what == "landmarks").rows
    ((80, 4), 30)
    """
    report = _gathered(rows, tree)
    locals_: list[list[LocalSpace]] = []
    for level in tree.levels:
        here = []
        for group in level:
            begun = time.perf_counter()
            own = rows[group.members]
            here.append(_root(space, own) if group.parent < 0 else space.local(own, group.landmarks))
            report.add(WorkStep(group.level, group.number, "local", seconds=time.perf_counter() - begun))
        locals_.append(here)
    above = [locals_[-1][0].coordinates]
    dimensions, levels = above[0].shape[1], [above]
    same = Projection.of(np.eye(dimensions), offset=False)
    lowest = [Projected(locals_[-1][0].frame, same, tree.root.members)]
    for level in reversed(tree.levels[:-1]):
        here_, lowest = [], []
        for group in level:
            parent = tree.levels[group.level + 1][group.parent]
            told = _told(group, parent, rows, above[group.parent], tree)
            local, begun = locals_[group.level][group.number], time.perf_counter()
            projection = space.projection(local, rows[group.members], group.landmarks, told)
            compared = group.members if space.whole else group.members[group.landmarks]
            lowest.append(Projected(local.frame, projection, compared))
            here_.append(projection(local.coordinates))
            seconds = time.perf_counter() - begun
            if _sent(group, tree):
                report.add(_heard(space, group, parent, rows, dimensions))
            report.add(WorkStep(group.level, group.number, "projection", seconds=seconds))
        above = here_
        levels.insert(0, above)
    coordinates = np.zeros((rows.shape[0], dimensions))
    for group, points in zip(tree.levels[0], above, strict=True):
        coordinates[group.members] = points
    _spread(report, tree, dimensions)
    return Hierarchy(tree, lowest, levels, coordinates, report)


def tabled(space: EmbeddingSpace, rows: Relation, tree: GroupTree) -> CoordinateTable:
    """Return coordinates by the root's landmarks alone, which everybody is compared with.

    Coordinators hear the histories of the root's members, their basis and its mean: no group has a basis of
    its own, and no error adds up level by level.

    Parameters
    ----------
    space, rows, tree
        See `embedded`.
    """
    report = _gathered(rows, tree)
    root, begun = tree.root, time.perf_counter()
    frame = space.frame(rows[root.members])
    report.add(WorkStep(root.level, 0, "local", seconds=time.perf_counter() - begun))
    dimensions = frame.own.shape[1]
    size = bytes_of_histories(frame.rows) + bytes_of_coordinates(frame.rows.shape[0] + 1, dimensions)
    coordinates = np.zeros((rows.shape[0], dimensions))
    for level in reversed(tree.levels[:-1]):
        for group in filter(lambda each: _sent(each, tree), level):
            report.add(WorkStep(group.level, group.number, "table", 1, frame.rows.shape[0], size))
    for group in tree.levels[0]:
        begun = time.perf_counter()
        coordinates[group.members] = frame.place(rows[group.members])
        report.add(WorkStep(0, group.number, "projection", seconds=time.perf_counter() - begun))
    coordinates[root.members] = frame.own
    _spread(report, tree, dimensions)
    levels = [[coordinates[group.members] for group in level] for level in tree.levels]
    return CoordinateTable(tree, frame, levels, coordinates, report)


def _root(space: EmbeddingSpace, rows: Relation) -> LocalSpace:
    """Return the highest group: all its members are landmarks."""
    frame = space.frame(rows)
    return LocalSpace(frame, frame.own)


def _told(group: RowGroup, parent: RowGroup, rows: Relation, above: Doubles, tree: GroupTree) -> Above:
    """Return what a group hears: where members of the group above are, its own landmarks among them."""
    before = sum(len(g.landmarks) for g in tree.below(parent) if g.number < group.number)
    return Above(rows[parent.members], above, np.arange(before, before + len(group.landmarks)))


def _gathered(rows: Relation, tree: GroupTree) -> HierarchyReport:
    """Return a report of what goes up: histories of members, and of landmarks."""
    report = HierarchyReport()
    for group in tree.levels[0]:
        own = rows[group.members[group.members != group.coordinator]]
        count = own.shape[0]
        report.add(WorkStep(0, group.number, "histories", count, count, bytes_of_histories(own)))
    for level in tree.levels[:-1]:
        for group in level:
            if _sent(group, tree):
                own = rows[group.members[group.landmarks]]
                size = bytes_of_histories(own)
                report.add(WorkStep(group.level, group.number, "landmarks", 1, own.shape[0], size))
    return report


def _sent(group: RowGroup, tree: GroupTree) -> bool:
    """Return whether a group and the one above it are two peers' business: nobody sends itself anything."""
    return group.coordinator != tree.levels[group.level + 1][group.parent].coordinator


def _heard(
    space: EmbeddingSpace, group: RowGroup, parent: RowGroup, rows: Relation, dimensions: int
) -> WorkStep:
    """Return what a group is sent: where its landmarks are, or all members above with their histories."""
    count = len(parent.members) if space.whole else len(group.landmarks)
    size = bytes_of_coordinates(count, dimensions)
    size += bytes_of_histories(rows[parent.members]) if space.whole else 0
    return WorkStep(group.level, group.number, "parent", 1, count, size)


def _spread(report: HierarchyReport, tree: GroupTree, dimensions: int) -> None:
    """Add that members hear where they are."""
    for group in tree.levels[0]:
        count = max(len(group.members) - 1, 0)
        size = bytes_of_coordinates(count, dimensions)
        report.add(WorkStep(0, group.number, "coordinates", count, count, size))
