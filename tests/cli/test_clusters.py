"""Clusters of subscribers as a command: going on from earlier ones, and data that is odd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from narrowcast.model.artefact import read_plan, write_plan
from narrowcast.model.interest import Interest
from narrowcast.model.ownership import placed
from narrowcast.model.plan import ChannelPlan
from narrowcast.planning.subscribers.direct import Direct
from narrowcast.workloads.hotspots import Hotspots
from support.command import document, outcome, refusal, shows, table_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

METHODS = ("direct", "rassoc", "ncut", "centroid", "box-overlap")
WORKLOAD = Hotspots(n_subscriptions=60, n_events=200, moves=100, per_subscriber=2, seed=4)


@pytest.fixture(scope="module")
def data(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with subscriptions, events before and after hotspots move, and plans for the first."""
    folder = tmp_path_factory.mktemp("hotspots")
    tables = WORKLOAD.tables()
    pq.write_table(tables["subscriptions"], folder / "s.parquet")
    for name, rows in (("before", tables["events"][:100]), ("after", tables["events"][100:])):
        pq.write_table(rows, folder / f"{name}.parquet")
    words = ("--method", "direct", "--channels", "6", "--cost", "false-positives")
    document("plan", *inputs(folder, "before"), *words, "--out", folder / "old")
    document("plan", *inputs(folder, "before"), *words, "--by", "subscription", "--out", folder / "finer")
    return folder


def inputs(folder: Path, events: str) -> list[Any]:
    return ["--subscriptions", folder / "s.parquet", "--events", folder / f"{events}.parquet"]


def interest_of(plan: ChannelPlan, *, by: str) -> Interest:
    """The interest in the later events, with the names of a plan, computed in this process."""
    (lo, hi), points = WORKLOAD.ends(), WORKLOAD.values()[100:]
    matched = np.asarray(((points[:, None] > lo) & (points[:, None] <= hi)).all(axis=2)).T
    wanted = matched.any(axis=0)
    table = WORKLOAD.tables()["subscriptions"]
    if by == "subscription":
        return Interest(matched[:, wanted], subscribers=table["subscription_id"].combine_chunks())
    names = plan.subscribers.to_pylist()
    row = np.array([names.index(name) for name in table["subscriber"].to_pylist()])
    theirs = np.stack([matched[row == i].any(axis=0) for i in range(len(names))])
    return Interest(theirs[:, wanted], subscribers=plan.subscribers)


@pytest.mark.slow
def test_going_on_from_clusters(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "next"
    words = ("--from", data / "old", "--set", "moves=8")  # of clusters: auto is direct
    found, _ = document("plan", *inputs(data, "after"), *words, "--out", out)
    old, plan = read_plan(data / "old")[0], read_plan(out)[0]
    by_hand = Direct(start=old, moves=8).fit(interest_of(old, by="subscriber"))
    assert plan.listens.toarray().tolist() == by_hand.plan_.listens.toarray().tolist()
    assert found["succession"] == by_hand.report_.succession._asdict()  # type: ignore[union-attr]
    moved = int(np.count_nonzero(old.listens.indices != plan.listens.indices))
    assert (found["method"], found["moved"], moved <= 4, found["succession"]["known"]) == (
        *("direct", moved, True, 30),
    )
    assert found["succession"]["cost"] < found["succession"]["kept"]
    # Each of them joins a group and then leaves one; events are others each time, and none is switched.
    assert found["migration"] == {"join": moved, "leave": moved}
    steps = pq.read_table(out / "migration.parquet")
    assert steps["action"].to_pylist() == ["join"] * moved + ["leave"] * moved
    assert found["memberships_on_the_way"] == 2
    assert found["balance"] == pytest.approx(plan.members().max() / 5)
    params = read_plan(out)[1].params
    assert (params["from"], params["moves"], params["channels"]) == (str(data / "old"), 8, None)

    # Any number of moves, in words; and what `evaluate` says of the balance.
    said = outcome(
        "plan", *inputs(data, "after"), "--method", "ncut", "--cost", "false-positives",
        "--from", data / "old", "--out", tmp_path / "cut",
    )  # fmt: skip
    cut = read_plan(tmp_path / "cut")[0]
    moved = int(np.count_nonzero(old.listens.indices != cut.listens.indices))
    assert f"{moved} of 30 subscribers moved" in said.stdout
    assert f" {2 * moved} groups joined and left" in said.stdout
    assert ["members of the largest channel / mean", f"{cut.members().max() / 5:.2f}"] in table_of(
        said.stdout
    )
    assert "messages than without moves" not in said.stderr
    said = outcome("evaluate", tmp_path / "cut", *inputs(data, "after"), "--cost", "false-positives")
    assert f"The largest channel has {cut.balance():.2f} times the mean number of members\n" in said.stdout
    assert "False positives per event\n" in said.stdout


@pytest.mark.slow
def test_going_on_from_clusters_of_subscriptions(data: Path, tmp_path: Path) -> None:
    words = ("--method", "direct", "--cost", "false-positives", "--by", "subscription", "--set", "moves=10")
    out = tmp_path / "next"
    found, _ = document("plan", *inputs(data, "after"), *words, "--from", data / "finer", "--out", out)
    old, plan = read_plan(data / "finer")[0], read_plan(out)[0]
    by_hand = Direct(start=placed(old), moves=10).fit(interest_of(old, by="subscription"))
    assert placed(plan).listens.indices.tolist() == by_hand.plan_.listens.indices.tolist()
    assert found["succession"] == by_hand.report_.succession._asdict()  # type: ignore[union-attr]
    assert 0 < found["moved"] <= 5
    diff, _ = document("diff", data / "finer", out)
    assert diff["subscriptions"]["moved"] == found["moved"]
    # Subscriptions move, and their subscribers join and leave, who may be in both clusters anyway.
    said = outcome(
        "plan", *inputs(data, "after"), *words[:-2], "--from", data / "finer", "--out", tmp_path / "any"
    )
    whole = read_plan(tmp_path / "any")[0]
    changed = abs(whole.listens.toarray().astype(int) - old.listens.toarray()).sum()
    moved = np.count_nonzero(placed(whole).listens.indices != placed(old).listens.indices)
    assert 0 < changed < 2 * moved
    assert f"{moved} of 60 subscriptions moved" in said.stdout
    assert f" {changed} groups joined and left by subscribers" in said.stdout
    assert "steps, by subscriber" in said.stdout
    assert "messages received by clusters, by subscription" in said.stdout


@pytest.mark.slow
def test_it_is_said_when_moving_costs_more(data: Path, tmp_path: Path) -> None:
    """What direct has found for the same events is cheaper than what ncut finds."""
    words = ("--method", "ncut", "--cost", "false-positives", "--from", data / "old", "--out", tmp_path / "p")
    found, said = document("plan", *inputs(data, "before"), *words)
    kept, cost = found["succession"]["kept"], found["succession"]["cost"]
    assert cost > kept
    assert f"{100 * (cost / kept - 1):.2f} % more messages than without moves: ncut " in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (
            ["--from", "{data}/finer"],
            "finer",
        ),
        (
            ["--from", "{data}/old", "--by", "subscription"],
            "old by subscription",
        ),
        (["--from", "{data}/topics"], "topics from"),
        (["--from", "{data}/old", "--channels", 3], "channels 3 from"),
        (["--from", "{data}/several"], "from ann"),
        (["--from", "{data}/others"], "from"),
        (["--channels", 3, "--set", "moves=3"], "moves 3"),
        (
            ["--from", "{data}/old", "--method", "centroid", "--channels", 6],
            "from method centroid",
        ),
        (["--from", "{data}/old", "--limit", 9], "from"),
        (
            ["--from", "{data}/old", "--method", "ncut", "--set", "moves=3"],
            "moves 3",
        ),
        (
            ["--from", "{data}/old", "--method", "joint"],
            "old from",
        ),
    ],
)
def test_what_is_refused(data: Path, tmp_path: Path, words: list[Any], shown: str) -> None:
    plans = {
        "topics": (ChannelPlan([[1]], [[1]]), "topics"),
        "several": (ChannelPlan([[1, 1]], [[1, 1]], subscribers=["ann"]), "events"),
        "others": (ChannelPlan([[1]], [[1]], subscribers=["nobody"]), "events"),
    }
    for name, (plan, space) in plans.items():
        if not (data / name).exists():
            write_plan(plan, data / name, method="direct", flow_space=space)  # type: ignore[arg-type]
    given = [str(word).format(data=data) for word in words]
    method = () if "--method" in given else ("--method", "direct")
    out = ("--cost", "false-positives", "--out", tmp_path / "plan")
    assert shows(refusal("plan", *inputs(data, "after"), *method, *given, *out), shown)
    assert not (tmp_path / "plan").exists()


# ------------------------------------------------------------------------------------------------ odd data


def compared(tmp_path: Path, filters: list[str], events: list[float], *words: Any) -> dict[Any, Any]:
    """Rows by method and channels, of tables that are written for it; no method fails."""
    n = len(filters)
    names = {"subscription_id": range(n), "subscriber": [f"s{i}" for i in range(n)], "filter": filters}
    pq.write_table(pa.table(names), tmp_path / "s.parquet")
    pq.write_table(
        pa.table({"event_id": range(len(events)), "x": pa.array(events, pa.float64())}),
        tmp_path / "e.parquet",
    )
    given = ("--subscriptions", tmp_path / "s.parquet", "--events", tmp_path / "e.parquet", "--no-replay")
    methods = () if "--methods" in words else ("--methods", ",".join(METHODS))
    found, _ = document("compare", *given, *methods, *words, "--out", tmp_path / "out")
    assert [row["problem"] for row in found["rows"] if row["problem"]] == []
    assert found["subscribers"] == n
    return {(row["method"], row["asked"]): row for row in found["rows"]}


def wrong(row: dict[str, Any]) -> float:
    total: float = row["costs"]["false-positives"]["total"]
    return total


@pytest.mark.slow
def test_parts_that_share_nothing_and_more_clusters_than_subscribers(tmp_path: Path) -> None:
    """Two pairs that share nothing with each other, and one who matched nothing, and is placed as well."""
    filters = ["x < 3", "x <= 2", "x > 5 AND x < 9", "x > 5 AND x <= 8", "x > 100"]
    found = compared(tmp_path, filters, [float(i) for i in range(10)], "--channels", "2,20")
    for method in METHODS:
        # Whoever matched nothing gets the three events of a pair; in a cluster of its own, none.
        assert wrong(found[method, 20]) == 0
        assert found[method, 20]["balance"] in (1.0, 1.2, 1.6)  # none, both or one of the pairs is together
    for method in ("direct", "rassoc", "ncut"):
        assert wrong(found[method, 2]) == 3
        assert found[method, 2]["balance"] == 3 / 2.5
    for method in (
        "centroid",
        "box-overlap",
    ):  # a box that is far away may have a cluster, and both pairs one
        assert wrong(found[method, 2]) in (3, 12)


@pytest.mark.slow
def test_all_histories_are_equal_and_of_one_event(tmp_path: Path) -> None:
    found = compared(tmp_path, ["x < 3"] * 6 + ["x < 4"], [1.0], "--channels", "3")
    for method in METHODS:
        assert wrong(found[method, 3]) == 0
        assert found[method, 3]["costs"]["false-positives"]["terms"]["receptions"] == 7


@pytest.mark.slow
def test_nobody_matched_anything(tmp_path: Path) -> None:
    found = compared(tmp_path, ["x > 100", "x > 200", "x < -1"], [1.0, 2.0], "--channels", "2")
    for method in METHODS:
        assert (wrong(found[method, 2]), found[method, 2]["channels"]) == (0, 0)
        assert found[method, 2]["balance"] in (1.0, 4 / 3)


@pytest.mark.slow
def test_landmarks_that_are_fewer_than_dimensions(tmp_path: Path) -> None:
    words = ("--set", "levels=2", "--set", "groups=2", "--set", "landmarks=0.1", "--set", "dimensions=30")
    filters = [f"x < {i}" for i in range(1, 5)] + [f"x > {i}" for i in range(5, 9)]
    events = [float(i) for i in range(10)]
    found = compared(tmp_path, filters, events, "--methods", "rassoc,ncut", "--channels", "2", *words)
    # As many landmarks as there are members are taken instead, and both ends are told apart.
    assert [wrong(found[method, 2]) for method in ("rassoc", "ncut")] == [6 + 6, 6 + 6]
