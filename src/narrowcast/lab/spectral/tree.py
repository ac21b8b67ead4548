"""A tree of groups of rows: a group above the lowest level consists of landmarks of groups below it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.lab.spectral.groups import RowGroups, connected_groups, random_groups
from narrowcast.validation import check_number, check_seed, check_whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.relation import Relation

    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]

__all__ = ["GroupTree", "RowGroup", "check_share", "drawn", "first_below", "landmarks_of", "sizes"]


@dataclass(frozen=True, slots=True, eq=False)
class RowGroup:
    """A group of a level.

    Parameters
    ----------
    level, number
        The level, 0 for the lowest, and the number of the group in it, from 0.
    members
        Numbers of rows: all rows of the group on the lowest level, above that landmarks of the groups below
        it.
    landmarks
        Positions in `members` of the rows that are in the group above as well; all of them in the root.
    parent
        The number of the group above, -1 for the root.
    """

    level: int
    number: int
    members: Ints
    landmarks: Ints
    parent: int

    @property
    def coordinator(self) -> int:
        """The row whose peer coordinates the group, the first of its landmarks; -1 in an empty group.

        A group's landmarks begin with the coordinator of the first group below it, so that the coordinator of
        a group also coordinates its first group on each level below.
        """
        return int(self.members[self.landmarks[0]]) if len(self.landmarks) else -1


@dataclass(frozen=True, slots=True, eq=False)
class GroupTree:
    """A hierarchy of groups.

    Parameters
    ----------
    levels
        The groups of each level, the lowest first; the last level has one, the root.
    base
        The groups of the lowest level, with the events that their members matched.
    """

    levels: list[list[RowGroup]]
    base: RowGroups

    @classmethod
    def of(
        cls,
        rows: Relation,
        *,
        levels: int = 2,
        groups: int = 8,
        landmarks: float = 0.3,
        least: int = 1,
        seed: int = 0,
        group: Ints | None = None,
    ) -> GroupTree:
        """Build a hierarchy of rows.

        Parameters
        ----------
        rows
            Histories, none of them empty.
        levels
            Number of levels (default 2); 1 for one group of all.
        groups
            Number of groups on the lowest level (default 8): see `random_groups`. Each level above has fewer
            by the share of landmarks, so that groups stay as large, and the last has one.
        landmarks
            Share of a group's members that are its landmarks (default 0.3), drawn from those that are not
            loose.
        least
            Least number of landmarks, unless there are fewer members: the paper requires more than
            dimensions.
        seed
            Seed of random choices; each group has a generator of its own.
        group
            For each row the group of the lowest level that is tried first: see `connected_groups` (default:
            random).

        Examples
        --------
        >>> from narrowcast.model.relation import relation
        >>> tree = GroupTree.of(relation(np.ones((800, 3))), levels=3, groups=10, landmarks=0.25)
        >>> [[len(group.members) for group in level] for level in tree.levels]
        [[80, 80, 80, 80, 80, 80, 80, 80, 80, 80], [100, 100], [50]]
        """
        check_whole("levels", levels)
        check_whole("groups", groups)
        check_whole("least", least)
        check_seed(seed)
        check_share(landmarks)
        if group is None:
            base = random_groups(rows, groups if levels > 1 else 1, np.random.default_rng([seed, levels]))
        else:
            base = connected_groups(rows, group, groups)
        counts = sizes(len(base.reach), landmarks, levels)
        members = [base.members(number) for number in range(counts[0])]
        found: list[list[RowGroup]] = []
        for level in range(levels):
            last = level == levels - 1
            above = 1 if last else counts[level + 1]
            here = []
            for number, each in enumerate(members):
                if last:
                    chosen = np.arange(len(each))
                else:
                    below = [g for g in found[level - 1] if g.parent == number] if level else []
                    head = below[0].coordinator if below else -1
                    key = seed, level, number
                    chosen = landmarks_of(each, base.loose[each], landmarks, least, key, head)
                parent = -1 if last else number * above // len(members)
                here.append(RowGroup(level, number, each, chosen, parent))
            found.append(here)
            members = [
                np.concatenate(
                    [g.members[g.landmarks] for g in here if g.parent == number] or [np.zeros(0, int)]
                )
                for number in range(above)
            ]
        return cls(found, base)

    @property
    def root(self) -> RowGroup:
        """The only group of the highest level."""
        return self.levels[-1][0]

    @property
    def parents(self) -> list[list[int]]:
        """Number of the parent of each group, for each level but the highest."""
        return [[group.parent for group in level] for level in self.levels[:-1]]

    def below(self, group: RowGroup) -> list[RowGroup]:
        """Return the groups whose landmarks are the members of a group."""
        return [each for each in self.levels[group.level - 1] if each.parent == group.number]


def check_share(landmarks: float) -> None:
    """Refuse a share of landmarks that is not above 0 and at most 1."""
    limit = "a number above 0 and of at most 1"
    check_number("landmarks", landmarks, least=math.ulp(0.0), most=1, limit=limit)


def sizes(groups: int, landmarks: float, levels: int) -> list[int]:
    """Return the number of groups of each level.

    Examples
    --------
    >>> sizes(64, 0.25, 4), sizes(8, 0.3, 3), sizes(8, 0.3, 1)
    ([64, 16, 4, 1], [8, 2, 1], [1])
    """
    found = [groups]
    for _ in range(levels - 1):
        found.append(max(round(found[-1] * landmarks), 1))
    return [*found[: levels - 1], 1]


def first_below(group: int, n_groups: int, n_below: int) -> int:
    """Return the first child of a group, given the numbers of groups of its level and of the level below.

    Examples
    --------
    >>> [first_below(group, 3, 8) for group in range(4)], [number * 3 // 8 for number in range(8)]
    ([0, 3, 6, 8], [0, 0, 0, 1, 1, 1, 2, 2])
    """
    return -(-group * n_below // n_groups)


def landmarks_of(
    members: Ints, loose: Bools, share: float, least: int, key: tuple[int, int, int], head: int = -1
) -> Ints:
    """Return the landmarks of a group, drawn with a generator of its own: see `drawn`.

    Parameters
    ----------
    members, loose, share, least, head
        See `drawn`.
    key
        The seed, and the level and the number of the group.
    """
    return drawn(members, loose, share, least, np.random.default_rng(key), head)


def drawn(
    members: Ints, loose: Bools, share: float, least: int, rng: np.random.Generator, head: int = -1
) -> Ints:
    """Return positions of random landmarks among members: a share of all, loose members last.

    Parameters
    ----------
    members
        Numbers of rows.
    loose
        For each member whether it shares no event with any group; such members are drawn last.
    share, least
        Share of the members to draw, and the least number if there are as many.
    rng
        Generator of random choices.
    head
        A member that must be the first landmark.
    """
    count = min(max(math.floor(share * len(members) + 0.5), least), len(members))
    order = rng.permutation(len(members))
    order = order[np.argsort(loose[order], kind="stable")]
    ahead = np.flatnonzero(members[order] == head)
    order = np.concatenate([order[ahead], np.delete(order, ahead)])
    return np.asarray(order[:count], np.int64)
