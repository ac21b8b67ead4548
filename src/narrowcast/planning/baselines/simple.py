"""What people do without planning: the plans that every other has to beat."""

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
    """A planner without choices; `seed` is there because every planner takes one.

    Parameters
    ----------
    channels
        The most channels to use; None for as many as it takes.
    seed
        Changes nothing.
    """

    plan_: ChannelPlan

    def __init__(self, *, channels: int | None = None, seed: int = 0) -> None:
        self.channels = channels
        self.seed = seed

    def fit(self, interest: Interest) -> Self:
        """Make the plan, `plan_`."""
        check_channels(self.channels)
        check_seed(self.seed)
        self.plan_ = self._plan(interest)
        return self

    def _plan(self, interest: Interest) -> ChannelPlan:
        raise NotImplementedError


class Unicast(_Baseline):
    """Every message is sent to each interested subscriber directly; there are no channels.

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
    """One channel carries everything to everybody.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> Broadcast().fit(Interest([[1, 1], [0, 1]])).plan_.members().tolist()
    [2]
    """

    capabilities = Capabilities(clusters="nothing", all_subscribers=True)

    def _plan(self, interest: Interest) -> ChannelPlan:
        everything, everybody = np.ones((interest.n_flows, 1)), np.ones((interest.n_subscribers, 1))
        return ChannelPlan(everything, everybody, subscribers=interest.subscribers, flows=interest.flows)


class PerFlow(_Baseline):
    """Each wanted flow has a channel of its own.

    With fewer channels than wanted flows, those of greatest rate x audience get one (of equals, the
    first) and the rest is sent directly.

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
    """A flow's channel is `stable_hash` of its label, modulo the number of channels; listening follows.

    A channel may end up with no flow, or with flows that nobody wants.

    Parameters
    ----------
    channels
        How many channels there are; required.
    seed
        Changes nothing.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> plan = Hash(channels=2).fit(Interest([[1, 1, 1]], flows=["a", "b", "c"])).plan_
    >>> plan.carries.toarray().argmax(axis=1).tolist()
    [1, 0, 0]
    """

    def fit(self, interest: Interest) -> Self:
        """Make the plan, `plan_`."""
        check_channels(self.channels, required="hash")
        return super().fit(interest)

    def _plan(self, interest: Interest) -> ChannelPlan:
        assert self.channels is not None
        channel = stable_hash(interest.flows) % np.uint64(self.channels)
        return plan_of_flows(interest, channel.astype(np.int64), self.channels)


def stable_hash(labels: Labels) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each label that is the same on every machine and in every release.

    It is FNV-1a (64 bits, offset basis 0xcbf29ce484222325, prime 0x100000001b3) of the label's UTF-8
    bytes, an integer standing for its decimal digits, followed by MurmurHash3's 64-bit finaliser, all
    modulo 2**64::

        h = 0xcbf29ce484222325
        for byte in str(label).encode():
            h = (h ^ byte) * 0x100000001b3
        h = (h ^ h >> 33) * 0xff51afd7ed558ccd
        h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53
        h = h ^ h >> 33

    The finaliser is there because the lowest bit of FNV-1a is only the parity of the bytes' lowest bits,
    which makes a poor choice between two channels.

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
    # Longest first, so that the labels that still have a byte at some place are always the first few.
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
