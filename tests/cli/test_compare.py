"""`compare`, and the network as `plan`, `evaluate` and `compare` take it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

import narrowcast as nc
from narrowcast.cli.compare import _routed, _rows, _sent
from narrowcast.costs.false_positives import FalsePositives
from narrowcast.costs.filtering import Filtering
from narrowcast.spark.stages.compare import ComparedMethod, Comparison
from narrowcast.spark.stages.delivery_results import DeliveryTotals, ReplayResult
from narrowcast.workloads.hotspots import Hotspots
from support.command import call, document, refusal, shows, table_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

PAIRS = pa.table({"subscriber": [1, 1, 2, 2, 3, 3, 4], "flow": ["x", "y", "y", "z", "z", "x", "w"]})
LINKS = pa.table({"a": ["p", "p", "q"], "b": ["q", "r", "s"], "cost": [1.0, 5.0, 2.5]})
PLACES = pa.table({"subscriber": [1, 2, 3, 4], "node": ["q", "r", "s", "p"]})
INTEREST = nc.Interest.from_tables(PAIRS)
TOPOLOGY = nc.Topology.from_table(LINKS)
NETWORK = nc.Network(TOPOLOGY, locations=nc.Locations.from_table(PLACES, TOPOLOGY))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("network")
    pq.write_table(PAIRS, found / "i.parquet")
    pc.write_csv(LINKS, found / "t.csv")
    rows = "".join(json.dumps(row) + "\n" for row in PLACES.to_pylist())
    (found / "l.jsonl").write_text(rows)
    return found


@pytest.fixture(scope="module")
def given(folder: Path) -> list[str]:
    network = ["--topology", str(folder / "t.csv"), "--locations", str(folder / "l.jsonl")]
    return ["--interests", str(folder / "i.parquet"), *network]


@pytest.mark.slow
@pytest.mark.spark
def test_compare(given: list[str], spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "compared"
    sets = ("--set", "top=3", "--set", "beta=2")
    words = ("--channels", "2,3", "--methods", "partial,mst", *sets, "--out", out)
    facts, said = document("compare", *given, *words)
    assert said == ""
    assert {file.name for file in out.iterdir()} == {
        f"compare.{x}" for x in ("json", "parquet", "png", "svg")
    }
    assert json.loads((out / "compare.json").read_text()) | {"out": str(out)} == facts
    assert (facts["command"], facts["flows"], facts["subscribers"], facts["params"]) == (
        *("compare", 4, 4),
        {"top": 3, "beta": 2},
    )
    assert facts["replay"] is None
    assert {row["replayed"] for row in facts["rows"]} == {None}
    assert facts["costs"] == ["network", "waste", "false-positives", "filtering", "forwarding", "overall"]
    assert set(facts["inputs"]) == {"interests", "topology", "locations"}
    by_name = {(row["method"], row["asked"]): row for row in facts["rows"]}
    asked = {(name, count) for name in ("partial", "mst", "hash", "per-flow") for count in (2, 3)}
    assert set(by_name) == asked | {(name, None) for name in ("unicast", "broadcast", "ideal")}
    plan = nc.Partial(channels=2, topology=TOPOLOGY, locations=NETWORK.locations).fit(INTEREST).plan_
    paid = NETWORK.score(INTEREST, plan)
    assert by_name["partial", 2]["costs"]["network"]["total"] == pytest.approx(paid.total)
    assert by_name["partial", 2]["improvement_pct"] == pytest.approx(paid.terms["improvement_pct"])
    plan = nc.Mst(channels=3, top=3).fit(INTEREST).plan_
    assert by_name["mst", 3]["costs"]["waste"]["total"] == nc.Waste().score(INTEREST, plan).total
    assert by_name["mst", 3]["direct_share"] == pytest.approx(1 / 7)
    filtering = Filtering(beta=2).score(INTEREST, plan)
    assert by_name["mst", 3]["costs"]["filtering"]["total"] == pytest.approx(filtering.total)
    assert by_name["mst", 3]["excess_share"] == pytest.approx(Filtering.share(filtering, 4))
    table = pq.read_table(out / "compare.parquet")
    assert table["network"].to_pylist() == [row["costs"]["network"]["total"] for row in facts["rows"]]
    assert "seconds to plan" in (out / "compare.svg").read_text()


@pytest.mark.parametrize("unit", ["links", "messages"])
def test_the_table_has_room_for_replayed_events(unit: Literal["links", "messages"]) -> None:
    gain = 61.94 if unit == "links" else None
    sent = DeliveryTotals(360872.4, gain, 303, 900, 243, 29304, router="threshold")
    costs = {"waste": nc.Cost(27.675), "filtering": nc.Cost(9.0)}
    if unit == "links":
        costs["network"] = nc.Cost(943.36, {"improvement_pct": 96.17})
    row = ComparedMethod("hierarchical-rra", 11, 11, costs, 0.15, 0.0, 0.01, 0.6, replayed=sent)
    names = tuple(sorted(costs, key=["network", "waste", "filtering"].index))
    head, mine = _rows(Comparison(names, (row,), ReplayResult(unit, 322, 10960, {}, {})))
    told = {
        "links": ("network", "gain %", "replayed", "gain %"),
        "messages": ("waste", "replayed", "wasted"),
    }
    assert head == ("method", "used", *told[unit], "sec", "MB")
    values = {"links": ("943.36", "96.2", "360,872", "61.9"), "messages": ("27.675", "360,872", "29,304")}
    assert _sent(
        Comparison(names, (row,), ReplayResult(unit, 322, 10960, {"hierarchical-rra 11": sent}, {}))
    ) == ("; 322 events sent with router threshold")
    assert mine == ("hierarchical-rra", "11", *values[unit], "0.01", "0.6")


def test_the_table_says_how_large_clusters_are() -> None:
    costs = {"waste": nc.Cost(27.675), "overall": nc.Cost(9.0)}
    rows = (
        ComparedMethod("ideal", costs=costs),
        ComparedMethod("direct", 20, 20, costs, None, 0.0, 0.01, 0.6, balance=1.956),
        ComparedMethod("unicast", None, 0, costs, None, 1.0, 0.01, 0.6),
    )
    head, ideal, direct, unicast = _rows(Comparison(("waste", "overall"), rows))
    assert head == ("method", "used", "largest", "waste", "direct %", "sec", "MB")
    assert (ideal[2], direct[2], unicast[2]) == ("", "1.96", "")
    # Without clusters it says nothing, and what channels cost in all is back.
    assert _rows(Comparison(("waste", "overall"), rows[::2]))[0][:4] == ("method", "used", "waste", "overall")
    on_links = {**costs, "network": nc.Cost(943.36, {"improvement_pct": 96.17})}
    row = ComparedMethod("direct", 20, 20, on_links, None, 0.0, 0.01, 0.6, balance=1.956)
    assert "largest" not in _rows(Comparison(("network", "waste"), (row,)))[0]


def test_it_is_said_which_rows_have_which_router() -> None:
    """One channel for everybody is left unused by `partial`, and clusters are all sent to."""
    by = {"direct": "channels", "ncut": "channels", "hash": "partial", "ideal": None}
    by |= dict.fromkeys(("unicast", "broadcast"), "partial")
    rows = tuple(
        ComparedMethod(name, replayed=DeliveryTotals(9.0, None, 1, 2, 3, 4, router=router))
        for name, router in by.items()
    )
    assert _routed(Comparison((), rows)) == (
        "Each method is replayed with the router that suits it: direct, ncut with channels; the "
        "others with partial. --router uses one for all."
    )
    assert _routed(Comparison((), rows[:2])) == ""


@pytest.mark.slow
@pytest.mark.spark
def test_a_method_that_fails_is_told(given: list[str], spark: SparkSession, tmp_path: Path) -> None:
    words = ("--channels", "2", "--methods", "forgy", "--set", "passes=-1", "--out", tmp_path / "out")
    found = call("compare", *given[:2], *words)
    assert found.exit_code == 0, found.exception
    rows = table_of(found.stdout)
    [problem] = (row[1] for row in rows if row[0] == "forgy 2" and len(row) == 2)
    assert "passes=-1" in problem
    [mine] = (row for row in rows if row[0] == "hash")
    plan = nc.Hash(channels=2).fit(INTEREST).plan_
    waste, share = (
        nc.Waste().score(INTEREST, plan).total,
        Filtering.share(Filtering().score(INTEREST, plan), 4),
    )
    assert plan.n_used == 1
    overall = nc.Overall().score(INTEREST, plan).total
    assert mine[1:5] == ["1", f"{waste:g}", f"{overall:,.6g}", f"{100 * share:.1f}"]
    assert max(len(line) for line in found.stdout.splitlines() if "┃" in line) <= 80
    assert "network" not in found.stdout
    assert "forgy" in (tmp_path / "out" / "compare.svg").read_text(), (
        "what is missing is told below the title"
    )


@pytest.mark.parametrize("command", ["plan", "evaluate", "compare"])
def test_bad_networks_are_one_line(command: str, folder: Path, tmp_path: Path) -> None:
    """All of them before Spark starts."""
    nc.write_plan(nc.Unicast().fit(INTEREST).plan_, tmp_path / "p", method="unicast", interest=INTEREST)
    by_command: dict[str, list[str | Path]] = {
        "plan": ["plan", "--method", "unicast", "--out", tmp_path / "out"],
        "evaluate": ["evaluate", tmp_path / "p"],
        "compare": ["compare", "--channels", "2", "--out", tmp_path / "out"],
    }
    words = [*by_command[command], "--interests", folder / "i.parquet"]

    def refused(links: str, places: str = "") -> str:
        (tmp_path / "t.csv").write_text(links)
        (tmp_path / "l.csv").write_text(places)
        more: list[str | Path] = ["--locations", tmp_path / "l.csv"] if places else []
        return refusal(*words, "--topology", tmp_path / "t.csv", *more)

    assert shows(refused("a,b,cost\n1,2,-3\n"), f"{tmp_path / 't.csv'} 1 2 -3.0")
    assert shows(refused("a,b,cost\n1,2,3\n8,9,1\n5,5,0\n"), f"{tmp_path / 't.csv'} 5 1")
    assert shows(refused("a,b\n1,2\n"), "t.csv 'cost' 'a', 'b'")
    assert shows(refused("a,b,cost\n1,2,3\n", "subscriber,node\n1,7\n"), f"{tmp_path / 'l.csv'} 1 7")
    assert shows(refused("a,b,cost\n1,2,3\n", "subscriber,node\n1,2\n2,\n"), "l.csv 'node' 1")
    assert shows(refusal(*words, "--cost", "network"), "'network' topology")
    assert shows(refusal(*words, "--cost", "wast"), "'wast' 'waste'")
    assert shows(refusal(*words, "--locations", folder / "l.jsonl"), "--locations topology")
    assert not (tmp_path / "out").exists()


def test_bad_words(folder: Path, tmp_path: Path) -> None:
    words: list[str | Path] = [
        "compare",
        "--interests",
        folder / "i.parquet",
        "--out",
        tmp_path / "out",
        "--channels",
    ]
    assert shows(refusal(*words, "2,x"), "--channels='2,x'")
    assert shows(refusal(*words, "0"), "--channels 0")
    assert shows(refusal(*words, "2,2"), "channels [2, 2]")
    said = refusal(*words, "2", "--methods", "mst", "--set", "passes=3")
    assert shows(said, "'passes' distance 'filtering' alpha, beta; 'forwarding' 'overall'")
    said = refusal(*words, "2", "--methods", "mst", "--set", "seed=3")
    assert said.startswith("--set seed")
    assert shows(refusal(*words, "2", "--set", "beta=-1"), "beta -1")
    said = refusal(*words, "2", "--router", "exact")
    assert shows(said, "--router exact --subscriptions --events")
    content = ("compare", "--subscriptions", "s.csv", "--events", "e.csv", "--out", tmp_path / "out")
    said = refusal(*content, "--channels", "2", "--router", "exact", "--no-replay")
    assert shows(said, "--router exact --no-replay")
    for bad in ("2", "true"):
        for more in (("--router", "threshold"), ("--flows", "cells")):
            said = refusal(*content, "--channels", "2", *more, "--set", f"threshold={bad}")
            assert "threshold" in said
    said = refusal(*content, "--channels", "2", "--set", "broadcast=yes")
    assert shows(said, "broadcast 'yes'")
    said = refusal(*content, "--channels", "2", "--flows", "cells", "--set", "threshold=[0.1,0.2]")
    assert said.startswith("--set threshold=[0.1, 0.2]")
    said = refusal(*words, "2", "--cells", "5")
    assert shows(said, "--cells subscriptions events")
    said = refusal(*words, "2", "--top", "5")
    assert shows(said, "--top subscriptions events")
    said = refusal(*words, "2", "--methods", "mst,r-tree")
    assert shows(said, "'r-tree' --subscriptions --events")
    assert shows(refusal(*words, "2", "--methods", "mzt"), "'mzt' 'mst'")
    (tmp_path / "out").mkdir()
    assert str(tmp_path / "out") in refusal(*words, "2")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("flows", ["events", "cells"])
def test_methods_by_boxes(flows: str, spark: SparkSession, tmp_path: Path) -> None:
    """They get the boxes of filters, in the order of the interest, whatever flows there are."""
    hotspots = Hotspots(n_subscriptions=60, n_events=80, seed=3)
    for name, table in hotspots.tables().items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    content = ("--subscriptions", tmp_path / "subscriptions.parquet", "--events", tmp_path / "events.parquet")
    words = ("--channels", "6", "--methods", "centroid,box-overlap,r-tree,direct", "--flows", flows)
    sets = ("--set", "packing=str", "--seed", "2", "--no-replay")
    facts, _ = document("compare", *content, *words, *sets, "--out", tmp_path / "out")
    by_name = {row["method"]: row for row in facts["rows"]}
    assert [row["problem"] for row in facts["rows"]] == [None] * len(by_name)
    assert {"centroid", "box-overlap", "r-tree", "direct"} < set(by_name)
    if flows == "events":
        (lo, hi), points = hotspots.ends(), hotspots.values()
        matched = np.asarray(((points[:, None] > lo) & (points[:, None] <= hi)).all(axis=2))
        assert not matched.any(axis=0).all()  # who matched nothing is in their clusters as well, and counts
        assert facts["subscribers"] == 60
        interest = nc.Interest(matched.T[:, matched.any(axis=1)])
        for planner in (
            nc.PLANNERS["centroid"](channels=6, seed=2, boxes=(lo, hi)),
            nc.PLANNERS["r-tree"](channels=6, seed=2, boxes=(lo, hi), packing="str"),
        ):
            plan = planner.fit(interest).plan_
            found = FalsePositives().score(interest, plan).total
            row = by_name[type(planner).__name__.lower().replace("rtree", "r-tree")]
            assert row["costs"]["false-positives"]["total"] == pytest.approx(found)
            assert row["balance"] == pytest.approx(plan.members().max() / 10)
        assert by_name["direct"]["balance"] <= 2
        # A channel to all reaches who matched nothing as well, as sending each event to all does.
        reached = by_name["broadcast"]["costs"]["waste"]["terms"]["deliveries"]
        assert reached == interest.n_flows * 60


@pytest.mark.spark
@pytest.mark.slow
def test_plan_and_evaluate_on_a_network(given: list[str], spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "plan"
    facts, _ = document("plan", *given, "--method", "partial", "--channels", "2", "--out", out)
    plan = nc.Partial(channels=2, topology=TOPOLOGY, locations=NETWORK.locations).fit(INTEREST).plan_
    made, info = nc.read_plan(out)
    paid = NETWORK.score(INTEREST, plan)
    assert made == plan
    assert (
        facts["costs"]
        == info.costs
        == {
            "false-positives": FalsePositives().score(INTEREST, plan).total,
            "filtering": Filtering().score(INTEREST, plan).total,
            "forwarding": nc.Forwarding().score(INTEREST, plan).total,
            "network": pytest.approx(paid.total),
            "overall": nc.Overall().score(INTEREST, plan).total,
            "waste": nc.Waste().score(INTEREST, plan).total,
        }
    )
    assert set(info.inputs) == {"interests", "topology", "locations"}

    found, said = document("evaluate", out, *given, "--channels", "2")
    assert said == ""
    costs = {name: each["costs"]["network"] for name, each in found["methods"].items()}
    assert costs["partial"]["total"] == pytest.approx(paid.total)
    hashed = nc.Hash(channels=2).fit(INTEREST).plan_
    assert costs["hash"]["total"] == pytest.approx(NETWORK.score(INTEREST, hashed).total)
    assert (costs["unicast"]["terms"]["improvement_pct"], costs["ideal"]["terms"]["improvement_pct"]) == (
        0,
        100,
    )

    # Without the network the waste is left; with another one, the inputs are not those of the plan.
    shown = call("evaluate", out, *given[:2])
    assert shown.exit_code == 0, shown.exception
    assert shown.stderr == ""
    assert "network" not in shown.stdout
    pc.write_csv(LINKS.set_column(2, "cost", pa.array([1.0, 1.0, 1.0])), tmp_path / "t.csv")
    shown = call(
        "evaluate", out, *given[:2], "--topology", tmp_path / "t.csv", *given[4:], "--cost", "network"
    )
    assert shown.exit_code == 0, shown.exception
    assert shown.stderr == "the inputs differ from those that the plan was made from\n"
    assert table_of(shown.stdout)[0][0] in ("partial", "messages a second")
    assert "gain %" in shown.stdout
    assert "waste" not in shown.stdout


@pytest.mark.slow
@pytest.mark.spark
def test_what_only_the_data_shows(folder: Path, spark: SparkSession, tmp_path: Path) -> None:
    words: list[str | Path] = [
        "--interests",
        folder / "i.parquet",
        "--channels",
        "2",
        "--out",
        tmp_path / "out",
        "--topology",
    ]
    (tmp_path / "apart.csv").write_text("a,b,cost\n1,2,1\n3,4,1\n")
    said = refusal("compare", *words, tmp_path / "apart.csv")
    assert "apart.csv" in said
    (tmp_path / "few.csv").write_text("a,b,cost\n1,2,1\n2,3,1\n")
    said = refusal("plan", "--method", "hash", *words, tmp_path / "few.csv")
    assert "subscriber 4" in said
    (tmp_path / "l.csv").write_text("subscriber,node\n1,1\n2,1\n3,3\n")
    said = refusal(
        "plan", "--method", "partial", *words, tmp_path / "few.csv", "--locations", tmp_path / "l.csv"
    )
    assert "subscriber 4" in said
    said = refusal("plan", "--method", "partial", *words, tmp_path / "few.csv", "--set", "topology=3")
    assert "topology" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.spark
def test_parameters_reach_planners(given: list[str], spark: SparkSession, tmp_path: Path) -> None:
    words = ("plan", *given[:2], "--method", "pairwise", "--channels", "2")
    sets = ("--set", "distance=norm", "--set", "top=3")
    document(*words, *sets, "--out", tmp_path / "plan")
    made, info = nc.read_plan(tmp_path / "plan")
    assert made == nc.Pairwise(channels=2, distance="norm", top=3).fit(INTEREST).plan_
    assert info.params == {"channels": 2, "distance": "norm", "top": 3}
    out = ("--out", tmp_path / "other")
    said = refusal(*words, "--set", "topp=3", *out)
    assert shows(said, "'topp' 'pairwise' top, distance;")
    assert shows(refusal(*words, "--set", "distance=far", *out), "distance 'far' total, norm,")
    assert shows(refusal(*words, "--set", "top=many", *out), "top 'many'")
