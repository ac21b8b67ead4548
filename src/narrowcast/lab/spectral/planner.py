"""Planners that cluster subscribers by matched events: ratio association, normalised cut (tariq2012)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, get_args

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.lab.spectral import merging
from narrowcast.lab.spectral.hierarchy import CoordinateTable, Hierarchy, embedded, tabled
from narrowcast.lab.spectral.homes import assign_parts, assign_rows
from narrowcast.lab.spectral.kmeans import kmeans, nearest
from narrowcast.lab.spectral.ncut import SQUARE, Kernel
from narrowcast.lab.spectral.parts import ConnectedParts
from narrowcast.lab.spectral.points import SpectralPoints, columns_of, rows_with_cluster
from narrowcast.lab.spectral.similarity import n_events
from narrowcast.lab.spectral.space import Association, EmbeddingSpace, SpaceCut, SpaceFrame
from narrowcast.lab.spectral.traffic import HierarchyReport
from narrowcast.lab.spectral.tree import GroupTree, check_share
from narrowcast.model.relation import recent, relation
from narrowcast.planning.base import BasePlanner, Capabilities, order_of, plan_of_subscribers
from narrowcast.planning.fit_report import FitReport
from narrowcast.planning.subscribers.warm_start import EarlierClusters, check_start
from narrowcast.validation import check_choice, check_flag, check_number, check_seed, check_whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.lab.spectral.projection import Form
    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.model.relation import Relation

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["Clustering", "Ncut", "Rassoc", "assign_rows"]

#: Points that centres are found from: all rows, those of the root, or group by group (see `merging`).
Clustering: TypeAlias = Literal["all", "sampled", "hierarchical", "hp2pc"]
#: Default number of groups on the lowest level.
GROUPS = 8


class Spectral(BasePlanner):
    """Base of both planners: histories, coordinates, k-means, and clusters for rows without coordinates.

    Subscribers that share events, directly or through others, are in one connected part. If several parts
    have at least a quarter of the members of a mean cluster, these parts are kept apart whatever their
    coordinates.

    Subscribers without events are assigned, one after the other, to the cluster with the fewest members at
    that time: they may match any event to come, so no cluster is better than another, and sizes become more
    even. A subscriber that shares no event with others is assigned to the smallest cluster as well. So are
    subscribers of small parts without coordinates, part by part.
    """

    capabilities = Capabilities(clusters="subscribers", all_subscribers=True, warm_start="optional")
    plan_: ChannelPlan
    #: Centres of clusters.
    centre_: Doubles
    #: Number of members of each channel.
    size_: Ints
    #: Frame of all rows, of the root or of all groups, by which new rows get coordinates.
    embedding_: SpaceFrame | Hierarchy | CoordinateTable | None
    #: Messages and work in the hierarchy; no steps with one level.
    traffic_: HierarchyReport
    #: Connected parts of the subscribers with a history.
    parts_: ConnectedParts

    def __init__(
        self,
        *,
        channels: int | None = None,
        seed: int = 0,
        similarity: str = "cosine",
        dimensions: int = 20,
        history: int | None = None,
        normalise: bool = True,
        levels: int = 1,
        groups: int | None = None,
        landmarks: float = 0.3,
        table: bool = False,
        offset: bool = True,
        clustering: Clustering = "all",
        restarts: int = 3,
        start: ChannelPlan | None = None,
    ) -> None:
        self.channels = channels
        self.seed = seed
        self.similarity = similarity
        self.dimensions = dimensions
        self.history = history
        self.normalise = normalise
        self.levels = levels
        self.groups = groups
        self.landmarks = landmarks
        self.table = table
        self.offset = offset
        self.clustering = clustering
        self.restarts = restarts
        self.start = start

    def fit(self, interest: Interest) -> Self:
        """Compute the plan, `plan_`."""
        self._check()
        return self._fit(interest, order_of(interest))

    def fit_groups(self, interest: Interest, group: Ints) -> Self:
        """Compute the plan with given initial groups, such as those of a Spark job or of peers.

        Parameters
        ----------
        interest
            Interest of the subscribers. In a group they are in their order here.
        group
            For each subscriber the group of the lowest level that is tried first, from 0 to `groups` - 1.
        """
        self._check()
        if len(group) != interest.n_subscribers:
            raise ParameterError(
                f"group has {len(group)} numbers: must be {interest.n_subscribers}, one for each subscriber",
                parameter="group",
                value=len(group),
                limit=f"{interest.n_subscribers} numbers",
            )
        most = (self.groups or GROUPS) - 1
        if wrong := [number for number in np.unique(group).tolist() if not 0 <= number <= most]:
            raise ParameterError(parameter="group", value=wrong[0], limit=f"from 0 to {most}")
        return self._fit(interest, np.arange(interest.n_subscribers), group)

    def _check(self) -> None:
        """Refuse parameters out of range."""
        self._n_channels = check_start(self.start, self.channels, type(self).__name__.lower())
        check_seed(self.seed)
        check_whole("levels", self.levels)
        if self.groups is not None:
            check_whole("groups", self.groups)
        check_whole("restarts", self.restarts)
        check_share(self.landmarks)
        for name in ("normalise", "table", "offset"):
            check_flag(name, getattr(self, name))
        check_choice("clustering", self.clustering, get_args(Clustering))

    def _fit(self, interest: Interest, order: Ints, group: Ints | None = None) -> Self:
        """Compute the plan of subscribers in an order, in random groups or in given ones."""
        rows = recent(relation(interest.wants[order]), self.history)
        some = np.flatnonzero(np.diff(rows.indptr))
        n_clusters = min(self._n_channels, interest.n_subscribers)
        self._number, self.report_ = np.arange(n_clusters), FitReport()
        space = self.space(max(n_events(rows), 1))
        found = self._embedded(space, rows[some], None if group is None else group[order][some])
        self.parts_ = ConnectedParts.of(rows[some])
        self._order, self._some = order, some
        longest = max(float((each**2).sum(axis=1).max(initial=0.0)) for each in found[0]) ** 0.5
        columns = columns_of(self.parts_, len(some), n_clusters)
        self._points = SpectralPoints(normalise=self.normalise, longest=longest, columns=columns)
        label = np.full(len(order), -1)
        label[some] = self._clustered(found, n_clusters)
        self._settle(interest, label, n_clusters)
        if self.start is not None:
            self._match_earlier(interest)
        return self

    def refresh(self, interest: Interest) -> Self:
        """Compute the plan for newer events of the same subscribers, by the current basis and centres.

        Each subscriber joins the centre that is nearest now (section 5). This is accurate as long as events
        change little. Subscribers that had no history when `fit` was called join the smallest clusters.

        Parameters
        ----------
        interest
            Newer events of the subscribers of `fit`, in the same order.
        """
        if interest.n_subscribers != len(self._order):
            raise ParameterError(
                f"interest has {interest.n_subscribers} subscribers: must be the {len(self._order)} of the "
                "plan; use fit for others",
                parameter="interest",
                value=interest.n_subscribers,
                limit=f"{len(self._order)} subscribers",
            )
        rows = recent(relation(interest.wants[self._order]), self.history)[self._some]
        label = np.full(len(self._order), -1)
        if self.embedding_ is not None and len(self.centre_):
            if isinstance(self.embedding_, Hierarchy | CoordinateTable):
                got = self.embedding_.refreshed(rows)
            else:
                got = self.embedding_.moved(rows).own
            points = self._points(got, self.parts_.row)
            there = rows_with_cluster(points, self.parts_.row, self.parts_) & (np.diff(rows.indptr) > 0)
            label[self._some[there]] = nearest(points[there], self.centre_)
        self._settle(interest, label, len(self._number))
        return self

    def place(self, wants: Any) -> Ints:
        """Return a channel for each new row, without recomputing the plan.

        Parameters
        ----------
        wants
            Events of `fit`, in their order, that each row has matched; anything scipy reads as a matrix.
        """
        rows = recent(relation(wants), self.history)
        if rows.shape[1] != len(self.parts_.event):
            raise ParameterError(
                f"wants has {rows.shape[1]} events: must be the {len(self.parts_.event)} of the plan",
                parameter="wants",
                value=rows.shape[1],
                limit=f"{len(self.parts_.event)} events",
            )
        if rows.shape[0] and not len(self._number):
            raise ParameterError(
                "the plan has no channels, as it was made for no subscribers: fit it to some first",
                parameter="wants",
                value=rows.shape[0],
                limit="empty",
            )
        part = self.parts_.of_others(rows)
        label = np.full(rows.shape[0], -1)
        there = np.flatnonzero(part >= 0)
        if len(there) and len(self.centre_) and self.embedding_ is not None:
            got = self.embedding_.place(rows[there])
            points = self._points(got, part[there])
            led = rows_with_cluster(points, part[there], self.parts_)
            label[there[led]] = nearest(points[led], self.centre_)
        lost = (label < 0) & (part >= 0)
        label[lost] = self._home[part[lost]]
        size = self.size_[self._number] + np.bincount(label[label >= 0], minlength=len(self._number))
        label[label < 0] = assign_rows(size, int(np.count_nonzero(label < 0)))
        return self._number[label] if len(label) else label

    def space(self, events: int) -> EmbeddingSpace:
        """Return the embedding method, given the number of events."""
        raise NotImplementedError

    def _embedded(self, space: EmbeddingSpace, rows: Relation, group: Ints | None) -> list[list[Doubles]]:
        """Return coordinates of the rows of each group of each level, and store the frame that gives them."""
        self.embedding_, self.traffic_, self._tree = None, HierarchyReport(), None
        if rows.shape[0] == 0:
            return [[np.zeros((0, 0))]]
        if self.levels == 1 and not self.table:
            frame = space.frame(rows)
            self.embedding_ = frame
            return [[frame.own]]
        self._tree = GroupTree.of(
            rows,
            levels=max(self.levels, 2),
            groups=self.groups or GROUPS,
            landmarks=self.landmarks,
            least=space.dimensions + 1,
            seed=self.seed,
            group=group,
        )
        found = (tabled if self.table else embedded)(space, rows, self._tree)
        self.embedding_, self.traffic_ = found, found.report
        return found.levels

    def _clustered(self, levels: list[list[Doubles]], n_clusters: int) -> Ints:
        """Return the cluster of each row with usable coordinates, -1 for other rows."""
        rng = np.random.default_rng(self.seed)
        part = self.parts_.row
        if self._tree is None:
            numbers = [[np.arange(len(part))]]
        else:
            numbers = [[group.members for group in level] for level in self._tree.levels]
        points = [
            [self._points(got, part[number]) for got, number in zip(*level, strict=True)]
            for level in zip(levels, numbers, strict=True)
        ]
        label = np.full(len(part), -1)
        whole = np.zeros((len(part), points[0][0].shape[1]))
        for number, own in zip(numbers[0], points[0], strict=True):
            whole[number] = own
        led = rows_with_cluster(whole, part, self.parts_)
        self.centre_ = np.zeros((0, whole.shape[1]))
        if not led.any():
            return label
        if self.clustering == "all" or self._tree is None:
            means = kmeans(whole[led], n_clusters, rng=rng, restarts=self.restarts)
            self.centre_, label[led] = means.centre, means.label
        else:
            method = getattr(merging, self.clustering)
            parents = self._tree.parents
            groups = method(points, parents, n_clusters, rng=rng, restarts=self.restarts)
            self.centre_ = groups.centre
            for number, own in zip(numbers[0], groups.label, strict=True):
                label[number] = own
            label[~led] = -1
        if self._tree is not None:
            self.traffic_.centres(len(self.centre_), whole.shape[1], [len(number) for number in numbers[0]])
        return label

    def _settle(self, interest: Interest, label: Ints, n_clusters: int) -> None:
        """Assign rows without a cluster, those of a part together, then the others; set the plan."""
        self.size_ = np.bincount(label[label >= 0], minlength=n_clusters)
        part = np.full(len(label), -1)
        part[self._some] = self.parts_.row
        alone = (label < 0) & (part >= 0)
        lost = np.bincount(part[alone], minlength=len(self.parts_.size))
        self._home, self.size_ = assign_parts(self.size_, lost)
        label[alone] = self._home[part[alone]]
        rest = label < 0
        label[rest] = assign_rows(self.size_, int(np.count_nonzero(rest)))
        channel = np.empty(len(label), np.int64)
        channel[self._order] = self._number[label] if len(label) else label
        n_channels = n_clusters if self.start is None else self._n_channels
        self.size_ = np.bincount(channel, minlength=n_channels)
        self.plan_ = plan_of_subscribers(interest, channel, n_channels)

    def _match_earlier(self, interest: Interest) -> None:
        """Renumber clusters such that as few subscribers of the earlier plan as possible have to move."""
        assert self.start is not None
        earlier = EarlierClusters.of(self.start, interest)
        label = self.plan_.listens.indices.astype(np.int64)
        self._number = earlier.numbers(label, len(self._number))
        label = self._number[label] if len(label) else label
        self.size_ = np.bincount(label, minlength=self._n_channels)
        self.plan_ = plan_of_subscribers(interest, label, self._n_channels)
        unmoved = earlier.unmoved(interest, self._order, self._n_channels, None)
        before = unmoved.cost
        unmoved.cluster[:] = label
        unmoved.count_in()
        self.report_ = FitReport(succession=earlier.succession(label, before, unmoved.cost))


class Rassoc(Spectral):
    """Cluster subscribers by ratio association: those with histories similar to the same other histories.

    Coordinates are the largest principal components of the matrix of similarities; k-means clusters their
    directions. Events count once each, whatever their rate.

    Parameters
    ----------
    channels
        Number of clusters; required unless `start` is given.
    seed
        Seed of groups, landmarks and starts of k-means (default 0).
    similarity
        Similarity of histories: see `similarity`. With `cosine` (the default) no matrix of similarities is
        stored, so that the number of subscribers is not limited, and clusters are better than with `jaccard`,
        the paper's.
    dimensions
        Most coordinates (default 20).
    history
        Number of the most recent events of each subscriber that count; None (the default) for all, which is a
        window common to all subscribers.
    normalise
        Whether only the directions of coordinates count, not their lengths (default: true).
    levels, groups
        With more than one level (default 1), coordinates are found by this number of groups, each on its own:
        see `GroupTree`. The default is 8 groups; on Spark, it depends on the number of subscribers.
    landmarks
        Share of each group's members that are landmarks, members of the group above as well (default 0.3). A
        group has at least one landmark more than dimensions, or all its members are.
    table
        Whether all subscribers are compared with the landmarks of the highest group: one basis for all, which
        is more accurate (default: false). It implies at least 2 levels.
    offset
        Whether projections of groups have an offset, unlike the paper's (default: true): see `Projection`.
    clustering
        With several levels: k-means on `all` rows (the default), on the root's points (`sampled`), or group
        by group (`hierarchical`, `hp2pc`).
    restarts
        Number of runs of k-means from different starts (default 3).
    start
        An earlier plan of clusters: new clusters take over its numbers such that as few subscribers as
        possible have to move. Its number of clusters is the default of `channels`.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> interest = Interest([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]])
    >>> rassoc = Rassoc(channels=2).fit(interest)
    >>> rassoc.plan_.listens.toarray().argmax(axis=1)[:4].tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])
    True
    >>> one, other = rassoc.place([[1, 0, 0, 0], [0, 0, 0, 1]])
    >>> bool(one != other)
    True
    """

    def space(self, events: int) -> Association:
        """Return the embedding method, given the number of events."""
        return Association(
            dimensions=self.dimensions, similarity=self.similarity, events=events, offset=self.offset
        )


class Ncut(Spectral):
    """Cluster subscribers by normalised cut: those near each other in the graph of shared events.

    Coordinates are the slowest modes of a random walk on the graph of similarities, without the constant
    modes of its connected parts.

    Parameters
    ----------
    channels, seed, similarity, dimensions, history, normalise, levels, groups, landmarks, table, offset,
    clustering, restarts, start
        See `Rassoc`. With `cosine` and no kernel no matrix is stored.
    sigma
        Width of the kernel, if there is one (default: the square root of 0.1).
    kernel
        Weight of a similarity s: `none` (the default) for s itself, which gives the best clusters, `distance`
        for exp(-(1 - s) / sigma^2), or `printed` for exp(-s / sigma^2), as in the paper, which falls as s
        rises.
    form
        Form of projections between levels: see `cut_projection`.

    Examples
    --------
    >>> from narrowcast.model.interest import Interest
    >>> interest = Interest([[1, 1, 0, 0]] * 3 + [[0, 0, 1, 1]] * 3)
    >>> Ncut(channels=2).fit(interest).plan_.carries.toarray().astype(int).tolist() in (
    ...     [[1, 0], [1, 0], [0, 1], [0, 1]], [[0, 1], [0, 1], [1, 0], [1, 0]]
    ... )
    True
    """

    def __init__(
        self,
        *,
        channels: int | None = None,
        seed: int = 0,
        similarity: str = "cosine",
        dimensions: int = 20,
        history: int | None = None,
        normalise: bool = True,
        levels: int = 1,
        groups: int | None = None,
        landmarks: float = 0.3,
        table: bool = False,
        offset: bool = True,
        clustering: Clustering = "all",
        restarts: int = 3,
        sigma: float = SQUARE**0.5,
        kernel: Kernel = "none",
        form: Form = "rw",
        start: ChannelPlan | None = None,
    ) -> None:
        super().__init__(
            channels=channels,
            seed=seed,
            similarity=similarity,
            dimensions=dimensions,
            history=history,
            normalise=normalise,
            levels=levels,
            groups=groups,
            landmarks=landmarks,
            table=table,
            offset=offset,
            clustering=clustering,
            restarts=restarts,
            start=start,
        )
        self.sigma = sigma
        self.kernel: Kernel = kernel
        self.form: Form = form

    def space(self, events: int) -> SpaceCut:
        """Return the embedding method, given the number of events."""
        # Limits by which the square is a finite number above 0 as well.
        check_number("sigma", self.sigma, least=1e-150, most=1e150, limit="a number above 0, such as 0.3")
        return SpaceCut(
            dimensions=self.dimensions,
            similarity=self.similarity,
            events=events,
            kernel=self.kernel,
            square=self.sigma**2,
            form=self.form,
            offset=self.offset,
        )
