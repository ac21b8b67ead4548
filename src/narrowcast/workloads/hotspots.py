"""Subscriptions as boxes of integers, and events around a few hotspots (tariq2012, section 6)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from narrowcast.errors import ParameterError
from narrowcast.model.schema import EVENT_ID, Schema
from narrowcast.validation import check_choice, check_seed
from narrowcast.workloads.base import BaseWorkload, box_filters, check_count, random_streams, zipf

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]

#: How values are distributed: over the whole range, or around hotspots.
Spread = Literal["uniform", "hotspots"]
#: Attributes are integers from 0 to this value.
TOP = 30
#: Number of sampled boxes and events used to find the width of boxes.
_BOXES, _EVENTS = 2000, 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Hotspots(BaseWorkload):
    """Subscriptions as boxes and events as points of an integer grid (tariq2012, section 6).

    Centres of boxes, and events, are uniform (the paper's model M1) or around hotspots (M2). In M2 the
    popularity of hotspots follows Zipf's law, and so does the distance from the hotspot in each attribute.
    The width of boxes is chosen so that an event matches a given share of them.

    Each subscription has a subscriber of its own unless `per_subscriber` is above 1; the subscriptions of
    one subscriber are drawn independently.

    Parameters
    ----------
    n_subscriptions, n_events
        Number of subscriptions at any one time, and of events. Larger numbers do not change the first rows.
    attributes
        Number of attributes of an event, at least 1.
    boxes, points
        How the centres of boxes, and the events, are distributed: `uniform` or `hotspots`.
    hotspots
        Number of hotspots, at least 1; boxes and events share them.
    exponent
        Exponent of Zipf's law for the distance from a hotspot, at least 0: the larger, the closer.
    matched
        Mean share of the subscriptions that an event matches, above 0 and below 1.
    moves
        Number of events after which new hotspots are drawn; 0 for never. Boxes stay around the first ones.
    churn
        Share of the subscriptions, from 0 to 1, that end at a random time and are replaced by a new
        subscription. The tables have the replacements as additional rows after the others.
    per_subscriber
        Number of consecutive subscriptions of one subscriber; the last subscriber may have fewer.
    seed
        Seed of all random choices, at least 0.

    Examples
    --------
    >>> hotspots = Hotspots(n_subscriptions=300, n_events=200, seed=1)
    >>> lo, hi = hotspots.ends()
    >>> points = hotspots.values()
    >>> inside = ((points[:, None] > lo) & (points[:, None] <= hi)).all(axis=2)
    >>> round(float(inside.mean()), 2)
    0.05
    >>> hotspots.tables()["subscriptions"]["filter"][0].as_py()
    'x0 > -1 AND x0 <= 13 AND x1 > -1 AND x1 <= 9 AND x2 > 7 AND x2 <= 26'
    """

    n_subscriptions: int = 1000
    n_events: int = 5000
    attributes: int = 3
    boxes: Spread = "uniform"
    points: Spread = "hotspots"
    hotspots: int = 5
    exponent: float = 2.0
    matched: float = 0.05
    moves: int = 0
    churn: float = 0.0
    per_subscriber: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("n_subscriptions", self.n_subscriptions)
        check_count("n_events", self.n_events)
        check_count("attributes", self.attributes, 1)
        check_count("hotspots", self.hotspots, 1)
        check_count("moves", self.moves)
        check_count("per_subscriber", self.per_subscriber, 1)
        for name in ("boxes", "points"):
            check_choice(name, getattr(self, name), get_args(Spread))
        if not 0 <= self.exponent < math.inf:
            raise ParameterError(
                parameter="exponent", value=self.exponent, limit="a finite number of at least 0"
            )
        if not 0 < self.matched < 1:
            raise ParameterError(parameter="matched", value=self.matched, limit="a share above 0 and below 1")
        if not 0 <= self.churn <= 1:
            raise ParameterError(parameter="churn", value=self.churn, limit="a share from 0 to 1")
        check_seed(self.seed)

    @property
    def n_rows(self) -> int:
        """Total number of subscriptions, replacements by churn included."""
        return self.n_subscriptions + round(self.churn * self.n_subscriptions)

    def schema(self) -> Schema:
        """Return the attributes of events, `x0`, `x1`, ..., with their types."""
        return Schema.of({f"x{i}": "bigint" for i in range(self.attributes)})

    def tables(self) -> dict[str, pa.Table]:
        """Return the tables `subscriptions` (subscription_id, subscriber, filter) and `events`.

        With churn, subscriptions also have `comes` and `leaves`: the numbers of the events before which they
        begin and end.
        """
        lo, hi = self.ends()
        names, points = self.schema().names, self.values()
        subscriptions = {
            "subscription_id": np.arange(self.n_rows),
            "subscriber": _names(self.owners()),
            "filter": box_filters(names, lo, hi),
        }
        if self.churn:
            comes, leaves = self.lives()
            subscriptions |= {"comes": comes, "leaves": leaves}
        return {
            "subscriptions": pa.table(subscriptions),
            "events": pa.table(
                {EVENT_ID: np.arange(self.n_events), **{name: points[:, i] for i, name in enumerate(names)}}
            ),
        }

    def owners(self) -> Ints:
        """Return the index of the subscriber of each subscription.

        Examples
        --------
        >>> Hotspots(n_subscriptions=5, per_subscriber=2).owners().tolist()
        [0, 0, 1, 1, 2]
        """
        return np.arange(self.n_rows) // self.per_subscriber

    def ends(self) -> tuple[Doubles, Doubles]:
        """Return the ends (lo, hi] of boxes: a row per box and a column per attribute; `hi` is included."""
        _, _, _, place, size, _ = self._streams()
        centre = self._spread(self.boxes, place, np.zeros(self.n_rows, np.int64))
        share = size.uniform(0.5, 1.5, centre.shape)
        lo, hi = _ends(centre, share * self.width())
        return lo.astype(np.float64) - 1.0, hi.astype(np.float64)

    def lives(self) -> tuple[Ints, Ints]:
        """Return the lifetime of each subscription: the events before which it begins and ends.

        Examples
        --------
        >>> comes, leaves = Hotspots(n_subscriptions=4, n_events=100, churn=0.25, seed=1).lives()
        >>> comes.tolist()[:4], comes.tolist()[4] in leaves.tolist()[:4], leaves.tolist()[4]
        ([0, 0, 0, 0], True, 100)
        """
        rng = self._streams()[2]
        more = self.n_rows - self.n_subscriptions
        comes, leaves = np.zeros(self.n_rows, np.int64), np.full(self.n_rows, self.n_events)
        replaced = rng.permutation(self.n_subscriptions)[:more]
        moment = np.sort(rng.integers(0, self.n_events + 1, more))
        leaves[replaced] = comes[self.n_subscriptions :] = moment
        return comes, leaves

    def values(self) -> Ints:
        """Return the events, one row per event and one column per attribute."""
        _, place, *_ = self._streams()
        era = np.arange(self.n_events) // self.moves if self.moves else np.zeros(self.n_events, np.int64)
        return self._spread(self.points, place, era)

    def width(self) -> float:
        """Return the mean width of boxes at which events match the share `matched`, found by bisection."""
        *_, rng = self._streams()
        centre = self._spread(self.boxes, rng, np.zeros(_BOXES, np.int64))
        points = self._spread(self.points, rng, np.zeros(_EVENTS, np.int64))
        share = rng.uniform(0.5, 1.5, centre.shape)
        low, high = 0.0, 4.0 * TOP
        for _ in range(40):
            middle = (low + high) / 2
            lo, hi = _ends(centre, share * middle)
            inside = np.ones((_EVENTS, _BOXES), np.bool_)
            for i in range(self.attributes):
                inside &= (points[:, i, None] >= lo[:, i]) & (points[:, i, None] <= hi[:, i])
            low, high = (middle, high) if inside.mean() < self.matched else (low, middle)
        return high

    def centres(self, era: int = 0) -> Ints:
        """Return the coordinates of hotspots, the most popular first.

        Parameters
        ----------
        era
            Number of the period between two moves of the hotspots, from 0; each has its own hotspots.
        """
        seed = int(self._streams()[0].integers(2**63))
        return np.random.default_rng([seed, era]).integers(0, TOP + 1, (self.hotspots, self.attributes))

    def _spread(self, distribution: Spread, rng: np.random.Generator, era: Ints) -> Ints:
        """Draw one point per entry of `era`; additional points do not change the first ones."""
        n, d = len(era), self.attributes
        if distribution == "uniform":
            return rng.integers(0, TOP + 1, (n, d))
        eras, place = np.unique(era, return_inverse=True)
        centres = np.stack([self.centres(int(each)) for each in eras]) if n else np.zeros((1, 1, d), np.int64)
        away = 1.0 / np.arange(1, TOP + 2) ** self.exponent
        chance = rng.random((n, 2 * d + 1))  # one row per point, so that additional points change no other
        which = np.searchsorted(np.cumsum(zipf(self.hotspots))[:-1], chance[:, 0], side="right")
        step = np.searchsorted(np.cumsum(away / away.sum())[:-1], chance[:, 1 : d + 1], side="right")
        found = centres[place, which] + np.where(chance[:, d + 1 :] < 0.5, -step, step)
        found = np.abs(found)  # points outside the range are reflected at its ends
        return np.where(found > TOP, 2 * TOP - found, found)

    def _streams(self) -> list[np.random.Generator]:
        """Return one random generator each for hotspots, events, lifetimes, boxes, box sizes and a sample."""
        return random_streams(self.seed, 6)


def _ends(centre: Ints, width: Doubles) -> tuple[Ints, Ints]:
    """Return the first and the last integer of intervals, within the range of attributes."""
    lo = np.maximum(np.ceil(centre - width / 2), 0).astype(np.int64)
    hi = np.minimum(np.floor(centre + width / 2), TOP).astype(np.int64)
    return lo, hi


def _names(number: Ints) -> pa.Array:
    """Return names of subscribers such as `s0000012`."""
    return pa.array([f"s{each:07d}" for each in number.tolist()], pa.string())
