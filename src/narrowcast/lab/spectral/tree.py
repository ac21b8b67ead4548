"""Groups of rows, and above them groups of their landmarks, up to one: who is where in a hierarchy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrowcast.lab.spectral.groups import RowGroups, gathered, held
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
        0 for the lowest level; each level counts its groups from 0.
    members
        Numbers of rows: on the lowest level rows of its own, above that landmarks of the groups below it.
    landmarks
        Which of the members, by their place in `members`, are in the group above; all of them in the root.
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

        A group's landmarks begin with the coordinator of the first group below it, so that whoever
        coordinates a group above coordinates group after group below.
        """
        return int(self.members[self.landmarks[0]]) if len(self.landmarks) else -1


@dataclass(frozen=True, slots=True, eq=False)
class GroupTree:
    """A hierarchy of groups.

    Parameters
    ----------
    levels
        The groups of each level, the lowest first; the last has one, the root.
    base
        The groups of the lowest level, with what they reach.
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
        """Return a hierarchy of rows.

        Parameters
        ----------
        rows
            Histories, none of them empty.
        levels
            How many levels; 1 for one group of all.
        groups
            How many groups on the lowest level: see `held`. Above it they are fewer by the share of
            landmarks, so that groups stay as large, and one on the last level.
        landmarks
            The share of a group's members that are its landmarks, drawn from those that are not loose.
        least
            So many landmarks in any case, or all members where there are fewer: the paper wants more than
            there are dimensions.
        seed
            What draws come from; each group draws from its own source.
        group
            For each row the group of the lowest level that it asks first: see `gathered`. Drawn where left
            out.

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
            base = held(rows, groups if levels > 1 else 1, np.random.default_rng([seed, levels]))
        else:
            base = gathered(rows, group, groups)
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
        """The one group of the highest level."""
        return self.levels[-1][0]

    @property
    def parents(self) -> list[list[int]]:
        """Of each level but the highest, the number of the group above each."""
        return [[group.parent for group in level] for level in self.levels[:-1]]

    def below(self, group: RowGroup) -> list[RowGroup]:
        """Return the groups whose landmarks a group has as members."""
        return [each for each in self.levels[group.level - 1] if each.parent == group.number]


def check_share(landmarks: float) -> None:
    """Refuse what is no share of members."""
    limit = "a share above 0 and of at most 1"
    check_number("landmarks", landmarks, least=math.ulp(0.0), most=1, limit=limit)


def sizes(groups: int, landmarks: float, levels: int) -> list[int]:
    """Return how many groups each level has.

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
    """Return the first group that has a group as its parent, of two levels with so many groups each.

    Examples
    --------
    >>> [first_below(group, 3, 8) for group in range(4)], [number * 3 // 8 for number in range(8)]
    ([0, 3, 6, 8], [0, 0, 0, 1, 1, 1, 2, 2])
    """
    return -(-group * n_below // n_groups)


def landmarks_of(
    members: Ints, loose: Bools, share: float, least: int, key: tuple[int, int, int], head: int = -1
) -> Ints:
    """Return the landmarks of a group, from its own source of draws: see `drawn`.

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
    """Return places of members that are drawn as landmarks: a share of all, from those that are not loose.

    Parameters
    ----------
    members
        Numbers of rows.
    loose
        For each whether it hangs together with nobody; such are drawn only where nobody else is left.
    share, least
        How many of the members, but so many in any case where there are as many.
    rng
        Where draws come from.
    head
        A member that is to be the first of them.
    """
    count = min(max(math.floor(share * len(members) + 0.5), least), len(members))
    order = rng.permutation(len(members))
    order = order[np.argsort(loose[order], kind="stable")]
    ahead = np.flatnonzero(members[order] == head)
    order = np.concatenate([order[ahead], np.delete(order, ahead)])
    return np.asarray(order[:count], np.int64)
