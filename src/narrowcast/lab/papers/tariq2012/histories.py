"""Histories: past matches of the subscriptions of a seed, later matches, and clusters made from the past."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from narrowcast.errors import ParameterError
from narrowcast.lab.papers.base import ResultRow
from narrowcast.lab.spectral.kmeans import kmeans, nearest
from narrowcast.lab.spectral.quality import received
from narrowcast.lab.spectral.similarity import similarity
from narrowcast.lab.spectral.space import Association, SpaceCut, normalised
from narrowcast.matching import AutoMatcher
from narrowcast.model.events import EventBatch
from narrowcast.model.interest import Interest
from narrowcast.model.relation import recent, relation_of
from narrowcast.model.schema import EVENT_ID, Schema
from narrowcast.model.subscriptions import SubscriptionSet
from narrowcast.planning.base import PLANNERS
from narrowcast.workloads.hotspots import Hotspots

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from narrowcast.lab.spectral.space import EmbeddingSpace
    from narrowcast.lab.sweep import Record
    from narrowcast.model.matches import Matches
    from narrowcast.model.relation import Relation

    Doubles = NDArray[np.float64]
    Ints = NDArray[np.int64]

#: Distribution of boxes and events of each workload: the paper's two models, and uniform boxes with events of
#: either.
WORKLOADS: dict[str, Any] = {
    "m1": ("uniform", "uniform"),
    "m2": ("hotspots", "hotspots"),
    "uniform": ("uniform", "uniform"),
    "zipf": ("uniform", "hotspots"),
}
#: Methods by their names in series, with their parameters: the paper's two, as published and with
#: coordinates scaled to length 1; the methods it compares with; and the product's own.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "rassoc/plain": ("rassoc", {"normalise": False}),
    "rassoc/row": ("rassoc", {"normalise": True}),
    "ncut/plain": ("ncut", {"normalise": False, "kernel": "distance"}),
    "ncut/row": ("ncut", {"normalise": True, "kernel": "distance"}),
    "centroid": ("centroid", {}),
    "box-overlap/absolute": ("box-overlap", {"measure": "absolute"}),
    "box-overlap/relative": ("box-overlap", {"measure": "relative"}),
    "r-tree": ("r-tree", {}),
    "direct": ("direct", {}),
}
#: Methods with coordinates.
SPECTRAL = tuple(name for name, (method, _) in METHODS.items() if method in ("rassoc", "ncut"))
#: Common parameters at the paper's size (section 3.2.1), as far as it is given: of its 6,000 events it
#: does not say which are used for what, and of Zipf's law not the exponent.
PAPER: dict[str, Any] = {
    "subscriptions": 1000,
    "learn": 2000,
    "events": 1000,
    "attributes": 3,
    "zipf": 2.0,
    "history": 20,
}
SMALL: dict[str, Any] = {"subscriptions": 300, "learn": 1000, "events": 300}
#: The metric of false positives.
FALSE = "false_positives_per_event"
#: Number of restarts of k-means for ideal clusters.
_BEST_OF = 10


@dataclass(frozen=True, slots=True, eq=False)
class SeedHistories:
    """Subscriptions of a seed, with past events that they matched and later events.

    Parameters
    ----------
    seen
        Matches of the events that clusters are made from, subscriptions x events in order of time.
    unseen
        Matches of the events that clusters are measured by, events x subscriptions.
    boxes
        The ends of boxes.
    spot
        The hotspot nearest to the centre of each box.
    """

    seen: Interest
    unseen: Matches
    boxes: tuple[Doubles, Doubles]
    spot: Ints

    @classmethod
    def make(
        cls,
        *,
        seed: int,
        workload: str,
        subscriptions: int,
        learn: int,
        events: int,
        attributes: int,
        zipf: float,
        **_: Any,
    ) -> Self:
        """Draw the workload of a seed, and match its events."""
        if not 0 <= zipf < math.inf:
            raise ParameterError(parameter="zipf", value=zipf, limit="an exponent of at least 0")
        boxes, points = WORKLOADS[workload]
        drawn = Hotspots(
            n_subscriptions=subscriptions,
            n_events=learn + events,
            attributes=attributes,
            boxes=boxes,
            points=points,
            exponent=zipf,
            seed=seed,
        )
        (lo, hi), values = drawn.ends(), drawn.values().astype(np.float64)
        schema = Schema.of(dict.fromkeys(drawn.schema().names, "double"))
        names = [f"s{number}" for number in range(subscriptions)]
        columns = {name: values[:, i] for i, name in enumerate(schema.names)}
        batch = EventBatch.from_arrow(pa.table({EVENT_ID: np.arange(len(values)), **columns}), schema)
        matches = AutoMatcher().fit(SubscriptionSet.from_boxes(schema, names, lo, hi)).match(batch)
        first = matches.take(np.arange(learn))
        wants = relation_of(first.index, first.rows(), (subscriptions, learn))
        spot = nearest((lo + 1 + hi) / 2, drawn.centres().astype(np.float64))
        later = matches.take(np.arange(learn, learn + events))
        return cls(Interest(wants), later, (lo, hi), spot.astype(np.int64))

    def known(self) -> Ints:
        """Return the subscriptions with at least one past match."""
        return np.flatnonzero(np.diff(self.seen.wants.indptr))

    def rows(self, history: int) -> Relation:
        """Return the last `history` events that each known subscription matched."""
        return recent(self.seen.wants, history)[self.known()]

    def label(self, planner: Any) -> Ints:
        """Return the cluster of each subscription according to a planner."""
        return np.asarray(planner.fit(self.seen).plan_.listens.indices, np.int64)

    def false_positives(self, label: Ints, *, per_peer: int = 1) -> float:
        """Return the mean number of unwanted deliveries of an unseen event.

        Parameters
        ----------
        label
            The cluster of each subscription.
        per_peer
            Number of consecutive subscriptions of the same peer. It is in the clusters of all of them, and an
            event that any of them matches is wanted.
        """
        peers = np.arange(len(label)) // per_peer if per_peer > 1 else None
        found = received(self.unseen, label, peers=peers)
        return found.false_positives / self.unseen.n_events

    def ideal(self, clusters: int, seed: int) -> Ints:
        """Return the clusters from complete information; the paper does not define ideal clusters.

        They are computed from all seen events, not the last few, and from all similarities, not from
        coordinates.
        """
        rows = similarity(self.seen.wants).toarray()
        found = kmeans(rows, clusters, rng=np.random.default_rng([seed, 2012]), restarts=_BEST_OF)
        return found.label.astype(np.int64)


def planner_of(
    histories: SeedHistories, method: str, clusters: int, *, seed: int, history: int, **more: Any
) -> Any:
    """Return the unfitted planner of a method.

    Parameters
    ----------
    histories
        The source of boxes, for methods that need them.
    method
        One of `METHODS`.
    clusters, seed, history
        Number of clusters, seed, and number of events that each subscription remembers, for methods with
        coordinates. `direct` uses all seen events.
    more
        Further parameters of methods with coordinates.
    """
    name, given = METHODS[method]
    if method in SPECTRAL:
        given = {"similarity": "jaccard", "history": history, **given, **more}
    elif name != "direct":
        given = {**given, "boxes": histories.boxes}
    return PLANNERS[name](channels=clusters, seed=seed, **given)


def space_of(method: str, dimensions: int) -> EmbeddingSpace:
    """Return the embedding as in the paper: projections between groups have no offset."""
    if METHODS[method][0] == "rassoc":
        return Association(dimensions=dimensions, offset=False)
    return SpaceCut(dimensions=dimensions, offset=False)


def points_of(method: str, coordinates: Doubles) -> Doubles:
    """Return the input of k-means: coordinates as they are, or scaled to length 1."""
    return normalised(coordinates) if METHODS[method][1]["normalise"] else coordinates


class FoundClusters:
    """Numbers by series, position and metric, one for each seed, in the order of addition.

    Examples
    --------
    >>> found = FoundClusters()
    >>> found.add("direct/zipf", 50, {"balance": 2.0})
    >>> found.add("direct/zipf", 50, {"balance": 1.0})
    >>> found.rows()[0].measured, found.mean("direct/zipf", 50, "balance")
    (1.5, 1.5)
    """

    def __init__(self) -> None:
        self.values: dict[tuple[str, float | None, str], list[float]] = {}

    def add(self, series: str, x: Any, numbers: Mapping[str, Any]) -> None:
        """Add the numbers of a seed, by metric."""
        for metric, value in numbers.items():
            self.values.setdefault((series, x, metric), []).append(float(value))

    def mean(self, series: str, x: float | None, metric: str) -> float:
        """Return the mean over the seeds."""
        return float(np.mean(self.values[series, x, metric]))

    def rows(self, paper: Mapping[tuple[str, float | None, str], float] | None = None) -> list[ResultRow]:
        """Return a row for each series, position and metric, with the paper's number."""
        printed = paper or {}
        return [ResultRow.of(*key, values, paper=printed.get(key)) for key, values in self.values.items()]


def numbers_of(row: Record, names: Iterable[str]) -> dict[str, Any]:
    """Return the numbers of a sweep's row that have one of the given names."""
    return {name: row[name] for name in names if row.get(name) is not None}


def fewer(found: FoundClusters, series: str, other: str, x: float) -> list[float]:
    """Return how much fewer false positives a series has than another, in per cent, for each seed."""
    own, theirs = found.values[series, x, FALSE], found.values[other, x, FALSE]
    return [100 * (1 - a / b) if b else 0.0 for a, b in zip(own, theirs, strict=True)]


def verdict(yes: bool) -> str:
    """Return in words whether a claim of the paper was reproduced."""
    return "reproduced" if yes else "not reproduced"


def caption_of(params: Mapping[str, Any], seeds: int) -> str:
    """Return the subtitle of a chart: sizes of the workload and number of seeds."""
    many = f"{params['subscriptions']:,} subscriptions, " if isinstance(params["subscriptions"], int) else ""
    return (
        f"{many}{params['attributes']} attributes, histories of {params['history']} events, exponent "
        f"{params['zipf']:g}, {params['events']:,} events not seen before, {seeds} "
        f"{'seed' if seeds == 1 else 'seeds'}"
    )


def size_note(params: Mapping[str, Any]) -> list[str]:
    """Return a warning if the workload is not the one of the paper's numbers."""
    if all(params.get(name, value) == value for name, value in PAPER.items()):
        return []
    return ["The workload here is not the one that the paper's numbers are held against: they are left out."]
