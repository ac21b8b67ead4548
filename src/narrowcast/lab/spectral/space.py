"""Embedding methods: coordinates of rows, and projections of one group's coordinates onto the common ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from narrowcast.lab.spectral.cosine import Cosine
from narrowcast.lab.spectral.ncut import SQUARE, Kernel, Modes, check_kernel, ncut, weights
from narrowcast.lab.spectral.projection import (
    Form,
    Projection,
    basis_change,
    check_form,
    cut_projection,
    with_offset,
)
from narrowcast.lab.spectral.rassoc import Axes, rassoc
from narrowcast.lab.spectral.similarity import SIMILARITIES, Similarity, similarity
from narrowcast.model.matches import Matches
from narrowcast.validation import check_whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.lab.spectral.similarity import Likeness
    from narrowcast.model.relation import Relation

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["Above", "Association", "EmbeddingSpace", "LocalSpace", "SpaceCut", "SpaceFrame", "normalised"]


class SpaceFrame(Protocol):
    """Coordinates of some rows, and of other rows by comparison with these."""

    @property
    def rows(self) -> Relation:
        """The histories that other rows are compared with."""
        ...

    @property
    def own(self) -> Doubles:
        """The coordinates of these rows."""
        ...

    def place(self, rows: Relation) -> Doubles:
        """Return the coordinates of other rows, by their histories."""
        ...

    def moved(self, rows: Relation) -> SpaceFrame:
        """Return the frame with newer histories of its rows, and their coordinates by these."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class LocalSpace:
    """A group on its own: its frame, and the coordinates of its members in it."""

    frame: SpaceFrame
    coordinates: Doubles


@dataclass(frozen=True, slots=True, eq=False)
class Above:
    """The data that a group receives from the one above it.

    Parameters
    ----------
    rows
        The histories of the members above.
    coordinates
        Their common coordinates.
    landmarks
        The rows among them that are the group's landmarks, in the group's order.
    """

    rows: Relation
    coordinates: Doubles
    landmarks: Ints


class EmbeddingSpace(Protocol):
    """An embedding method; each step takes one group's histories and the data it received from above."""

    @property
    def dimensions(self) -> int:
        """Most coordinates."""
        ...

    #: Whether a projection uses all members of the group above, or only the group's landmarks there.
    whole: bool

    def frame(self, rows: Relation) -> SpaceFrame:
        """Return the frame of rows on their own."""
        ...

    def local(self, rows: Relation, landmarks: Ints) -> LocalSpace:
        """Embed a group on its own, given its landmarks."""
        ...

    def projection(self, local: LocalSpace, rows: Relation, landmarks: Ints, above: Above) -> Projection:
        """Return the map from a group's coordinates to the common ones."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """Embedding by ratio association.

    Parameters
    ----------
    dimensions
        Most coordinates (default 20).
    similarity
        One of `SIMILARITIES`; with `cosine` the matrix of similarities is never stored.
    events
        Number of events, for similarities that depend on it (default: those that occur in the histories of a
        frame, which differs by group).
    offset
        Whether projections have an offset: see `Projection`.

    Examples
    --------
    >>> from narrowcast.model.relation import relation
    >>> frame = Association(dimensions=2).frame(relation([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 1]]))
    >>> bool(np.allclose(frame.place(frame.rows), frame.own))
    True
    """

    dimensions: int = 20
    similarity: str = "jaccard"
    events: int | None = None
    offset: bool = True
    whole = False

    def __post_init__(self) -> None:
        _check(self.dimensions, self.similarity)

    def likeness(self, rows: Relation, columns: Relation | None = None) -> Likeness:
        """Return the similarities of histories."""
        if self.similarity == "cosine":
            return Cosine.of(rows, columns)
        return similarity(rows, columns, kind=self.similarity, events=self.events)

    def frame(self, rows: Relation) -> LinearFrame:
        """Return the frame of rows on their own."""
        likeness = self.likeness(rows)
        axes = rassoc(likeness, self.dimensions)
        return LinearFrame(self, rows, axes, axes.place(likeness))

    def local(self, rows: Relation, landmarks: Ints) -> LocalSpace:
        """Embed a group on its own, by a frame of its landmarks with which other members are compared."""
        frame = self.frame(rows[landmarks])
        return LocalSpace(frame, frame.place(rows))

    def projection(self, local: LocalSpace, rows: Relation, landmarks: Ints, above: Above) -> Projection:  # noqa: ARG002
        """Return the change of basis by which landmarks are nearest to their coordinates above."""
        own = with_offset(local.frame.own) if self.offset else local.frame.own
        return Projection.of(basis_change(own, above.coordinates[above.landmarks]), offset=self.offset)


@dataclass(frozen=True, slots=True, eq=False)
class LinearFrame:
    """Coordinates by ratio association."""

    space: Association
    rows: Relation
    axes: Axes
    own: Doubles

    def place(self, rows: Relation) -> Doubles:
        """Return the coordinates of other rows, by their histories."""
        return self.axes.place(self.space.likeness(self.rows, rows))

    def moved(self, rows: Relation) -> LinearFrame:
        """Return the frame with newer histories of its rows, and their coordinates by these."""
        return LinearFrame(self.space, rows, self.axes, self.axes.place(self.space.likeness(rows)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceCut:
    """Embedding by normalised cut.

    Parameters
    ----------
    dimensions, similarity, events, offset
        See `Association`. With `cosine` and without a kernel no matrix of weights is stored.
    kernel, square
        Weight of a similarity: see `weights`.
    form
        Form of projections: see `cut_projection`. Except for `rw`, coordinates are multiplied by the root of
        degrees.
    """

    dimensions: int = 20
    similarity: str = "jaccard"
    events: int | None = None
    kernel: Kernel = "distance"
    square: float = SQUARE
    form: Form = "rw"
    offset: bool = True
    whole = True

    def __post_init__(self) -> None:
        _check(self.dimensions, self.similarity)
        check_kernel(self.kernel, self.square)
        check_form(self.form)

    def weight(self, rows: Relation, columns: Relation | None = None) -> Likeness:
        """Return the weights of edges between histories in the similarity graph."""
        if self.similarity == "cosine" and self.kernel == "none":
            return Cosine.of(rows, columns)
        return self.stored(rows, columns)

    def stored(self, rows: Relation, columns: Relation | None = None) -> Similarity:
        """Return the weights of edges between histories as a stored matrix."""
        found = similarity(rows, columns, kind=self.similarity, events=self.events)
        return weights(found, kernel=self.kernel, square=self.square)

    def scaled(self, points: Doubles, degree: Doubles) -> Doubles:
        """Return coordinates as the form of projections requires them."""
        return points if self.form == "rw" else np.sqrt(np.maximum(degree, 0.0))[:, None] * points

    def frame(self, rows: Relation) -> CutFrame:
        """Return the frame of rows on their own; equal histories have equal coordinates."""
        histories = Matches.trusted(rows.indptr.astype(np.int64), rows.indices.astype(np.int32))
        first, kind = histories.distinct()
        found = ncut(self.weight(rows[first]), self.dimensions, np.bincount(kind))
        modes = Modes(found.vectors[kind], found.values, found.degree[kind])
        return CutFrame(self, rows, modes, self.scaled(modes.vectors, modes.degree))

    def local(self, rows: Relation, landmarks: Ints) -> LocalSpace:  # noqa: ARG002
        """Embed a group on its own, by a frame of all its members."""
        frame = self.frame(rows)
        return LocalSpace(frame, frame.own)

    def projection(self, local: LocalSpace, rows: Relation, landmarks: Ints, above: Above) -> Projection:
        """Return the projection by which members are nearest to those above that they share weight with.

        A landmark shares no weight with itself, as in a graph: its own place above does not attract it. If
        all members are landmarks, all their coordinates above are known, and the projection is a change of
        basis.
        """
        own = with_offset(local.coordinates) if self.offset else local.coordinates
        if len(landmarks) == rows.shape[0]:
            found = basis_change(own[landmarks], above.coordinates[above.landmarks])
            return Projection.of(found, offset=self.offset)
        degree = degree_above = None
        if self.form in ("group", "printed"):
            degree, degree_above = (_degree(self.weight(each)) for each in (rows, above.rows))
        weight = self.stored(rows, above.rows).apart(landmarks, above.landmarks)
        found = cut_projection(
            own, above.coordinates, weight, self.form, degree=degree, degree_above=degree_above
        )
        return Projection.of(found, offset=self.offset)


@dataclass(frozen=True, slots=True, eq=False)
class CutFrame:
    """Coordinates by normalised cut."""

    space: SpaceCut
    rows: Relation
    modes: Modes
    own: Doubles

    def place(self, rows: Relation) -> Doubles:
        """Return the coordinates of other rows, by their histories."""
        weight = self.space.weight(self.rows, rows)
        return self.space.scaled(self.modes.place(weight), weight.T @ np.ones(weight.shape[0]))

    def moved(self, rows: Relation) -> CutFrame:
        """Return the frame with newer histories of its rows, and their coordinates by these."""
        weight = self.space.weight(rows)
        own = self.modes.place(weight, weight.diagonal())
        return CutFrame(self.space, rows, self.modes, self.space.scaled(own, _degree(weight)))


def normalised(points: Doubles, longest: float = 0.0) -> Doubles:
    """Return points scaled to the distance 1 from 0; points at 0 stay there.

    Parameters
    ----------
    points
        One row each.
    longest
        Largest distance of other points from 0: points much nearer than that and than the others count as 0.

    Examples
    --------
    >>> normalised(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    length = np.sqrt((points**2).sum(axis=1))[:, None]
    there = length > 1e-9 * length.max(initial=longest)
    return np.where(there, points / np.where(there, length, 1.0), 0.0)


def _degree(weight: Likeness) -> Doubles:
    """Return the degree of each row: the sum of its weights with other rows."""
    return np.asarray(weight @ np.ones(weight.shape[1]) - weight.diagonal(), np.float64)


def _check(dimensions: int, kind: str) -> None:
    """Refuse an invalid number of dimensions and an unknown similarity."""
    check_whole("dimensions", dimensions)
    SIMILARITIES[kind]
