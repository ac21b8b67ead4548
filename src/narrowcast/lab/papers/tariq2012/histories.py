"""Histories: what the subscriptions of a seed matched, what they match later, and clusters made of that."""

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

#: How boxes and events of each workload are spread: the paper's two models, and uniform boxes with events of
#: either.
WORKLOADS: dict[str, Any] = {
    "m1": ("uniform", "uniform"),
    "m2": ("hotspots", "hotspots"),
    "uniform": ("uniform", "uniform"),
    "zipf": ("uniform", "hotspots"),
}
#: What methods are called in a series, with how each is made: the paper's two, as it has them and with
#: coordinates scaled to length 1; what it compares with; and our own.
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
#: Those that have coordinates.
SPECTRAL = tuple(name for name, (method, _) in METHODS.items() if method in ("rassoc", "ncut"))
#: What all experiments take, at the paper's size (section 3.2.1) as far as it says: of its 6,000 events it
#: does not say which are for what, and of Zipf's law not the exponent.
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
#: How often k-means begins anew for clusters that are to be the ideal ones.
_BEST_OF = 10


@dataclass(frozen=True, slots=True, eq=False)
class SeedHistories:
    """Subscriptions of a seed, with the events that they matched and others.

    Parameters
    ----------
    seen
        Who matched which of the events that clusters are made from, in the order of time.
    unseen
        Whom each of the events matches that clusters are measured by.
    boxes
        The ends of boxes.
    spot
        The hotspot that is nearest to the middle of each box.
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
        """Return the subscriptions that matched anything."""
        return np.flatnonzero(np.diff(self.seen.wants.indptr))

    def rows(self, history: int) -> Relation:
        """Return the last so many events that each of these matched."""
        return recent(self.seen.wants, history)[self.known()]

    def label(self, planner: Any) -> Ints:
        """Return the cluster of each subscription that a planner puts it into."""
        return np.asarray(planner.fit(self.seen).plan_.listens.indices, np.int64)

    def false_positives(self, label: Ints, *, per_peer: int = 1) -> float:
        """Return how many get an event for nothing, in the mean of the unseen ones.

        Parameters
        ----------
        label
            The cluster of each subscription.
        per_peer
            How many subscriptions, one after the other, are of one peer. It is in the clusters of all of
            them, and what any of them matches it does not get for nothing.
        """
        peers = np.arange(len(label)) // per_peer if per_peer > 1 else None
        found = received(self.unseen, label, peers=peers)
        return found.false_positives / self.unseen.n_events

    def ideal(self, clusters: int, seed: int) -> Ints:
        """Return the clusters that all there is to know gives: the paper does not say what is ideal.

        All seen events count, not the last few, and all similarities, not some coordinates.
        """
        rows = similarity(self.seen.wants).toarray()
        found = kmeans(rows, clusters, rng=np.random.default_rng([seed, 2012]), restarts=_BEST_OF)
        return found.label.astype(np.int64)


def planner_of(
    histories: SeedHistories, method: str, clusters: int, *, seed: int, history: int, **more: Any
) -> Any:
    """Return the planner of a method that is not fitted yet.

    Parameters
    ----------
    histories
        Whose boxes are taken, where a method goes by boxes.
    method
        One of `METHODS`.
    clusters, seed, history
        How many clusters, what draws come from, and how many events each subscription remembers: for those
        that have coordinates. `direct` takes all events that were seen.
    more
        What else those take that have coordinates.
    """
    name, given = METHODS[method]
    if method in SPECTRAL:
        given = {"similarity": "jaccard", "history": history, **given, **more}
    elif name != "direct":
        given = {**given, "boxes": histories.boxes}
    return PLANNERS[name](channels=clusters, seed=seed, **given)


def space_of(method: str, dimensions: int) -> EmbeddingSpace:
    """Return what gives coordinates as the paper has it: projections between groups have no offset."""
    if METHODS[method][0] == "rassoc":
        return Association(dimensions=dimensions, offset=False)
    return SpaceCut(dimensions=dimensions, offset=False)


def points_of(method: str, coordinates: Doubles) -> Doubles:
    """Return what k-means takes of coordinates: as they are, or by their directions."""
    return normalised(coordinates) if METHODS[method][1]["normalise"] else coordinates


class FoundClusters:
    """Numbers by series, place and metric, one for each seed, in the order in which they came.

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
        """Take up what came of a seed, by metric."""
        for metric, value in numbers.items():
            self.values.setdefault((series, x, metric), []).append(float(value))

    def mean(self, series: str, x: float | None, metric: str) -> float:
        """Return the mean over the seeds."""
        return float(np.mean(self.values[series, x, metric]))

    def rows(self, paper: Mapping[tuple[str, float | None, str], float] | None = None) -> list[ResultRow]:
        """Return a row for each series, place and metric, with what the paper prints."""
        said = paper or {}
        return [ResultRow.of(*key, values, paper=said.get(key)) for key, values in self.values.items()]


def numbers_of(row: Record, names: Iterable[str]) -> dict[str, Any]:
    """Return the numbers of a row of a sweep that it has under some names."""
    return {name: row[name] for name in names if row.get(name) is not None}


def fewer(found: FoundClusters, series: str, other: str, x: float) -> list[float]:
    """Return by how many per cent a series has fewer false positives than another, for each seed."""
    own, theirs = found.values[series, x, FALSE], found.values[other, x, FALSE]
    return [100 * (1 - a / b) if b else 0.0 for a, b in zip(own, theirs, strict=True)]


def held(yes: bool) -> str:
    """Return whether something that the paper says came out."""
    return "reproduced" if yes else "not reproduced"


def said_of(params: Mapping[str, Any], seeds: int) -> str:
    """Return what the numbers are of, for the line below a title."""
    many = f"{params['subscriptions']:,} subscriptions, " if isinstance(params["subscriptions"], int) else ""
    return (
        f"{many}{params['attributes']} attributes, histories of {params['history']} events, exponent "
        f"{params['zipf']:g}, {params['events']:,} events not seen before, {seeds} "
        f"{'seed' if seeds == 1 else 'seeds'}"
    )


def size_note(params: Mapping[str, Any]) -> list[str]:
    """Return a warning where the workload is not the one that numbers of the paper are held against."""
    if all(params.get(name, value) == value for name, value in PAPER.items()):
        return []
    return ["The workload here is not the one that the paper's numbers are held against: they are left out."]
