"""Clusters of subscribers by the events they matched: ratio association and normalised cut (tariq2012)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, get_args

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.lab.spectral import merging
from narrowcast.lab.spectral.hierarchy import CoordinateTable, Hierarchy, embedded, tabled
from narrowcast.lab.spectral.homes import filled, homes
from narrowcast.lab.spectral.kmeans import kmeans, nearest
from narrowcast.lab.spectral.ncut import SQUARE, Kernel
from narrowcast.lab.spectral.parts import ConnectedParts
from narrowcast.lab.spectral.points import SpectralPoints, columns_of, known
from narrowcast.lab.spectral.similarity import n_events
from narrowcast.lab.spectral.space import Association, EmbeddingSpace, SpaceCut, SpaceFrame
from narrowcast.lab.spectral.traffic import HierarchyReport
from narrowcast.lab.spectral.tree import GroupTree, check_share
from narrowcast.model.relation import recent, relation
from narrowcast.planning.base import BasePlanner, Capabilities, order_of, plan_of_subscribers
from narrowcast.planning.fit_report import FitReport
from narrowcast.planning.subscribers.warm_start import EarlierClusters, check_start
from narrowcast.validation import check_flag, check_number, check_seed, check_whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.lab.spectral.projection import Form
    from narrowcast.model.interest import Interest
    from narrowcast.model.plan import ChannelPlan
    from narrowcast.model.relation import Relation

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["Clustering", "Ncut", "Rassoc", "filled"]

#: Which points centres are found from: all rows, those of the root, or group by group (see `merging`).
Clustering: TypeAlias = Literal["all", "sampled", "hierarchical", "hp2pc"]
#: How many groups there are on the lowest level where nothing is said.
GROUPS = 8


class Spectral(BasePlanner):
    """What both methods share: histories, coordinates, k-means, and a place for who has no coordinates.

    Who shares events, directly or through others, is of one part. Where several parts have a quarter of the
    members of a mean cluster or more, these are kept apart whatever their coordinates.

    Who matched no event is put, one after the other, into the cluster that has the fewest members then: they
    may match any event to come, so that none of the clusters is better than another, and sizes come out more
    even. Who shares no event with anybody goes to the smallest cluster as well, and so does who has no
    coordinates because it hangs together with few others: with these.
    """

    capabilities = Capabilities(clusters="subscribers", all_subscribers=True, warm_start="optional")
    plan_: ChannelPlan
    #: Where centres of clusters are.
    centre_: Doubles
    #: How many members each channel has.
    size_: Ints
    #: The frame of all rows, or of the root, or the groups' ones: what new rows are placed by.
    embedding_: SpaceFrame | Hierarchy | CoordinateTable | None
    #: What was sent in a hierarchy; no steps with one level.
    traffic_: HierarchyReport
    #: The connected parts of those who have a history.
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
        """Make the plan, `plan_`."""
        self._check()
        return self._fit(interest, order_of(interest))

    def fit_groups(self, interest: Interest, group: Ints) -> Self:
        """Make the plan with groups that are there already, as a job on Spark and peers have them.

        Parameters
        ----------
        interest
            Whom to plan for. In a group they come in their order here.
        group
            For each of them the group of the lowest level that it asks first, from 0 up to `groups`.
        """
        self._check()
        if len(group) != interest.n_subscribers:
            raise ParameterError(
                f"there are {len(group)} groups for {interest.n_subscribers} subscribers; give one for each"
            )
        most = (self.groups or GROUPS) - 1
        if wrong := [number for number in np.unique(group).tolist() if not 0 <= number <= most]:
            raise ParameterError(f"a subscriber is in group {wrong[0]}; give groups from 0 to {most}")
        return self._fit(interest, np.arange(interest.n_subscribers), group)

    def _check(self) -> None:
        """Refuse parameters that are out of range."""
        self._n_channels = check_start(self.start, self.channels, type(self).__name__.lower())
        check_seed(self.seed)
        check_whole("levels", self.levels)
        if self.groups is not None:
            check_whole("groups", self.groups)
        check_whole("restarts", self.restarts)
        check_share(self.landmarks)
        for name in ("normalise", "table", "offset"):
            check_flag(name, getattr(self, name))
        if self.clustering not in get_args(Clustering):
            one = ", ".join(get_args(Clustering))
            raise ParameterError(f"clustering is {self.clustering!r}; give one of {one}")

    def _fit(self, interest: Interest, order: Ints, group: Ints | None = None) -> Self:
        """Make the plan of subscribers in an order, in drawn groups or in given ones."""
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
            self._follow(interest)
        return self

    def refresh(self, interest: Interest) -> Self:
        """Make the plan for newer events of the same subscribers, by the basis and the centres there are.

        Everybody goes to the centre that is nearest now (section 5). It will do for as long as events change
        little. Who had no history when `fit` was called is put where there are fewest.

        Parameters
        ----------
        interest
            Newer events of the subscribers of `fit`, in the same order.
        """
        if interest.n_subscribers != len(self._order):
            raise ParameterError(
                f"there are {interest.n_subscribers} subscribers, and the plan was made for "
                f"{len(self._order)}; make it anew with fit"
            )
        rows = recent(relation(interest.wants[self._order]), self.history)[self._some]
        label = np.full(len(self._order), -1)
        if self.embedding_ is not None and len(self.centre_):
            if isinstance(self.embedding_, Hierarchy | CoordinateTable):
                got = self.embedding_.refreshed(rows)
            else:
                got = self.embedding_.moved(rows).own
            points = self._points(got, self.parts_.row)
            there = known(points, self.parts_.row, self.parts_) & (np.diff(rows.indptr) > 0)
            label[self._some[there]] = nearest(points[there], self.centre_)
        self._settle(interest, label, len(self._number))
        return self

    def place(self, wants: Any) -> Ints:
        """Return a channel for each of some new rows, without computing anything anew.

        Parameters
        ----------
        wants
            Which of the events of `fit`, in their order, each has matched; anything scipy reads as a matrix.
        """
        rows = recent(relation(wants), self.history)
        if rows.shape[1] != len(self.parts_.event):
            raise ParameterError(
                f"new rows are of {rows.shape[1]} events; give those {len(self.parts_.event)} that the plan "
                "was made with"
            )
        if rows.shape[0] and not len(self._number):
            raise ParameterError("the plan was made for no subscribers and has no channels; fit it to some")
        part = self.parts_.of_others(rows)
        label = np.full(rows.shape[0], -1)
        there = np.flatnonzero(part >= 0)
        if len(there) and len(self.centre_) and self.embedding_ is not None:
            got = self.embedding_.place(rows[there])
            points = self._points(got, part[there])
            led = known(points, part[there], self.parts_)
            label[there[led]] = nearest(points[led], self.centre_)
        lost = (label < 0) & (part >= 0)
        label[lost] = self._home[part[lost]]
        size = self.size_[self._number] + np.bincount(label[label >= 0], minlength=len(self._number))
        label[label < 0] = filled(size, int(np.count_nonzero(label < 0)))
        return self._number[label] if len(label) else label

    def space(self, events: int) -> EmbeddingSpace:
        """Return what gives rows coordinates, out of so many events."""
        raise NotImplementedError

    def _embedded(self, space: EmbeddingSpace, rows: Relation, group: Ints | None) -> list[list[Doubles]]:
        """Return coordinates of the rows of each group of each level, and keep what gives them."""
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
        """Return the cluster of each row that has coordinates, -1 for the others."""
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
        led = known(whole, part, self.parts_)
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
        """Put rows that have no cluster into one, those of a part together and then the others; plan."""
        self.size_ = np.bincount(label[label >= 0], minlength=n_clusters)
        part = np.full(len(label), -1)
        part[self._some] = self.parts_.row
        alone = (label < 0) & (part >= 0)
        lost = np.bincount(part[alone], minlength=len(self.parts_.size))
        self._home, self.size_ = homes(self.size_, lost)
        label[alone] = self._home[part[alone]]
        rest = label < 0
        label[rest] = filled(self.size_, int(np.count_nonzero(rest)))
        channel = np.empty(len(label), np.int64)
        channel[self._order] = self._number[label] if len(label) else label
        n_channels = n_clusters if self.start is None else self._n_channels
        self.size_ = np.bincount(channel, minlength=n_channels)
        self.plan_ = plan_of_subscribers(interest, channel, n_channels)

    def _follow(self, interest: Interest) -> None:
        """Give clusters such numbers that as few as can be of the earlier plan have to move."""
        assert self.start is not None
        earlier = EarlierClusters.of(self.start, interest)
        label = self.plan_.listens.indices.astype(np.int64)
        self._number = earlier.numbers(label, len(self._number))
        label = self._number[label] if len(label) else label
        self.size_ = np.bincount(label, minlength=self._n_channels)
        self.plan_ = plan_of_subscribers(interest, label, self._n_channels)
        kept = earlier.kept(interest, self._order, self._n_channels, None)
        before = kept.cost
        kept.cluster[:] = label
        kept.count_in()
        self.report_ = FitReport(succession=earlier.succession(label, before, kept.cost))


class Rassoc(Spectral):
    """Clusters by ratio association: subscribers whose matched events are alike to the same others.

    Coordinates are the largest principal components of the matrix of similarities; k-means of their
    directions makes clusters. Events count once each, whatever their rate.

    Parameters
    ----------
    channels
        How many clusters; required, but with `start`.
    seed
        Of groups, landmarks and the starts of k-means.
    similarity
        Of histories: see `similarity`. With `cosine` no matrix of similarities is made, so that there may be
        any number of subscribers, and clusters come out better than with `jaccard`, the paper's.
    dimensions
        How many coordinates, at most.
    history
        How many events, the last ones, of each subscriber count; None for all: a window that is common to
        all.
    normalise
        Whether only the directions of coordinates count, not their lengths.
    levels, groups
        With more than one level coordinates are found by so many groups, each by itself: see `GroupTree`. There
        are 8 where left out; on Spark as many as subscribers make.
    landmarks
        The share of each group's members that is in the group above; at least one more than dimensions, or
        all.
    table
        Whether everybody is compared with the landmarks of the highest group: one basis for all, which is
        more accurate. It takes 2 levels at least.
    offset
        Whether projections of groups have an offset, which the paper's have not: see `Projection`.
    clustering
        With levels: `all`, or by the root's points (`sampled`) or group by group (`hierarchical`, `hp2pc`).
    restarts
        How often k-means begins anew.
    start
        An earlier plan of clusters: new ones take over its numbers, such that as few as can be have to move.
        There are as many clusters as it has where `channels` is left out.

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
        """Return what gives rows coordinates, out of so many events."""
        return Association(
            dimensions=self.dimensions, similarity=self.similarity, events=events, offset=self.offset
        )


class Ncut(Spectral):
    """Clusters by normalised cut: subscribers who are near each other in the graph of who shares events.

    Coordinates are the slowest modes of a walk on the graph of similarities, without those that tell its
    connected parts.

    Parameters
    ----------
    channels, seed, similarity, dimensions, history, normalise, levels, groups, landmarks, table, offset,
    clustering, restarts, start
        See `Rassoc`. With `cosine` and no kernel no matrix is made.
    sigma
        The width of the kernel, where there is one.
    kernel
        What weights are of similarities s: `none` for s itself, by which clusters come out best, `distance`
        for exp(-(1 - s) / sigma^2), or `printed` for exp(-s / sigma^2), as the paper has it, which falls as s
        rises.
    form
        Of projections between levels: see `cut_projection`.

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
        """Return what gives rows coordinates, out of so many events."""
        # The square of it is a number above 0 as well.
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
