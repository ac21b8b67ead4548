"""Projections of a group's own coordinates onto those of the group above (tariq2012, section 4.2).

Points are rows, so the paper's Y = H X is Y = X B here: B is the transpose of H, and has a row for each of
the group's own dimensions. The printed size of H, and the missing transpose of ratio association, are errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, TypeAlias, get_args

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.validation import check_choice

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.lab.spectral.similarity import Likeness

    Doubles = NDArray[np.float64]

__all__ = ["Form", "Projection", "basis_change", "check_form", "cut_projection", "with_offset"]

#: Form of projections of normalised cuts: see `cut_projection`.
Form: TypeAlias = Literal["rw", "sym", "group", "printed"]


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """A map from a group's coordinates X to the common ones: Y = X B, or Y = X B + b.

    A group's coordinates are relative to its own mean, or lack the constant mode, so that with B alone its
    members would be around 0 in the common coordinates. An offset b moves them to their place, even if all
    members are of one kind; the paper has none.

    Parameters
    ----------
    matrix
        B.
    offset
        b; zeros for none.
    """

    matrix: Doubles
    offset: Doubles

    @classmethod
    def of(cls, solved: Doubles, *, offset: bool) -> Self:
        """Return a projection from a solved matrix; with an offset, its last row is b."""
        return cls(solved[:-1], solved[-1]) if offset else cls(solved, np.zeros(solved.shape[1]))

    def __call__(self, points: Doubles) -> Doubles:
        """Map points from the group's own coordinates to the common ones."""
        return np.asarray(points @ self.matrix + self.offset, np.float64)


def with_offset(points: Doubles) -> Doubles:
    """Append a coordinate of 1 to points, so that a linear fit includes an offset."""
    return np.column_stack([points, np.ones(len(points))])


def basis_change(own: Doubles, above: Doubles) -> Doubles:
    """Return B such that own @ B is nearest to `above` in least squares; of several the smallest.

    Parameters
    ----------
    own, above
        Coordinates of the same points, the landmarks, in a group and in the one above it.

    Examples
    --------
    >>> own, above = np.array([[1.0, 0], [0, 2], [1, 2]]), np.array([[3.0, 1], [1, 2], [4, 3]])
    >>> basis_change(own, above).round(6).tolist()
    [[3.0, 1.0], [0.5, 1.0]]
    """
    if not own.size or not above.size:
        return np.zeros((own.shape[1], above.shape[1]))
    return np.asarray(np.linalg.pinv(own) @ above, np.float64)


def cut_projection(
    own: Doubles,
    above: Doubles,
    weight: Likeness,
    form: Form = "rw",
    *,
    degree: Doubles | None = None,
    degree_above: Doubles | None = None,
) -> Doubles:
    """Return B that moves a group's points near those of the group above with which they share weight.

    With x, y and w for own coordinates, those above and weights, it minimises the sum (equation 4) of
    w |y / sqrt(e) - x B / sqrt(d)|^2. Its forms:

    - `rw`: d = e = 1, for coordinates that are already divided by the root of degrees: those of `ncut`.
    - `sym`: d and e are the sums of the weights between both groups, for coordinates times the root of
      degrees. Only for these does the printed formula give the minimum.
    - `group`: d and e are the degrees within each group, as in the text, and the sum is minimal.
    - `printed`: the printed formula with degrees within each group, which does not give the minimum.

    Parameters
    ----------
    own, above
        Coordinates of the group's points, and of those of the group above.
    weight
        Weights between them, a row for each of `own`.
    form
        One of the four forms.
    degree, degree_above
        Sums of weights within each group, for `group` and `printed`.
    """
    check_form(form)
    cross = weight @ np.ones(weight.shape[1])
    if form == "rw":
        return _solved(own, cross, weight @ above)
    if form == "sym":
        e = weight.T @ np.ones(weight.shape[0])
        return _solved(own, np.ones(len(own)), _rooted(weight @ _rooted(above, e), cross))
    if degree is None or degree_above is None:
        raise ParameterError(
            f"degree is missing: form {form!r} needs degree and degree_above, the degrees within both groups",
            parameter="degree",
            value=None,
            limit="the degrees within the group",
        )
    right = _rooted(weight @ _rooted(above, degree_above), degree)
    inverse = np.where(degree > 0, 1.0 / np.where(degree > 0, degree, 1.0), 0.0)
    return _solved(own, np.ones(len(own)) if form == "printed" else cross * inverse, right)


def check_form(form: str) -> None:
    """Refuse an unknown form of projection."""
    check_choice("form", form, get_args(Form))


def _rooted(points: Doubles, degree: Doubles) -> Doubles:
    """Return points divided by the root of their degree, 0 for those of degree 0."""
    there = degree > 0
    return np.asarray(np.where(there, 1.0 / np.sqrt(np.where(there, degree, 1.0)), 0.0)[:, None] * points)


def _solved(own: Doubles, scale: Doubles, right: Doubles) -> Doubles:
    """Return the solution B of own' scale own B = own' right; of several the smallest."""
    if not own.size or not right.size:
        return np.zeros((own.shape[1], right.shape[1]))
    square = own.T @ (scale[:, None] * own)
    return np.asarray(np.linalg.pinv(square, hermitian=True) @ (own.T @ right), np.float64)
