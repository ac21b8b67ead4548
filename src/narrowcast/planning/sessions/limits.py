"""What groups must keep to: how many a subscriber is in, how large and busy each is, which flows it has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from narrowcast.errors import ParameterError
from narrowcast.model.labels import labels_in, labels_of, positions
from narrowcast.validation import check_whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.interest import Interest

    Ints = NDArray[np.int64]

#: Rates are sums in any order: over by no more than this share is over by rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """What the groups of a plan must keep to; what cannot be kept is told before planning starts.

    Parameters
    ----------
    memberships
        The most groups that a subscriber is in. A socket of Linux joins 20 unless it is told otherwise.
    members
        The most subscribers in a group.
    rate
        The most messages per second in a group.
    pinned
        Flows that are in a certain group: a table (`flow`, `channel`) or a mapping; groups are numbered from
        0.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> GroupLimits(rate=5.0).check(Interest([[1, 1]], rate=[9.0, 2.0]), np.arange(2))
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: rate is 5.0 and flow 0 has 9.0 by itself; allow as much in a group
    """

    memberships: int | None = None
    members: int | None = None
    rate: float | None = None
    pinned: pa.Table | Mapping[Any, int] | None = None

    def __post_init__(self) -> None:
        for name in ("memberships", "members"):
            value = getattr(self, name)
            if value is not None:
                check_whole(name, value)
        if self.pinned is not None and not isinstance(self.pinned, pa.Table | Mapping):
            raise ParameterError(
                f"pinned is {self.pinned!r}; give a table of flow and channel, as --pinned does, or a mapping"
            )
        rate = self.rate
        known = rate is None or (isinstance(rate, int | float | np.number) and not isinstance(rate, bool))
        if not known or (rate is not None and not 0 < rate < math.inf):
            raise ParameterError(f"rate is {rate!r}; give the most messages per second in a group, above 0")

    @property
    def most(self) -> NDArray[np.float64]:
        """The most groups of a subscriber, members of a group, and rate of a group."""
        given = (self.memberships, self.members, self.rate)
        return np.array([math.inf if each is None else float(each) for each in given])

    @property
    def given(self) -> bool:
        """Whether there is any."""
        return self.pinned is not None or bool(np.isfinite(self.most).any())

    def check(self, interest: Interest, groups: Ints, direct: NDArray[np.bool_] | None = None) -> Ints:
        """Refuse what no plan can keep to, and return the group that each flow must be in, -1 for any.

        Groups are given by the numbers of their channels, ascending, and returned by their places there.
        Flows that are sent `direct`ly need no room.

        What is asked of a plan is more than this looks at: flows may fit into groups in no way although each
        does, and all of them do by their sums. Those that are left over then are sent directly.
        """
        pins, n_groups = self._pins(interest, groups), len(groups)
        audience = interest.audience()
        if direct is not None:
            audience = np.where(direct & (pins < 0), 0, audience)
        wanted, rate = audience > 0, interest.rate
        active = int(np.count_nonzero(np.asarray(interest.wants @ wanted.astype(np.int64))))
        fix = "allow as many in a group"
        if self.members is not None and len(audience) and audience.max() > self.members:
            flow = int(np.argmax(audience))
            raise ParameterError(
                f"members is {self.members} and flow {interest.flows[flow].as_py()!r} has {audience[flow]} "
                f"subscribers by itself; {fix}"
            )
        if self.members is not None and active > self.members * n_groups:
            raise ParameterError(
                f"members is {self.members}: {n_groups} groups have room for {self.members * n_groups} of "
                f"{active} subscribers; {fix}, or more groups"
            )
        fix = "allow as much in a group"
        if self.rate is not None and wanted.any():
            highest = np.where(wanted, rate, 0.0)
            flow, total = int(np.argmax(highest)), float(highest.sum())
            if highest[flow] > self.rate:
                raise ParameterError(
                    f"rate is {self.rate} and flow {interest.flows[flow].as_py()!r} has {highest[flow]} by "
                    f"itself; {fix}"
                )
            if total > self.rate * n_groups * (1 + _ROUNDING):
                raise ParameterError(
                    f"rate is {self.rate}: {n_groups} groups have room for {self.rate * n_groups:g} of "
                    f"{total:g} messages per second; {fix}, or more groups"
                )
        self._check_pinned(interest, pins, wanted, groups)
        return pins

    def _pins(self, interest: Interest, groups: Ints) -> Ints:
        """Return the place of the group that each flow must be in, -1 for any."""
        pins = np.full(interest.n_flows, -1, np.int64)
        if self.pinned is None:
            return pins
        if isinstance(self.pinned, pa.Table):
            flows = labels_in(self.pinned, "flow", "pinned")
            channel = labels_in(self.pinned, "channel", "pinned")
        else:
            flows, channel = labels_of(list(self.pinned), "flow"), pa.array(list(self.pinned.values()))
        if not pa.types.is_integer(channel.type) and len(channel):
            raise ParameterError(f"the channels of pinned flows are of type {channel.type}; use integers")
        number = np.asarray(channel, np.int64)
        wrong = np.flatnonzero(~np.isin(number, groups))
        if len(wrong):
            raise ParameterError(
                f"flow {flows[int(wrong[0])].as_py()!r} is pinned to channel {number[wrong[0]]}; groups are "
                f"{groups.min(initial=0)} to {groups.max(initial=0)}"
            )
        if not interest.n_flows:
            return pins
        place = positions("flow", flows, interest.flows)
        if (place < 0).any():
            flow = flows[int(np.argmin(place))].as_py()
            raise ParameterError(f"flow {flow!r} is pinned and not in the interest; leave it out")
        order = np.argsort(place, kind="stable")
        twice = (np.diff(place[order]) == 0) & (np.diff(number[order]) != 0)
        if twice.any():
            flow = flows[int(order[int(np.argmax(twice))])].as_py()
            raise ParameterError(f"flow {flow!r} is pinned to several channels; give one")
        pins[place] = np.searchsorted(groups, number)
        return pins

    def _check_pinned(self, interest: Interest, pins: Ints, wanted: NDArray[np.bool_], groups: Ints) -> None:
        """Refuse pinned flows that break the limits by themselves."""
        some = np.flatnonzero(wanted & (pins >= 0))
        if not len(some):
            return
        columns = interest.wants.tocsc()[:, some].tocoo()
        pairs = np.unique(columns.row.astype(np.int64) * (pins.max() + 1) + pins[some][columns.col])
        user, group = np.divmod(pairs, pins.max() + 1)
        rates = np.bincount(pins[some], interest.rate[some])
        members, memberships = np.bincount(group), np.bincount(user)
        if self.rate is not None and rates.max() > self.rate * (1 + _ROUNDING):
            raise ParameterError(
                f"rate is {self.rate} and the flows pinned to channel {groups[np.argmax(rates)]} have "
                f"{rates.max():g}; allow as much, or pin fewer"
            )
        if self.members is not None and members.max() > self.members:
            raise ParameterError(
                f"members is {self.members} and the flows pinned to channel {groups[np.argmax(members)]} "
                f"have {members.max()} subscribers; allow as many, or pin fewer"
            )
        if self.memberships is not None and memberships.max() > self.memberships:
            name = interest.subscribers[int(np.argmax(memberships))].as_py()
            raise ParameterError(
                f"memberships is {self.memberships} and subscriber {name!r} wants flows pinned to "
                f"{memberships.max()} channels; allow as many, or pin fewer"
            )
