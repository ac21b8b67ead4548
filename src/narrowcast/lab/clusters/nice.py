"""A hierarchy of peers as in NICE (Banerjee et al. 2002), and its maintenance messages.

tariq2012 delivers events in each cluster along such a hierarchy. All members are in groups of k to 3k - 1;
each group has a leader, the leaders are in groups again, and so on up to one group, whose leader is the top.
An event goes from the top to all members of the groups of the top, and from each leader to the members of its
groups below. So the parent of a member is the leader of the highest group that it is in itself.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from narrowcast.errors import ParameterError
from narrowcast.validation import check_whole

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Nice", "NiceUpkeep"]

#: A request and its reply.
_BOTH = 2


@dataclass(frozen=True, slots=True)
class NiceUpkeep:
    """Maintenance messages by kind; those of several hierarchies can be added.

    Parameters
    ----------
    join
        Of a new peer: request and reply at the meeting point; then, layer by layer from the top to the last
        but one, with each member of a group, to find the leader to join below; finally request and reply of
        the lowest group.
    leave
        Of a leaving peer: one to each other member of each of its groups. If it is a leader, also one from
        the next leader to each other member, and the next leader's request and reply in the group above.
    split
        Of groups of 3k and more: one to each other member, and request and reply of the new leader above.
    merge
        Of groups of less than k: request and reply between both leaders, one to each other member that moves,
        and the messages of the leader that leaves the groups above.
    """

    join: int = 0
    leave: int = 0
    split: int = 0
    merge: int = 0

    @property
    def total(self) -> int:
        """All messages."""
        return sum(getattr(self, each.name) for each in fields(self))

    def __add__(self, other: NiceUpkeep) -> NiceUpkeep:
        return NiceUpkeep(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


class Nice:
    """The hierarchy of one cluster.

    Distances between peers are not simulated: a new peer joins the smallest group, a group is cut in the
    middle, and the member that has been in a group longest leads it.

    Parameters
    ----------
    members
        Numbers of the initial peers; their joining is not counted.
    least
        Smallest size k of groups, which have k to 3k - 1 members; the top group may be smaller.

    Examples
    --------
    >>> nice = Nice(range(8))
    >>> nice.parents()
    {0: -1, 1: 0, 2: 0, 3: 0, 4: 0, 5: 0, 6: 0, 7: 0}
    >>> nice.join(8)
    NiceUpkeep(join=4, leave=0, split=10, merge=0)
    >>> nice.groups()
    [[[0, 1, 2, 3, 4], [5, 6, 7, 8]], [[0, 5]]]
    >>> nice.parents()[8], nice.heartbeats
    (5, 34)
    """

    def __init__(self, members: Iterable[int] = (), *, least: int = 3) -> None:
        check_whole("least", least, least=2)
        self.least = least
        self.most = 3 * least - 1
        #: For each layer, the lowest first, the group of each peer; a group's first member leads it.
        self._layers: list[dict[int, list[int]]] = []
        for member in members:
            self.join(member)

    def __len__(self) -> int:
        return len(self._layers[0]) if self._layers else 0

    def __contains__(self, member: int) -> bool:
        return bool(self._layers) and member in self._layers[0]

    @property
    def top(self) -> int:
        """The peer at which events enter; -1 without members."""
        return next(iter(self._layers[-1].values()))[0] if self._layers else -1

    @property
    def heartbeats(self) -> int:
        """The messages per heartbeat interval: from each member of a group to each other one."""
        return sum(len(group) - 1 for layer in self._layers for group in layer.values())

    def groups(self) -> list[list[list[int]]]:
        """Return the groups of each layer, the lowest first; leaders come first."""
        return [[list(group) for group in _distinct(layer)] for layer in self._layers]

    def parents(self) -> dict[int, int]:
        """Return the peer that sends events to each member, -1 for the top."""
        found = {}
        for layer in self._layers:  # a higher layer takes precedence
            found.update({member: group[0] for member, group in layer.items()})
        if found:
            found[self.top] = -1
        return found

    def join(self, member: int) -> NiceUpkeep:
        """Add a peer; return the messages."""
        if member in self:
            raise ParameterError(
                f"member={member}: is a member already; let it leave first", parameter="member", value=member
            )
        if not self._layers:
            self._layers = [{member: [member]}]
            return NiceUpkeep(join=_BOTH)
        messages, group = _BOTH, next(iter(self._layers[-1].values()))
        for below in reversed(self._layers[:-1]):
            messages += _BOTH * len(group)
            group = min((below[each] for each in group), key=len)
        messages += _BOTH
        group.append(member)
        self._layers[0][member] = group
        return NiceUpkeep(join=messages, split=self._split(0, group))

    def leave(self, member: int) -> NiceUpkeep:
        """Remove a peer; return the messages."""
        if member not in self:
            raise ParameterError(
                f"member={member}: is not a member; let it join first", parameter="member", value=member
            )
        messages = self._remove_from(member, 0)
        self._drop_layers()
        merged, split = self._merge_small()
        return NiceUpkeep(leave=messages, merge=merged, split=split)

    def _drop_layers(self) -> None:
        """Remove layers above a layer with a single group."""
        while self._layers and not self._layers[-1]:
            self._layers.pop()
        while len(self._layers) > 1 and len(self._layers[-1]) < 2:
            self._layers.pop()

    def _split(self, number: int, group: list[int]) -> int:
        """Cut a group that is too large in two, and so on in the layers above; return the messages."""
        messages = 0
        while len(group) > self.most:
            messages += len(group) - 1 + _BOTH
            half = (len(group) + 1) // 2
            other = group[half:]
            del group[half:]
            layer = self._layers[number]
            layer.update(dict.fromkeys(other, other))
            number += 1
            if number == len(self._layers):
                above = [group[0], other[0]]
                self._layers.append(dict.fromkeys(above, above))
                break
            above = self._layers[number][group[0]]
            above.append(other[0])
            self._layers[number][other[0]] = above
            group = above
        return messages

    def _merge_small(self) -> tuple[int, int]:
        """Merge groups that are too small; return the messages of merging, and of the splits it causes."""
        merged = split = 0
        while (found := self._too_small()) is not None:
            number, group = found
            layer, upper = self._layers[number], self._layers[number + 1]
            leader, above = group[0], upper[group[0]]
            other = min((layer[each] for each in above if each != leader), key=len)
            merged += _BOTH + len(group) - 1 + self._remove_from(leader, number + 1)
            other.extend(group)
            layer.update(dict.fromkeys(group, other))
            self._drop_layers()
            split += self._split(number, other)
        return merged, split

    def _remove_from(self, member: int, number: int) -> int:
        """Remove a peer from a layer and those above; return the messages.

        If it leads a group, the next member becomes the leader, and takes its place in the group above.
        """
        messages, heir = 0, -1
        for layer in self._layers[number:]:
            if member not in layer:
                break
            group = layer.pop(member)
            leads = group[0] == member
            group.remove(member)
            messages += len(group)
            if heir >= 0:
                group.append(heir)
                layer[heir] = group
                messages += _BOTH
            heir = group[0] if leads and group else -1
            messages += len(group) - 1 if heir >= 0 else 0
        return messages

    def _too_small(self) -> tuple[int, list[int]] | None:
        """Return the layer and the members of a group that is too small and not alone in its layer."""
        for number in range(len(self._layers) - 2, -1, -1):
            for group in _distinct(self._layers[number]):
                if len(group) < self.least:
                    return number, group
        return None


def _distinct(layer: dict[int, list[int]]) -> list[list[int]]:
    """Return the groups of a layer, in the order in which their leaders joined."""
    return [group for member, group in layer.items() if group[0] == member]
