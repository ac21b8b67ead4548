"""Groups of flows that waste little when they share a channel: the clusterings of riabov2003, appendix A."""

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
#: The most bytes that the sets of subscribers may take.
_MOST = 4 << 30


@dataclass(frozen=True, slots=True)
class WorthwhileFlows:
    """The flows that are worth a channel, the weightiest first, with the subscribers of each as flags.

    Parameters
    ----------
    flows
        Their numbers in the interest.
    weight
        The rate of each.
    start, who
        The subscribers of each: `who[start[i]:start[i + 1]]`, numbered from 0 without gaps.
    n_subscribers
        How many want any of them.
    """

    flows: Ints
    weight: NDArray[np.float64]
    start: Ints
    who: NDArray[np.int32]
    n_subscribers: int

    @classmethod
    def of(cls, interest: Interest, top: int | None) -> Self:
        """Return the flows of greatest rate x audience, of equals the first; what weighs nothing is none."""
        if top is not None:
            check_whole("top", top)
        audience = interest.audience()
        load = interest.rate * audience
        order = np.argsort(-load, kind="stable")
        flows = order[load[order] > 0][:top]
        wants = interest.wants.tocsc()[:, flows]
        people, who = np.unique(wants.indices, return_inverse=True)
        start = wants.indptr.astype(np.int64)
        return cls(flows, interest.rate[flows], start, who.astype(np.int32), len(people))

    def __len__(self) -> int:
        return len(self.flows)

    @property
    def audience(self) -> Ints:
        """How many want each."""
        return np.diff(self.start)

    @property
    def load(self) -> NDArray[np.float64]:
        """The messages per second that each makes."""
        return np.asarray(self.weight * self.audience, np.float64)

    def sets(self) -> NDArray[np.uint64]:
        """Return the subscribers of each flow as a row of flags."""
        width = (self.n_subscribers + 63) // 64
        if 8 * len(self) * width > _MOST:
            raise ParameterError(
                f"{len(self)} flows by {self.n_subscribers} subscribers take more than {_MOST >> 30} GB; "
                f"plan the weightiest with top={_MOST // (8 * width)}, the rest is sent directly"
            )
        words = np.zeros((len(self), width), np.uint64)
        waste.flags(self.start, self.who, words)
        return words


class _Clustering(BasePlanner, ABC):
    """A planner that puts every flow worth it into one of so many groups."""

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
        """Make the plan, `plan_`."""
        check_channels(self.channels, required=type(self).__name__.lower())
        check_seed(self.seed)
        if self.distance not in _KINDS:
            raise ParameterError(f"distance is {self.distance!r}; use one of {', '.join(get_args(Distance))}")
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
        """Return the group of each chosen flow."""


class _Moving(_Clustering):
    """A clustering in which flows move to the nearest group, pass after pass."""

    live: bool
    #: How many passes the last `fit` took, the one without a move included, and whether there was one.
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
            raise ParameterError(
                f"{n_groups} groups by {chosen.n_subscribers} subscribers take more than {_MOST >> 30} GB; "
                f"ask for at most {_MOST // (4 * chosen.n_subscribers)} channels"
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

    The weightiest flows start the groups and the others join the nearest, one by one. In a pass each flow
    is measured with all groups, its own as if it were not there, and goes to the nearest. It need not
    settle: with sets in the place of means a pass can make things worse.

    Parameters
    ----------
    channels
        How many groups there are; required.
    seed
        Changes nothing.
    top
        How many flows of greatest rate x audience are grouped; the rest is sent directly. All where left out.
    distance
        `total`, the wasted messages per second that a flow adds to a group; `norm`, the change of the waste
        per event of the group, as the text has it; `printed`, that by the formula as it is printed.
    passes
        The most passes.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> interest = Interest([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]], rate=[9, 2, 8, 3])
    >>> Forgy(channels=2).fit(interest).plan_.carries.toarray().argmax(axis=1).tolist()
    [0, 0, 1, 1]
    """

    live = False


class MacQueen(_Moving):
    """`Forgy` with groups that change at every move: with `total` each move lowers the waste, so it settles.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> interest = Interest([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]], rate=[9, 2, 8, 3])
    >>> MacQueen(channels=2).fit(interest).settled_
    True
    """

    live = True


class Pairwise(_Clustering):
    """Merges the two groups that are closest until so many are left (riabov2003, appendix A.3).

    It starts with each flow by itself. Of the four clusterings of the paper it wastes least. It takes time
    in proportion to the square of the flows, and memory in proportion to their number.

    Parameters
    ----------
    channels, seed, top
        As for `Forgy`.
    distance
        `total`, the waste that a merge adds; `norm`, the waste per event of the merged group; `printed`, as
        for `Forgy`, the later group joining the earlier.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> interest = Interest([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1]], rate=[9, 2, 8, 3])
    >>> Pairwise(channels=3).fit(interest).plan_.carries.toarray().argmax(axis=1).tolist()
    [0, 0, 1, 2]
    """

    def _groups(self, chosen: WorthwhileFlows, n_groups: int) -> Ints:
        into = np.arange(len(chosen))
        kind, weight = _KINDS[self.distance], chosen.weight.copy()  # it is changed, as the others are
        waste.merge(kind, chosen.sets(), weight, chosen.audience, chosen.load, n_groups, into)
        return _numbered(into)


class Mst(_Clustering):
    """Joins flows along the shortest distances between them until so many groups are left (riabov2003, A.3).

    It looks at pairs of flows only, not at what they have become part of: quick, and wasteful.

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
    """Return groups numbered in the order of their first flows, from what each flow was merged into."""
    while not np.array_equal(further := into[into], into):
        into = further
    return np.unique(into, return_inverse=True)[1].astype(np.int64)
