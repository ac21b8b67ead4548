"""`rassoc` and `ncut` on Spark: what the driver finds with the same groups, however tables are cut."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.spatial.distance import cdist

from narrowcast.errors import ParameterError
from narrowcast.lab.spark.spectral import grouped, levels_for, parts_of, spectral_clusters
from narrowcast.lab.spark.spectral_levels import LevelShape, SpectralLevels, points_in
from narrowcast.lab.spark.spectral_means import Chart, settled
from narrowcast.lab.spectral import Ncut, Rassoc
from narrowcast.lab.spectral.kmeans import kmeans
from narrowcast.lab.spectral.parts import ConnectedParts
from narrowcast.lab.spectral.points import SpectralPoints
from narrowcast.lab.spectral.space import Association, EmbeddingSpace, SpaceCut
from narrowcast.lab.spectral.tree import sizes
from narrowcast.model.artefact import read_plan
from narrowcast.model.interest import Interest
from narrowcast.model.relation import recent, relation
from narrowcast.spark.planning.interest_rows import flows_of, rows_of
from narrowcast.spark.planning.plan import make_plan
from narrowcast.spark.stages.interest import InterestFrames
from narrowcast.workloads import Hotspots
from support.command import document
from support.errors import refused

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def matched(n: int, n_events: int, seed: int = 3) -> Any:
    """Who matched which event of the paper's workload."""
    workload = Hotspots(n_subscriptions=n, n_events=n_events, seed=seed)
    (lo, hi), events = workload.ends(), workload.values()
    return ((events > lo[:, None]) & (events <= hi[:, None])).all(axis=2)


def named(wants: Any) -> Interest:
    wants = np.asarray(wants)
    return Interest(wants, subscribers=pa.array([f"s{i:04d}" for i in range(len(wants))]))


def frames_of(spark: SparkSession, interest: Interest, partitions: int = 2) -> InterestFrames:
    interests, rates = (spark.createDataFrame(table) for table in interest.to_tables())
    subscribers = spark.createDataFrame(pa.table({"subscriber": interest.subscribers}))
    return InterestFrames(
        interests.repartition(partitions), rates, "events", subscribers=subscribers.repartition(partitions)
    )


def wanted(spark: SparkSession, interest: Interest, partitions: int = 2) -> DataFrame:
    """What each subscriber wants, as rows, without those who want nothing."""
    frames = frames_of(spark, interest, partitions)
    flows, _ = flows_of(frames)
    return rows_of(frames, spark.sparkContext.broadcast(flows))


def groups_of(rows: DataFrame, interest: Interest, n_groups: int, seed: int = 0) -> Any:
    """The group of each subscriber on Spark, 0 for those who want nothing."""
    table = grouped(rows, n_groups, seed).select("subscriber", "group").toArrow()
    found = dict(zip(table["subscriber"].to_pylist(), table["group"].to_pylist(), strict=True))
    return np.array([found.get(name, 0) for name in interest.subscribers.to_pylist()])


def channels_of(
    spark: SparkSession, interest: Interest, planner: Any, partitions: int = 2, **given: Any
) -> Any:
    """The channel of each subscriber, planned on Spark."""
    frames = frames_of(spark, interest, partitions)
    with spectral_clusters(frames, planner, **{"limit": 10_000, **given}) as found:
        plan = found.plan()
        assert (
            found.tally.size.tolist() == np.bincount(plan.listens.indices, minlength=plan.n_channels).tolist()
        )
        sent = found.tally.size[plan.carries.indices]
        assert found.cost == sent.sum()
    plan.validate(interest)
    assert plan.subscribers.to_pylist() == interest.subscribers.to_pylist()
    assert (np.diff(plan.listens.indptr) == 1).all()
    return plan.listens.indices


@pytest.mark.parametrize(
    ("method", "way"),
    [
        pytest.param(Ncut, {"levels": 3}, marks=pytest.mark.slow),
        pytest.param(
            Rassoc, {"levels": 3, "clustering": "hierarchical", "history": 9}, marks=pytest.mark.slow
        ),
        pytest.param(
            Rassoc, {"levels": 2, "clustering": "hp2pc", "similarity": "jaccard"}, marks=pytest.mark.slow
        ),
        pytest.param(
            Ncut, {"levels": 2, "clustering": "sampled", "normalise": False}, marks=pytest.mark.slow
        ),
        (Ncut, {"levels": 2, "table": True}),
    ],
    ids=["ncut", "hierarchical", "hp2pc", "sampled", "table"],
)
def test_the_same_groups_have_the_same_clusters_as_on_the_driver(
    spark: SparkSession, method: Any, way: dict[str, Any]
) -> None:
    interest = named(matched(300, 60))
    some = np.flatnonzero(np.diff(interest.wants.indptr))
    assert len(some) < 300  # others have matched nothing
    given = {"channels": 7, "groups": 6, "landmarks": 0.4, "dimensions": 5, "seed": 2, **way}
    group = groups_of(wanted(spark, interest), interest, 6, seed=2)
    own = method(**given).fit_groups(interest, group)
    found = channels_of(spark, interest, method(**given))
    assert found[some].tolist() == own.plan_.listens.indices[some].tolist()
    assert np.bincount(found, minlength=7).tolist() == own.size_.tolist()


@pytest.mark.slow
def test_it_does_not_matter_how_tables_are_cut(spark: SparkSession) -> None:
    """Also where centres are found from a sample, and then from sums over all rows."""
    interest = named(matched(300, 60))
    planner = Rassoc(channels=7, dimensions=5, groups=3)
    one, other = (channels_of(spark, interest, planner, n, sample=90) for n in (1, 5))
    assert one.tolist() == other.tolist()
    assert len(set(one.tolist())) == 7


def levels_of(
    spark: SparkSession, wants: Any, space: EmbeddingSpace, groups: int, landmarks: float
) -> SpectralLevels:
    """Levels of those who want something, two of them."""
    rows = wanted(spark, named(wants)).persist()
    parts = parts_of(rows, wants.shape[1], None)
    shape = LevelShape(space, wants.shape[1], None, landmarks, 6, 0, sizes(groups, landmarks, 2))
    levels = SpectralLevels(grouped(rows, groups, 0), shape, parts)
    levels.climb()
    return levels


@pytest.mark.parametrize("space", [Association(dimensions=5), SpaceCut(dimensions=5)], ids=["rassoc", "ncut"])
def test_one_group_with_all_landmarks_equals_the_centralised_result(
    spark: SparkSession, space: EmbeddingSpace
) -> None:
    wants = matched(120, 40)
    wants = wants[wants.any(axis=1)]
    central = space.frame(relation(wants)).own
    levels = levels_of(spark, wants, space, 1, 1.0)
    levels.project()
    found = points_in(levels.placed[0].toArrow().sort_by("subscriber"), levels.dimensions)
    levels.close()
    assert cdist(found, found) == pytest.approx(cdist(central, central), abs=1e-6)


def test_sums_over_all_rows_move_centres_as_k_means_does(spark: SparkSession) -> None:
    wants = matched(200, 50)
    wants = wants[wants.any(axis=1)]
    rows = relation(wants)
    levels = levels_of(spark, wants, Association(dimensions=4), 3, 0.5)
    levels.compare()
    try:
        parts = ConnectedParts.of(rows)
        table = levels.placed[0].toArrow().sort_by("subscriber")
        assert table["part"].to_pylist() == parts.row.tolist()
        chart = Chart(SpectralPoints(normalise=True, longest=1.0, columns=2), parts, levels.dimensions)
        points, led = chart.of(table)
        start = points[led][::40]
        whole = kmeans(points[led], len(start), rng=np.random.default_rng(0), start=start)
        found = settled(levels, chart, start, len(points), least=0.0)
    finally:
        levels.close()
    assert found == pytest.approx(whole.centre, abs=1e-9)


def test_parts_of_workers_are_joined(spark: SparkSession) -> None:
    """Chains that no worker has whole; of parts of one size, the first is that of the first name."""
    rng = np.random.default_rng(1)
    chain = np.eye(12, dtype=bool) | np.eye(12, k=1, dtype=bool)
    chain[[3, 7, 9], [4, 8, 10]] = False
    wants = np.repeat(chain, 3, axis=0)[rng.permutation(36)]
    expected = ConnectedParts.of(relation(wants))
    found = parts_of(wanted(spark, named(wants), 6), 12, None)
    assert found.event.tolist() == expected.event.tolist()
    assert found.size.tolist() == expected.size.tolist()
    last = ConnectedParts.of(recent(relation(wants), 1))
    assert parts_of(wanted(spark, named(wants), 6), 12, 1).event.tolist() == last.event.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "wants", "given"),
    [
        (Ncut, np.repeat(np.eye(6), [5, 1, 1, 9, 2, 2], axis=0), {}),
        (Rassoc, np.eye(9)[:2], {}),
        (Ncut, np.eye(7), {"levels": 2, "groups": 2, "clustering": "hierarchical"}),
        (Rassoc, np.ones((9, 5)), {"levels": 3, "groups": 4}),
        (Ncut, np.ones((9, 1)), {"clustering": "sampled"}),
        (Rassoc, matched(80, 30), {"levels": 2, "groups": 4, "landmarks": 0.05}),
        (Rassoc, np.zeros((5, 3)), {}),
        (Ncut, np.zeros((0, 3)), {}),
    ],
    ids=[
        "disconnected",
        "more channels than subscribers",
        "nothing shared",
        "all histories equal",
        "one event only",
        "landmarks fewer than dimensions",
        "nothing wanted",
        "no subscribers",
    ],
)
def test_odd_interests(spark: SparkSession, method: Any, wants: Any, given: dict[str, Any]) -> None:
    interest = named(wants)
    label = channels_of(spark, interest, method(channels=4, **given))
    size = np.bincount(label, minlength=min(4, len(wants)))
    if not np.asarray(wants).any(axis=0).all() or len(wants) == 7:  # those who share nothing are spread
        assert size.max(initial=0) - size.min(initial=9) <= 1
    if method is Rassoc and len(wants) == 9:  # by normalised cut they have coordinates, though no good ones
        assert np.count_nonzero(size) == 1
    if len(wants) == 20:  # each of the three large parts has a channel of its own
        part = np.asarray(wants).argmax(axis=1)
        assert len({(a, b) for a, b in zip(part, label, strict=True) if a in (0, 3)}) == 2
        assert label[0] != label[7]


def test_levels_are_as_many_as_the_root_asks_for() -> None:
    open_ = Rassoc(channels=9)
    assert levels_for(open_, 10_000, 500_000, 1_000_000) == 2
    assert levels_for(open_, 1_000_000, 5_000_000, 10**9) == 5  # 8,100 landmarks, not 27,000
    assert levels_for(open_, 3000, 300_000, 10) == 2  # so few rows come in any case
    assert levels_for(Ncut(channels=9, table=True, landmarks=0.1), 100_000, 5_000_000, 60_000) == 3
    assert levels_for(Ncut(channels=9, landmarks=1.0), 900, 90_000, 10) == 2
    with refused(ParameterError, "2 levels", "900,000", "100,000", parameter="landmarks", value=1.0):
        levels_for(Rassoc(channels=9, landmarks=1.0), 90_000, 900_000, 100_000)


@pytest.mark.slow
def test_above_the_limit_it_is_planned_on_spark(spark: SparkSession) -> None:
    frames = frames_of(spark, named(matched(120, 40)))
    planned = make_plan(frames, "rassoc", channels=5, params={"dimensions": 6}, limit=100)
    assert (planned.path, planned.method, planned.plan.n_subscribers) == ("spark", "rassoc", 120)
    note = "above the limit rassoc compares all subscribers with one table of landmarks"
    assert planned.note.startswith(note)
    how = dict(planned.how)
    assert how == {
        "where": "spark",
        "limit": 100,
        "table": True,
        "levels": 2,
        "groups": 1,
        "groups_by_level": [1, 1],
        "landmarks": 0.3,
    }
    # With what it says, the same comes out again.
    params = {"dimensions": 6, **{name: how[name] for name in ("table", "levels", "groups", "landmarks")}}
    again = make_plan(frames, "rassoc", channels=5, params=params, limit=100)
    assert again.plan == planned.plan


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ncut", "direct"])
def test_only_those_who_want_something_are_known(spark: SparkSession, method: str) -> None:
    """As with topics: no table lists subscribers without interest."""
    wants = matched(60, 20)
    frames = replace(frames_of(spark, named(wants)), subscribers=None)
    planned = make_plan(frames, method, channels=3, limit=30)
    assert (planned.path, planned.note != "") == ("spark", method == "ncut")
    assert planned.plan.n_subscribers == np.count_nonzero(wants.any(axis=1)) < 60


@pytest.mark.slow
def test_the_command_says_what_it_does_instead(tmp_path: Path) -> None:
    workload = Hotspots(n_subscriptions=80, n_events=40, matched=0.02, seed=1)
    for name, table in workload.tables().items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    found, said = document(
        "plan", "--subscriptions", tmp_path / "subscriptions.parquet", "--events",
        tmp_path / "events.parquet", "--method", "ncut", "--channels", "4", "--limit", "20", "--out",
        tmp_path / "plan",
    )  # fmt: skip
    assert (found["method"], found["path"]) == ("ncut", "spark")
    assert "above the limit ncut compares all subscribers with one table of landmarks (table=true)" in said
    plan, info = read_plan(tmp_path / "plan")
    assert info.flow_space == "events"
    assert [info.params[name] for name in ("where", "limit", "table", "levels")] == ["spark", 20, True, 2]
    assert np.diff(plan.listens.indptr).tolist() == [1] * 80
