"""Messages between members, coordinators and the root of a hierarchy of groups, and time of work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from narrowcast.model.relation import Relation

__all__ = ["HierarchyReport", "WorkStep", "bytes_of_coordinates", "bytes_of_histories"]

#: Kind of work or message: see `HierarchyReport`.
What: TypeAlias = Literal[
    "histories", "landmarks", "local", "parent", "projection", "coordinates", "centres", "table"
]
#: Bytes of a row's number, an event's number, and a coordinate.
_ROW, _EVENT, _NUMBER = 8, 4, 8


@dataclass(frozen=True, slots=True)
class WorkStep:
    """One step of work or communication of a group.

    Parameters
    ----------
    level, group
        Level of the group, 0 for the lowest, and its number there.
    what
        Kind of work or message.
    messages, rows, bytes
        Amount sent; 0 for a step of work.
    seconds
        Time of the coordinator's work.
    """

    level: int
    group: int
    what: What
    messages: int = 0
    rows: int = 0
    bytes: int = 0
    seconds: float = field(default=0.0, compare=False)


@dataclass(slots=True)
class HierarchyReport:
    """The steps of one embedding of all rows.

    In this order: each member sends its history to its coordinator (`histories`), each coordinator sends
    those of its landmarks to the one above (`landmarks`) and embeds its group (`local`). From the root down
    each group receives data of the one above (`parent`) and computes its projection (`projection`), or
    receives a table (`table`). Members receive their coordinates (`coordinates`), and after clustering the
    centres (`centres`).

    Group 0 of each level is coordinated by the root, which thus has work on every level. A coordinator of a
    group and of the one above it sends itself nothing.
    """

    steps: list[WorkStep] = field(default_factory=list)

    def add(self, step: WorkStep) -> None:
        """Append a step."""
        self.steps.append(step)

    def total(self, kept: Callable[[WorkStep], bool] = lambda _: True) -> WorkStep:
        """Return the sum of the steps that pass a filter (default: all), with level and group -1."""
        some = [step for step in self.steps if kept(step)]
        return WorkStep(
            -1,
            -1,
            "local",
            sum(step.messages for step in some),
            sum(step.rows for step in some),
            sum(step.bytes for step in some),
            sum(step.seconds for step in some),
        )

    def of_root(self) -> WorkStep:
        """Return the sum of the root's steps: those of group 0 of every level."""
        return self.total(lambda step: step.group == 0)

    def of_coordinators(self) -> list[WorkStep]:
        """Return the sum of the steps of each other coordinator of the lowest level, by group."""
        by_group: dict[int, list[WorkStep]] = {}
        for step in self.steps:
            if step.level == 0 and step.group > 0:
                by_group.setdefault(step.group, []).append(step)
        return [HierarchyReport(by_group[group]).total() for group in sorted(by_group)]

    def centres(self, n_clusters: int, dimensions: int, members: list[int]) -> None:
        """Append the steps in which every member of the lowest level receives the centres of clusters."""
        size = n_clusters * (_ROW + _NUMBER * dimensions)
        for group, count in enumerate(members):
            self.add(WorkStep(0, group, "centres", count, n_clusters * count, size * count))


def bytes_of_histories(rows: Relation) -> int:
    """Return the size of rows with their histories in bytes."""
    return int(_ROW * rows.shape[0] + _EVENT * rows.nnz)


def bytes_of_coordinates(n_rows: int, dimensions: int) -> int:
    """Return the size of rows with their coordinates in bytes."""
    return int(n_rows * (_ROW + np.int64(_NUMBER) * dimensions))
