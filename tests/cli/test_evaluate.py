"""`evaluate` and `compare` of events that are really sent: the numbers of a replay in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

import narrowcast as nc
from narrowcast.model.cells import CellGrid
from narrowcast.routing.replay import EventReplay
from narrowcast.routing.router_parameters import router_maker
from narrowcast.spark.stages.replay import drawn_publishers
from support.command import call, document, refusal, shows, table_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

RNG = np.random.default_rng(11)
SCHEMA = nc.Schema.of({"price": "double", "size": "int"})
PEOPLE = [f"s{i}" for i in range(12)]
LOW = RNG.integers(0, 70, 24)
FILTERS = pa.table(
    {
        "subscription_id": np.arange(24),
        "subscriber": [PEOPLE[i % 12] for i in range(24)],
        "filter": [f"price > {lo} AND price <= {lo + 30} AND size > {i % 3}" for i, lo in enumerate(LOW)],
    }
)
EVENTS = pa.table(
    {
        "event_id": np.arange(160),
        "price": RNG.uniform(0, 100, 160).round(2),
        "size": pa.array(RNG.integers(0, 6, 160), pa.int32()),
    }
)
#: The first are planned from, the others come later.
SPLIT = 100
LINKS = nc.Topology(range(13), [*range(1, 13), 0], RNG.uniform(1, 9, 13).round(2))
PLACES = pa.table({"subscriber": PEOPLE, "node": RNG.integers(0, 13, 12)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("content")
    pq.write_table(FILTERS, found / "s.parquet")
    pq.write_table(EVENTS.slice(0, SPLIT), found / "first.parquet")
    pq.write_table(EVENTS.slice(SPLIT), found / "later.parquet")
    csv.write_csv(LINKS.to_table(), found / "t.csv")
    csv.write_csv(PLACES, found / "l.csv")
    return found


def words(folder: Path, events: str, *, network: bool = True) -> list[str]:
    found = ["--subscriptions", str(folder / "s.parquet"), "--events", str(folder / f"{events}.parquet")]
    return found + (["--topology", str(folder / "t.csv"), "--locations", str(folder / "l.csv")] * network)


def locally(plan: nc.ChannelPlan, events: pa.Table, router: str, grid: Any = None) -> dict[str, Any]:
    """What `evaluate` is to say, with nothing of Spark's."""
    people = nc.compile_filters(SCHEMA, FILTERS).subscriptions
    batch = nc.EventBatch.from_arrow(events, SCHEMA)
    met = nc.AutoMatcher().fit(people).match(batch)
    who = nc.Matches.from_pairs(met.rows(), people.subscriber[met.index], len(batch))
    kept = np.flatnonzero(who.counts())
    who, ids = who.take(kept), batch.event_id[kept]
    network = nc.Network(LINKS, locations=nc.Locations.from_table(PLACES, LINKS))
    again = EventReplay(network, drawn_publishers(ids, np.arange(13)), who, people.subscribers)
    flow = np.zeros(len(kept), np.int64)
    if grid is None:
        every = np.ones((1, plan.n_channels))
        plan = nc.ChannelPlan(every, plan.listens, subscribers=plan.subscribers)
    else:
        known = plan.flows.to_pylist()
        cells = CellGrid.of_keys(SCHEMA, grid).cell_of(batch)[kept].tolist()
        flow = np.array([known.index(c) if c in known else -1 for c in cells])
    sent = router_maker(router)(network).route(flow, again.in_plan(plan), plan, again.publisher)
    return {
        "events": len(kept),
        "outside": int((flow < 0).sum()),
        "cost": pytest.approx(again.cost(sent, plan).sum()),
        "improvement_pct": pytest.approx(again.improvement(sent, plan)),
        "wasted": int(again.messages(sent, plan).wasted.sum()),
        "unicast": pytest.approx(again.unicast.sum()),
        "ideal": pytest.approx(again.ideal.sum()),
    }


def told(again: dict[str, Any]) -> dict[str, Any]:
    found = {name: again["plan"][name] for name in ("outside", "cost", "improvement_pct", "wasted")}
    return found | {"events": again["events"]} | {name: again[name]["cost"] for name in ("unicast", "ideal")}


@pytest.mark.slow
@pytest.mark.spark
def test_a_plan_of_cells_on_its_own_events_and_on_later_ones(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "plan"
    how = ("--flows", "cells", "--cells", "4", "--top", "9", "--method", "pairwise", "--channels", "3")
    document("plan", *words(folder, "first", network=False), *how, "--out", out)
    plan, info = nc.read_plan(out)
    grid = info.params["grid"]

    found, said = document("evaluate", out, *words(folder, "first"), "--set", "beta=3")
    assert said == ""
    expected = locally(plan, EVENTS.slice(0, SPLIT), "threshold", grid)
    assert told(found["replay"]) == expected
    assert expected["outside"] > 0
    assert (found["replay"]["unit"], found["replay"]["plan"]["router"]) == ("links", "threshold")
    assert found["not_scored"] is None
    # What is scored is another number: everybody who meets a cell counts.
    assert found["methods"]["pairwise"]["costs"]["network"]["terms"]["improvement_pct"] != pytest.approx(
        found["replay"]["plan"]["improvement_pct"], abs=1
    )
    costs = found["methods"]["unicast"]["costs"]
    assert costs["filtering"]["total"] == pytest.approx((1 + 3) * costs["waste"]["terms"]["wanted"])

    shown = call("evaluate", out, *words(folder, "later"), "--router", "exact")
    assert shown.exit_code == 0, shown.exception
    assert "costs by flows are not computed: " in shown.stderr
    assert "inputs differ" in shown.stderr
    expected = locally(plan, EVENTS.slice(SPLIT), "exact", grid)
    rows = {row[0]: row for row in table_of(shown.stdout)}
    assert float(rows["pairwise"][1].replace(",", "")) == pytest.approx(expected["cost"].expected, rel=1e-5)
    assert rows["all unicast"][2:] == ["0.0", "0", rows["all unicast"][4], "0"]
    assert f"{expected['outside']:,} of them are in cells that no channel carries" in shown.stdout


@pytest.mark.slow
@pytest.mark.spark
def test_a_plan_of_events_on_later_ones(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan"
    how = ("--method", "partial", "--channels", "4")
    document("plan", *words(folder, "first"), *how, "--out", out)
    plan, _ = nc.read_plan(out)
    found, said = document("evaluate", out, *words(folder, "later"))
    assert "costs by flows are not computed: " in said
    assert told(found["replay"]) == locally(plan, EVENTS.slice(SPLIT), "partial")
    assert (found["methods"], found["pairs"]) == ({}, None)
    without = call("evaluate", out, *words(folder, "later", network=False))
    [mine] = (row for row in table_of(without.stdout) if row[0] == "partial")
    assert len(mine) == 5
    assert "gain %" not in without.stdout


@pytest.mark.slow
@pytest.mark.spark
def test_compare_sends_the_events_by_each_plan(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "compared"
    how = ("--flows", "cells", "--cells", "4", "--methods", "partial,mst", "--channels", "3", "--out", out)
    facts, _ = document("compare", *words(folder, "first"), *how, "--set", "threshold=0.4")
    rows = {row["method"]: row for row in facts["rows"]}
    again = {name: row["replayed"] for name, row in rows.items()}
    assert (again["partial"]["router"], again["mst"]["router"]) == ("partial", "threshold")
    assert again["ideal"] == facts["replay"]["ideal"]
    assert again["unicast"]["cost"] == pytest.approx(facts["replay"]["unicast"]["cost"])
    costs = [row["replayed"]["cost"] for row in facts["rows"]]
    assert costs[0] == min(costs)
    assert costs[1:] == sorted(costs[1:])
    assert again["partial"]["improvement_pct"] > again["mst"]["improvement_pct"]
    table = pq.read_table(out / "compare.parquet")
    assert table["replayed_cost"].to_pylist() == costs
    routers = dict(zip(table["method"].to_pylist(), table["router"].to_pylist(), strict=True))
    assert (routers["partial"], routers["mst"], routers["ideal"]) == ("partial", "threshold", None)
    assert "replayed events" in (out / "compare.svg").read_text()
    assert "events sent with routers threshold and partial" in (out / "compare.svg").read_text()
    assert table["replayed_wasted"].to_pylist() == [row["replayed"]["wasted"] for row in facts["rows"]]
    assert facts["params"] == {"threshold": 0.4}


@pytest.mark.slow
@pytest.mark.spark
def test_names_with_zeros_and_somebody_nowhere(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text(
        "subscription_id,subscriber,filter\n1,01,price > 10\n2,02,price > 20\n3,03,price > 5000\n"
    )
    (tmp_path / "e.csv").write_text("event_id,price\n5,15.5\n6,25.5\n7,1.5\n")
    (tmp_path / "t.csv").write_text("a,b,cost\n007,008,1\n008,009,10\n")
    (tmp_path / "l.csv").write_text("Subscriber,Node\n01,007\n02,009\n")  # 03 wants nothing
    (tmp_path / "p.csv").write_text("Event_ID,NODE\n5,009\n6,009\n")
    interest = nc.Interest([[1, 1], [0, 1]], subscribers=["01", "02"], flows=[5, 6])
    plan = nc.Unicast().fit(interest).plan_
    nc.write_plan(plan, tmp_path / "plan", method="unicast", flow_space="events", interest=interest)
    network = ("--topology", tmp_path / "t.csv", "--locations", tmp_path / "l.csv")
    filters = ("--subscriptions", tmp_path / "s.csv", "--recent", "1")
    given = ("evaluate", tmp_path / "plan", *filters, *network)
    shown = call(*given, "--publishers", tmp_path / "p.csv", "--events", tmp_path / "e.csv")
    assert shown.exit_code == 0, shown.exception
    [mine] = (row for row in table_of(shown.stdout) if row[0] == "all unicast")
    assert mine[1] == "22", "both events are from 009, where 02 is; 01 is 11 away"
    assert f"Costs of {tmp_path / 'plan'} for the 1 events of the plan\n" in shown.stdout
    assert "Total cost of 2 events, sent by the plan with router partial\n" in shown.stdout
    (tmp_path / "e.csv").write_text("event_id,price\n5,1.5\n6,2.5\n")
    shown = call(*given, "--events", tmp_path / "e.csv")
    assert shown.exit_code == 0, shown.exception
    assert "none of the 2 events " in shown.stderr
    assert "sent by the plan" not in shown.stdout


def test_bad_words(folder: Path, tmp_path: Path) -> None:
    """All of them before Spark starts."""
    interest = nc.Interest([[1]], flows=[3])
    plan = nc.Unicast().fit(interest).plan_
    nc.write_plan(plan, tmp_path / "events", method="unicast", flow_space="events")
    nc.write_plan(plan, tmp_path / "topics", method="unicast")
    given: list[str | Path] = ["evaluate", tmp_path / "events", *words(folder, "first")]
    said = refusal(*given, "--set", "gamma=3")
    assert shows(said, "'gamma' 'filtering' alpha beta 'network' multicast 'overall' interval 'partial' send")
    assert shows(refusal(*given, "--router", "thresholds"), "'thresholds' 'threshold'")
    assert "'high'" in refusal(*given, "--router", "threshold", "--set", "threshold=high")
    for bad in ("2", "true", "[0.1, 3]", "null-ish", "NaN"):
        said = refusal(*given, "--router", "threshold", "--set", f"threshold={bad}")
        assert "threshold" in said, bad
    said = refusal(*given, "--router", "threshold", "--set", "threshold=[0.1, 0.2]")
    assert shows(said, "threshold 2 0")
    for bad in ("yes", "1"):
        said = refusal(*given, "--set", f"broadcast={bad}")
        assert "broadcast" in said, bad
    (tmp_path / "p.csv").write_text("event_id,node\n3,1\n3,2\n")
    said = refusal(*given, "--publishers", tmp_path / "p.csv")
    assert shows(said, f"{tmp_path / 'p.csv'} event_id 3")
    assert shows(refusal(*given, "--set", "multicast=any"), "multicast 'any'")
    assert shows(refusal(*given, "--no-replay", "--router", "exact"), "--router --no-replay")
    assert refusal(*given, "--set", "calibration=x").startswith("--set calibration")
    said = refusal(*given, "--set", "calibration=x", "--set", "h=9", "--set", "beta=1")
    assert said.startswith("--set beta")
    topics = ("evaluate", tmp_path / "topics", "--interests", folder / "s.parquet", "--router", "exact")
    assert shows(refusal(*topics), "--router exact --subscriptions")
