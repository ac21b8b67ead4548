"""Clusters of subscribers by the events they match: false positives on events not seen, balance, seconds.

The workload is that of tariq2012 (`hotspots`): boxes of whole numbers, of which an event matches 5 %.
Clusters are made from the events of a history, and measured on others. False positives are per event; `of_ck`
is their share of those of k-means on the centres of boxes. Seconds are CPU seconds of one core, histories not
included.

- `paper`: 1,000 subscriptions, 50 clusters, five seeds: every method, events around hotspots and uniform.
  The R-tree is the one that peers maintain, boxes inserted one after the other, and beside it the one that is
  packed all at once; for both also the false positives if an event goes to every leaf whose box contains it,
  as peers send it, and not only to leaves with an interested subscriber (`false_positives_by_boxes`).
- `peers`: the alternatives: spectral clustering and k-means of scikit-learn, power iteration and k-means of
  MLlib, all on the same histories. Seconds of MLlib are elapsed, on all cores.
- `growth`: 1,000, 32,000 (five seeds) and 1,000,000 subscriptions.
- `portions`: `direct` in portions that move by themselves, as on Spark, against `direct` in one place.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse import csr_array, vstack

from narrowcast.lab.spectral.quality import balance, received
from narrowcast.model.interest import Interest
from narrowcast.planning import PLANNERS
from narrowcast.planning.subscribers.direct import Direct
from narrowcast.planning.subscribers.direct_portions import in_portions
from narrowcast.workloads.hotspots import Hotspots

#: The R-tree that is packed all at once.
PACKED = "r-tree, packed"
METHODS = ("direct", "rassoc", "ncut", "centroid", "box-overlap", "r-tree", PACKED)
CLUSTERS = 50
SEEDS = range(200, 205)
#: Subscriptions at a time while histories are made.
_BLOCK = 50_000


def log(text: object) -> None:
    """Report progress on standard error."""
    print(text, file=sys.stderr, flush=True)


class Case:
    """Subscriptions with a history, and events that are not in it."""

    def __init__(self, n: int, points: Any, seed: int, *, history: int = 1024, unseen: int = 1000) -> None:
        workload = Hotspots(n_subscriptions=n, n_events=history + unseen, points=points, seed=seed)
        self.boxes = workload.ends()
        events, parts = workload.values(), []
        for start in range(0, n, _BLOCK):
            lo, hi = (end[start : start + _BLOCK] for end in self.boxes)
            inside = np.ones((len(lo), len(events)), np.bool_)
            for i in range(events.shape[1]):
                inside &= (events[:, i] > lo[:, i, None]) & (events[:, i] <= hi[:, i, None])
            parts.append(csr_array(inside))
        matched = vstack(parts).tocsr()
        self.points = events[history:]
        self.interest = Interest(matched[:, :history])
        self.unseen = matched[:, history:].T.tocsr()

    def measured(self, label: Any, seconds: float) -> dict[str, float]:
        """Return what clusters come to."""
        found = received(self.unseen, label)
        return {
            "false_positives": found.false_positives / self.unseen.shape[0],
            "balance": balance(label, CLUSTERS),
            "seconds": seconds,
        }

    def method(self, name: str, seed: int) -> dict[str, float]:
        """Measure one of our methods."""
        by_boxes = name not in ("direct", "rassoc", "ncut")
        given: dict[str, Any] = {"boxes": self.boxes} if by_boxes else {}
        if name == PACKED:
            given["packing"] = "str"
        start = time.process_time()
        planner = PLANNERS[name.removesuffix(", packed")](channels=CLUSTERS, seed=seed, **given)
        label = planner.fit(self.interest).plan_.listens.indices
        found = self.measured(label, time.process_time() - start)
        return found | self.routed(label) if name in ("r-tree", PACKED) else found

    def routed(self, label: Any) -> dict[str, float]:
        """Return what leaves come to where an event goes to each whose box it is in."""
        lo, hi = self.boxes
        inside = np.zeros((len(self.points), CLUSTERS), np.bool_)
        for leaf in np.unique(label).tolist():
            low, high = lo[label == leaf].min(axis=0), hi[label == leaf].max(axis=0)
            inside[:, leaf] = ((self.points > low) & (self.points <= high)).all(axis=1)
        got = int((inside @ np.bincount(label, minlength=CLUSTERS)).sum())
        return {"false_positives_by_boxes": (got - self.unseen.nnz) / len(self.points)}


def paper(n: int, seeds: range) -> list[dict[str, Any]]:
    """Measure every method on fresh seeds."""
    rows = []
    for points in ("hotspots", "uniform"):
        found: dict[str, list[dict[str, float]]] = {name: [] for name in METHODS}
        for seed in seeds:
            case = Case(n, points, seed)
            for name in METHODS:
                found[name].append(case.method(name, seed))
        for name in METHODS:
            shares = [
                one["false_positives"] / ck["false_positives"]
                for one, ck in zip(found[name], found["centroid"], strict=True)
            ]
            row = {"events": points, "method": name, **_means(found[name])}
            row |= {"of_ck": round(statistics.fmean(shares), 3), "sd": round(statistics.pstdev(shares), 3)}
            log(row)
            rows.append(row)
    return rows


def peers(n: int, *, spark: bool) -> list[dict[str, Any]]:
    """Measure what else one would take, on one history."""
    case = Case(n, "hotspots", SEEDS[0])
    vectors = case.interest.wants.astype(np.float64)
    rows: list[dict[str, Any]] = []

    def add(name: str, found: dict[str, float]) -> None:
        rows.append({"method": name, **{key: round(value, 3) for key, value in found.items()}})
        log(rows[-1])

    for name in ("direct", "rassoc", "ncut", "centroid"):
        add(name, case.method(name, 0))
    for name, make in _sklearn(vectors).items():
        start = time.process_time()
        label = make()
        add(name, case.measured(label, time.process_time() - start))
    if spark:
        for name, (label, seconds) in _mllib(vectors).items():
            add(name, case.measured(label, seconds))
    first = rows[0]
    for row in rows:
        row["fp_of_direct"] = round(row["false_positives"] / first["false_positives"], 2)
        row["seconds_of_direct"] = round(row["seconds"] / first["seconds"], 1)
    return rows


def _sklearn(vectors: Any) -> dict[str, Callable[[], Any]]:
    """Return what scikit-learn offers: each makes labels of history vectors."""
    from sklearn.cluster import KMeans, MiniBatchKMeans, SpectralClustering

    def spectral() -> Any:
        shared = (vectors @ vectors.T).toarray()
        size = np.diff(vectors.indptr).astype(np.float64)
        either = np.maximum(size[:, None] + size - shared, 1)
        jaccard = shared / either + 1e-9  # connected: it warns of graphs that are not
        return SpectralClustering(CLUSTERS, affinity="precomputed", random_state=0).fit_predict(jaccard)

    return {
        "scikit-learn SpectralClustering, Jaccard": spectral,
        "scikit-learn KMeans": lambda: KMeans(CLUSTERS, random_state=0).fit_predict(vectors),
        "scikit-learn KMeans, ten starts": lambda: KMeans(CLUSTERS, n_init=10, random_state=0).fit_predict(
            vectors
        ),
        "scikit-learn MiniBatchKMeans": lambda: MiniBatchKMeans(CLUSTERS, random_state=0).fit_predict(
            vectors
        ),
    }


def _mllib(vectors: Any) -> dict[str, tuple[Any, float]]:
    """Return labels by MLlib, and the seconds that passed."""
    from pyspark.ml.clustering import KMeans, PowerIterationClustering
    from pyspark.ml.linalg import Vectors

    from narrowcast.spark import session

    n, width = vectors.shape
    found = {}
    with session("local[*,4]") as spark:
        rows = [
            (i, Vectors.sparse(width, vectors.indices[a:b].tolist(), [1.0] * int(b - a)))
            for i, (a, b) in enumerate(zip(vectors.indptr[:-1], vectors.indptr[1:], strict=True))
        ]
        frame = spark.createDataFrame(rows, ["id", "features"]).persist()
        frame.count()
        start = time.perf_counter()
        model = KMeans(k=CLUSTERS, seed=0).fit(frame)
        told = model.transform(frame).select("id", "prediction").toArrow()
        found["MLlib KMeans"] = _ordered(told, "prediction", n), time.perf_counter() - start
        shared = (vectors @ vectors.T).tocoo()
        size = np.diff(vectors.indptr)
        keep = shared.row < shared.col
        one, other, both = shared.row[keep], shared.col[keep], shared.data[keep]
        weight = both / (size[one] + size[other] - both)
        import pyarrow as pa

        table = pa.table({"src": one.astype(np.int64), "dst": other.astype(np.int64), "weight": weight})
        pairs = spark.createDataFrame(table).persist()
        pairs.count()
        start = time.perf_counter()
        power = PowerIterationClustering(k=CLUSTERS, weightCol="weight", maxIter=20)
        told = power.assignClusters(pairs).toArrow()
        label = _ordered(told, "cluster", n)
        found["MLlib PowerIterationClustering, Jaccard"] = label, time.perf_counter() - start
    return found


def _ordered(table: Any, name: str, n: int) -> Any:
    """Return labels in the order of ids; who is in no pair is in the last cluster."""
    label = np.full(n, CLUSTERS - 1)
    label[table["id"].to_numpy()] = table[name].to_numpy()
    return label


def growth(sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Measure `direct` beside k-means on the centres of boxes, ever more subscriptions."""
    rows = []
    for n in sizes:
        for points in ("hotspots", "uniform"):
            # Of more subscriptions more events can be told apart, as long as there is room for all of it.
            history = 1024 if n < 10_000 else 2048 if n < 100_000 else 512
            seeds = SEEDS if 10_000 < n < 100_000 else SEEDS[:1]
            row: dict[str, Any] = {
                "subscriptions": n,
                "events": points,
                "history": history,
                "seeds": len(seeds),
            }
            cases = [Case(n, points, seed, history=history, unseen=500) for seed in seeds]
            for name in ("direct", "centroid"):
                found = [case.method(name, 0) for case in cases]
                row |= {f"{name}_{key}": value for key, value in _means(found).items()}
                row[f"{name}_balance"] = round(max(each["balance"] for each in found), 3)
            row["of_ck"] = round(row["direct_false_positives"] / row["centroid_false_positives"], 3)
            log(row)
            rows.append(row)
    return rows


def portions(n: int) -> list[dict[str, Any]]:
    """Measure `direct` in portions against `direct` in one place."""
    rows = []
    for points in ("hotspots", "uniform"):
        case = Case(n, points, SEEDS[0])
        whole = case.method("direct", 0)["false_positives"]
        for count in (8, 32):
            planner = Direct(channels=CLUSTERS)
            label, again = (in_portions(case.interest, planner, count, sample=n // 2) for _ in range(2))
            found = case.measured(label, 0.0)
            rows.append(
                {
                    "events": points,
                    "portions": count,
                    "of_whole": round(found["false_positives"] / whole, 3),
                    "balance": round(found["balance"], 3),
                    "same_again": bool((label == again).all()),
                }
            )
            log(rows[-1])
    return rows


def _means(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.fmean(run[name] for run in runs), 3) for name in runs[0]}


def targets(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Hold what was asked against what came out."""
    rows: list[dict[str, Any]] = []

    def hold(what: str, asked: str, measured: float, met: bool) -> None:
        rows.append({"what": what, "asked": asked, "measured": measured, "met": bool(met)})

    by = {(row["events"], row["method"]): row for row in found["paper"]}
    best = min(by["hotspots", name]["of_ck"] for name in ("rassoc", "ncut"))
    hold("rassoc or ncut, hotspots, of CK", "<= 0.75", best, best <= 0.75)
    for events, most in (("hotspots", 0.35), ("uniform", 0.92)):
        value = by[events, "direct"]["of_ck"]
        hold(f"direct, {events}, of CK", f"<= {most}", value, value <= most)
    size = {(row["subscriptions"], row["events"]): row for row in found["growth"]}
    for n, most, seconds in ((32_000, 0.30, 10), (1_000_000, 0.5, 60)):
        if (row := size.get((n, "hotspots"))) is None:
            continue
        even = row["direct_balance"] <= 2
        hold(f"direct, {n:,}, of CK", f"<= {most}, balance <= 2", row["of_ck"], row["of_ck"] <= most and even)
        hold(f"direct, {n:,}", f"<= {seconds} s", row["direct_seconds"], row["direct_seconds"] <= seconds)
    worst = max(row["of_whole"] for row in found["portions"])
    hold("in portions, of one place", "<= 1.03", worst, worst <= 1.03)
    for row in found["peers"]:
        if row["method"].startswith(("scikit-learn", "MLlib")):
            ahead = row["fp_of_direct"] > 1 and row["seconds_of_direct"] > 1
            hold(f"direct ahead of {row['method']}", "fewer and quicker", row["fp_of_direct"], ahead)
    return rows


def run(quick: bool = False) -> dict[str, Any]:
    """Measure everything."""
    warm = Case(100, "hotspots", 0, history=64, unseen=10)
    for name in METHODS:  # kernels are loaded
        warm.method(name, 0)
    found: dict[str, Any] = {
        "paper": paper(200 if quick else 1000, SEEDS[:2] if quick else SEEDS),
        "peers": peers(200 if quick else 4000, spark=not quick),
        "growth": growth((200, 400) if quick else (1000, 32_000, 1_000_000)),
        "portions": portions(800 if quick else 32_000),
    }
    return {"targets": targets(found), **found}
