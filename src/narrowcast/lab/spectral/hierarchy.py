"""Coordinates of rows by groups: each has its own basis and projects onto that of the group above.

This is tariq2012, section 4. The work of a group takes only its own histories and the data it receives from
the group above: `EmbeddingSpace.local`, `EmbeddingSpace.projection`. Here the groups of a tree do it one
after the other; a Spark job or a simulation of peers can call the same for each.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.lab.spectral.groups import admitting_groups
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
    """A group of the lowest level that can place rows in the common coordinates.

    Parameters
    ----------
    frame
        Coordinates of rows in the group's own basis.
    projection
        The map from these coordinates to the common ones.
    compared
        Numbers of the rows that new rows are compared with, in the order of the frame.
    """

    frame: SpaceFrame
    projection: Projection
    compared: Ints

    def place(self, rows: Relation) -> Doubles:
        """Return the coordinates of new rows, by the current basis and projection (section 5)."""
        return self.projection(self.frame.place(rows))


@dataclass(frozen=True, slots=True, eq=False)
class Hierarchy:
    """Coordinates of rows by a hierarchy of groups.

    Parameters
    ----------
    tree
        Members of each group.
    lowest
        Frames and projections of the groups of the lowest level.
    levels
        For each level, the lowest first, the common coordinates of the members of each group.
    coordinates
        Common coordinates of each row.
    report
        Messages and time.
    """

    tree: GroupTree
    lowest: list[Projected]
    levels: list[list[Doubles]]
    coordinates: Doubles
    report: HierarchyReport

    def place(self, rows: Relation, first: Ints | None = None) -> Doubles:
        """Return the coordinates of new rows, each by the group that admits it.

        Parameters
        ----------
        rows
            Histories.
        first
            The first group that is tried for each row: see `admitting_groups` (default: all groups in turn).
            A row that shares no event with any group is placed by the first one.
        """
        reach = self.tree.base.reach
        asked = np.arange(rows.shape[0]) % len(reach) if first is None else first
        to = admitting_groups(rows, asked, reach)
        to = np.where(to < 0, asked, to)
        found = np.zeros((rows.shape[0], self.coordinates.shape[1]))
        for number, group in enumerate(self.lowest):
            some = np.flatnonzero(to == number)
            if len(some):
                found[some] = group.place(rows[some])
        return found

    def refreshed(self, rows: Relation) -> Doubles:
        """Return the coordinates of the same rows by newer histories and the current projections (section 5).

        The rows that members are compared with have newer histories as well; neither a basis nor a projection
        is recomputed. This is accurate as long as events change little.
        """
        if rows.shape[0] != len(self.coordinates):
            raise ParameterError(
                f"rows has {rows.shape[0]} histories: must be {len(self.coordinates)}, one for each row",
                parameter="rows",
                value=rows.shape[0],
                limit=f"{len(self.coordinates)} histories",
            )
        found = np.zeros(self.coordinates.shape)
        for group, lowest in zip(self.tree.levels[0], self.lowest, strict=True):
            frame = lowest.frame.moved(rows[lowest.compared])
            others = np.setdiff1d(group.members, lowest.compared)
            found[lowest.compared] = lowest.projection(frame.own)
            found[others] = lowest.projection(frame.place(rows[others]))
        return found


@dataclass(frozen=True, slots=True, eq=False)
class CoordinateTable:
    """Coordinates of rows by comparison with one table that all groups receive: the landmarks of the root.

    Parameters
    ----------
    tree
        Members of each group.
    frame
        The frame of the root, which is the table.
    levels
        For each level, the lowest first, the coordinates of the members of each group.
    coordinates
        Coordinates of each row.
    report
        Messages and time.
    """

    tree: GroupTree
    frame: SpaceFrame
    levels: list[list[Doubles]]
    coordinates: Doubles
    report: HierarchyReport

    def place(self, rows: Relation) -> Doubles:
        """Return the coordinates of new rows."""
        return self.frame.place(rows)

    def refreshed(self, rows: Relation) -> Doubles:
        """Return the coordinates of the same rows by newer histories and the current basis."""
        root = self.tree.root.members
        frame = self.frame.moved(rows[root])
        found = frame.place(rows)
        found[root] = frame.own
        return found


def embedded(space: EmbeddingSpace, rows: Relation, tree: GroupTree) -> Hierarchy:
    """Return coordinates as published: each group has its own basis, projected onto that of the group above.

    Two things differ from the paper: projections have an offset, unless the space is set to use none, and
    with normalised cut a landmark shares no weight with itself in the group above. Both preserve neighbours
    better.

    Parameters
    ----------
    space
        Ratio association or normalised cut.
    rows
        Histories, none of them empty.
    tree
        Members of each group.

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
    report = _report_upwards(rows, tree)
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
            received = _from_above(group, parent, rows, above[group.parent], tree)
            local, begun = locals_[group.level][group.number], time.perf_counter()
            projection = space.projection(local, rows[group.members], group.landmarks, received)
            compared = group.members if space.whole else group.members[group.landmarks]
            lowest.append(Projected(local.frame, projection, compared))
            here_.append(projection(local.coordinates))
            seconds = time.perf_counter() - begun
            if _sent(group, tree):
                report.add(_step_down(space, group, parent, rows, dimensions))
            report.add(WorkStep(group.level, group.number, "projection", seconds=seconds))
        above = here_
        levels.insert(0, above)
    coordinates = np.zeros((rows.shape[0], dimensions))
    for group, points in zip(tree.levels[0], above, strict=True):
        coordinates[group.members] = points
    _send_coordinates(report, tree, dimensions)
    return Hierarchy(tree, lowest, levels, coordinates, report)


def tabled(space: EmbeddingSpace, rows: Relation, tree: GroupTree) -> CoordinateTable:
    """Return coordinates by the root's landmarks alone, which all rows are compared with.

    Coordinators receive the histories of the root's members, their basis and its mean: no group has a basis
    of its own, and no error adds up level by level.

    Parameters
    ----------
    space, rows, tree
        See `embedded`.
    """
    report = _report_upwards(rows, tree)
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
    _send_coordinates(report, tree, dimensions)
    levels = [[coordinates[group.members] for group in level] for level in tree.levels]
    return CoordinateTable(tree, frame, levels, coordinates, report)


def _root(space: EmbeddingSpace, rows: Relation) -> LocalSpace:
    """Return the highest group, in which all members are landmarks."""
    frame = space.frame(rows)
    return LocalSpace(frame, frame.own)


def _from_above(group: RowGroup, parent: RowGroup, rows: Relation, above: Doubles, tree: GroupTree) -> Above:
    """Return what a group receives: coordinates of members of the group above, and its landmarks there."""
    before = sum(len(g.landmarks) for g in tree.below(parent) if g.number < group.number)
    return Above(rows[parent.members], above, np.arange(before, before + len(group.landmarks)))


def _report_upwards(rows: Relation, tree: GroupTree) -> HierarchyReport:
    """Return a report of what is sent upwards: histories of members, and of landmarks."""
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
    """Return whether a group and its parent have different coordinators: otherwise nothing is sent."""
    return group.coordinator != tree.levels[group.level + 1][group.parent].coordinator


def _step_down(
    space: EmbeddingSpace, group: RowGroup, parent: RowGroup, rows: Relation, dimensions: int
) -> WorkStep:
    """Return the messages of a group that receives coordinates of its landmarks, or of all rows above."""
    count = len(parent.members) if space.whole else len(group.landmarks)
    size = bytes_of_coordinates(count, dimensions)
    size += bytes_of_histories(rows[parent.members]) if space.whole else 0
    return WorkStep(group.level, group.number, "parent", 1, count, size)


def _send_coordinates(report: HierarchyReport, tree: GroupTree, dimensions: int) -> None:
    """Add the steps in which members receive their coordinates."""
    for group in tree.levels[0]:
        count = max(len(group.members) - 1, 0)
        size = bytes_of_coordinates(count, dimensions)
        report.add(WorkStep(0, group.number, "coordinates", count, count, size))
