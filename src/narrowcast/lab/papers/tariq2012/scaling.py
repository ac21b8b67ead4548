"""Figure 4: time of clustering by groups, work of coordinators, and quality with many subscriptions."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from scipy import linalg

from narrowcast.lab.papers.base import Experiment, Outcome, ResultRow
from narrowcast.lab.papers.tariq2012.histories import (
    FALSE,
    PAPER,
    SPECTRAL,
    FoundClusters,
    SeedHistories,
    caption_of,
    fewer,
    numbers_of,
    planner_of,
    size_note,
    space_of,
    verdict,
)
from narrowcast.lab.papers.tariq2012.quality import OWN
from narrowcast.lab.spectral.hierarchy import embedded, tabled
from narrowcast.lab.spectral.ncut import weights
from narrowcast.lab.spectral.quality import accuracy, balance, entropy
from narrowcast.lab.spectral.similarity import similarity
from narrowcast.lab.spectral.tree import GroupTree
from narrowcast.lab.sweep import Sweep
from narrowcast.model.interest import Interest
from narrowcast.planning.base import PLANNERS

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from narrowcast.lab.papers.base import Study
    from narrowcast.lab.spectral.traffic import HierarchyReport
    from narrowcast.lab.sweep import Record
    from narrowcast.model.relation import Relation

    Ints = NDArray[np.int64]

#: The smallest and the largest delay of a message, in seconds (section 6.4).
DELAYS = 0.224, 0.384
#: Groups of the lowest level while levels and landmarks vary: the paper gives no number.
GROUPS = 8
#: One table of landmarks, with coordinates of length 1: the best variant with groups.
TABLE = "rassoc/table"
#: Methods that are timed: the paper's, the variant above, CK, and the product's own.
CLUSTERED = (*SPECTRAL, TABLE, "centroid", OWN)
#: All coordinates at once by LAPACK, as in the paper, or by the product's solver.
DENSE, CENTRAL = "dense", "central"
WHOLE = {DENSE: "whole matrix, LAPACK", CENTRAL: "one level, ours"}
#: The paper's speed-up over one level in per cent, by levels and per cent of landmarks.
LESS = {("rassoc", 2, 50): 86.0, ("ncut", 2, 50): 90.0, ("rassoc", 4, 10): 99.0, ("ncut", 4, 10): 99.0}
#: The paper's numbers for 32,000: seconds until all are in clusters, and work of root and coordinators.
MANY = 32_000
SECONDS = {"rassoc/plain": 5.0, "ncut/plain": 15.0}
WORK = {"root_seconds": 25.0, "coordinator_seconds": 5.0}
#: Work of groups before their members have coordinates.
WORKED = ("local", "projection")
#: Messages between a group and the one above it.
BETWEEN = ("landmarks", "parent", "table")
#: The metrics of a clustering.
LOAD = tuple(f"{who}_{what}" for what in ("seconds", "bytes", "messages") for who in ("root", "coordinator"))
METRICS = ("seconds", "seconds_on_one_core", *LOAD, "entropy", "accuracy", FALSE, "balance")
#: Metrics that tables omit.
BESIDE = ("root_messages", "coordinator_messages", "work_seconds_less_than_central_pct", "balance")


def branch_seconds(
    tree: GroupTree, report: HierarchyReport, work: Collection[str], *, passes: int, rng: np.random.Generator
) -> float:
    """Return the seconds of the slowest branch from the root to members: work, and delays between groups.

    Parameters
    ----------
    tree, report
        The groups, and the work of each.
    work
        The steps of the report that count.
    passes
        Number of times that messages go along the branch, each with a delay.
    rng
        Generator of delays.

    Examples
    --------
    >>> from narrowcast.model.relation import relation
    >>> from narrowcast.lab.spectral.traffic import HierarchyReport, WorkStep
    >>> tree = GroupTree.of(relation(np.ones((8, 2))), levels=2, groups=2, landmarks=0.5)
    >>> report = HierarchyReport([WorkStep(1, 0, "local", seconds=1.0), WorkStep(0, 1, "local", seconds=2.0)])
    >>> branch_seconds(tree, report, ["local"], passes=0, rng=np.random.default_rng(0))
    3.0
    """
    seconds: dict[tuple[int, int], float] = {}
    for step in report.steps:
        if step.what in work:
            at = step.level, step.group
            seconds[at] = seconds.get(at, 0.0) + step.seconds
    total = [seconds.get((tree.root.level, 0), 0.0)]
    for level in reversed(tree.levels[:-1]):
        delay = rng.uniform(*DELAYS, (len(level), passes)).sum(axis=1)
        total = [
            total[group.parent] + seconds.get((group.level, group.number), 0.0) + float(late)
            for group, late in zip(level, delay, strict=True)
        ]
    return max(total)


def _whole(method: str, rows: Relation) -> float:
    """Return the seconds that LAPACK takes for all coordinates of the whole matrix, as in the paper."""
    alike = similarity(rows)
    matrix = (alike if method == "rassoc" else weights(alike).apart()).toarray()
    begun = time.perf_counter()
    if method == "rassoc":
        linalg.svd(matrix - matrix.mean(axis=1, keepdims=True))
    else:
        degree = matrix.sum(axis=0)
        degree[degree == 0] = 1.0
        linalg.eigh(np.diag(degree) - matrix, np.diag(degree))
    return time.perf_counter() - begun


def _time(
    histories: SeedHistories, *, method: str, way: str, levels: int, seed: int, history: int, dimensions: int,
    landmarks: list[float], **_: Any
) -> list[Record]:  # fmt: skip
    """Return the seconds to compute coordinates with a number of levels, for each share of landmarks."""
    rows, space = histories.rows(history), space_of(f"{method}/plain", dimensions)
    if levels == 1:
        if way == "table":
            return []
        begun = time.perf_counter()
        space.frame(rows)
        central = time.perf_counter() - begun
        return [
            {"kind": kind, "x": 1, "share": None, "seconds": seconds, "work_seconds": seconds}
            for kind, seconds in ((DENSE, _whole(method, rows)), (CENTRAL, central))
        ]
    found: list[Record] = []
    for share in landmarks:
        given: Any = {"levels": levels, "groups": GROUPS, "landmarks": share, "least": dimensions + 1}
        tree = GroupTree.of(rows, **given, seed=seed)
        report = (embedded if way == "faithful" else tabled)(space, rows, tree).report
        seconds, work = (
            branch_seconds(tree, report, WORKED, passes=passes, rng=np.random.default_rng([seed, levels]))
            for passes in (1, 0)
        )
        found.append(
            {"kind": way, "x": levels, "share": round(100 * share), "seconds": seconds, "work_seconds": work}
        )
    return found


@dataclass(frozen=True, slots=True, eq=False)
class ManyHistories:
    """Histories of many subscriptions, and their ideal clusters from all events."""

    histories: SeedHistories
    ideal: Ints

    @classmethod
    def make(cls, *, seed: int, size: int, clusters: int, dimensions: int, **given: Any) -> Self:
        """Draw the workload of a seed; ideal clusters use all events, in the space of events."""
        histories = SeedHistories.make(seed=seed, workload="zipf", **(given | {"subscriptions": size}))
        # The product's method is compiled before it is timed; computing the ideal clusters compiles the
        # others.
        PLANNERS[OWN](channels=2).fit(Interest(histories.seen.wants[:100]))
        planner = PLANNERS["rassoc"](channels=clusters, seed=seed, dimensions=dimensions)
        return cls(histories, histories.label(planner))


def _cluster(
    many: ManyHistories, *, method: str, size: int, seed: int, history: int, dimensions: int, clusters: int,
    members: int, share: float, **_: Any
) -> Record:  # fmt: skip
    """Return the time of clustering, the work of coordinators, and the quality of clusters."""
    histories, more = many.histories, {}
    levels = 4
    spectral = method in SPECTRAL or method == TABLE
    if spectral:
        more = {"dimensions": dimensions, "levels": levels, "groups": max(size // members, 1),
                "landmarks": share, "clustering": "hierarchical", "offset": False, "restarts": 1}  # fmt: skip
        more |= {"table": True} if method == TABLE else {}
    name = "rassoc/row" if method == TABLE else method
    planner = planner_of(histories, name, clusters, seed=seed, history=history, **more)
    begun = time.perf_counter()
    label = histories.label(planner)
    taken = time.perf_counter() - begun
    found: dict[str, Any] = {
        "seconds_on_one_core": taken,
        "entropy": entropy(label, many.ideal),
        "accuracy": accuracy(label, many.ideal),
        FALSE: histories.false_positives(label),
        "balance": balance(label, min(clusters, size)),
    }
    return found | (_load(planner, taken, seed) if spectral else {})


def _load(planner: Any, taken: float, seed: int) -> dict[str, Any]:
    """Return the seconds until all are in clusters, and the work of the root and of other coordinators.

    Local coordinates exist before it begins. The projection goes down and clusters with it, and up and down
    once more. Work other than on coordinates is counted as a whole: here it is done on one core.
    """
    report, tree = planner.traffic_, planner.embedding_.tree
    rng = np.random.default_rng([seed, 4])
    branch = branch_seconds(tree, report, ("projection",), passes=3, rng=rng)
    # Group 0 of each level belongs to the root, as do the messages between these groups and others.
    root = report.total(
        lambda step: (
            step.group == 0 or (step.what in BETWEEN and tree.levels[step.level][step.group].parent == 0)
        )
    )
    others = report.of_coordinators() or [root]
    found = {"seconds": branch + taken - report.total().seconds + float(rng.uniform(*DELAYS))}
    for name in ("seconds", "bytes", "messages"):
        found[f"root_{name}"] = getattr(root, name)
        found[f"coordinator_{name}"] = float(np.mean([getattr(each, name) for each in others]))
    return found


def _figure_4(study: Study) -> Outcome:
    """Run the experiments on time, on the work of coordinators and on quality."""
    params, found = dict(study.params), FoundClusters()
    grid: dict[str, Any] = {
        "workload": ["zipf"], "method": ["rassoc", "ncut"], "way": ["faithful", "table"],
        "levels": params["levels"],
    }  # fmt: skip
    fixed = {name: value for name, value in params.items() if name not in ("levels", "sizes")}
    for row in study.run(
        Sweep(_time, grid, study.seeds, fixed, setup=SeedHistories.make, by=["workload"])
    ).rows:
        series = f"{row['method']}/{row['kind']}" + (f"/{row['share']}" if row["share"] else "")
        found.add(f"{series}/levels", row["x"], numbers_of(row, ("seconds", "work_seconds")))
    grid = {"size": params["sizes"], "method": list(CLUSTERED)}
    for row in study.run(
        Sweep(_cluster, grid, study.seeds, fixed, setup=ManyHistories.make, by=["size"])
    ).rows:
        found.add(str(row["method"]), row["size"], numbers_of(row, METRICS))
    rows = found.rows(_printed(params)) + _less(found, params) + _improvements(found, params)
    beside = [row for row in rows if row.metric in BESIDE]
    caption = f"a: {caption_of(params, len(study.seeds))}; b to f: {params['clusters']} clusters"
    charts = {"tariq2012-figure-4": (_records(rows), caption)}
    notes = [*_time_claims(found, params), *_claims(found, params)]
    return Outcome([row for row in rows if row.metric not in BESIDE], charts, notes, beside)


def _printed(params: dict[str, Any]) -> dict[tuple[str, float | None, str], float]:
    """Return the paper's numbers for 32,000 subscriptions."""
    if size_note(_fixed(params)):
        return {}
    printed: dict[tuple[str, float | None, str], float] = {
        (method, MANY, "seconds"): value for method, value in SECONDS.items()
    }
    return printed | {("ncut/plain", MANY, metric): value for metric, value in WORK.items()}


def _fixed(params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that all experiments share, without the number of subscriptions."""
    return {name: value for name, value in params.items() if name != "subscriptions"}


def _shorter(
    found: FoundClusters, series: str, levels: float, than: str, metric: str = "seconds"
) -> list[float]:
    """Return how much faster groups are than one level, in per cent, for each seed."""
    method = series.partition("/")[0]
    own = found.values[f"{series}/levels", levels, metric]
    whole = found.values[f"{method}/{than}/levels", 1, "seconds"]
    return [100 * (1 - a / b) for a, b in zip(own, whole, strict=True)]


def _less(found: FoundClusters, params: dict[str, Any]) -> list[ResultRow]:
    """Return the rows of how much faster groups are than one level."""
    rows: list[ResultRow] = []
    if 1 not in params["levels"]:
        return rows
    printed = params["subscriptions"] == 2000 and not size_note(_fixed(params))
    for key, x, metric in [key for key in found.values if key[0].endswith("/levels") and key[1] != 1]:
        series, levels = key.removesuffix("/levels"), int(x or 0)
        method, way, share = series.split("/")
        for than in (DENSE, CENTRAL):
            printed_value = (
                LESS.get((method, levels, int(share))) if printed and metric == "seconds" else None
            )
            printed_value = printed_value if (way, than) == ("faithful", DENSE) else None
            name = f"{metric}_less_than_{than}_pct"
            rows.append(
                ResultRow.of(key, x, name, _shorter(found, series, levels, than, metric), paper=printed_value)
            )
    return rows


def _improvements(found: FoundClusters, params: dict[str, Any]) -> list[ResultRow]:
    """Return the rows of how many fewer false positives methods have than CK."""
    return [
        ResultRow.of(method, size, "fewer_than_centroid_pct", fewer(found, method, "centroid", size))
        for method in CLUSTERED
        if method != "centroid"
        for size in params["sizes"]
    ]


def _records(rows: list[ResultRow]) -> list[dict[str, Any]]:
    """Return the points of the figure."""
    points: list[dict[str, Any]] = []
    for row in rows:
        if row.series.endswith("/levels"):
            method, way, *share = row.series.removesuffix("/levels").split("/")
            if row.metric == "seconds" and way != "table":
                name = f"{share[0]} % landmarks" if share else WHOLE[way]
                points.append(
                    {"panel": "levels", "method": method, "way": name, "x": row.x, "value": row.measured}
                )
            continue
        panel = row.metric.removeprefix("root_").removeprefix("coordinator_")
        point: dict[str, Any] = {"method": row.series, "x": row.x, "value": row.measured}
        if row.metric in LOAD:
            points.append(point | {"panel": f"load of {panel}", "who": row.metric.partition("_")[0]})
        elif row.metric in ("seconds", "entropy", "accuracy", "fewer_than_centroid_pct"):
            points.append(point | {"panel": row.metric})
        elif row.metric == "seconds_on_one_core" and row.series in ("centroid", OWN):
            points.append(point | {"panel": "seconds"})
    return points


def _time_claims(found: FoundClusters, params: dict[str, Any]) -> list[str]:
    """Return notes that compare the paper's claims on time with the results, with few subscriptions."""
    levels, notes = params["levels"], []
    shares = [round(100 * share) for share in params["landmarks"]]
    many, few, most = max(shares), min(shares), max(levels)
    if 1 in levels and most > 1:
        second = min(each for each in levels if each > 1)
        for than, words in (
            (DENSE, "LAPACK for the whole matrix, as the paper's"),
            (CENTRAL, "our own solver"),
        ):
            parts = []
            for method in ("rassoc", "ncut"):
                for metric, name in (("seconds", "with"), ("work_seconds", "without")):
                    first, last = (
                        float(np.mean(_shorter(found, f"{method}/faithful/{share}", n, than, metric)))
                        for share, n in ((many, second), (few, most))
                    )
                    parts.append(f"{method} {first:.0f} and {last:.1f} % {name} delays")
            notes.append(
                "The paper: two levels with 50 % landmarks take 86 % (RAssoc) and 90 % (NCut) less time than "
                f"one, and four levels more than 99 %. Here {second} levels with {many} %, and {most} levels "
                f"with {few} %, beside {words}: {', '.join(parts)}."
            )
        one = {method: found.mean(f"{method}/{DENSE}/levels", 1, "seconds") for method in ("rassoc", "ncut")}
        ours = {
            method: found.mean(f"{method}/{CENTRAL}/levels", 1, "seconds") for method in ("rassoc", "ncut")
        }
        less = 100 * (1 - one["rassoc"] / one["ncut"])
        notes.append(
            "The paper: with one level RAssoc takes 18 % less time than NCut. By LAPACK here "
            f"{one['rassoc']:.1f} and {one['ncut']:.1f} s: {verdict(less > 0)}. Only the coordinates that "
            f"are wanted, from sparse similarities, take {ours['rassoc']:.2f} and {ours['ncut']:.2f} s: "
            "beside that, delays are most of what a hierarchy takes."
        )
    return notes


def _claims(found: FoundClusters, params: dict[str, Any]) -> list[str]:
    """Return notes that compare the paper's claims on many subscriptions with the results."""
    sizes = sorted(params["sizes"])
    first, last = sizes[0], sizes[-1]

    def at(method: str, metric: str, size: int = last) -> float:
        return found.mean(method, size, metric)

    elapsed = {
        name: f"{at('rassoc/plain', name):.1f} and {at('ncut/plain', name):.1f} s"
        for name in ("seconds", "seconds_on_one_core")
    }
    within = at("rassoc/plain", "seconds") <= 1.2 * SECONDS["rassoc/plain"]
    within &= at("ncut/plain", "seconds") <= SECONDS["ncut/plain"]
    times_note = (
        "The paper: 32,000 subscriptions are in clusters in about 5 s by RAssoc and within 15 s by NCut. "
        f"Here {last:,} take {elapsed['seconds']}, delays and all k-means on one core among it: "
        f"{verdict(within)}; everything on one core, without delays, {elapsed['seconds_on_one_core']}. "
        f"direct takes {at(OWN, 'seconds_on_one_core'):.1f} s on one core."
    )
    notes = [times_note]
    parts = [
        f"{method.partition('/')[0]} root {at(method, 'root_seconds', first):.2f} to "
        f"{at(method, 'root_seconds'):.2f} s, others {at(method, 'coordinator_seconds', first):.2f} to "
        f"{at(method, 'coordinator_seconds'):.2f} s"
        for method in ("rassoc/plain", "ncut/plain")
    ]
    grown = {
        what: [
            at("ncut/plain", f"{who}_{what}") / at("ncut/plain", f"{who}_{what}", first)
            for who in ("root", "coordinator")
        ]
        for what in ("seconds", "bytes")
    }
    times = ", ".join(
        f"by {what} {root:.2f} and {other:.2f} ({verdict(root > 1.2 * other)})"
        for what, (root, other) in grown.items()
    )
    notes.append(
        "The paper: the work of the root grows with subscriptions, and that of other coordinators does not. "
        f"From {first:,} to {last:,}: {'; '.join(parts)} in the mean. With NCut root and others have this "
        f"many times as much: {times}. Work of k-means is not among it; of bytes most are to members."
    )
    quality = {
        method: (at(method, "accuracy", first), at(method, "accuracy"))
        for method in ("rassoc/plain", "ncut/plain")
    }
    up, down = (quality[method][1] - quality[method][0] for method in ("rassoc/plain", "ncut/plain"))
    numbers = "; ".join(f"{method} {a:.2f} to {b:.2f}" for method, (a, b) in quality.items())
    notes.append(
        "The paper: with more subscriptions RAssoc gets better and NCut slightly worse. Accuracy here: "
        f"{numbers}: {verdict(up > 0)} and {verdict(down < 0)}. The ideal clusters are by all events and "
        "cosine similarity, of which no matrix need be made."
    )
    than = {
        method: [float(np.mean(fewer(found, method, "centroid", size))) for size in sizes]
        for method in CLUSTERED
    }

    def listed(method: str) -> str:
        return " ".join(f"{value:+.0f}" for value in than[method])

    few, much = sizes[0], sizes[-1]
    crosses = at("ncut/plain", FALSE, few) < at("rassoc/plain", FALSE, few) and (
        at("ncut/plain", FALSE, much) > at("rassoc/plain", FALSE, much)
    )
    notes.append(
        "The paper: NCut has fewer false positives with a moderate number of subscriptions, RAssoc with "
        f"many: {verdict(crosses)}. Per cent fewer than CK, for {' '.join(f'{n:,}' for n in sizes)}: "
        + "; ".join(f"{method} {listed(method)}" for method in CLUSTERED if method != "centroid")
        + f". With {last:,}, direct has clusters of at most {at(OWN, 'balance'):.2f} times the mean, CK of "
        f"{at('centroid', 'balance'):.2f}."
    )
    return [*notes, *size_note(_fixed(params))]


FIGURE_4 = Experiment(
    "time, load and quality of clusters by groups, up to 32,000 subscriptions",
    _figure_4,
    {
        **PAPER,
        "subscriptions": 2000,
        "levels": [1, 2, 3, 4],
        "landmarks": [0.1, 0.25, 0.5],
        "dimensions": 50,
        "sizes": [4000, 8000, 16_000, MANY],
        "members": 500,
        "share": 0.25,
        "clusters": 50,
    },
    {"subscriptions": 500, "learn": 1000, "events": 300, "levels": [1, 2, 3], "landmarks": [0.25, 0.5],
     "dimensions": 10, "sizes": [500, 1000, 2000], "members": 125, "clusters": 20},
)  # fmt: skip
