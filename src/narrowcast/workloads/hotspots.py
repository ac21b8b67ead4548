"""Boxes of whole numbers, and events that come from a few hotspots: the workload of tariq2012, section 6."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from narrowcast.errors import ParameterError
from narrowcast.model.schema import EVENT_ID, Schema
from narrowcast.validation import check_seed
from narrowcast.workloads.base import BaseWorkload, box_filters, check_count, random_streams, zipf

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Doubles: TypeAlias = NDArray[np.float64]
    Ints: TypeAlias = NDArray[np.int64]

#: How values are spread: over the whole range, or around hotspots.
Spread = Literal["uniform", "hotspots"]
#: Attributes take whole numbers from 0 to this.
TOP = 30
#: Boxes and events by which the width of boxes is found.
_BOXES, _EVENTS = 2000, 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Hotspots(BaseWorkload):
    """Subscriptions as boxes and events as points of a grid of whole numbers (tariq2012, section 6).

    The centres of boxes and the events are uniform, the paper's model M1, or around hotspots, its M2: there
    hotspots are as popular as Zipf's law has it, and the distance from the hotspot in each attribute follows
    Zipf's law too. The width of boxes is such that an event matches a given share of them.

    Each subscription is a subscriber of its own, unless subscribers are to have several: these are as unlike
    as those of different subscribers.

    Parameters
    ----------
    n_subscriptions, n_events
        How many subscriptions there are at a time, and events. More of either leave the first as they were.
    attributes
        How many attributes an event has.
    boxes, points
        How centres of boxes and events are spread: `uniform` or `hotspots`.
    hotspots
        How many hotspots there are; boxes and events share them.
    exponent
        Of Zipf's law for the distance from a hotspot: the larger, the closer.
    matched
        The share of subscriptions that an event matches, in the mean.
    moves
        After how many events hotspots are drawn anew; 0 for never. Boxes stay around the first ones.
    churn
        The share of subscriptions of which each leaves at a random time, when another one takes its place.
        These come behind the others: the rows of all tables are more by them.
    per_subscriber
        How many subscriptions in a row are one subscriber's; the last subscriber may have fewer.
    seed
        What all random choices come from.

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
            if getattr(self, name) not in get_args(Spread):
                one = ", ".join(get_args(Spread))
                raise ParameterError(f"{name} is {getattr(self, name)!r}; give one of {one}")
        if not 0 <= self.exponent < math.inf:
            raise ParameterError(f"exponent is {self.exponent!r}; give a number of at least 0")
        if not 0 < self.matched < 1:
            raise ParameterError(f"matched is {self.matched!r}; give a share between 0 and 1")
        if not 0 <= self.churn <= 1:
            raise ParameterError(f"churn is {self.churn!r}; give a share from 0 to 1")
        check_seed(self.seed)

    @property
    def n_rows(self) -> int:
        """How many subscriptions there are in all, at one time or another."""
        return self.n_subscriptions + round(self.churn * self.n_subscriptions)

    def schema(self) -> Schema:
        """Return what an event has."""
        return Schema.of({f"x{i}": "bigint" for i in range(self.attributes)})

    def tables(self) -> dict[str, pa.Table]:
        """Return the tables `subscriptions` (subscription_id, subscriber, filter) and `events`.

        With churn, subscriptions also have `comes` and `leaves`: the events before which they do.
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
        """Return the number of the subscriber of each subscription.

        Examples
        --------
        >>> Hotspots(n_subscriptions=5, per_subscriber=2).owners().tolist()
        [0, 0, 1, 1, 2]
        """
        return np.arange(self.n_rows) // self.per_subscriber

    def ends(self) -> tuple[Doubles, Doubles]:
        """Return the ends (lo, hi] of boxes, one row each and one column per attribute: hi is in, lo not."""
        _, _, _, place, size, _ = self._streams()
        centre = self._spread(self.boxes, place, np.zeros(self.n_rows, np.int64))
        share = size.uniform(0.5, 1.5, centre.shape)
        lo, hi = _ends(centre, share * self.width())
        return lo.astype(np.float64) - 1.0, hi.astype(np.float64)

    def lives(self) -> tuple[Ints, Ints]:
        """Return before which event each subscription comes, and before which it leaves.

        Examples
        --------
        >>> comes, leaves = Hotspots(n_subscriptions=4, n_events=100, churn=0.25, seed=1).lives()
        >>> comes.tolist()[:4], comes.tolist()[4] in leaves.tolist()[:4], leaves.tolist()[4]
        ([0, 0, 0, 0], True, 100)
        """
        rng = self._streams()[2]
        more = self.n_rows - self.n_subscriptions
        comes, leaves = np.zeros(self.n_rows, np.int64), np.full(self.n_rows, self.n_events)
        who = rng.permutation(self.n_subscriptions)[:more]
        when = np.sort(rng.integers(0, self.n_events + 1, more))
        leaves[who] = comes[self.n_subscriptions :] = when
        return comes, leaves

    def values(self) -> Ints:
        """Return the events, one row each and one column per attribute."""
        _, place, *_ = self._streams()
        era = np.arange(self.n_events) // self.moves if self.moves else np.zeros(self.n_events, np.int64)
        return self._spread(self.points, place, era)

    def width(self) -> float:
        """Return the mean width of boxes by which events match the share that was asked for."""
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
        """Return where hotspots are, the most popular first; each era has its own."""
        seed = int(self._streams()[0].integers(2**63))
        return np.random.default_rng([seed, era]).integers(0, TOP + 1, (self.hotspots, self.attributes))

    def _spread(self, how: Spread, rng: np.random.Generator, era: Ints) -> Ints:
        """Return points that are spread in a way, each in an era; the first do not hang on how many."""
        n, d = len(era), self.attributes
        if how == "uniform":
            return rng.integers(0, TOP + 1, (n, d))
        eras, place = np.unique(era, return_inverse=True)
        centres = np.stack([self.centres(int(each)) for each in eras]) if n else np.zeros((1, 1, d), np.int64)
        away = 1.0 / np.arange(1, TOP + 2) ** self.exponent
        chance = rng.random((n, 2 * d + 1))  # a row for each point, so that more of them change no other
        which = np.searchsorted(np.cumsum(zipf(self.hotspots))[:-1], chance[:, 0], side="right")
        step = np.searchsorted(np.cumsum(away / away.sum())[:-1], chance[:, 1 : d + 1], side="right")
        found = centres[place, which] + np.where(chance[:, d + 1 :] < 0.5, -step, step)
        found = np.abs(found)  # it turns back at both ends
        return np.where(found > TOP, 2 * TOP - found, found)

    def _streams(self) -> list[np.random.Generator]:
        """Return a source of chance each for hotspots, events, lives, boxes, their sizes, and a sample."""
        return random_streams(self.seed, 6)


def _ends(centre: Ints, width: Doubles) -> tuple[Ints, Ints]:
    """Return the first and the last whole number of intervals, within the range."""
    lo = np.maximum(np.ceil(centre - width / 2), 0).astype(np.int64)
    hi = np.minimum(np.floor(centre + width / 2), TOP).astype(np.int64)
    return lo, hi


def _names(number: Ints) -> pa.Array:
    """Return the names of subscribers."""
    return pa.array([f"s{each:07d}" for each in number.tolist()], pa.string())
