"""Limits on groups: memberships per subscriber, members, rate, and flows fixed to a group."""

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

#: Rates are sums in any order: an excess of up to this share is rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Limits that the groups of a plan must keep; impossible ones are refused before planning.

    Parameters
    ----------
    memberships
        The most groups of a subscriber. A Linux socket joins at most 20 by default.
    members
        The most subscribers in a group.
    rate
        The most messages per second in a group.
    pinned
        Flows fixed to a group: a table (`flow`, `channel`) or a mapping of flows to groups; groups are
        numbered from 0.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> GroupLimits(rate=5.0).check(Interest([[1, 1]], rate=[9.0, 2.0]), np.arange(2))
    Traceback (most recent call last):
    narrowcast.errors.ParameterError: rate=5.0: must be at least 9.0, the rate of flow 0
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
                parameter="pinned", value=self.pinned, limit="a table of flow and channel, or a mapping"
            )
        rate = self.rate
        known = rate is None or (isinstance(rate, int | float | np.number) and not isinstance(rate, bool))
        if not known or (rate is not None and not 0 < rate < math.inf):
            limit = "a finite number of messages per second above 0"
            raise ParameterError(parameter="rate", value=rate, limit=limit)

    @property
    def most(self) -> NDArray[np.float64]:
        """The most groups of a subscriber, members of a group, and rate of a group; infinite for no limit."""
        given = (self.memberships, self.members, self.rate)
        return np.array([math.inf if each is None else float(each) for each in given])

    @property
    def given(self) -> bool:
        """Whether any limit on groups is given."""
        return self.pinned is not None or bool(np.isfinite(self.most).any())

    def check(self, interest: Interest, groups: Ints, direct: NDArray[np.bool_] | None = None) -> Ints:
        """Refuse impossible limits; return the index of the group each flow is fixed to, -1 for any.

        The check is necessary, not sufficient: although each flow fits in a group, and all of them by their
        sums, there may be no assignment that keeps all limits. The planner sends the flows that are left over
        directly.

        Parameters
        ----------
        interest
            The interest to plan for.
        groups
            The channel numbers of groups, ascending.
        direct
            Flags of flows that are sent directly and need no space in groups.
        """
        pins, n_groups = self._pins(interest, groups), len(groups)
        audience = interest.audience()
        if direct is not None:
            audience = np.where(direct & (pins < 0), 0, audience)
        wanted, rate = audience > 0, interest.rate
        active = int(np.count_nonzero(np.asarray(interest.wants @ wanted.astype(np.int64))))
        if self.members is not None and len(audience) and audience.max() > self.members:
            flow = interest.flows[int(np.argmax(audience))].as_py()
            raise _too_small(
                "members", self.members, int(audience.max()), f"the number of subscribers of flow {flow!r}"
            )
        if self.members is not None and active > self.members * n_groups:
            raise ParameterError(
                f"members={self.members}: {n_groups} groups hold {self.members * n_groups} of {active} "
                "subscribers; allow more members, or more groups",
                parameter="members",
                value=self.members,
            )
        if self.rate is not None and wanted.any():
            highest = np.where(wanted, rate, 0.0)
            flow, total = int(np.argmax(highest)), float(highest.sum())
            if highest[flow] > self.rate:
                name = interest.flows[flow].as_py()
                raise _too_small("rate", self.rate, float(highest[flow]), f"the rate of flow {name!r}")
            if total > self.rate * n_groups * (1 + _ROUNDING):
                raise ParameterError(
                    f"rate={self.rate}: {n_groups} groups hold {self.rate * n_groups:g} of {total:g} "
                    "messages per second; allow a higher rate, or more groups",
                    parameter="rate",
                    value=self.rate,
                )
        self._check_pinned(interest, pins, wanted, groups)
        return pins

    def _pins(self, interest: Interest, groups: Ints) -> Ints:
        """Return for each flow the index of the group that it is fixed to, -1 for any."""
        pins = np.full(interest.n_flows, -1, np.int64)
        if self.pinned is None:
            return pins
        if isinstance(self.pinned, pa.Table):
            flows = labels_in(self.pinned, "flow", "pinned")
            channel = labels_in(self.pinned, "channel", "pinned")
        else:
            flows, channel = labels_of(list(self.pinned), "flow"), pa.array(list(self.pinned.values()))
        if not pa.types.is_integer(channel.type) and len(channel):
            raise ParameterError(
                f"pinned: channels have type {channel.type}; use integers",
                parameter="pinned",
                value=str(channel.type),
            )
        number = np.asarray(channel, np.int64)
        wrong = np.flatnonzero(~np.isin(number, groups))
        if len(wrong):
            flow = flows[int(wrong[0])].as_py()
            limit = f"from {groups.min(initial=0)} to {groups.max(initial=0)}"
            raise ParameterError(
                f"pinned: channel={number[wrong[0]]} of flow {flow!r}: must be {limit}",
                parameter="pinned",
                value=int(number[wrong[0]]),
                limit=limit,
            )
        if not interest.n_flows:
            return pins
        place = positions("flow", flows, interest.flows)
        if (place < 0).any():
            flow = flows[int(np.argmin(place))].as_py()
            raise ParameterError(
                f"pinned: flow {flow!r} is not in the interest; leave it out", parameter="pinned", value=flow
            )
        order = np.argsort(place, kind="stable")
        twice = (np.diff(place[order]) == 0) & (np.diff(number[order]) != 0)
        if twice.any():
            flow = flows[int(order[int(np.argmax(twice))])].as_py()
            raise ParameterError(
                f"pinned: flow {flow!r} has several channels; give one", parameter="pinned", value=flow
            )
        pins[place] = np.searchsorted(groups, number)
        return pins

    def _check_pinned(self, interest: Interest, pins: Ints, wanted: NDArray[np.bool_], groups: Ints) -> None:
        """Refuse fixed flows that exceed the limits of their groups."""
        some = np.flatnonzero(wanted & (pins >= 0))
        if not len(some):
            return
        columns = interest.wants.tocsc()[:, some].tocoo()
        pairs = np.unique(columns.row.astype(np.int64) * (pins.max() + 1) + pins[some][columns.col])
        user, group = np.divmod(pairs, pins.max() + 1)
        rates = np.bincount(pins[some], interest.rate[some])
        members, memberships = np.bincount(group), np.bincount(user)
        if self.rate is not None and rates.max() > self.rate * (1 + _ROUNDING):
            channel = groups[np.argmax(rates)]
            raise _too_small(
                "rate", self.rate, float(rates.max()), f"the rate of the flows pinned to channel {channel}"
            )
        if self.members is not None and members.max() > self.members:
            channel = groups[np.argmax(members)]
            raise _too_small(
                "members",
                self.members,
                int(members.max()),
                f"the number of subscribers of the flows pinned to channel {channel}",
            )
        if self.memberships is not None and memberships.max() > self.memberships:
            name = interest.subscribers[int(np.argmax(memberships))].as_py()
            raise _too_small(
                "memberships",
                self.memberships,
                int(memberships.max()),
                f"the number of channels that flows of subscriber {name!r} are pinned to",
            )


def _too_small(name: str, value: float, least: float, reason: str) -> ParameterError:
    """Return the error for a limit that is too small for a flow, or for the pinned flows."""
    return ParameterError(parameter=name, value=value, limit=f"at least {least}, {reason}")
