"""Clusterings of flows by the waste of a shared channel (riabov2003, appendix A)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, get_args

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.kernels import waste
from narrowcast.planning.base import BasePlanner, plan_of_flows
from narrowcast.validation import check_channels, check_seed, check_whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan

    Ints = NDArray[np.int64]

Distance = Literal["total", "norm", "printed"]
_KINDS = {"total": waste.TOTAL, "norm": waste.NORM, "printed": waste.PRINTED}
#: The most bytes of the arrays that hold the subscribers of flows or groups.
_MOST = 4 << 30


@dataclass(frozen=True, slots=True)
class WorthwhileFlows:
    """The wanted flows of greatest rate x audience, in descending order, with the subscribers of each.

    Parameters
    ----------
    flows
        The flows' numbers in the interest.
    weight
        Rate of each flow.
    start, who
        The subscribers of flow i are `who[start[i]:start[i + 1]]`, numbered from 0 without gaps.
    n_subscribers
        Number of subscribers of these flows.
    """

    flows: Ints
    weight: NDArray[np.float64]
    start: Ints
    who: NDArray[np.int32]
    n_subscribers: int

    @classmethod
    def of(cls, interest: Interest, top: int | None) -> Self:
        """Return the `top` flows of greatest rate x audience above 0, of equals the first."""
        if top is not None:
            check_whole("top", top)
        audience = interest.audience()
        load = interest.rate * audience
        order = np.argsort(-load, kind="stable")
        flows = order[load[order] > 0][:top]
        wants = interest.wants.tocsc()[:, flows]
        subscribers, who = np.unique(wants.indices, return_inverse=True)
        start = wants.indptr.astype(np.int64)
        return cls(flows, interest.rate[flows], start, who.astype(np.int32), len(subscribers))

    def __len__(self) -> int:
        return len(self.flows)

    @property
    def audience(self) -> Ints:
        """Number of subscribers of each flow."""
        return np.diff(self.start)

    @property
    def load(self) -> NDArray[np.float64]:
        """Messages per second that each flow causes: rate x audience."""
        return np.asarray(self.weight * self.audience, np.float64)

    def sets(self) -> NDArray[np.uint64]:
        """Return the subscribers of each flow as a row of bits."""
        width = (self.n_subscribers + 63) // 64
        if 8 * len(self) * width > _MOST:
            raise ParameterError(
                f"top={len(self)}: flows by {self.n_subscribers} subscribers exceed {_MOST >> 30} GB; "
                f"use at most {_MOST // (8 * width)}, the others are sent directly",
                parameter="top",
                value=len(self),
                limit=f"at most {_MOST // (8 * width)}",
            )
        words = np.zeros((len(self), width), np.uint64)
        waste.flags(self.start, self.who, words)
        return words


class _Clustering(BasePlanner, ABC):
    """Base class of planners that assign each flow of `WorthwhileFlows` to one group."""

    plan_: ChannelPlan

    def __init__(
        self,
        *,
        channels: int | None = None,
        seed: int = 0,
        top: int | None = None,
        distance: Distance = "total",
    ) -> None:
        self.channels = channels
        self.seed = seed
        self.top = top
        self.distance = distance

    def fit(self, interest: Interest) -> Self:
        """Group the heaviest flows of an interest, one channel per group, and set `plan_`; return self."""
        check_channels(self.channels, required=type(self).__name__.lower())
        check_seed(self.seed)
        if self.distance not in _KINDS:
            limit = f"one of {', '.join(get_args(Distance))}"
            raise ParameterError(parameter="distance", value=self.distance, limit=limit)
        assert self.channels is not None
        chosen = WorthwhileFlows.of(interest, self.top)
        n_groups = min(self.channels, len(chosen))
        channel = np.full(interest.n_flows, -1)
        if n_groups:
            channel[chosen.flows] = self._groups(chosen, n_groups)
        self.plan_ = plan_of_flows(interest, channel, n_groups)
        return self

    @abstractmethod
    def _groups(self, chosen: WorthwhileFlows, n_groups: int) -> Ints:
        """Return the group of each chosen flow, numbered from 0 to `n_groups` - 1."""


class _Moving(_Clustering):
    """Base class of clusterings in which flows move to the nearest group, pass after pass."""

    live: bool
    #: The number of passes of the last `fit`, and whether the last pass moved no flow.
    passes_: int
    settled_: bool

    def __init__(
        self,
        *,
        channels: int | None = None,
        seed: int = 0,
        top: int | None = None,
        distance: Distance = "total",
        passes: int = 50,
    ) -> None:
        super().__init__(channels=channels, seed=seed, top=top, distance=distance)
        self.passes = passes

    def _groups(self, chosen: WorthwhileFlows, n_groups: int) -> Ints:
        check_whole("passes", self.passes, least=0)
        if 4 * n_groups * chosen.n_subscribers > _MOST:
            most = _MOST // (4 * chosen.n_subscribers)
            raise ParameterError(
                f"channels={n_groups}: groups by {chosen.n_subscribers} subscribers take more than "
                f"{_MOST >> 30} GB; use at most {most} channels",
                parameter="channels",
                value=n_groups,
                limit=f"at most {most}",
            )
        group = np.empty(len(chosen), np.int64)
        self.passes_, self.settled_ = waste.gather(
            _KINDS[self.distance],
            chosen.sets(),
            chosen.start,
            chosen.who,
            chosen.weight,
            n_groups,
            chosen.n_subscribers,
            self.passes,
            self.live,
            group,
        )
        return group


class Forgy(_Moving):
    """k-means of flows by waste, in which groups change after each pass (riabov2003, appendix A.3).

    The heaviest flows start the groups, and the others join the nearest group one by one. In a pass each flow
    is compared with all groups, its own without the flow, and moves to the nearest. It may not converge: with
    sets instead of means a pass can raise the waste.

    Parameters
    ----------
    channels
        Number of groups; required.
    seed
        No effect.
    top
        Number of flows of greatest rate x audience to group; others are sent directly (default: all).
    distance
        `total`, the wasted messages per second that a flow adds to a group; `norm`, the change of the group's
        waste per event, as the paper's text says; `printed`, the paper's formula as printed.
    passes
        The most passes (default: 50).

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> interest = Interest([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]], rate=[9, 2, 8, 3])
    >>> Forgy(channels=2).fit(interest).plan_.carries.toarray().argmax(axis=1).tolist()
    [0, 0, 1, 1]
    """

    live = False


class MacQueen(_Moving):
    """`Forgy` with groups that change at every move: with `total` every move lowers the waste.

    So with `total` it converges.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> interest = Interest([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]], rate=[9, 2, 8, 3])
    >>> MacQueen(channels=2).fit(interest).settled_
    True
    """

    live = True


class Pairwise(_Clustering):
    """Merges the two closest groups until the requested number is left (riabov2003, appendix A.3).

    It starts with each flow as a group. Of the four clusterings of the paper it wastes least. Its time is
    proportional to the square of the number of flows, its memory to their number.

    Parameters
    ----------
    channels, seed, top
        As for `Forgy`.
    distance
        `total`, the waste that a merge adds; `norm`, the waste per event of the merged group; `printed`, as
        for `Forgy`, with the later group joining the earlier one.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> interest = Interest([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]], rate=[9, 2, 8, 3])
    >>> Pairwise(channels=3).fit(interest).plan_.carries.toarray().argmax(axis=1).tolist()
    [0, 0, 1, 2]
    """

    def _groups(self, chosen: WorthwhileFlows, n_groups: int) -> Ints:
        into = np.arange(len(chosen))
        kind, weight = _KINDS[self.distance], chosen.weight.copy()  # the kernel changes it in place
        waste.merge(kind, chosen.sets(), weight, chosen.audience, chosen.load, n_groups, into)
        return _numbered(into)


class Mst(_Clustering):
    """Merges flows along a minimum spanning tree of their distances (riabov2003, A.3).

    It stops when the requested number of groups is left. Distances are between single flows, not between
    merged groups: fast, and wasteful.

    Parameters
    ----------
    channels, seed, top, distance
        As for `Pairwise`.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> interest = Interest([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]], rate=[9, 2, 8, 3])
    >>> Mst(channels=3).fit(interest).plan_.carries.toarray().argmax(axis=1).tolist()
    [0, 0, 1, 2]
    """

    def _groups(self, chosen: WorthwhileFlows, n_groups: int) -> Ints:
        parent, cost = np.zeros(len(chosen), np.int64), np.empty(len(chosen))
        kind = _KINDS[self.distance]
        waste.spanning(kind, chosen.sets(), chosen.weight, chosen.audience, chosen.load, parent, cost)
        into = np.arange(len(chosen))
        waste.unite(np.argsort(cost[1:], kind="stable")[: len(chosen) - n_groups] + 1, parent, into)
        return _numbered(into)


def _numbered(into: Ints) -> Ints:
    """Return groups numbered in the order of their first flows, given the first flow of each flow's group."""
    while not np.array_equal(further := into[into], into):
        into = further
    return np.unique(into, return_inverse=True)[1].astype(np.int64)
