"""Baselines without optimization: unicast, broadcast, a channel per flow, and hashing of flows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa

from narrowcast.model.plan import ChannelPlan
from narrowcast.planning.base import BasePlanner, Capabilities, plan_of_flows
from narrowcast.validation import check_channels, check_seed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.interest import Interest
    from narrowcast.model.labels import Labels


class _Baseline(BasePlanner):
    """Base class of planners without parameters of their own; `seed` has no effect.

    Parameters
    ----------
    channels
        The most channels; None means no limit.
    seed
        No effect.
    """

    plan_: ChannelPlan

    def __init__(self, *, channels: int | None = None, seed: int = 0) -> None:
        self.channels = channels
        self.seed = seed

    def fit(self, interest: Interest) -> Self:
        """Make the baseline's plan for an interest, and set `plan_`; return self."""
        check_channels(self.channels)
        check_seed(self.seed)
        self.plan_ = self._plan(interest)
        return self

    def _plan(self, interest: Interest) -> ChannelPlan:
        raise NotImplementedError


class Unicast(_Baseline):
    """Sends every message directly to each interested subscriber; there are no channels.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> Unicast().fit(Interest([[1, 1], [0, 1]])).plan_.unicast.nnz
    3
    """

    capabilities = Capabilities(clusters="nothing")

    def _plan(self, interest: Interest) -> ChannelPlan:
        return plan_of_flows(interest, np.full(interest.n_flows, -1), 0)


class Broadcast(_Baseline):
    """Sends all flows to all subscribers over one channel.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> Broadcast().fit(Interest([[1, 1], [0, 1]])).plan_.members().tolist()
    [2]
    """

    capabilities = Capabilities(clusters="nothing", all_subscribers=True)

    def _plan(self, interest: Interest) -> ChannelPlan:
        every_flow, every_subscriber = np.ones((interest.n_flows, 1)), np.ones((interest.n_subscribers, 1))
        return ChannelPlan(
            every_flow, every_subscriber, subscribers=interest.subscribers, flows=interest.flows
        )


class PerFlow(_Baseline):
    """Gives each wanted flow a channel of its own.

    With fewer channels than wanted flows, those of greatest rate x audience get one (the first among equals),
    and the others are sent directly.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> plan = PerFlow(channels=1).fit(Interest([[1, 1], [0, 1]])).plan_
    >>> plan.carries.toarray().tolist(), plan.unicast.nnz
    ([[False], [True]], 1)
    """

    def _plan(self, interest: Interest) -> ChannelPlan:
        audience = interest.audience()
        wanted = np.flatnonzero(audience)
        heaviest = np.argsort(-(interest.rate * audience)[wanted], kind="stable")
        chosen = np.sort(wanted[heaviest[: self.channels]])
        channel = np.full(interest.n_flows, -1)
        channel[chosen] = np.arange(len(chosen))
        return plan_of_flows(interest, channel, len(chosen))


class Hash(_Baseline):
    """Assigns a flow to the channel `stable_hash(label) % channels`; subscribers join what they need.

    A channel may have no flows, or only unwanted ones.

    Parameters
    ----------
    channels
        Number of channels; required.
    seed
        No effect.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> plan = Hash(channels=2).fit(Interest([[1, 1, 1]], flows=["a", "b", "c"])).plan_
    >>> plan.carries.toarray().argmax(axis=1).tolist()
    [1, 0, 0]
    """

    def fit(self, interest: Interest) -> Self:
        """Assign the flows of an interest to channels by hash, and set `plan_`; return self."""
        check_channels(self.channels, required="hash")
        return super().fit(interest)

    def _plan(self, interest: Interest) -> ChannelPlan:
        assert self.channels is not None
        channel = stable_hash(interest.flows) % np.uint64(self.channels)
        return plan_of_flows(interest, channel.astype(np.int64), self.channels)


def stable_hash(labels: Labels) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each label that is the same on all machines and in all releases.

    It is FNV-1a (64 bits, offset basis 0xcbf29ce484222325, prime 0x100000001b3) of the label's UTF-8 bytes,
    or the decimal digits of an integer, followed by MurmurHash3's 64-bit finaliser, all modulo 2**64::

        h = 0xcbf29ce484222325
        for byte in str(label).encode():
            h = (h ^ byte) * 0x100000001b3
        h = (h ^ h >> 33) * 0xff51afd7ed558ccd
        h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53
        h = h ^ h >> 33

    Without the finaliser the lowest bit would be the parity of the lowest bits of all bytes, which is a poor
    choice between two channels.

    Examples
    --------
    >>> [hex(h) for h in stable_hash(pa.array(["a", "b"]))]
    ['0x82a2a958a9bece5b', '0x6e673288764ad2d0']
    """
    text = labels.cast(pa.large_string())
    _, offsets, content = text.buffers()
    ends = (
        np.frombuffer(offsets, np.int64, len(text) + 1, 8 * text.offset)
        if len(text)
        else np.zeros(1, np.int64)
    )
    content = np.frombuffer(content or b"", np.uint8)
    # Longest first, so that the labels with a byte at a given position are always a prefix.
    order = np.argsort(ends[:-1] - ends[1:], kind="stable")
    starts, lengths = ends[:-1][order], np.diff(ends)[order]
    state = np.full(len(text), 0xCBF29CE484222325, np.uint64)
    for place in range(lengths.max(initial=0)):
        left = np.searchsorted(-lengths, -place)
        state[:left] = (state[:left] ^ content[starts[:left] + place]) * np.uint64(0x100000001B3)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        state = (state ^ (state >> np.uint64(33))) * np.uint64(factor)
    found = np.empty_like(state)
    found[order] = state ^ (state >> np.uint64(33))
    return found
