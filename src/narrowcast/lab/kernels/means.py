"""Assignment of points to the nearest centres: Lloyd's passes, and initial centres that are far apart.

Every distance is the sum of squared differences in the order of the coordinates, so that equal points have
equal distances to the last bit, and ties go to the centre with the lowest number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from narrowcast.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Numbers = NDArray[np.int32]

#: Relative margin of bounds, so that rounding never hides a nearer centre.
_SPARE = 1e-9


@kernel
def _distances(row: Doubles, columns: Doubles, found: Doubles) -> None:
    """Write the squared distances of a point from all centres, whose coordinates are `columns`."""
    found[:] = 0.0
    for j in range(len(row)):
        x, column = row[j], columns[j]
        for c in range(len(found)):
            away = x - column[c]
            found[c] += away * away


@kernel
def nearest(points: Doubles, columns: Doubles, label: Numbers, squared: Doubles) -> None:
    """Write the number of the nearest centre of each point, and its squared distance from it."""
    found = np.empty(columns.shape[1])
    for i in range(len(points)):
        _distances(points[i], columns, found)
        best = 0
        for c in range(1, len(found)):
            if found[c] < found[best]:
                best = c
        label[i], squared[i] = best, found[best]


@kernel
def halves(centre: Doubles, columns: Doubles) -> Doubles:
    """Return half the distance of each centre from its nearest neighbour; infinite if it is the only one."""
    half = np.empty(len(centre))
    found = np.empty(len(centre))
    for a in range(len(centre)):
        _distances(centre[a], columns, found)
        found[a] = np.inf
        half[a] = 0.5 * np.sqrt(found.min())
    return half


@kernel
def lloyd(
    points: Doubles, weight: Doubles, columns: Doubles, half: Doubles, moved: Doubles, label: Numbers,
    upper: Doubles, lower: Doubles, total: Doubles, mass: Doubles,
) -> int:  # fmt: skip
    """Assign every point to its nearest centre, sum the points of each, and return the number of changes.

    Bounds save most distances (Hamerly 2010): `upper` is an upper bound of the distance of a point from its
    centre, `lower` a lower bound of that from any other centre, before centres moved by `moved`; within
    `half` of a centre, half the distance to its nearest neighbour, no other centre is nearer. `total` and
    `mass` must be 0 initially.
    """
    n_centres = columns.shape[1]
    found = np.empty(n_centres)
    first, second = 0.0, 0.0  # the two largest distances that centres moved
    longest = -1
    for c in range(n_centres):
        if moved[c] > first:
            first, second, longest = moved[c], first, c
        elif moved[c] > second:
            second = moved[c]
    changed = 0
    for i in range(len(points)):
        own = label[i]
        row = points[i]
        up = upper[i] + moved[own]
        low = lower[i] - (second if own == longest else first)
        least = max(low, half[own]) * (1.0 - _SPARE)
        if not up < least:
            away = 0.0
            for j in range(len(row)):
                gap = row[j] - columns[j, own]
                away += gap * gap
            up = np.sqrt(away) * (1.0 + _SPARE)
            if not up < least:
                _distances(row, columns, found)
                best, next_best, at = np.inf, np.inf, 0
                for c in range(n_centres):
                    if found[c] < best:
                        best, next_best, at = found[c], best, c
                    elif found[c] < next_best:
                        next_best = found[c]
                up, low = np.sqrt(best) * (1.0 + _SPARE), np.sqrt(next_best) * (1.0 - _SPARE)
                if at != own:
                    changed += 1
                    own = at
                    label[i] = at
        upper[i], lower[i] = up, low
        share = weight[i]
        mass[own] += share
        sums = total[own]
        for j in range(len(row)):
            sums[j] += share * row[j]
    return changed


@kernel
def left_by(points: Doubles, weight: Doubles, squared: Doubles, drawn: Ints) -> Doubles:
    """Return, for each candidate as a new centre, the weighted sum of squared distances that remains."""
    left = np.zeros(len(drawn))
    for i in range(len(points)):
        row = points[i]
        for t in range(len(drawn)):
            centre = points[drawn[t]]
            away = 0.0
            for j in range(len(row)):
                gap = row[j] - centre[j]
                away += gap * gap
            left[t] += weight[i] * min(away, squared[i])
    return left


@kernel
def approach(points: Doubles, centre: Doubles, squared: Doubles) -> None:
    """Lower the squared distances from the nearest centre, given a new centre."""
    for i in range(len(points)):
        row = points[i]
        away = 0.0
        for j in range(len(row)):
            gap = row[j] - centre[j]
            away += gap * gap
        squared[i] = min(squared[i], away)


@kernel
def spread(points: Doubles, weight: Doubles, centre: Doubles, label: Ints) -> float:
    """Return the weighted sum of the squared distances of points from their centres."""
    total = 0.0
    for i in range(len(points)):
        away = 0.0
        for j in range(points.shape[1]):
            gap = points[i, j] - centre[label[i], j]
            away += gap * gap
        total += weight[i] * away
    return total
