"""What members, coordinators and the root of a hierarchy send each other, and how long they work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from narrowcast.model.relation import Relation

__all__ = ["HierarchyReport", "WorkStep", "bytes_of_coordinates", "bytes_of_histories"]

#: What is done or sent: see `HierarchyReport`.
What: TypeAlias = Literal[
    "histories", "landmarks", "local", "parent", "projection", "coordinates", "centres", "table"
]
#: A row's number, an event's number, and a coordinate.
_ROW, _EVENT, _NUMBER = 8, 4, 8


@dataclass(frozen=True, slots=True)
class WorkStep:
    """One thing that happens in or for a group.

    Parameters
    ----------
    level, group
        Of the group, 0 for the lowest level.
    what
        What is done or sent.
    messages, rows, bytes
        How much is sent; 0 for a step of work.
    seconds
        How long the coordinator works.
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

    In this order: each member sends its history to its coordinator (`histories`), each coordinator those of
    its landmarks to the one above (`landmarks`) and embeds its group (`local`). From the root down each group
    hears of the one above (`parent`) and finds its projection (`projection`), or hears a table (`table`).
    Members hear their coordinates (`coordinates`), and after clustering the centres (`centres`).

    Group 0 of each level is coordinated by the root, who is so busy on every level. Whoever coordinates a
    group and the one above it sends itself nothing.
    """

    steps: list[WorkStep] = field(default_factory=list)

    def add(self, step: WorkStep) -> None:
        """Take up a step."""
        self.steps.append(step)

    def total(self, kept: Callable[[WorkStep], bool] = lambda _: True) -> WorkStep:
        """Return the sum of steps, of all or of some; level and group of the sum are -1."""
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
        """Return what the root has to do with: group 0 of every level."""
        return self.total(lambda step: step.group == 0)

    def of_coordinators(self) -> list[WorkStep]:
        """Return the same for each of the other coordinators of the lowest level, by their groups."""
        by_group: dict[int, list[WorkStep]] = {}
        for step in self.steps:
            if step.level == 0 and step.group > 0:
                by_group.setdefault(step.group, []).append(step)
        return [HierarchyReport(by_group[group]).total() for group in sorted(by_group)]

    def centres(self, n_clusters: int, dimensions: int, members: list[int]) -> None:
        """Take up that every member of groups of the lowest level hears of the centres of clusters."""
        size = n_clusters * (_ROW + _NUMBER * dimensions)
        for group, count in enumerate(members):
            self.add(WorkStep(0, group, "centres", count, n_clusters * count, size * count))


def bytes_of_histories(rows: Relation) -> int:
    """Return how many bytes rows take with their histories."""
    return int(_ROW * rows.shape[0] + _EVENT * rows.nnz)


def bytes_of_coordinates(n_rows: int, dimensions: int) -> int:
    """Return how many bytes rows take with their coordinates."""
    return int(n_rows * (_ROW + np.int64(_NUMBER) * dimensions))
