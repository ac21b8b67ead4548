"""Methods that cluster subscriptions repeatedly, and the messages that they need."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.lab.clusters.places import least_enlarged, nearest_centre
from narrowcast.lab.spectral.deviation import deviation
from narrowcast.lab.spectral.hierarchy import CoordinateTable, Hierarchy
from narrowcast.lab.spectral.space import normalised
from narrowcast.lab.spectral.traffic import bytes_of_histories
from narrowcast.model.interest import Interest
from narrowcast.model.relation import relation
from narrowcast.planning.base import PLANNERS, order_of, planners
from narrowcast.planning.subscribers.audiences import SubscriberClusters
from narrowcast.planning.subscribers.numbering import numbers_of
from narrowcast.validation import check_seed, check_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from narrowcast.lab.clusters.stream import SubscriptionStream
    from narrowcast.model.relation import Relation

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["METHODS", "ClusteredSubscriptions", "ClusteringMethod", "ComputedClusters", "RefreshedClusters"]

#: Planners that cluster subscribers, and whether they need boxes.
METHODS = {name: PLANNERS[name].capabilities.boxes for name in planners(clusters="subscribers")}
#: Bytes of a number: of a subscription, of a cluster, or an end of a box.
_NUMBER = 8
#: Kinds of messages sent again to refresh coordinates: within groups, and with one table for all groups.
_WITHIN, _TABLE = ("histories", "coordinates"), ("histories", "landmarks", "table", "coordinates")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringMethod:
    """A method to cluster subscriptions.

    Parameters
    ----------
    name
        One of `METHODS`.
    clusters
        Number of clusters.
    seed
        Seed of the planner, the same for each computation, so that unchanged input gives unchanged clusters.
    options
        Further parameters of the planner.

    Examples
    --------
    >>> ClusteringMethod(name="rassoc", clusters=5, options={"levels": 2}).organised
    True
    """

    name: str
    clusters: int
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in METHODS:
            raise ParameterError(parameter="method", value=self.name, limit=f"one of {', '.join(METHODS)}")
        check_whole("clusters", self.clusters)
        check_seed(self.seed)

    @property
    def organised(self) -> bool:
        """Whether peers are organised in groups with coordinators, which compute coordinates."""
        return self.options.get("levels", 1) > 1 or bool(self.options.get("table"))

    @property
    def rooted(self) -> bool:
        """Whether peers are in an R-tree, which changes only as subscriptions come and leave."""
        return self.name == "r-tree" and self.options.get("packing", "inserted") == "inserted"

    def compute(self, stream: SubscriptionStream, active: Ints, start: int, stop: int) -> ComputedClusters:
        """Return clusters of some subscriptions, computed from some events.

        Parameters
        ----------
        stream
            The events.
        active
            Numbers of the subscriptions.
        start, stop
            The range of events to compute from.
        """
        takes: dict[str, Any] = {"channels": self.clusters, "seed": self.seed, **self.options}
        if METHODS[self.name]:
            if stream.boxes is None:
                raise ParameterError(
                    f"boxes are missing: method {self.name!r} needs the boxes of subscriptions",
                    parameter="boxes",
                )
            takes["boxes"] = tuple(each[active] for each in stream.boxes)
        interest = Interest(stream.history(active, start, stop))
        planner: Any = PLANNERS[self.name](**takes).fit(interest)
        return ComputedClusters(self, planner, interest, active, start, stop)


@dataclass(frozen=True, slots=True, eq=False)
class ComputedClusters:
    """Clusters as computed by a planner.

    Parameters
    ----------
    method, planner
        The method, and its fitted planner.
    interest
        The interest they were computed from.
    active, start, stop
        The subscriptions, and the range of events.
    """

    method: ClusteringMethod
    planner: Any
    interest: Interest
    active: Ints
    start: int
    stop: int

    @property
    def label(self) -> Ints:
        """For each of the subscriptions its cluster, as numbered by the planner."""
        return np.asarray(self.planner.plan_.listens.indices, np.int64)

    @property
    def messages(self) -> int:
        """The number of messages of the computation.

        In a hierarchy they are those of its report. Otherwise a central node gets a message from each
        subscription, and replies with another one.
        """
        if self.method.organised:
            return int(self.planner.traffic_.total().messages)
        return 2 * len(self.active)

    @property
    def bytes(self) -> int:
        """The size of these messages in bytes."""
        if self.method.organised:
            return int(self.planner.traffic_.total().bytes)
        answers = 2 * _NUMBER * len(self.active)
        if METHODS[self.method.name]:
            return answers + 2 * _NUMBER * int(np.size(self.planner.boxes[0]))
        return answers + bytes_of_histories(self.interest.wants)

    def refresh(self, stream: SubscriptionStream, start: int, stop: int) -> RefreshedClusters:
        """Assign the same subscriptions by newer events to the existing centres, without computing clusters.

        Members send newer histories to their coordinators and get their coordinates; centres and projections
        stay. With one table of landmarks the histories of these are sent up and down again. With a central
        node, each subscription sends a message and gets a reply. Messages have the same size as when clusters
        were computed.

        Parameters
        ----------
        stream
            The events.
        start, stop
            The range of newer events.
        """
        interest = Interest(stream.history(self.active, start, stop))
        planner = copy(self.planner).refresh(interest)
        label = np.asarray(planner.plan_.listens.indices, np.int64)
        if not self.method.organised:
            return RefreshedClusters(label, interest, self.messages, self.bytes)
        kinds = _TABLE if isinstance(planner.embedding_, CoordinateTable) else _WITHIN
        sent = planner.traffic_.total(lambda step: step.what in kinds)
        return RefreshedClusters(label, interest, int(sent.messages), int(sent.bytes))

    def centres(self) -> tuple[Doubles, Doubles]:
        """Return the centres of clusters, and the coordinates of each subscription; NaN for one without."""
        found = self.planner.embedding_
        order = order_of(self.interest)
        known = order[np.diff(self.interest.wants.indptr)[order] > 0]
        points = found.coordinates if isinstance(found, Hierarchy | CoordinateTable) else found.own
        own = np.full((len(self.active), points.shape[1]), np.nan)
        own[known] = normalised(points) if self.planner.normalise else points
        some = ~np.isnan(own).any(axis=1)
        label = self.label[some]
        count = np.bincount(label, minlength=len(self.planner.size_))
        total = np.stack([np.bincount(label, column, len(count)) for column in own[some].T], axis=1)
        return total[count > 0] / count[count > 0, None], own

    def differs(self, before: ComputedClusters, threshold: float) -> bool:
        """Return whether clusters differ enough from earlier ones to be installed (section 5).

        Parameters
        ----------
        before
            The clusters in use.
        threshold
            How far centres must have moved: see `Deviation`. Only spectral methods have such centres;
            clusters of other methods always differ.
        """
        if any(getattr(each.planner, "embedding_", None) is None for each in (self, before)):
            return True
        (old, was), (new, now) = before.centres(), self.centres()
        _, one, other = np.intersect1d(before.active, self.active, return_indices=True)
        both = ~(np.isnan(was[one]).any(axis=1) | np.isnan(now[other]).any(axis=1))
        return deviation(old, new, was[one][both], now[other][both]).installs(threshold)


@dataclass(frozen=True, slots=True, eq=False)
class RefreshedClusters:
    """Assignment of subscriptions after a refresh of coordinates.

    Parameters
    ----------
    label
        For each of the subscriptions that clusters were computed from its cluster, as numbered by the
        planner.
    interest
        The newer events that they matched.
    messages, bytes
        Number and size of messages.
    """

    label: Ints
    interest: Interest
    messages: int
    bytes: int


class ClusteredSubscriptions:
    """Clusters in use: with numbers that persist, and with placement of new subscriptions.

    Parameters
    ----------
    stream
        The events and subscriptions.
    computed
        The initial clusters.

    Examples
    --------
    >>> from narrowcast.lab.clusters.stream import SubscriptionStream
    >>> stream = SubscriptionStream([[1, 1, 0, 0, 1], [0, 0, 1, 1, 0]], comes=[0, 0, 0, 0, 1])
    >>> computed = ClusteringMethod(name="direct", clusters=2).compute(stream, np.arange(4), 0, 2)
    >>> clustered = ClusteredSubscriptions(stream, computed)
    >>> clustered.place(np.array([4]), 2)
    >>> bool(clustered.label[4] == clustered.label[0] != clustered.label[2])
    True
    """

    def __init__(self, stream: SubscriptionStream, computed: ComputedClusters) -> None:
        self.stream = stream
        #: For each subscription its cluster, -1 for an inactive one.
        self.label = np.full(stream.n_subscriptions, -1)
        self.install(computed)

    def install(self, computed: ComputedClusters) -> None:
        """Use new clusters, numbered such that as few subscriptions as possible change their number."""
        self.number = self._numbers(computed)
        self.label, self.computed = self.numbered(computed), computed

    def numbered(self, computed: ComputedClusters) -> Ints:
        """Return for each subscription its cluster if new clusters were installed."""
        found = np.full(len(self.label), -1)
        found[computed.active] = self._numbers(computed)[computed.label]
        return found

    def _numbers(self, computed: ComputedClusters) -> Ints:
        """Return the number in use for each new cluster."""
        new = np.full(len(self.label), -1)
        new[computed.active] = computed.label
        return numbers_of(self.label, new, computed.planner.plan_.n_channels)

    @property
    def refreshable(self) -> bool:
        """Whether there are coordinates, and all subscriptions they were computed from are still active."""
        planner, active = self.computed.planner, self.computed.active
        return getattr(planner, "embedding_", None) is not None and bool((self.label[active] >= 0).all())

    def renewed(self, refreshed: RefreshedClusters) -> Ints:
        """Return for each subscription its cluster by refreshed coordinates; later subscriptions stay."""
        found = self.label.copy()
        found[self.computed.active] = self.number[refreshed.label]
        return found

    def remove(self, removed: Ints) -> None:
        """Remove subscriptions."""
        self.label[removed] = -1

    def place(self, added: Ints, now: int) -> None:
        """Assign new subscriptions to clusters, without computing clusters.

        A spectral method assigns them to the nearest centre, by the events that clusters were computed from,
        and `direct` to where they cost least by the same number of recent events. Methods for boxes choose
        the cluster whose mean centre is nearest, or, as in any R-tree, whose bounding box grows least.

        Parameters
        ----------
        added
            Numbers of the new subscriptions.
        now
            The event before which they come.
        """
        if len(added) == 0:
            return
        done = self.computed
        if hasattr(done.planner, "place"):
            history = self.stream.history(added, done.start, done.stop)
            self.label[added] = self.number[done.planner.place(history)]
        elif METHODS[done.method.name]:
            boxes = self.stream.boxes
            assert boxes is not None
            where = least_enlarged if done.method.name == "r-tree" else nearest_centre
            self.label[added] = where(boxes, self.label, added)
        else:
            self._place_one_by_one(added, max(0, now - (done.stop - done.start)), now)

    def _place_one_by_one(self, added: Ints, start: int, stop: int) -> None:
        """Assign subscriptions, one after the other, to where they cost least by some events."""
        here = np.concatenate([np.flatnonzero(self.label >= 0), added])
        history: Relation = relation(self.stream.history(here, start, stop))
        n_clusters = max(int(self.number.max(initial=-1)), int(self.label.max(initial=-1))) + 1
        clusters = SubscriberClusters.of(Interest(history), n_clusters, self.computed.planner.balance)
        clusters.cluster[:] = self.label[here]
        clusters.count_in()
        clusters.fill(np.arange(len(here) - len(added), len(here)))
        self.label[added] = clusters.cluster[len(here) - len(added) :]
