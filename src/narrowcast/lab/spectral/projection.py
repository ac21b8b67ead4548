"""Projections of a group's own coordinates onto those of the group above (tariq2012, section 4.2).

Points are rows, so that Y = X B where the paper writes Y = H X: B is the transpose of H, and has a row for
each of the group's own dimensions. The printed size of H, and the missing transpose of ratio association, are
slips.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, TypeAlias, get_args

import numpy as np

from narrowcast.errors import ParameterError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from narrowcast.lab.spectral.similarity import Likeness

    Doubles = NDArray[np.float64]

__all__ = ["Form", "Projection", "basis_change", "check_form", "cut_projection", "with_offset"]

#: Which projection of normalised cuts: see `cut_projection`.
Form: TypeAlias = Literal["rw", "sym", "group", "printed"]


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """What brings a group's coordinates to those of all: Y = X B, or Y = X B + b.

    A group's coordinates are around its own mean, or without the mode that does not decay, so that with B
    alone its members would be around 0 for all. With an offset b they are where they belong, also if they are
    all of one kind; the paper has none.

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
        """Return one from what was solved for; with an offset, that is the last row."""
        return cls(solved[:-1], solved[-1]) if offset else cls(solved, np.zeros(solved.shape[1]))

    def __call__(self, points: Doubles) -> Doubles:
        """Return where points of the group are for all."""
        return np.asarray(points @ self.matrix + self.offset, np.float64)


def with_offset(points: Doubles) -> Doubles:
    """Return points with one more coordinate, 1, by which an offset is solved for."""
    return np.column_stack([points, np.ones(len(points))])


def basis_change(own: Doubles, above: Doubles) -> Doubles:
    """Return B by which own @ B is as near as can be to `above`, and the smallest of those.

    Parameters
    ----------
    own, above
        Coordinates of the same points, those of landmarks, in a group and in the one above it.

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
    """Return B that puts a group's points near those of the group above with which they share weight.

    With x, y and w for own coordinates, those above and weights, the sum that is least (equation 4) is of
    w |y / sqrt(e) - x B / sqrt(d)|^2. Its forms:

    - `rw`: d = e = 1, for coordinates that are divided by the root of degrees already: those of `ncut`.
    - `sym`: d and e are the sums of the weights between both groups, for coordinates times the root of
      degrees. Only with these is the least given by the printed formula.
    - `group`: d and e are the degrees within each group, as the text has it, and the sum is least.
    - `printed`: the printed formula with degrees within each group, by which it is not least.

    Parameters
    ----------
    own, above
        Coordinates of the group's points, and of those of the group above.
    weight
        Weights between them, a row for each of `own`.
    form
        One of the four.
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
        raise ParameterError(f"form {form!r} needs the degrees within both groups; give degree, degree_above")
    right = _rooted(weight @ _rooted(above, degree_above), degree)
    inverse = np.where(degree > 0, 1.0 / np.where(degree > 0, degree, 1.0), 0.0)
    return _solved(own, np.ones(len(own)) if form == "printed" else cross * inverse, right)


def check_form(form: str) -> None:
    """Refuse a form that there is not."""
    if form not in get_args(Form):
        raise ParameterError(f"form is {form!r}; give one of {', '.join(get_args(Form))}")


def _rooted(points: Doubles, degree: Doubles) -> Doubles:
    """Return points by the root of their degree, 0 for those without."""
    there = degree > 0
    return np.asarray(np.where(there, 1.0 / np.sqrt(np.where(there, degree, 1.0)), 0.0)[:, None] * points)


def _solved(own: Doubles, scale: Doubles, right: Doubles) -> Doubles:
    """Return B of own' scale own B = own' right, the smallest where there are many."""
    if not own.size or not right.size:
        return np.zeros((own.shape[1], right.shape[1]))
    square = own.T @ (scale[:, None] * own)
    return np.asarray(np.linalg.pinv(square, hermitian=True) @ (own.T @ right), np.float64)
