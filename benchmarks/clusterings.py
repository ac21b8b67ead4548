"""Clusterings that one would take instead of ours: each makes one level of channels, or sessions in groups.

k-means, of scikit-learn and of Spark's MLlib, sees each flow as the vector of those who want it, then each
session as the vector of those who listen to it. With unit vectors, or cosines, flows are near that the same
people want, however many these are; by rate, a vector counts as often as it has messages.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy import sparse

from narrowcast import Interest
from narrowcast.model.plan import ChannelPlan
from narrowcast.planning.baselines.simple import stable_hash
from narrowcast.planning.sessions.clusters import two_level_plan


@dataclass(frozen=True, slots=True)
class Rows:
    """What is put into clusters: a vector of ones for each row, its rate, and its label."""

    vectors: sparse.csr_array
    rate: NDArray[np.float64]
    labels: pa.Array

    @classmethod
    def of(cls, interest: Interest) -> tuple[Self, NDArray[np.int64]]:
        """Return the flows that have subscribers, and their numbers."""
        flows = np.flatnonzero(interest.audience() > 0)
        vectors = interest.wants.T.tocsr()[flows].astype(np.float32)
        return cls(vectors, interest.rate[flows], interest.flows.take(pa.array(flows))), flows

    def merged(self, cluster: NDArray[np.int64]) -> Rows:
        """Return clusters as rows: all subscribers of their flows, and the sums of rates."""
        ones = np.ones(len(cluster), np.float32)
        vectors = sparse.csr_array((ones, (cluster, np.arange(len(cluster))))) @ self.vectors
        vectors.data[:] = 1
        rate = np.bincount(cluster, self.rate).astype(np.float64)
        return Rows(vectors, rate, pa.array(np.arange(len(rate))))


class Clustering(ABC):
    """A planner that puts flows into clusters, and for two levels those into clusters again."""

    plan_: ChannelPlan

    def __init__(self, *, channels: int, sessions: int | None = None, seed: int = 0) -> None:
        self.channels, self.sessions, self.seed = channels, sessions, seed

    def fit(self, interest: Interest) -> Self:
        """Make the plan."""
        rows, flows = Rows.of(interest)
        first = self.channels if self.sessions is None else self.sessions
        session = self.clusters(rows, min(first, len(flows)))
        used, session = np.unique(session, return_inverse=True)
        parent = None
        if self.sessions is not None:
            parent = np.asarray(self.clusters(rows.merged(session), min(self.channels, len(used))), np.int64)
        self.plan_ = two_level_plan(interest, flows, session, parent)
        return self

    @abstractmethod
    def clusters(self, rows: Rows, k: int) -> Any:
        """Return the cluster of each row."""


class Hashed(Clustering):
    """By the hash of a label, as brokers share topics out."""

    def clusters(self, rows: Rows, k: int) -> Any:
        """Return the cluster of each row."""
        return stable_hash(rows.labels) % np.uint64(k)


class Random(Clustering):
    """Any."""

    def clusters(self, rows: Rows, k: int) -> Any:
        """Return the cluster of each row."""
        return np.random.default_rng(self.seed).integers(0, k, len(rows.rate))


class KMeans(Clustering):
    """k-means of scikit-learn with its own settings."""

    tuned = False

    def clusters(self, rows: Rows, k: int) -> Any:
        """Return the cluster of each row."""
        given, length = rows.vectors, np.diff(rows.vectors.indptr)
        values = np.repeat(length**-0.5, length).astype(np.float32) if self.tuned else given.data
        numbers = given.indices.astype(np.int32), given.indptr.astype(np.int32)  # it takes no others
        vectors = sparse.csr_array((values, *numbers), given.shape)
        with warnings.catch_warnings():  # equal vectors may make fewer clusters than were asked for
            warnings.simplefilter("ignore")
            found = self._made(k).fit(vectors, sample_weight=rows.rate if self.tuned else None)
        return found.labels_

    def _made(self, k: int) -> Any:
        from sklearn import cluster

        return cluster.KMeans(k, random_state=self.seed)


class KMeansTuned(KMeans):
    """The same with unit vectors, by rate."""

    tuned = True


class MiniBatchTuned(KMeansTuned):
    """The same on some of the vectors at a time."""

    def _made(self, k: int) -> Any:
        from sklearn import cluster

        return cluster.MiniBatchKMeans(k, random_state=self.seed)


class Mllib(Clustering):
    """k-means of Spark's MLlib with its own settings, or by cosines and rates.

    The vectors of flows are handed to Spark before, by `give`: in a pipeline they would be there.
    """

    def __init__(
        self, spark: Any, *, channels: int, sessions: int | None = None, seed: int = 0, tuned: bool = False
    ) -> None:
        super().__init__(channels=channels, sessions=sessions, seed=seed)
        self.spark, self.tuned = spark, tuned
        self._given: dict[int, Any] = {}

    def give(self, interest: Interest) -> None:
        """Hand over the flows of an interest."""
        rows, flows = Rows.of(interest)
        self._given[len(flows)] = self._frame(rows)

    def clusters(self, rows: Rows, k: int) -> Any:
        """Return the cluster of each row."""
        from pyspark.ml.clustering import KMeans as Model

        if k < 2:  # which it does not take
            return np.zeros(len(rows.rate), np.int64)
        frame = self._given.get(len(rows.rate))
        if frame is None:
            frame = self._frame(rows)
        model = Model(k=k, seed=self.seed)
        if self.tuned:
            model = model.setDistanceMeasure("cosine").setWeightCol("rate")
        found = model.fit(frame).transform(frame).select("row", "prediction").toArrow()
        cluster = np.empty(len(rows.rate), np.int64)
        cluster[found["row"].to_numpy()] = found["prediction"].to_numpy()
        return cluster

    def _frame(self, rows: Rows) -> Any:
        """Return rows as sparse vectors in the memory of Spark."""
        from pyspark.ml.linalg import Vectors

        width, who = rows.vectors.shape[1], rows.vectors.indices
        told = []
        for i, (a, b) in enumerate(pairwise(rows.vectors.indptr.tolist())):
            told.append((i, float(rows.rate[i]), Vectors.sparse(width, np.sort(who[a:b]), np.ones(b - a))))
        frame = self.spark.createDataFrame(told, ["row", "rate", "features"])
        frame = frame.repartition(self.spark.sparkContext.defaultParallelism).cache()
        frame.count()
        return frame
