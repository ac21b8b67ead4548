"""Placement: the channel of each subscription, in plans that cluster subscriptions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa

from narrowcast.errors import PlanError
from narrowcast.model.labels import labels_in

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

#: Name of the table in messages.
_WHERE = "subscriptions"


@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Placement:
    """The channel of each subscription; the subscriptions of one subscriber may be in different channels.

    Parameters
    ----------
    subscription_id
        Distinct subscription ids in any order; stored in ascending order.
    channel
        The channel of each.

    Examples
    --------
    >>> placement = Placement([7, 3, 5], [0, 2, 0])
    >>> placement, placement.channel_of([5, 3, 4]).tolist()
    (Placement(3 subscriptions), [0, 2, -1])
    """

    subscription_id: NDArray[np.int64]
    channel: NDArray[np.int32]

    def __init__(self, subscription_id: ArrayLike, channel: ArrayLike) -> None:
        ids, found = np.asarray(subscription_id, np.int64), np.asarray(channel, np.int64)
        if ids.ndim != 1 or ids.shape != found.shape:
            raise PlanError(f"{ids.size} subscriptions, {found.size} channels: must be one channel each")
        if found.size and found.min() < 0:
            raise PlanError(
                f"{_WHERE} has channel={found.min()}: must be at least 0",
                parameter="channel",
                value=int(found.min()),
            )
        order = np.argsort(ids, kind="stable")
        ids, found = ids[order], found[order].astype(np.int32)
        twice = np.flatnonzero(ids[1:] == ids[:-1])
        if len(twice):
            raise PlanError(
                f"{_WHERE} has subscription {ids[twice[0]]} more than once: must be in one channel"
            )
        for name, values in (("subscription_id", ids), ("channel", found)):
            values.flags.writeable = False
            object.__setattr__(self, name, values)

    @classmethod
    def from_table(cls, table: pa.Table) -> Self:
        """Build from the table that `to_table` returns."""
        columns = []
        for name in ("subscription_id", "channel"):
            column = labels_in(table, name, _WHERE)
            if not pa.types.is_integer(column.type):
                raise PlanError(f"column {name!r} of {_WHERE} has type {column.type}: must be integers")
            columns.append(np.asarray(column, np.int64))
        return cls(*columns)

    def to_table(self) -> pa.Table:
        """Return the table `subscription_id`, `channel` with one row per subscription."""
        return pa.table({"subscription_id": self.subscription_id, "channel": self.channel})

    def channel_of(self, subscription_id: ArrayLike) -> NDArray[np.int64]:
        """Return the channel of each of the given subscriptions, -1 for one without a channel."""
        wanted = np.asarray(subscription_id, np.int64)
        if not len(self):
            return np.full(wanted.shape, -1, np.int64)
        place = np.minimum(np.searchsorted(self.subscription_id, wanted), len(self) - 1)
        found = np.where(self.subscription_id[place] == wanted, self.channel[place], -1)
        return found.astype(np.int64)

    def check(self, n_channels: int) -> None:
        """Refuse channels beyond the plan's `n_channels`."""
        wrong = np.flatnonzero(self.channel >= n_channels)
        if len(wrong):
            raise PlanError(
                f"{_WHERE} has channel={self.channel[wrong[0]]} for subscription "
                f"{self.subscription_id[wrong[0]]}: must be one of the plan's {n_channels} channels, "
                "numbered from 0",
                parameter="channel",
                value=int(self.channel[wrong[0]]),
            )

    def __len__(self) -> int:
        return len(self.subscription_id)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Placement):
            return NotImplemented
        return np.array_equal(self.subscription_id, other.subscription_id) and np.array_equal(
            self.channel, other.channel
        )

    __hash__ = None  # type: ignore[assignment]  # arrays have no hash; Python would set this silently

    def __repr__(self) -> str:
        return f"Placement({len(self)} subscriptions)"
