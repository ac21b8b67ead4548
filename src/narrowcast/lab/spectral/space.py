"""What coordinates rows get, and how those of one group are made those of all: ratio association or cut."""

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
    """Coordinates of some rows, and by comparison with these of any others."""

    @property
    def rows(self) -> Relation:
        """The histories that others are compared with."""
        ...

    @property
    def own(self) -> Doubles:
        """The coordinates of these rows."""
        ...

    def place(self, rows: Relation) -> Doubles:
        """Return the coordinates of other rows, by their histories."""
        ...

    def moved(self, rows: Relation) -> SpaceFrame:
        """Return the frame with newer histories of its rows, and where they are by these."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class LocalSpace:
    """A group by itself: its frame, and where its members are there."""

    frame: SpaceFrame
    coordinates: Doubles


@dataclass(frozen=True, slots=True, eq=False)
class Above:
    """What a group is told of the one above it.

    Parameters
    ----------
    rows
        The histories of the members above.
    coordinates
        Where these are, for all.
    landmarks
        Which of them are the group's landmarks, in the order that these have in the group.
    """

    rows: Relation
    coordinates: Doubles
    landmarks: Ints


class EmbeddingSpace(Protocol):
    """A way to give rows coordinates; each step takes one group's histories and what it was told."""

    @property
    def dimensions(self) -> int:
        """How many coordinates there are, at most."""
        ...

    #: Whether a projection takes all members of the group above, or only the group's landmarks there.
    whole: bool

    def frame(self, rows: Relation) -> SpaceFrame:
        """Return the frame of rows on their own."""
        ...

    def local(self, rows: Relation, landmarks: Ints) -> LocalSpace:
        """Return a group by itself, given which of its members are its landmarks."""
        ...

    def projection(self, local: LocalSpace, rows: Relation, landmarks: Ints, above: Above) -> Projection:
        """Return what brings a group's coordinates to those of all."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """Ratio association.

    Parameters
    ----------
    dimensions
        How many coordinates, at most.
    similarity
        One of `SIMILARITIES`; with `cosine` the matrix of similarities is never made.
    events
        Out of how many events, for similarities that ask; those that occur in the histories of a frame where
        left out, which is not the same for each group.
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
        """Return how alike histories are."""
        if self.similarity == "cosine":
            return Cosine.of(rows, columns)
        return similarity(rows, columns, kind=self.similarity, events=self.events)

    def frame(self, rows: Relation) -> LinearFrame:
        """Return the frame of rows on their own."""
        likeness = self.likeness(rows)
        axes = rassoc(likeness, self.dimensions)
        return LinearFrame(self, rows, axes, axes.place(likeness))

    def local(self, rows: Relation, landmarks: Ints) -> LocalSpace:
        """Return a group by itself: the frame is that of its landmarks, by which the others are placed."""
        frame = self.frame(rows[landmarks])
        return LocalSpace(frame, frame.place(rows))

    def projection(self, local: LocalSpace, rows: Relation, landmarks: Ints, above: Above) -> Projection:  # noqa: ARG002
        """Return the change of basis that brings landmarks nearest to where they are above."""
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
        """Return the frame with newer histories of its rows, and where they are by these."""
        return LinearFrame(self.space, rows, self.axes, self.axes.place(self.space.likeness(rows)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceCut:
    """Normalised cut.

    Parameters
    ----------
    dimensions, similarity, events, offset
        See `Association`. With `cosine` and without a kernel no matrix of weights is made.
    kernel, square
        What weights are of similarities: see `weights`.
    form
        Of projections: see `cut_projection`. But for `rw`, coordinates are times the root of degrees.
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
        """Return the weights between histories."""
        if self.similarity == "cosine" and self.kernel == "none":
            return Cosine.of(rows, columns)
        return self.stored(rows, columns)

    def stored(self, rows: Relation, columns: Relation | None = None) -> Similarity:
        """Return the same as a matrix."""
        found = similarity(rows, columns, kind=self.similarity, events=self.events)
        return weights(found, kernel=self.kernel, square=self.square)

    def scaled(self, points: Doubles, degree: Doubles) -> Doubles:
        """Return coordinates as the form of projections has them."""
        return points if self.form == "rw" else np.sqrt(np.maximum(degree, 0.0))[:, None] * points

    def frame(self, rows: Relation) -> CutFrame:
        """Return the frame of rows on their own; the same histories have the same coordinates."""
        histories = Matches.trusted(rows.indptr.astype(np.int64), rows.indices.astype(np.int32))
        first, kind = histories.distinct()
        found = ncut(self.weight(rows[first]), self.dimensions, np.bincount(kind))
        modes = Modes(found.vectors[kind], found.values, found.degree[kind])
        return CutFrame(self, rows, modes, self.scaled(modes.vectors, modes.degree))

    def local(self, rows: Relation, landmarks: Ints) -> LocalSpace:  # noqa: ARG002
        """Return a group by itself: the frame is that of all its members."""
        frame = self.frame(rows)
        return LocalSpace(frame, frame.own)

    def projection(self, local: LocalSpace, rows: Relation, landmarks: Ints, above: Above) -> Projection:
        """Return the projection that brings members nearest to those above that they share weight with.

        As in a graph, nobody shares weight with itself: a landmark is not drawn to its own place. Where all
        members are landmarks, all are known above, and the projection is a change of basis.
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
        """Return the frame with newer histories of its rows, and where they are by these."""
        weight = self.space.weight(rows)
        own = self.modes.place(weight, weight.diagonal())
        return CutFrame(self.space, rows, self.modes, self.space.scaled(own, _degree(weight)))


def normalised(points: Doubles, longest: float = 0.0) -> Doubles:
    """Return points at the distance 1 from 0; what is at 0 stays there.

    Parameters
    ----------
    points
        One row each.
    longest
        How far others are from 0: next to these and to the points themselves, rounding is at 0.

    Examples
    --------
    >>> normalised(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    length = np.sqrt((points**2).sum(axis=1))[:, None]
    there = length > 1e-9 * length.max(initial=longest)
    return np.where(there, points / np.where(there, length, 1.0), 0.0)


def _degree(weight: Likeness) -> Doubles:
    """Return the sums of weights of rows with others."""
    return np.asarray(weight @ np.ones(weight.shape[1]) - weight.diagonal(), np.float64)


def _check(dimensions: int, kind: str) -> None:
    """Refuse what cannot be a number of dimensions or a similarity."""
    check_whole("dimensions", dimensions)
    SIMILARITIES[kind]
