"""Figure 3 (a) to (j): accuracy of coordinates that groups compute, and quality of clusters from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from narrowcast.errors import ParameterError
from narrowcast.lab.papers.base import Experiment, Outcome, ResultRow
from narrowcast.lab.papers.tariq2012.histories import (
    FALSE,
    PAPER,
    SMALL,
    SPECTRAL,
    WORKLOADS,
    FoundClusters,
    SeedHistories,
    caption_of,
    numbers_of,
    planner_of,
    points_of,
    size_note,
    space_of,
    verdict,
)
from narrowcast.lab.papers.tariq2012.quality import OWN, RESTARTS, JudgedHistories
from narrowcast.lab.spectral import merging
from narrowcast.lab.spectral.fidelity import apart, neighbourhood, stress
from narrowcast.lab.spectral.hierarchy import CoordinateTable, Hierarchy, embedded, tabled
from narrowcast.lab.spectral.quality import balance
from narrowcast.lab.spectral.similarity import similarity
from narrowcast.lab.spectral.tree import GroupTree
from narrowcast.lab.sweep import Sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from narrowcast.lab.papers.base import Study
    from narrowcast.lab.spectral.space import EmbeddingSpace
    from narrowcast.lab.sweep import Record

#: Fixed values of the other axes: groups of the lowest level, the share of landmarks, and levels.
GROUPS, LANDMARKS, LEVELS = 8, 0.3, 2
#: Sources of coordinates: each group's own matrix, as published, or one table of landmarks for all groups.
WAYS: dict[str, Callable[..., Hierarchy | CoordinateTable]] = {"faithful": embedded, "table": tabled}
#: Centres from a sample, from groups that start with those of the group above, or from independent groups.
CLUSTERINGS = ("sampled", "hierarchical", "hp2pc")
#: Setting in which clusters are compared with ideal ones.
JUDGED = ("m1", "m2")
#: Metrics of coordinates, and of clusters.
FIDELITY = ("hscore", "trustworthiness", "continuity", "stress", "stress_scaled")
CLUSTERS = (FALSE, "balance", "entropy", "accuracy")
#: Metrics that tables omit.
BESIDE = ("trustworthiness", "continuity", "stress", "balance")


def settings(params: Any) -> Iterator[tuple[str, float, dict[str, Any]]]:
    """Yield axis, position and options of the hierarchy; landmarks vary with two and with three levels."""
    plain = {"groups": GROUPS, "landmarks": LANDMARKS, "levels": LEVELS}
    for count in params["groups"]:
        yield "groups", count, {**plain, "groups": count}
    for levels in (LEVELS, LEVELS + 1):
        axis = "landmarks" if levels == LEVELS else f"landmarks/{levels}"
        for share in params["landmarks"]:
            yield axis, share, {**plain, "landmarks": share, "levels": levels}
    for levels in params["levels"]:
        yield "levels", levels, {**plain, "levels": levels}


def _embed(
    histories: SeedHistories, *, method: str, way: str, seed: int, history: int, dimensions: int, kappa: int,
    groups: list[int], landmarks: list[float], levels: list[int], **_: Any
) -> list[Record]:  # fmt: skip
    """Return the accuracy of coordinates along each axis."""
    rows = histories.rows(history)
    alike = similarity(rows).toarray()
    space = space_of(f"{method}/plain", dimensions)
    done: dict[tuple[Any, ...], Record] = {}
    found: list[Record] = []
    for axis, x, given in settings({"groups": groups, "landmarks": landmarks, "levels": levels}):
        at = tuple(given.values()) if given["levels"] > 1 else (1,)
        if at not in done:
            coordinates = _coordinates(space, rows, way, given, seed)
            near = neighbourhood(apart(alike), coordinates, kappa)
            done[at] = {
                "hscore": near.hscore,
                "trustworthiness": near.trustworthiness,
                "continuity": near.continuity,
            }
            if method == "rassoc":
                far = stress(alike, coordinates)
                done[at] |= {"stress": far.plain, "stress_scaled": far.scaled}
        found.append({"axis": axis, "x": x, **done[at]})
    return found


def _coordinates(space: EmbeddingSpace, rows: Any, way: str, given: dict[str, Any], seed: int) -> Any:
    """Return the coordinates of rows, computed by a hierarchy or, with one level, at once."""
    if given["levels"] == 1:
        return space.frame(rows).own
    tree = GroupTree.of(rows, **given, least=space.dimensions + 1, seed=seed)
    return WAYS[way](space, rows, tree).coordinates


def _merge(
    histories: SeedHistories, *, method: str, clustering: str, seed: int, history: int, dimensions: int,
    clusters: int, landmarks: list[float], levels: list[int], **_: Any
) -> list[Record]:  # fmt: skip
    """Return the false positives of clusters along landmarks and levels."""
    found: list[Record] = []
    for axis, x, given in _hierarchies(landmarks, levels):
        planner = planner_of(
            histories, method, clusters, seed=seed, history=history, dimensions=dimensions, offset=False,
            clustering=clustering, **given
        )  # fmt: skip
        label = histories.label(planner)
        false = histories.false_positives(label)
        found.append({"axis": axis, "x": x, FALSE: false, "balance": balance(label, clusters)})
    return found


def _hierarchies(landmarks: list[float], levels: list[int]) -> Iterator[tuple[str, float, dict[str, Any]]]:
    """Yield the settings along landmarks and levels that have a hierarchy."""
    for axis, x, given in settings({"groups": [], "landmarks": landmarks, "levels": levels}):
        if given["levels"] > 1 and axis in ("landmarks", "levels"):
            yield axis, x, given


def _judge(
    judged: JudgedHistories, *, method: str, clustering: str, seed: int, history: int, dimensions: int,
    ideal: int, landmarks: list[float], levels: list[int], **_: Any
) -> list[Record]:  # fmt: skip
    """Return the similarity of the clusters of groups to ideal ones along landmarks and levels."""
    rows, space = judged.histories.rows(history), space_of(method, dimensions)
    found: list[Record] = []
    for axis, x, given in _hierarchies(landmarks, levels):
        tree = GroupTree.of(rows, **given, least=dimensions + 1, seed=seed)
        hierarchy = embedded(space, rows, tree)
        points = [[points_of(method, each) for each in level] for level in hierarchy.levels]
        rng = np.random.default_rng(seed)
        means = getattr(merging, clustering)(points, tree.parents, ideal, rng=rng, restarts=RESTARTS)
        label = np.empty(rows.shape[0], np.int64)
        for group, own in zip(tree.levels[0], means.label, strict=True):
            label[group.members] = own
        found.append({"axis": axis, "x": x, **judged.quality(label)})
    return found


def _own(*, seed: int, clusters: int, ideal: int, history: int, **given: Any) -> list[Record]:
    """Return the same for the product's own method, which has no hierarchy."""
    zipf = SeedHistories.make(seed=seed, workload="zipf", **given)
    label = zipf.label(planner_of(zipf, OWN, clusters, seed=seed, history=history))
    deliveries = {FALSE: zipf.false_positives(label), "balance": balance(label, clusters)}
    found: list[Record] = [{"workload": "zipf", **deliveries}]
    for workload in JUDGED:
        judged = JudgedHistories.make(seed=seed, workload=workload, ideal=ideal, **given)
        found.append({"workload": workload, **judged.own(ideal, seed=seed, history=history)})
    return found


def _figure_3(study: Study) -> Outcome:
    """Run the experiments on coordinates and on clusters."""
    params = dict(study.params)
    _check(params)
    workloads, found = params.pop("workloads"), FoundClusters()
    grid: dict[str, Any] = {"workload": workloads, "method": ["rassoc", "ncut"], "way": list(WAYS)}
    sweep = Sweep(_embed, grid, study.seeds, params, setup=SeedHistories.make, by=["workload"])
    for row in study.run(sweep).rows:
        series = f"{row['method']}/{row['way']}/{row['workload']}/{row['axis']}"
        found.add(series, row["x"], numbers_of(row, FIDELITY))
    grid = {"workload": ["zipf"], "method": list(SPECTRAL), "clustering": list(CLUSTERINGS)}
    sweeps = [Sweep(_merge, grid, study.seeds, params, setup=SeedHistories.make, by=["workload"])]
    grid = {**grid, "workload": list(JUDGED)}
    sweeps.append(Sweep(_judge, grid, study.seeds, params, setup=JudgedHistories.make, by=["workload"]))
    for sweep in sweeps:
        for row in study.run(sweep).rows:
            series = f"{row['method']}/{row['clustering']}/{row['workload']}/{row['axis']}"
            found.add(series, row["x"], numbers_of(row, CLUSTERS))
    for row in study.run(Sweep(_own, {}, study.seeds, params)).rows:
        found.add(f"{OWN}/{row['workload']}", None, numbers_of(row, CLUSTERS))
    rows = found.rows()
    shown, beside = ([row for row in rows if (row.metric in BESIDE) == hidden] for hidden in (False, True))
    charts = {"tariq2012-figure-3": (_records(rows, params), caption_of(params, len(study.seeds)))}
    notes = [*_claims(found, params, workloads), *_cluster_claims(found, params)]
    return Outcome(shown, charts, [*notes, *size_note(params)], beside)


def _check(params: dict[str, Any]) -> None:
    """Refuse settings without a possible hierarchy."""
    for name in params["workloads"]:
        if name not in WORKLOADS:
            raise ParameterError(parameter="workloads", value=name, limit=f"some of {', '.join(WORKLOADS)}")
    if 2 * params["kappa"] >= params["subscriptions"]:
        raise ParameterError(
            parameter="kappa",
            value=params["kappa"],
            limit=f"less than half of the {params['subscriptions']} subscriptions",
        )


def _records(rows: list[ResultRow], params: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the points of the figure; `direct` is a horizontal line."""
    points: list[dict[str, Any]] = []
    ends = {axis: [min(params[axis]), max(params[axis])] for axis in ("landmarks", "levels")}
    ends["levels"][0] = max(ends["levels"][0], min(LEVELS, ends["levels"][1]))
    for row in rows:
        kind = "clusters" if row.metric in (FALSE, "entropy") else "coordinates"
        if row.metric not in ("hscore", "stress_scaled", FALSE, "entropy"):
            continue
        point: dict[str, Any] = {"kind": kind, "metric": row.metric, "value": row.measured}
        if row.series.startswith(OWN):
            for axis, places in ends.items():
                for scaling in ("plain", "row"):
                    for method in ("rassoc", "ncut"):
                        at: dict[str, Any] = {"workload": row.series.removeprefix(f"{OWN}/")}
                        at |= {"axis": axis, "clustering": OWN, "method": method, "scaling": scaling}
                        points += [point | at | {"x": x} for x in places]
            continue
        series, three, _ = row.series.partition(f"/{LEVELS + 1}")
        method, *what, workload, axis = series.split("/")
        axis += three
        point |= {"method": method, "workload": workload, "axis": axis, "x": row.x}
        if kind == "clusters":
            point |= {"scaling": what[0], "clustering": what[1]}
        else:
            point |= {"way": what[0]}
        points.append(point)
    return points


def _claims(found: FoundClusters, params: dict[str, Any], workloads: list[str]) -> list[str]:
    """Return notes that compare the paper's claims on coordinates with the results."""
    first = workloads[0]

    def along(method: str, way: str, axis: str, metric: str = "hscore") -> list[float]:
        name = axis.partition("/")[0]
        return [found.mean(f"{method}/{way}/{first}/{axis}", x, metric) for x in params[name]]

    def listed(values: list[float]) -> str:
        return " ".join(f"{value:.2f}" for value in values)

    notes = []
    for axis, says in (
        ("groups", "close to the centralised one with two levels, and slightly less with more groups"),
        ("landmarks", "rises with the share of landmarks"),
        ("landmarks/3", "rises more so with three levels"),
        ("levels", "falls with the number of levels, slightly up to four with 30 % landmarks"),
    ):
        places = " ".join(f"{x:g}" for x in params[axis.partition("/")[0]])
        numbers = "; ".join(
            f"{method} {listed(along(method, 'faithful', axis))}, by one table "
            f"{listed(along(method, 'table', axis))}"
            for method in ("rassoc", "ncut")
        )
        notes.append(f"The paper: accuracy {says}. HScore here, {first}, {axis} {places}: {numbers}.")
    if 1 in params["levels"]:
        ends = {method: along(method, "faithful", "levels") for method in ("rassoc", "ncut")}
        lost = {method: values[0] - values[-1] for method, values in ends.items()}
        table = {method: along(method, "table", "levels") for method in ends}
        table_loss = {method: values[0] - values[-1] for method, values in table.items()}
        notes.append(
            f"From one level to {max(params['levels'])} HScore falls by {lost['rassoc']:.2f} by ratio "
            f"association and by {lost['ncut']:.2f} by normalised cut: the trend is the paper's, 'slightly' "
            f"is {verdict(max(lost.values()) < 0.05)}. With one table of the root's landmarks, which all "
            f"groups get, it falls by {table_loss['rassoc']:.2f} and {table_loss['ncut']:.2f}: the more "
            "levels, the fewer landmarks the table has."
        )
    notes.append(
        f"A group has at least {params['dimensions'] + 1} landmarks, one more than coordinates, as the paper "
        "asks: where groups are small the share is more than it says, and many groups do not lose more."
    )
    if {"m1", "m2"} <= set(workloads) and 1 in params["levels"]:
        central = {
            (name, metric): found.mean(f"rassoc/faithful/{name}/levels", 1, metric)
            for name in ("m1", "m2")
            for metric in ("stress", "hscore")
        }
        notes.append(
            "The paper: M2 is embedded better than M1. Here the stress of all rows together is "
            f"{central['m2', 'stress']:.3f} with M2 and {central['m1', 'stress']:.3f} with M1, "
            f"{verdict(central['m2', 'stress'] < central['m1', 'stress'])}; HScore "
            f"{central['m2', 'hscore']:.2f} and {central['m1', 'hscore']:.2f}, "
            f"{verdict(central['m2', 'hscore'] > central['m1', 'hscore'])}: with M2 many similarities are "
            "equal, and who is the nearer of equals is chance."
        )
    return notes


def _cluster_claims(found: FoundClusters, params: dict[str, Any]) -> list[str]:
    """Return notes that compare the paper's claims on k-means by groups with the results."""
    notes = []
    for workload, metric, unit in (
        ("zipf", FALSE, "false positives"),
        *((name, "entropy", "entropy") for name in JUDGED),
    ):
        wins, of = dict.fromkeys(("sampled", "hierarchical"), 0), 0
        for method in SPECTRAL:
            for axis in ("landmarks", "levels"):
                for x in params[axis]:
                    if axis == "levels" and x < LEVELS:
                        continue
                    of += 1
                    least = found.mean(f"{method}/hp2pc/{workload}/{axis}", x, metric)
                    for name in wins:
                        wins[name] += found.mean(f"{method}/{name}/{workload}/{axis}", x, metric) < least
        notes.append(
            f"The paper: both of its k-means beat HP2PC. By {unit} ({workload}) the sampling method is "
            f"better in {wins['sampled']} of {of} settings here, the hierarchical one in "
            f"{wins['hierarchical']}: {verdict(min(wins.values()) > 0.8 * of)}."
        )
    notes.append(
        "With M2 the graph of who shares events is in parts, about one for each hotspot. A group is to hang "
        "together, so that landmarks are of its largest part; who is in another is alike to no landmark, and "
        "all such of a group have the same coordinates. So hierarchies lose clusters there that one level "
        "finds."
    )
    own = found.mean(f"{OWN}/zipf", None, FALSE)
    best = min(
        float(np.mean(numbers))
        for (series, _, metric), numbers in found.values.items()
        if metric == FALSE and not series.startswith(OWN)
    )
    notes.append(
        f"direct, our own, needs no coordinates and has {own:.0f} false positives an event, the best of all "
        f"these {best:.0f}."
    )
    return notes


FIGURE_3 = Experiment(
    "accuracy of coordinates from groups; k-means by a sample, by groups, and HP2PC",
    _figure_3,
    {
        **PAPER,
        "dimensions": 20,
        "kappa": 50,
        "groups": [2, 4, 8, 16, 32],
        "landmarks": [0.1, 0.2, 0.3, 0.5],
        "levels": [1, 2, 3, 4],
        "workloads": ["m1", "m2", "zipf"],
        "clusters": 50,
        "ideal": 5,
    },
    {**SMALL, "groups": [4, 8], "landmarks": [0.2, 0.5], "levels": [1, 2, 3], "clusters": 20,
     "dimensions": 10, "kappa": 20, "workloads": ["m1", "m2"]},
)  # fmt: skip
